"""A machine as a picture draws it: its parts in templates, with their sizes and speeds in words.

A part that occurs many times is one template: a cube is described once, however many the machine has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, cos, hypot, pi, sin, sqrt
from pathlib import Path
from typing import Any

from kernbench._units import GIB, ps_to_ns
from kernbench.analysis._resources import LINKS
from kernbench.config._overrides import value_at
from kernbench.config._schema import machine_keys
from kernbench.policy._routing import router_of
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Graph
from kernbench.topology._mesh import At
from kernbench.topology.builder import PRESET, Machine, resolve_topology
from kernbench.viz._fields import fields, sources

_Point = tuple[float, float]

# Labels of the kinds of components; those of links are the names of `LINKS`.
_LABELS = {
    "host": "Host", "switch": "PCIe switch", "sip": "SIP", "io": "IO chiplet", "pcie_ep": "PCIe endpoint",
    "io_noc": "IO network", "sip_switch": "SIP switch", "nic": "NIC", "nic_switch": "NIC switch",
    "io_cpu": "IO CPU", "cube": "Cube", "router": "Router", "ucie": "UCIe port",
    "m_cpu": "Cube CPU", "sram": "SRAM", "hbm": "HBM stack", "hbm_ctrl": "HBM slice",
    "llc": "LLC slice", "pe": "PE",
    "pe_cpu": "PE CPU", "pe_scheduler": "Scheduler", "pe_dma": "DMA", "pe_mmu": "MMU", "pe_tcm": "TCM",
    "pe_ipcq": "Message queues", "pe_fetch_store": "Fetch and store", "pe_gemm": "Matrix engine",
    "pe_math": "Vector engine",
} | {f"{kind}_link": name[0].upper() + name[1:] for kind, name in LINKS.items()}  # fmt: skip


def _kinds(machine: Machine, controls: Mapping[str, Any]) -> dict[str, Any]:
    """By kind: label, size and speed in words, and the paths of the fields that have a control."""
    words = _parts(machine) | _links(machine)
    shown: dict[str, list[str]] = {kind: [] for kind in _LABELS}
    for key in machine_keys():
        if key.path in controls:
            links = [f"{kind}_link" for kind, name in LINKS.items() if name in key.sets]
            for kind in dict.fromkeys((*key.parts, *links)):
                shown[kind].append(key.path)
    return {
        kind: {"label": label, "detail": list(words.get(kind, ())), "fields": shown[kind]}
        for kind, label in _LABELS.items()
    }


def _parts(machine: Machine) -> dict[str, tuple[str, ...]]:
    config, cube, pe = machine.config, machine.config.cube, machine.config.cube.pe
    io, gemm, vector, tcm, dma, ipcq = config.sip.io, pe.pe_gemm, pe.pe_math, pe.pe_tcm, pe.pe_dma, pe.pe_ipcq
    array = gemm.systolic
    engine = f"{array.rows} x {array.cols} array" if gemm.model == "systolic" else f"{gemm.macs} MAC/cycle f16"
    return {
        "switch": (_ns(config.system.switch.overhead_ns),),
        **dict.fromkeys(
            ("sip_switch", "nic_switch"),
            (f"{config.system.sip_switch.ports} ports, {_ns(config.system.sip_switch.overhead_ns)}",),
        ),
        "nic": (f"{_rate(config.system.nic.bw_gbs)}, {config.system.nic.wiring}",),
        "sip": (f"{config.cubes_per_sip} cubes", f"{config.pes_per_sip} PEs"),
        "pcie_ep": (_ns(io.pcie_ep.overhead_ns),),
        "io_noc": (f"{_rate(io.noc.port_bw_gbs)}, {_ns(io.noc.overhead_ns)}",),
        "io_cpu": (f"{_ns(io.io_cpu.service_ns)} a launch",),
        "cube": (f"{config.pes_per_cube} PEs", f"{cube.hbm.size_gib:g} GiB HBM", f"{cube.sram.size_mib:g} MiB SRAM"),
        "m_cpu": (f"{_ns(cube.m_cpu.service_ns)} a message",),
        "sram": (f"{cube.sram.size_mib:g} MiB",),
        "hbm": (f"{cube.hbm.size_gib:g} GiB",),
        "hbm_ctrl": (
            f"{cube.hbm.slice_bytes(config.hbm_slices) / GIB:g} GiB",
            f"{cube.hbm.channels} x {_rate(cube.hbm.channel_bw_gbs)}",
        ),
        "llc": (f"{cube.llc.size_mib / config.hbm_slices:.3g} MiB, {_ns(cube.llc.hit_ns)}",),
        "pe_cpu": (f"{_ns(pe.pe_cpu.command_ns)} a command",),
        "pe_scheduler": (f"{_ns(pe.pe_scheduler.tile_ns)} a tile",),
        "pe_dma": (f"{router_of(machine.graph).outstanding_reads} reads", f"{dma.outstanding_writes} writes at once"),
        "pe_mmu": (f"{_ns(pe.pe_mmu.lookup_ns)} a look-up",),
        "pe_ipcq": (f"{ipcq.n_slots} slots x {ipcq.slot_bytes} B",),
        "pe_tcm": (f"{tcm.size_mb:g} MiB, {tcm.tile_buffer_mb:g} for tiles",),
        "pe_fetch_store": (f"{tcm.read_bw_gbs:g} / {tcm.write_bw_gbs:g} GB/s",),
        "pe_gemm": (
            engine, f"{gemm.clock_ghz:g} GHz",
            "tile " + " or ".join(f"{x.tile.m} x {x.tile.k} x {x.tile.n}" for x in gemm.by_tile),
        ),
        "pe_math": (f"{vector.lanes_16bit} lanes of 16 bit", f"{vector.clock_ghz:g} GHz"),
    }  # fmt: skip


def _links(machine: Machine) -> dict[str, tuple[str, ...]]:
    graph, cube = machine.graph, machine.config.cube
    hop = f"{_ns(cube.noc.router.overhead_ns)} a router"
    wire = f"{_ns(cube.noc.link_mm * cube.propagation_ns_per_mm)} a wire"
    port = _ns(ps_to_ns(graph.node(naming.ucie(0, 0, "w", 0)).overhead_ps))
    words = {
        "host_link": _rate(graph.edge(naming.HOST, naming.SWITCH).bw_gbs),
        "pcie_link": f"{_rate(graph.edge(naming.SWITCH, naming.pcie_ep(0)).bw_gbs)}, "
        f"{_ns(machine.config.system.pcie.latency_ns)}",
        "io_link": _rate(machine.config.sip.io.noc.port_bw_gbs),
        "ucie_link": f"{_rate(cube.ucie.flit_gbs)}, {cube.ucie.connections} a side, {port} a port",
        "mesh_link": f"{_rate(cube.noc.link_bw_gbs)}, {hop}, {wire}",
        "ucie_port_link": _rate(cube.ucie.router_bw_gbs),
        "hbm_link": _rate(cube.hbm.bw_gbs),
        "llc_link": _rate(cube.llc.bw_gbs),
        "pe_dma_link": _rate(cube.pe.pe_dma.bw_gbs),
        "pe_cpu_link": _rate(cube.pe.pe_cpu.bw_gbs),
        "m_cpu_link": _rate(cube.m_cpu.bw_gbs),
        "sram_link": _rate(cube.sram.bw_gbs),
        "nic_link": f"{_rate(machine.config.system.nic.bw_gbs)}, {_ns(machine.config.system.nic.latency_ns)}",
    }
    if near := graph.sips.neighbours[0]:
        link = graph.edge(graph.sips.node_id(min(near)), naming.io_noc(0))
        words["sip_link"] = f"{_rate(link.bw_gbs)}, {_ns(ps_to_ns(link.latency_ps))}"
    return {kind: (text,) for kind, text in words.items()}


def _rate(bw_gbs: float) -> str:
    return f"{bw_gbs:g} GB/s"


def _ns(ns: float) -> str:
    return f"{ns:g} ns"


def _titles(machine: Machine) -> dict[str, str]:
    config, graph = machine.config, machine.graph
    sips, layout = graph.sips, graph.layout
    grid = f" {sips.w} x {sips.h}" if sips.h * sips.d > 1 else ""
    grid += f" x {sips.d}" if sips.d > 1 else ""
    network = f", {sips.topology}{grid}" if sips.count > 1 else ""
    network += f" in each of {sips.hosts} hosts" if sips.hosts > 1 else ""
    crossbar = config.cube.noc.topology == "crossbar"
    network_of_cube = "crossbar" if crossbar else f"{layout.rows} x {layout.cols} routers"
    network_of_cube += f", {config.cube.noc.topology}" if config.cube.noc.topology in ("torus", "rings") else ""
    return {
        "system": f"System: {sips.count} SIP{'s' * (sips.count > 1)}{network}",
        "sip": f"SIP: {graph.w} x {graph.h} cubes, {config.pes_per_sip} PEs",
        "cube": f"Cube: {network_of_cube}, {len(layout.pes)} PEs",
        "pe": "PE",
    }


def _controls(machine: Machine) -> dict[str, dict[str, Any]]:
    standard, found = resolve_topology(f"{PRESET}default").spec, {}
    for path, field in fields().items():
        value = value_at(machine.spec, path)
        stops, choices = list(field.stops(value)), list(field.choices)
        if stops or choices:
            found[path] = {
                "label": field.label, "unit": field.unit, "description": field.description, "value": value,
                "default": value_at(standard, path), "source": sources().get(path, ""), "stops": stops,
                "choices": choices,
            }  # fmt: skip
    return found


# ---------------------------------------------------------------- geometry


def machine_section(machine: Machine) -> dict[str, Any]:
    """Templates of a machine; lengths are mm, except inside a PE, which has its own unit."""
    config, controls = machine.config, _controls(machine)
    kinds, titles = _kinds(machine, controls), _titles(machine)
    cube = (_Crossbar if config.cube.noc.topology == "crossbar" else _Cube)(machine, kinds)
    sip = _sip(machine, cube)
    templates = {"system": _system(machine, sip, kinds), "sip": sip, "cube": cube.template(), "pe": _pe(kinds)}
    return {
        "name": Path(machine.source).name,
        "hash": machine.hash,
        "counts": {"sips": config.n_sips, "cubes": config.cubes_per_sip, "pes": config.pes_per_cube},
        "kinds": kinds,
        "fields": controls,
        "templates": {name: {"title": titles[name], **template} for name, template in templates.items()},
    }


def _box(
    id_: str, kind: str, label: str, rect: tuple[float, float, float, float], detail: Sequence[str] = (), **more: Any
) -> dict[str, Any]:
    """Describe a box; `id_` is relative to the template's instance."""
    place = [round(value, 4) for value in rect]
    return {"id": id_, "kind": kind, "label": label, "at": place, "detail": list(detail), **more}


def _line(kind: str, points: Sequence[_Point], a: str = "", b: str = "", **more: Any) -> dict[str, Any]:
    """If `a` and `b` are nodes, the line is the links in both directions between them."""
    return {"kind": kind, "p": [round(v, 4) for point in points for v in point], "a": a, "b": b, **more}


class _Cube:
    """Geometry of a cube's die; `u` is the distance of routers."""

    def __init__(self, machine: Machine, kinds: Mapping[str, Any]) -> None:
        self.machine, self.layout, self.kinds = machine, machine.graph.layout, kinds
        self.apart = machine.config.memory_apart
        self.u = self.layout.pitch_mm
        self.tiles = self._tiles()
        cols, rows = self.layout.cols, self.layout.rows
        # A tile right of the last column, or below the last row, needs more room than a die has there.
        right = any(c == cols - 1 and dx > 0 for (_, c), (dx, _) in zip(self.layout.pes, self.tiles, strict=True))
        below = any(r == rows - 1 and dy > 0 for (r, _), (_, dy) in zip(self.layout.pes, self.tiles, strict=True))
        self.w, self.h = (cols + 0.6 * right) * self.u, (rows + 0.6 * below) * self.u

    def router(self, at: At) -> _Point:
        return self.layout.position_mm(at)

    def port(self, side: str, conn: int) -> _Point:
        x, y = self.router(self.layout.ports[side, conn])
        inset = 0.12 * self.u
        return {"n": (x, inset), "s": (x, self.h - inset), "w": (inset, y), "e": (self.w - inset, y)}[side]

    def _tiles(self) -> list[tuple[int, int]]:
        """Side of its router for each PE (right, down; 1 or -1): towards the middle if all parts then have room."""
        sides = [self._inwards(at) for at in self.layout.pes]
        squares = {(2 * r + dy, 2 * c + dx) for (r, c), (dx, dy) in zip(self.layout.pes, sides, strict=True)}
        if len(squares) == len(sides):
            others = [self.layout.m_cpu, self.layout.sram, *(self.layout.memories if self.apart else ())]
            for at in others:
                self._free(at, squares)
            if len(squares) == len(sides) + len(others):
                return sides
        return [(1, 1)] * len(sides)

    def _inwards(self, at: At) -> tuple[int, int]:
        return 1 if at[1] < self.layout.cols / 2 else -1, 1 if at[0] < self.layout.rows / 2 else -1

    def _free(self, at: At, taken: set[tuple[int, int]]) -> tuple[int, int]:
        present = set(self.layout.routers)
        for dy, dx in ((1, 1), (1, -1), (-1, 1), (-1, -1)):
            corners = [(at[0] + i, at[1] + j) for i in (0, dy) for j in (0, dx)]
            square = (2 * at[0] + dy, 2 * at[1] + dx)
            if square not in taken and present.issuperset(corners):
                taken.add(square)
                return dx, dy
        return self._inwards(at)

    def template(self) -> dict[str, Any]:
        """Lay out the die: routers on their mesh, each PE and its HBM slice next to its router, ports on the edges."""
        layout, u = self.layout, self.u
        boxes, lines = _stack(self), []
        points: Sequence[_Point]
        for at in layout.routers:
            x, y = self.router(at)
            name = _local(naming.router(0, 0, *at))
            boxes.append(_box(name, "router", name, (x - 0.1 * u, y - 0.1 * u, 0.2 * u, 0.2 * u)))
            for side in ("e", "s"):
                other = layout.neighbour(at, side)
                if other is not None:
                    end = self.router(other)
                    dx, dy = (0.1 * u, 0.0) if side == "e" else (0.0, 0.1 * u)
                    points = ((x + dx, y + dy), (end[0] - dx, end[1] - dy))
                    if min(end[0] - x, end[1] - y) < 0:  # a link of a ring: drawn beside its row or column
                        points = ((x - dy, y - dx), (end[0] - dy, end[1] - dx))
                        beside = [(px - 0.25 * dy, py - 0.25 * dx) for px, py in points]
                        points = (points[0], *beside, points[1])
                    lines.append(_line("mesh_link", points, name, _local(naming.router(0, 0, *other))))
        taken = {(2 * r + dy, 2 * c + dx) for (r, c), (dx, dy) in zip(layout.pes, self.tiles, strict=True)}
        for pe, (at, (dx, dy)) in enumerate(zip(layout.pes, self.tiles, strict=True)):
            x, y = self.router(at)
            cx, cy, half = x + dx * u / 2, y + dy * u / 2, 0.36 * u
            slice_h, gap = 0.13 * u, 0.05 * u
            top = cy - half + (0 if dy > 0 else slice_h + gap)
            pe_h = 2 * half - slice_h - gap
            hbm_y = cy - half if dy < 0 else cy + half - slice_h
            name = _local(naming.pe(0, 0, pe))
            boxes.append(
                _box(name, "pe", f"PE {pe}", (cx - half, top, 2 * half, pe_h), template="pe", flip=[dx < 0, dy < 0])
            )
            router = _local(naming.router(0, 0, *at))
            edge = cx - dx * half
            # In the alley between router column and tile, one lane for each.
            rows = {part: top + pe_h * (row + 0.5) / 3 for part, row in (("pe_cpu", 0), ("pe_dma", 1))}
            if dy < 0:
                rows = {part: 2 * top + pe_h - y_ for part, y_ in rows.items()}
            kinds = {f"{name}.{part}": f"{part}_link" for part in rows}
            ends = {f"{name}.{part}": y_ for part, y_ in rows.items()}
            if not self.apart:
                hbm, kind = self.memory(pe, (cx - half, hbm_y, 2 * half, slice_h), -dx, boxes, lines)
                kinds[hbm], ends[hbm] = kind, hbm_y + slice_h / 2
            for lane, (part, end_y) in enumerate(sorted(ends.items(), key=lambda item: dy * item[1])):
                lane_x = x + dx * u * (0.085 - 0.025 * lane)
                points = ((edge, end_y), (lane_x, end_y), (lane_x, y + dy * 0.1 * u))
                lines.append(_line(kinds[part], points, part, router))
        for (side, conn), at in layout.ports.items():
            x, y = self.port(side, conn)
            name, (rx, ry) = _local(naming.ucie(0, 0, side, conn)), self.router(at)
            r = 0.07 * u
            boxes.append(_box(name, "ucie", f"UCIe {side.upper()}{conn}", (x - r, y - r, 2 * r, 2 * r)))
            dx, dy = {"n": (0, -1), "s": (0, 1), "w": (-1, 0), "e": (1, 0)}[side]
            points = ((rx + dx * 0.1 * u, ry + dy * 0.1 * u), (x - dx * r, y - dy * r))
            lines.append(_line("ucie_port_link", points, name, _local(naming.router(0, 0, *at))))
        for node, at, kind in ((naming.m_cpu(0, 0), layout.m_cpu, "m_cpu"), (naming.sram(0, 0), layout.sram, "sram")):
            dx, dy = self._free(at, taken)
            x, y = self.router(at)
            w, h = 0.5 * u, 0.34 * u
            left, top = x + dx * u / 2 - w / 2, y + dy * u / 2 - h / 2
            boxes.append(_part(_local(node), kind, self.kinds, (left, top, w, h)))
            points = ((x + dx * u / 2 - dx * w / 2, y + dy * u / 2), (x + dx * 0.06 * u, y + dy * u / 2),
                      (x + dx * 0.06 * u, y + dy * 0.1 * u))  # fmt: skip
            lines.append(_line(f"{kind}_link", points, _local(node), _local(naming.router(0, 0, *at))))
        for number, at in enumerate(layout.memories if self.apart else ()):
            dx, dy = self._free(at, taken)
            x, y = self.router(at)
            w, h = 0.6 * u, 0.2 * u
            rect = (x + dx * u / 2 - w / 2, y + dy * u / 2 - h / 2, w, h)
            hbm, kind = self.memory(number, rect, -dx, boxes, lines)
            points = ((x + dx * (u - w) / 2, y + dy * u / 2), (x + dx * 0.04 * u, y + dy * u / 2),
                      (x + dx * 0.04 * u, y + dy * 0.1 * u))  # fmt: skip
            lines.append(_line(kind, points, hbm, _local(naming.router(0, 0, *at))))
        return {"w": self.w, "h": self.h, "boxes": boxes, "lines": lines}

    def memory(
        self, number: int, rect: tuple[float, float, float, float], towards: int, boxes: list[Any], lines: list[Any]
    ) -> tuple[str, str]:
        """Draw an HBM slice, and on the side `towards` (-1: left) a cache if there is one.

        Returns what is linked to the router, and the kind of that link.
        """
        hbm, llc = (_local(naming.memory(0, 0, kind, number, apart=self.apart)) for kind in ("hbm_ctrl", "llc"))
        if not self.machine.config.cube.llc.size_mib:
            boxes.append(_part(hbm, "hbm_ctrl", self.kinds, rect))
            return hbm, "hbm_link"
        x, y, w, h = rect
        left, right = (x, y, 0.46 * w, h), (x + 0.54 * w, y, 0.46 * w, h)
        boxes.append(_part(llc, "llc", self.kinds, left if towards < 0 else right))
        boxes.append(_part(hbm, "hbm_ctrl", self.kinds, right if towards < 0 else left))
        lines.append(_line("hbm_link", ((x + 0.46 * w, y + h / 2), (x + 0.54 * w, y + h / 2)), hbm, llc))
        return llc, "llc_link"


class _Crossbar(_Cube):
    """Geometry of a die with one router: a bar, PEs in four blocks above and below, memories at the sides.

    `u` is a sixth of the die's side.
    """

    def __init__(self, machine: Machine, kinds: Mapping[str, Any]) -> None:
        self.machine, self.layout, self.kinds = machine, machine.graph.layout, kinds
        self.apart = machine.config.memory_apart
        self.w = self.h = self.layout.pitch_mm
        self.u = self.w / 6

    def port(self, side: str, conn: int) -> _Point:
        along = self.w * (conn + 1) / (self.machine.config.cube.ucie.connections + 1)
        inset = 0.12 * self.u
        return {"n": (along, inset), "s": (along, self.h - inset), "w": (inset, along), "e": (self.w - inset, along)}[
            side
        ]

    def template(self) -> dict[str, Any]:
        u, router = self.u, _local(naming.router(0, 0, 0, 0))
        left, right, top, bottom, middle = (x * u for x in (1.0, 5.0, 2.85, 3.15, 3.0))  # of the bar
        boxes = [_box(router, "router", "crossbar", (left, top, right - left, bottom - top))]
        lines: list[dict[str, Any]] = []
        points: Sequence[_Point]
        for pe, (x, y, w, h) in enumerate(_in_blocks(len(self.layout.pes), u)):
            name, above = _local(naming.pe(0, 0, pe)), y < top
            boxes.append(_box(name, "pe", f"PE {pe}", (x + 0.24 * w, y, 0.74 * w, 0.86 * h), template="pe"))
            for lane, part in enumerate(("pe_cpu", "pe_dma")):
                end, alley = y + 0.86 * h * (lane + 0.5) / 3, x + (0.16 - 0.08 * lane) * w
                points = ((x + 0.24 * w, end), (alley, end), (alley, top if above else bottom))
                lines.append(_line(f"{part}_link", points, f"{name}.{part}", router))
        memories = len(self.layout.memories)
        rows = ceil(memories / 4)
        for number in range(memories):
            corner, row = divmod(number, rows)
            towards, down = (1, -1)[corner % 2], corner // 2
            slot = 1.9 * u / rows
            y = (0.8 + 2.5 * down) * u + row * slot
            rect = ((0.3 if towards > 0 else 5.1) * u, y + 0.1 * slot, 0.6 * u, 0.8 * slot)
            part, kind = self.memory(number, rect, towards, boxes, lines)
            edge, alley, end = (0.9, 0.95, left) if towards > 0 else (5.1, 5.05, right)
            points = ((edge * u, y + slot / 2), (alley * u, y + slot / 2), (alley * u, middle), (end, middle))
            lines.append(_line(kind, points, part, router))
        for side, conn in self.layout.ports:
            x, y = self.port(side, conn)
            name, r = _local(naming.ucie(0, 0, side, conn)), 0.07 * u
            boxes.append(_box(name, "ucie", f"UCIe {side.upper()}{conn}", (x - r, y - r, 2 * r, 2 * r)))
            way = {
                "n": ((x, y + r), (x, 0.3 * u), (middle, 0.3 * u), (middle, top)),
                "s": ((x, y - r), (x, 5.8 * u), (middle, 5.8 * u), (middle, bottom)),
                "w": ((x + r, y), (0.25 * u, y), (0.25 * u, middle), (left, middle)),
                "e": ((x - r, y), (5.75 * u, y), (5.75 * u, middle), (right, middle)),
            }[side]
            lines.append(_line("ucie_port_link", way, name, router))
        for node, kind, x, alley, end in (
            (naming.m_cpu(0, 0), "m_cpu", left, 0.98 * u, left),
            (naming.sram(0, 0), "sram", 4.1 * u, 5.02 * u, right),
        ):
            boxes.append(_part(_local(node), kind, self.kinds, (x, 5.3 * u, 0.9 * u, 0.4 * u)))
            points = ((end, 5.5 * u), (alley, 5.5 * u), (alley, middle), (end, middle))
            lines.append(_line(f"{kind}_link", points, _local(node), router))
        return {"w": self.w, "h": self.h, "boxes": boxes, "lines": lines}


def _in_blocks(n: int, u: float) -> list[tuple[float, float, float, float]]:
    """Cells of `n` PEs in the four blocks of a crossbar, as square as a PE."""
    each = ceil(n / 4)
    columns = ceil(sqrt(each * 1.9 / 1.8 / 1.35))
    w, h = 1.9 * u / columns, 1.8 * u / ceil(each / columns)
    found = []
    for number in range(n):
        block, i = divmod(number, each)
        x, y = (1.0, 3.1)[block % 2] * u, (0.8, 3.4)[block // 2] * u
        found.append((x + i % columns * w, y + i // columns * h, w, h))
    return found


def _local(node_id: str) -> str:
    return node_id.split(".", 2)[2]


def _stack(cube: _Cube) -> list[dict[str, Any]]:
    """Place the HBM stack where the removed routers leave a rectangle free."""
    config, u = cube.machine.config.cube, cube.u
    removed = sorted({(r, c) for r, c in config.noc.removed})
    rows, cols = [r for r, _ in removed], [c for _, c in removed]
    if not removed or (max(rows) - min(rows) + 1) * (max(cols) - min(cols) + 1) != len(removed):
        return []
    x, y = (min(cols) + 0.4) * u, (min(rows) + 0.4) * u
    w, h = (max(cols) - min(cols) + 0.2) * u, (max(rows) - min(rows) + 0.2) * u
    return [_part("hbm", "hbm", cube.kinds, (x, y, w, h))]


def _sip(machine: Machine, cube: _Cube) -> dict[str, Any]:
    graph, u = machine.graph, cube.u
    w, h, gap, margin = graph.w, graph.h, 0.8 * u, 0.8 * u
    io_w = 3.4 * u
    height = max(h * (cube.h + gap) - gap, 5.2 * u) + 2 * margin  # the chiplet's parts below one another
    west = margin + io_w + 1.2 * u
    boxes = [_box("io", "io", "IO chiplet", (margin, margin, io_w, height - 2 * margin))]

    def corner(number: int) -> _Point:
        return west + number % w * (cube.w + gap), margin + number // w * (cube.h + gap)

    connections = machine.config.cube.ucie.connections
    noc_x, noc_w, port = margin + 1.9 * u, 0.6 * u, 0.14 * u
    port_x = margin + io_w - 0.12 * u
    lines = []
    top, down = margin + 0.5 * u, height - margin - 0.5 * u
    boxes.append(_part("io.noc", "io_noc", cube.kinds, (noc_x, top, noc_w, down - top)))
    part_w, part_h = 1.1 * u, 1.0 * u
    for node, kind, y in (
        (naming.pcie_ep(0), "pcie_ep", top + part_h),
        (naming.io_cpu(0), "io_cpu", down - 2 * part_h),
    ):
        boxes.append(_part(_in_sip(node), kind, cube.kinds, (margin + 0.3 * u, y, part_w, part_h)))
        points = ((margin + 0.3 * u + part_w, y + part_h / 2), (noc_x, y + part_h / 2))
        lines.append(_line("io_link", points, _in_sip(node), "io.noc"))
    for number in range(w * h):
        x, y = corner(number)
        name = _in_sip(naming.cube(0, number))
        boxes.append(
            _box(name, "cube", f"Cube {number}", (x, y, cube.w, cube.h), cube.kinds["cube"]["detail"], template="cube")
        )
    for row in range(h):
        first = row * w
        _, y = corner(first)
        for conn in range(connections):
            end_x, end_y = cube.port("w", conn)
            ours, theirs = _in_sip(naming.io_ucie(0, row, conn)), _in_sip(naming.ucie(0, first, "w", conn))
            boxes.append(_box(ours, "ucie", f"UCIe {conn}", (port_x - port / 2, y + end_y - port / 2, port, port)))
            lines.append(_line("io_link", ((noc_x + noc_w, y + end_y), (port_x - port / 2, y + end_y)), "io.noc", ours))
            points = ((port_x + port / 2, y + end_y), (west + end_x - port / 2, y + end_y))
            lines.append(_line("ucie_link", points, ours, theirs))
    for number in range(w * h):
        x, y = corner(number)
        row, col = divmod(number, w)
        for side, back, other in (("e", "w", number + 1), ("s", "n", number + w)):
            if not (col + 1 < w if side == "e" else row + 1 < h):
                continue
            ox, oy = corner(other)
            for conn in range(connections):
                (ax, ay), (bx, by) = cube.port(side, conn), cube.port(back, conn)
                dx, dy = (port / 2, 0.0) if side == "e" else (0.0, port / 2)
                points = ((x + ax + dx, y + ay + dy), (ox + bx - dx, oy + by - dy))
                ends = _in_sip(naming.ucie(0, number, side, conn)), _in_sip(naming.ucie(0, other, back, conn))
                lines.append(_line("ucie_link", points, *ends))
    return {"w": west + w * (cube.w + gap) - gap + margin, "h": height, "boxes": boxes, "lines": lines}


def _part(id_: str, kind: str, kinds: Mapping[str, Any], rect: tuple[float, float, float, float]) -> dict[str, Any]:
    return _box(id_, kind, kinds[kind]["label"], rect, kinds[kind]["detail"])


def _in_sip(node_id: str) -> str:
    return node_id.split(".", 1)[1]


def _system(machine: Machine, sip: Mapping[str, Any], kinds: Mapping[str, Any]) -> dict[str, Any]:
    """SIPs on the grid of their network, the host in the west, where the IO chiplets are, SIP switches in the east."""
    graph, sips = machine.graph, machine.graph.sips
    w, h = sip["w"], sip["h"]
    gap = 0.22 * min(w, h)
    at = _corners(graph, w + gap, h + gap)
    height = gap + max(y for _, y in at) + h + gap
    unit = max(0.75 * gap, height / 18)  # of host and switch: readable next to many packages
    host_w, host_h = 4.5 * unit, 1.8 * unit
    west = gap + host_w + 2.4 * gap
    corners = [(west + x, gap + y) for x, y in at]
    width = max(x for x, _ in corners) + w + gap
    middle = height / 2
    switch_y, host_y = middle + 0.5 * unit, middle - 0.5 * unit - host_h
    boxes = [
        _box(naming.HOST, "host", "Host", (gap, host_y, host_w, host_h)),
        _part(naming.SWITCH, "switch", kinds, (gap, switch_y, host_w, host_h)),
    ]
    boxes += [
        _box(naming.sip(s), "sip", f"SIP {s}", (x, y, w, h), kinds["sip"]["detail"], template="sip")
        for s, (x, y) in enumerate(corners)
    ]
    x = gap + host_w / 2
    lines = [_line("host_link", ((x, host_y + host_h), (x, switch_y)), naming.HOST, naming.SWITCH)]
    end = next(box["at"] for box in sip["boxes"] if box["id"] == "io.pcie_ep")
    bus = west - 1.2 * gap
    for s, (x, y) in enumerate(corners):
        # Along the bus, then above the row of the package, down into its IO chiplet.
        lane, entry, port = y - 0.56 * gap, x + end[0] + end[2] / 2, switch_y + host_h / 2
        points = ((gap + host_w, port), (bus, port), (bus, lane), (entry, lane), (entry, y + end[1]))
        lines.append(_line("pcie_link", points, naming.SWITCH, naming.pcie_ep(s)))
    if sips.levels:
        more, wires, width = _switches(graph, corners, (width, height), (w, h), (host_w, host_h), kinds)
        boxes += more
        lines += wires
    for s, place in enumerate(corners):
        for other, side in graph.sips.neighbours[s].items():
            if s < other < sips.count:
                ends = naming.io_noc(s), naming.io_noc(other)
                lines.append(_line("sip_link", _sip_route(place, corners[other], (w, h), gap, bool(side)), *ends))
    return {"w": width, "h": height, "boxes": boxes, "lines": lines}


def _switches(
    graph: Graph, corners: Sequence[_Point], area: _Point, sip: _Point, size: _Point, kinds: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], float]:
    """Boxes of the switches and NICs between SIPs, in columns east of these; their lines; the width with them."""
    sips, (left, height), (w, box_h) = graph.sips, area, size
    boxes, lines = list[dict[str, Any]](), list[dict[str, Any]]()
    at: dict[int, _Point] = {}  # the middle of the west side of each
    for column, numbers in enumerate(sips.levels):
        x, pitch = left + (0.5 + 2 * column) * w, height / len(numbers)
        for row, vertex in enumerate(numbers):
            y = pitch * (row + 0.5)
            at[vertex] = x, y
            h = min(box_h, 0.8 * pitch)
            boxes.append(_part(sips.node_id(vertex), sips.kind(vertex), kinds, (x, y - h / 2, w, h)))
    east = max(x for x, _ in corners) + sip[0]
    bus = east + 0.5 * (left - east)
    for a, near in enumerate(sips.neighbours):
        for b in near:
            if a > b or b < sips.count:  # both ways are one line; those between SIPs are drawn with these
                continue
            points: tuple[_Point, ...] = ((at[a][0] + w, at[a][1]), at[b]) if a in at else ()
            if not points:
                # Along the lane below the package, then straight to the switch.
                start, lane = corners[a][0] + 0.9 * sip[0], corners[a][1] + 1.05 * sip[1]
                points = ((start, corners[a][1] + sip[1]), (start, lane), (bus, lane), at[b])
            lines.append(_line(f"{sips.link(a, b).kind}_link", points, sips.node_id(a), sips.node_id(b)))
    return boxes, lines, left + 2 * len(sips.levels) * w


def _corners(graph: Graph, pitch_x: float, pitch_y: float) -> list[_Point]:
    """Corner of each SIP: rings are folded into rows, fully connected SIPs are on a circle."""
    sips = graph.sips
    if sips.topology == "fully_connected" and sips.count > 2:
        angles = [2 * pi * s / sips.count - pi / 2 for s in range(sips.count)]
        radius = hypot(pitch_x, pitch_y) / (2 * sin(pi / sips.count))  # so large that no packages overlap
        at = [(radius * cos(a), radius * sin(a)) for a in angles]
        left, top = (min(place[axis] for place in at) for axis in (0, 1))
        return [(x - left, y - top) for x, y in at]
    w, h = sips.grid
    per_row = w if h > 1 else ceil(sqrt(sips.count)) if sips.count > 6 else sips.count
    at = []
    for s in range(sips.count):
        row, col = divmod(s, per_row)
        if sips.topology == "ring_1d" and row % 2:
            col = per_row - 1 - col  # back again, so that neighbours on the ring stay neighbours on paper
        at.append((col * pitch_x, row * pitch_y))
    return at


def _sip_route(a: _Point, b: _Point, size: _Point, gap: float, grid: bool) -> tuple[_Point, ...]:
    """Line from a package to a later one: straight to a neighbour, else around those between them."""
    (ax, ay), (bx, by), (w, h) = a, b, size
    if not grid:
        (ax, ay), (bx, by) = (ax + w / 2, ay + h / 2), (bx + w / 2, by + h / 2)
        return _cut((ax, ay), (bx, by), size), _cut((bx, by), (ax, ay), size)
    if ay == by:
        left, right = min(ax, bx), max(ax, bx)
        if right - left < w + 1.5 * gap:
            return (left + w, ay + h / 2), (right, ay + h / 2)
        under = ay + h + gap * 0.2
        return (left + w / 4, ay + h), (left + w / 4, under), (right + 3 * w / 4, under), (right + 3 * w / 4, ay + h)
    if ax == bx:
        top, low = min(ay, by), max(ay, by)
        if low - top < h + 1.5 * gap:
            return (ax + w / 2, top + h), (ax + w / 2, low)
        right = ax + w + gap * 0.2
        return (ax + w, top + h / 4), (right, top + h / 4), (right, low + 3 * h / 4), (ax + w, low + 3 * h / 4)
    west = min(ax, bx) - gap * 0.25
    under = max(ay, by) + h + gap * 0.2
    return (ax, ay + h / 3), (west, ay + h / 3), (west, under), (bx + w / 3, under), (bx + w / 3, by + h)


def _cut(centre: _Point, towards: _Point, size: _Point) -> _Point:
    """Where the line from the middle of a box leaves it."""
    dx, dy = towards[0] - centre[0], towards[1] - centre[1]
    reach = min(half / 2 / abs(d) for half, d in zip(size, (dx, dy), strict=True) if d)
    return centre[0] + dx * reach, centre[1] + dy * reach


# Column and row of each part in a PE: what its router feeds in the west, the engines in the east.
_PE_GRID = {
    "pe_cpu": (0, 0), "pe_dma": (0, 1), "pe_mmu": (0, 2), "pe_scheduler": (1, 0), "pe_tcm": (1, 1),
    "pe_ipcq": (1, 2), "pe_fetch_store": (2, 1), "pe_gemm": (3, 0), "pe_math": (3, 2),
}  # fmt: skip
_PE_LINES = (
    ("pe_cpu", "pe_scheduler"), ("pe_scheduler", "pe_dma"), ("pe_scheduler", "pe_fetch_store"), ("pe_mmu", "pe_dma"),
    ("pe_ipcq", "pe_dma"), ("pe_dma", "pe_tcm"), ("pe_tcm", "pe_fetch_store"), ("pe_fetch_store", "pe_gemm"),
    ("pe_fetch_store", "pe_math"), ("pe_gemm", "pe_math"),
)  # fmt: skip


def _pe(kinds: Mapping[str, Any]) -> dict[str, Any]:
    pitch_x, pitch_y, w, h = 26.0, 25.6, 21.0, 15.0
    rects = {
        part: (0.5 * (pitch_x - w) + col * pitch_x, 0.5 * (pitch_y - h) + row * pitch_y, w, h)
        for part, (col, row) in _PE_GRID.items()
    }
    boxes = [_part(part, part, kinds, rect) for part, rect in rects.items()]
    lines = []
    for a, b in _PE_LINES:
        ends = [(x + w / 2, y + h / 2) for x, y, *_ in (rects[a], rects[b])]
        lines.append(_line("inside", (_cut(ends[0], ends[1], (w, h)), _cut(ends[1], ends[0], (w, h)))))
    return {"w": 4 * pitch_x, "h": 3 * pitch_y, "boxes": boxes, "lines": lines}
