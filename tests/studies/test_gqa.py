"""The attention study on small points: rows within their bounds, charts and findings that follow from them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import reduce

import pytest

import kernbench as kb
from kernbench.errors import ConfigError, KernbenchError
from kernbench.runtime_api.context import session
from kernbench.studies import attention, gqa, gqa_report
from kernbench.studies._start_of_work import HOSTS, KERNELS
from kernbench.studies.attention import run, work
from kernbench.studies.gqa import Case, GqaStudy, memory
from kernbench.studies.study import Report, explorations, scaled
from kernbench.topology.builder import resolve_topology

MACHINE = resolve_topology("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})
DEFAULT = resolve_topology("preset:default")
SMALL = {
    "contexts": [64, 128], "batches": [[64, 4], [131072, 64]], "scaling": [[1, 1, 0], [2, 2, 1], [2, 2, 0]],
    "merges": ["ring_allreduce_tcm", "tree_allreduce"], "query_heads": [[1, 4], [1, 8]],
    "prompts": [[32, "contiguous", True], [32, "zigzag", True], [32, "zigzag", False]], "chunks": [4, 8],
    "halvings": [["decode", 128], ["prefill", 32]], "context": 64, "cubes": 2,
}  # fmt: skip
PATHS = [f"path_{name}_ns" for name in (*attention.PATH_COLUMNS, "control")]


@pytest.fixture(scope="module")
def rows():
    return GqaStudy().run(MACHINE, **SMALL)


def simulated(rows):
    return [row for row in rows if not row["left_out"]]


def test_no_run_beats_its_bound(rows):
    for row in simulated(rows):
        assert row["makespan_ns"] > row["bound_ns"] > 0
        parts = row["work_ns"] + row["hidden_ns"] + row["exposed_ns"] + row["idle_ns"]
        assert parts == pytest.approx(row["makespan_ns"], rel=1e-3)
        assert (row["sent_bytes"] > 0) == (row["ranks"] > 1)


def test_the_critical_path_is_the_whole_makespan(rows):
    for row in simulated(rows):
        assert sum(row[name] for name in PATHS) == pytest.approx(row["makespan_ns"], abs=1e-6)
        assert 0 < row["busy_matrix_ns"] < row["makespan_ns"]


def test_the_log_of_tiles_changes_no_other_column():
    setting = Case("decode", 64, cubes=2).setting(MACHINE.config)
    coarse, fine = (attention.measured(run(MACHINE, setting, log=log)) for log in ("operation", "tile"))
    assert coarse == fine


def test_ranks_on_every_sip_are_run_on_every_sip(rows):
    """Two SIPs: a subgroup that spans them runs on both; where each has its own items, one is run for both."""
    [spanning] = [row for row in rows if row["span"]]
    assert (spanning["sips"], spanning["cubes"], spanning["pes"], spanning["ranks"]) == (2, 2, 32, 4)
    alone = Case("decode", 64, sips=2, cubes=2).setting(MACHINE.config)
    assert (alone.sips, alone.programs, alone.ranks) == (1, 16, 4)


def test_a_batch_is_dealt_to_lanes():
    """Prefill of 4 sequences: 32 kv heads on 32 PEs are 32 subgroups of one rank, of which one is run."""
    one = Case("prefill", 64, 4, represents=32).setting(MACHINE.config)
    assert (one.ranks, one.items, one.programs, one.tokens) == (1, 1, 1, 64)
    many = Case("prefill", 64, 16, represents=32).setting(MACHINE.config)
    assert (many.ranks, many.items) == (1, 4)
    shown = GqaStudy().points(MACHINE, **GqaStudy().complete(SMALL | {"batch": 2}))
    assert {p["batch"] for p in shown if p["labels"]["series"] not in ("panel", "decode batch")} == {2}


def test_points_of_several_series_are_simulated_once(monkeypatch):
    ran = []
    simulate = GqaStudy.simulate
    monkeypatch.setattr(GqaStudy, "simulate", lambda *args, **point: ran.append(point) or simulate(*args, **point))
    found = GqaStudy().run(
        MACHINE, **SMALL | {name: [] for name in ("batches", "scaling", "query_heads", "prompts", "chunks", "halvings")}
        | {"merges": ["recursive_doubling_allreduce"]},
    )  # fmt: skip
    assert len(found) == 4 + 2 + 1
    assert len(ran) == 4 + 2


@pytest.mark.slow
def test_a_run_too_long_for_a_log_has_its_makespan_only(rows, monkeypatch, tmp_path):
    [known] = [row for row in rows if (row["series"], row["order"], row["ring"]) == ("prefill", "zigzag", True)]
    point = {"phase": "prefill", "context": 32, "cubes": 2, "represents": 8, "causal": True, "order": "zigzag"}
    monkeypatch.setattr(gqa, "TRACED", known["scores"] - 1)
    row = GqaStudy().simulate(MACHINE, **point)
    assert row["work_ns"] == known["work_ns"]
    assert "path_hbm_ns" not in row
    monkeypatch.setattr(gqa, "LOGGED", known["scores"] - 1)
    row = {"series": "prefill", **GqaStudy().simulate(MACHINE, **point), "machine": "", "code_version": ""}
    assert row["makespan_ns"] == known["makespan_ns"]
    assert "work_ns" not in row
    report = Report(GqaStudy(), [row if other is known else other for other in rows], MACHINE, {})
    assert (tmp_path / "README.md") == report.write(tmp_path)[0]


def test_what_does_not_fit_says_how_many_bytes(rows):
    [row] = [row for row in rows if row["left_out"]]
    assert (row["context"], row["batch"]) == (131072, 64)
    assert "2,748,779,069,440 B of keys and values" in row["left_out"]
    assert "makespan_ns" not in row


def test_each_half_speed_costs_between_nothing_and_twice(rows):
    limits = gqa_report.slowdowns(rows)
    assert [row["part"] for row in limits] == 2 * list(gqa.HALVES)
    assert all(0.99 <= row["slowdown"] <= 2.01 for row in limits)
    assert max(row["slowdown"] for row in limits) > 1.05


def test_a_halved_part_is_half_as_fast_in_all_that_belongs_to_it_and_nothing_else():
    changed = {part: scaled(MACHINE.config, factors) for part, factors in gqa.HALVES.items()}
    assert {part: sorted(key.split(".")[-2] for key in values) for part, values in changed.items()} == {
        "HBM": ["hbm", "hbm"], "matrix engine": ["pe_gemm"], "vector engine": ["pe_math"], "command issue": ["pe_cpu"],
        "links between PEs": ["noc", "router", "ucie", "ucie"],
    }  # fmt: skip
    for values in changed.values():
        for key, value in values.items():
            now = reduce(getattr, key.split("."), MACHINE.config)
            assert value == (now * 2 if key.endswith("_ns") else now / 2)
        MACHINE.with_(values)


@pytest.mark.slow
def test_the_report_is_written_from_the_rows_and_read_again(rows, tmp_path):
    study = GqaStudy()
    report = Report(study, rows, MACHINE, study.complete(SMALL))
    written = {path.name for path in report.write(tmp_path)}
    assert {f"{chart.name}.svg" for chart in study.charts} <= written
    assert study.read(tmp_path) == rows
    page = (tmp_path / "README.md").read_text()
    assert page.index("**1. Decode at 128 tokens is limited by") < page.index("](gqa_halving.svg)")
    assert "infeasible" in page.split("## Not simulated")[1]
    assert "exclusive" not in page


def test_findings_rest_on_points_that_were_run(rows):
    study = GqaStudy()
    said = study.findings(rows)
    assert len(said) == 8
    assert {finding.chart for finding in said} <= {chart.name for chart in study.charts}
    for series in {row["series"] for row in rows} - {"panel"}:
        without = [row for row in rows if row["series"] != series]
        assert study.findings(without) == [x for x in said if x in study.findings(without)]
    assert not study.findings([])


def test_the_table_of_one_token_has_one_row_for_each_context_and_batch_that_was_run(rows):
    table = GqaStudy().tables(rows)["Attention of one token of each sequence"]
    assert list(zip(table["context"], table["batch"], strict=True)) == [(64, 1), (128, 1), (64, 4)]
    [row] = [row for row in rows if row["series"] == "decode context" and row["context"] == 128]
    assert table["of_bound"].iloc[1] == pytest.approx(row["bound_ns"] / row["makespan_ns"])


def test_weights_of_the_model_are_those_that_are_published():
    held, _ = memory(MACHINE.config, 1, 8 * 128 * 8192, "f16")
    assert held["weights_bytes"] / 2 == pytest.approx(70.6e9, rel=0.01)
    assert held["kv_model_bytes"] == 2.5 * 2**30


def test_bounds_of_a_decode_step_by_hand():
    """8 kv heads of 8,192 tokens over 128 PEs: 256 KiB a PE at 256 GB/s; 8 query heads fill 8 of 32 rows of a tile."""
    bound = work(DEFAULT.config, Case("decode", 8192).setting(DEFAULT.config))
    assert (bound.kv_bytes, bound.flops) == (2 * 8 * 8192 * 128 * 2, 2 * 2 * 64 * 8192 * 128)
    assert (bound.hbm_ns, bound.useful) == (1024, 0.25)
    assert bound.matrix_ns == bound.flops / 2 / 0.25 / 4096 / 128 == 1024
    # Max, fma, sum and cast, and exp in four cycles; a transposition of 16-bit values.
    assert bound.vector_ns == 64 * 8192 / 128 * (8 / 128 + 1 / 256)
    assert max(bound.bounds.values()) == 1024


def test_bounds_know_groups_and_masks():
    whole = Case("prefill", 64, cubes=1, represents=8).setting(MACHINE.config)
    masked = work(MACHINE.config, replace(whole, causal=True))
    assert masked.flops < 0.51 * work(MACHINE.config, whole).flops
    few, all_heads = (Case("decode", 64, query_heads=n, cubes=2).setting(MACHINE.config) for n in (4, 8))
    assert work(MACHINE.config, few).kv_bytes == 2 * work(MACHINE.config, all_heads).kv_bytes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"contexts": [63, 128]}, "expected whole numbers"),
        ({"scaling": [[3, 2, 0]], "context": 48}, "expected whole numbers for each"),
        ({"merges": ["ring_allreduce_tmc"]}, "did you mean ring_allreduce_tcm"),
        ({"halvings": [["decode", 7]]}, "no point of decode with 7 tokens"),
    ],
)
def test_parameters_that_cannot_be_run_are_refused_before_anything_runs(wrong, message, tmp_path):
    with pytest.raises(KernbenchError, match=message):
        GqaStudy().run(MACHINE, folder=tmp_path, **SMALL | wrong)
    assert not list(tmp_path.iterdir())


def test_a_sweep_varies_batch_and_machine():
    swept = kb.sweep(
        MACHINE, "gqa", {"batch": [1, 2], "cube.hbm.channel_bw_gbs": [16, 32]}, parameters={"context": 64, "cubes": 1},
        progress=False,
    )  # fmt: skip
    assert len(swept.ok) == 4
    assert swept.ok["makespan_ns"].is_unique
    with pytest.raises(ConfigError, match="did you mean context"):
        kb.sweep(MACHINE, "gqa", {"contxt": [64]}, progress=False)


def test_panels_are_written_as_before(rows, tmp_path):
    content = json.loads(gqa.write_panels(rows, tmp_path).read_text())
    assert content["panels"] == list(gqa.PANELS)
    assert content["rows"][0] == {
        "panel": "single_user_prefill", "n_ranks": 8, "op_log_summary": {
            "gemm_count": 128, "ipcq_send_count": 112, "ipcq_recv_count": 112, "dma_read_count": 24,
            "dma_write_count": 8,
        },
    }  # fmt: skip


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_the_explorer_runs_it(phase):
    with session("preset:default", data=True) as torch:
        said = GqaStudy().program(torch, phase=phase, tokens=16, head_dim=32, group=2)
        assert said.startswith("1 x 8 ranks; no run is faster than: HBM")
        assert torch.checks == 1
    assert "gqa" in explorations()


@pytest.mark.slow
def test_a_graph_saves_what_launches_of_short_kernels_cost():
    sizes = [4096, 1 << 20]
    chosen = SMALL | {"kernel_bytes": sizes, "contexts": [64]}
    chosen |= {name: [] for name in ("batches", "scaling", "merges", "query_heads", "prompts", "chunks", "halvings")}
    rows = GqaStudy().run(DEFAULT, **chosen)
    found = gqa_report.starts(rows)
    assert [(row["nbytes"], row["host"]) for row in found] == [(n, host) for n in sizes for host in HOSTS]
    free, paid, long_free, long_paid = found
    host = HOSTS["gpu_launch"]
    # Short ones wait for the host; a graph pays once for all.
    assert paid["launches_ns"] - host["launch_ns"] == pytest.approx(free["launches_ns"] / KERNELS, abs=200)
    once = host["launch_ns"] + host["doorbell_ns"] + host["descriptor_ns"]
    for costly, cheap in ((paid, free), (long_paid, long_free)):
        assert costly["graph_ns"] - cheap["graph_ns"] == pytest.approx(once / KERNELS)
    # Reading 1 MiB takes 4.1 us, which hides most of the host's 5 us.
    assert long_paid["launches_ns"] < 1.3 * long_free["launches_ns"] < paid["launches_ns"] * 1.3
    assert "a graph of 8 kernels" in next(gqa_report._starts(rows)).detail


@pytest.mark.parametrize("nbytes", [1, 1 << 24])
def test_a_short_kernel_that_does_not_fit_is_refused(nbytes):
    with pytest.raises(ConfigError, match=f"kernel_bytes: {nbytes} must be between 2 and"):
        GqaStudy().run(MACHINE, **SMALL | {"kernel_bytes": [nbytes]})
