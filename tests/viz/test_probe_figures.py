from __future__ import annotations

import pytest

from kernbench.analysis.transfer import PARTS
from kernbench.viz.figure import save
from kernbench.viz.probe import parts, pattern_saturation, single_bandwidth

MACHINE = "0123456789abcdef"


def rows(kinds=("read", "write"), transfers=1):
    return [
        {
            "case": f"near-{kind}", "kind": kind, "transfers": transfers, "nbytes": n, "bandwidth_gbs": n / 30,
            "alone_ns": 30.0, "path_gbs": 256.0, "fair_gbs": 300.0, "fair_utilization": n / 9000,
            **{f"{part}_ns": 5.0 for part in PARTS},
        }
        for kind in kinds
        for n in (4096, 8192)
    ]  # fmt: skip


FIGURES = {
    "single": lambda: single_bandwidth(rows(), machine=MACHINE),
    "patterns": lambda: pattern_saturation(rows(transfers=8), machine=MACHINE),
    "parts alone": lambda: parts(rows(), machine=MACHINE, title="t"),
    "parts together": lambda: parts(rows(transfers=8), machine=MACHINE, title="t"),
}


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES)
def test_units_and_machine_are_in_the_figure(draw, tmp_path):
    figure = draw()
    said = " ".join(texts(figure))
    assert "0123456789ab" in said
    assert "n = 4" in said
    assert "[GB/s]" in said or "[ns]" in said
    assert save(figure, tmp_path / "a.png").read_bytes() == save(draw(), tmp_path / "b.png").read_bytes()


def test_one_panel_for_each_kind():
    assert len(single_bandwidth(rows(), machine=MACHINE).axes) == 2
    assert len(single_bandwidth(rows(("read",)), machine=MACHINE).axes) == 1


def test_bars_end_at_the_sum_of_their_parts():
    [alone] = parts(rows(), machine=MACHINE, title="t").axes
    assert max(bar.get_x() + bar.get_width() for bar in alone.patches) == pytest.approx(30)
    alone, together = parts(rows(transfers=8), machine=MACHINE, title="t").axes
    assert max(bar.get_x() + bar.get_width() for bar in alone.patches) == pytest.approx(25)
    assert max(bar.get_x() + bar.get_width() for bar in together.patches) == pytest.approx(30)


def test_sizes_are_ticks():
    assert {"4 KiB", "8 KiB"} <= set(texts(single_bandwidth(rows(), machine=MACHINE)))
