from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench._units import GIB, MIB
from kernbench.config import _rules as rules
from kernbench.errors import AllocationError, ConfigError
from kernbench.policy.address.allocator import AddressConfig
from kernbench.policy.address.phyaddr import (
    MAX_CUBES,
    MAX_PES,
    MAX_SIPS,
    RESOURCE_WINDOW,
    WINDOW_BYTES,
    Location,
    PhysAddr,
)
from tests.topology.machines import default, machines

SIP, CUBE, PE = st.integers(0, MAX_SIPS - 1), st.integers(0, MAX_CUBES - 1), st.integers(0, MAX_PES - 1)
SLICE = 6 * GIB


@given(st.integers(0, (1 << 54) - 1))
def test_encode_is_the_inverse_of_decode(value):
    address = PhysAddr.decode(value)
    assert address.encode() == value
    assert PhysAddr.decode(int(address)) == address


@given(st.integers(0, 63), st.integers(0, 15), st.integers(0, 127), st.integers(0, (1 << 39) - 1))
def test_decode_is_the_inverse_of_encode(rack, sip, die, offset):
    address = PhysAddr(rack, sip, die, offset)
    assert PhysAddr.decode(address.encode()) == address
    assert address.encode() == die // 32 << 55 | rack << 48 | sip << 44 | die % 32 << 39 | offset


def test_encodings_of_check_values():
    assert PhysAddr.hbm_addr(0, 0, 0).encode() == 1 << 38
    assert PhysAddr.pe_tcm_addr(17, 5, 3, 64).encode() == 1 << 48 | 1 << 44 | 5 << 39 | 3 * 256 * MIB + 64
    assert PhysAddr.hbm_addr(255, 15, 0).encode() == 15 << 48 | 15 << 44 | 15 << 39 | 1 << 38
    assert PhysAddr.hbm_addr(256, 0, 0).encode() == 16 << 48 | 1 << 38
    assert PhysAddr.hbm_addr(1023, 15, WINDOW_BYTES - 1).encode() == 63 << 48 | 15 << 44 | 15 << 39 | (1 << 39) - 1
    assert PhysAddr.hbm_addr(1, 16, 0).encode() == 1 << 55 | 1 << 44 | 1 << 38
    assert PhysAddr.pe_tcm_addr(0, 63, 64, 5).encode() == 3 << 55 | 15 << 39 | 22 * GIB + 5
    assert PhysAddr.pe_tcm_addr(0, 0, 1023, 0).encode() == 22 * GIB + 959 * 64 * MIB


@given(SIP, CUBE, PE, st.data())
def test_factories_name_what_locate_finds(sip, cube, pe, data):
    def offset(limit):
        return data.draw(st.integers(0, limit - 1))

    tcm, small, large = offset(16 * MIB), offset(MIB), offset(4 * GIB)
    assert PhysAddr.pe_tcm_addr(sip, cube, pe, tcm).locate() == Location(sip, cube, pe, "pe_tcm", tcm)
    assert PhysAddr.pe_regfile_addr(sip, cube, pe, small).locate() == Location(sip, cube, pe, "pe_regfile", small)
    assert PhysAddr.cube_sram_addr(sip, cube, large).locate() == Location(sip, cube, None, "sram", large)
    hbm = offset(WINDOW_BYTES)
    assert PhysAddr.hbm_addr(sip, cube, hbm).locate() == Location(sip, cube, None, "hbm_ctrl", hbm)
    scratch = PhysAddr.pe_scratchpad_addr(sip, cube, pe, small, scratch_start=4 * MIB)
    assert scratch.locate() == Location(sip, cube, pe, "pe_tcm", 4 * MIB + small)
    ring = PhysAddr.pe_ipcq_addr(sip, cube, pe, small, heap_start=5 * MIB)
    assert ring.locate() == Location(sip, cube, pe, "pe_tcm", 5 * MIB + small)
    assert (scratch.rack, scratch.sip, scratch.die) == (sip // 16, sip % 16, cube // 16 * 32 + cube % 16)


def test_hbm_slices_follow_each_other():
    addresses = [PhysAddr.pe_hbm_addr(3, 5, pe, 7, slice_bytes=SLICE) for pe in range(8)]
    assert [a.locate().offset for a in addresses] == [pe * SLICE + 7 for pe in range(8)]


def test_ranges_of_the_resource_window_fill_it_without_overlap():
    assert RESOURCE_WINDOW[0].start == 0
    assert RESOURCE_WINDOW[-1].end == WINDOW_BYTES
    for name in ("pe_tcm", "pe_regfile"):
        first, more = (r for r in RESOURCE_WINDOW if r.name == name)
        assert (first.first_pe, first.pes, more.first_pe, more.pes) == (0, 64, 64, MAX_PES - 64)
    for resource, following in pairwise(RESOURCE_WINDOW):
        assert resource.start + resource.size * max(1, resource.pes) == resource.end <= following.start
    gaps = [following.start - r.end for r, following in pairwise(RESOURCE_WINDOW)]
    assert sum(gaps) == 0


@given(SIP, st.integers(16, 31), st.integers(0, (1 << 39) - 1))
def test_dies_above_the_cubes_are_io_chiplets_or_reserved(sip, die, offset):
    found = PhysAddr(sip // 16, sip % 16, die, offset).locate()
    assert found == Location(sip, None, None, "io" if die <= 20 else "reserved", offset)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PhysAddr(64, 0, 0, 0),
        lambda: PhysAddr(0, 0, 128, 0),
        lambda: PhysAddr.decode(1 << 54),
        lambda: PhysAddr.decode(1 << 57),
        lambda: PhysAddr.decode(-1),
        lambda: PhysAddr.hbm_addr(1024, 0, 0),
        lambda: PhysAddr.hbm_addr(0, 64, 0),
        lambda: PhysAddr.hbm_addr(0, 0, WINDOW_BYTES),
        lambda: PhysAddr.pe_tcm_addr(0, 0, 1024, 0),
        lambda: PhysAddr.pe_tcm_addr(0, 0, 64, 64 * MIB),
        lambda: PhysAddr.pe_hbm_addr(0, 0, 0, SLICE, slice_bytes=SLICE),
    ],
)
def test_what_does_not_fit_is_refused_with_the_limit(make):
    with pytest.raises(AllocationError, match=r"does not fit: expected 0 <= .* < 0x"):
        make()


@given(machines(), st.data())
def test_a_machine_finds_each_of_its_bytes(machine, data):
    config = AddressConfig.of(machine.config)
    sip, cube = data.draw(st.integers(0, config.sip_count - 1)), data.draw(st.integers(0, config.cubes_per_sip - 1))
    pe = data.draw(st.integers(0, config.pes_per_cube - 1))
    at = data.draw(st.integers(0, config.slice_bytes - 1))
    hbm = PhysAddr.pe_hbm_addr(sip, cube, pe, at, slice_bytes=config.slice_bytes)
    assert config.locate(hbm.encode()) == Location(sip, cube, pe, "hbm_ctrl", at)
    tcm, sram = config.tcm_bytes_per_pe - 1, config.sram_bytes_per_cube - 1
    assert config.locate(PhysAddr.pe_tcm_addr(sip, cube, pe, tcm).encode()).offset == tcm
    assert config.locate(PhysAddr.cube_sram_addr(sip, cube, sram).encode()).offset == sram
    for absent in (
        PhysAddr.pe_tcm_addr(sip, cube, pe, tcm + 1),
        PhysAddr.cube_sram_addr(sip, cube, sram + 1),
        PhysAddr.hbm_addr(sip, cube, config.slice_bytes * config.pes_per_cube),
        PhysAddr.hbm_addr(sip, 15, 0),
        PhysAddr.hbm_addr(config.sip_count, cube, 0),
        PhysAddr.pe_regfile_addr(sip, cube, pe, 0),
        PhysAddr(sip // 16, sip % 16, 16, 1 << 37),
    ):
        with pytest.raises(AllocationError, match="no memory of this machine"):
            config.locate(absent.encode())


def test_default_sizes():
    config = AddressConfig.of(default().config)
    assert (config.slice_bytes, config.scratch_start, config.heap_start, config.heap_bytes) == (
        6 * GIB, 4 * MIB, 5 * MIB, 11 * MIB,
    )  # fmt: skip


def test_the_largest_machine_that_a_file_may_describe_has_an_address_for_every_byte():
    assert (MAX_SIPS, MAX_CUBES, MAX_PES) == (1024, 64, 1024)
    assert rules.HBM_WINDOW_GIB * GIB == WINDOW_BYTES
    sizes = [r.size for name in ("pe_tcm", "sram") for r in RESOURCE_WINDOW if r.name == name]
    assert sizes == [mib * MIB for mib in (rules.TCM_WINDOW_MIB, rules.SMALL_TCM_WINDOW_MIB, rules.SRAM_WINDOW_MIB)]


@pytest.mark.parametrize(
    ("overrides", "field"),
    [
        ({"system__sips": {"count": 1025, "topology": "ring_1d"}}, r"system\.sips\.count = 1025 must be <= 1024"),
        ({"sip__cube_mesh": {"w": 65, "h": 1}}, r"sip\.cube_mesh = 65 x 1 = 65 cubes must be <= 64"),
        ({"cube__hbm__size_gib": 257}, r"cube\.hbm\.size_gib = 257 must be <= 256"),
        ({"cube__pe__pe_tcm__size_mb": 257}, r"cube\.pe\.pe_tcm\.size_mb = 257 must be <= 256"),
        ({"cube__sram__size_mib": 4097}, r"cube\.sram\.size_mib = 4097 must be <= 4096"),
    ],
)
def test_a_larger_one_is_refused_with_the_field(overrides, field):
    with pytest.raises(ConfigError, match=field):
        default(**overrides)
