from __future__ import annotations

import pandas as pd
import pytest

from kernbench.analysis.breakdown import ORDER
from kernbench.analysis.roofline import Roofs
from kernbench.viz import palette
from kernbench.viz.figure import save
from kernbench.viz.roofline import roofline, tile_timeline

MACHINE = "0123456789abcdef"


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
    one = save(tile_timeline(timeline_rows(), machine=MACHINE, title="a run"), tmp_path / "a.png")
    two = save(tile_timeline(pd.DataFrame(timeline_rows()), machine=MACHINE, title="a run"), tmp_path / "b.png")
    assert one.read_bytes() == two.read_bytes()


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
        tile_timeline([], machine=MACHINE, title="a run")


def test_every_stage_has_a_colour_of_its_own():
    assert set(palette.STAGES) == set(ORDER)
    assert len(set(palette.STAGES.values())) == len(ORDER)
