"""The SIP view: the IO chiplet and the mesh of cubes."""

from __future__ import annotations

from kernbench.topology import naming
from kernbench.topology.graph import Graph
from kernbench.topology.mesh import STEP
from kernbench.topology.views.shapes import Box, Line, View, between, ns, rate

_CUBE, _GAP = 2.4, 2.0
_IO_W = 3.2


def sip_view(graph: Graph) -> View:
    """Return the SIP view. All SIPs are alike: it shows SIP 0."""
    config, layout = graph.blocks.config, graph.layout
    w, h = graph.blocks.w, graph.blocks.h
    io, ucie = config.sip.io, config.cube.ucie
    height = h * (_CUBE + _GAP) + _GAP
    west = _GAP + _IO_W + _GAP
    shore = Box("sip0.io", "io", _GAP, _GAP / 2, _IO_W, height - _GAP, "IO chiplet", holds=True)
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
            naming.cube(0, c), "cube", west + c % w * (_CUBE + _GAP), _GAP + c // w * (_CUBE + _GAP),
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
    links, crossing = ucie.connections, rate(ucie.bw_gbs, ucie.connections)
    for row in range(h):
        cube = cubes[row * w]
        y = cube.centre[1]
        points = ((shore.x + shore.w, y), (cube.x, y))
        lines.append(Line(shore.id, cube.id, "ucie", points, links * ucie.bw_gbs, "" if row else crossing))
    for c, cube in enumerate(cubes):
        for side in ("e", "s"):
            row, col = c // w + STEP[side][0], c % w + STEP[side][1]
            if row < h and col < w:
                other = cubes[row * w + col]
                label = crossing if (c, side) == (0, "e") else ""
                lines.append(Line(cube.id, other.id, "ucie", between(cube, other), links * ucie.bw_gbs, label))
    port_ps = graph.node(naming.ucie(0, 0, "w", 0)).overhead_ps
    note = f"UCIe: {crossing} each way between neighbours, {ns(port_ps)} a port, {ns(2 * port_ps)} a crossing"
    title = f"SIP: {w} x {h} cubes, {w * h * len(layout.pes)} PEs"
    return View("sip", title, west + w * (_CUBE + _GAP), height, "", (shore, *parts, *cubes), tuple(lines), (note,))
