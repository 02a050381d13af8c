from __future__ import annotations

import pandas as pd
import pytest

from kernbench.analysis.breakdown import ORDER
from kernbench.analysis.roofline import Roofs
from kernbench.viz import palette
from kernbench.viz.figure import save
from kernbench.viz.gemm import mac_utilization_measured, mac_utilization_theoretical_vs_measured, stage_breakdown
from kernbench.viz.roofline import roofline
from kernbench.viz.timeline import tile_timeline

MACHINE = "0123456789abcdef"


def gemm_rows():
    rows = []
    for shape, under in (("16x16x16", True), ("64x64x64", False)):
        for i, variant in enumerate(("ref_ref", "load_load")):
            rows.append(
                {
                    "shape": shape, "variant": variant, "under_tile": under, "pe_window_ns": 100.0,
                    "exclusive_gemm_ns": 60.0, "exclusive_wait_ns": 40.0, "busy_gemm_ns": 60.0, "busy_fetch_ns": 70.0,
                    "composite_useful": 0.4 + 0.1 * i, "composite_issued": 0.8, "pe_useful": 0.2, "pe_issued": 0.4,
                    "ideal_utilization": 0.8,
                }
            )  # fmt: skip
    return rows


def timeline_rows():
    return [
        {"stage": "dma_in", "start_ns": 0.0, "end_ns": 27.0, "tile": 0},
        {"stage": "dma_in", "start_ns": 16.0, "end_ns": 43.0, "tile": 1},
        {"stage": "gemm", "start_ns": 43.0, "end_ns": 59.0, "tile": 0},
    ]


def points():
    return [
        {"name": "a", "intensity": 4.0, "gflops": 900.0, "model_gflops": 1000.0},
        {"name": "b", "intensity": 64.0, "gflops": 8000.0},
        {"name": "no bytes", "intensity": float("inf"), "gflops": 8000.0},
    ]


FIGURES = {
    "stages": lambda: stage_breakdown(gemm_rows(), machine=MACHINE),
    "measured": lambda: mac_utilization_measured(gemm_rows(), machine=MACHINE),
    "ideal": lambda: mac_utilization_theoretical_vs_measured(gemm_rows(), machine=MACHINE),
    "timeline": lambda: tile_timeline(timeline_rows(), machine=MACHINE, title="a run", zoom_ns=20),
    "roofline": lambda: roofline(points(), Roofs(8192, {"hbm": 256}), machine=MACHINE),
}


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


@pytest.mark.parametrize("name", FIGURES)
def test_equal_figures_are_equal_files_with_n_and_machine_in_the_caption(name, tmp_path):
    figure = FIGURES[name]()
    assert any(text.startswith("n = ") and "machine 0123456789ab" in text for text in texts(figure))
    for suffix in ("png", "svg"):
        first = save(figure, tmp_path / f"one.{suffix}").read_bytes()
        assert first == save(FIGURES[name](), tmp_path / f"two.{suffix}").read_bytes()
        assert b"matplotlib version" not in first.lower()


def test_every_axis_that_measures_has_a_unit_or_is_a_share():
    for name, draw in FIGURES.items():
        labels = [axes.get_xlabel() for axes in draw().axes if axes.get_xlabel()]
        assert all("[" in label or "/" in label or label == "M x K x N" for label in labels), (name, labels)


def test_a_data_frame_draws_the_same(tmp_path):
    one = save(stage_breakdown(gemm_rows(), machine=MACHINE), tmp_path / "a.png")
    two = save(stage_breakdown(pd.DataFrame(gemm_rows()), machine=MACHINE), tmp_path / "b.png")
    assert one.read_bytes() == two.read_bytes()


def test_exclusive_pieces_reach_the_whole_window_and_busy_ones_go_beyond():
    left, right = stage_breakdown(gemm_rows(), machine=MACHINE).axes
    assert max(bar.get_x() + bar.get_width() for bar in left.patches) == pytest.approx(1.0)
    assert max(bar.get_x() + bar.get_width() for bar in right.patches) == pytest.approx(1.3)


def test_what_is_smaller_than_a_tile_is_flagged_and_explained():
    found = texts(mac_utilization_measured(gemm_rows(), machine=MACHINE))
    assert "16x16x16 *" in found
    assert "64x64x64" in found
    assert any("smaller than one tile" in text for text in found)


def test_the_bars_show_the_table():
    upper, lower = mac_utilization_measured(gemm_rows(), machine=MACHINE).axes
    assert {round(bar.get_height(), 3) for bar in upper.patches} == {0.4, 0.5, 0.8}
    assert {round(bar.get_height(), 3) for bar in lower.patches} == {0.2, 0.4}


def test_measured_is_compared_with_ideal_in_numbers():
    found = texts(mac_utilization_theoretical_vs_measured(gemm_rows(), machine=MACHINE))
    assert "0.50" in found  # 0.4 of 0.8
    assert "0.62" in found  # 0.5 of 0.8


def test_overlapping_transfers_lie_side_by_side():
    axes = tile_timeline(timeline_rows(), machine=MACHINE, title="a run").axes[0]
    spans = [path.get_extents() for boxes in axes.collections for path in boxes.get_paths()]
    dma = sorted((box for box in spans if box.x0 in (0.0, 16.0)), key=lambda box: box.x0)
    assert dma[0].y1 == pytest.approx(dma[1].y0)


def test_a_point_without_bytes_has_no_place_on_a_roofline():
    assert any(text.startswith("n = 2") for text in texts(FIGURES["roofline"]()))


@pytest.mark.parametrize("model", [True, False])
def test_a_roofline_tells_of_hollow_marks_where_it_draws_them(model):
    rows = points() if model else [{**row, "model_gflops": None} for row in points()]
    figure = roofline(rows, Roofs(8192, {"hbm": 256}), machine=MACHINE)
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert bool(hollow) == any("hollow: model" in text for text in texts(figure)) == model


def test_points_that_lie_on_each_other_share_a_label_that_the_key_explains():
    near = [{"name": name, "intensity": at, "gflops": 100.0} for name, at in (("a", 4.0), ("b", 4.1), ("c", 64.0))]
    found = texts(roofline(near, Roofs(8192, {"hbm": 256}), machine=MACHINE))
    assert {"1, 2", "3", "1  a\n2  b\n3  c"} <= set(found)


def test_no_rows_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="no rows to draw"):
        stage_breakdown([], machine=MACHINE)


def test_every_stage_has_a_colour_of_its_own():
    assert set(palette.STAGES) == set(ORDER)
    assert len(set(palette.STAGES.values())) == len(ORDER)
