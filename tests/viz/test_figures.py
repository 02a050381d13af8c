from __future__ import annotations

import pandas as pd
import pytest

from kernbench.analysis._roofline import Roofs
from kernbench.analysis._stages import ORDER
from kernbench.sweeps.sensitivity import pareto
from kernbench.viz import _palette as palette
from kernbench.viz import figures
from kernbench.viz.figures import roofline, save, tile_timeline

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


TABLE = pd.DataFrame(
    [{"x": x, "y": y, "latency_ns": 100.0 / x + y, "area_mm2": 10.0 * x * y} for x in (1, 2, 4) for y in (1, 2)]
)
RANKED = pd.DataFrame(
    [
        {"factor": "ucie", "down_pct": 25.0, "up_pct": -17.0},
        {"factor": "only up", "down_pct": None, "up_pct": -40.0},
    ]
)


def drawn():
    front = pareto(TABLE, ["area_mm2", "latency_ns"])
    return {
        "front": figures.pareto_front(TABLE, front, ("area_mm2", "latency_ns"), machine="m" * 64, label=["x", "y"]),
        "map": figures.heat_map(TABLE, ("x", "y"), "latency_ns", machine="m" * 64),
        "tornado": figures.tornado(RANKED, "latency_ns", machine="m" * 64),
    }


def test_titles_say_what_ran_and_axes_their_units():
    about = {"machine": "m", "of": "a layer"}
    front = figures.pareto_front(TABLE, TABLE[:2], ("area_mm2", "latency_ns"), **about)
    (axes,) = front.axes
    assert front.get_suptitle() == "Latency against area: a layer"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("area [mm2]", "latency [ns]")
    heat = figures.heat_map(TABLE, ("x", "y"), "latency_ns", **about)
    assert heat.get_suptitle() == "Latency [ns] by y and x: a layer"
    assert heat.axes[1].get_ylabel() == "latency [ns]"
    tornado = figures.tornado(RANKED, "latency_ns", **about)
    assert tornado.get_suptitle() == "What moves the latency: a layer"
    assert tornado.axes[0].get_xlabel() == "change of latency [%]"


@pytest.mark.parametrize("name", ["front", "map", "tornado"])
def test_equal_tables_of_a_sweep_give_equal_bytes_and_a_caption(name, tmp_path):
    one, two = (save(drawn()[name], tmp_path / f"{i}.png").read_bytes() for i in (1, 2))
    assert one == two
    assert "machine mmmmmmmmmmmm" in drawn()[name].get_supxlabel()


def test_a_map_shows_the_least_over_the_other_axes():
    table = pd.concat([TABLE.assign(z=1), TABLE.assign(z=2, latency_ns=TABLE["latency_ns"] * 2)])
    (axes, _) = figures.heat_map(table, ("x", "y"), "latency_ns", machine="m").axes
    assert [t.get_text() for t in axes.texts] == ["101", "51", "26", "102", "52", "27"]


def test_a_map_leaves_a_field_without_a_result_empty():
    (axes, _) = figures.heat_map(TABLE[1:], ("x", "y"), "latency_ns", machine="m").axes
    assert len(axes.texts) == 5


def test_the_strongest_factor_stands_on_top():
    (axes,) = figures.tornado(RANKED, "latency_ns", machine="m").axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["ucie", "only up"]
    assert sorted(round(bar.get_width()) for bar in axes.patches) == [-40, -17, 0, 25]
