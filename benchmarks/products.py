"""Products on one PE: the 24 points of the GEMM study, and one of them against a pipeline of Stores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.table import Row, against_definition, best
from kernbench.kernels.gemm import STAGINGS
from kernbench.studies import gemm
from kernbench.topology._naming import hbm, pe_dma
from kernbench.topology.builder import resolve_topology
from tests.components import one_pe
from tests.reference.pe import Gemm, Pe, Place
from tests.reference.simulator import Reference


def measure() -> Iterator[Row]:
    """Yield the study's 24 products in the engine, the study as a whole, and one product in both simulators."""
    yield against_definition(simulated)
    yield against_definition(studied, target="1 s")
    yield against_stores()
    yield against_simple()


def simulated() -> Row:
    """Return the study's products on the engine alone: values and every tile in the log, no host copies."""
    machine = one_pe.machine_of()
    points = [(shape, variant) for shape in gemm.SHAPES for variant in STAGINGS]

    def once() -> int:
        return sum(
            one_pe.run(one_pe.gemm(*shape, variant), machine, data=True, log="tile").network.core.reservations
            for shape, variant in points
        )

    seconds, reservations = best(once)
    return Row(
        f"GEMM, {len(points)} points, values and tile log: simulation",
        seconds,
        f"{reservations / seconds / 1e6:.2f} M reservations/s",
    )


def studied() -> Row:
    """Return the study as it is run: host copies, maps on all PEs, numpy's product beside it, the tables."""
    machine = resolve_topology("preset:default")
    seconds, rows = best(lambda: gemm.GemmStudy().run(machine, gathers=["packed"]), 2)
    return Row(f"GEMM, {len(rows)} points: the whole study on one core", seconds)


def against_stores(size: int = 160) -> Row:
    """Return one product, both operands streamed, in the engine and in plain SimPy; all rows of the log agree."""
    memory = hbm(0, 0, 0)
    machine = one_pe.machine_of()

    def stores() -> list[tuple[int, int]]:
        sim = Reference(machine)
        product = Gemm(size, size, size, Place(memory, 0), Place(memory, 1 << 24), Place(memory, 1 << 25))
        pe = Pe(sim, pe_dma(0, 0, 0), [product], 0)
        sim.run()
        return sorted((row.start_ps, row.end_ps) for row in pe.rows)

    def engine() -> list[tuple[int, int]]:
        made = one_pe.run(one_pe.gemm(size, size, size), machine, log="tile")
        start = next(iter(made.launches)).start_ps or 0
        rows = made.records().of_kind("dma_in", "fetch", "gemm", "store_tcm", "dma_out")
        return sorted((int(a) - start, int(b) - start) for a, b in zip(rows.start_ps, rows.end_ps, strict=True))

    slow, expected = best(stores, 1)
    quick, got = best(engine)
    assert got == expected, "the rows must be equal for the ratio to mean anything"
    return Row(
        f"product {size}^3, operands streamed, launch included",
        quick,
        "",
        "a SimPy process per stage and link, Stores between",
        slow / quick,
    )


def against_simple() -> Row:
    """Return the point of the GEMM study for which HBM3 costs most time of the host, against the simple memory."""
    rows = []
    for gather in gemm.GATHERS:
        changes = ({gemm.GATHER: gather, "cube.hbm.timing": name} for name in ("simple", "hbm3"))
        simple, hbm3 = (resolve_topology("preset:default", each) for each in changes)
        for shape in gemm.SHAPES:
            for variant in STAGINGS:
                quick, slow = (best(partial(gemm.run, each, shape, variant))[0] for each in (simple, hbm3))
                what = f"GEMM, {'x'.join(map(str, shape))} {variant} {gather}, memory by the commands of HBM3"
                rows.append(Row(what, slow, "", "the simple memory", quick / slow, "0.33"))
    return min(rows, key=lambda row: row.ratio or 0.0)
