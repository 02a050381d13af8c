"""Advice and predictions against exact runs: random workloads on random machines."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from kernbench.analysis._what_if._predictions import COVERED, Prediction, leaves
from kernbench.analysis.result import Result
from kernbench.benches.registry import run as run_bench
from kernbench.config import default_ccl_path, read_ccl
from kernbench.errors import ConfigError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies import attention, gemm, gqa
from kernbench.topology.builder import Machine, resolve_topology
from tests.fuzz.report import Report

ONE = DPPolicy(num_cubes=1, num_pes=1)
SMALL = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
SIZES = (32, 48, 64, 96, 128, 160, 256)
FACTORS = (0.25, 0.5, 2.0, 4.0)
# Of a random machine: fields that are drawn, and by what they are multiplied.
DRAWN = (
    "cube.pe.pe_gemm.clock_ghz", "cube.pe.pe_tcm.read_bw_gbs", "cube.pe.pe_math.clock_ghz", "cube.hbm.channel_bw_gbs",
    "system.sip_link.bw_gbs", "system.sip_link.latency_ns", "system.pcie.latency_ns", "cube.hbm.access_ns",
)  # fmt: skip
BENCHES = ("qkv-gemm-multi-pe", "qkv-gemm", "va-offset-verify", "gemm-single-pe")


def all_reduces() -> list[str]:
    entries = read_ccl(default_ccl_path()).algorithms
    known = {name for name, entry in entries.items() if entry.collective == "all_reduce"}
    return sorted(known - {"switch_allreduce"})


def all_reduce(machine: Machine, algorithm: str, n: int) -> Result:
    """Sum a vector over the SIPs."""

    def program(torch: Any) -> None:
        vectors = [torch.empty(n, dtype="f16", device=f"ahbm:{i}", dp=ONE) for i in range(machine.config.n_sips)]
        torch.collective(vectors, algorithm=algorithm)

    return run_program(machine, program, log="tile")


class Drawn:
    """A random workload on a random machine."""

    def __init__(self, seed: int) -> None:
        chosen = self.chosen = random.Random(seed)
        self.kind = ("product", "bench", "collective", "attention")[seed % 4]
        self.name, self.run = getattr(self, f"_{self.kind}")()
        preset = chosen.choice(["preset:default", "preset:protocol_overhead", "preset:hbm3_conservative"])
        sips = {"system.sips.count": chosen.choice([2, 3, 4])} if self.kind == "collective" else {}
        machine = resolve_topology(preset, {**SMALL, **sips})
        self.machine = machine.with_(self._fields(machine)) if chosen.random() < 0.7 else machine
        self.name = f"{self.name} on {preset.removeprefix('preset:')}"

    def _fields(self, machine: Machine) -> dict[str, float]:
        values = leaves(machine.spec)
        drawn = self.chosen.sample(DRAWN, 2)
        slower = ("cube.hbm.channel_bw_gbs",)  # a faster slice needs wider links
        factors = {x: self.chosen.choice([0.5, 0.75] if x in slower else [0.5, 0.75, 1.5]) for x in drawn}
        return {x: values[x] * factor for x, factor in factors.items()}

    def _product(self) -> tuple[str, Callable[[Machine], Result]]:
        mkn = [self.chosen.choice(SIZES) for _ in "mkn"]
        staging, dtype = self.chosen.choice(list(gemm.STAGINGS)), self.chosen.choice(["f16", "f16", "f32", "i8"])
        name = f"product {'x'.join(map(str, mkn))} {staging} {dtype}"
        return name, partial(gemm.run, mkn=mkn, staging=staging, dtype=dtype)

    def _bench(self) -> tuple[str, Callable[[Machine], Result]]:
        name = self.chosen.choice(BENCHES)
        return name, lambda machine: run_bench(name, machine, log="tile").result

    def _collective(self) -> tuple[str, Callable[[Machine], Result]]:
        algorithm, n = self.chosen.choice(all_reduces()), self.chosen.choice([8, 1024, 8192, 32768])
        return f"{algorithm} of {n}", partial(all_reduce, algorithm=algorithm, n=n)

    def _attention(self) -> tuple[str, Callable[[Machine], Result]]:
        phase, tokens = self.chosen.choice([("prefill", 128), ("prefill", 256), ("decode", 1024)])
        return f"{phase} of {tokens}", lambda x: attention.run(x, gqa.Case(phase, tokens).setting(x.config), log="tile")

    def changes(self, result: Result, n: int) -> list[Prediction]:
        """Return predictions that matter: what the named fields save, and some random changes of more than 2 %."""
        found = result.why().savings
        made = [*found.alone.values(), *found.whole.values(), *(both for _, _, both in found.pairs)]
        values = leaves(self.machine.spec)
        for field in self.chosen.sample(COVERED, len(COVERED)):
            factor = self.chosen.choice(FACTORS)
            if len(made) >= n or not values.get(field):
                continue
            with suppress(ConfigError):  # no such machine
                guess = result.what_if({field: values[field] * factor})
                made += [guess] if abs(guess.ratio - 1) > 0.02 else []
        return self.chosen.sample(made, min(n, len(made)))


def run(seeds: range, _folder: object = None) -> Report:
    """Compare what `why` and `what_if` say of the workloads of `seeds` with exact runs on the changed machines."""
    report = Report("advice")
    for seed in seeds:
        report.tried += 1
        drawn = Drawn(seed)
        try:
            result = drawn.run(drawn.machine)
        except ConfigError:  # the algorithm does not fit the machine
            report.count("refused")
            continue
        for made in drawn.changes(result, 8):
            exact = drawn.run(drawn.machine.with_(made.overrides)).latency_ns
            report.most("largest error [%]", 100 * abs(made.predicted_ns / exact - 1))
            report.count("changes")
            if not made.low_ns * 0.999 <= exact <= made.high_ns * 1.001:
                report.failed(seed, f"{drawn.name}: {exact:,.2f} ns on {made.overrides}, but {made!r}")
    return report
