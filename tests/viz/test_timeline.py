from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._critical_path import CriticalPath, PathStep, critical_path
from kernbench.analysis._records import (
    FETCH,
    MESSAGE,
    MOVE,
    PART,
    READ,
    STEP,
    STEPS,
    TRANSFERS,
    WRITE,
    CommandInfo,
    Dependencies,
    Launch,
)
from kernbench.analysis._transfer import TimePart
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies import CclStudy
from kernbench.viz import _timeline
from kernbench.viz._timeline import Timeline, path_section, timeline_sections
from tests.analysis.synthetic import records_of
from tests.sim_engine import test_waits

DMA, HBM = "sip0.cube0.pe{}.pe_dma", "sip0.cube0.hbm_ctrl.pe0"


def moved(records, moves, slots=()):
    """Records with transfers: dicts of columns in ns, whose `route` is the two ends.

    `slots` are (row, transfer): which part of a message a row took out of its slot.
    """
    nodes = sorted({node for move in moves for node in move["route"]})
    routes = sorted({move["route"] for move in moves})
    rows = [
        {name: value * 1000 if name.endswith("_ps") and value > 0 else value for name, value in move.items()}
        | {"route": routes.index(move["route"])}
        for move in moves
    ]
    columns = {name: np.array([row.get(name, -1) for row in rows], dtype) for name, dtype in TRANSFERS.items()}
    paths = tuple((nodes.index(a), nodes.index(b)) for a, b in routes)
    steps = {name: np.zeros(len(slots), dtype) for name, dtype in STEPS.items()}
    steps["cause"][:] = [MOVE | transfer << 3 for _, transfer in slots]
    causes = np.zeros((len(records), 2), np.int64)
    for step, (row, _) in enumerate(slots):
        causes[row, 0] = STEP | step << 3
    sent = np.zeros((len(moves), 2), np.int64)
    found = {"causes": causes, "sent": sent, "steps": steps}
    return replace(records, dependencies=Dependencies(columns, tuple(nodes), paths, **found))


def shown(timeline):
    """Every interval as (component, stage, text, start ns, end ns, bytes, flops, tile)."""
    columns, found = timeline.columns, []
    for row, (component, stage, *_) in enumerate(timeline.rows):
        for i in range(columns["first"][row], columns["first"][row + 1]):
            text, nbytes, flops = timeline.labels[columns["label"][i]]
            times = columns["start"][i] // 1000, columns["end"][i] // 1000
            found.append((component, stage, text, *times, nbytes, flops, columns["tile"][i]))
    return found


def test_every_row_of_the_log_is_an_interval_of_its_engine():
    rows = [
        ("gemm", 20, 30, 1, {"flops": 64, "tile": 0}),
        ("gemm", 30, 40, 1, {"flops": 64, "tile": 1}),
        ("dma_in", 0, 16, 0, {"nbytes": 8}),
        ("dma_out", 12, 18, 0, {"nbytes": 4}),
        ("h2d", 0, 5, None, {"nbytes": 2}),
    ]
    timeline = Timeline(records_of(rows))
    assert timeline.rows == [
        ["host", "host", -1, -1, -1],
        [DMA.format(0), "dma_in", 0, 0, 0],
        [DMA.format(0), "dma_out", 0, 0, 0],
        ["sip0.cube0.pe1.pe_gemm", "gemm", 0, 0, 1],
    ]
    assert shown(timeline) == [
        ("host", "host", "", 0, 5, 2, 0, -1),
        (DMA.format(0), "dma_in", "c0", 0, 16, 8, 0, -1),
        (DMA.format(0), "dma_out", "c0", 12, 18, 4, 0, -1),
        ("sip0.cube0.pe1.pe_gemm", "gemm", "c1", 20, 30, 0, 64, 0),
        ("sip0.cube0.pe1.pe_gemm", "gemm", "c1", 30, 40, 0, 64, 1),
    ]


def test_the_host_has_a_row_for_each_sip():
    records = records_of([("launch", 0, 9, None, {}), ("launch", 1, 8, None, {})])
    records = replace(records, command=np.arange(2), commands=(CommandInfo("k", 1), CommandInfo("k", 0)))
    assert shown(Timeline(records)) == [
        ("host", "launch", "k", 1, 8, 0, 0, -1),
        ("host", "launch", "k", 0, 9, 0, 0, -1),
    ]
    assert [row[2] for row in Timeline(records).rows] == [0, 1]


def test_a_memory_serves_one_access_after_another():
    to = (HBM, DMA.format(0))
    accesses = [(READ, 4, 9, 2, 8), (WRITE, 6, 20, 3, 14), (FETCH, 5, 40, 30, 33)]
    names = ("kind", "nbytes", "end_ps", "arrived_ps", "served_ps")
    moves = [{"route": to, "command": 0, "start_ps": 1, **dict(zip(names, values, strict=True))} for values in accesses]
    timeline = Timeline(moved(records_of([("load", 0, 40, 0, {})]), moves))
    assert shown(timeline)[1:] == [
        (HBM, "memory", f"read for {DMA.format(0)}", 2, 8, 4, 0, -1),
        (HBM, "memory", f"write of {DMA.format(0)}", 8, 14, 6, 0, -1),
        (HBM, "memory", f"read for {DMA.format(0)}", 30, 33, 5, 0, -1),
    ]
    assert timeline.rows[1] == [HBM, "memory", 0, 0, 0]


def test_messages_between_cpus_are_in_the_rows_of_their_senders():
    move = {
        "kind": MESSAGE,
        "route": ("host", "sip0.io.io_cpu"),
        "nbytes": 32,
        "command": 0,
        "start_ps": 0,
        "end_ps": 7,
    }
    timeline = Timeline(moved(records_of([("load", 8, 9, 0, {})]), [move]))
    assert shown(timeline)[0] == ("host", "messages", "c0 to sip0.io.io_cpu", 0, 7, 32, 0, -1)


def sent():
    """PE 0 sends PE 1 two parts, and PE 2 one that is not received before the end."""
    rows = [
        ("send", 0, 20, 0, {}),
        ("recv", 15, 17, 1, {"tile": 0}),
        ("recv", 20, 22, 1, {"tile": 1}),
        ("send", 5, 9, 2, {}),
    ]
    to, other = (DMA.format(0), DMA.format(1)), (DMA.format(2), DMA.format(0))
    moves = [
        {"kind": PART, "route": to, "nbytes": 4, "command": 0, "tile": 0, "start_ps": 3, "end_ps": 15},
        {"kind": PART, "route": to, "nbytes": 4, "command": 0, "tile": 1, "start_ps": 6, "end_ps": 20},
        {"kind": PART, "route": other, "nbytes": 4, "command": 2, "tile": 0, "start_ps": 6, "end_ps": 9},
    ]
    return moved(records_of(rows), moves, slots=[(1, 0), (2, 1)])


def arrows(timeline):
    intervals = shown(timeline)
    columns = (timeline.columns[name] for name in ("arrow_from", "arrow_to", "arrow_ps"))
    return [(intervals[a], intervals[b], ps // 1000) for a, b, ps in zip(*columns, strict=True)]


def test_each_received_part_of_a_message_has_an_arrow_from_its_send_to_the_row_that_took_it():
    send = ("sip0.cube0.pe0.pe_ipcq", "send", "c0", 0, 20, 0, 0, -1)
    first, second = (
        ("sip0.cube0.pe1.pe_ipcq", "recv", "c1", *times) for times in ((15, 17, 0, 0, 0), (20, 22, 0, 0, 1))
    )
    assert arrows(Timeline(sent())) == [(send, first, 3), (send, second, 6)]


@pytest.mark.parametrize("algorithm", ["ring_allreduce_tcm", "ring_allreduce_hbm", "ring_allreduce_sram"])
def test_every_part_that_arrives_has_an_arrow(algorithm):
    """Out of a slot in TCM, or read from one in memory first."""
    records = test_waits.all_reduce(algorithm).records()
    transfers = records.dependencies.transfers
    columns = _timeline._arrows(records, np.arange(len(records)))
    assert len(columns["arrow_ps"]) == (transfers["kind"] == PART).sum()
    kinds = [[records.kinds[records.kind[row]] for row in columns[end]] for end in ("arrow_from", "arrow_to")]
    assert [set(found) for found in kinds] == [{"send"}, {"recv"}]
    assert (records.end_ps[columns["arrow_to"]] > columns["arrow_ps"]).all()


def test_merged_intervals_say_how_many_they_are_and_lose_no_time(monkeypatch):
    rows = [("gemm", 10 * i, 10 * i + 7, 0, {"tile": i}) for i in range(100)]
    rows += [("math", 0, 900, 0, {}), ("dma_in", 0, 8, 0, {}), ("dma_in", 2, 6, 0, {}), ("dma_in", 4, 12, 0, {})]
    monkeypatch.setattr(_timeline, "_MOST", 20)
    timeline = Timeline(records_of(rows))
    columns, per_row = timeline.columns, {}
    assert len(columns["start"]) <= 20
    for row, (_, stage, *_) in enumerate(timeline.rows):
        mine = slice(columns["first"][row], columns["first"][row + 1])
        per_row[stage] = int(columns["count"][mine].sum()), int(columns["busy"][mine].sum()) // 1000
    assert per_row == {"gemm": (100, 700), "math": (1, 900), "dma_in": (3, 12)}
    assert (columns["end"] - columns["start"] >= columns["busy"]).all()


def test_arrows_lead_to_merged_intervals(monkeypatch):
    monkeypatch.setattr(_timeline, "_MOST", 3)
    timeline = Timeline(sent())
    assert timeline.columns["count"].tolist() == [1, 2, 1]
    assert [(a[1], b[1], ps) for a, b, ps in arrows(timeline)] == [("send", "recv", 3), ("send", "recv", 6)]


def test_a_step_of_the_path_is_placed_in_the_interval_that_contains_it():
    timeline = Timeline(sent())
    link = f"{DMA.format(0)}->{DMA.format(1)}"
    steps = (
        PathStep(0, 3_000, "issue", (TimePart("issue", "sip0.cube0.pe0.pe_cpu", 3_000),)),
        PathStep(3_000, 15_000, "part 0", (TimePart("serialization", link, 12_000),), "its send"),
        PathStep(15_000, 17_000, "recv", (TimePart("slot", "sip0.cube0.pe1.pe_fetch_store.fetch", 2_000),)),
    )  # fmt: skip
    path = path_section(sent(), CriticalPath(steps, 17_000))
    rows = timeline.rows
    assert [[rows[row][:2] if row >= 0 else None, i] for _, _, row, i, *_ in path["steps"]] == [
        [None, -1],
        [["sip0.cube0.pe0.pe_ipcq", "send"], 0],
        [["sip0.cube0.pe1.pe_ipcq", "recv"], 1],
    ]
    assert path["steps"][1][4:] == ["part 0", "its send", [[1, "serialization", 12_000]]]
    assert path["resources"][1] == link


def test_buffers_have_the_smallest_type_that_holds_them():
    records = records_of([("gemm", 0, 5_000_000, 0, {})], launches=(Launch("k", 1_000, 9_000),))
    header, buffers = timeline_sections([("before", records_of([("gemm", 0, 60, 0, {})])), ("after", records)])
    first, second = header["timeline"]["runs"]
    assert [first["types"]["end"], second["types"]["end"], second["types"]["tile"]] == ["u2", "f8", "i1"]
    assert np.frombuffer(buffers["timeline1_end"], "<f8").tolist() == [5e9]
    assert second["launches"] == [["k", 1_000, 9_000]]


def test_a_run_without_a_log_has_no_rows():
    header, buffers = timeline_sections([("x", records_of([]))])
    assert header["timeline"]["runs"][0]["rows"] == []
    assert "path" not in header
    assert set(buffers) == {f"timeline0_{name}" for name in header["timeline"]["runs"][0]["types"]}


@pytest.fixture(scope="module")
def all_reduce():
    machine = kb.load("preset:small", ["system.sips.count=2"])
    return run_program(machine, partial(CclStudy().program, elements=4096), data=False, log="tile").records


def test_an_all_reduce_is_shown_whole(all_reduce):
    timeline = Timeline(all_reduce)
    moves = all_reduce.dependencies.transfers["kind"]
    served = np.isin(moves, (READ, WRITE, FETCH)) & (all_reduce.dependencies.transfers["served_ps"] >= 0)
    assert len(timeline.columns["start"]) == len(all_reduce) + np.count_nonzero(served) + np.count_nonzero(
        moves == MESSAGE
    )
    intervals = shown(timeline)
    assert len(timeline.columns["arrow_ps"]) == np.count_nonzero(moves == PART) > 0
    for a, b in zip(timeline.columns["arrow_from"], timeline.columns["arrow_to"], strict=True):
        assert (intervals[a][1], intervals[b][1]) == ("send", "recv")
        assert intervals[a][0] != intervals[b][0]


def test_most_steps_of_a_path_have_a_row(all_reduce):
    timeline = Timeline(all_reduce)
    path = timeline.path(critical_path(all_reduce))
    stages = Counter(timeline.rows[row][1] for _, _, row, *_ in path["steps"] if row >= 0)
    assert stages["send"] == stages["recv"] > 0
    for start, end, row, interval, *_ in path["steps"]:
        if interval >= 0:
            assert timeline.columns["first"][row] <= interval < timeline.columns["first"][row + 1]
            assert timeline.columns["start"][interval] <= start
            assert end <= timeline.columns["end"][interval]


def counted(header, buffers):
    """Changes of each counter of the only run: {(component, quantity): [(ps, value), ...]}."""
    (run,) = header["timeline"]["runs"]
    first, time, value = (
        np.frombuffer(buffers[f"timeline0_counter_{name}"], f"<{run['types'][f'counter_{name}']}").tolist()
        for name in ("first", "time", "value")
    )
    changes = list(zip(time, value, strict=True))
    assert len(first) == len(run["counters"]) + 1
    return {tuple(each[:2]): changes[first[i] : first[i + 1]] for i, each in enumerate(run["counters"])}


@pytest.fixture(scope="module")
def busy():
    return kb.run("qkv-gemm-multi-pe", log="tile").result


def test_counters_are_those_of_the_result(busy):
    header, buffers = timeline_sections([("run", busy.records)])
    expected = {
        (x.component, x.quantity): list(zip(x.t_ps.tolist(), x.value.tolist(), strict=True)) for x in busy.occupancy
    }
    assert counted(header, buffers) == expected
    for component, quantity, *place, peak, merged in header["timeline"]["runs"][0]["counters"]:
        assert (peak, merged) == (max(v for _, v in expected[component, quantity]), False)
        assert quantity in header["timeline"]["counters"]
        if ".pe3" in component:
            assert place[0] == 0
            assert place[2] == 3
    stages = header["timeline"]["stages"]
    assert {stage for _, _, stage in header["timeline"]["counters"].values()} <= {*stages}


def test_changes_of_a_short_time_are_merged_to_their_largest_value(busy, monkeypatch):
    exact = counted(*timeline_sections([("run", busy.records)]))
    monkeypatch.setattr(_timeline, "_MOST_CHANGES", 1000)
    header, buffers = timeline_sections([("run", busy.records)])
    coarse = counted(header, buffers)
    assert 200 < sum(map(len, coarse.values())) <= 1000 < sum(map(len, exact.values()))
    merged = {tuple(x[:2]) for x in header["timeline"]["runs"][0]["counters"] if x[-1]}
    assert merged
    for key, changes in exact.items():
        if key not in merged:
            assert coarse[key] == changes
            continue
        times, values = (np.array(column) for column in zip(*coarse[key], strict=True))
        shown = values[np.searchsorted(times, [t for t, _ in changes], side="right") - 1]
        assert (shown >= [v for _, v in changes]).all(), "never less than it was"
        assert values.max() == max(v for _, v in changes)
        assert coarse[key][-1] == changes[-1]
