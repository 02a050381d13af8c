"""Groups of ranks from sizes and an order string, against Megatron's own words: tp ranks are neighbours."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import KernbenchError
from kernbench.tp.parallel_state import _AXES, rank_groups

SIZES = st.fixed_dictionaries({axis: st.integers(1, 3) for axis in _AXES if axis != "ep"})


def test_the_example_of_megatron():
    """16 ranks, tensor 2, pipeline 4: the groups that its documentation lists."""
    sizes = {"tp": 2, "pp": 4, "dp": 2}
    assert rank_groups(sizes, "tp") == [[2 * i, 2 * i + 1] for i in range(8)]
    assert rank_groups(sizes, "pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]
    assert rank_groups(sizes, "dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]


def test_order_says_who_is_next_to_whom():
    sizes = {"tp": 2, "dp": 2}
    assert rank_groups(sizes, "tp", "tp-dp") == [[0, 1], [2, 3]]
    assert rank_groups(sizes, "tp", "dp-tp") == [[0, 2], [1, 3]]


@settings(max_examples=25, deadline=None)
@given(SIZES, st.permutations(_AXES))
def test_groups_of_an_axis_cut_the_world(sizes, order):
    world = sizes["tp"] * sizes["cp"] * sizes["dp"] * sizes["pp"]
    for axis in _AXES:
        groups = rank_groups(sizes, axis, "-".join(order))
        assert sorted(rank for group in groups for rank in group) == [*range(world)]
        assert {len(group) for group in groups} == {sizes.get(axis, 1)}
    assert rank_groups(sizes, "-".join(_AXES), "-".join(order)) == [[*range(world)]]
    for tp in rank_groups(sizes, "tp", "-".join(order)):
        for dp in rank_groups(sizes, "dp", "-".join(order)):
            assert len({*tp} & {*dp}) <= 1


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("tp-xx-dp", "'xx' is unknown; known: tp, cp"),
        ("tp-tp-dp", "is a duplicate"),
        ("tp-pp", "'dp' has size 2, but is not"),
    ],
)
def test_an_order_that_does_not_fit_is_refused(order, message):
    with pytest.raises(KernbenchError, match=message):
        rank_groups({"tp": 2, "dp": 2}, "tp", order)


def test_unknown_axes_are_refused():
    with pytest.raises(KernbenchError, match="'tensor' is unknown"):
        rank_groups({"tp": 2}, "tensor")
