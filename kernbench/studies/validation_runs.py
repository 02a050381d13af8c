"""Checks of whole runs: the engine against the reference, values, repetition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.kernels.gemm import column_gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.validation_reference import Reference
from kernbench.studies.validation_row import Sample
from kernbench.studies.validation_traffic import Ask, Engine, play, random_machine, random_traffic
from kernbench.topology.builder import Machine


def _traffic(repeats: int) -> Iterator[tuple[str, Machine, list[Ask], bool]]:
    """Yield random machines with random traffic, open and closed loop, light and crowded."""
    for seed in range(max(1, repeats)):
        machine = random_machine(f"runs {seed}")
        for closed in (True, False):
            for hot in (True, False):
                name = f"{'closed' if closed else 'open'} loop, {'crowded' if hot else 'light'}, machine {seed}"
                yield name, machine, random_traffic(machine, name, 6, closed=closed, hot=hot), closed


def _samples(name: str, asks: Sequence[Ask], expected: Sequence[int], measured: Sequence[int]) -> list[Sample]:
    return [
        Sample(f"{ask.kind} {ask.nbytes} B, {ask.src} to {ask.dst}, {name}", a, b)
        for ask, a, b in zip(asks, expected, measured, strict=True)
    ]


def against_reference(machine: Machine, repeats: int) -> list[Sample]:
    """Compare the end of every transaction with a process for each hop of each flit."""
    samples = []
    for name, where, asks, closed in _traffic(repeats):
        expected = play(Reference(where), asks, closed=closed)
        samples += _samples(name, asks, expected, play(Engine(GraphEngine(where, log="off")), asks, closed=closed))
    return samples


def _product(torch: RuntimeContext) -> None:
    one_cube = DPPolicy(num_cubes=1, pe="column_wise")
    a = torch.randn(96, 128, dtype=torch.float16, dp=DPPolicy(num_cubes=1, pe="replicate"), device="ahbm")
    b = torch.randn(128, 512, dtype=torch.float16, dp=one_cube, device="ahbm")
    c = torch.empty(96, 512, dtype=torch.float16, dp=one_cube, device="ahbm")
    torch.launch("gemm", column_gemm, a, b, c, 96, 128, 512)
    c.numpy()


def _equal(label: str, one: str, other: str) -> Sample:
    """Return digests as a point: no difference if they are equal."""
    return Sample(label, 0, int(one != other))


def values_change_no_time(machine: Machine, repeats: int) -> list[Sample]:
    """Compare all times of a product on every PE of a cube, with and without values."""
    with_data, without = (run_program(machine, _product, data=data, log="tile").records for data in (True, False))
    samples = [
        Sample(f"end of row {i}", int(a), int(b))
        for i, (a, b) in enumerate(zip(with_data.end_ps, without.end_ps, strict=True))
    ]
    return [_equal("digest", with_data.digest(), without.digest()), *samples]


def same_twice(machine: Machine, repeats: int) -> list[Sample]:
    """Compare digests of the same run, repeated."""
    digests = [run_program(machine, _product, log="tile").records.digest() for _ in range(2 + repeats)]
    return [_equal(f"run {i}", digests[0], digest) for i, digest in enumerate(digests[1:], 1)]


def tie_spread_product(machine: Machine, repeats: int) -> list[Sample]:
    """Compare the end of a product on every PE of a cube, ranks permuted, with the ranks of M4.4."""

    def launch_ps(seed: int | None) -> int:
        engine = GraphEngine(machine, tie_seed=seed)
        with RuntimeContext(engine) as torch:
            _product(torch)
        [launch] = torch.result.launches
        return launch.end_ps - launch.start_ps

    expected = launch_ps(None)
    return [Sample(f"permutation {seed}", expected, launch_ps(seed)) for seed in range(1 + repeats)]
