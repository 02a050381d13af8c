"""Products on PEs, row by row of the log, against Stores and processes in plain SimPy.

Bandwidths, clocks and latencies share no grid, so that almost nothing happens at one instant by chance; buffers and
outstanding requests run from 1 up, so that every stage stalls somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from kernbench.topology import _naming as naming
from tests.components.one_pe import engine_of, launch, pointer
from tests.reference.pe import Gemm, Load, Pe, Place
from tests.reference.simulator import Reference
from tests.slow import slow_after

STAGES = ("load", "dma_in", "fetch", "gemm", "math", "store_tcm", "dma_out")
B, OUT, NEXT = 1 << 20, 2 << 20, 1 << 22
CYCLES = {None: None, "relu": lambda n: -(-n // 128), "exp": lambda n: 4 * -(-n // 128)}


def odd_machine(rng: Random) -> dict[str, object]:
    def odd(low: float, high: float) -> float:
        return round(rng.uniform(low, high), 3)

    return {
        "cube.pe.pe_tcm.read_bw_gbs": odd(100, 900),
        "cube.pe.pe_tcm.write_bw_gbs": odd(50, 900),
        "cube.pe.pe_tcm.stage_buffers": rng.randint(1, 3),
        "cube.pe.pe_tcm.buffers_per_operand": rng.randint(1, 4),
        "cube.pe.pe_gemm.clock_ghz": odd(0.5, 3),
        "cube.pe.pe_math.clock_ghz": odd(0.3, 3),
        "cube.pe.pe_scheduler.tile_ns": rng.choice((0, 1, odd(0, 30))),
        "cube.pe.pe_cpu.command_ns": odd(0.1, 5),
        "cube.pe.pe_dma.outstanding_reads": rng.randint(1, 5),
        "cube.pe.pe_dma.outstanding_writes": rng.randint(1, 5),
        "cube.noc.router.overhead_ns": odd(0.5, 3),
        "cube.noc.link_bw_gbs": odd(50, 300),
        "cube.hbm.access_ns": rng.choice((0, 40.1)),
        "cube.hbm.turnaround_ns": rng.choice((0, 3.3)),
    }


@dataclass(frozen=True)
class Product:
    """What one composite multiplies: sizes, which operands are loaded first, the slices of a, b and the result."""

    mkn: tuple[int, int, int]
    loaded: str
    epilogue: str | None
    slices: tuple[int, int, int]
    offset: int

    @classmethod
    def any(cls, rng: Random, number: int, slices: list[int], top: int) -> Product:
        mkn = tuple(rng.choice((rng.randint(1, top), 64, 96)) for _ in range(3))
        places = tuple(rng.choice(slices) for _ in range(3))
        offset = number * NEXT + 2 * rng.randrange(100)
        return cls(mkn, rng.choice(("", "a", "b", "ab")), rng.choice(list(CYCLES)), places, offset)

    def submit(self, tl) -> object:
        m, k, n = self.mkn
        a, b, out = (pointer(self.offset + at, of) for at, of in zip((0, B, OUT), self.slices, strict=True))
        left = tl.load(a, shape=(m, k)) if "a" in self.loaded else tl.ref(a, (m, k))
        right = tl.load(b, shape=(k, n)) if "b" in self.loaded else tl.ref(b, (k, n))
        return left, right, tl.composite("gemm", left, right, out, epilogue=[self.epilogue] if self.epilogue else [])

    def commands(self) -> list[Load | Gemm]:
        m, k, n = self.mkn
        memory = [naming.hbm(0, 0, of) for of in self.slices]
        a, b = Place(memory[0], self.offset), Place(memory[1], self.offset + B)
        made: list[Load | Gemm] = []
        if "a" in self.loaded:
            made.append(a := Load(a, m * k * 2))
        if "b" in self.loaded:
            made.append(b := Load(b, k * n * 2))
        return [*made, Gemm(m, k, n, a, b, Place(memory[2], self.offset + OUT), CYCLES[self.epilogue])]


def check(overrides, programs: list[list[Product]]) -> int:
    """Run program p on PE p in both simulators, and compare every row; return how many there were."""
    engine = engine_of(overrides, log="tile")

    def kernel(tl) -> None:
        kept = [product.submit(tl) for product in programs[tl.program_id(0)]]
        assert kept

    sent = launch(engine, kernel, *((0, pe) for pe in range(len(programs))))
    # The last to start began when the launch had reached it; all others at the same time.
    start = sent.start_ps
    reference = Reference(engine.machine)
    pes = [
        Pe(reference, naming.pe_dma(0, 0, pe), [c for product in program for c in product.commands()], start)
        for pe, program in enumerate(programs)
    ]
    reference.run()
    records = engine.records()
    for number, pe in enumerate(pes):
        rows = [r for r in records.of_pe(0, 0, number) if r.kind in STAGES]
        assert sorted((r.kind, r.start_ps, r.end_ps, r.tile) for r in rows) == sorted(map(tuple, pe.rows))
    return sum(len(pe.rows) for pe in pes)


@pytest.mark.parametrize("seed", slow_after(6, range(24)))
def test_programs_on_an_odd_machine(seed):
    rng = Random(f"odd {seed}")
    machine = odd_machine(rng)
    program = [Product.any(rng, i, [0, 0, 0, 3, 7], 140) for i in range(rng.randint(1, 3))]
    assert check(machine, [program])


@pytest.mark.parametrize("seed", slow_after(3, range(12)))
def test_programs_on_the_default_machine(seed):
    rng = Random(f"default {seed}")
    program = [Product.any(rng, i, [0, 0, 0, 3, 7], 140) for i in range(rng.randint(1, 3))]
    assert check({}, [program])


@pytest.mark.parametrize("seed", slow_after(2, range(8)))
def test_pes_that_share_slices(seed):
    rng = Random(f"shared {seed}")
    machine = odd_machine(rng)
    programs = [[Product.any(rng, 2 * pe + i, [0, 1], 70) for i in range(2)] for pe in range(4)]
    assert check(machine, programs) > 100


def test_stages_that_stall():
    # One buffer everywhere, a slow way out: each tile waits in turn for the one before it to leave.
    slow = {
        "cube.pe.pe_tcm.stage_buffers": 1,
        "cube.pe.pe_tcm.buffers_per_operand": 1,
        "cube.pe.pe_dma.outstanding_writes": 1,
        "cube.hbm.channel_bw_gbs": 3.7,
    }
    assert check(
        slow, [[Product((96, 64, 96), "ab", "exp", (0, 0, 0), 0), Product((96, 64, 64), "", None, (0, 3, 0), NEXT)]]
    )


def test_a_command_that_waits_is_planned_before_the_next_one():
    # The second product could start at once and has many tiles; the first one waits for its loads all the same.
    first, long = Product((64, 64, 64), "ab", None, (7, 7, 0), 0), Product((128, 128, 128), "", None, (0, 0, 0), NEXT)
    assert check({"cube.pe.pe_scheduler.tile_ns": 20.0}, [[first, long]])
