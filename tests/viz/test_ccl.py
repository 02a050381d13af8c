"""Figures of the collectives study, on tables that are made up."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.viz import ccl, ccl_slices

HASH = "0123456789abcdef"


def row(**changes):
    made = {
        "contribution": "rank", "algorithm": "ring", "sip_topology": "ring_1d", "n_sips": 4, "bytes_per_pe": 1024,
        "latency_ns": 200.0, "bound_ns": 100.0, "closed_form_ns": 180.0, "busbw_gbs": 5.0,
        "buffer_kind": "tcm", "root_cube": 0, "n_slots": 4, "slot_size": 4096, "what": "nothing", "bytes_per_sip": 1024,
    }  # fmt: skip
    return made | changes


def texts(figure):
    return " ".join(text.get_text() for axes in figure.axes for text in axes.texts)


def test_a_panel_for_each_number_and_shape_of_sips():
    rows = [row(n_sips=n, sip_topology=shape) for n, shape in ((2, "ring_1d"), (16, "torus_2d"), (16, "ring_1d"))]
    figure = ccl.latency_by_size(rows, machine=HASH)
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.axison]
    assert titles == ["2 SIPs, ring_1d", "16 SIPs, ring_1d", "16 SIPs, torus_2d"]
    assert "machine 0123456789ab" in figure._supxlabel.get_text()


def test_a_crossover_lies_where_the_lines_meet():
    rows = [
        row(algorithm="a", bytes_per_pe=64, latency_ns=100.0),
        row(algorithm="b", bytes_per_pe=64, latency_ns=200.0),
        row(algorithm="a", bytes_per_pe=1024, latency_ns=800.0),
        row(algorithm="b", bytes_per_pe=1024, latency_ns=400.0),
    ]
    [(nbytes, before, after)] = ccl.crossovers(rows)
    assert (before, after) == ("a", "b")
    assert nbytes == pytest.approx(256)  # both twice as fast at one end: half way on log axes
    assert "256 B: b" in texts(ccl.busbw_by_size(rows, machine=HASH, link_gbs=128))
    assert ccl.crossovers(rows[:2]) == []


def test_an_algorithm_that_is_missing_at_a_size_makes_no_crossover():
    rows = [row(algorithm="a", bytes_per_pe=64), row(algorithm="b", bytes_per_pe=1024)]
    assert ccl.crossovers(rows) == []


def test_kinds_are_drawn_over_tcm():
    rows = [row(buffer_kind=kind, latency_ns=t) for kind, t in (("tcm", 100.0), ("hbm", 130.0))]
    _upper, lower = ccl_slices.buffer_kinds(rows, machine=HASH).axes
    assert [line.get_ydata()[0] for line in lower.lines] == [1.0, 1.3]


def test_roots_lie_on_the_mesh():
    rows = [row(root_cube=cube, latency_ns=100.0 + cube) for cube in range(4)]
    figure = ccl_slices.root_placement(rows, machine=HASH, cube_columns=2)
    assert figure.axes[0].images[0].get_array().tolist() == [[100, 101], [102, 103]]
    assert "cube 3\n103\n+3.0%" in [text.get_text() for text in figure.axes[0].texts]


def test_limits_are_drawn_as_growth():
    rows = [row(what=what, latency_ns=t) for what, t in (("nothing", 100.0), ("slots", 150.0), ("HBM", 100.0))]
    bars = ccl_slices.limits(rows, machine=HASH).axes[0].patches
    assert [bar.get_height() for bar in bars] == pytest.approx([0.5, 0.0])


def test_scaling_and_slots_draw_bounds():
    counts = [row(n_sips=n, latency_ns=100.0 * n) for n in (2, 4)]
    upper = ccl_slices.scaling(counts, machine=HASH).axes[0]
    assert [line.get_label() for line in upper.lines if line.get_label()[0] != "_"] == ["bound", "ring"]
    axes = ccl_slices.slots([row(n_slots=n) for n in (2, 4)], machine=HASH).axes[0]
    assert [line.get_label() for line in axes.lines][-1] == "lower bound"


def test_published_marks_stand_beside():
    marks = [{"bytes_per_pe": 1024, "buffer_kind": "tcm", "latency_us": 2.0, "source": "published"}]
    axes = ccl_slices.published_marks([row()], marks, machine=HASH, note="x").axes[0]
    assert axes.lines[-1].get_label() == "published, tcm"


def test_topologies_draw_every_link():
    machines = {name: kb.load("preset:default", {"system.sips.count": 6, **more}) for name, more in (
        ("ring", {}),
        ("torus", {"system.sips.topology": "torus_2d", "system.sips.w": 3, "system.sips.h": 2}),
    )}  # fmt: skip
    figure = ccl.topologies(machines, machine=HASH)
    assert [len([t for t in axes.texts if not t.get_text()]) for axes in figure.axes] == [6, 9]
