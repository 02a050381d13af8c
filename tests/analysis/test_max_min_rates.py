"""Max-min fairness, by its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.analysis.utilization import drain, max_min_rates

CAPACITY = {"a": 10.0, "b": 4.0, "c": 7.5, "d": 1.25, "e": 100.0}
flows = st.lists(
    st.lists(st.sampled_from(sorted(CAPACITY)), min_size=1, max_size=4, unique=True), min_size=1, max_size=12
)


def test_a_long_flow_gets_its_narrowest_share_and_others_the_rest():
    assert max_min_rates([["a", "b"], ["a"], ["b"]], CAPACITY) == [2.0, 8.0, 2.0]


def test_a_flow_alone_gets_its_narrowest_resource():
    assert max_min_rates([["a", "d", "e"]], CAPACITY) == [1.25]


def test_a_resource_named_twice_counts_once():
    assert max_min_rates([["a", "a"], ["a"]], CAPACITY) == [5.0, 5.0]


@given(flows)
def test_every_flow_has_a_full_resource_where_none_has_more(ways):
    rates = max_min_rates(ways, CAPACITY)
    used = {name: sum(rate for way, rate in zip(ways, rates, strict=True) if name in way) for name in CAPACITY}
    assert all(used[name] <= CAPACITY[name] * (1 + 1e-9) for name in CAPACITY)
    for way, rate in zip(ways, rates, strict=True):
        most = {name: max(r for w, r in zip(ways, rates, strict=True) if name in w) for name in way}
        assert any(used[name] >= CAPACITY[name] * (1 - 1e-9) and rate >= most[name] * (1 - 1e-9) for name in way)


def test_what_ended_flows_leave_is_shared():
    # The second goes at 8 and ends; the first cannot go faster then, since b holds it at 2.
    assert drain([["a", "b"], ["a"], ["b"]], CAPACITY, 40) == pytest.approx([20, 5, 20])
    assert drain([["a"], ["a", "d"]], CAPACITY, 10) == pytest.approx([10 / 8.75, 8])


@given(flows, st.floats(1, 1e6))
def test_all_drain_no_earlier_than_the_fullest_resource_allows(ways, amount):
    ends = drain(ways, CAPACITY, amount)
    least = max(amount * sum(name in way for way in ways) / CAPACITY[name] for name in CAPACITY)
    assert max(ends) >= least * (1 - 1e-6)
    assert min(ends) > 0
