from __future__ import annotations

import re
from dataclasses import replace

import pandas as pd
import pytest
from matplotlib.figure import Figure

from kernbench.analysis._records import CommandInfo
from kernbench.analysis._roofline import placed
from kernbench.analysis._stages import ORDER
from kernbench.analysis.result import Result
from kernbench.analysis.trace import timeline as timeline_of
from kernbench.errors import ArgumentError, ConfigError, StateError
from kernbench.studies import gemm
from kernbench.sweeps.pareto import pareto
from kernbench.topology.builder import resolve_topology
from kernbench.viz import _palette as palette
from kernbench.viz import figures
from kernbench.viz.figures import tile_timeline, timeline_svg
from tests.analysis.synthetic import records_of

MACHINE = "0123456789abcdef"
TABLE = pd.DataFrame(
    [{"x": x, "y": y, "latency_ns": 100.0 / x + y, "area_mm2": 10.0 * x * y} for x in (1, 2, 4) for y in (1, 2)]
)
RANKED = [
    {"factor": "ucie", "down_pct": 25.0, "up_pct": -17.0},
    {"factor": "only up", "down_pct": None, "up_pct": -40.0},
]
CURVES = [("uniform", "1 flit", [(0.2, 12.0), (0.4, 20.0)], 10.0, 0.55)]


def timeline_rows():
    return [
        {"stage": "dma_in", "start_ns": 100.0, "end_ns": 127.0, "tile": 0},
        {"stage": "dma_in", "start_ns": 116.0, "end_ns": 143.0, "tile": 1},
        {"stage": "gemm", "start_ns": 143.0, "end_ns": 159.0, "tile": 0},
    ]


@pytest.fixture(scope="module")
def run():
    return gemm.run(resolve_topology("preset:default"), (128, 256, 128), "ref_ref")


FIGURES = {
    "timeline": lambda: tile_timeline(timeline_rows(), machine=MACHINE, title="a run", zoom_ns=20),
    "curves": lambda: figures.load_curves(CURVES, machine=MACHINE, n=3, note="flow: credits"),
    "front": lambda: figures.pareto_front(
        TABLE, pareto(TABLE, ["area_mm2", "latency_ns"]), ("area_mm2", "latency_ns"), machine=MACHINE, label=["x", "y"],
        of="a layer",
    ),
    "map": lambda: figures.heat_map(TABLE, ("x", "y"), "latency_ns", machine=MACHINE, of="a layer"),
    "tornado": lambda: figures.tornado(RANKED, "latency_ns", machine=MACHINE, of="a layer"),
}  # fmt: skip
SAID = {
    "timeline": ["a run", "everything that the PE did", "20 ns from the first tile on", "dma in", "matrix"],
    "curves": ["Latency against load", "mean latency [ns]", "load [flits per cycle and terminal]",
               "uniform, saturates at 0.55"],
    "front": ["Latency against area: a layer", "area [mm2]", "latency [ns]", "on the front",
              "Front by x, y. 1: 1, 1; 2: 2, 1; 3: 4, 1."],
    "map": ["Latency [ns] by y and x: a layer", "101", "26"],
    "tornado": ["What moves the latency: a layer", "change of latency [%]", "less of it", "+25.0"],
}  # fmt: skip


def texts(still):
    return [text for text in re.findall(r">([^<>]+)</(?:text|tspan)>", still.svg) if text.strip()]


@pytest.mark.parametrize("name", FIGURES)
def test_equal_figures_are_equal_files_that_say_what_they_show(name, tmp_path):
    still = FIGURES[name]()
    found = texts(still)
    assert not set(SAID[name]) - set(found), found
    assert any("n = " in text and "machine 0123456789ab" in text for text in found)
    for suffix in ("png", "svg"):
        first = still.save(tmp_path / f"one.{suffix}").read_bytes()
        assert first == FIGURES[name]().save(tmp_path / f"two.{suffix}").read_bytes()
    with pytest.raises(ArgumentError, match=r"must end in \.svg or \.png"):
        still.save(tmp_path / "one.pdf")


def test_a_data_frame_draws_the_same():
    about = {"machine": MACHINE, "title": "a run"}
    assert tile_timeline(timeline_rows(), **about) == tile_timeline(pd.DataFrame(timeline_rows()), **about)


def boxes(svg, colour):
    """Left, top, width and height of the boxes of a colour."""
    paths = "".join(re.findall(rf'<path d="([^"]*)" fill="{colour}"', svg))
    return [tuple(map(float, box)) for box in re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)", paths)]


def test_overlapping_transfers_are_drawn_one_below_the_other():
    svg, _ = timeline_svg(timeline_rows(), 100.0, 159.0)
    (_, top, _, height), (_, below, _, _) = boxes(svg, palette.STAGE_COLOURS["dma_in"])
    assert top + height <= below
    ((left, _, width, _),) = boxes(svg, palette.STAGE_COLOURS["gemm"])
    assert left == pytest.approx(64 + 576 * 43 / 59, abs=0.1)
    assert left + width == pytest.approx(640, abs=0.6)


def test_boxes_that_are_together_narrower_than_a_pixel_are_one():
    rows = [{"stage": "gemm", "start_ns": at, "end_ns": at + 0.4, "tile": 0} for at in (0.0, 0.5, 1.0, 576.0)]
    assert len(boxes(timeline_svg(rows, 0.0, 576.4)[0], palette.STAGE_COLOURS["gemm"])) == 3


def test_no_rows_is_an_error_that_says_so():
    with pytest.raises(ValueError, match="no rows to draw"):
        tile_timeline([], machine=MACHINE, title="a run")


def test_every_stage_has_a_colour_of_its_own():
    assert set(palette.STAGE_COLOURS) == set(ORDER)
    assert len(set(palette.STAGE_COLOURS.values())) == len(ORDER)


def test_a_map_shows_the_least_over_the_other_axes():
    table = pd.concat([TABLE.assign(z=1), TABLE.assign(z=2, latency_ns=TABLE["latency_ns"] * 2)])
    assert set(texts(figures.heat_map(table, ("x", "y"), "latency_ns", machine="m"))) >= {"101", "51", "26", "102"}
    assert "202" not in texts(figures.heat_map(table, ("x", "y"), "latency_ns", machine="m"))


def test_a_map_leaves_a_field_without_a_result_empty():
    assert "101" not in texts(figures.heat_map(TABLE[1:], ("x", "y"), "latency_ns", machine="m"))


def test_the_strongest_factor_is_on_top():
    found = texts(FIGURES["tornado"]())
    assert found.index("only up") < found.index("ucie")


def test_a_run_is_drawn_under_the_roofs_of_its_pes(run):
    found = texts(figures.roofline(run.records, name="a product"))
    at, roofs = placed(run.records, "a product")
    assert {"HBM 256 GB/s", "TCM 512 GB/s", "peak 8,192 Gflop/s", "HBM", "TCM", "Roofs of 1 PE."} <= set(found)
    assert f"a product: {at.gflops:,.0f} Gflop/s, {roofs.reached(at)}" in found


def test_the_peak_is_that_of_the_type_that_was_multiplied_most():
    machine = resolve_topology("preset:default")
    rows = [("gemm", 0, 10, 0, {"flops": 9}), ("gemm", 0, 10, 1, {"flops": 8}), ("load", 0, 10, 0, {"nbytes": 4})]
    commands = tuple(CommandInfo("gemm", 0, 0, pe, dtype=kind) for pe, kind in enumerate(("int8", "float16")))
    _, roofs = placed(replace(records_of(rows, spec=machine.config.to_spec()), commands=commands), "a run")
    assert roofs.peak_gflops == 2 * 2 * machine.config.cube.pe.pe_gemm.macs_per_cycle.i8


PLOTTED = {
    "stages": ("busy stages [ns]", ""),
    "timeline": ("time [ns]", ""),
    "roofline": ("flop per byte moved at the memory level", "rate [Gflop/s]"),
}


@pytest.mark.parametrize("kind", PLOTTED)
def test_a_result_fills_axes_of_the_user(kind, run):
    ax = Figure().subplots()
    assert run.plot(kind, ax=ax) is ax
    assert (ax.get_xlabel(), ax.get_ylabel()) == PLOTTED[kind]


def test_axes_show_the_busy_time_the_work_and_the_rate(run):
    stages, timeline, roofline = Figure().subplots(3)
    run.plot(ax=stages)
    assert [bar.get_width() for bar in stages.patches[::-1]] == [row["busy_ns"] for row in run.summary()]
    run.plot("timeline", ax=timeline)
    pieces = timeline_of(run.records, (0, 0, 0))
    drawn = [path.get_extents() for boxes in timeline.collections for path in boxes.get_paths()]
    assert sorted((box.x0, box.x1) for box in drawn) == sorted((x["start_ns"], x["end_ns"]) for x in pieces)
    run.plot("roofline", ax=roofline)
    at, roofs = placed(run.records, run.name)
    dots = [(line.get_xdata()[0], line.get_ydata()[0]) for line in roofline.lines if len(line.get_xdata()) == 1]
    assert dots == [(x, at.gflops) for x in at.intensities.values()]
    assert max(max(line.get_ydata()) for line in roofline.lines) == roofs.peak_gflops


def test_what_cannot_be_plotted_is_refused_in_words(run):
    ax = Figure().subplots()
    with pytest.raises(ConfigError, match="known: roofline, stages, timeline"):
        run.plot("rooflin", ax=ax)
    idle = Result(records_of([]), "nothing")
    for kind in ("timeline", "roofline"):
        with pytest.raises(StateError, match=r"^nothing(:| computed nothing)"):
            idle.plot(kind, ax=ax)
