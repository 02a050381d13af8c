"""Predictions: what they refuse, what they say, and how near they come."""

from __future__ import annotations

import pytest

from kernbench.errors import KernbenchError
from kernbench.studies import gemm
from kernbench.topology.builder import resolve_topology

MACHINE = resolve_topology("preset:default")


@pytest.fixture(scope="module")
def result():
    return gemm.run(MACHINE, (128, 512, 128), "ref_ref")


def test_a_prediction_names_the_fields_the_times_and_itself(result):
    found = result.what_if("cube.hbm.channel_bw_gbs=16")
    assert found.simulated_ns == result.latency_ns
    for text in (repr(found), found._repr_html_()):
        for part in ("prediction", "cube.hbm.channel_bw_gbs 32 ", " 16", f"{found.predicted_ns:,.2f} ns"):
            assert part in text


def test_overrides_are_those_of_load(result):
    both = result.what_if(["cube.pe.pe_gemm.clock_ghz=0.5", "system.pcie.latency_ns=50"])
    assert both == result.what_if({"system.pcie.latency_ns": 50, "cube.pe.pe_gemm.clock_ghz": 0.5})
    assert [(x.field, x.old, x.new) for x in both.changes] == [
        ("system.pcie.latency_ns", 100, 50), ("cube.pe.pe_gemm.clock_ghz", 1.0, 0.5),
    ]  # fmt: skip


def test_links_that_a_faster_slice_needs_come_with_it(result):
    implied = {x.field: x.new for x in result.what_if("cube.hbm.channel_bw_gbs=40").changes if x.implied}
    assert implied == {"cube.hbm.bw_gbs": 320, "cube.pe.pe_dma.bw_gbs": 320}
    with pytest.raises(KernbenchError, match=r"cube.hbm.bw_gbs = 256 must be >= 320"):
        result.what_if(["cube.hbm.channel_bw_gbs=40", "cube.hbm.bw_gbs=256"])


def test_the_same_machine_takes_the_same_time(result):
    same = result.what_if([])
    assert (same.predicted_ns, same.ratio, same.changes) == (result.latency_ns, 1, ())


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("sip.cube_mesh.w=2", "sip.cube_mesh.w = 2: a prediction re-times.*run the program on the changed machine"),
        ("cube.pe.pe_gemm.tile.m=64", "cube.pe.pe_gemm.tile.m = 64: .*run the program on the changed machine"),
        ("cube.hbm.channel_bw=2", "cube.hbm.channel_bw is unknown; did you mean channel_bw_gbs"),
        ("cube.hbm.channel_bw_gbs=0", "cube.hbm.channel_bw_gbs = 0"),
    ],
)
def test_what_is_no_rate_is_refused(result, override, text):
    with pytest.raises(KernbenchError, match=text):
        result.what_if(override)


def test_a_run_without_a_log_is_refused():
    result = gemm.run(MACHINE, (16, 16, 16), "ref_ref", log="off")
    with pytest.raises(KernbenchError, match=r'run it with log="operation"'):
        result.what_if("cube.hbm.channel_bw_gbs=16")


def test_the_first_row_of_a_tornado_is_the_field_that_changes_most(result):
    found = result.tornado()
    swings = [max((abs(x.ratio - 1) for x in predictions if x), default=0) for _, predictions in found.rows]
    assert swings == sorted(swings, reverse=True)
    field, (half, twice) = found.rows[0]
    assert field in ("cube.hbm.channel_bw_gbs", "cube.hbm.efficiency", "system.pcie.latency_ns")
    exact = gemm.run(MACHINE.with_({field: half.changes[0].new}), (128, 512, 128), "ref_ref")
    assert half.predicted_ns == pytest.approx(exact.latency_ns, rel=0.05)
    assert (half.ratio < 1) != (twice.ratio < 1)
    assert dict(found.rows)["cube.hbm.bw_gbs"][0] is None  # slower than the slice
