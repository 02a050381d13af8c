"""Charts draw what their rows hold; at most five lines; three files each, with the same bytes every time."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kernbench.errors import ArgumentError, KernbenchError
from kernbench.topology.builder import resolve_topology
from kernbench.viz.charts import Chart, Column, bars, heat, lines, parts, points

MACHINE = resolve_topology("preset:small")
COLUMNS = {"n": Column("size", "B"), "t": Column("time", "ns"), "who": Column("algorithm"), "a": Column("matrix")}
ROWS = [
    {"n": 4**i, "t": float(4**i * (1 + k)), "who": f"w{k}", "sips": f"{s} SIPs", "a": 1.0, "b": 3.0}
    for i in range(4, 7)
    for k in range(7)
    for s in (2, 8)
]


def data_of(chart: Chart) -> list[dict]:
    spec = json.loads(chart.show(ROWS, COLUMNS, MACHINE).to_json())
    return next(iter(spec["datasets"].values()))


def test_at_most_the_five_best_lines_of_a_panel_are_drawn():
    chart = Chart("c", lines("n", "t", "who", panel="sips"), "title")
    drawn = {row["who"] for row in data_of(chart)}
    assert drawn == {f"w{k}" for k in range(5)}


def test_each_panel_draws_its_own_five_best_lines():
    rows = [
        {"n": n, "t": float(n * (k if side == "west" else 9 - k)), "who": f"w{k}", "side": side}
        for k in range(9)
        for side in ("west", "east")
        for n in (1, 2)
    ]
    spec = json.loads(lines("n", "t", "who", panel="side")(rows, COLUMNS, MACHINE).to_json())
    drawn = next(iter(spec["datasets"].values()))
    for side, best in (("west", range(5)), ("east", range(4, 9))):
        assert {row["who"] for row in drawn if row["side"] == side} == {f"w{k}" for k in best}


def test_a_line_is_labelled_once_at_its_last_point():
    chart = Chart("c", lines("n", "t", "who"), "title", where=lambda row: row["sips"] == "2 SIPs")
    labels = [(row["_label"], row["n"]) for row in data_of(chart) if row["_label"]]
    assert sorted(labels) == [(f"w{k}", 4**6) for k in range(5)]


def test_a_logarithmic_axis_has_its_ticks_at_the_values():
    rows = [{"q": q, "t": 1.0, "who": "w", "sips": ""} for q in (16, 32, 128)]
    spec = json.loads(Chart("c", lines("q", "t", "who"), "title").show(rows, COLUMNS, MACHINE).to_json())
    assert spec["layer"][0]["encoding"]["x"]["axis"]["values"] == [16, 32, 128]


@pytest.mark.parametrize(
    "draw", [lines("n", "t", "kib"), lines("n", "t", "kib", panel="kib"), bars("t", "n", by="kib")]
)
def test_series_may_be_named_by_numbers(draw):
    rows = [{"n": n, "t": float(n * kib), "kib": kib} for n in (4, 16) for kib in (1, 64)]
    chart = Chart("c", draw, "title")
    spec = chart.show(rows, COLUMNS, MACHINE).to_json()
    assert '"domain": [1, 64]' in json.dumps(json.loads(spec))


def test_bars_of_rows_that_nothing_tells_apart_are_refused():
    rows = [{"block": block, "t": t, "kib": kib} for block in (1, 2) for t, kib in ((199.0, 4), (751.0, 16))]
    with pytest.raises(ArgumentError, match=r"chart 'reads': 2 rows have block = 1: their bars would add up; give by="):
        Chart("reads", bars("t", "block"), "title").show(rows, COLUMNS, MACHINE)
    with pytest.raises(ArgumentError, match=r"2 rows have block = 1, kib = 4"):
        Chart("reads", bars("t", "block", by="kib"), "title").show([*rows, rows[0]], COLUMNS, MACHINE)
    for draw in (bars("t", "block", by="kib"), bars("t", "block", panel="kib")):
        assert Chart("reads", draw, "title").show(rows, COLUMNS, MACHINE)


def test_parts_sum_to_one():
    chart = Chart("c", parts("who", ["a", "b"]), "title", where=lambda row: row["n"] == 256 and row["sips"] == "2 SIPs")
    rows = data_of(chart)
    assert {(row["part"], row["share"]) for row in rows} == {("matrix", 0.25), ("b", 0.75)}


def test_small_parts_have_no_label_and_text_is_readable_on_its_part():
    row = {"who": "w", "big": 95.0, "small": 5.0}
    draw = parts("who", ["big", "small"], colours={"big": "#0072B2", "small": "#E69F00"})
    [drawn] = json.loads(draw([row], COLUMNS, MACHINE).to_json())["datasets"].values()
    assert [(part["label"], part["ink"]) for part in drawn] == [("95%", "white"), ("", "black")]


def test_panels_are_in_the_order_of_the_rows():
    rows = [{"n": 1, "t": 1.0, "who": "w", "side": side} for side in ("west", "east")]
    facet = bars("t", "who", panel="side")(rows, COLUMNS, MACHINE).to_dict()["facet"]
    assert facet["sort"] == ["west", "east"]


def test_a_long_logarithmic_axis_has_powers_of_ten_only():
    rows = [{"n": n, "t": t} for n, t in ((1, 3.0), (10_000, 8.0))]
    axes = points("n", "t", log_x=True, log_y=True)(rows, COLUMNS, MACHINE).to_dict()["layer"][0]["encoding"]
    assert {1, 10, 1000} <= set(axes["x"]["axis"]["values"])
    assert 500 not in axes["x"]["axis"]["values"]
    assert {2, 5} <= set(axes["y"]["axis"]["values"]), "an axis of less than a decade has lines, too"


@pytest.mark.parametrize(
    "draw",
    [lines("n", "t", "who"), bars("t", "who", by="n"), parts("who", ["a", "b"]), points("n", "t", label="who"),
     heat("n", "who", "t")],
)  # fmt: skip
def test_every_kind_is_written_the_same_twice(draw, tmp_path):
    chart = Chart("c", draw, lambda rows: f"{len(rows)} rows", where=lambda row: row["sips"] == "2 SIPs")
    written = []
    for folder in (tmp_path / "1", tmp_path / "2"):
        folder.mkdir()
        paths = chart.save(ROWS, COLUMNS, MACHINE, folder)
        assert [path.name for path in paths] == ["c.svg", "c.png", "c.vl.json"]
        written.append([path.read_bytes() for path in paths])
    assert written[0] == written[1]
    assert b"21 rows" in written[0][0]
    assert MACHINE.hash[:12].encode() in written[0][0]


def test_a_chart_without_rows_writes_nothing_and_refuses_to_show(tmp_path):
    chart = Chart("c", bars("t", "who"), "title", where=lambda row: False)
    assert chart.save(ROWS, COLUMNS, MACHINE, tmp_path) == []
    with pytest.raises(KernbenchError, match="c: no row to draw"):
        chart.show(ROWS, COLUMNS, MACHINE)


@pytest.mark.slow
def test_altair_comes_without_the_grammar_of_addresses():
    """The package that has it stays importable."""
    code = (
        "import sys; from kernbench.viz import charts; charts.altair(); "
        "print('jsonschema' in sys.modules, [name for name in sys.modules if name.startswith('rfc3987_syntax')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "True []"
