"""Checks of what PEs do: launches, stages of a tile, vector operations, space in TCM, the ideal product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import log2
from typing import Any

from kernbench.analysis import transfer
from kernbench.analysis.records import Op, Records
from kernbench.analysis.roofline import ideal_gemm
from kernbench.analysis.transfer import Channels
from kernbench.analysis.utilization import composite_window
from kernbench.errors import OutOfMemoryError
from kernbench.kernels.gemm import STAGINGS, gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.routing import Router, reverse
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.probe import legs
from kernbench.studies.validation_network import Check, Sample, register
from kernbench.studies.validation_reference import Reference
from kernbench.topology import naming
from kernbench.topology.builder import Machine
from kernbench.units import KIB, MIB, ns_to_ps, serialization_ps

CHECKS: list[Check] = []
check = partial(register, CHECKS)

_HERE = DPPolicy(num_cubes=1, num_pes=1)


SHAPES = ((16, 16, 16), (32, 64, 32), (40, 200, 50), (64, 64, 64), (128, 256, 128), (32, 3072, 32), (256, 256, 256))


def product_of(machine: Machine, mkn: Sequence[int], staging: str, epilogue: tuple[str, ...] = ()) -> Records:
    """Return the records of one product on one PE, every tile logged."""
    m, k, n = mkn

    def program(torch: RuntimeContext) -> None:
        a, b, c = (torch.empty(*s, dtype=torch.float16, dp=_HERE, device="ahbm") for s in ((m, k), (k, n), (m, n)))
        torch.launch("gemm", gemm, a, b, c, m, k, n, staging, epilogue)

    return run_program(machine, program, log="tile").records


def _bursts(machine: Machine, mkn: Sequence[int]) -> int:
    """Return how many lines the tiles of a, b and the output touch in all."""
    burst, tile = machine.config.cube.hbm.burst_bytes, machine.config.cube.pe.pe_gemm.tile
    m, k, n = mkn

    def touched(rows: range, cols: range, width: int) -> int:
        found: set[int] = set()
        for row in rows:
            first, last = 2 * (row * width + cols.start), 2 * (row * width + cols.stop) - 1
            found.update(range(first // burst, last // burst + 1))
        return len(found)

    total = 0
    for i, j in product(range(0, m, tile.m), range(0, n, tile.n)):
        rows, cols = range(i, min(i + tile.m, m)), range(j, min(j + tile.n, n))
        total += touched(rows, cols, n)
        for p in range(0, k, tile.k):
            depth = range(p, min(p + tile.k, k))
            total += touched(rows, depth, k) + touched(depth, cols, n)
    return total


@check("lines", "M4.6", "operands stored row by row: lines that tiles touch", "bursts")
def lines(machine: Machine, repeats: int) -> list[Sample]:
    hbm = machine.config.cube.hbm
    where = machine.with_({"cube.hbm.gather": "strided"})
    burst_ps = Channels.of(hbm).burst_ps
    samples = []
    for mkn in SHAPES:
        busy = product_of(where, mkn, "ref_ref").busy_by_component()[naming.hbm(0, 0, 0)]
        bursts = _bursts(where, mkn)
        samples.append(Sample("x".join(map(str, mkn)), bursts, busy * hbm.channels / burst_ps))
    return samples


def _message_ps(machine: Machine, src: str, dst: str, nbytes: int, *, back: bool = False) -> int:
    path = Router(machine.graph).path(src, dst)
    return transfer.message(legs(machine.graph, reverse(path) if back else path), nbytes).total


def _nothing(*_args: object, tl: object) -> None:
    """Do nothing: the program ends when it starts."""


def _launches(machine: Machine) -> Iterator[tuple[str, int, int, int, int, GraphEngine, Any]]:
    config = machine.config
    for sip in {0, config.n_sips - 1}:
        for cube in sorted({0, config.cubes_per_sip // 2, config.cubes_per_sip - 1}):
            for pe in range(config.pes_per_cube):
                for arguments in (0, 3, 40):
                    engine = GraphEngine(machine)
                    sent = engine.launch(sip, [(cube, pe)], _nothing, (0,) * arguments, "nothing")
                    engine.wait(sent.done)
                    yield f"sip{sip}.cube{cube}.pe{pe}, {arguments} arguments", sip, cube, pe, arguments, engine, sent


def _start_ps(machine: Machine, sip: int, cube: int, pe: int, arguments: int) -> int:
    io_cpu, m_cpu, pe_cpu = naming.io_cpu(sip), naming.m_cpu(sip, cube), naming.pe_cpu(sip, cube, pe)
    config, nbytes = machine.config, 64 + 8 * arguments
    ways = (("host", io_cpu), (io_cpu, m_cpu), (m_cpu, pe_cpu))
    service = config.sip.io.io_cpu.service_ns + config.cube.m_cpu.service_ns + config.cube.pe.pe_cpu.command_ns
    return sum(_message_ps(machine, a, b, nbytes) for a, b in ways) + ns_to_ps(service)


@check("launch-start", "M5.1", "start of a program: three messages, three services")
def launch_start(machine: Machine, repeats: int) -> list[Sample]:
    return [
        Sample(label, _start_ps(machine, sip, cube, pe, arguments), sent.start_ps)
        for label, sip, cube, pe, arguments, _, sent in _launches(machine)
    ]


def _last_arrival(machine: Machine, targets: Sequence[tuple[int, int]], nbytes: int) -> int:
    """Return when the last PE_CPU has its copy: messages of the reference, services of the machine file."""
    config, sim, io_cpu = machine.config, Reference(machine), naming.io_cpu(0)
    taken: list[int] = []
    cubes: dict[int, list[int]] = {}
    for cube, pe in targets:
        cubes.setdefault(cube, []).append(pe)

    def after(ns: float, fn: Callable[[], None]) -> Callable[[], None]:
        return lambda: sim.at(sim.now + ns_to_ps(ns), fn)

    def to_pes(cube: int) -> None:
        end = after(config.cube.pe.pe_cpu.command_ns, lambda: taken.append(sim.now))
        for pe in cubes[cube]:
            sim.send(naming.m_cpu(0, cube), naming.pe_cpu(0, cube, pe), nbytes, end)

    def to_cubes() -> None:
        for cube in cubes:
            arrived = after(config.cube.m_cpu.service_ns, partial(to_pes, cube))
            sim.send(io_cpu, naming.m_cpu(0, cube), nbytes, arrived)

    sim.send("host", io_cpu, nbytes, after(config.sip.io.io_cpu.service_ns, to_cubes))
    sim.run()
    return max(taken)


@check("common-start", "M5.2", "start of many programs: the last copy of the launch")
def common_start(machine: Machine, repeats: int) -> list[Sample]:
    config = machine.config
    everyone = [(cube, pe) for cube in range(config.cubes_per_sip) for pe in range(config.pes_per_cube)]
    samples = []
    for targets in (everyone[: config.pes_per_cube], everyone[:: config.pes_per_cube], everyone):
        for arguments in (0, 5):
            engine = GraphEngine(machine)
            sent = engine.launch(0, targets, _nothing, (0,) * arguments, "nothing")
            engine.wait(sent.done)
            expected = _last_arrival(machine, targets, 64 + 8 * arguments)
            label = f"{len(targets)} PEs, {arguments} arguments"
            samples.append(Sample(label, expected, sent.target_start_ps))
            samples.append(Sample(f"late starts, {label}", 0, len(engine.records().of_kind("skew"))))
    return samples


@check("launch-end", "M5.3", "the host knows of its end: three answers of 16 B")
def launch_end(machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    for label, sip, cube, pe, arguments, engine, _ in _launches(machine):
        io_cpu, m_cpu, pe_cpu = naming.io_cpu(sip), naming.m_cpu(sip, cube), naming.pe_cpu(sip, cube, pe)
        ways = (("host", io_cpu), (io_cpu, m_cpu), (m_cpu, pe_cpu))
        answers = sum(_message_ps(machine, a, b, 16, back=True) for a, b in ways)
        samples.append(Sample(label, _start_ps(machine, sip, cube, pe, arguments) + answers, int(engine.env.now)))
    return samples


@check("issue", "M5.4", "a command every command_ns")
def issue(machine: Machine, repeats: int) -> list[Sample]:
    n = machine.config.cube.pe.pe_dma.outstanding_reads

    def kernel(x_ptr: Any, *, tl: Any) -> None:
        tl.wait(*[tl.load(x_ptr + 128 * i, shape=(128,)) for i in range(n)])

    engine = GraphEngine(machine)
    with RuntimeContext(engine) as torch:
        x = torch.empty(128 * n, dtype=torch.float16, dp=_HERE, device="ahbm")
        torch.launch("loads", kernel, x)
    start = engine.launches[-1].start_ps
    assert start is not None
    each = ns_to_ps(machine.config.cube.pe.pe_cpu.command_ns)
    starts = sorted(torch.result.records.of_kind("load").start_ps.tolist())
    return [Sample(f"load {i}", start + (i + 1) * each, t) for i, t in enumerate(starts)]


def _tiles(machine: Machine, mkn: Sequence[int]) -> list[tuple[int, int, int, bool]]:
    """Return (m, k, n, last of its k) of the tiles of a product, in order m, n, k."""
    tile = machine.config.cube.pe.pe_gemm.tile

    def cut(size: int, by: int) -> list[int]:
        return [min(by, size - at) for at in range(0, size, by)]

    ks = cut(mkn[1], tile.k)
    return [
        (m, k, n, p == len(ks) - 1) for m in cut(mkn[0], tile.m) for n in cut(mkn[2], tile.n) for p, k in enumerate(ks)
    ]


@check("counts", "M5.5", "tiles of a product: pieces of work, bytes in and out", "B")
def counts(machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    for mkn in SHAPES:
        tiles = _tiles(machine, mkn)
        outputs = [tile for tile in tiles if tile[3]]
        records = product_of(machine, mkn, "ref_ref")
        name = "x".join(map(str, mkn))
        for kind, n in (
            ("fetch", len(tiles)),
            ("gemm", len(tiles)),
            ("dma_in", 2 * len(tiles)),
            ("dma_out", len(outputs)),
        ):
            samples.append(Sample(f"rows of {kind}, {name}", n, len(records.of_kind(kind))))
        into = sum(2 * (m * k + k * n) for m, k, n, _ in tiles)
        samples.append(Sample(f"bytes in, {name}", into, int(records.of_kind("dma_in").nbytes.sum())))
        samples.append(Sample(f"bytes out, {name}", 2 * mkn[0] * mkn[2], int(records.of_kind("dma_out").nbytes.sum())))
    return samples


def _stage(kind: str, machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    pe = machine.config.cube.pe
    tile, rate = pe.pe_gemm.tile, pe.pe_gemm.macs_per_cycle.f16 * pe.pe_gemm.clock_ghz
    for mkn in SHAPES:
        tiles = _tiles(machine, mkn)
        for op in product_of(machine, mkn, "load_ref").of_kind(kind):
            m, k, n, _ = tiles[op.tile]
            expected = {
                "fetch": serialization_ps(2 * (m * k + k * n), pe.pe_tcm.read_bw_gbs),
                "gemm": serialization_ps(tile.m * tile.k * tile.n, rate),
                "store_tcm": serialization_ps(2 * m * n, pe.pe_tcm.write_bw_gbs),
            }[kind]
            samples.append(Sample(f"tile {op.tile} of {'x'.join(map(str, mkn))}", expected, op.end_ps - op.start_ps))
    return samples


check("fetch", "M5.5", "fetch of a tile")(partial(_stage, "fetch"))


check("matrix", "M5.5", "product of a tile, ragged ones too")(partial(_stage, "gemm"))


check("store", "M5.5", "store of an output tile")(partial(_stage, "store_tcm"))


_STAGES = ("fetch", "gemm", "math", "store_tcm")


SLOW = {
    "the file's rates": {},
    "a slow fetch": {"cube.pe.pe_tcm.read_bw_gbs": 97.3},
    "a slow matrix engine": {"cube.pe.pe_gemm.clock_ghz": 0.31},
    "a slow vector engine": {"cube.pe.pe_math.clock_ghz": 0.13},
    "a slow store": {"cube.pe.pe_tcm.write_bw_gbs": 7.7},
    "a slow way out": {"cube.hbm.channel_bw_gbs": 0.9, "cube.pe.pe_dma.outstanding_writes": 1},
}


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


@check("buffers", "M5.6", "stages that stall: when each begins with each tile")
def buffers(machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    for name, change in SLOW.items():
        for count in (1, 2, 3):
            where = machine.with_({**change, "cube.pe.pe_tcm.stage_buffers": count})
            records = product_of(where, (96, 128, 96), "load_load", ("exp",))
            for (stage, tile), expected, measured in recurrence(records, count):
                label = f"{stage} of tile {tile}, {name}, buffers: {count}"
                samples.append(Sample(label, expected, measured))
    one = machine.with_({"cube.pe.pe_tcm.buffers_per_operand": 1})
    records = product_of(one, (32, 640, 32), "load_ref")
    reads, fetches = _by_tile(records, "dma_in"), _by_tile(records, "fetch")
    samples += [
        Sample(f"read of tile {i}, one buffer for the operand", fetches[i - 1].end_ps, reads[i].start_ps)
        for i in sorted(reads)[1:]
    ]
    return samples


_VECTOR: tuple[tuple[str, bool, bool, Callable[[Any, Any], object]], ...] = (
    # name in the log, whether it is slow, whether it reduces, what the kernel does
    ("add", False, False, lambda tl, x: x + x),
    ("mul", False, False, lambda tl, x: x * 3.0),
    ("exp", True, False, lambda tl, x: tl.exp(x)),
    ("log", True, False, lambda tl, x: tl.log(x)),
    ("sqrt", True, False, lambda tl, x: tl.sqrt(x)),
    ("sum", False, True, lambda tl, x: tl.sum(x, axis=0)),
    ("max", False, True, lambda tl, x: tl.max(x, axis=0)),
)


def _vector_rows(machine: Machine, dtype: str, elements: int) -> list[Op]:
    def kernel(x_ptr: Any, n: int, *, tl: Any) -> None:
        x = tl.load(x_ptr, shape=(n,))
        kept = [function(tl, x) for _, _, _, function in _VECTOR]
        tl.wait(kept[-1])

    def program(torch: RuntimeContext) -> None:
        torch.launch("vector", kernel, torch.ones(elements, dtype=dtype, dp=_HERE, device="ahbm"), elements)

    records = run_program(machine, program, log="tile").records
    ops = {op.command.name: op for op in records.of_kind("math")}
    return [ops[name] for name, *_ in _VECTOR]


@check("vector", "M5.7", "operations of PE_MATH")
def vector(machine: Machine, repeats: int) -> list[Sample]:
    math = machine.config.cube.pe.pe_math
    samples = []
    for dtype, lanes in (("float16", math.lanes_16bit), ("float32", math.lanes_32bit)):
        for elements in (1, lanes - 1, lanes, lanes + 1, 5000):
            rows = _vector_rows(machine, dtype, elements)
            for (name, slow, reduces, _), op in zip(_VECTOR, rows, strict=True):
                cycles = -(-elements // lanes) * (math.slow_op_cycles if slow else 1)
                cycles += int(log2(lanes)) if reduces else 0
                expected = serialization_ps(cycles, math.clock_ghz)
                samples.append(Sample(f"{name} of {elements} {dtype}", expected, op.end_ps - op.start_ps))
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


@check("space", "M5.8", "what fits into TCM, and a load that waits for room", "B or ps")
def space(machine: Machine, repeats: int) -> list[Sample]:
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


_STREAMED = {"ref_ref": ("a", "b"), "load_ref": ("b",), "load_load": ()}


@check(
    "ideal", "M5.9", "a product on one PE and its ideal", "%", None, "a bound to judge by: the ideal knows no buffers"
)
def ideal(machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    for mkn in SHAPES:
        for staging in STAGINGS:
            start, end = composite_window(product_of(machine, mkn, staging))
            expected = ideal_gemm(machine.config, mkn, streamed=_STREAMED[staging]).time_ns
            samples.append(Sample(f"{'x'.join(map(str, mkn))} {staging} [ns]", expected, (end - start) / 1000))
    return samples
