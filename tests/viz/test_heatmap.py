from __future__ import annotations

import numpy as np
import pytest

from kernbench.analysis._records import LinkTable
from kernbench.analysis.utilization import hottest, shares
from kernbench.topology.builder import resolve_topology
from kernbench.viz.figures import save
from kernbench.viz.heatmap import Plan, link_heatmap

DEFAULT = resolve_topology("preset:default")
LARGE = resolve_topology("preset:large")


def texts(figure):
    return " ".join(text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text")))


def test_every_link_has_a_place_of_its_own():
    small = resolve_topology("preset:small")
    plan = Plan(small, list(range(small.config.n_sips)))
    lines = [tuple(plan.line(f"{edge.src}->{edge.dst}")) for edge in small.graph.edges()]
    assert len(set(lines)) == len(lines)


def test_a_link_is_as_long_as_on_the_die_and_traffic_keeps_right():
    plan = Plan(DEFAULT, [0])
    (ax, ay), (bx, by) = plan.line("sip0.cube0.r0c0->sip0.cube0.r0c1")
    assert bx - ax == pytest.approx(3.0)
    (_, cy), _ = plan.line("sip0.cube0.r0c1->sip0.cube0.r0c0")
    assert cy < ay == by  # y runs south: going east, the right hand is in the south


def test_the_hottest_link_is_named_and_the_first_of_equals():
    share = {"sip0.cube10.r0c0->sip0.cube10.r0c1": 0.5, "sip0.cube9.r0c0->sip0.cube9.r0c1": 0.5, "host->switch": 0.1}
    assert hottest(share) == "sip0.cube9.r0c0->sip0.cube9.r0c1"
    said = texts(link_heatmap(share, DEFAULT, title="a run"))
    assert "hottest: sip0.cube9.r0c0->sip0.cube9.r0c1 and 1 more, busy 50.0%" in said
    assert DEFAULT.hash[:12] in said
    assert "host" in said.split()


def test_shares_are_of_the_whole_time_and_idle_links_are_none():
    table = LinkTable(("a->b", "b->a"), busy_ps=np.array([250, 0]))
    assert shares(table, 1000) == {"a->b": 0.25}
    assert shares(table, 0) == {}


@pytest.mark.slow
def test_of_many_sips_the_busiest_are_drawn():
    share = {f"sip{s}.io.noc->sip{s}.io.ucie_r0.conn0": s / 10 for s in range(1, 7)}
    said = texts(link_heatmap(share, LARGE, title="a run"))
    assert {"SIP 3", "SIP 4", "SIP 5", "SIP 6"} <= {f"SIP {s}" for s in range(64) if f"SIP {s} " in said + " "}
    assert "2 SIPs with less traffic not drawn" in said
    assert "SIP 1 " not in said + " "


@pytest.mark.slow
def test_equal_runs_give_equal_bytes(tmp_path):
    share = {"sip0.cube0.r0c0->sip0.cube0.r0c1": 0.5}
    one, two = (save(link_heatmap(share, DEFAULT, title="t"), tmp_path / f"{i}.png") for i in range(2))
    assert one.read_bytes() == two.read_bytes()


def test_nothing_to_draw_is_an_error():
    with pytest.raises(ValueError, match="nothing to draw"):
        link_heatmap({}, DEFAULT, title="t")
