"""Rules that join fields of the machine file; each says what to change."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kernbench.config.schema import MachineConfig
from kernbench.units import KIB, MIB

# What an address can name; `policy.address.phyaddr` has the format.
MAX_SIPS, MAX_CUBES, MAX_PES, HBM_WINDOW_GIB, TCM_WINDOW_MIB, SRAM_WINDOW_MIB = 256, 16, 64, 128, 256, 4096
_RING_DIRECTIONS = 8
_WIDEST_ITEM = 4


def broken(config: MachineConfig) -> Iterator[str]:
    """Yield a line for every rule that `config` breaks."""
    yield from _addresses(config)
    yield from _sips(config)
    yield from _mesh(config)
    yield from _hbm(config)
    yield from _tcm(config)


def _addresses(config: MachineConfig) -> Iterator[str]:
    if config.n_sips > MAX_SIPS:
        yield f"system.sips.count = {config.n_sips} must be <= {MAX_SIPS}: the address fields rack and sip hold no more"
    if config.cubes_per_sip > MAX_CUBES:
        mesh = config.sip.cube_mesh
        yield (
            f"sip.cube_mesh = {mesh.w} x {mesh.h} = {config.cubes_per_sip} cubes must be <= {MAX_CUBES}: the address "
            "field die holds no more"
        )
    if config.pes_per_cube > MAX_PES:
        yield f"cube.pe_layout: {config.pes_per_cube} PEs must be <= {MAX_PES}: the address table holds no more"
    if config.cube.hbm.size_gib > HBM_WINDOW_GIB:
        yield (
            f"cube.hbm.size_gib = {config.cube.hbm.size_gib:g} must be <= {HBM_WINDOW_GIB} [GiB]: the HBM window of an "
            "address holds no more"
        )
    for name, size, window in (
        ("cube.pe.pe_tcm.size_mb", config.cube.pe.pe_tcm.size_mb, TCM_WINDOW_MIB),
        ("cube.sram.size_mib", config.cube.sram.size_mib, SRAM_WINDOW_MIB),
    ):
        if size > window:
            yield f"{name} = {size:g} must be <= {window} [MiB]: its range of the address table holds no more"


def _sips(config: MachineConfig) -> Iterator[str]:
    sips = config.system.sips
    if sips.topology in ("ring_1d", "fully_connected"):
        if sips.w is not None or sips.h is not None:
            yield f"system.sips: w and h belong to 2-D topologies, {sips.topology} has none; remove them"
        return
    if (sips.w is None) != (sips.h is None):
        yield f"system.sips: topology {sips.topology} needs both w and h, or neither for a square count"
    elif sips.w is not None and sips.h is not None:
        if sips.w * sips.h != sips.count:
            yield (
                f"system.sips: w x h = {sips.w} x {sips.h} = {sips.w * sips.h} must equal count = {sips.count}; "
                "change one of them"
            )
    elif math.isqrt(sips.count) ** 2 != sips.count:
        yield f"system.sips.count = {sips.count} is no square: topology {sips.topology} then needs w and h"


def _mesh(config: MachineConfig) -> Iterator[str]:
    noc = config.cube.noc
    removed = set(noc.removed)
    for row, col in noc.removed:
        if row >= noc.rows or col >= noc.cols:
            yield f"cube.noc.removed: [{row}, {col}] is outside the {noc.rows} x {noc.cols} mesh"
    places = pe_places(config)
    taken: dict[tuple[int, int], int] = {}
    for pe, place in enumerate(places):
        where = f"PE {pe} at router [{place[0]}, {place[1]}]"
        if not (0 <= place[0] < noc.rows and 0 <= place[1] < noc.cols):
            yield f"cube.pe_layout: {where} is outside the {noc.rows} x {noc.cols} mesh; give cube.pe_layout.pe_routers"
        elif place in removed:
            yield f"cube.pe_layout: {where} stands on a removed router; give cube.pe_layout.pe_routers"
        elif place in taken:
            yield f"cube.pe_layout: {where} collides with PE {taken[place]}; give cube.pe_layout.pe_routers"
        taken.setdefault(place, pe)
    for (side, conn), place in port_places(config).items():
        if place in removed:
            yield (
                f"cube.noc.removed: router [{place[0]}, {place[1]}] carries UCIe connection {conn} of side "
                f"{side.upper()}; keep it, or lower cube.ucie.connections"
            )
    left = {(r, c) for r in range(noc.rows) for c in range(noc.cols)} - removed
    if left and len(_reached(left)) < len(left):
        yield "cube.noc.removed: the routers left are cut into parts; keep one that joins them"
    if not left:
        yield "cube.noc.removed: no router is left"
    for name, (x, y) in (("m_cpu", config.cube.m_cpu.pos_mm), ("sram", config.cube.sram.pos_mm)):
        width, height = noc.cols * noc.pitch_mm, noc.rows * noc.pitch_mm
        if not (0 <= x <= width and 0 <= y <= height):
            yield f"cube.{name}.pos_mm = [{x:g}, {y:g}] must be on the die of {width:g} x {height:g} [mm]"


def pe_places(config: MachineConfig) -> list[tuple[int, int]]:
    """Return the router (row, column) of each PE of a cube."""
    layout, noc = config.cube.pe_layout, config.cube.noc
    if layout.pe_routers:
        return list(layout.pe_routers)
    row_of = {"NW": 0, "NE": 1, "SW": noc.rows - 2, "SE": noc.rows - 1}
    n = layout.pe_per_corner
    places = []
    for corner in layout.corners:
        cols = range(n) if corner.endswith("W") else range(noc.cols - n, noc.cols)
        places += [(row_of[corner], col) for col in cols]
    return places


def port_places(config: MachineConfig) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the router (row, column) of each UCIe port of a cube, by side ("e", "w", "n", "s") and connection."""
    rows, cols = config.cube.noc.rows, config.cube.noc.cols
    places = {}
    for conn in range(config.cube.ucie.connections):
        row, col = min(1 + conn, rows - 1), min(1 + conn, cols - 1)
        places["e", conn], places["w", conn] = (row, cols - 1), (row, 0)
        places["n", conn], places["s", conn] = (0, col), (rows - 1, col)
    return places


def _reached(left: set[tuple[int, int]]) -> set[tuple[int, int]]:
    start = min(left)
    seen, todo = {start}, [start]
    while todo:
        row, col = todo.pop()
        for near in ((row, col + 1), (row, col - 1), (row - 1, col), (row + 1, col)):
            if near in left and near not in seen:
                seen.add(near)
                todo.append(near)
    return seen


def _hbm(config: MachineConfig) -> Iterator[str]:
    hbm, dma = config.cube.hbm, config.cube.pe.pe_dma
    for name, value in (("burst_bytes", hbm.burst_bytes), ("channels", hbm.channels)):
        if value & (value - 1):
            yield f"cube.hbm.{name} = {value} must be a power of two"
    total = hbm.channels * hbm.channel_bw_gbs * hbm.efficiency
    for name, bw in (("cube.hbm.bw_gbs", hbm.bw_gbs), ("cube.pe.pe_dma.bw_gbs", dma.bw_gbs)):
        if bw < total:
            yield (
                f"{name} = {bw:g} must be >= {total:g} [GB/s], the slice's own bandwidth (channels x channel_bw_gbs x "
                "efficiency): no link between a PE and its slice is narrower than the slice"
            )
    if hbm.slice_bytes(config.pes_per_cube) < hbm.channels * hbm.burst_bytes:
        yield (
            f"cube.hbm.size_gib = {hbm.size_gib:g} over {config.pes_per_cube} PEs leaves slices of "
            f"{hbm.slice_bytes(config.pes_per_cube)} B, less than one burst of each channel; enlarge it"
        )


def _tcm(config: MachineConfig) -> Iterator[str]:
    pe = config.cube.pe
    tcm, ipcq, tile = pe.pe_tcm, pe.pe_ipcq, pe.pe_gemm.tile
    rings = ipcq.n_slots * ipcq.slot_bytes * _RING_DIRECTIONS
    need = (tcm.tile_buffer_mb + tcm.kernel_scratch_mb) * MIB + rings
    if need > tcm.size_mb * MIB:
        yield (
            f"cube.pe.pe_tcm.size_mb = {tcm.size_mb:g} must be >= {need / MIB:g} [MiB]: tile buffers, kernel scratch "
            f"and {_RING_DIRECTIONS} rings of {ipcq.n_slots} x {ipcq.slot_bytes} B; enlarge it or shrink those"
        )
    if tcm.scratch_result_kib * KIB > tcm.kernel_scratch_mb * MIB:
        yield (
            f"cube.pe.pe_tcm.scratch_result_kib = {tcm.scratch_result_kib} must be <= "
            f"{tcm.kernel_scratch_mb * 1024:g} [KiB], the whole kernel scratch"
        )
    buffers = tcm.buffers_per_operand * _WIDEST_ITEM * (tile.m * tile.k + tile.k * tile.n)
    if buffers > tcm.tile_buffer_mb * MIB:
        yield (
            f"cube.pe.pe_tcm.tile_buffer_mb = {tcm.tile_buffer_mb:g} must be >= {buffers / MIB:g} [MiB]: "
            f"{tcm.buffers_per_operand} buffers of each operand's tile at {_WIDEST_ITEM} B per element"
        )
