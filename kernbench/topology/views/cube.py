"""The cube view: routers, PEs, ports, CPU and SRAM on the die, to scale in mm."""

from __future__ import annotations

from kernbench.topology import naming
from kernbench.topology.graph import Graph
from kernbench.topology.mesh import STEP, At
from kernbench.topology.views.shapes import Box, Line, View, between, rate
from kernbench.units import GIB

# In pitches: sizes of what stands on the die, and how far the ports stand outside the outer routers.
_ROUTER, _PE_W, _PE_H, _SMALL, _PORT = 0.2, 0.6, 0.26, 0.36, 0.2
_MARGIN = 0.5


def cube_view(graph: Graph) -> View:
    """Return the cube view. All cubes are alike: it shows cube 0 of SIP 0."""
    config, layout = graph.blocks.config, graph.layout
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
            beside = layout.neighbour(at, side)
            if beside is not None:
                points = between(router, routers[beside])
                lines.append(Line(router.id, routers[beside].id, "noc", points, cube.noc.link_bw_gbs))

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
    ports = f"router to port {rate(cube.ucie.router_bw_gbs)}, port to port {rate(cube.ucie.bw_gbs)}"
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
    config, pitch = graph.blocks.config, graph.layout.pitch_mm
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
