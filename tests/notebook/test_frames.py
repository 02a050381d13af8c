"""A frame at a simulated time is the log cut there; the last one is the result."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.analysis.breakdown import ORDER, STAGES
from kernbench.notebook.frames import SHOWN_LINKS, Film, frame_of
from kernbench.studies import gemm

STAGE_OF = {kind: stage for stage, kinds in STAGES.items() for kind in kinds}


@pytest.fixture(scope="module")
def result():
    return gemm.run(kb.load("preset:small"), (64, 128, 64), "ref_ref")


@pytest.fixture(scope="module")
def film(result):
    return Film(result.records)


def exclusive_by_hand(records, t):
    """An instant at a time between neighbouring ends: the first stage of the order that is busy owns it."""
    rows = [(op.start_ps, min(op.end_ps, t), STAGE_OF[op.kind]) for op in records if op.kind in STAGE_OF]
    tiled = any(op.tile >= 0 for op in records)
    rows = [row for row in rows if row[0] < t and not (tiled and row[2] == "composite")]
    work = [row for row in rows if row[2] != "host"]
    for launch in records.launches:
        low, high = launch.start_ps, min(launch.end_ps, t)
        inside = [row for row in work if row[1] > low and row[0] < high]
        first = min((row[0] for row in inside), default=high)
        last = max((row[1] for row in inside), default=high)
        rows += [(low, first, "launch"), (last, high, "launch")]
    edges = sorted({0, t, *(x for row in rows for x in row[:2] if 0 <= x <= t)})
    total = dict.fromkeys(ORDER, 0)
    for low, high in pairwise(edges):
        busy = {stage for start, end, stage in rows if start <= low and end >= high}
        total[next((stage for stage in ORDER if stage in busy), "wait")] += high - low
    return {stage: ps / 1000 for stage, ps in total.items()}


@settings(max_examples=15)
@given(share=st.floats(0.01, 1))
def test_frame_is_the_log_cut_at_its_time(result, film, share):
    t = round(result.records.makespan_ps * share)
    frame = film.frame(t)
    assert frame.now_ns == t / 1000
    assert frame.exclusive_ns == pytest.approx(exclusive_by_hand(result.records, t))
    assert sum(frame.exclusive_ns.values()) == pytest.approx(frame.now_ns)


def test_last_frame_is_the_result(result, film):
    last = film.frame(film.end_ps)
    assert last == frame_of(result.records)
    assert last.now_ns == result.latency_ns
    assert last.exclusive_ns == result.breakdown.exclusive_ns()
    assert list(last.links) == result.busiest_links(SHOWN_LINKS)


def test_links_are_never_busier_than_time_and_end_where_the_result_ends(result, film):
    table = result.records.links
    before = [0] * len(table.names)
    for share in (0.1, 0.4, 0.7, 0.95):
        t = round(film.end_ps * share)
        busy = film.cut(t).links.busy_ps.tolist()
        assert all(a <= b <= whole for a, b, whole in zip(before, busy, table.busy_ps.tolist(), strict=True))
        before = busy
    assert film.cut(film.end_ps).links is table


def test_the_first_frame_is_empty(film):
    first = film.frame(0)
    assert first.now_ns == 0
    assert not first.links
    assert not any(first.exclusive_ns.values())
