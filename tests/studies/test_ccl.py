"""The collectives study: rows against bounds and closed forms, an algorithm of one's own, findings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kernbench as kb
from kernbench.ccl.algorithm import algorithm
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.plan import plan
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError, KernbenchError, VerificationError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.studies import ccl, ccl_cases, ccl_findings, ccl_lists, ccl_own, ccl_report, ccl_run
from kernbench.studies.ccl import Case
from kernbench.studies.ccl_ready import Ready
from kernbench.studies.points import FINISHED

CONFIG = load_ccl_config(default_ccl_path())
RING_OF_FOUR = (4, "ring_1d")


@pytest.fixture(scope="module")
def machine():
    return kb.load("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})


@pytest.fixture(scope="module")
def rows(machine):
    cases = ccl_cases.by_size(CONFIG, machine.config, [RING_OF_FOUR], [64, 16384], programs=16)
    cases += ccl_cases.by_size(CONFIG, machine.config, [RING_OF_FOUR], [4096], programs=16, others=True)
    return ccl.sweep(machine, cases, config=CONFIG)[0]


def by_name(rows, nbytes):
    return {row["algorithm"]: row for row in rows if row["bytes_per_pe"] == nbytes}


def test_bounds_hold_in_every_row(rows):
    assert len(rows) > 20
    assert ccl_findings.broken(rows) == []
    assert all(row["latency_ns"] < 16 * row["bound_ns"] for row in rows)


def test_closed_forms_are_near_where_nobody_gets_in_the_way(rows):
    # A ring of neighbours shares no link: ring, halves and trees meet only themselves.
    for row in rows:
        if row["algorithm"] in ("ring_allreduce_tcm", "ring_flat_allreduce", "tree_broadcast", "ring_all_gather"):
            assert row["latency_ns"] == pytest.approx(row["closed_form_ns"], rel=0.15), row["algorithm"]


def test_closed_forms_are_within_two_fifths_where_levels_and_trees_meet():
    cases = [
        Case("x", 64, "torus_2d", "halving_doubling_allreduce", 1024, w=8, h=8),  # levels that keep apart
        Case("x", 2, "ring_1d", "double_tree_allreduce", 1 << 20),  # what leaves memory holds its slot longer
        Case("x", 8, "torus_2d", "double_tree_allreduce", 98304, w=4, h=2),  # results come behind sums
        Case("x", 6, "torus_2d", "tree_allreduce", 98304, w=3, h=2),
        Case("x", 6, "torus_2d", "direct_all_to_all", 24576, w=3, h=2),
        Case("x", 8, "ring_1d", "ring_allreduce_tcm", 1 << 20, changes={"n_slots": 8}),  # window and link are alike
    ]
    for row in ccl.sweep("preset:default", cases, config=CONFIG)[0]:
        assert row["bound_ns"] <= row["latency_ns"], row["algorithm"]
        assert 1 / 1.4 < row["latency_ns"] / row["closed_form_ns"] < 1.4, (row["algorithm"], row["n_sips"])


def test_bus_bandwidth_is_that_of_nccl_tests(rows):
    ring = by_name(rows, 16384)["ring_allreduce_tcm"]
    assert ring["algbw_gbs"] == pytest.approx(16384 / ring["latency_ns"])
    assert ring["busbw_gbs"] == pytest.approx(ring["algbw_gbs"] * 2 * 3 / 4)
    cubes = by_name(rows, 16384)["intercube_allreduce"]
    assert (cubes["contributions"], cubes["programs"], cubes["bytes_per_sip"]) == (16, 16, 4 * 16384)
    assert cubes["busbw_gbs"] == pytest.approx(16384 / cubes["latency_ns"] * 2 * 15 / 16)
    assert [ccl.bus_factor(name, 4) for name in ("all_gather", "broadcast")] == [0.75, 1]


def test_what_is_not_admitted_is_refused_with_its_reason(machine):
    _, refused = ccl.sweep(machine, [Case("x", 4, "ring_1d", "tree_allreduce_7", 64)], config=CONFIG)
    assert refused == {
        "tree_allreduce_7 on 4 SIPs, ring_1d": "world_size = 7, but 4 take part; give it so many, or leave world_size "
        "out"
    }


def test_an_unknown_algorithm_stops_everything(machine):
    with pytest.raises(KernbenchError, match=r"'ring_allreduce' is unknown; did you mean .*\? known: "):
        ccl.sweep(machine, [Case("x", 4, "ring_1d", "ring_allreduce", 64)], config=CONFIG)


def passing(t_ptr, n, world, *, tl):
    total = tile = tl.load(t_ptr, shape=n)
    for _ in range(world - 1):
        tl.send("E", tile)
        tile = tl.recv("W", shape=n)
        total = total + tile
    tl.store(t_ptr, total)


def test_an_algorithm_of_ones_own_stands_in_the_table_and_the_figure(machine):
    mine = algorithm(passing)
    cases = [Case("mine", 4, "ring_1d", name, n) for name in ("passing", "ring_allreduce_tcm") for n in (64, 65536)]
    rows, _ = ccl.sweep(machine, cases, config=CONFIG, own=[mine])
    own = [row for row in rows if row["algorithm"] == "passing"]
    assert [row["closed_form_ns"] for row in own] == [None, None]
    assert all(row["latency_ns"] > row["bound_ns"] for row in own)
    times = {(row["algorithm"], row["bytes_per_pe"]): row["latency_ns"] for row in rows}
    assert times["passing", 64] < times["ring_allreduce_tcm", 64]
    assert times["passing", 65536] > times["ring_allreduce_tcm", 65536]


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [
        ("ring_allreduce_tcm", 98304), ("ring_flat_allreduce", 98304), ("tree_allreduce", 98304),
        ("halving_doubling_allreduce", 6000), ("recursive_doubling_allreduce", 98304), ("double_tree_allreduce", 6000),
        ("intercube_allreduce", 16384), ("hierarchical_allreduce_sliced", 8192), ("direct_all_to_all", 98304),
        ("ring_all_gather", 24576), ("tree_barrier", 2),
    ],
)  # fmt: skip
def test_what_is_sent_is_counted_before_it_runs(machine, name, nbytes):
    there = Case("x", 4, "torus_2d", name, nbytes, w=2, h=2).machine(machine)
    chosen = resolve_algorithm_config(name, CONFIG)
    ready = Ready(there, chosen, ccl.places(there, chosen.contribution), 2)
    records = ccl_run.run(there, ready.plan, nbytes).result.records
    counted = [(sum(sent.queues.values()) * sent.messages, -(-sent.nbytes // 4096)) for sent in ready.form.sent(nbytes)]
    assert len(records.of_kind("send")) == sum(messages for messages, _ in counted)
    assert len(records.of_kind("recv")) == sum(messages * parts for messages, parts in counted)
    assert ready.work(nbytes) >= sum(messages * (1 + parts) for messages, parts in counted) + 8 * len(
        ready.plan.programs
    )


def test_slices_that_ask_the_same_share_a_run(machine, tmp_path):
    case = Case("one", 4, "ring_1d", "ring_allreduce_tcm", 16384)
    twin = replace(case, slice="two", what="twin", links=True, changes={"buffer_kind": "tcm"})
    rows, _ = ccl.sweep(machine, [case, twin], config=CONFIG, folder=tmp_path)
    assert [(row["slice"], row["what"], bool(row["links"])) for row in rows] == [
        ("one", "", False),
        ("two", "twin", True),
    ]
    assert rows[0]["latency_ns"] == rows[1]["latency_ns"]
    assert sum('"row"' in line for line in (tmp_path / FINISHED).read_text(encoding="utf-8").splitlines()) == 1


def test_a_wrong_sum_of_ones_own_is_refused(machine):
    def lazy(t_ptr, n, world, *, tl):
        tl.store(t_ptr, tl.load(t_ptr, shape=n))

    rows, refused = ccl.sweep(machine, [Case("x", 4, "ring_1d", "lazy", 64)], config=CONFIG, own=[algorithm(lazy)])
    assert rows == []
    assert "other values than numpy" in refused["lazy on 4 SIPs, ring_1d, 64 B"]


def test_algorithms_of_a_file(tmp_path):
    file = tmp_path / "mine.py"
    head = "from kernbench.ccl.algorithm import algorithm\n\ndef one(t_ptr, n, world, *, tl): ...\n\n"
    file.write_text(head + "mine = [algorithm(one), algorithm(one, name='two', n_slots=8)]\n", encoding="utf-8")
    assert [a.name for a in ccl_own.algorithms(file)] == ["one", "two"]
    for text, why in ((head, "has no algorithm"), (head + "a, b = algorithm(one), algorithm(one)", "'one'")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=why):
            ccl_own.algorithms(file)
    with pytest.raises(ConfigError, match="no file"):
        ccl_own.algorithms(tmp_path / "none.py")


def test_ones_own_stands_among_the_slices_by_size(machine):
    grid = {"systems": [RING_OF_FOUR], "sizes": [64, 1 << 20], "slot_size": 512}
    empty = {"systems": [], "sizes": []}
    cases = ccl_cases.study(
        CONFIG, machine.config, by_rank=[grid], by_cube=[grid], by_pe=[], others=empty, kinds=[], root_bytes=64,
        more_sips={"counts": [], "topology": "ring_1d", "sizes": []}, more_slots={"counts": [], "nbytes": 64},
        halved=[], programs={"lists": [], "system": RING_OF_FOUR}, marks=[], own=[algorithm(passing)],
    )  # fmt: skip
    mine = [(case.slice, case.nbytes) for case in cases if case.algorithm == "passing"]
    assert mine == [("sizes", 64), ("sizes", 1 << 20)]
    assert {case.changes.get("slot_size") for case in cases if case.slice == "sizes"} == {512}


def planned(machine, name, places=((0, 0),)):
    there = machine.with_({"system.sips.count": 3})
    return there, plan(resolve_algorithm_config(name, CONFIG), there.config, range(3), places)


def test_a_run_equals_that_of_tensors(machine):
    there, ring = planned(machine, "ring_allreduce_tcm")
    alone = ccl_run.run(there, ring, 6000)
    with kb.session(there) as torch:
        tensors = [
            torch.zeros(3000, dtype="f16", device=f"ahbm:{sip}", dp=DPPolicy(num_cubes=1, num_pes=1))
            for sip in range(3)
        ]
        torch.ahbm.synchronize()
        torch.collective(tensors, "ring_allreduce_tcm", config=CONFIG)
    sends = torch.result.records.of_kind("send")
    recvs = torch.result.records.of_kind("recv")
    mine = alone.result.records
    span = int(mine.of_kind("recv").end_ps.max() - mine.of_kind("send").start_ps.min())
    assert span == int(recvs.end_ps.max() - sends.start_ps.min())


def test_a_right_sum_passes(machine):
    there, ring = planned(machine, "ring_allreduce_tcm")
    assert ccl_run.run(there, ring, 666, data=True).latency_ns > 0


def test_a_wrong_sum_is_found(machine):
    there = machine.with_({"system.sips.count": 2})

    def lazy(t_ptr, n, world, *, tl):
        tl.send("E", t_ptr, shape=n)
        tl.recv("W", shape=n)

    wrong = plan(algorithm(lazy), there.config, range(2), [(0, 0)])
    with pytest.raises(VerificationError, match=r"lazy: sip0.cube0.pe0 ends with other values than numpy"):
        ccl_run.run(there, wrong, 64, data=True)


@pytest.mark.parametrize("name", [
    "tree_reduce", "tree_broadcast", "ring_broadcast", "ring_reduce_scatter", "ring_all_gather", "direct_all_to_all",
    "tree_barrier",
])  # fmt: skip
def test_right_values_of_every_collective_pass(machine, name):
    there, made = planned(machine, name)
    nbytes = 2 * made.world_size * 30
    assert ccl_run.run(there, made, nbytes, data=True).latency_ns > 0


@pytest.mark.parametrize("collective", ["reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all"])
def test_wrong_values_of_any_collective_are_found(machine, collective):
    there = machine.with_({"system.sips.count": 2})

    def lazy(t_ptr, *rest, tl):
        pass

    wrong = plan(algorithm(lazy, collective=collective), there.config, range(2), [(0, 0)])
    with pytest.raises(VerificationError, match=r"lazy: sip\d.cube0.pe0 ends with other values than numpy"):
        ccl_run.run(there, wrong, 64, data=True)


def test_lists_are_those_that_were_published():
    bench, llama = (ccl_lists.sizes(name) for name in ccl_lists.LISTS)
    assert [size.nbytes for size in bench] == [4 * n for n in (
        100_000, 3_097_600, 4_194_304, 6_553_600, 16_777_217, 38_360_000, 64_500_000)]  # fmt: skip
    assert [size.nbytes for size in llama] == [n * 8192 * 2 for n in (1, 16, 128, 1024, 2048, 8192)]
    assert "DeepBench" in ccl_lists.source("deepbench")


def test_findings_name_the_winners_and_the_worst(rows, machine, tmp_path):
    found = ccl_findings.findings(rows)
    least = min(
        (r for r in rows if r["bytes_per_pe"] == 64 and r["contribution"] == "rank"), key=lambda r: r["latency_ns"]
    )
    assert found[0].startswith(f"The lower bound holds in all {len(rows)} rows; closest to it is ")
    assert any(f"{least['algorithm']} is fastest at 64 B" in sentence for sentence in found)
    broken = [{**rows[0], "latency_ns": rows[0]["bound_ns"] / 2}]
    assert ccl_findings.findings(broken)[0].startswith("1 rows BREAK their bound")


def test_lists_are_won_by_the_fastest():
    row = {"slice": ccl_cases.LISTS, "busbw_gbs": 9.0, "bytes_per_pe": 64}
    times = {("small", "a"): 2.0, ("small", "b"): 3.0, ("large", "a"): 1.0, ("large", "b"): 4.0}
    rows = [row | {"what": what, "algorithm": name, "latency_ns": ns} for (what, name), ns in times.items()]
    [said] = ccl_findings._lists(rows)
    assert said.startswith("Of 2 all-reduces of DeepBench and Llama-3 70B, a wins 2;")


def test_the_report_is_written_and_read_again(rows, machine, tmp_path):
    ccl.write(rows, {"a": "why"}, tmp_path)
    content = ccl.read(tmp_path)
    assert content["rows"] == rows
    assert content["refused"] == {"a": "why"}
    header = (tmp_path / ccl.SUMMARY).read_text().splitlines()[0].split(",")
    wanted = {
        "algorithm", "sip_topology", "n_sips", "n_elem", "bytes_per_pe", "bytes_per_sip", "latency_ns", "algbw_gbs",
        "busbw_gbs", "bound_ns", "closed_form_ns", "hottest_link",
    }  # fmt: skip
    assert wanted <= set(header)
    drawn = {path.name for path in ccl_report.draw(rows, machine, tmp_path)}
    assert drawn == {
        "latency_rank.png", "busbw_rank.png", "latency_cube_pe.png", "busbw_cube_pe.png",
        "latency_other_collectives.png",
    }  # fmt: skip
    page = ccl_report.write_findings(["It holds."], rows, {"a": "why"}, tmp_path).read_text()
    assert "- It holds." in page
    assert "- a: why" in page
    assert np.isfinite([row["latency_ns"] for row in rows]).all()
