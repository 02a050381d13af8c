from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import KernbenchError
from kernbench.topology import _naming as naming

n = st.integers(0, 300)


def test_ids_read_as_documented():
    assert [
        naming.HOST, naming.SWITCH, naming.pcie_ep(0), naming.io_cpu(0), naming.io_noc(0), naming.router(0, 5, 1, 4),
        naming.hbm(0, 5, 3), naming.m_cpu(0, 5), naming.sram(0, 5), naming.ucie(0, 5, "w", 0), naming.pe_dma(0, 5, 3),
        naming.pe_ipcq(0, 5, 3), naming.io_ucie(0, 0, 0),
    ] == [
        "host", "switch", "sip0.io.pcie_ep", "sip0.io.io_cpu", "sip0.io.noc", "sip0.cube5.r1c4",
        "sip0.cube5.hbm_ctrl.pe3", "sip0.cube5.m_cpu", "sip0.cube5.sram", "sip0.cube5.ucie_w.conn0",
        "sip0.cube5.pe3.pe_dma", "sip0.cube5.pe3.pe_ipcq", "sip0.io.ucie_r0.conn0",
    ]  # fmt: skip


@given(n, n, n, n, n, st.sampled_from("ewns"), st.sampled_from(naming.PE_PARTS))
def test_parse_gives_back_what_an_id_was_made_of(sip, cube, pe, row, conn, side, part):
    place = naming.ParsedId
    assert naming.parse(naming.router(sip, cube, row, conn)) == place("router", sip, cube, row=row, col=conn)
    assert naming.parse(naming.ucie(sip, cube, side, conn)) == place("ucie", sip, cube, side=side, conn=conn)
    assert naming.parse(naming.io_ucie(sip, row, conn)) == place("ucie", sip, row=row, conn=conn)
    assert naming.parse(naming.hbm(sip, cube, pe)) == place("hbm_ctrl", sip, cube, pe)
    assert naming.parse(f"{naming.pe(sip, cube, pe)}.{part}") == place(part, sip, cube, pe)
    for form, kind in ((naming.m_cpu, "m_cpu"), (naming.sram, "sram")):
        assert naming.parse(form(sip, cube)) == place(kind, sip, cube)
    for form, kind in ((naming.pcie_ep, "pcie_ep"), (naming.io_cpu, "io_cpu"), (naming.io_noc, "io_noc")):
        assert naming.parse(form(sip)) == place(kind, sip)


@pytest.mark.parametrize(
    "wrong", ["", "hosts", "sip0", "sip0.cube0", "sip00.io.noc", "sip0.cube0.pe0.pe_gpu", "sip0.cube0.ucie_x.conn0"]
)
def test_what_is_no_id_is_refused_with_examples(wrong):
    with pytest.raises(KernbenchError, match=r"is not a node id; ids read like .*sip0\.cube5\.r1c4"):
        naming.parse(wrong)


def test_numbers_in_ids_sort_as_numbers():
    ids = ["pe10.x", "pe2.x", "pe2", "m_cpu"]
    assert sorted(ids, key=naming.natural_key) == ["m_cpu", "pe2", "pe2.x", "pe10.x"]
