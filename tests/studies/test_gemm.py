"""The GEMM study: rows against closed forms, limits that move with the machine file, bad parameters."""

from __future__ import annotations

import json

import pytest

from kernbench.errors import ConfigError, KernbenchError
from kernbench.studies import gemm, gemm_report
from kernbench.studies.results import write_results
from kernbench.topology.builder import resolve_topology


def rows(changes=None, **options):
    machine = resolve_topology("preset:default", changes or {})
    options = {"shapes": [(64, 512, 64)], "gathers": ["packed"]} | options
    return {row["variant"]: row for row in gemm.sweep(machine, **options)}


@pytest.fixture(scope="module")
def default():
    return rows()


def test_a_row_of_one_tile_by_hand():
    (row,) = rows(shapes=[(32, 64, 32)], variants=["ref_ref"]).values()
    # Plan 1, command 1, HBM 16 and 16 behind it, 2 links and a router 3, then fetch, MACs, store; write 8 flits.
    read = 1 + 1 + 8 + 8 + 16 + 3 - 1 + 8 - 1
    write = 2 + 1 + 7 + 8 + 1 + 2 * 0.063
    assert row["composite_window_ns"] == pytest.approx(read + 16 + 16 + 4 + write, abs=2)
    assert row["composite_useful"] == pytest.approx(16 / row["composite_window_ns"])
    assert (row["n_dma_in"], row["n_fetch"], row["n_gemm"], row["n_store_tcm"], row["n_dma_out"]) == (2, 1, 1, 1, 1)
    assert row["dma_in_bytes"] == 2 * 4096
    assert row["dma_out_bytes"] == 2048


def test_exclusive_time_sums_to_the_window(default):
    for row in default.values():
        parts = [value for key, value in row.items() if key.startswith("exclusive_")]
        assert sum(parts) == pytest.approx(row["pe_window_ns"], abs=1e-9)


@pytest.mark.parametrize(
    ("variant", "limiter", "field", "half"),
    [
        ("ref_ref", "dma_in", "cube.hbm.channel_bw_gbs", 16),
        ("load_load", "gemm", "cube.pe.pe_gemm.macs_per_cycle.f16", 2048),
        ("load_load", "fetch", "cube.pe.pe_tcm.read_bw_gbs", 256),
    ],
)
def test_halving_the_named_limit_doubles_the_time_and_stays_named(default, variant, limiter, field, half):
    before = default[variant]
    assert limiter in before["limiter"]
    after = rows({field: half})[variant]
    assert after["limiter"] == limiter
    assert after["composite_window_ns"] == pytest.approx(2 * before["composite_window_ns"], rel=0.08)
    assert after["ideal_limiter"] == limiter
    (said,) = [text for text in gemm_report.findings([after]) if text.startswith("64x512x64") and "busy" in text]
    assert field.rsplit(".", 1)[0] in said
    assert f"{after['composite_window_ns']:,.0f} ns" in said


def test_halving_what_does_not_limit_changes_little(default):
    after = rows({"cube.pe.pe_gemm.macs_per_cycle.f16": 2048})["ref_ref"]
    assert after["composite_window_ns"] == pytest.approx(default["ref_ref"]["composite_window_ns"], rel=0.05)


def test_a_shape_under_a_tile_is_flagged_and_counts_its_padding():
    (row,) = rows(shapes=[(16, 16, 16)], variants=["load_load"]).values()
    assert row["under_tile"]
    assert row["composite_useful"] / row["composite_issued"] == pytest.approx(16**3 / (32 * 64 * 32))
    assert any("Smaller than a tile" in text for text in gemm_report.findings([row]))


def test_strided_operands_serve_every_line_that_a_tile_touches():
    found = gemm.sweep(
        resolve_topology("preset:default"),
        shapes=[(32, 128, 256)],
        variants=["load_ref"],
        gathers=["packed", "strided"],
    )
    packed, strided = found
    # A tile of B is 64 rows of 64 B, 512 B apart: 64 lines instead of 16, on every other channel.
    assert strided["composite_window_ns"] > 4 * packed["composite_window_ns"]
    assert strided["dma_in_bytes"] == packed["dma_in_bytes"]
    assert any("row by row" in text for text in gemm_report.findings(found))


def test_all_wrong_parameters_are_refused_at_once(tmp_path):
    with pytest.raises(KernbenchError) as caught:
        gemm.sweep("preset:default", shapes=[(0, 1, 1)], variants=["ref"], gathers=["loose"], folder=tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 3
    assert not (tmp_path / "out").exists()


def test_results_are_read_again_and_other_schemas_refused(tmp_path):
    machine = resolve_topology("preset:default")
    found = list(rows(variants=["load_load"]).values())
    path = gemm.write(found, machine, tmp_path)
    assert gemm.read(tmp_path)["rows"] == json.loads(json.dumps(found))
    assert gemm.read(tmp_path)["tile_sizes"] == {"m": 32, "k": 64, "n": 32}
    path.write_text(path.read_text().replace('"schema_version": 2', '"schema_version": 99'))
    with pytest.raises(KernbenchError, match="schema_version = 99 must be 2"):
        gemm.read(tmp_path)
    with pytest.raises(KernbenchError, match="no results to draw"):
        gemm.read(tmp_path / "nowhere")


def test_results_of_version_1_are_read_unless_they_hold_estimates(tmp_path):
    row = {"machine": "m", "code_version": "c", "makespan_ns": 1.0, "left_out": ""}
    old = row | {"mode": "exact", "certified": True, "certificate": "certified: every flit was simulated (mode exact)"}
    path = write_results(tmp_path / gemm.FILE, [old])
    as_version_1 = path.read_text().replace('"schema_version": 2', '"schema_version": 1')
    path.write_text(as_version_1)
    assert gemm.read(tmp_path)["rows"] == [row]
    for wrong in (
        as_version_1.replace('"certified": true', '"certified": false'),
        as_version_1.replace('"left_out": ""', '"left_out": "12 tiles, more than 10"'),
    ):
        path.write_text(wrong)
        with pytest.raises(KernbenchError, match=r"it holds estimates, .*; run the study again"):
            gemm.read(tmp_path)


def test_a_machine_that_is_wrong_is_refused():
    with pytest.raises(ConfigError, match="power of two"):
        gemm.sweep(resolve_topology("preset:default", {"cube.hbm.channels": 6}))
