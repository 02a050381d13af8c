from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis._records import Launch, Records
from kernbench.analysis._stages import ORDER, PE_STAGES, STAGE_KINDS
from kernbench.analysis.breakdown import breakdown
from tests.analysis.synthetic import records_of

ROW = st.tuples(
    st.sampled_from(
        [kind for stage, kinds in STAGE_KINDS.items() if stage not in ("composite", "host") for kind in kinds]
    ),
    st.integers(0, 40),
    st.integers(0, 15),
    st.integers(0, 2),
)


def test_work_on_values_comes_before_its_transport_and_that_before_waits():
    reaches = ({"gemm", "math"}, {"fetch", "store_tcm"}, {"dma_in", "dma_out"}, {"recv", "send"})
    ranks = [{ORDER.index(stage) for stage in reach} for reach in reaches]
    assert ranks == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert ORDER[8:] == ("composite", "host", "launch", "wait")


def test_a_tile_passes_its_stages_in_the_order_of_their_lanes():
    assert PE_STAGES == ("dma_in", "fetch", "gemm", "math", "store_tcm", "dma_out", "recv", "send")


def rows_of(drawn):
    return [(kind, start, start + length, pe, {}) for kind, start, length, pe in drawn]


def by_the_instant(rows, pe, start, end):
    """The rule of the module, one ns at a time."""
    exclusive = dict.fromkeys(ORDER, 0)
    for t in range(start, end):
        busy = {row[0] for row in rows if row[3] == pe and row[1] <= t < row[2]}
        stage = next((stage for stage, kinds in STAGE_KINDS.items() if busy & set(kinds)), "wait")
        exclusive[stage] += 1000
    return exclusive


def test_an_instant_belongs_to_the_first_busy_stage():
    rows = [("dma_in", 0, 10, 0, {}), ("gemm", 5, 8, 0, {}), ("fetch", 4, 6, 0, {}), ("store", 12, 14, 0, {})]
    got = breakdown(records_of(rows))
    assert got.exclusive_ps == {
        "gemm": 3000, "math": 0, "fetch": 1000, "store_tcm": 0, "dma_in": 6000, "dma_out": 2000, "recv": 0, "send": 0,
        "composite": 0, "host": 0, "launch": 0, "wait": 2000,
    }  # fmt: skip
    assert got.busy_ps["dma_in"] == 10_000
    assert got.busy_ps["fetch"] == 2000


def test_overlapping_work_of_one_stage_is_busy_once():
    got = breakdown(records_of([("dma_in", 0, 10, 0, {}), ("dma_in", 5, 20, 0, {}), ("load", 0, 4, 0, {})]))
    assert got.busy_ps["dma_in"] == 20_000


@settings(max_examples=60, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), st.integers(0, 30), st.integers(1, 40))
def test_the_sweep_equals_the_rule_applied_to_every_instant(drawn, start, length):
    rows = rows_of(drawn)
    records = records_of(rows)
    window = (start * 1000, (start + length) * 1000)
    pes = records.pes()
    each = [breakdown(records, pe=pe, window=window) for pe in pes]
    for pe, got in zip(pes, each, strict=True):
        assert got.exclusive_ps == by_the_instant(rows, pe[2], start, start + length)

    everyone = breakdown(records, window=window)
    assert sum(everyone.exclusive_ps.values()) == everyone.window_ps * everyone.n_pes == length * 1000 * len(pes)
    for stage in ORDER:
        assert everyone.exclusive_ps[stage] == sum(got.exclusive_ps[stage] for got in each)
        assert everyone.busy_ps[stage] == sum(got.busy_ps[stage] for got in each)
        assert everyone.exclusive_ps[stage] <= everyone.busy_ps[stage]


def test_a_launch_is_what_surrounds_the_work_of_its_pes():
    rows = [("gemm", 10, 20, 0, {}), ("gemm", 25, 30, 0, {})]
    got = breakdown(records_of(rows, launches=(Launch("k", 2000, 36_000),), makespan_ps=40_000))
    assert got.exclusive_ps["launch"] == 8000 + 6000
    assert got.exclusive_ps["wait"] == 2000 + 5000 + 4000


def test_a_composite_counts_as_one_only_where_its_tiles_are_not_known():
    whole = [("composite", 0, 10, 0, {}), ("load", 2, 4, 0, {})]
    assert breakdown(records_of(whole)).exclusive_ps["composite"] == 8000
    tiles = [*whole, ("gemm", 5, 6, 0, {"tile": 0})]
    got = breakdown(records_of(tiles))
    assert (got.exclusive_ps["composite"], got.exclusive_ps["gemm"], got.exclusive_ps["wait"]) == (0, 1000, 7000)


def test_a_launch_that_did_no_work_is_all_launch():
    got = breakdown(Records.empty(launches=(Launch("k", 0, 9000),), makespan_ps=9000))
    assert got.exclusive_ps["launch"] == 9000


def test_host_copies_count_for_every_pe_and_only_where_the_pe_is_idle():
    got = breakdown(records_of([("gemm", 0, 4, 0, {}), ("gemm", 2, 4, 1, {}), ("h2d", 1, 10, None, {})]))
    assert got.exclusive_ps["host"] == 6000 + 7000
    assert got.busy_ps["host"] == 9000 * 2


def test_nothing_at_all():
    got = breakdown(Records.empty())
    assert (got.window_ps, sum(got.exclusive_ps.values())) == (0, 0)
