"""Predictions of `result.what_if` against exact runs: every bandwidth, latency and rate, made smaller and larger.

12 workloads have all of them; 20 collectives and 10 products have some of them, drawn by a seed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.table import Row
from kernbench.analysis._what_if._predictions import COVERED, what_if
from kernbench.analysis.result import Result
from kernbench.benches.registry import run as run_bench
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.collective import run_collective
from kernbench.studies import attention, gemm, gqa
from kernbench.studies.ccl import PlannedCollective
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.tp import ModelParallelConfig, parallel_state
from kernbench.tp.llama import LlamaBlock, LlamaConfig

FACTORS = (0.5, 0.8, 1.25, 2.0)
SEED, FAR, FIELDS = 7, (0.25, 0.5, 2.0, 4.0), 8  # of what is drawn: factors, and fields for each run
SMALLEST = 0.02  # change of the exact time that counts
Run = Callable[[Machine], Result]
_CUBES = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}
_DEFAULT, _SIX = "preset:default", "preset:six_sip_torus"


def measure() -> Iterator[Row]:
    """Yield the errors of each workload, and of all."""
    every: list[float] = []
    seconds: list[float] = []
    for name, (preset, run) in WORKLOADS.items():
        errors, took = compared(resolve_topology(preset, _CUBES), run)
        yield _row(f"prediction: {name}", errors, took)
        every += errors
        seconds += took
    yield _row("prediction: all", every, seconds, target="median <= 3 %, 90th percentile <= 10 %, < 50 ms")
    chosen, errors, seconds = random.Random(SEED), [], []
    for machine, run in (*_collectives(chosen), *_products(chosen)):
        changes = [(field, chosen.choice(FAR)) for field in chosen.sample(COVERED, FIELDS)]
        found, took = compared(machine, run, changes)
        errors += found
        seconds += took
    target = "median <= 1 %, 90th percentile <= 3 %, largest <= 10 %, < 20 ms"
    yield _row("prediction: drawn collectives and products", errors, seconds, target=target)


EVERY = [(field, factor) for field in COVERED for factor in FACTORS]


def compared(
    machine: Machine, run: Run, changes: Iterable[tuple[str, float]] = EVERY
) -> tuple[list[float], list[float]]:
    """Return the relative errors of the predictions whose exact time changes, and the CPU seconds of each one."""
    result = run(machine)
    what_if(result.records, [])  # makes the graph
    errors, seconds = [], []
    for field, factor in changes:
        value = _value(machine.spec, field)
        if not value:
            continue
        try:
            exact = run(machine.with_({field: value * factor})).latency_ns
        except ConfigError:  # no such machine
            continue
        if abs(exact / result.latency_ns - 1) <= SMALLEST:
            continue
        begin = time.process_time()
        predicted = what_if(result.records, {field: value * factor}).predicted_ns
        seconds.append(time.process_time() - begin)
        errors.append(abs(predicted / exact - 1))
    return errors, seconds


def _collectives(chosen: random.Random) -> list[tuple[Machine, Run]]:
    machine = resolve_topology(_DEFAULT).with_(
        {
            "system.sips": {"count": 4, "topology": "torus_2d", "w": 2, "h": 2},
            "sip.cube_mesh": {"w": 2, "h": 1},
            "cube.pe_layout.pe_per_corner": 1,
        }
    )
    known = names(load_ccl_config(default_ccl_path()))

    def draw() -> Run:
        name, kind = chosen.choice(known), chosen.choice(("tcm", "sram", "hbm"))
        nbytes = chosen.choice((64, 4096, 65536, 1 << 18))
        algorithm = replace(resolve_algorithm_config(name, default_ccl_path()), buffer_kind=kind, world_size=None)
        return lambda machine: run_collective(machine, PlannedCollective(machine, algorithm).plan, nbytes).result

    return [(machine, draw()) for _ in range(20)]


def _products(chosen: random.Random) -> list[tuple[Machine, Run]]:
    machine = resolve_topology(_DEFAULT, {**_CUBES, "cube.hbm.access_ns": 40})

    def draw() -> Run:
        m, k, n = (chosen.choice((32, 64, 100, 128, 256)) for _ in range(3))
        return _product(chosen.choice(("ref_ref", "load_ref", "load_load")), m, k, n)

    return [(machine, draw()) for _ in range(10)]


def _row(what: str, errors: list[float], seconds: list[float], target: str = "") -> Row:
    shares = f"median error {np.median(errors):.2%}, 90th percentile {np.quantile(errors, 0.9):.2%}"
    rate = f"{shares}, largest {max(errors):.1%}"
    return Row(f"{what}, {len(errors)} cases", float(np.median(seconds)), rate, target=target)


def _value(spec: Mapping[str, Any], path: str) -> Any:
    for key in path.split("."):
        spec = spec[key]
    return spec


def _bench(name: str) -> Run:
    return lambda machine: run_bench(name, machine, log="tile").result


def _product(staging: str, m: int, k: int, n: int) -> Run:
    return lambda machine: gemm.run(machine, (m, k, n), staging)


def _attention(phase: str, context: int) -> Run:
    return lambda machine: attention.run(machine, gqa.Case(phase, context).setting(machine.config), log="tile")


def _summed(machine: Machine, algorithm: str, n: int) -> Result:
    def program(torch: Any) -> None:
        one = DPPolicy(num_cubes=1, num_pes=1)
        vectors = [torch.empty(n, dtype="f16", device=f"ahbm:{i}", dp=one) for i in range(machine.config.n_sips)]
        torch.collective(vectors, algorithm=algorithm)

    return run_program(machine, program, log="tile")


def _llama_block(machine: Machine) -> Result:
    sizes = LlamaConfig(hidden=256, ffn=512, heads=8, kv_heads=2, head_dim=32)

    def program(torch: Any) -> None:
        def rank_program(rank: int) -> None:
            torch.distributed.init_process_group("ahbm")
            parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, torch=torch)
            block = LlamaBlock(sizes, ModelParallelConfig(params_dtype=torch.float16))
            block(torch.empty(16, 1, sizes.hidden, dtype=torch.float16, device="ahbm"))
            torch.ahbm.synchronize(rank)
            parallel_state.destroy_model_parallel()

        torch.multiprocessing.spawn(rank_program, nprocs=2)

    return run_program(machine, program, log="tile")


# The machines have 2 x 2 cubes per SIP.
WORKLOADS: dict[str, tuple[str, Run]] = {
    "product, operands streamed": (_DEFAULT, _product("ref_ref", 128, 256, 128)),
    "product, operands in TCM": (_DEFAULT, _product("load_load", 128, 512, 128)),
    "ragged product, one operand in TCM": (_DEFAULT, _product("load_ref", 100, 200, 70)),
    "three products on 8 PEs": (_DEFAULT, _bench("qkv-gemm-multi-pe")),
    "loads from the next PE": (_DEFAULT, _bench("va-offset-verify")),
    "attention, prefill of 512": (_DEFAULT, _attention("prefill", 512)),
    "attention, decode at 4,096": (_DEFAULT, _attention("decode", 4096)),
    "block of Llama, tensor parallel over 2 SIPs": (_DEFAULT, _llama_block),
    "ring of 2 SIPs": (_DEFAULT, partial(_summed, algorithm="ring_allreduce_tcm", n=1 << 15)),
    "ring of 6 SIPs": (_SIX, partial(_summed, algorithm="ring_allreduce_tcm", n=1 << 13)),
    "tree of 6 SIPs": (_SIX, partial(_summed, algorithm="tree_allreduce", n=1 << 13)),
    "all-reduce between cubes": (_DEFAULT, _bench("ccl-allreduce")),
}
