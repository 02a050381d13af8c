"""The report of the attention study on small points: figures that show the rows, findings computed from them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import pandas as pd
import pytest

from kernbench.errors import KernbenchError
from kernbench.runtime_api.context import session
from kernbench.studies import gqa, gqa_limits, gqa_work
from kernbench.studies import gqa_report as report
from kernbench.studies.explore import explorations
from kernbench.studies.gqa_explore import explore
from kernbench.studies.gqa_work import need, work
from kernbench.topology.builder import resolve_topology

MACHINE = resolve_topology("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})
POINTS = gqa.plan(
    contexts=[64, 128], batches=[[64, 4], [131072, 64]], scaling=[[1, 1, 0], [2, 2, 1]],
    merges=["ring_allreduce_tcm", "tree_allreduce"], query_heads=[[1, 4], [1, 8]],
    prompts=[[32, "contiguous", True], [32, "zigzag", True], [32, "zigzag", False]], chunks=[4], context=64, cubes=2,
)  # fmt: skip
PANELS = [{"panel": "single_user_decode", "n_ranks": 8, "op_log_summary": {"gemm_count": 16, "ipcq_send_count": 24}}]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gqa")
    rows = gqa.sweep(MACHINE, POINTS, folder=folder)
    chosen = gqa_limits.chosen(POINTS, [["decode", 128], ["prefill", 32]])
    limits = gqa_limits.halved(MACHINE, chosen, folder=folder)
    gqa.write(rows, limits, folder)
    return rows, limits, folder


def test_no_run_beats_its_bound(study):
    rows, _, _ = study
    for row in report.simulated(rows):
        assert row["makespan_ns"] > row["bound_ns"] > 0
        parts = row["work_ns"] + row["hidden_ns"] + row["exposed_ns"] + row["idle_ns"]
        assert parts == pytest.approx(row["makespan_ns"], rel=1e-3)
        assert (row["sent_bytes"] > 0) == (row["ranks"] > 1)


def test_ranks_on_every_sip_are_run_on_every_sip(study):
    """Two SIPs: a lane that spans them runs on both; where each has its own items, one is run for both."""
    [spanning] = [row for row in study[0] if row["span"]]
    assert (spanning["sips"], spanning["cubes"], spanning["pes"], spanning["ranks"]) == (2, 2, 32, 4)
    alone = gqa.Point("", "decode", 64, sips=2, cubes=2).setting(8)
    assert (alone.sips, alone.programs, alone.ranks) == (1, 16, 4)


def test_a_run_too_long_for_a_log_has_its_makespan_only(study, monkeypatch, tmp_path):
    [point] = [point for point in POINTS if (point.phase, point.order, point.ring) == ("prefill", "zigzag", True)]
    [known] = [row for row in study[0] if (row["series"], row["order"], row["ring"]) == ("prefill", "zigzag", True)]
    monkeypatch.setattr(gqa, "LOGGED", known["scores"] - 1)
    [row] = gqa.sweep(MACHINE, [point])
    assert row["makespan_ns"] == known["makespan_ns"]
    assert "work_ns" not in row
    rows = [row if other == known else other for other in study[0]]
    assert len(report.logged(rows)) == len(report.simulated(rows)) - 1
    assert all(path.is_file() for path in report.draw(rows, PANELS, study[1], MACHINE, tmp_path))


def test_what_does_not_fit_says_how_many_bytes(study):
    [row] = [row for row in study[0] if row["left_out"]]
    assert (row["context"], row["batch"]) == (131072, 64)
    assert "2,748,779,069,440 B of keys and values" in row["left_out"]
    assert "makespan_ns" not in row


def test_each_half_speed_costs_between_nothing_and_twice(study):
    _, limits, _ = study
    assert {row["part"] for row in limits} == set(gqa_limits.PARTS)
    assert all(0.99 <= row["slowdown"] <= 2.01 for row in limits)
    part, factor = gqa_limits.binding(limits, "prefill", 32)
    assert factor == max(row["slowdown"] for row in limits if row["phase"] == "prefill")
    assert part in gqa_limits.PARTS


def test_a_halved_part_is_half_as_fast_in_all_that_belongs_to_it_and_nothing_else():
    changed = {part: change(MACHINE.config) for part, change in gqa_limits.PARTS.items()}
    assert {part: sorted(key.split(".")[-2] for key in values) for part, values in changed.items()} == {
        "HBM": ["hbm", "hbm"], "matrix engine": ["pe_gemm"], "vector engine": ["pe_math"], "command issue": ["pe_cpu"],
        "links between PEs": ["noc", "router", "ucie", "ucie"],
    }  # fmt: skip
    for values in changed.values():
        for key, value in values.items():
            now = reduce(getattr, key.split("."), MACHINE.config)
            assert value == (now * 2 if key.endswith("_ns") else now / 2)
        MACHINE.with_(values)


def test_the_report_is_written_from_the_rows(study, tmp_path):
    rows, limits, folder = study
    content = gqa.read(folder)
    assert (content["rows"], content["limits"]) == (rows, limits)
    drawn = report.draw(rows, PANELS, limits, MACHINE, tmp_path)
    assert {path.name for path in drawn} == {
        "gqa_op_counts.png", "gqa_stage_breakdown.png", "gqa_roofline.png", "gqa_halving.png", "gqa_overlap.png",
        "gqa_latency_by_context.png", "gqa_ring_against_merge.png", "gqa_scaling.png", "gqa_merges.png",
        "gqa_query_heads.png",
    }  # fmt: skip
    said = report.findings(rows, limits)
    assert any(sentence.startswith("Prefill at 32 tokens") for sentence in said)
    assert any("One decode step takes" in sentence for sentence in said)
    assert any(sentence.startswith("Not simulated: decode 131,072 batch 64") for sentence in said)
    page = report.write_page(said, rows, drawn, MACHINE, tmp_path).read_text()
    assert page == report.write_page(said, rows, drawn, MACHINE, tmp_path).read_text()
    table = report.tokens_table(rows, MACHINE)
    kept = pd.read_csv(tmp_path / "gqa_tokens.csv")
    assert list(kept.columns) == list(report.COLUMNS.values())
    assert list(kept["attention_tokens_per_s_per_sip"].dropna()) == list(table["attention: tokens/s/SIP"].dropna())
    assert sum(line.startswith(("| 64 |", "| 128 |", "| 131,072 |")) for line in page.splitlines()) == len(table) == 4
    assert "| 131,072 | 64 |" in page
    assert page.count("| - | - | - | infeasible |") == 1
    assert (table["of the bound"].dropna() < 1).all()
    assert table["note"].str.startswith("infeasible").sum() == 1
    assert list(report.counts(PANELS)["gemm_count"]) == [16]


def test_tokens_per_second_by_hand():
    """Two SIPs of 8.192 TB/s each, 32 tokens at once, 10 us a layer, of which HBM takes 4."""
    row = {"phase": "decode", "series": "decode batch", "queries": None, "context": 1024, "batch": 32, "sips": 2}
    row |= {"hbm_ns": 4000.0, "makespan_ns": 10000.0, "left_out": ""}
    machine = resolve_topology("preset:default", {"system.sips.count": 2})
    [line] = report.tokens_table([row], machine).to_dict("records")
    weights_s = 2 * gqa_work.WEIGHTS / (2 * 128 * 256e9)
    assert line["bound: tokens/s/SIP"] == pytest.approx(16 / 320e-6, rel=1e-4)
    assert line["attention: tokens/s/SIP"] == pytest.approx(16 / 800e-6, rel=1e-4)
    assert line["bound with weights"] == pytest.approx(16 / (320e-6 + weights_s), rel=1e-4)
    assert line["with weights at HBM speed"] == pytest.approx(16 / (800e-6 + weights_s), rel=1e-4)
    assert line["of the bound"] == 0.4


def test_weights_of_the_model_are_those_that_are_published():
    held = need(MACHINE.config, 1, 8192, 1, 1, "f16")
    assert held.weights / 2 == pytest.approx(70.6e9, rel=0.01)
    assert held.kv == 2.5 * 2**30
    assert need(MACHINE.config, 1, 8192, 3, 4, "f16").kv == 12 * held.kv


def test_bounds_of_a_decode_step_by_hand():
    """8 kv heads of 8,192 tokens over 128 PEs: 256 KiB a PE at 256 GB/s; 8 query heads fill 8 of 32 rows of a tile."""
    bound = work(resolve_topology("preset:default").config, gqa.Point("", "decode", 8192).setting(8))
    assert (bound.kv_bytes, bound.flops) == (2 * 8 * 8192 * 128 * 2, 2 * 2 * 64 * 8192 * 128)
    assert (bound.hbm_ns, bound.useful) == (1024, 0.25)
    assert bound.matrix_ns == bound.flops / 2 / 0.25 / 4096 / 128 == 1024
    # Max, fma, sum and cast, and exp in four cycles; a transposition of 16-bit values.
    assert bound.vector_ns == 64 * 8192 / 128 * (8 / 128 + 1 / 256)
    assert bound.bound_ns == 1024


def test_bounds_know_groups_and_masks():
    whole = gqa.Point("", "prefill", 64, cubes=1, lane_of=8).setting(8)
    masked = work(MACHINE.config, replace(whole, causal=True))
    assert masked.flops < 0.51 * work(MACHINE.config, whole).flops
    few = gqa.Point("", "decode", 64, query_heads=4, cubes=2).setting(8)
    assert (
        work(MACHINE.config, few).kv_bytes
        == 2 * work(MACHINE.config, gqa.Point("", "decode", 64, cubes=2).setting(8)).kv_bytes
    )


@pytest.mark.parametrize(
    ("point", "message"),
    [
        (gqa.Point("", "decode", 63, cubes=2), "expected whole numbers"),
        (gqa.Point("", "training", 64), "known: prefill, decode"),
        (gqa.Point("", "decode", 48, sips=3, cubes=2), "expected whole numbers for each"),
    ],
)
def test_points_that_cannot_be_dealt_out_are_refused(point, message):
    with pytest.raises(KernbenchError, match=message):
        gqa.sweep(MACHINE, [point])


def test_halving_needs_a_point_of_the_study():
    with pytest.raises(KernbenchError, match="no point of decode with 7 tokens"):
        gqa_limits.chosen(POINTS, [["decode", 7]])


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_explorer_runs_it(phase):
    with session("preset:default", data=True) as torch:
        said = explore(torch, phase=phase, tokens=16, head_dim=32, group=2)
        assert said.startswith("1 x 8 ranks; no run is faster than: HBM")
        assert torch.checks == 1
    assert "gqa" in explorations()
