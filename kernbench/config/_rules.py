"""Rules that join keys of the machine file; each message says what to change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from kernbench._registry import METHODS
from kernbench._units import KIB, MIB
from kernbench.config._dram import dram
from kernbench.config._kinds import Fault, KeyPath, dotted
from kernbench.config._schema import Hbm, MachineConfig

# Limits of the address format in `policy.address.phyaddr`.
MAX_SIPS, MAX_CUBES, MAX_PES, HBM_WINDOW_GIB, TCM_WINDOW_MIB, SRAM_WINDOW_MIB = 1024, 64, 1024, 256, 256, 4096
# PEs of a cube with the larger TCM window; in a cube of more PEs, each has the smaller one.
FEW_PES, SMALL_TCM_WINDOW_MIB = 64, 64

# Topologies of SIPs: sides of grids, those that are rings along each side, those with switches.
DIMENSIONS = {"torus_2d": 2, "mesh_2d": 2, "mesh_2d_no_wrap": 2, "torus_3d": 3}
RINGS = ("ring_1d", "torus_2d", "mesh_2d", "torus_3d")
SWITCHED = ("switch", "fat_tree")
_RING_DIRECTIONS = 8  # N, S, E, W to cubes, and as many to SIPs
_WIDEST_ITEM = 4  # bytes of an f32 operand
_ROUNDING = 1e-9  # of products of decimal fractions
_LAYOUT = ("cube.pe_layout", "cube.noc.rows", "cube.noc.cols")
_PE_COUNT = ("cube.pe_layout.pe_per_corner", "cube.pe_layout.corners", "cube.pe_layout.pe_routers")


_ROLES = {("io", "noc"): "io_noc", ("cube", "hbm"): "hbm_ctrl"}  # of groups that have another name than their component


def components(spec: Mapping[str, Any], path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield (key, implementation) of each component of a machine's spec."""
    for key, value in spec.items():
        if isinstance(value, Mapping):
            yield from components(value, (*path, key))
        elif key == "impl":
            yield (*path, key), value


def methods_of(path: KeyPath) -> tuple[str, ...]:
    """Methods that the component at this key has to have."""
    return METHODS.get(_role(path), ())


def _role(path: KeyPath) -> str:
    return _ROLES.get((path[-3], path[-2])) or str(path[-2])


def _components(config: MachineConfig) -> Iterator[Fault]:
    for path, impl in components(config.to_spec()):
        role = _role(path)
        known = [name for name, methods in METHODS.items() if methods == METHODS.get(role)] or [role]
        if ":" not in impl and impl not in known:
            yield Fault(
                f"{dotted(path)} = {impl} cannot do the work of {role}; use {' or '.join(known)}, or a dotted path "
                "pkg.mod:Class",
                (path,),
            )


def machine_faults(config: MachineConfig) -> Iterator[Fault]:
    yield from _components(config)
    yield from _addresses(config)
    yield from _sips(config)
    yield from _mesh(config)
    yield from _messages(config)
    yield from _routers(config)
    yield from _hbm(config)
    yield from _llc(config)
    yield from _matrix_engine(config)
    yield from _tcm(config)


def _fault(text: str, *keys: str) -> Fault:
    return Fault(text, tuple(tuple(key.split(".")) for key in keys))


def _addresses(config: MachineConfig) -> Iterator[Fault]:
    mesh, hbm, sram, tcm = config.sip.cube_mesh, config.cube.hbm, config.cube.sram, config.cube.pe.pe_tcm
    if config.n_sips > MAX_SIPS:
        yield _fault(
            f"system.sips.count = {config.n_sips} must be <= {MAX_SIPS}: the address fields rack and sip hold no more",
            "system.sips.count",
        )
    if config.cubes_per_sip > MAX_CUBES:
        yield _fault(
            f"sip.cube_mesh = {mesh.w} x {mesh.h} = {config.cubes_per_sip} cubes must be <= {MAX_CUBES}: the address "
            "field die holds no more",
            "sip.cube_mesh.w",
            "sip.cube_mesh.h",
        )
    if config.pes_per_cube > MAX_PES:
        yield _fault(
            f"cube.pe_layout: {config.pes_per_cube} PEs must be <= {MAX_PES}: the address table holds no more",
            *_PE_COUNT,
        )
    tcm_window = TCM_WINDOW_MIB if config.pes_per_cube <= FEW_PES else SMALL_TCM_WINDOW_MIB
    for name, size, unit, window, what in (
        ("cube.hbm.size_gib", hbm.size_gib, "GiB", HBM_WINDOW_GIB, "the HBM window of an address"),
        ("cube.sram.size_mib", sram.size_mib, "MiB", SRAM_WINDOW_MIB, "its range of the address table"),
        ("cube.pe.pe_tcm.size_mb", tcm.size_mb, "MiB", tcm_window, "its range of the address table"),
    ):
        if size > window:
            yield _fault(f"{name} = {size:g} must be <= {window} [{unit}]: {what} holds no more", name)


def _sips(config: MachineConfig) -> Iterator[Fault]:
    sips = config.system.sips
    n, of = sips.of_host, "count" if sips.per_host is None else "per_host"
    keys = tuple(f"system.sips.{key}" for key in ("w", "h", "d", of, "topology"))
    dimensions = DIMENSIONS.get(sips.topology, 0)
    sides = {"w": sips.w, "h": sips.h, "d": sips.d}
    given = [name for name, side in sides.items() if side is not None]
    names = list(sides)[:dimensions]
    listed = " and ".join(", ".join(names).rsplit(", ", 1))
    if not dimensions and given:
        them = "d belongs to torus_3d" if given == ["d"] else "w and h belong to 2-D topologies"
        it = "it (or set it to null)" if given == ["d"] else "them (or set them to null)"
        yield _fault(f"system.sips: {them}, {sips.topology} has none; remove {it}", *keys)
    elif dimensions == 2 and sips.d is not None:
        yield _fault(
            f"system.sips.d = {sips.d} belongs to torus_3d, {sips.topology} has w and h; remove it (or set it to null)",
            *keys,
        )
    elif dimensions and not given:
        if round(n ** (1 / dimensions)) ** dimensions != n:
            yield _fault(
                f"system.sips.{of} = {n} is not a {'square' if dimensions == 2 else 'cube'} number: topology "
                f"{sips.topology} then needs system.sips.{listed}, whose product is the {of}",
                *keys,
            )
    elif given != names:
        neither = "both w and h, or neither for a square" if dimensions == 2 else "w, h and d, or none for a cube"
        yield _fault(f"system.sips: topology {sips.topology} needs {neither} count; give the rest", *keys)
    elif (product := math.prod(side or 1 for side in sides.values())) != n and dimensions:
        yield _fault(
            f"system.sips: {' x '.join(names)} = {' x '.join(str(sides[name]) for name in names)} = {product} must "
            f"equal {of} = {n}; change one of them",
            *keys,
        )
    ports = config.system.sip_switch.ports
    if sips.topology == "switch" and n > ports:
        yield _fault(
            f"system.sips.{of} = {n} must be <= {ports}, the ports of the switch; raise system.sip_switch.ports, or "
            "use topology fat_tree",
            *keys,
            "system.sip_switch.ports",
        )
    if config.system.sip_switch.reduce != "none":
        flow = config.system.sip_link.router.flow
        for key, value, takes in (
            ("sips.topology", sips.topology, "switch"),
            ("sip_link.router.flow", flow, "unbounded"),
        ):
            if value != takes:
                yield _fault(
                    f"system.sip_switch.reduce = sum needs system.{key} = {takes}, not {value}; change one of them",
                    "system.sip_switch.reduce",
                    f"system.{key}",
                )
    if n != sips.count:
        yield from _hosts(config)
    elif sips.topology == "fat_tree":
        yield from _fat_tree(config, sips.count, "system.sips.count")


def _hosts(config: MachineConfig) -> Iterator[Fault]:
    sips, nic = config.system.sips, config.system.nic
    per_host, keys = sips.of_host, ("system.sips.per_host", "system.sips.count", "system.nic.sips")
    if sips.count % per_host or per_host % nic.sips:
        yield _fault(
            f"system.sips.per_host = {per_host} must divide count = {sips.count}, and be a multiple of "
            f"system.nic.sips = {nic.sips}; change one of them",
            *keys,
        )
    elif sips.topology == "fat_tree":
        yield _fault(
            "system.sips.topology = fat_tree connects SIPs of a host, and hosts have a fat tree between them; use "
            "switch, or remove per_host",
            "system.sips.topology",
            *keys,
        )
    elif config.system.sip_link.router.flow != "unbounded":
        yield _fault(
            "system.sip_link.router.flow = credits is not modelled between hosts; use unbounded, or remove per_host",
            "system.sip_link.router.flow",
            *keys,
        )
    else:
        rails = nic.wiring == "by_rail"
        ends = sips.count // (per_host if rails else nic.sips)
        yield from _fat_tree(config, ends, "hosts" if rails else "NICs", *keys)


def _fat_tree(config: MachineConfig, ends: int, name: str, *of: str) -> Iterator[Fault]:
    """Check the levels of a fat tree of so many ends."""
    ports, tree = config.system.sip_switch.ports, config.system.fat_tree
    keys = [*(of or (name,)), "system.sips.topology", "system.sip_switch.ports"]
    keys += ["system.fat_tree.levels", "system.fat_tree.oversubscription"]
    down = tree.oversubscription
    unit = 1 + down
    if tree.levels > 1 and ports % unit:
        yield _fault(
            f"system.sip_switch.ports = {ports} must be a multiple of {unit}: with system.fat_tree.oversubscription = "
            f"{down}, {down} of {unit} ports lead down; use {max(1, ports // unit) * unit}",
            *keys,
        )
    elif ends > (most := ports * (ports - ports_up(ports, down)) ** (tree.levels - 1)):
        yield _fault(
            f"{name} = {ends} must be <= {most}, what system.fat_tree.levels = {tree.levels} and "
            f"system.sip_switch.ports = {ports} connect; raise one of them",
            *keys,
        )


def ports_up(ports: int, oversubscription: int) -> int:
    """Ports that lead up, of a switch below the top of a fat tree; `oversubscription` times as many lead down."""
    return ports // (1 + oversubscription)


def _mesh(config: MachineConfig) -> Iterator[Fault]:
    noc = config.cube.noc
    grid, mesh = f"the {noc.rows} x {noc.cols} mesh", ("cube.noc.removed", "cube.noc.rows", "cube.noc.cols")
    removed = set(noc.removed)
    for row, col in noc.removed:
        if row >= noc.rows or col >= noc.cols:
            yield _fault(f"cube.noc.removed: [{row}, {col}] is outside {grid}; take it off the list", *mesh)
    if noc.topology in ("torus", "rings") and removed:
        yield _fault(
            f"cube.noc.removed belongs to cube.noc.topology = mesh: rings of {noc.topology} pass all routers; set it "
            "to []",
            *mesh,
            "cube.noc.topology",
        )
    if noc.topology == "rings" and not noc.is_torus and noc.rows * noc.cols % 2:
        yield _fault(
            f"cube.noc.topology = rings needs a closed way through all routers, and {grid} has none; make rows or cols "
            "even",
            *mesh[1:],
            "cube.noc.topology",
        )
    if noc.topology == "crossbar":
        yield from _crossbar(config)
    elif config.pes_per_cube <= MAX_PES:
        yield from _pes(config, grid, removed)
    yield from _controllers(config, grid, removed)
    for (side, conn), place in port_places(config).items():
        if place in removed:
            yield _fault(
                f"cube.noc.removed: router [{place[0]}, {place[1]}] carries UCIe connection {conn} of side "
                f"{side.upper()}; keep it, or lower cube.ucie.connections",
                *mesh,
                "cube.ucie.connections",
            )
    left = {(r, c) for r in range(noc.rows) for c in range(noc.cols)} - removed
    if not left:
        yield _fault("cube.noc.removed: no router is left; take some off the list", *mesh)
    elif len(hops_from(min(left), left)) < len(left):
        yield _fault("cube.noc.removed: the routers left are cut into parts; keep one that joins them", *mesh)
    width, height = noc.cols * noc.pitch_mm, noc.rows * noc.pitch_mm
    for name, (x, y) in (
        ("cube.m_cpu.pos_mm", config.cube.m_cpu.pos_mm),
        ("cube.sram.pos_mm", config.cube.sram.pos_mm),
    ):
        if not (0 <= x <= width and 0 <= y <= height):
            yield _fault(
                f"{name} = [{x:g}, {y:g}] must be on the die of {width:g} x {height:g} [mm]; move it, or enlarge the "
                "mesh",
                name,
                "cube.noc.rows",
                "cube.noc.cols",
                "cube.noc.pitch_mm",
            )


def _crossbar(config: MachineConfig) -> Iterator[Fault]:
    noc, layout = config.cube.noc, config.cube.pe_layout
    if (noc.rows, noc.cols) != (1, 1):
        yield _fault(
            f"cube.noc: topology crossbar has one router, not {noc.rows} x {noc.cols}; set rows and cols to 1, or "
            "topology to mesh",
            "cube.noc.topology",
            "cube.noc.rows",
            "cube.noc.cols",
        )
    if layout.pe_routers:
        yield _fault(
            "cube.pe_layout.pe_routers belongs to cube.noc.topology = mesh; remove it, and give pe_per_corner and "
            "corners, whose product is the number of PEs",
            "cube.pe_layout.pe_routers",
            "cube.noc.topology",
        )


def _controllers(config: MachineConfig, grid: str, removed: set[tuple[int, int]]) -> Iterator[Fault]:
    hbm, noc = config.cube.hbm, config.cube.noc
    keys = ("cube.hbm.controllers", "cube.hbm.controller_routers", "cube.noc.topology")
    places = hbm.controller_routers
    if hbm.controllers is None or noc.topology == "crossbar":
        if places is not None:
            what = "cube.noc.topology = mesh" if hbm.controllers else "cube.hbm.controllers"
            yield _fault(f"cube.hbm.controller_routers belongs to {what}; remove it", *keys)
        return
    if places is None or len(places) != hbm.controllers:
        yield _fault(
            f"cube.hbm.controllers = {hbm.controllers} needs as many [row, column] in cube.hbm.controller_routers; "
            "give them, or use cube.noc.topology: crossbar",
            *keys,
        )
        return
    for number, (row, col) in enumerate(places):
        if row >= noc.rows or col >= noc.cols or (row, col) in removed:
            yield _fault(
                f"cube.hbm.controller_routers: controller {number} at [{row}, {col}] is not on a router of {grid}; "
                "move it",
                *keys,
                "cube.noc.removed",
            )


def _llc(config: MachineConfig) -> Iterator[Fault]:
    llc, hbm, slices = config.cube.llc, config.cube.hbm, config.hbm_slices
    least = slices * llc.ways * llc.line_bytes
    if 0 < llc.size_mib * MIB < least:
        yield _fault(
            f"cube.llc.size_mib = {llc.size_mib:g} must be 0 or >= {least / MIB:g} [MiB], one set of {llc.ways} "
            f"lines in each of {slices} slices; enlarge it",
            "cube.llc.size_mib",
            "cube.llc.ways",
            "cube.llc.line_bytes",
            "cube.hbm.controllers",
        )
    if llc.size_mib and llc.line_bytes < hbm.burst_bytes:
        yield _fault(
            f"cube.llc.line_bytes = {llc.line_bytes} must be >= {hbm.burst_bytes} [B], cube.hbm.burst_bytes; "
            "enlarge it",
            "cube.llc.line_bytes",
            "cube.hbm.burst_bytes",
        )
    if llc.size_mib and hbm.controllers and hbm.interleave_bytes < llc.line_bytes:
        yield _fault(
            f"cube.hbm.interleave_bytes = {hbm.interleave_bytes} must be >= {llc.line_bytes} [B], a line of the cache; "
            "enlarge it",
            "cube.hbm.interleave_bytes",
            "cube.llc.line_bytes",
        )


def _messages(config: MachineConfig) -> Iterator[Fault]:
    command, flit = config.system.command_bytes, config.system.flit_bytes
    if command > flit:
        yield _fault(
            f"system.command_bytes = {command} must be <= {flit}: a command is one flit; use smaller commands, or "
            "raise system.flit_bytes",
            "system.command_bytes",
            "system.flit_bytes",
        )


def _routers(config: MachineConfig) -> Iterator[Fault]:
    mesh, sip = config.cube.noc.router, config.sip.io.noc
    between = config.system.sip_link.router
    if between.ties != "parity" and between.flow != "credits":
        yield _fault(
            f"system.sip_link.router.ties = {between.ties} has no effect with flow: unbounded, where ties go to the "
            "lower SIP; set it to parity, or use flow: credits",
            "system.sip_link.router.ties",
            "system.sip_link.router.flow",
        )
    switch = config.system.sip_switch
    switched = config.system.sips.topology in SWITCHED
    for at, flow, part, impl, overhead_ns, free_ns, of in (
        ("cube.noc.router", mesh.flow, "cube.noc.router", mesh.impl, mesh.overhead_ns, 1.0, "router"),
        (
            "system.sip_link.router",
            between.flow,
            "sip.io.noc",
            sip.impl,
            sip.overhead_ns,
            0.0,
            "io_noc",
        ),
        (
            "system.sip_link.router",
            between.flow if switched else "unbounded",
            "system.sip_switch",
            switch.impl,
            switch.overhead_ns,
            100.0,
            "sip_switch",
        ),
    ):
        if flow != "credits":
            continue
        if overhead_ns != free_ns:
            yield _fault(
                f"{part}.overhead_ns = {overhead_ns:g} has no effect with {at}.flow: credits, where {at}.pipeline is "
                f"the delay of a router; set it to {free_ns:g}, or use flow: unbounded",
                f"{part}.overhead_ns",
                f"{at}.flow",
            )
        if impl != of:
            yield _fault(
                f"{part}.impl = {impl} has no effect with {at}.flow: credits; set it to {of}, or use flow: unbounded",
                f"{part}.impl",
                f"{at}.flow",
            )


def _pes(config: MachineConfig, grid: str, removed: set[tuple[int, int]]) -> Iterator[Fault]:
    noc = config.cube.noc
    taken: dict[tuple[int, int], int] = {}
    for pe, place in enumerate(pe_places(config)):
        keys: tuple[str, ...] = _LAYOUT
        if not (0 <= place[0] < noc.rows and 0 <= place[1] < noc.cols):
            wrong = f"is outside {grid}"
        elif place in removed:
            wrong, keys = "is on a removed router", (*_LAYOUT, "cube.noc.removed")
        elif place in taken:
            wrong = f"collides with PE {taken[place]}"
        else:
            taken[place] = pe
            continue
        yield _fault(
            f"cube.pe_layout: PE {pe} at router [{place[0]}, {place[1]}] {wrong}; give cube.pe_layout.pe_routers, one "
            "[row, column] for each PE",
            *keys,
        )


def pe_places(config: MachineConfig) -> list[tuple[int, int]]:
    """Router (row, column) of each PE of a cube."""
    layout, noc = config.cube.pe_layout, config.cube.noc
    if noc.topology == "crossbar":
        return [(0, 0)] * config.pes_per_cube
    if layout.pe_routers:
        return list(layout.pe_routers)
    row_of = {"NW": 0, "NE": 1, "SW": noc.rows - 2, "SE": noc.rows - 1}
    n = layout.pe_per_corner
    places = []
    for corner in layout.corners:
        cols = range(n) if corner.endswith("W") else range(noc.cols - n, noc.cols)
        places += [(row_of[corner], col) for col in cols]
    return places


def memory_places(config: MachineConfig) -> list[tuple[int, int]]:
    """Router (row, column) of each HBM slice of a cube."""
    hbm = config.cube.hbm
    if hbm.controllers is None:
        return pe_places(config)
    if hbm.controller_routers is None or config.cube.noc.topology == "crossbar":
        return [(0, 0)] * hbm.controllers
    return list(hbm.controller_routers)


def port_places(config: MachineConfig) -> dict[tuple[str, int], tuple[int, int]]:
    """Router (row, column) of each UCIe port of a cube, by (side "e", "w", "n" or "s", connection)."""
    rows, cols = config.cube.noc.rows, config.cube.noc.cols
    places = {}
    for conn in range(config.cube.ucie.connections):
        row, col = min(1 + conn, rows - 1), min(1 + conn, cols - 1)
        places["e", conn], places["w", conn] = (row, cols - 1), (row, 0)
        places["n", conn], places["s", conn] = (0, col), (rows - 1, col)
    return places


def hops_from(start: tuple[int, int], routers: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
    hops = {start: 0}
    queue = [start]
    for row, col in queue:
        for near in ((row, col + 1), (row, col - 1), (row - 1, col), (row + 1, col)):
            if near in routers and near not in hops:
                hops[near] = hops[row, col] + 1
                queue.append(near)
    return hops


def _hbm(config: MachineConfig) -> Iterator[Fault]:
    hbm, dma = config.cube.hbm, config.cube.pe.pe_dma
    own = ("cube.hbm.channels", "cube.hbm.channel_bw_gbs", "cube.hbm.efficiency")
    total = hbm.slice_gbs
    for name, bw in (("cube.hbm.bw_gbs", hbm.bw_gbs), ("cube.pe.pe_dma.bw_gbs", dma.bw_gbs))[
        : 1 if hbm.controllers else 2
    ]:
        if bw < total * (1 - _ROUNDING):
            yield _fault(
                f"{name} = {bw:g} must be >= {total:g} [GB/s], the slice's own bandwidth (channels x channel_bw_gbs x "
                "efficiency): no link between a PE and its slice is narrower than the slice",
                name,
                *own,
            )
    if hbm.timing != "simple":
        yield from _standard_timing(hbm)
    slice_bytes, row = hbm.slice_bytes(config.pes_per_cube), hbm.channels * hbm.burst_bytes
    if slice_bytes < row:
        yield _fault(
            f"cube.hbm.size_gib = {hbm.size_gib:g} over {config.pes_per_cube} PEs leaves slices of {slice_bytes} B, "
            f"less than one burst of each channel ({row} B); enlarge it",
            "cube.hbm.size_gib",
            "cube.hbm.channels",
            "cube.hbm.burst_bytes",
            *_PE_COUNT,
        )


def _standard_timing(hbm: Hbm) -> Iterator[Fault]:
    for key, value, neutral in (
        ("access_ns", hbm.access_ns, 0),
        ("turnaround_ns", hbm.turnaround_ns, 0),
        ("efficiency", hbm.efficiency, 1),
    ):
        if value != neutral:
            yield _fault(
                f"cube.hbm.{key} = {value:g} belongs to cube.hbm.timing = simple, and timing is {hbm.timing}; set "
                f"{key} to {neutral}, or timing to simple",
                f"cube.hbm.{key}",
                "cube.hbm.timing",
            )
    part = dram(hbm.timing)
    access = part.access_bytes
    if part.bin_gbs not in (None, hbm.channel_bw_gbs):
        yield _fault(
            f"cube.hbm.channel_bw_gbs = {hbm.channel_bw_gbs:g} must be {part.bin_gbs:g} [GB/s], {part.rate_mbps} Mb/s "
            f"on {part.width_bits} bits, with timing {hbm.timing}; change one of them",
            "cube.hbm.channel_bw_gbs",
            "cube.hbm.timing",
        )
    if hbm.burst_bytes < access:
        yield _fault(
            f"cube.hbm.burst_bytes = {hbm.burst_bytes} must be >= {access} [B], an access of {hbm.timing}; enlarge it",
            "cube.hbm.burst_bytes",
            "cube.hbm.timing",
        )


def _matrix_engine(config: MachineConfig) -> Iterator[Fault]:
    gemm = config.cube.pe.pe_gemm
    at = "cube.pe.pe_gemm."
    if gemm.model == "systolic" and gemm.macs == 1:
        yield _fault(
            f"{at}systolic has 1 x 1 positions, which no operand streams through; enlarge it, or use model: rate",
            f"{at}systolic.rows",
            f"{at}systolic.cols",
            f"{at}model",
        )
    shapes = [row[:3] for row in gemm.table]
    if not shapes:
        if gemm.model == "table":
            yield _fault(
                f"{at}table is empty, and model: table needs it; give rows [m, k, n, efficiency], or a CSV file with "
                "these columns",
                f"{at}table",
                f"{at}model",
            )
        return
    if twice := [shape for shape, count in Counter(shapes).items() if count > 1]:
        yield _fault(f"{at}table: {_shape(twice[0])} occurs twice; keep one", f"{at}table")
    axes = [sorted({shape[i] for shape in shapes}) for i in range(3)]
    if math.prod(map(len, axes)) != len(set(shapes)):
        missing = next(shape for shape in product(*axes) if shape not in shapes)
        yield _fault(
            f"{at}table has no row for {_shape(missing)}; give every combination of its sizes m, k and n, so that "
            "other shapes can be interpolated",
            f"{at}table",
        )
    for i, (name, axis) in enumerate(zip("mkn", axes, strict=True)):
        largest = {f"{at}tile.{name}": getattr(gemm.tile, name), f"{at}other_tiles": _most(gemm.other_tiles, i)}
        for key, size in largest.items():
            if size > axis[-1]:
                yield _fault(
                    f"{at}table ends at {name} = {axis[-1]}, below {key} = {size}; add rows for larger tiles, or "
                    "make the tile smaller",
                    f"{at}table",
                    key,
                )


def _most(tiles: Sequence[tuple[int, ...]], axis: int) -> int:
    return max((tile[axis] for tile in tiles), default=0)


def _shape(shape: tuple[int, ...]) -> str:
    return "[m, k, n] = [{}, {}, {}]".format(*shape)


def _tcm(config: MachineConfig) -> Iterator[Fault]:
    pe = config.cube.pe
    tcm, ipcq, tiles = pe.pe_tcm, pe.pe_ipcq, [gemm.tile for gemm in pe.pe_gemm.by_tile]
    at = "cube.pe.pe_tcm."
    rings = ipcq.n_slots * ipcq.slot_bytes * _RING_DIRECTIONS
    need = (tcm.tile_buffer_mb + tcm.kernel_scratch_mb) * MIB + rings
    if need >= tcm.size_mb * MIB:
        yield _fault(
            f"{at}size_mb = {tcm.size_mb:g} must be > {need / MIB:g} [MiB]: tile buffers, kernel scratch and "
            f"{_RING_DIRECTIONS} rings of {ipcq.n_slots} x {ipcq.slot_bytes} B, and room for operands; enlarge it or "
            "shrink those",
            f"{at}size_mb",
            f"{at}tile_buffer_mb",
            f"{at}kernel_scratch_mb",
            "cube.pe.pe_ipcq.n_slots",
            "cube.pe.pe_ipcq.slot_bytes",
        )
    if tcm.scratch_result_kib * KIB > tcm.kernel_scratch_mb * MIB:
        yield _fault(
            f"{at}scratch_result_kib = {tcm.scratch_result_kib} must be <= {tcm.kernel_scratch_mb * 1024:g} [KiB], the "
            "whole kernel scratch; lower it, or enlarge the scratch",
            f"{at}scratch_result_kib",
            f"{at}kernel_scratch_mb",
        )
    buffers = tcm.buffers_per_operand * _WIDEST_ITEM * max(tile.k * (tile.m + tile.n) + tile.n for tile in tiles)
    if buffers > tcm.tile_buffer_mb * MIB:
        least = math.ceil(buffers / MIB * 1e4) / 1e4
        yield _fault(
            f"{at}tile_buffer_mb = {tcm.tile_buffer_mb:g} must be >= {least:g} [MiB]: {tcm.buffers_per_operand} "
            f"buffers of each operand's tile, and of a bias, at {_WIDEST_ITEM} B per element",
            f"{at}tile_buffer_mb",
            f"{at}buffers_per_operand",
            "cube.pe.pe_gemm.tile",
            "cube.pe.pe_gemm.other_tiles",
        )
