"""Work on whole arrays in parts, each so small that a run can be cancelled soon."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.runtime_api import _parts
from kernbench.runtime_api._parts import _PART, _blocks, assign, largest_absolute, part_slices, product_in_parts

MOST_MACS = 1 << 31  # of a part: some 0.1 s of one core


@pytest.mark.parametrize("n", [0, 1, _PART, _PART + 1, 4096 * 4096])
def test_parts_cover_all_elements_and_none_is_larger_than_a_part(n):
    found = list(part_slices(n))
    assert [x.start for x in found] == [0, *(x.stop for x in found)][: len(found)]
    assert (found[-1].stop if found else 0) == n
    assert max((x.stop - x.start for x in found), default=0) <= _PART


@given(st.integers(0, 40_000), st.integers(0, 32_768), st.integers(0, 40_000))
def test_the_blocks_of_a_product_cover_it_and_are_small(m, k, n):
    found = list(_blocks(m, k, n))
    sizes = [(rows.stop - rows.start, columns.stop - columns.start) for rows, columns in found]
    assert sum(rows * columns for rows, columns in sizes) == m * n
    assert len({(rows.start, columns.start) for rows, columns in found}) == len(found)
    assert all(rows * k * columns <= MOST_MACS for rows, columns in sizes)


@pytest.mark.parametrize("shape", [(70,), (7, 10), (3, 50, 4), (2, 3, 100), ()])
def test_an_array_is_assigned_in_parts_as_at_once(shape, monkeypatch):
    sizes = []
    values = np.random.default_rng(0).standard_normal(shape)
    monkeypatch.setattr(_parts, "_PART", 16)

    class Noting(np.ndarray):
        def __setitem__(self, where, what):
            sizes.append(np.asarray(self)[where].size)
            super().__setitem__(where, what)

    target = np.zeros(shape[::-1], np.float32).T.view(Noting)
    assign(target, values)
    np.testing.assert_array_equal(np.asarray(target), values.astype(np.float32))
    assert max(sizes) <= 16
    assert sum(sizes) == values.size
    assign(target, np.float64(3))
    assert (np.asarray(target) == 3).all()


def test_a_product_in_blocks_is_the_product(monkeypatch):
    a, b = np.random.default_rng(0).standard_normal((2, 40, 40))
    for name, value in (("_MACS", 1), ("_LEAST_ROWS", 16), ("_LEAST_COLUMNS", 8)):
        monkeypatch.setattr(_parts, name, value)
    assert len(list(_blocks(40, 40, 40))) == 15
    np.testing.assert_allclose(product_in_parts(a, b), a @ b, rtol=1e-12)
    for empty in (np.zeros((0, 3)), np.zeros((3, 0))):
        np.testing.assert_array_equal(product_in_parts(empty, empty.T), empty @ empty.T)
    batch = np.ones((2, 3, 4))
    np.testing.assert_array_equal(product_in_parts(batch, batch.transpose(0, 2, 1)), np.full((2, 3, 3), 4.0))


def test_the_largest_of_all_parts(monkeypatch):
    monkeypatch.setattr(_parts, "_PART", 4)
    values = np.array([[1.0, -9.0, 3.0], [4.0, 5.0, 6.0]])
    assert largest_absolute(values) == 9
    values[1, 2] = np.nan
    assert np.isnan(largest_absolute(values))
