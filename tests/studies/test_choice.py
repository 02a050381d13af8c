"""`kb.gemm` and `kb.ccl.choose`: closed forms, the fastest candidate, what is said of it, what to change first."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._launches import span
from kernbench.ccl.algorithm import plan
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.tuner import Candidate, Decision
from kernbench.config import default_ccl_path
from kernbench.errors import ArgumentError, ConfigError, StateError
from kernbench.ops.matmul import PLACEMENTS, traffic
from kernbench.runtime_api.collective import run_collective
from kernbench.studies import choice
from kernbench.studies._answers import CollectiveChoice, Spread
from kernbench.studies.choice import bytes_of, choose_stages, gemm_stages, system_of
from kernbench.studies.layers import StoredProduct, layer_work
from kernbench.studies.layers import run as run_product

SIP = kb.load("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
SHAPES = [(64, 128, 256), (1, 512, 1024), (512, 32, 64), (32, 32, 4096), (70, 130, 90)]
SMALL = kb.load("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})
CUBE = kb.load("preset:default", {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})
CONFIG = load_ccl_config(default_ccl_path())


def part(n, *cuts):
    """The elements of `n` that a PE has, cut as often as (parts, its part) are given."""
    elements = range(n)
    for parts, i in cuts:
        size = -(-len(elements) // parts)
        elements = elements[i * size : (i + 1) * size]
    return set(elements)


def remote(shape, placement, cube, pe, cubes=2, pes=8):
    """The bytes that a PE reads from others, element by element."""
    (m, n, k), here = shape, ((cubes, cube), (pes, pe))
    if placement == "split-K in cubes":  # B is its own, and of its part of K of A some rows
        columns, depth = len(part(n, (cubes, cube))), len(part(k, (pes, pe)))
        if not columns:
            return 0
        holders = [p for p in range(pes) if part(k, (pes, p))]
        adding = min(pes, -(-m * columns * 2 // SIP.config.cube.hbm.burst_bytes))
        sums = len(part(m * columns, (adding, pe))) * len([p for p in holders if p != pe]) if pe < adding else 0
        return 2 * (m - len(part(m, (cubes, cube)))) * depth + 4 * sums
    if placement == "columns" and m <= 32:  # A is by rows over the PEs of a cube, and by columns over cubes
        own = len(part(m, (pes, pe))) * len(part(k, (cubes, cube)))
        return 2 * (m * k - own) if part(n, *here) else 0
    if placement != "split-K":
        rows, columns = {
            "rows": (part(m, *here), part(n)), "columns": (part(m), part(n, *here)),
            "2-D": (part(m, (pes, pe)), part(n, (cubes, cube))),
            "2-D turned": (part(m, (cubes, cube)), part(n, (pes, pe))),
            "replicated": (part(m), part(n)) if cube == pe == 0 else (set(), set()),
        }[placement]  # fmt: skip
        others = len(rows - part(m, *here)) + len(columns - part(n, *here))
        return others * k * 2 if rows and columns else 0
    holders = {(c, p) for c in range(cubes) for p in range(pes) if part(k, (cubes, c), (pes, p))}
    in_cube = part(m * n, (pes, pe))
    elements = sum(len(in_cube) for c, p in holders if c == cube and p != pe)
    for other in {c for c, _ in holders}:
        elements += len(part(m * n, *here) - (in_cube if other == cube else set()))
    return 4 * elements


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_closed_form_reads_what_other_pes_hold(placement, shape):
    expected = [remote(shape, placement, cube, pe) for cube in range(2) for pe in range(8)]
    product = StoredProduct(*shape, placement).placed(SIP.config)
    moved = sum(traffic(SIP.config, product, placement))
    assert (moved.sum(axis=1) - np.diag(moved)).tolist() == expected
    counted = layer_work(SIP.config, StoredProduct(*shape, placement))
    assert (counted.remote_bytes, counted.busiest_remote_bytes) == (sum(expected), max(expected))


def test_columns_of_b_are_read_once_for_each_row_of_tiles():
    # A PE reads all 64 x 256 of A, its 8 columns of B for both rows of tiles, and writes 64 x 8; 2 bytes each.
    moved = sum(traffic(SIP.config, StoredProduct(64, 128, 256, "columns").placed(SIP.config), "columns"))
    assert moved.sum(axis=1).tolist() == [2 * (64 * 256 + 2 * 8 * 256 + 64 * 8)] * 16


@pytest.mark.parametrize("shape", SHAPES)
def test_no_placement_is_much_faster_than_the_choice(shape):
    chosen = kb.gemm(*shape, machine=SIP)
    times = {}
    for placement in PLACEMENTS:
        start, end = span(run_product(SIP, StoredProduct(*shape, placement))[0].launches)
        times[placement] = (end - start) / 1000
    assert chosen.simulated_ns == times[chosen.best.placement]
    assert chosen.simulated_ns <= 1.1 * min(times.values())


def test_the_answer_says_which_placement_why_and_what_stands_idle():
    chosen = kb.gemm(1, 512, 4096, machine=SIP)
    assert chosen.warnings == [
        "2-D leaves 14 of 16 PEs idle", "rows leaves 15 of 16 PEs idle", "replicated leaves 15 of 16 PEs idle",
    ]  # fmt: skip
    text, page = repr(chosen), chosen._repr_html_()
    for said in (chosen.title, "rows leaves 15 of 16 PEs idle", "raise cube."):
        assert said in text
        assert said.replace("'", "&#x27;") in page
    assert chosen.to_dict()["candidates"][0]["placement"] == chosen.best.placement
    assert chosen.why[0].ns == max(reason.ns for reason in chosen.why)


def test_operands_may_be_stored_transposed():
    chosen = kb.gemm(64, 128, 256, machine=SIP, trans_a=True, trans_b=True)
    assert "A' B'" in chosen.title
    assert {x.placement for x in chosen.candidates} == set(PLACEMENTS)


def test_wrong_questions_about_products_are_refused():
    with pytest.raises(ArgumentError, match=r"(?s)m = 0 must be a whole number >= 1.*dtype = 'f64' is unknown"):
        kb.gemm(0, 64, 64, machine=SIP, dtype="f64")
    with pytest.raises(ConfigError, match="no placement fits: does not fit: "):
        kb.gemm(1 << 22, 1 << 22, 64, machine=SIP)


def sips(machine):
    own = machine.config.system.sips
    return own.count, own.topology, own.w, own.h


def test_a_count_takes_the_squarest_grid():
    assert sips(system_of(SMALL, 12, "torus_2d")) == (12, "torus_2d", 4, 3)
    assert sips(system_of(SMALL, "8", "mesh_2d_no_wrap")) == (8, "mesh_2d_no_wrap", 4, 2)
    assert sips(system_of(SMALL, "2x4", "torus_2d")) == (8, "torus_2d", 2, 4)
    assert sips(system_of(SMALL, "4x2", "ring_1d")) == (8, "ring_1d", None, None)
    assert system_of(SMALL, None, None) is SMALL


def test_wrong_questions_about_collectives_are_refused():
    for wrong in ("4by2", -1, True, "x"):
        with pytest.raises(ArgumentError, match="must be a number of SIPs, or a grid as 4x2"):
            system_of(SMALL, wrong, "torus_2d")
    with pytest.raises(ConfigError, match=r"system\.sips\.topology"):
        system_of(SMALL, 4, "moebius")
    for wrong in ("64 kilo", "0", "3", "-4", "", True):
        with pytest.raises(ArgumentError, match=r"must be a (number of bytes|multiple of the 2 bytes)"):
            bytes_of(wrong)
    with pytest.raises(ArgumentError, match="collective 'all_redcue' is unknown; did you mean all_reduce"):
        kb.ccl.choose(64, collective="all_redcue", machine=SMALL)


def test_the_choice_is_the_fastest_that_there_is():
    chosen = kb.ccl.choose("16KiB", sips=4, network="torus_2d", machine=CUBE, changes=False)
    machine = system_of(CUBE, 4, "torus_2d")
    times = {}
    for name in names(CONFIG, "all_reduce", "rank"):
        if name not in chosen.decision.refused:
            planned = plan(
                resolve_algorithm_config(name, CONFIG).on(machine.config), machine.config, range(4), [(0, 0)]
            )
            times[name] = run_collective(machine, planned, 1 << 14).latency_ns
    assert chosen.simulated_ns <= 1.02 * min(times.values())
    assert chosen.decision.bound_ns < chosen.simulated_ns < chosen.launched_ns
    assert sum(c.simulated_ns is not None for c in chosen.decision.candidates) == 3


@pytest.mark.slow
def test_the_same_bytes_on_other_pes_are_compared():
    chosen = kb.ccl.choose(4096, sips=2, network="ring_1d", machine=SMALL, changes=False)
    found = {spread.where: spread for spread in chosen.spreads}
    assert {name: (x.pes, x.nbytes) for name, x in found.items()} == {
        "one PE": (1, 4096), "the 8 PEs of a cube": (8, 512), "a PE of each of 4 cubes": (4, 1024),
        "all 32 PEs": (32, 128),
    }  # fmt: skip
    assert found["one PE"].simulated_ns == chosen.simulated_ns
    times = [spread.simulated_ns for spread in chosen.spreads]
    assert times == sorted(times)


@pytest.mark.slow
def test_the_first_change_makes_it_faster():
    chosen = kb.ccl.choose(4096, sips=2, network="ring_1d", machine=SMALL)
    first = chosen.changes.iloc[0]
    assert first["factor"] == "latency between SIPs"
    assert first["first"] == "down"
    machine = system_of(SMALL, 2, "ring_1d")
    faster = machine.with_({"system.sip_link.latency_ns": machine.config.system.sip_link.latency_ns / 2})
    algorithm = resolve_algorithm_config(chosen.algorithm, CONFIG).on(machine.config)
    ns = run_collective(faster, plan(algorithm, faster.config, range(2), [(0, 0)]), 4096).latency_ns
    assert 100 * (1 - ns / chosen.simulated_ns) == pytest.approx(first["gain_pct"], abs=0.5)
    text, page = repr(chosen), chosen._repr_html_()
    for said in (chosen.title, "change first: halve latency between SIPs", "Algorithms", "on the critical path"):
        assert said in text
        assert said in page
    assert json.dumps(chosen.to_dict(), allow_nan=False)
    assert None in [change["up_pct"] for change in chosen.to_dict()["changes"]]  # HBM may not outrun its link


def test_the_page_names_algorithms_that_do_not_run():
    class Path:
        def __repr__(self):
            return "the critical path"

        _repr_html_ = __repr__

    candidates = (Candidate("ring_allreduce", 4, None, None, 12_345.6), Candidate("torus_allreduce", 16, 20_000.0))
    refused = {"mesh_allreduce": "6 SIPs are not a <grid>"}
    decision = Decision("all_reduce", 64, 6, "0123456789abcdef", candidates, refused, 0.0, "")
    spread = Spread("one PE", 1, 64, "ring_allreduce", 4, None, 12_345.6)
    chosen = CollectiveChoice("6 SIPs, ring_1d", decision, 65536, 1, (spread,), None, 13_000.0, Path())
    text, page = repr(chosen), chosen._repr_html_()
    assert "mesh_allreduce  6 SIPs are not a <grid>" in text
    assert "6 SIPs are not a &lt;grid&gt;" in page
    assert f"  ring_allreduce       4  {'':16}  {'12,346':>14}" in text.splitlines()
    assert f"  torus_allreduce     16  {'20,000':>16}" in text.splitlines()
    assert text.endswith("the critical path")


@pytest.mark.parametrize(
    ("shape", "simulated"),
    [
        ((16, 32, 64), ["2-D", "2-D turned", "replicated"]),
        ((16, 32, 128), ["2-D", "2-D turned", "columns", "replicated"]),
    ],
)
def test_placements_near_the_best_are_simulated_unless_their_estimate_is_too_slow(shape, simulated):
    candidates = kb.gemm(*shape, machine=SIP).candidates
    assert sorted(x.placement for x in candidates if x.simulated_ns is not None) == simulated
    first = min(candidates, key=lambda x: x.estimate_ns)
    limit = min(1.3 * first.estimate_ns, first.simulated_ns)
    assert all((x.simulated_ns is not None) == (x.estimate_ns < limit) for x in candidates)


def kinds(stages):
    """The sections that each stage knows, without what it knew before."""
    seen, found = set(), []
    for stage in stages:
        known = {name for name in stage.answer.sections() if name not in stage.answer.missing}
        found.append(known - seen)
        seen |= known
    return found


def test_estimates_of_a_product_come_before_simulated_times():
    stages = list(gemm_stages(64, 64, 512, machine=SIP, workers=1))
    first, second, *others = stages
    assert not first.answer.candidates
    assert first.answer.sections()["question"].startswith("C[64, 64] = A B, k = 512, f16, over 16 PEs (machine ")
    assert {x.placement for x in second.answer.candidates} == set(PLACEMENTS)
    assert all(x.simulated_ns is None for x in second.answer.candidates)
    assert "estimate" in second.answer.title
    assert second.answer.missing == {"fastest": "simulated times", "why": "the critical path"}
    assert all(stage.answer.best.simulated_ns is not None for stage in others)
    assert not stages[-1].answer.missing
    assert list(stages[-1].answer.sections()) == ["question", "estimates", "fastest", "why"]
    assert "estimates, not simulated" in second.answer.sections()["estimates"]


def test_estimates_are_from_the_launch_leaving_the_host_as_simulated_times_are():
    dear = SIP.with_({"system.host.launch_ns": 5000.0, "system.host.descriptor_ns": 500.0})
    free, paid = (kb.gemm(64, 256, 64, machine=x, workers=1).candidates for x in (SIP, dear))
    assert [x.estimate_ns for x in paid] == [x.estimate_ns for x in free]
    assert [x.simulated_ns for x in paid] == [x.simulated_ns for x in free]


def test_a_placement_whose_estimate_is_above_a_simulated_time_is_not_simulated():
    chosen = kb.gemm(64, 64, 512, machine=SIP, workers=1)
    for candidate in chosen.candidates:
        if candidate.simulated_ns is None:
            assert candidate.estimate_ns >= min(
                chosen.simulated_ns, 1.3 * min(x.estimate_ns for x in chosen.candidates)
            )


def test_stages_of_a_collective_end_with_other_pes_and_changes():
    stages = list(choose_stages(256, sips=2, network="ring_1d", machine=SMALL, workers=1))
    assert kinds(stages)[:2] == [{"question"}, {"estimates"}]
    assert list(stages[-1].answer.sections()) == ["question", "estimates", "fastest", "why", "spreads", "changes"]
    assert not stages[-1].answer.missing
    assert set(stages[1].answer.missing) == {"fastest", "why", "spreads", "changes"}
    assert "(estimate)" in stages[1].answer.title
    times = [s.answer.decision.best.simulated_ns for s in stages[2:]]
    assert times == sorted(times, reverse=True)
    # Each resource is in the table once both of its simulations have ended.
    changed = [s.answer for s in stages if s.answer.changes is not None]
    for answer in changed:
        left = answer.missing.get("changes", "").removeprefix("changes of ").split(", ")
        assert not set(answer.changes["factor"]).intersection(left)


def test_what_is_not_known_at_the_limit_is_named():
    chosen = kb.gemm(64, 64, 512, machine=SIP, limit_s=1e-6)
    assert chosen.missing == {"fastest": "simulated times", "why": "the critical path"}
    assert "not known: simulated times, the critical path" in repr(chosen)
    assert chosen.to_dict()["missing"] == ["simulated times", "the critical path"]
    assert {x.placement for x in chosen.candidates} == set(PLACEMENTS)
    with pytest.raises(StateError, match="no candidate was simulated within the limit"):
        _ = chosen.simulated_ns
    found = kb.ccl.choose(256, sips=2, machine=SMALL, limit_s=1e-6)
    assert list(found.missing.values()) == [
        "simulated times", "the critical path", "the same bytes on other PEs", "changes of the machine",
    ]  # fmt: skip
    with pytest.raises(ArgumentError, match="limit_s = 0 must be a number > 0"):
        kb.gemm(64, 64, 512, machine=SIP, limit_s=0)


def test_algorithms_may_be_demanded():
    asked = ["tree_allreduce", "ring_allreduce_hbm"]
    chosen = kb.ccl.choose(256, sips=2, machine=CUBE, algorithms=asked, changes=False)
    assert {c.algorithm for c in chosen.decision.candidates} == set(asked)
    assert all(c.simulated_ns for c in chosen.decision.candidates)
    with pytest.raises(
        ArgumentError, match="algorithm 'ring_alreduce_hbm' is unknown; did you mean ring_allreduce_hbm"
    ):
        kb.ccl.choose(256, sips=2, machine=SMALL, algorithms=["ring_alreduce_hbm"])
    product = kb.gemm(64, 64, 512, machine=SIP, placements=["split-K", "rows"])
    assert {x.placement for x in product.candidates} == {"split-K", "rows"}
    assert all(x.simulated_ns for x in product.candidates)
    with pytest.raises(ArgumentError, match="placement 'row' is unknown; did you mean rows"):
        kb.gemm(64, 64, 512, machine=SIP, placements=["row"])


def test_the_answer_is_shown_as_it_grows():
    titles = []
    chosen = kb.gemm(64, 64, 512, machine=SIP, progress=lambda answer: titles.append(answer.title))
    assert titles[0] == chosen.question
    assert "(estimate)" in titles[1]
    assert titles[-1] == chosen.title


def test_an_equal_question_is_answered_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    chosen = kb.gemm(64, 64, 512, machine=SIP, workers=1)
    monkeypatch.setattr(choice, "run", None)
    again = kb.gemm(64, 64, 512, machine=SIP, workers=1)
    assert repr(again) == repr(chosen)
    assert list(again.why) == list(chosen.why)
    assert again.to_dict() == chosen.to_dict()


@pytest.mark.slow
def test_processes_give_the_same_answer():
    question = {"sips": 2, "machine": CUBE, "changes": False}
    one, two = (kb.ccl.choose("4KiB", workers=workers, **question) for workers in (1, 2))
    assert repr(one) == repr(two)


@pytest.mark.slow
def test_rows_that_do_not_fit_into_tcm_are_counted_for_each_column_of_tiles():
    stages = gemm_stages(8192, 8192, 8192, machine="preset:default")
    next(stages)
    found = {x.placement: x for x in next(stages).answer.candidates}
    assert 0.5 < found["2-D"].estimate_ns / 17_909_536 < 1  # the simulated time, which takes minutes
    assert found["rows"].estimate_ns < found["2-D"].estimate_ns


def test_more_bytes_than_a_pe_has_memory_for_are_refused():
    with pytest.raises(ArgumentError, match=r"B are more than a PE's share of cube\.hbm\.size_gib, 6,442,450,944 B"):
        kb.ccl.choose("7GiB", machine="preset:default")
    with pytest.raises(ArgumentError, match=r"B are more than cube\.hbm\.size_gib, 85,899,345,920 B"):
        kb.ccl.choose("100GiB", machine="preset:a100_sxm")


def test_where_pes_share_memory_the_answer_is_that_of_a_call():
    # As dist.all_reduce does, the channels of the protocol cut the tensor among PEs; the start of the protocol counts.
    machine = kb.load("preset:a100_sxm", {"system.sips.count": 2, "cube.pe.pe_ipcq.simple": {"start_ns": 7000}})
    chosen = kb.ccl.choose("2MiB", machine=machine, changes=False, progress=False)

    def program(torch, rank):
        x = torch.empty(1 << 20, dtype=torch.float16, device="ahbm")
        torch.distributed.all_reduce(x)  # installs the queues
        torch.ahbm.synchronize()
        start = torch.engine.now_ns
        torch.distributed.all_reduce(x)
        torch.ahbm.synchronize()
        return torch.engine.now_ns - start

    with kb.session(machine) as torch:
        torch.distributed.init_process_group("ahbm")
        found = [None] * 2

        def ranked(rank):
            found[rank] = program(torch, rank)

        torch.multiprocessing.spawn(ranked, nprocs=2)
    assert chosen.pes == machine.config.cube.pe.pe_ipcq.channels
    assert chosen.launched_ns > chosen.simulated_ns + 7000
    assert chosen.launched_ns == pytest.approx(found[0], rel=0.02)


def test_the_bytes_of_a_call_choose_the_protocol_not_those_of_its_channels():
    """24 channels hold 32 B more than 4 KiB and 1 MiB, up to which a protocol is used; the next one starts later."""
    machine = kb.load("preset:a100_sxm_calibrated", {"system.sips.count": 2})
    host, ipcq = machine.config.system.host, machine.config.cube.pe.pe_ipcq
    small = kb.ccl.choose("4KiB", machine=machine, changes=False, progress=False)
    start_ns = host.fetch_ns("", collective=True)
    assert start_ns < small.launched_ns - small.simulated_ns < start_ns + ipcq.ll128.start_ns
    large = kb.ccl.choose("1MiB", machine=machine, changes=False, progress=False)  # slots of the next have no room
    assert large.launched_ns < start_ns + ipcq.simple.start_ns
