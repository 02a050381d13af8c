"""Figures of a design space: what they show is what the table says, with equal bytes for equal tables."""

from __future__ import annotations

import pandas as pd
import pytest

from kernbench.sweeps.sensitivity import pareto
from kernbench.viz import sweeps
from kernbench.viz.figure import save

TABLE = pd.DataFrame(
    [{"x": x, "y": y, "latency_ns": 100.0 / x + y, "area_mm2": 10.0 * x * y} for x in (1, 2, 4) for y in (1, 2)]
)
RANKED = pd.DataFrame(
    [
        {"factor": "ucie", "down_pct": 25.0, "up_pct": -17.0},
        {"factor": "only up", "down_pct": None, "up_pct": -40.0},
    ]
)


def figures():
    front = pareto(TABLE, ["area_mm2", "latency_ns"])
    return {
        "front": sweeps.pareto_front(TABLE, front, ("area_mm2", "latency_ns"), machine="m" * 64, label=["x", "y"]),
        "map": sweeps.heat_map(TABLE, ("x", "y"), "latency_ns", machine="m" * 64),
        "tornado": sweeps.tornado(RANKED, "latency_ns", machine="m" * 64),
    }


def test_titles_say_what_ran_and_axes_their_units():
    about = {"machine": "m", "of": "a layer"}
    front = sweeps.pareto_front(TABLE, TABLE[:2], ("area_mm2", "latency_ns"), **about)
    (axes,) = front.axes
    assert front.get_suptitle() == "Latency against area: a layer"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("area [mm2]", "latency [ns]")
    heat = sweeps.heat_map(TABLE, ("x", "y"), "latency_ns", **about)
    assert heat.get_suptitle() == "Latency [ns] by y and x: a layer"
    assert heat.axes[1].get_ylabel() == "latency [ns]"
    tornado = sweeps.tornado(RANKED, "latency_ns", **about)
    assert tornado.get_suptitle() == "What moves the latency: a layer"
    assert tornado.axes[0].get_xlabel() == "change of latency [%]"


@pytest.mark.parametrize("name", ["front", "map", "tornado"])
def test_equal_tables_give_equal_bytes_and_a_caption(name, tmp_path):
    one, two = (save(figures()[name], tmp_path / f"{i}.png").read_bytes() for i in (1, 2))
    assert one == two
    assert "machine mmmmmmmmmmmm" in figures()[name].get_supxlabel()


def test_a_map_shows_the_least_over_the_other_axes():
    table = pd.concat([TABLE.assign(z=1), TABLE.assign(z=2, latency_ns=TABLE["latency_ns"] * 2)])
    (axes, _) = sweeps.heat_map(table, ("x", "y"), "latency_ns", machine="m").axes
    assert [t.get_text() for t in axes.texts] == ["101", "51", "26", "102", "52", "27"]


def test_a_map_leaves_a_field_without_a_result_empty():
    (axes, _) = sweeps.heat_map(TABLE[1:], ("x", "y"), "latency_ns", machine="m").axes
    assert len(axes.texts) == 5


def test_the_strongest_factor_stands_on_top():
    (axes,) = sweeps.tornado(RANKED, "latency_ns", machine="m").axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["ucie", "only up"]
    assert sorted(round(bar.get_width()) for bar in axes.patches) == [-40, -17, 0, 25]
