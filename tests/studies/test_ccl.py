"""The collectives study: rows against bounds and estimates, user-defined algorithms, findings, the report."""

from __future__ import annotations

import inspect
from dataclasses import replace
from itertools import product

import pytest
import yaml

import kernbench as kb
from kernbench.ccl._bus_bandwidth import bus_factor
from kernbench.ccl.algorithm import algorithm, plan
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.tuner import Tuner
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError, KernbenchError, VerificationError
from kernbench.points._cache import FINISHED
from kernbench.points._keys import machine_of
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective import run_collective, simulator, tuner_of
from kernbench.studies import ccl, ccl_report
from kernbench.studies.ccl import CclStudy, PlannedCollective
from kernbench.studies.study import Report
from tests.repo import ROOT
from tests.slow import slow_after

CONFIG = load_ccl_config(default_ccl_path())
STUDY = CclStudy()
RING_OF_FOUR = (4, "ring_1d")


def system(machine, count, topology, w=None, h=None):
    sips = {"count": count, "topology": topology, "w": w, "h": h}
    return kb.load(machine, {f"system.sips.{key}": value for key, value in sips.items()})


@pytest.fixture(scope="module")
def machine():
    return kb.load("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})


@pytest.fixture(scope="module")
def rows(machine):
    sizes = {"systems": [RING_OF_FOUR], "sizes": [64, 16384]}
    others = {"systems": [RING_OF_FOUR], "sizes": [4096]}
    return STUDY.run(machine, by_rank=[sizes], by_cube=[sizes], root_bytes=64, others=others)


def by_name(rows, nbytes):
    return {row["algorithm"]: row for row in rows if row["bytes_per_pe"] == nbytes and row["slice"] == "sizes"}


def test_bounds_hold_in_every_row(rows):
    assert len(rows) > 20
    assert ccl_report.broken(rows) == []
    assert all(row["latency_ns"] < 16 * row["bound_ns"] for row in rows)


def test_estimates_are_near_without_contention(rows):
    # A ring of neighbours shares no link: ring, halves and trees meet only themselves.
    for row in rows:
        if row["algorithm"] in ("ring_allreduce_tcm", "ring_flat_allreduce", "tree_broadcast", "ring_all_gather"):
            assert row["latency_ns"] == pytest.approx(row["estimate_ns"], rel=0.15), row["algorithm"]


@pytest.mark.parametrize(
    ("where", "name", "nbytes", "settings"),
    slow_after(
        2,
        [
            ((6, "torus_2d", 3, 2), "tree_allreduce", 98304, {}),
            ((6, "torus_2d", 3, 2), "direct_all_to_all", 24576, {}),
            ((64, "torus_2d", 8, 8), "halving_doubling_allreduce", 1024, {}),  # levels that keep apart
            ((2, "ring_1d"), "double_tree_allreduce", 1 << 20, {}),  # what leaves memory holds its slot longer
            ((8, "torus_2d", 4, 2), "double_tree_allreduce", 98304, {}),  # results come behind sums
            ((8, "ring_1d"), "ring_allreduce_tcm", 1 << 20, {"n_slots": 8}),  # window and link are equal
        ],
    ),
)
def test_estimates_are_within_two_fifths_where_levels_and_trees_meet(where, name, nbytes, settings):
    row = STUDY.simulate(system("preset:default", *where), algorithm=name, nbytes=nbytes, **settings)
    assert row["bound_ns"] <= row["latency_ns"]
    assert 1 / 1.4 < row["latency_ns"] / row["estimate_ns"] < 1.4


def test_bus_bandwidth_is_that_of_nccl_tests(rows):
    ring = by_name(rows, 16384)["ring_allreduce_tcm"]
    assert ring["algbw_gbs"] == pytest.approx(16384 / ring["latency_ns"])
    assert ring["busbw_gbs"] == pytest.approx(ring["algbw_gbs"] * 2 * 3 / 4)
    cubes = by_name(rows, 16384)["intercube_allreduce"]
    assert (cubes["contributions"], cubes["programs"], cubes["bytes_per_sip"]) == (16, 16, 4 * 16384)
    assert cubes["busbw_gbs"] == pytest.approx(16384 / cubes["latency_ns"] * 2 * 15 / 16)
    assert [bus_factor(name, 4) for name in ("all_gather", "broadcast")] == [0.75, 1]


def test_what_is_not_admitted_is_refused_with_its_reason(machine, tmp_path):
    given = STUDY.complete({"by_rank": [{"systems": [RING_OF_FOUR], "sizes": [64, 128]}]})
    reason = "world_size = 7, but 4 take part; change it to that, or leave world_size out"
    assert STUDY.refused(machine, **given) == {"tree_allreduce_7 on 4 SIPs, ring_1d": reason}
    assert not [point for point in STUDY.points(machine, **given) if point["algorithm"] == "tree_allreduce_7"]
    with pytest.raises(ConfigError, match="world_size = 7, but 4 take part"):
        STUDY.simulate(system(machine, *RING_OF_FOUR), algorithm="tree_allreduce_7")


def test_parameters_without_a_point_are_refused(machine, tmp_path):
    with pytest.raises(ConfigError, match="ccl: no size is given"):
        STUDY.run(machine, folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_one_sip_is_refused_before_a_run(machine, tmp_path):
    with pytest.raises(KernbenchError, match=r"more_sips\.counts: 1 must be >= 2"):
        STUDY.run(machine, folder=tmp_path / "new", more_sips={"counts": [1, 2], "topology": "ring_1d", "sizes": [64]})
    assert not (tmp_path / "new").exists()


def test_an_unknown_algorithm_is_refused(machine):
    with pytest.raises(KernbenchError, match=r"'ring_allreduce' is unknown; did you mean .*\? known: "):
        STUDY.simulate(system(machine, *RING_OF_FOUR), algorithm="ring_allreduce")


def passing(t_ptr, n, world, *, tl):
    total = tile = tl.load(t_ptr, shape=n)
    for _ in range(world - 1):
        tl.send("E", tile)
        tile = tl.recv("W", shape=n)
        total = total + tile
    tl.store(t_ptr, total)


def own_file(folder, *kernels):
    """Return a Python file with algorithms: the kernels of this file."""
    lines = ["from kernbench.ccl.algorithm import algorithm", *map(inspect.getsource, kernels)]
    lines.append(f"mine = [{', '.join(f'algorithm({kernel.__name__})' for kernel in kernels)}]")
    (folder / "mine.py").write_text("\n\n".join(lines), encoding="utf-8")
    return str(folder / "mine.py")


def test_a_user_defined_algorithm_is_in_the_table_and_the_figure(machine, tmp_path):
    grid = [{"systems": [RING_OF_FOUR], "sizes": [64, 65536]}]
    report = STUDY.report(machine, folder=tmp_path / "report", own=own_file(tmp_path, passing), by_rank=grid)
    own = [row for row in report.rows if row["algorithm"] == "passing"]
    assert [row["estimate_ns"] for row in own] == [None, None]
    assert all(row["latency_ns"] > row["bound_ns"] for row in own)
    times = {(row["algorithm"], row["bytes_per_pe"]): row["latency_ns"] for row in report.rows}
    assert times["passing", 64] < times["ring_allreduce_tcm", 64]
    assert times["passing", 65536] > times["ring_allreduce_tcm", 65536]
    assert "passing" in (tmp_path / "report" / "ccl_rank.svg").read_text()


def test_a_changed_file_is_simulated_again(machine, tmp_path):
    given = {"own": own_file(tmp_path, passing), "by_rank": [{"systems": [RING_OF_FOUR], "sizes": [64]}]}
    own = [row for row in STUDY.run(machine, **given) if row["algorithm"] == "passing"]
    file = tmp_path / "mine.py"
    file.write_text(file.read_text().replace("range(world - 1)", "range(2 * world - 1)"), encoding="utf-8")
    again = [row for row in STUDY.run(machine, **given) if row["algorithm"] == "passing"]
    assert "failed" not in own[0]
    assert again[0]["failed"].startswith("passing: sip")


def lazy(t_ptr, n, world, *, tl):
    tl.store(t_ptr, tl.load(t_ptr, shape=n))


def test_a_wrong_sum_of_a_user_defined_algorithm_is_in_the_report(machine, tmp_path):
    grid = [{"systems": [RING_OF_FOUR], "sizes": [64]}]
    report = STUDY.report(machine, folder=tmp_path / "report", own=own_file(tmp_path, lazy), by_rank=grid)
    [row] = [row for row in report.rows if row["algorithm"] == "lazy"]
    assert "latency_ns" not in row
    assert "other values than numpy" in row["failed"]
    page = (tmp_path / "report" / "README.md").read_text()
    assert "other values than numpy" in page[page.index("## Failed") :]


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
    there = system(machine, 4, "torus_2d", 2, 2)
    case = PlannedCollective(there, resolve_algorithm_config(name, CONFIG))
    records = run_collective(there, case.plan, nbytes).result.records
    counted = [(sent.connections * sent.messages, -(-sent.nbytes // 4096)) for sent in case.estimate.sent(nbytes)]
    assert len(records.of_kind("send")) == sum(messages for messages, _ in counted)
    assert len(records.of_kind("recv")) == sum(messages * parts for messages, parts in counted)
    messages = sum(messages * (1 + parts) for messages, parts in counted)
    assert case.work(nbytes) >= messages + 8 * len(case.plan.programs)


@pytest.mark.slow
def test_slices_that_ask_the_same_share_a_run(machine, tmp_path):
    counts = {"counts": [4], "nbytes": 16384}  # as many slots as the machine has
    rows = STUDY.run(machine, folder=tmp_path, more_slots=counts, kinds=[16384])
    same = [row for row in rows if row["algorithm"] == "ring_allreduce_tcm" and row["buffer_kind"] == "tcm"]
    assert {row["slice"] for row in same} == {"slots", "buffer kinds"}
    assert len({row["latency_ns"] for row in same}) == 1
    finished = (tmp_path / FINISHED).read_text(encoding="utf-8").splitlines()
    assert sum('"row"' in line for line in finished) == len(rows) - 1


def test_the_row_that_keeps_its_links_shares_its_run_too(machine):
    given = STUDY.complete({"marks": [64, 2048], "by_cube": [{"systems": [ccl.SIX], "sizes": [2048]}]})
    points = [p for p in STUDY.points(machine, **given) if p.get("links")]
    assert [p["labels"]["slice"] for p in points if p["algorithm"] == "intercube_allreduce"] == ["sizes", "published"]
    assert points[0] | {"labels": {}} == points[1] | {"labels": {}}


def test_algorithms_of_a_file(tmp_path):
    file = tmp_path / "mine.py"
    head = "from kernbench.ccl.algorithm import algorithm\n\ndef one(t_ptr, n, world, *, tl): ...\n\n"
    file.write_text(head + "mine = [algorithm(one), algorithm(one, name='two', n_slots=8)]\n", encoding="utf-8")
    assert [a.name for a in ccl.algorithms(file)] == ["one", "two"]
    for text, why in ((head, "has no algorithm"), (head + "a, b = algorithm(one), algorithm(one)", "'one'")):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=why):
            ccl.algorithms(file)
    with pytest.raises(ConfigError, match="not a file"):
        ccl.algorithms(tmp_path / "none.py")


def test_user_defined_algorithms_are_compared_by_size(machine, tmp_path):
    grid = {"systems": [RING_OF_FOUR], "sizes": [64, 1 << 20], "slot_size": 512}
    given = STUDY.complete({"own": own_file(tmp_path, passing), "by_rank": [grid], "by_cube": [grid]})
    sizes = [point for point in STUDY.points(machine, **given) if point["labels"]["slice"] == "sizes"]
    mine = [point["nbytes"] for point in sizes if point["algorithm"] == "passing"]
    assert mine == [64, 1 << 20]
    assert {point["slot_size"] for point in sizes} == {512}


def planned(machine, name, places=((0, 0),)):
    there = machine.with_({"system.sips.count": 3})
    return there, plan(resolve_algorithm_config(name, CONFIG), there.config, range(3), places)


def test_a_run_equals_that_of_tensors(machine):
    there, ring = planned(machine, "ring_allreduce_tcm")
    alone = run_collective(there, ring, 6000)
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
    assert run_collective(there, ring, 666, data=True).latency_ns > 0


def test_a_wrong_sum_is_found(machine):
    there = machine.with_({"system.sips.count": 2})

    def lazy(t_ptr, n, world, *, tl):
        tl.send("E", t_ptr, shape=n)
        tl.recv("W", shape=n)

    wrong = plan(algorithm(lazy), there.config, range(2), [(0, 0)])
    with pytest.raises(VerificationError, match=r"lazy: sip0.cube0.pe0 ends with other values than numpy"):
        run_collective(there, wrong, 64, data=True)


@pytest.mark.parametrize("name", [
    "tree_reduce", "tree_broadcast", "ring_broadcast", "ring_reduce_scatter", "ring_all_gather", "direct_all_to_all",
    "tree_barrier",
])  # fmt: skip
def test_right_values_of_every_collective_pass(machine, name):
    there, made = planned(machine, name)
    nbytes = 2 * made.world_size * 30
    assert run_collective(there, made, nbytes, data=True).latency_ns > 0


@pytest.mark.parametrize("collective", ["reduce", "broadcast", "reduce_scatter", "all_gather", "all_to_all"])
def test_wrong_values_of_any_collective_are_found(machine, collective):
    there = machine.with_({"system.sips.count": 2})

    def lazy(t_ptr, *rest, tl):
        pass

    wrong = plan(algorithm(lazy, collective=collective), there.config, range(2), [(0, 0)])
    with pytest.raises(VerificationError, match=r"lazy: sip\d.cube0.pe0 ends with other values than numpy"):
        run_collective(there, wrong, 64, data=True)


def test_lists_are_those_that_were_published():
    bench, llama = (ccl.sizes(name) for name in ("deepbench", "llama3-70b"))
    assert [size.nbytes for size in bench] == [4 * n for n in (
        100_000, 3_097_600, 4_194_304, 6_553_600, 16_777_217, 38_360_000, 64_500_000)]  # fmt: skip
    assert [size.nbytes for size in llama] == [n * 8192 * 2 for n in (1, 16, 128, 1024, 2048, 8192)]


def texts(rows):
    return [finding.text for finding in ccl_report.findings(rows)]


def test_a_time_below_its_bound_is_the_first_finding(rows, machine):
    broken = [*rows, {**rows[0], "latency_ns": rows[0]["bound_ns"] / 2}]
    first = Report(STUDY, broken, machine, {}).findings[0].text
    assert first.startswith(f"1 of {len(broken)} times are below their lower bound")


def test_findings_name_the_winners(rows):
    small = [row for row in by_name(rows, 64).values() if row["contribution"] == "rank"]
    best = min(small, key=lambda row: row["latency_ns"])
    said = f"At the smallest size {ccl_report.short(best['algorithm'])} is fastest on 4 SIPs, ring_1d"
    [found] = [finding for finding in ccl_report.findings(rows) if finding.text.startswith(said)]
    assert found.detail.startswith("The smallest size is 64 B")


def test_nothing_is_said_about_a_comparison_of_which_a_part_did_not_run(rows):
    most = [row for row in rows if not (row["bytes_per_pe"] == 64 and row["algorithm"] == "torus_allreduce")]
    assert any("size is 64 B" in str(finding) for finding in ccl_report.findings(rows))
    assert not any("size is 64 B" in str(finding) for finding in ccl_report.findings(most))


def listed(times):
    row = {
        "slice": "lists", "contribution": "rank", "bytes_per_pe": 64, "n_sips": 8, "sip_topology": "torus_2d",
        "bound_ns": 1.0, "estimate_ns": None,
    }  # fmt: skip
    return [row | {"what": what, "algorithm": name, "latency_ns": ns} for (what, name), ns in times.items()]


def test_lists_are_won_by_the_fastest_if_all_of_them_ran():
    times = {("small", "a"): 2.0, ("small", "b"): 3.0, ("large", "a"): 1.0, ("large", "b"): 4.0}
    [said] = [found for found in ccl_report.findings(listed(times)) if "real programs" in found.text]
    assert str(said) == "Of 2 all-reduces of real programs, a is fastest for 2. They take 1.0x to 2.0x their bounds."
    del times["large", "b"]
    assert not any("real programs" in text for text in texts(listed(times)))


def test_slowdowns_are_against_the_unchanged_machine():
    times = {("nothing", "a"): 100.0, ("slots", "a"): 150.0, ("HBM", "a"): 99.0, ("UCIe", "a"): 110.0}
    limits = [row | {"slice": "limits"} for row in listed(times)]
    [said] = [found for found in ccl_report.findings(limits) if "costs most" in found.text]
    assert said.text == "a, 64 B: halving slots costs most, 1.50x the time."
    assert said.detail == "Next, halving UCIe takes 1.10x the time."


def test_what_would_account_for_the_published_time_is_a_share_of_the_difference():
    times = {("", "a"): 4000.0, ("slots of 1 KiB", "a"): 8000.0, ("vector engine", "a"): 6000.0}
    marks = [row | {"slice": "published", "bytes_per_pe": 65536, "buffer_kind": "tcm"} for row in listed(times)]
    [said] = [found for found in ccl_report.findings(marks) if found.chart == "published_gap"]
    assert said.text.endswith("slots of 1 KiB would account for 50% of the gap.")  # of 12 us - 4 us
    assert said.detail == "Halving vector engine would account for 25%."
    drawn = {chart.name: chart for chart in ccl_report.CHARTS}["published_gap"].derive(marks)
    assert [row["resource"] for row in drawn] == ["slots of 1 KiB", "halving vector engine", "unchanged"]
    assert not any("as published" in text for text in texts(marks[1:]))


def test_lines_are_those_of_ring_user_defined_algorithms_and_winners():
    names = ["ring_allreduce_tcm", *(f"{letter}_allreduce" for letter in "abcdefg")]
    times = [30, 20, 19, 18, 17, 16, 15, 14], [30, 20, 19, 18, 17, 16, 15, 40], [60, 50, 40, 39, 38, 37, 70, 70]
    rows = [
        row | {"bytes_per_pe": 64 << size} | ({"own": "mine.py"} if row["algorithm"] == "a_allreduce" else {})
        for size, own in enumerate(times)
        for row in listed({("", name): float(ns) for name, ns in zip(names, own, strict=True)})
    ]
    kept = {row["short"] for row in ccl_report._few(ccl_report.seen(rows))}
    assert kept == {"ring", "a", "e", "f", "g"}  # e, f and g win a size each


@pytest.mark.slow
def test_the_report_is_written_and_drawn_again(machine, tmp_path):
    grid = [{"systems": [RING_OF_FOUR, (2, "ring_1d")], "sizes": [64, 4096]}]
    given = {"by_rank": grid, "by_cube": grid, "root_bytes": 64, "halved": [64], "marks": [4096], "kinds": [64, 256]}
    first = STUDY.report(machine, folder=tmp_path, **given)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {"ccl.csv", "ccl_links.csv", "README.md"} <= set(written)
    drawn = {f"ccl_{name}.svg" for name in ("rank", "cube_pe", "roots", "limits", "links", "ring_1d")}
    drawn |= {"buffer_kinds.svg", "published.svg", "topology.svg"}
    assert {name for name in written if name.endswith(".svg")} == drawn
    columns = "sip_topology,n_sips,contribution,algorithm,buffer_kind,n_slots,slot_size,bytes_per_pe,"
    for table in ("summary.csv", "buffer_kinds.csv"):
        assert written[table].decode().startswith(columns)
    again = STUDY.report(machine, folder=tmp_path, rerender=True, **given)
    assert again.rows == first.rows
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written
    page = written["README.md"].decode()
    assert "- tree_allreduce_7 on 4 SIPs, ring_1d: world_size = 7" in page


def test_a_sweep_takes_the_study_by_its_name(machine):
    axes = {"algorithm": ["ring_allreduce_tcm", "tree_allreduce_7"], "system.sips.count": [2, 7]}
    table = kb.sweep(machine, "ccl", axes, parameters={"nbytes": 64}, workers=1, progress=False).table
    assert table["status"].tolist() == ["ok", "ok", "error", "ok"]
    assert "world_size = 7, but 2 take part" in table["error"][2]
    ring = table[table["algorithm"] == "ring_allreduce_tcm"]
    assert ring["latency_ns"].is_monotonic_increasing


@pytest.mark.slow
def test_a_short_list_that_is_simulated_holds_the_best_of_every_comparison():
    base = kb.load("preset:default")
    given = STUDY.complete(yaml.safe_load((ROOT / "milestones" / "ccl.yaml").read_text()))
    machines = (machine_of(base.spec, point["machine"]) for point in STUDY.points(base, **given))
    machines = {machine.hash: machine for machine in machines}
    same = ("machine", "collective", "contribution", "bytes_per_pe", "programs", "dtype", "slot_size")
    rows = [row for row in STUDY.read(ROOT / "milestones" / "output" / "ccl") if row["n_slots"] == 4]
    compared = ccl_report.groups(ccl_report.seen(rows, "sizes", "scaling", "other collectives", "lists"), *same)
    compared = {key: {row["algorithm"]: row["latency_ns"] for row in own} for key, own in compared.items()}
    assert sum(len(times) > 1 for times in compared.values()) > 50
    for (where, collective, contribution, nbytes, programs, dtype, slot), times in compared.items():
        config, each = machines[where].config, programs // machines[where].config.n_sips
        cubes = config.cubes_per_sip if each > 1 else 1
        tuner = Tuner(
            machines[where],
            [replace(resolve_algorithm_config(name, CONFIG), slot_size=slot) for name in times],
            slots=(4,),
            simulate=simulator(machines[where]),
        )
        tuner.simulate = lambda planned, *_, times=times: times[planned.algorithm.name]  # of candidates: the report's
        places, itemsize = list(product(range(cubes), range(each // cubes))), 4 if dtype == "f32" else 2
        chosen = tuner.choose(collective, nbytes, places=places, itemsize=itemsize, contribution=contribution)
        assert times[chosen.algorithm] <= 1.02 * min(times.values()), (chosen.algorithm, config.n_sips, nbytes)


@pytest.mark.slow
def test_auto_is_within_two_percent_of_the_best_row_by_rank():
    base = kb.load("preset:default")
    given = STUDY.complete(yaml.safe_load((ROOT / "milestones" / "ccl.yaml").read_text()))
    machines = (machine_of(base.spec, point["machine"]) for point in STUDY.points(base, **given))
    machines = {machine.hash: machine for machine in machines}
    rows = STUDY.read(ROOT / "milestones" / "output" / "ccl")
    rows = [r for r in ccl_report.seen(rows, "sizes", "scaling", "lists") if r["contribution"] == "rank"]
    compared = ccl_report.groups(rows, "machine", "collective", "bytes_per_pe", "programs", "dtype")
    short = {key: own for key, own in compared.items() if key[1] == "all_reduce" and key[2] * key[3] <= 1 << 17}
    assert len(short) > 20
    for (where, _, nbytes, programs, dtype), own in short.items():
        config, each = machines[where].config, programs // machines[where].config.n_sips
        cubes = config.cubes_per_sip if each > 1 else 1
        places, itemsize = list(product(range(cubes), range(each // cubes))), 4 if dtype == "f32" else 2
        chosen = tuner_of(machines[where]).choose("all_reduce", nbytes, places=places, itemsize=itemsize)
        best = min(own, key=lambda row: row["latency_ns"])
        assert chosen.best.simulated_ns <= 1.02 * best["latency_ns"], (chosen, best["algorithm"])
