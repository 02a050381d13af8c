"""The GEMM study: rows against closed forms, limits that move with the machine file, bad parameters, the report."""

from __future__ import annotations

import pytest

from kernbench.errors import ConfigError, KernbenchError
from kernbench.studies.gemm import GemmStudy
from kernbench.studies.study import read_results, write_results
from kernbench.topology.builder import resolve_topology

STUDY = GemmStudy()
SMALL = {"shapes": [[16, 16, 16], [32, 64, 32], [64, 512, 64]], "timeline": [32, 64, 32]}


def rows(changes=None, **options):
    machine = resolve_topology("preset:default", changes or {})
    options = {"shapes": [(64, 512, 64)], "gathers": ["packed"]} | options
    return {row["variant"]: row for row in STUDY.run(machine, **options)}


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
    assert row["macs_f16"] == row["tiles"] * 65536


@pytest.mark.parametrize(("parts", "whole"), [("exclusive_", "pe_window_ns"), ("path_", "latency_ns")])
def test_parts_sum_to_the_whole(default, parts, whole):
    for row in default.values():
        assert sum(value for key, value in row.items() if key.startswith(parts)) == pytest.approx(row[whole], abs=1e-9)


def test_the_path_of_a_large_product_is_what_limits_it():
    found = rows(shapes=[(256, 256, 256)])
    assert found["ref_ref"]["path_hbm_ns"] > 0.9 * found["ref_ref"]["latency_ns"]
    assert found["load_load"]["path_gemm_ns"] + found["load_load"]["path_fetch_ns"] > 4000
    assert max(row["path_launch_ns"] for row in found.values()) < 0.1 * found["load_load"]["latency_ns"]


@pytest.mark.parametrize(
    ("variant", "limiter", "field", "half", "said"),
    [
        ("ref_ref", "dma_in", "cube.hbm.channel_bw_gbs", 16, "HBM slice"),
        ("load_load", "gemm", "cube.pe.pe_gemm.macs_per_cycle.f16", 2048, "matrix engine"),
        ("load_load", "fetch", "cube.pe.pe_tcm.read_bw_gbs", 256, "fetch from TCM"),
    ],
)
def test_halving_the_named_limit_doubles_the_time_and_stays_named(default, variant, limiter, field, half, said):
    before = default[variant]
    assert limiter in before["limiter"]
    after = rows({field: half})[variant]
    assert after["limiter"] == limiter
    assert after["composite_window_ns"] == pytest.approx(2 * before["composite_window_ns"], rel=0.08)
    assert after["ideal_limiter"] == {"dma_in": "hbm"}.get(limiter, limiter)  # what serves reads serves write-back too
    first, useful = STUDY.findings([after])[0], f"{after['composite_useful']:.1%}"
    assert first.text == f"64x512x64 uses {useful} of the matrix engine's rate with {variant}."
    assert f"{useful} with {variant} ({said} " in first.detail


def test_halving_what_does_not_limit_changes_little(default):
    after = rows({"cube.pe.pe_gemm.macs_per_cycle.f16": 2048})["ref_ref"]
    assert after["composite_window_ns"] == pytest.approx(default["ref_ref"]["composite_window_ns"], rel=0.05)


def test_a_shape_under_a_tile_is_flagged_and_counts_its_padding():
    (row,) = rows(shapes=[(16, 16, 16)], variants=["load_load"]).values()
    assert row["under_tile"]
    assert row["composite_useful"] / row["composite_issued"] == pytest.approx(16**3 / (32 * 64 * 32))
    assert any("smaller than a tile: 6.2%" in finding.text for finding in STUDY.findings([row]))


def test_strided_operands_serve_every_line_that_a_tile_touches():
    found = STUDY.run("preset:default", shapes=[(32, 128, 256)], variants=["load_ref"], gathers=["packed", "strided"])
    packed, strided = found
    # A tile of B is 64 rows of 64 B, 512 B apart: 64 lines instead of 16, on every other channel.
    assert strided["composite_window_ns"] > 4 * packed["composite_window_ns"]
    assert strided["dma_in_bytes"] == packed["dma_in_bytes"]
    ratio = strided["composite_window_ns"] / packed["composite_window_ns"]
    [said] = [finding for finding in STUDY.findings(found) if "row after row" in finding.text]
    assert said.text.endswith(f"take up to {ratio:.1f}x the time of packed ones.")
    assert f"Most at {strided['shape']} load_ref (HBM slice " in said.detail
    share = strided["path_hbm_ns"] / strided["latency_ns"]
    assert share > 0.5
    assert f"{share:.0%} of its critical path" in said.detail
    assert not any("row after row" in finding.text for finding in STUDY.findings([packed]))


def test_all_wrong_parameters_are_refused_at_once(tmp_path):
    with pytest.raises(KernbenchError) as caught:
        STUDY.run("preset:default", shapes=[(0, 1, 1)], variants=["ref"], gathers=["loose"], folder=tmp_path / "out")
    assert len(str(caught.value).splitlines()) == 3
    assert not (tmp_path / "out").exists()


def test_a_machine_that_is_wrong_is_refused():
    with pytest.raises(ConfigError, match="power of two"):
        STUDY.run(resolve_topology("preset:default", {"cube.hbm.channels": 6}))


@pytest.mark.slow
def test_the_report_can_be_drawn_again_from_its_files(tmp_path):
    first = STUDY.report("preset:default", folder=tmp_path, **SMALL)
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = STUDY.report("preset:default", folder=tmp_path, rerender=True, **SMALL)
    assert again.rows == first.rows
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written
    assert {f"{chart.name}.svg" for chart in STUDY.charts} | {"gemm.csv", "gemm_timeline.csv"} <= set(written)
    page = written["README.md"].decode()
    assert "## Operands packed" in page
    assert "## Operands strided" in page
    assert len(first.findings) <= 7
    assert {finding.chart for finding in first.findings} - {""} <= {chart.name for chart in STUDY.charts}


def test_only_the_named_product_keeps_its_tiles(default):
    assert not any("timeline" in row for row in default.values())
    kept = [row for row in STUDY.run("preset:default", **SMALL) if "timeline" in row]
    assert [(row["shape"], row["variant"], row["gather"]) for row in kept] == [("32x64x32", "ref_ref", "packed")]
    assert [piece["stage"] for piece in kept[0]["timeline"]].count("gemm") == kept[0]["tiles"] == 1


def test_results_of_other_schemas_are_refused(tmp_path):
    row = {"machine": "m", "code_version": "c", "makespan_ns": 1.0, "left_out": ""}
    path = write_results(tmp_path / "gemm.json", [row])
    assert read_results(path)["rows"] == [row]
    path.write_text(path.read_text().replace('"schema_version": 2', '"schema_version": 1'))
    with pytest.raises(KernbenchError, match="schema_version = 1 must be 2; run the study again"):
        read_results(path)
    with pytest.raises(KernbenchError, match="no results to draw"):
        read_results(tmp_path / "nowhere.json")
