"""Checks of what PEs do: launches, stages of a tile, vector operations, space in TCM, the ideal product."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise, product
from math import log2
from typing import Any

from kernbench._units import ACK_BYTES, KIB, MIB, decimal_product, ns_to_ps, serialization_ps
from kernbench.analysis import _transfer as transfer
from kernbench.analysis._records import Op, Records
from kernbench.analysis._roofline import ideal_gemm
from kernbench.analysis._stages import STAGE_ENGINES
from kernbench.analysis.utilization import composite_window
from kernbench.errors import OutOfMemoryError
from kernbench.kernels.gemm import STAGINGS, gemm
from kernbench.policy._routing import reverse, router_of
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.probe import closed_form, legs
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine
from tests.reference.simulator import Reference
from tests.verification.network import Check, Sample

_HERE = DPPolicy(num_cubes=1, num_pes=1)
SHAPES = ((16, 16, 16), (32, 64, 32), (40, 200, 50), (64, 64, 64), (128, 256, 128), (32, 3072, 32), (256, 256, 256))


def _name(mkn: Sequence[int]) -> str:
    return "x".join(map(str, mkn))


def product_of(machine: Machine, mkn: Sequence[int], staging: str, epilogue: tuple[str, ...] = ()) -> Records:
    """Return the records of one product on one PE, every tile logged."""
    m, k, n = mkn

    def program(torch: RuntimeContext) -> None:
        a, b, c = (torch.empty(*s, dtype=torch.float16, dp=_HERE, device="ahbm") for s in ((m, k), (k, n), (m, n)))
        torch.launch("gemm", gemm, a, b, c, m, k, n, staging, epilogue)

    return run_program(machine, program, log="tile").records


def _cut(size: int, by: int) -> list[range]:
    return [range(at, min(at + by, size)) for at in range(0, size, by)]


def _touched(rows: range, cols: range, width: int, burst_bytes: int) -> int:
    """Return how many lines hold a tile of 16-bit elements, stored row by row."""
    found: set[int] = set()
    for row in rows:
        first, last = 2 * (row * width + cols.start), 2 * (row * width + cols.stop) - 1
        found.update(range(first // burst_bytes, last // burst_bytes + 1))
    return len(found)


def lines(machine: Machine, repeats: int) -> list[Sample]:
    """Compare the time of an HBM slice with the lines that the tiles of a, b and the output touch."""
    where, hbm, tile = machine.with_({"cube.hbm.gather": "strided"}), machine.config.cube.hbm, _tile(machine)
    samples = []
    for m, k, n in SHAPES:
        bursts = 0
        for rows, cols in product(_cut(m, tile.m), _cut(n, tile.n)):
            bursts += _touched(rows, cols, n, hbm.burst_bytes)
            for depth in _cut(k, tile.k):
                bursts += _touched(rows, depth, k, hbm.burst_bytes) + _touched(depth, cols, n, hbm.burst_bytes)
        busy = product_of(where, (m, k, n), "ref_ref").busy_by_component()[naming.hbm(0, 0, 0)]
        samples.append(Sample(_name((m, k, n)), bursts, busy * hbm.channels / hbm.burst_ps))
    return samples


def _tile(machine: Machine) -> Any:
    return machine.config.cube.pe.pe_gemm.tile


def _nothing(*_args: object, tl: object) -> None:
    """Do nothing: the program ends when it starts."""


def _launch(machine: Machine, sip: int, targets: Sequence[tuple[int, int]], arguments: int) -> tuple[GraphEngine, Any]:
    engine = GraphEngine(machine)
    sent = engine.launch(sip, targets, _nothing, (0,) * arguments, "nothing")
    engine.wait(sent.done)
    return engine, sent


def _launches(machine: Machine, repeats: int, *, end: bool) -> list[Sample]:
    """Launch on one PE: compare when its program starts, or when the host knows of its end."""
    config, samples = machine.config, []
    cubes = sorted({0, config.cubes_per_sip // 2, config.cubes_per_sip - 1})
    service_ns = config.sip.io.io_cpu.service_ns + config.cube.m_cpu.service_ns + config.cube.pe.pe_cpu.command_ns
    for sip, cube, pe, arguments in product({0, config.n_sips - 1}, cubes, range(config.pes_per_cube), (0, 3, 40)):
        engine, sent = _launch(machine, sip, [(cube, pe)], arguments)
        expected = ns_to_ps(service_ns)
        for a, b in pairwise(("host", naming.io_cpu(sip), naming.m_cpu(sip, cube), naming.pe_cpu(sip, cube, pe))):
            expected += closed_form(machine, "send", a, b, 64 + 8 * arguments).total
            if end:
                answers = legs(machine.graph, reverse(router_of(machine.graph).path(a, b)))
                expected += transfer.message_parts(answers, ACK_BYTES).total
        measured = int(engine.env.now) if end else sent.start_ps
        samples.append(Sample(f"sip{sip}.cube{cube}.pe{pe}, {arguments} arguments", expected, measured))
    return samples


def common_start(machine: Machine, repeats: int) -> list[Sample]:
    """Compare the start of many programs with the last copy: messages and services of the reference."""
    config, samples = machine.config, []
    everyone = list(product(range(config.cubes_per_sip), range(config.pes_per_cube)))
    subsets = everyone[: config.pes_per_cube], everyone[:: config.pes_per_cube], everyone
    for targets, arguments in product(subsets, (0, 5)):
        engine, sent = _launch(machine, 0, targets, arguments)
        sim, nbytes = Reference(machine), 64 + 8 * arguments
        taken: list[int] = []
        forward = partial(sim.forward, 0, targets, nbytes, lambda *_, sim=sim, taken=taken: taken.append(sim.now))
        sim.through("host", naming.io_cpu(0), nbytes, forward)
        sim.run()
        label = f"{len(targets)} PEs, {arguments} arguments"
        samples.append(Sample(label, max(taken), sent.target_start_ps))
        samples.append(Sample(f"late starts, {label}", 0, len(engine.records().of_kind("skew"))))
    return samples


def issue(machine: Machine, repeats: int) -> list[Sample]:
    """Load as often as reads may be outstanding."""
    n = machine.config.cube.pe.pe_dma.outstanding_reads

    def kernel(x_ptr: Any, *, tl: Any) -> None:
        tl.wait(*[tl.load(x_ptr + 128 * i, shape=(128,)) for i in range(n)])

    engine = GraphEngine(machine)
    with RuntimeContext(engine) as torch:
        torch.launch("loads", kernel, torch.empty(128 * n, dtype=torch.float16, dp=_HERE, device="ahbm"))
    start, each = list(engine.launches)[-1].start_ps, ns_to_ps(machine.config.cube.pe.pe_cpu.command_ns)
    starts = sorted(torch.result.records.of_kind("load").start_ps.tolist())
    return [Sample(f"load {i}", start + (i + 1) * each, t) for i, t in enumerate(starts)]


def _tiles(machine: Machine, mkn: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return m, k and n of the tiles of a product, in order m, n, k."""
    tile, (m, k, n) = _tile(machine), mkn
    cuts = product(_cut(m, tile.m), _cut(n, tile.n), _cut(k, tile.k))
    return [(len(rows), len(depth), len(cols)) for rows, cols, depth in cuts]


def counts(machine: Machine, repeats: int) -> list[Sample]:
    """Count rows and bytes of products."""
    samples = []
    for mkn in SHAPES:
        tiles, outputs = _tiles(machine, mkn), len(_cut(mkn[0], _tile(machine).m)) * len(_cut(mkn[2], _tile(machine).n))
        records = product_of(machine, mkn, "ref_ref")
        for kind, n in {"fetch": len(tiles), "gemm": len(tiles), "dma_in": 2 * len(tiles), "dma_out": outputs}.items():
            samples.append(Sample(f"rows of {kind}, {_name(mkn)}", n, len(records.of_kind(kind))))
        for way, n in {"in": sum(2 * (m * k + k * n) for m, k, n in tiles), "out": 2 * mkn[0] * mkn[2]}.items():
            samples.append(Sample(f"bytes {way}, {_name(mkn)}", n, int(records.of_kind(f"dma_{way}").nbytes.sum())))
    return samples


def _stage(kind: str, machine: Machine, repeats: int) -> list[Sample]:
    """Compare the time of one stage with each tile."""
    samples = []
    pe, tile = machine.config.cube.pe, _tile(machine)
    for mkn in SHAPES:
        tiles = _tiles(machine, mkn)
        for op in product_of(machine, mkn, "load_ref").of_kind(kind):
            m, k, n = tiles[op.tile]
            amount, rate = {
                "fetch": (2 * (m * k + k * n), pe.pe_tcm.read_bw_gbs),
                "gemm": (
                    tile.m * tile.k * tile.n,
                    decimal_product(pe.pe_gemm.macs_per_cycle.f16, pe.pe_gemm.clock_ghz),
                ),
                "store_tcm": (2 * m * n, pe.pe_tcm.write_bw_gbs),
            }[kind]
            expected = serialization_ps(amount, rate)
            samples.append(Sample(f"tile {op.tile} of {_name(mkn)}", expected, op.end_ps - op.start_ps))
    return samples


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
    ops = {kind: _by_tile(records, kind) for kind in (*STAGE_ENGINES, "dma_out")}
    outputs = sorted(ops["math"])
    taken: dict[tuple[str, int], int] = {}
    free = dict.fromkeys(STAGE_ENGINES, 0)

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


def buffers(machine: Machine, repeats: int) -> list[Sample]:
    """Compare when each stage begins with each tile, for each slow stage and number of buffers."""
    samples = []
    for (name, change), count in product(SLOW.items(), (1, 2, 3)):
        where = machine.with_({**change, "cube.pe.pe_tcm.stage_buffers": count})
        records = product_of(where, (96, 128, 96), "load_load", ("exp",))
        for (stage, tile), expected, measured in recurrence(records, count):
            samples.append(Sample(f"{stage} of tile {tile}, {name}, buffers: {count}", expected, measured))
    one = machine.with_({"cube.pe.pe_tcm.buffers_per_operand": 1})
    records = product_of(one, (32, 640, 32), "load_ref")
    reads, fetches = _by_tile(records, "dma_in"), _by_tile(records, "fetch")
    samples += [
        Sample(f"read of tile {i}, one buffer for the operand", fetches[i - 1].end_ps, reads[i].start_ps)
        for i in sorted(reads)[1:]
    ]
    return samples


_VECTOR: dict[str, Callable[[Any, Any], object]] = {  # by name in the log
    "add": lambda tl, x: x + x,
    "mul": lambda tl, x: x * 3.0,
    "exp": lambda tl, x: tl.exp(x),
    "log": lambda tl, x: tl.log(x),
    "sqrt": lambda tl, x: tl.sqrt(x),
    "sum": lambda tl, x: tl.sum(x, axis=0),
    "max": lambda tl, x: tl.max(x, axis=0, return_indices=True)[0],  # without places it is of 32 bits
}
_SLOW_OPS, _REDUCTIONS = ("exp", "log", "sqrt"), ("sum", "max")


def _vector_ops(machine: Machine, dtype: str, elements: int) -> dict[str, Op]:
    def kernel(x_ptr: Any, n: int, *, tl: Any) -> None:
        x = tl.load(x_ptr, shape=(n,))
        kept = [operation(tl, x) for operation in _VECTOR.values()]
        tl.wait(kept[-1])

    def program(torch: RuntimeContext) -> None:
        torch.launch("vector", kernel, torch.ones(elements, dtype=dtype, dp=_HERE, device="ahbm"), elements)

    return {op.command.name: op for op in run_program(machine, program, log="tile").records.of_kind("math")}


def vector(machine: Machine, repeats: int) -> list[Sample]:
    """Compare the times of vector operations, of sizes around the lanes."""
    math = machine.config.cube.pe.pe_math
    samples = []
    for dtype, lanes in (("float16", math.lanes_16bit), ("float32", math.lanes_32bit)):
        for elements in (1, lanes - 1, lanes, lanes + 1, 5000):
            ops = _vector_ops(machine, dtype, elements)
            for name in _VECTOR:
                cycles = -(-elements // lanes) * (math.slow_op_cycles if name in _SLOW_OPS else 1)
                cycles += int(log2(lanes)) if name in _REDUCTIONS else 0
                expected = serialization_ps(cycles, math.clock_ghz)
                measured = ops[name].end_ps - ops[name].start_ps
                samples.append(Sample(f"{name} of {elements} {dtype}", expected, measured))
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

    records = run_program(machine, program).records
    stored = int(records.of_kind("store").end_ps.max())
    return found[0], found[1], int(records.of_kind("load").start_ps.max()), stored


def space(machine: Machine, repeats: int) -> list[Sample]:
    """Fill TCM."""
    samples = []
    for change in ({}, {"cube.pe.pe_tcm.size_mb": 7.5}, {"cube.pe.pe_tcm.tile_buffer_mb": 9}):
        where = machine.with_(change)
        tcm = where.config.cube.pe.pe_tcm
        scratch = int(tcm.kernel_scratch_mb * MIB)
        room = int(tcm.size_mb * MIB) - int(tcm.tile_buffer_mb * MIB) - scratch
        label = f"{tcm.size_mb} MiB, {tcm.tile_buffer_mb} of them tile buffers"
        held, kept, waited, stored = _filled(where, room)
        command = ns_to_ps(where.config.cube.pe.pe_cpu.command_ns)
        samples.append(Sample(f"operands [B], {label}", room - room % (64 * KIB), held))
        samples.append(Sample(f"small results [B], {label}", scratch, kept))
        samples.append(Sample(f"load that waits for room [ps], {label}", stored + command, waited))
    return samples


_STREAMED = {"ref_ref": ("a", "b"), "load_ref": ("b",), "load_load": ()}


def ideal(machine: Machine, repeats: int) -> list[Sample]:
    """Compare products with their ideal."""
    samples = []
    for mkn, staging in product(SHAPES, STAGINGS):
        start, end = composite_window(product_of(machine, mkn, staging))
        expected = ideal_gemm(machine.config, mkn, streamed=_STREAMED[staging]).time_ns
        samples.append(Sample(f"{_name(mkn)} {staging} [ns]", expected, (end - start) / 1000))
    return samples


CHECKS = (
    Check("lines", "M4.6", "operands stored row by row: lines that tiles touch", lines, "bursts"),
    Check(
        "launch-start", "M5.1", "start of a program: three messages, three services", partial(_launches, end=False)
    ),
    Check("common-start", "M5.2", "start of many programs: the last copy of the launch", common_start),
    Check("launch-end", "M5.3", "the host knows of its end: three answers of 16 B", partial(_launches, end=True)),
    Check("issue", "M5.4", "a command every command_ns", issue),
    Check("counts", "M5.5", "tiles of a product: pieces of work, bytes in and out", counts, "B"),
    Check("fetch", "M5.5", "fetch of a tile", partial(_stage, "fetch")),
    Check("matrix", "M5.5", "product of a tile, ragged ones too", partial(_stage, "gemm")),
    Check("store", "M5.5", "store of an output tile", partial(_stage, "store_tcm")),
    Check("buffers", "M5.6", "stages that stall: when each begins with each tile", buffers),
    Check("vector", "M5.7", "operations of PE_MATH", vector),
    Check("space", "M5.8", "what fits into TCM, and a load that waits for room", space, "B or ps"),
    Check(
        "ideal", "M5.9", "a product on one PE and its ideal", ideal, "%", None,
        "a bound to judge by: the ideal knows no buffers",
    ),
)  # fmt: skip
