"""Kernels on PEs of cube 0, the slices mapped by hand: what tests of the parts of a PE run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernbench._dtypes import float16
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.triton_emu._handles import Pointer

VA = 1 << 40
SPACE = 1 << 26


def machine_of(overrides: Mapping[str, Any] | None = None) -> Machine:
    """Return the default machine with one SIP, changed."""
    return resolve_topology("preset:default", {"system.sips.count": 1, **(overrides or {})})


def engine_of(
    overrides: Mapping[str, Any] | Machine | None = None, *, data: bool = False, **options: Any
) -> GraphEngine:
    """Return an engine of one SIP, where every PE of cube 0 has slice p of the cube mapped at VA + p * SPACE."""
    machine = overrides if isinstance(overrides, Machine) else machine_of(overrides)
    engine = GraphEngine(machine, data, **options)
    pes = range(machine.config.pes_per_cube)
    for pe in pes:
        mmu = engine.pe(0, 0, pe).mmu
        for of in pes:
            mmu.map(VA + of * SPACE, SPACE, slice_pa(engine, of), f"slice {of}")
    return engine


def slice_pa(engine: GraphEngine, pe: int) -> int:
    """Return the physical address of the first byte of a slice of cube 0."""
    return PhysAddr.pe_hbm_addr(0, 0, pe, 0, slice_bytes=engine.addresses.slice_bytes).encode()


def pointer(offset: int = 0, pe: int = 0, dtype: Any = float16) -> Pointer:
    """Return a pointer into a slice."""
    return Pointer(VA + pe * SPACE + offset, dtype)


def run(
    kernel: Callable[..., None], overrides: Mapping[str, Any] | Machine | None = None, **options: Any
) -> GraphEngine:
    """Run `kernel(tl)` on PE 0 of cube 0; return the engine after the launch."""
    engine = engine_of(overrides, **options)
    launch(engine, kernel)
    return engine


def launch(engine: GraphEngine, kernel: Callable[..., None], *targets: tuple[int, int]) -> Any:
    """Launch `kernel(tl)` on (cube, pe)s and wait for it."""
    sent = engine.launch(0, targets or ((0, 0),), kernel, (), "kernel")
    engine.wait(sent.done)
    return sent


def rows(engine: GraphEngine, kind: str) -> list[tuple[float, float]]:
    """Return (start, end) of the rows of a kind [ns], counted from the start of the program."""
    records = engine.records().of_kind(kind)
    start = list(engine.launches)[-1].start_ps
    assert start is not None
    return [
        ((int(a) - start) / 1000, (int(b) - start) / 1000)
        for a, b in zip(records.start_ps, records.end_ps, strict=True)
    ]


def gemm(m: int, k: int, n: int, variant: str = "ref_ref", *, a_pe: int = 0, b_pe: int = 0) -> Callable[..., None]:
    """Return a kernel: one product of f16 operands that stay in memory ("ref") or are loaded first ("load")."""
    a, b, out = pointer(0, a_pe), pointer(1 << 24, b_pe), pointer(1 << 25)

    def kernel(tl: Any) -> None:
        left = tl.load(a, shape=(m, k)) if variant.startswith("load") else tl.ref(a, (m, k))
        right = tl.load(b, shape=(k, n)) if variant.endswith("load") else tl.ref(b, (k, n))
        tl.wait(tl.composite("gemm", left, right, out))

    return kernel
