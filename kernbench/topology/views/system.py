"""The system view: host, switch, SIPs and the links between them."""

from __future__ import annotations

from math import ceil, cos, pi, sin, sqrt

from kernbench.topology import naming
from kernbench.topology.graph import Graph
from kernbench.topology.views.shapes import Box, Line, Point, View, between, ns, rate

_W, _H = 3.0, 1.6  # a SIP
_GAP = 1.8
_TOP = 5.0  # below host and switch


def system_view(graph: Graph) -> View:
    """Return the system view: SIPs on their grid, rings folded into rows, fully connected ones on a circle."""
    config, sips = graph.blocks.config, graph.sips
    places = _places(graph)
    width = max(x for x, _ in places) + _W + _GAP
    height = max(y for _, y in places) + _H + _GAP
    middle = width / 2
    pcie_out = graph.edge(naming.SWITCH, naming.pcie_ep(0))
    up = graph.edge(naming.HOST, naming.SWITCH)
    switch_ns = f"{config.system.switch.overhead_ns:g} ns"
    host = Box(naming.HOST, "host", middle - 1.5, 0.4, 3.0, 1.0, "host")
    switch = Box(naming.SWITCH, "switch", middle - 1.5, 2.4, 3.0, 1.0, "PCIe switch", (switch_ns,))
    detail = (f"{config.cubes_per_sip} cubes", f"{config.pes_per_sip} PEs")
    boxes = [Box(naming.sip(s), "sip", x, y, _W, _H, f"SIP {s}", detail) for s, (x, y) in enumerate(places)]
    lines = [Line(host.id, switch.id, "host", between(host, switch), up.bw_gbs, rate(up.bw_gbs))]
    pcie_label = f"{rate(pcie_out.bw_gbs)}, {config.system.pcie.latency_ns:g} ns"

    def down(box: Box) -> tuple[Point, ...]:
        if sips.topology == "fully_connected":
            return between(switch, box)
        bus, lane, entry = _TOP - 0.8, box.x - _GAP / 3, box.y + _H / 4
        return (middle, switch.y + switch.h), (middle, bus), (lane, bus), (lane, entry), (box.x, entry)

    for s, box in enumerate(boxes):
        lines.append(Line(switch.id, box.id, "pcie", down(box), pcie_out.bw_gbs, "" if s else pcie_label))
    labelled = False
    for s, box in enumerate(boxes):
        for other, side in sips.neighbours[s].items():
            if other < s:
                continue
            link = graph.edge(naming.io_noc(s), naming.io_noc(other))
            label = "" if labelled else f"{rate(link.bw_gbs)}, {ns(link.latency_ps)}"
            straight = not side or _beside(box, boxes[other])
            points = between(box, boxes[other]) if straight else _around(box, boxes[other])
            lines.append(Line(box.id, boxes[other].id, "sip", points, link.bw_gbs, label))
            labelled = True
    title = f"System: {sips.count} SIP{'s' * (sips.count > 1)}"
    if sips.count > 1:
        title += f", {sips.topology}"
    return View("system", title, width, height, "", (host, switch, *boxes), tuple(lines))


def _places(graph: Graph) -> list[Point]:
    """Return the north-west corner of each SIP."""
    sips = graph.sips
    pitch_x, pitch_y = _W + _GAP, _H + _GAP
    if sips.topology == "fully_connected" and sips.count > 2:
        radius = max(pitch_x, pitch_x * sips.count / (2 * pi))
        angles = [2 * pi * s / sips.count - pi / 2 for s in range(sips.count)]
        return [(_GAP + radius * (1 + cos(a)), _TOP + radius * (1 + sin(a))) for a in angles]
    per_row = sips.w if sips.h > 1 else ceil(sqrt(sips.count)) if sips.count > 6 else sips.count
    places = []
    for s in range(sips.count):
        row, col = divmod(s, per_row)
        if sips.topology == "ring_1d" and row % 2:
            col = per_row - 1 - col  # back again, so that neighbours on the ring stay neighbours on paper
        places.append((_GAP + col * pitch_x, _TOP + row * pitch_y))
    return places


def _beside(a: Box, b: Box) -> bool:
    return abs(a.x - b.x) + abs(a.y - b.y) < max(_W, _H) + 1.1 * _GAP


def _around(a: Box, b: Box) -> tuple[Point, ...]:
    """Return a line from `a` to a later SIP `b`, clear of those between them: under its row or beside its column."""
    (ax, ay), (bx, by) = a.centre, b.centre
    under, beside = b.y + b.h + _GAP / 4, a.x + a.w + _GAP / 4
    # Off the middle of a side, where the link to the next SIP ends.
    if a.y == b.y:
        ax, bx = ax + a.w / 4, bx - b.w / 4
        return (ax, a.y + a.h), (ax, under), (bx, under), (bx, b.y + b.h)
    if a.x == b.x:
        ay, by = ay + a.h / 4, by - b.h / 4
        return (a.x + a.w, ay), (beside, ay), (beside, by), (b.x + b.w, by)
    west = a.x - _GAP / 1.5
    return (a.x, ay), (west, ay), (west, under), (bx, under), (bx, b.y + b.h)
