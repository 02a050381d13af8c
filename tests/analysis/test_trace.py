"""The trace is in the trace-event format, holds every row once, and its flows join slices that exist."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest

from kernbench.analysis._records import CREDIT, PART
from kernbench.analysis.trace import _PATH, trace_events
from kernbench.benches.registry import run
from kernbench.topology.builder import resolve_topology

RUNS = [("qkv-gemm-multi-pe", "tile"), ("qkv-gemm-multi-pe", "operation"), ("ccl-allreduce", "operation")]


@pytest.fixture(scope="module", params=RUNS)
def result(request):
    bench, log = request.param
    return run(bench, log=log).result


@pytest.fixture(scope="module")
def trace(result, tmp_path_factory):
    path = result.trace(tmp_path_factory.mktemp("trace") / "run.json")
    return json.loads(path.read_text(encoding="utf-8"))


def slices(trace, category=None):
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and category in (None, e["cat"])]


def test_every_event_has_the_fields_of_its_phase(trace):
    needed = {
        "M": {"args"}, "C": {"ts", "cat", "args"}, "X": {"ts", "dur", "cat"}, "s": {"ts", "id", "cat"},
        "f": {"ts", "id", "cat", "bp"},
    }  # fmt: skip
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} | needed[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_tracks_have_names(trace):
    named = Counter((e["name"], e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "M")
    assert set(named.values()) == {1}
    for event in slices(trace):
        assert named["thread_name", event["pid"], event["tid"]]
        assert named["process_name", event["pid"], 0]


def test_times_are_those_of_the_records_to_the_picosecond(trace, result):
    records = result.records
    kept = Counter((round(e["ts"] * 1e6), round((e["ts"] + e["dur"]) * 1e6), e["cat"]) for e in slices(trace))
    for op in records:
        assert kept[op.start_ps, op.end_ps, op.kind] >= 1
    assert sum(n for (_, _, kind), n in kept.items() if kind in records.kinds) == len(records)
    path = slices(trace, _PATH)
    assert sum(round(e["dur"] * 1e6) for e in path) == records.makespan_ps


def test_slices_of_a_track_do_not_overlap(trace):
    tracks = {}
    for event in slices(trace):
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in tracks.values():
        ends = 0.0
        for event in sorted(events, key=lambda e: (e["ts"], e["dur"])):
            assert event["ts"] >= ends - 1e-9
            ends = event["ts"] + event["dur"]


def test_flows_begin_and_end_in_slices(trace):
    starts = {(e["pid"], e["tid"], e["ts"]) for e in slices(trace)}
    flows = {}
    for event in trace["traceEvents"]:
        if event["ph"] in "sf":
            assert (event["pid"], event["tid"], event["ts"]) in starts
            flows.setdefault(event["id"], []).append(event)
    assert flows
    for first, second in flows.values():
        assert (first["ph"], second["ph"]) == ("s", "f")
        assert first["ts"] <= second["ts"]
        assert first["name"] == second["name"]


def test_requests_lead_to_the_memory_that_serves_them(result):
    trace = trace_events(result.records)
    memories = slices(trace, "memory")
    moves = result.records.dependencies.transfers
    served = (moves["served_ps"] >= 0) & (moves["kind"] != PART)
    assert len(memories) == served.sum()
    assert sum(e["args"]["nbytes"] for e in memories) == moves["nbytes"][served].sum()
    assert len(slices(trace, "queue")) == 2 * np.isin(moves["kind"], (PART, CREDIT)).sum()


def test_perfetto_reads_it(result, tmp_path):
    perfetto = pytest.importorskip("perfetto.trace_processor", reason="Perfetto's trace processor is not installed")
    path = result.trace(tmp_path / "run.json")
    try:
        processor = perfetto.TraceProcessor(trace=str(path))
    except Exception as error:  # noqa: BLE001 - it downloads its binary, and says so in many ways
        pytest.skip(f"Perfetto's trace processor does not start: {error}")
    with processor:
        counted = next(iter(processor.query("select count(*) as n from slice"))).n
        flows = next(iter(processor.query("select count(*) as n from flow"))).n
    events = trace_events(result.records)["traceEvents"]
    assert counted == sum(e["ph"] == "X" for e in events)
    assert flows == sum(e["ph"] == "s" for e in events)


def test_a_run_that_was_not_logged_has_nothing_to_trace():
    result = run("gemm-single-pe", resolve_topology("preset:small"), log="off").result
    with pytest.raises(Exception, match="was not logged"):
        trace_events(result.records)
