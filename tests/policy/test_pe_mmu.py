from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import AllocationError, OutOfBoundsError
from kernbench.policy.address.pe_mmu import PeMMU


@pytest.fixture
def mmu():
    mmu = PeMMU("sip0.cube3.pe1")
    mmu.map(0x3000, 0x100, 0xB000, "x")
    mmu.map(0x1000, 0x100, 0xA000, "w")
    mmu.map(0x1100, 0x80, 0x9000, "w")
    return mmu


def test_an_access_in_one_range_is_one_piece(mmu):
    assert mmu.translate(0x1000, 0x100) == [(0xA000, 0x100)]
    assert mmu.translate(0x117F, 1) == [(0x907F, 1)]
    assert mmu.owner(0x10FF) == "w"
    assert mmu.owner(0x1180) is None


def test_an_access_over_ranges_is_split(mmu):
    assert mmu.translate(0x10F0, 0x20) == [(0xA0F0, 0x10), (0x9000, 0x10)]


@pytest.mark.parametrize(
    ("va", "nbytes", "message"),
    [
        (0x1170, 0x20, r"0x1180 is not mapped; it is 1 B past the last byte of 'w' \[0x1100, 0x1180\)"),
        (0x2FF0, 0x20, r"0x2ff0 is not mapped; it is 16 B before 'x' \[0x3000, 0x3100\)"),
        (0x3100, 1, r"access to \[0x3100, 0x3101\) \(1 B\): .* past the last byte of 'x'"),
        (0, 4, r"0x0 is not mapped; it is 4096 B before 'w'"),
    ],
)
def test_an_unmapped_access_names_pe_address_and_nearest_tensor(mmu, va, nbytes, message):
    with pytest.raises(OutOfBoundsError, match="sip0.cube3.pe1: .*" + message):
        mmu.translate(va, nbytes)


def test_nothing_mapped_says_so():
    with pytest.raises(OutOfBoundsError, match="no tensor is mapped on this PE"):
        PeMMU("sip0.cube0.pe0").translate(0, 1)


def test_unmap_takes_whole_ranges_away(mmu):
    mmu.unmap(0x1000, 0x180)
    assert len(mmu) == 1
    with pytest.raises(OutOfBoundsError):
        mmu.translate(0x1000, 1)
    assert mmu.translate(0x3000, 1) == [(0xB000, 1)]
    mmu.map(0x1000, 0x100, 0xC000, "again")
    assert mmu.translate(0x1000, 1) == [(0xC000, 1)]


@pytest.mark.parametrize(
    ("va", "nbytes", "found"),
    [(0x2000, 0x100, "nothing"), (0x1000, 0x140, "part of 'w'"), (0x1040, 0x140, "part of 'w'"), (0x3010, 8, "of 'x'")],
)
def test_unmap_of_nothing_or_of_a_part_is_an_error(mmu, va, nbytes, found):
    with pytest.raises(AllocationError, match=found):
        mmu.unmap(va, nbytes)
    assert len(mmu) == 3


@pytest.mark.parametrize("va", [0xF81, 0x1000, 0x1070, 0x117F])
def test_overlapping_ranges_are_refused(mmu, va):
    with pytest.raises(AllocationError, match=r"'y' .* overlaps 'w'"):
        mmu.map(va, 0x80, 0, "y")
    with pytest.raises(AllocationError, match="at least 1 B"):
        mmu.map(0x5000, 0, 0, "y")


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 20)), min_size=1, max_size=12), st.data())
def test_pieces_are_the_bytes_that_a_table_gives(gaps_and_sizes, data):
    mmu, table, va = PeMMU("pe"), {}, 100
    ranges = []
    for i, (gap, nbytes) in enumerate(gaps_and_sizes):
        va += gap
        ranges.append((va, nbytes, 10_000 * (i + 1)))
        table.update({va + k: 10_000 * (i + 1) + k for k in range(nbytes)})
        va += nbytes
    for start, nbytes, pa in data.draw(st.permutations(ranges)):
        mmu.map(start, nbytes, pa, "t")
    at, nbytes = data.draw(st.integers(95, va + 5)), data.draw(st.integers(1, 40))
    wanted = [table.get(at + k) for k in range(nbytes)]
    if None in wanted:
        with pytest.raises(OutOfBoundsError, match=f"{at + wanted.index(None):#x} is not mapped"):
            mmu.translate(at, nbytes)
    else:
        assert [pa + k for pa, size in mmu.translate(at, nbytes) for k in range(size)] == wanted


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20)), min_size=2, max_size=16), st.data())
def test_ranges_that_are_mapped_together_are_where_each_is(gaps_and_sizes, data):
    ranges, at = [], 0
    for i, (gap, size) in enumerate(gaps_and_sizes):
        at += gap
        ranges.append((at, size, 1000 * i))
        at += size
    owners = data.draw(st.lists(st.sampled_from("ab"), min_size=len(ranges), max_size=len(ranges)))
    mmu, expected = PeMMU("pe"), PeMMU("pe")
    for owner in "ab":
        mine = [one for one, of in zip(ranges, owners, strict=True) if of == owner]
        mmu.map_all(data.draw(st.permutations(mine)), owner, {})
    for one, owner in zip(ranges, owners, strict=True):
        expected.map(*one, owner)
    for va in range(at):
        assert mmu.range_of(va) == expected.range_of(va)
        assert mmu.owner(va) == expected.owner(va)
    va, size, _ = data.draw(st.sampled_from(ranges))
    with pytest.raises(AllocationError, match=rf"'c' \[{va + size - 1:#x}, .* overlaps '[ab]'"):
        mmu.map_all([(at, 5, 0), (va + size - 1, 1, 0)], "c", {})
    assert len(mmu) == len(ranges)
