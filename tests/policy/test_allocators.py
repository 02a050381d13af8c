from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kernbench._units import GIB, MIB
from kernbench.errors import AllocationError
from kernbench.policy.address.allocator import AddressConfig, Allocators, FirstFit, PEMemAllocator
from kernbench.policy.address.phyaddr import ADDRESS_BITS
from kernbench.policy.address.va_allocator import _PAGE, VirtualAllocator
from tests.topology.machines import default

CONFIG = AddressConfig(
    sip_count=2, cubes_per_sip=2, pes_per_cube=2, hbm_bytes_per_cube=2 * GIB, hbm_slices_per_cube=2,
    tcm_bytes_per_pe=16 * MIB, tcm_scheduler_reserved_bytes=4 * MIB, scratch_bytes=MIB, sram_bytes_per_cube=MIB,
)  # fmt: skip


class Allocations(RuleBasedStateMachine):
    """Random allocations and frees in a space of 64 units, against a list of what is held."""

    def __init__(self):
        super().__init__()
        self.space = FirstFit("space", 100, 64 * 256 + 300)
        self.held: dict[int, int] = {}

    @rule(nbytes=st.integers(1, 12 * 256))
    def alloc(self, nbytes):
        size = -(-nbytes // 256) * 256
        if size > self.space.largest_hole:
            with pytest.raises(AllocationError, match="no room"):
                self.space.alloc(nbytes)
            return
        address = self.space.alloc(nbytes)
        lower = [a for a in range(256, address, 256) if self._is_free(a, size)]
        assert not lower, "first fit"
        assert self._is_free(address, size)
        self.held[address] = size

    @rule(data=st.data())
    def free(self, data):
        if self.held:
            address = data.draw(st.sampled_from(sorted(self.held)))
            del self.held[address]
            self.space.free(address)
            with pytest.raises(AllocationError, match="freed before"):
                self.space.free(address)

    def _is_free(self, address, size):
        inside = address >= 256 and address + size <= 256 + 64 * 256
        return inside and all(address + size <= a or a + s <= address for a, s in self.held.items())

    @invariant()
    def nothing_overlaps_and_nothing_is_lost(self):
        spans = sorted(self.held.items())
        assert all(a % 256 == 0 for a, _ in spans)
        assert all(a + s <= b for (a, s), (b, _) in pairwise(spans))
        assert self.space.free_bytes + sum(self.held.values()) == 64 * 256
        edges = [256, *(x for a, s in spans for x in (a, a + s)), 65 * 256]
        holes = [end - start for start, end in zip(edges[::2], edges[1::2], strict=True)]
        assert self.space.largest_hole == max(holes), "holes that touch are one"


TestAllocations = Allocations.TestCase


def test_a_pe_hands_out_its_own_memory():
    for sip, cube, pe in ((0, 0, 0), (1, 1, 1)):
        memory = PEMemAllocator(CONFIG, sip, cube, pe)
        for address, component in (
            (memory.alloc_hbm(100), "hbm_ctrl"),
            (memory.reserve_ipcq_hbm(100), "hbm_ctrl"),
            (memory.alloc_tcm(100), "pe_tcm"),
            (memory.reserve_ipcq_tcm(100), "pe_tcm"),
        ):
            place = CONFIG.locate(address)
            assert (place.sip, place.cube, place.pe, place.component) == (sip, cube, pe, component)
            if component == "pe_tcm":
                assert place.offset >= CONFIG.heap_start, "not in the tile buffers or the scratch"


def test_rings_and_tensors_share_what_there_is():
    memory = PEMemAllocator(CONFIG, 0, 0, 0)
    ring = memory.reserve_ipcq_tcm(10 * MIB)
    with pytest.raises(AllocationError, match=r"TCM of sip0.cube0.pe0: no room for 1048577 B.*1048576 B \(1 MiB\) of"):
        memory.alloc_tcm(MIB + 1)
    memory.free(ring)
    assert memory.alloc_tcm(11 * MIB) == ring


def test_a_foreign_address_cannot_be_freed():
    allocators = Allocators(CONFIG)
    address = allocators.pe(0, 0, 0).alloc_hbm(256)
    with pytest.raises(AllocationError, match=r"HBM slice of sip0.cube0.pe1: free of 0x"):
        allocators.pe(0, 0, 1).free(address)
    allocators.pe(0, 0, 0).free(address)
    with pytest.raises(AllocationError, match="freed before"):
        allocators.pe(0, 0, 0).free(address)


def test_each_cube_has_one_sram():
    allocators = Allocators(CONFIG)
    first, second = (allocators.sram(0, 1).reserve_ipcq_sram(1000) for _ in range(2))
    assert second == first + 1024
    place = CONFIG.locate(second)
    assert (place.sip, place.cube, place.component, place.offset) == (0, 1, "sram", 1024)
    with pytest.raises(AllocationError, match=r"SRAM of sip0\.cube1: no room"):
        allocators.sram(0, 1).reserve_ipcq_sram(MIB)
    allocators.sram(0, 1).free(first)
    assert allocators.sram(0, 1).reserve_ipcq_sram(1024) == first


def test_nothing_is_no_allocation():
    with pytest.raises(AllocationError, match="at least 1 B"):
        PEMemAllocator(CONFIG, 0, 0, 0).alloc_hbm(0)


def test_all_of_a_slice_can_be_had():
    config = AddressConfig.of(default().config)
    memory = PEMemAllocator(config, 0, 3, 7)
    memory.alloc_hbm(config.slice_bytes)
    assert memory.hbm.free_bytes == 0


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=20))
def test_virtual_ranges_never_touch_and_are_no_physical_addresses(sizes):
    space = VirtualAllocator()
    ranges = sorted((space.alloc(nbytes), nbytes) for nbytes in sizes)
    assert ranges[0][0] >= 1 << ADDRESS_BITS
    assert all(va % _PAGE == 0 for va, _ in ranges)
    assert all(a + n + _PAGE <= b for (a, n), (b, _) in pairwise(ranges)), "unmapped bytes between two tensors"
    for va, _ in ranges:
        space.free(va)
    assert space.alloc(1) == ranges[0][0]
    with pytest.raises(AllocationError, match="virtual address space"):
        space.free(ranges[0][0] + 1)
