"""A frame at a simulated time is the log cut there; the last one is the result."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.notebook._job import SHOWN_LINKS, Replay, live_snapshot, snapshot_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._observer import ENGINES
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies import gemm


@pytest.fixture(scope="module")
def result():
    return gemm.run(kb.load("preset:small"), (64, 128, 64), "ref_ref")


@pytest.fixture(scope="module")
def replay(result):
    return Replay(result.records)


def busy_by_hand(records, t):
    """Services of each engine, cut at a time; an engine serves one at a time."""
    rows = [
        (records.kinds[kind], start, min(end, t))
        for kind, start, end in zip(
            records.kind.tolist(), records.start_ps.tolist(), records.end_ps.tolist(), strict=True
        )
    ]
    return {
        name: sum(end - start for kind, start, end in rows if kind == name and start < t) / 1000 for name in ENGINES
    }


@settings(max_examples=15)
@given(share=st.floats(0.01, 1))
def test_frame_is_the_log_cut_at_its_time(result, replay, share):
    t = round(result.records.makespan_ps * share)
    frame = replay.snapshot(t)
    assert frame.now_ns == t / 1000
    assert frame.n_pes <= 1
    assert frame.busy_ns == pytest.approx(busy_by_hand(result.records, t))
    assert all(ns <= frame.now_ns for ns in frame.busy_ns.values())


def test_last_frame_is_the_result(result, replay):
    last = replay.snapshot(replay.end_ps)
    assert last == snapshot_of(result.records)
    assert last.now_ns == result.latency_ns
    assert last.links == {x.name: x.share for x in result.busiest_links(SHOWN_LINKS)}


def test_a_live_frame_at_the_end_is_the_last_one(result):
    engine = GraphEngine(kb.load("preset:small"), True, log="tile", live=True)
    with RuntimeContext(engine) as torch:
        gemm.product(torch, 64, 128, 64, "ref_ref", "f16")
    live, last = live_snapshot(engine.counters(), 0.0), snapshot_of(result.records)
    assert (live.now_ns, live.busy_ns, live.n_pes) == (last.now_ns, pytest.approx(last.busy_ns), 1)
    every = {x.name: x.share for x in result.busiest_links(1000)}
    assert list(live.links.values()) == list(last.links.values()), "which of several that are as busy?"
    assert live.links.items() <= every.items()
    assert (live.done, live.total) == (1, 1)


def test_links_are_never_busier_than_time_and_end_where_the_result_ends(result, replay):
    table = result.records.links
    before = [0] * len(table.names)
    for share in (0.1, 0.4, 0.7, 0.95):
        t = round(replay.end_ps * share)
        busy = replay.cut(t).links.busy_ps.tolist()
        assert all(a <= b <= whole for a, b, whole in zip(before, busy, table.busy_ps.tolist(), strict=True))
        before = busy
    assert replay.cut(replay.end_ps).links is table


def test_the_first_frame_is_empty(replay):
    first = replay.snapshot(0)
    assert first.now_ns == 0
    assert not first.links
    assert not any(first.busy_ns.values())
