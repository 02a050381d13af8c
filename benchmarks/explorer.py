"""The explorer: what live frames cost, and how soon a run is cancelled."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.table import Row, best
from kernbench.notebook._job import Options, RunJob
from kernbench.notebook._live import FrameObserver
from kernbench.runtime_api.bench_runner import check_product
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies import gemm
from kernbench.studies.ccl import CclStudy
from kernbench.topology.builder import resolve_topology


def measure() -> Iterator[Row]:
    """Yield the cost of live frames, and the time to cancel in each phase."""
    yield from live()
    for phase, (program, data) in PHASES.items():
        yield Row(f"cancel: {phase}", cancelled(program, data), target="0.3 s")


def live() -> Iterator[Row]:
    """Yield an all-reduce on 256 PEs with live frames, and the ratio to the same run without."""
    machine = resolve_topology("preset:default")
    shown: list[float] = []

    def once(watched: bool) -> None:
        shown.clear()
        watch = FrameObserver(lambda _: shown.append(time.perf_counter()))
        engine = GraphEngine(machine, log="tile", observers=[watch] if watched else [], live=watched)
        with RuntimeContext(engine) as torch:
            CclStudy().program(torch, algorithm="hierarchical_allreduce", elements=1 << 22, cubes=16, pes=8)

    without, _ = best(lambda: once(watched=False), 5)
    seconds, _ = best(lambda: once(watched=True), 5)
    rate = f"{(len(shown) - 1) / (shown[-1] - shown[0]):.0f} frames a second"
    yield Row("256 PEs with live frames", seconds, rate, "without frames", seconds / without, "1.05, 5 a second")


def _numpy(started: Callable[[], None]) -> Callable[[RuntimeContext], object]:
    def program(_: RuntimeContext) -> None:
        a = np.ones((512, 512))
        started()
        while True:
            a = a @ a / 512

    return program


def _large_product(started: Callable[[], None]) -> Callable[[RuntimeContext], object]:
    def program(torch: RuntimeContext) -> None:
        started()
        gemm.product(torch, 4096, 4096, 4096, "ref_ref")

    return program


def _computing(started: Callable[[], None]) -> Callable[[RuntimeContext], object]:
    def program(torch: RuntimeContext) -> None:
        a = np.ones((4096, 4096))
        started()
        while True:
            check_product(torch, "c", torch.ones(4096, 4096, device="ahbm"), a, a)

    return program


def _placing(started: Callable[[], None]) -> Callable[[RuntimeContext], object]:
    def program(torch: RuntimeContext) -> None:
        started()
        while True:
            torch.ones(2048, 2048, device="ahbm").numpy()

    return program


def _building(started: Callable[[], None]) -> Callable[[RuntimeContext], object]:
    def program(_: RuntimeContext) -> None:
        started()
        while True:
            for _edge in resolve_topology("preset:large").graph.edges():
                pass

    return program


PHASES = {
    "building a machine": (_building, True), "placing tensors": (_placing, True), "numpy": (_numpy, True),
    "drawing operands": (_large_product, True), "checking a product": (_computing, True),
    "simulating": (_large_product, False),
}  # fmt: skip


def cancelled(phase: Callable[[Callable[[], None]], Callable[[RuntimeContext], object]], data: bool) -> float:
    """Return the longest of some times from a cancel, at a moment in a phase, to the end of the run's thread [s]."""
    longest = 0.0
    for delay in (0.05, 0.11, 0.23, 0.37, 2.0):
        there = threading.Event()
        job = RunJob(
            resolve_topology("preset:small"),
            phase(there.set),
            "cancelled",
            Options(data),
            lambda _: None,
            lambda _: None,
        )
        job.start()
        there.wait()
        time.sleep(delay)
        begin = time.perf_counter()
        job.cancel()
        while not job.ended:
            time.sleep(0.001)
        longest = max(longest, time.perf_counter() - begin)
        job.wait()
    return longest
