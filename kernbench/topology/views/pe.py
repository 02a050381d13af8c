"""The PE view: the parts of a PE and what flows between them."""

from __future__ import annotations

from kernbench.topology import naming
from kernbench.topology.graph import Graph
from kernbench.topology.views.shapes import Box, Line, View, between, rate
from kernbench.units import GIB

_W, _H = 3.6, 1.5
_PITCH_X, _PITCH_Y = 5.8, 3.0


def pe_view(graph: Graph) -> View:
    """Return the PE view. All PEs are alike: it shows PE 0 of cube 0 of SIP 0."""
    config, layout = graph.blocks.config, graph.layout
    cube, pe = config.cube, config.cube.pe
    gemm, math, tcm, ipcq, dma = pe.pe_gemm, pe.pe_math, pe.pe_tcm, pe.pe_ipcq, pe.pe_dma
    f16 = gemm.macs_per_cycle.f16
    ports = f"{tcm.read_bw_gbs:g} / {tcm.write_bw_gbs:g} GB/s"
    size = f"{gemm.tile.m} x {gemm.tile.k} x {gemm.tile.n}"
    slice_gib = cube.hbm.slice_bytes(len(layout.pes)) / GIB
    channels = f"{cube.hbm.channels} x {rate(cube.hbm.channel_bw_gbs)}"
    # (column, row) of a grid: control on top, data from the fabric on the left to the engines on the right.
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
        "pe_gemm": (4, 0, ("PE_GEMM", f"{f16} MAC/cycle f16, {gemm.clock_ghz:g} GHz", f"tile {size}")),
        "pe_math": (4, 2, ("PE_MATH", f"{math.lanes_16bit} lanes of 16 bit", f"{math.clock_ghz:g} GHz")),
    }
    fabric = {"hbm_ctrl": naming.hbm(0, 0, 0), "router": naming.router(0, 0, *layout.pes[0])}
    boxes = {}
    for part, (col, row, (label, *detail)) in parts.items():
        node_id = fabric.get(part, naming.pe_part(0, 0, 0, part))
        boxes[part] = Box(node_id, part, 0.6 + col * _PITCH_X, 0.6 + row * _PITCH_Y, _W, _H, label, tuple(detail))
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
    width, height = 1.2 + 4 * _PITCH_X + _W, 1.2 + 2 * _PITCH_Y + _H
    note = "TCM ports: read / write; PE_IPCQ sends over the link of PE_DMA"
    return View("pe", "PE", width, height, "", tuple(boxes.values()), lines, (note,))
