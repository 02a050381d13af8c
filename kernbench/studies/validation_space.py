"""Checks of limits: parts of a time that cannot be below none, buffers between stages, space in TCM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from kernbench.analysis import transfer
from kernbench.analysis.records import Op, Records
from kernbench.analysis.transfer import Parts
from kernbench.errors import OutOfMemoryError
from kernbench.kernels.gemm import gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.routing import Router, reverse
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.program import run_program
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.validation_network import channels_of, legs
from kernbench.studies.validation_row import Sample
from kernbench.studies.validation_traffic import Ask, Engine, play, random_machine
from kernbench.topology.builder import Machine
from kernbench.units import KIB, MIB, ns_to_ps

_SIZES = (16, 256, 1000, 4096, 20_000)
_HERE = DPPolicy(num_cubes=1, num_pes=1)
_STAGES = ("fetch", "gemm", "math", "store_tcm")
SLOW = {
    "the file's rates": {},
    "a slow fetch": {"cube.pe.pe_tcm.read_bw_gbs": 97.3},
    "a slow matrix engine": {"cube.pe.pe_gemm.clock_ghz": 0.31},
    "a slow vector engine": {"cube.pe.pe_math.clock_ghz": 0.13},
    "a slow store": {"cube.pe.pe_tcm.write_bw_gbs": 7.7},
    "a slow way out": {"cube.hbm.channel_bw_gbs": 0.9, "cube.pe.pe_dma.outstanding_writes": 1},
}


def parts(machine: Machine, repeats: int) -> list[Sample]:
    """Start transfers alone and at one time: alone nothing is left for queueing, and never less than nothing."""
    samples = []
    for seed in range(1 + repeats):
        where = random_machine(seed - 1) if seed else machine
        rng = Random(f"parts {seed}")
        nodes = list(where.graph.nodes())
        sources = [node.id for node in nodes if node.kind == "pe_dma"]
        slices = rng.sample([node.id for node in nodes if node.kind == "hbm_ctrl"], 1)
        asks = [
            Ask(i, rng.randrange(20_000), rng.choice(("read", "write")), src, rng.choice(slices), 0, rng.choice(_SIZES))
            for i, src in enumerate(rng.sample(sources, min(8, len(sources))))
        ]
        for ask, end in zip(asks, _ends(where, asks), strict=True):
            label = f"{ask.kind} {ask.nbytes} B, {ask.src} of {ask.dst}, machine {seed}"
            alone, [lonely] = _parts(where, ask), _ends(where, [ask])
            samples.append(Sample(f"queueing alone, {label}", 0, alone.measured(lonely - ask.wait_ps).queueing))
            queueing = alone.measured(end - ask.wait_ps).queueing
            samples.append(Sample(f"queueing below none, {label}", 0, min(0, queueing)))
    return samples


def _ends(machine: Machine, asks: Sequence[Ask]) -> list[int]:
    return play(Engine(GraphEngine(machine, log="off")), asks, closed=False)


def _parts(machine: Machine, ask: Ask) -> Parts:
    path = Router(machine.graph).path(ask.src, ask.dst)
    closed = transfer.read if ask.kind == "read" else transfer.write
    there, back = legs(machine, path), legs(machine, reverse(path))
    return closed(there, back, ask.nbytes, channels_of(machine), ask.offset)


def buffers(machine: Machine, repeats: int) -> list[Sample]:
    """Run products with every stage slow in turn: each stage begins when tile and room are there, and not before."""
    samples = []
    for name, change in SLOW.items():
        for count in (1, 2, 3):
            where = machine.with_({**change, "cube.pe.pe_tcm.stage_buffers": count})
            records = product_of(where, (96, 128, 96), "load_load", ("exp",))
            for (stage, tile), expected, measured in recurrence(records, count):
                label = f"{stage} of tile {tile}, {name}, buffers: {count}"
                samples.append(Sample(label, expected, measured))
    one = machine.with_({"cube.pe.pe_tcm.buffers_per_operand": 1})
    records = product_of(one, (32, 640, 32), "load_ref", ())
    reads, fetches = _by_tile(records, "dma_in"), _by_tile(records, "fetch")
    samples += [
        Sample(f"read of tile {i}, one buffer for the operand", fetches[i - 1].end_ps, reads[i].start_ps)
        for i in sorted(reads)[1:]
    ]
    return samples


def product_of(machine: Machine, mkn: tuple[int, int, int], staging: str, epilogue: tuple[str, ...]) -> Records:
    """Return the records of one product on one PE, every tile logged."""
    m, k, n = mkn

    def program(torch: RuntimeContext) -> None:
        a, b, c = (torch.empty(*s, dtype=torch.float16, dp=_HERE, device="ahbm") for s in ((m, k), (k, n), (m, n)))
        torch.launch("gemm", gemm, a, b, c, m, k, n, staging, epilogue)

    return run_program(machine, program, log="tile").records


def _by_tile(records: Records, kind: str) -> dict[int, Op]:
    return {op.tile: op for op in records.of_kind(kind)}


def recurrence(records: Records, count: int) -> Iterator[tuple[tuple[str, int], int, int]]:
    """Yield (stage, tile), when it may begin, and when it did."""
    ops = {kind: _by_tile(records, kind) for kind in (*_STAGES, "dma_out")}
    outputs = sorted(ops["math"])
    taken: dict[tuple[str, int], int] = {}
    free = dict.fromkeys(_STAGES, 0)

    def serve(stage: str, tile: int, ready: int, behind: int | None) -> int:
        """Serve a tile that is there at `ready`; `behind` is when room for it comes free, None for always."""
        op = ops[stage][tile]
        start = taken[stage, tile] = max(ready, free[stage])
        free[stage] = max(start + op.end_ps - op.start_ps, behind or 0)
        return free[stage]

    for tile in sorted(ops["fetch"]):
        ready = ops["fetch"][0].start_ps if not tile else 0
        left = serve("fetch", tile, ready, taken.get(("gemm", tile - count)))
        if tile not in outputs:
            serve("gemm", tile, left, None)
            continue
        earlier = outputs.index(tile) - count
        before = outputs[earlier] if earlier >= 0 else -1
        left = serve("gemm", tile, left, taken.get(("math", before)))
        left = serve("math", tile, left, taken.get(("store_tcm", before)))
        serve("store_tcm", tile, left, ops["dma_out"][before].start_ps if before >= 0 else None)
    for (stage, tile), expected in taken.items():
        yield (stage, tile), expected, ops[stage][tile].start_ps


def space(machine: Machine, repeats: int) -> list[Sample]:
    """Fill TCM with operands and with small results; a load that needs the room of a store waits for its end."""
    samples = []
    for change in ({}, {"cube.pe.pe_tcm.size_mb": 7.5}, {"cube.pe.pe_tcm.tile_buffer_mb": 9}):
        where = machine.with_(change)
        tcm = where.config.cube.pe.pe_tcm
        scratch = int(tcm.kernel_scratch_mb * MIB)
        room = int(tcm.size_mb * MIB) - int(tcm.tile_buffer_mb * MIB) - scratch
        label = f"{tcm.size_mb} MiB, {tcm.tile_buffer_mb} of them tile buffers"
        held, kept, waited, stored = _filled(where, room)
        samples.append(Sample(f"operands [B], {label}", room - room % (64 * KIB), held))
        samples.append(Sample(f"small results [B], {label}", scratch, kept))
        command = ns_to_ps(where.config.cube.pe.pe_cpu.command_ns)
        samples.append(Sample(f"load that waits for room [ps], {label}", stored + command, waited))
    return samples


def _filled(machine: Machine, room: int) -> tuple[int, int, int, int]:
    """Return bytes of operands and results that fit, when a load that waits starts, and the end of what it awaits."""
    unit, found = 64 * KIB, []

    def fill(make: Any) -> int:
        tiles = []
        try:
            while True:
                tiles.append(make())
        except OutOfMemoryError:
            return len(tiles) * unit

    def operands(x_ptr: Any, *, tl: Any) -> None:
        found.append(fill(lambda: tl.load(x_ptr, shape=(unit // 2,))))

    def results(x_ptr: Any, *, tl: Any) -> None:
        x = tl.load(x_ptr, shape=(unit // 2,))
        found.append(fill(lambda: x + 1.0))

    def waits(x_ptr: Any, *, tl: Any) -> None:
        first = tl.load(x_ptr, shape=(room // 2,))
        tl.store(x_ptr + room, first)
        del first
        tl.load(x_ptr, shape=(unit // 2,))

    def program(torch: RuntimeContext) -> None:
        x = torch.empty(2 * room, dtype=torch.float16, dp=_HERE, device="ahbm")
        for kernel in (operands, results, waits):
            torch.launch(kernel.__name__, kernel, x)

    found.clear()
    records = run_program(machine, program).records
    stored = int(records.of_kind("store").end_ps.max())
    return found[0], found[1], int(records.of_kind("load").start_ps.max()), stored
