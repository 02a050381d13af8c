"""Geometry of the four views of a machine, with the labels to put on it. Drawing is `viz`'s business."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, cos, pi, sin, sqrt

from kernbench._registry import hint
from kernbench._units import GIB, ps_to_ns
from kernbench.errors import ArgumentError
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Graph
from kernbench.topology._mesh import STEP, At

__all__ = ["Box", "Line", "View", "Views"]


Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Box:
    """A labelled rectangle."""

    id: str
    kind: str
    x: float
    y: float
    w: float
    h: float
    label: str
    detail: tuple[str, ...] = ()
    holds: bool = False

    @property
    def centre(self) -> Point:
        """Where lines to the box end."""
        return self.x + self.w / 2, self.y + self.h / 2


@dataclass(frozen=True, slots=True)
class Line:
    """A link between two boxes, or several links drawn as one."""

    src: str
    dst: str
    kind: str
    points: tuple[Point, ...]
    bw_gbs: float | None
    label: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """One drawing."""

    name: str
    title: str
    width: float
    height: float
    unit: str
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()


def between(a: Box, b: Box) -> tuple[Point, ...]:
    """Return the straight line between two boxes' centres, cut at their borders."""
    return _leave(a, b.centre), _leave(b, a.centre)


def rate(bw_gbs: float, links: int = 1) -> str:
    """Return a bandwidth as text.

    >>> rate(128, 4)
    '4 x 128 GB/s'
    """
    return f"{links} x {bw_gbs:g} GB/s" if links > 1 else f"{bw_gbs:g} GB/s"


def ns(ps: int) -> str:
    """Return a time as text."""
    return f"{ps_to_ns(ps):g} ns"


def _leave(box: Box, towards: Point) -> Point:
    x, y = box.centre
    dx, dy = towards[0] - x, towards[1] - y
    reach = min(
        (size / 2 / abs(step) for size, step in ((box.w, dx), (box.h, dy)) if step),
        default=0.0,
    )
    reach = min(reach, 1.0)
    return x + dx * reach, y + dy * reach


_PART_W, _PART_H = 3.6, 1.5
_PITCH_X, _PITCH_Y = 5.8, 3.0


def pe_view(graph: Graph) -> View:
    """Return the PE view. It shows PE 0 of cube 0 of SIP 0."""
    config, layout = graph.config, graph.layout
    cube, pe = config.cube, config.cube.pe
    gemm, math, tcm, ipcq, dma = pe.pe_gemm, pe.pe_math, pe.pe_tcm, pe.pe_ipcq, pe.pe_dma
    array, f16 = gemm.systolic, gemm.macs
    engine = f"{array.rows} x {array.cols} array" if gemm.model == "systolic" else f"{f16} MAC/cycle f16"
    ports = f"{tcm.read_bw_gbs:g} / {tcm.write_bw_gbs:g} GB/s"
    size = f"{gemm.tile.m} x {gemm.tile.k} x {gemm.tile.n}"
    slice_gib = cube.hbm.slice_bytes(len(layout.pes)) / GIB
    channels = f"{cube.hbm.channels} x {rate(cube.hbm.channel_bw_gbs)}"
    # (column, row) of a grid: control on top, data from the network on the left to the engines on the right.
    parts: dict[str, tuple[int, int, tuple[str, ...]]] = {
        "hbm_ctrl": (0, 2, ("HBM slice", f"{slice_gib:g} GiB", channels)),
        "router": (0, 1, ("router " + naming.router(0, 0, *layout.pes[0]).rsplit(".", 1)[1], "to the mesh")),
        "pe_cpu": (1, 0, ("PE_CPU", f"{pe.pe_cpu.command_ns:g} ns a command")),
        "pe_scheduler": (2, 0, ("PE_SCHEDULER", f"{pe.pe_scheduler.tile_ns:g} ns a tile")),
        "pe_dma": (1, 1, ("PE_DMA", f"{dma.outstanding_reads} reads,", f"{dma.outstanding_writes} writes at once")),
        "pe_mmu": (1, 2, ("PE_MMU", f"{pe.pe_mmu.lookup_ns:g} ns a look-up")),
        "pe_ipcq": (2, 2, ("PE_IPCQ", f"{ipcq.n_slots} slots x {ipcq.slot_bytes} B")),
        "pe_tcm": (2, 1, ("PE_TCM", f"{tcm.size_mb:g} MiB, {tcm.tile_buffer_mb:g} for tiles", f"ports {ports}")),
        "pe_fetch_store": (3, 1, ("PE_FETCH_STORE",)),
        "pe_gemm": (4, 0, ("PE_GEMM", f"{engine}, {gemm.clock_ghz:g} GHz", f"tile {size}")),
        "pe_math": (4, 2, ("PE_MATH", f"{math.lanes_16bit} lanes of 16 bit", f"{math.clock_ghz:g} GHz")),
    }
    network = {"hbm_ctrl": naming.hbm(0, 0, 0), "router": naming.router(0, 0, *layout.pes[0])}
    boxes = {}
    for part, (col, row, (label, *detail)) in parts.items():
        node_id = network.get(part, naming.pe_part(0, 0, 0, part))
        boxes[part] = Box(
            node_id, part, 0.6 + col * _PITCH_X, 0.6 + row * _PITCH_Y, _PART_W, _PART_H, label, tuple(detail)
        )
    links: tuple[tuple[str, str, float | None, str], ...] = (
        ("router", "hbm_ctrl", cube.hbm.bw_gbs, rate(cube.hbm.bw_gbs)),
        ("router", "pe_dma", pe.pe_dma.bw_gbs, rate(pe.pe_dma.bw_gbs)),
        ("router", "pe_cpu", pe.pe_cpu.bw_gbs, rate(pe.pe_cpu.bw_gbs)),
        ("pe_cpu", "pe_scheduler", None, "commands"),
        ("pe_scheduler", "pe_dma", None, ""),
        ("pe_scheduler", "pe_fetch_store", None, "tiles"),
        ("pe_mmu", "pe_dma", None, "addresses"),
        ("pe_ipcq", "pe_dma", None, "queues"),
        ("pe_dma", "pe_tcm", None, ""),
        ("pe_tcm", "pe_fetch_store", tcm.read_bw_gbs, ""),
        ("pe_fetch_store", "pe_gemm", None, ""),
        ("pe_fetch_store", "pe_math", None, ""),
        ("pe_gemm", "pe_math", None, "accumulators"),
    )
    lines = tuple(
        Line(boxes[a].id, boxes[b].id, "inside", between(boxes[a], boxes[b]), bw, label) for a, b, bw, label in links
    )
    width, height = 1.2 + 4 * _PITCH_X + _PART_W, 1.2 + 2 * _PITCH_Y + _PART_H
    note = "TCM ports: read / write; PE_IPCQ sends over the link of PE_DMA"
    return View("pe", "PE", width, height, "", tuple(boxes.values()), lines, (note,))


# In pitches: sizes of parts of the die, and the distance of the ports from the outer routers.
_ROUTER, _PE_W, _PE_H, _SMALL, _PORT = 0.2, 0.6, 0.26, 0.36, 0.2
_MARGIN = 0.5


def cube_view(graph: Graph) -> View:
    """Return the cube view. It shows cube 0 of SIP 0."""
    config, layout = graph.config, graph.layout
    cube, pitch = config.cube, graph.layout.pitch_mm
    margin = _MARGIN * pitch

    def box(node_id: str, kind: str, x: float, y: float, w: float, h: float, label: str, *detail: str) -> Box:
        """Return a box with its middle at (x, y) of the die."""
        return Box(node_id, kind, margin + x - w / 2, margin + y - h / 2, w, h, label, detail)

    routers = {
        at: box(
            naming.router(0, 0, *at), "router", *layout.position_mm(at), _ROUTER * pitch, _ROUTER * pitch, _name(at)
        )
        for at in layout.routers
    }
    boxes = list(routers.values())
    lines = []
    for at, router in routers.items():
        for side in ("e", "s"):
            neighbour = layout.neighbour(at, side)
            if neighbour is not None:
                points = between(router, routers[neighbour])
                lines.append(Line(router.id, routers[neighbour].id, "noc", points, cube.noc.link_bw_gbs))

    def attach(part: Box, at: At, bw_gbs: float, label: str = "") -> None:
        boxes.append(part)
        lines.append(Line(part.id, routers[at].id, "attach", between(part, routers[at]), bw_gbs, label))

    slice_gib = f"HBM slice {cube.hbm.slice_bytes(len(layout.pes)) / GIB:g} GiB"
    for pe, at in enumerate(layout.pes):
        x, y = layout.position_mm(at)
        # In the space between four routers, on the side of the die's middle.
        x += 0.5 * pitch * (1 if at[1] < layout.cols / 2 else -1)
        y += 0.36 * pitch * (1 if at[0] < layout.rows / 2 else -1)
        part = box(naming.pe(0, 0, pe), "pe", x, y, _PE_W * pitch, _PE_H * pitch, f"pe{pe}", slice_gib)
        attach(part, at, cube.pe.pe_dma.bw_gbs, "" if pe else rate(cube.pe.pe_dma.bw_gbs))
    for (side, conn), at in layout.ports.items():
        x, y = layout.position_mm(at)
        x, y = x + STEP[side][1] * 0.42 * pitch, y + STEP[side][0] * 0.42 * pitch
        port = box(naming.ucie(0, 0, side, conn), "ucie", x, y, _PORT * pitch, _PORT * pitch, f"{side.upper()}{conn}")
        attach(port, at, cube.ucie.router_bw_gbs)
    m_cpu, sram = cube.m_cpu, cube.sram
    for node_id, at, pos, label, bw_gbs, detail in (
        (naming.m_cpu(0, 0), layout.m_cpu, m_cpu.pos_mm, "M_CPU", m_cpu.bw_gbs, f"{m_cpu.service_ns:g} ns"),
        (naming.sram(0, 0), layout.sram, sram.pos_mm, "SRAM", sram.bw_gbs, f"{sram.size_mib:g} MiB"),
    ):
        # The router's side of the box is at pos.
        y = pos[1] + _PE_H * pitch / 2 * (-1 if pos[1] < layout.position_mm(at)[1] else 1)
        attach(box(node_id, label.lower(), pos[0], y, _SMALL * pitch, _PE_H * pitch, label, detail), at, bw_gbs)
    ports = f"router to port {rate(cube.ucie.router_bw_gbs)}, port to port {rate(cube.ucie.flit_gbs)}"
    hop = f"{cube.noc.router.overhead_ns:g} ns a router, {pitch * cube.propagation_ns_per_mm:g} ns of wire"
    notes = (
        f"NoC: {rate(cube.noc.link_bw_gbs)} each way, {hop} a hop of {pitch:g} mm",
        f"To their routers: PEs {rate(cube.pe.pe_dma.bw_gbs)}, M_CPU {rate(m_cpu.bw_gbs)}, SRAM {rate(sram.bw_gbs)}",
        f"UCIe: {ports}, {cube.ucie.port_ns:g} ns a port",
        f"HBM: {cube.hbm.channels} pseudo channels x {rate(cube.hbm.channel_bw_gbs)} a slice, at its PE's router",
    )
    boxes = [*_stack(graph, margin), *boxes]
    width, height = layout.cols * pitch + 2 * margin, layout.rows * pitch + 2 * margin
    title = f"Cube: {layout.rows} x {layout.cols} routers, {len(layout.pes)} PEs"
    return View("cube", title, width, height, "mm", tuple(boxes), tuple(lines), notes)


def _name(at: At) -> str:
    return f"r{at[0]}c{at[1]}"


def _stack(graph: Graph, margin: float) -> list[Box]:
    """Return the HBM stack where the removed routers leave a rectangle free, else a box for each of them."""
    config, pitch = graph.config, graph.layout.pitch_mm
    removed = sorted({(r, c) for r, c in config.cube.noc.removed})
    if not removed:
        return []
    rows, cols = [r for r, _ in removed], [c for _, c in removed]
    high, wide = max(rows) - min(rows) + 1, max(cols) - min(cols) + 1
    if high * wide == len(removed):
        x, y = margin + min(cols) * pitch, margin + min(rows) * pitch
        size = f"{config.cube.hbm.size_gib:g} GiB"
        inset = 0.1 * pitch
        w, h = wide * pitch - 2 * inset, high * pitch - 2 * inset
        return [Box("sip0.cube0.hbm", "hbm", x + inset, y + inset, w, h, "HBM stack", (size,))]
    return [
        Box(f"sip0.cube0.removed.{_name((r, c))}", "hbm", margin + c * pitch, margin + r * pitch, pitch, pitch, "")
        for r, c in removed
    ]


_CUBE, _SIP_GAP = 2.4, 2.0
_IO_W = 3.2


def sip_view(graph: Graph) -> View:
    """Return the SIP view. It shows SIP 0."""
    config, layout = graph.config, graph.layout
    w, h = graph.w, graph.h
    io, ucie = config.sip.io, config.cube.ucie
    height = h * (_CUBE + _SIP_GAP) + _SIP_GAP
    west = _SIP_GAP + _IO_W + _SIP_GAP
    shore = Box("sip0.io", "io", _SIP_GAP, _SIP_GAP / 2, _IO_W, height - _SIP_GAP, "IO chiplet", holds=True)
    inside = (
        (naming.pcie_ep(0), "pcie_ep", "PCIe end point", f"{io.pcie_ep.overhead_ns:g} ns"),
        (naming.io_noc(0), "io_noc", "IO NoC", f"{rate(io.noc.port_bw_gbs)}, {io.noc.overhead_ns:g} ns"),
        (naming.io_cpu(0), "io_cpu", "IO CPU", f"{io.io_cpu.service_ns:g} ns a launch"),
    )
    part_h = 0.9
    room = (shore.h - 0.8) / len(inside)
    parts = [
        Box(
            node_id, kind, shore.x + 0.3, shore.y + 0.8 + i * room + (room - part_h) / 2,
            _IO_W - 0.6, part_h, label, (detail,),
        )
        for i, (node_id, kind, label, detail) in enumerate(inside)
    ]  # fmt: skip
    detail = (
        f"{len(layout.pes)} PEs",
        f"{config.cube.hbm.size_gib:g} GiB HBM",
        f"{config.cube.sram.size_mib:g} MiB SRAM",
    )
    cubes = [
        Box(
            naming.cube(0, c), "cube", west + c % w * (_CUBE + _SIP_GAP), _SIP_GAP + c // w * (_CUBE + _SIP_GAP),
            _CUBE, _CUBE, f"cube {c}", detail,
        )
        for c in range(w * h)
    ]  # fmt: skip
    pcie_ep, noc, io_cpu = parts
    port = config.sip.io.noc.port_bw_gbs
    lines = [
        Line(pcie_ep.id, noc.id, "noc", between(pcie_ep, noc), port),
        Line(io_cpu.id, noc.id, "noc", between(io_cpu, noc), port),
    ]
    links, crossing = ucie.connections, rate(ucie.flit_gbs, ucie.connections)
    for row in range(h):
        cube = cubes[row * w]
        y = cube.centre[1]
        points = ((shore.x + shore.w, y), (cube.x, y))
        lines.append(Line(shore.id, cube.id, "ucie", points, links * ucie.flit_gbs, "" if row else crossing))
    for c, cube in enumerate(cubes):
        for side in ("e", "s"):
            row, col = c // w + STEP[side][0], c % w + STEP[side][1]
            if row < h and col < w:
                other = cubes[row * w + col]
                label = crossing if (c, side) == (0, "e") else ""
                lines.append(Line(cube.id, other.id, "ucie", between(cube, other), links * ucie.flit_gbs, label))
    port_ps = graph.node(naming.ucie(0, 0, "w", 0)).overhead_ps
    note = f"UCIe: {crossing} each way between neighbours, {ns(port_ps)} a port, {ns(2 * port_ps)} a crossing"
    title = f"SIP: {w} x {h} cubes, {w * h * len(layout.pes)} PEs"
    return View("sip", title, west + w * (_CUBE + _SIP_GAP), height, "", (shore, *parts, *cubes), tuple(lines), (note,))


_W, _H = 3.0, 1.6  # a SIP
_GAP = 1.8
_TOP = 5.0  # below host and switch


def system_view(graph: Graph) -> View:
    """Return the system view: SIPs on their grid, rings folded into rows, fully connected ones on a circle."""
    config, sips = graph.config, graph.sips
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
            straight = not side or _adjacent(box, boxes[other])
            points = between(box, boxes[other]) if straight else _around(box, boxes[other])
            lines.append(Line(box.id, boxes[other].id, "sip", points, link.bw_gbs, label))
            labelled = True
    title = f"System: {sips.count} SIP{'s' * (sips.count > 1)}"
    if sips.count > 1:
        title += f", {sips.topology}" + (f" {sips.w} x {sips.h}" if sips.h > 1 else "")
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


def _adjacent(a: Box, b: Box) -> bool:
    return abs(a.x - b.x) + abs(a.y - b.y) < max(_W, _H) + 1.1 * _GAP


def _around(a: Box, b: Box) -> tuple[Point, ...]:
    """Return a line from `a` to a later SIP `b`, clear of those between them: under its row or next to its column."""
    (ax, ay), (bx, by) = a.centre, b.centre
    under, right = b.y + b.h + _GAP / 4, a.x + a.w + _GAP / 4
    # Off the middle of a side, where the link to the next SIP ends.
    if a.y == b.y:
        ax, bx = ax + a.w / 4, bx - b.w / 4
        return (ax, a.y + a.h), (ax, under), (bx, under), (bx, b.y + b.h)
    if a.x == b.x:
        ay, by = ay + a.h / 4, by - b.h / 4
        return (a.x + a.w, ay), (right, ay), (right, by), (b.x + b.w, by)
    west = a.x - _GAP / 1.5
    return (a.x, ay), (west, ay), (west, under), (bx, under), (bx, b.y + b.h)


_VIEWS = {"system": system_view, "sip": sip_view, "cube": cube_view, "pe": pe_view}


class Views:
    """The four views of one machine, by name: system, sip, cube, pe. Each is made when first asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[str, View] = {}

    def __getitem__(self, name: str) -> View:
        if name not in _VIEWS:
            raise ArgumentError(f"no view is called {name!r}; {hint(name, _VIEWS)}")
        if name not in self._made:
            self._made[name] = _VIEWS[name](self._graph)
        return self._made[name]

    def __iter__(self) -> Iterator[View]:
        return (self[name] for name in _VIEWS)
