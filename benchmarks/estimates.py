"""How well the explorer knows how long a run takes, before it runs: 25 workloads of all kinds, small and large.

A study, a collective or a bench is estimated from its counts and the measured rate of the host. Of user-defined code
nothing is known until it has run; the same run on another machine is estimated from that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from benchmarks.table import Row
from kernbench.kernels.gemm import gemm
from kernbench.notebook import _job
from kernbench.notebook._model import Explorer
from kernbench.runtime_api.context import RuntimeContext
from kernbench.tp import ColumnParallelLinear, ModelParallelConfig

FACTOR = 3


def product(x: Any, w: Any, y: Any, m: int = 64, k: int = 64, n: int = 64, *, tl: Any) -> None:
    """Multiply tiles."""
    gemm(x, w, y, m, k, n, "ref_ref", tl=tl)


def copies(torch: RuntimeContext, *, count: int = 20) -> None:
    """Copy to the device and back."""
    for _ in range(count):
        torch.ones(256, 256, dtype=torch.float16, device="ahbm").numpy()


class Linear:
    """One layer of a model."""

    def __init__(self, features: int = 64) -> None:
        config = ModelParallelConfig(params_dtype="f16")
        self.layer = ColumnParallelLinear(features, features, config=config, init_method=lambda _: None)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


# Preset, workload, values, whether values are computed.
RUNS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("small", "study gemm", {"m": 64, "k": 64, "n": 64}, True),
    ("default", "study gemm", {}, True),
    ("default", "study gemm", {"m": 512, "k": 512, "n": 256}, True),
    ("default", "study gemm", {"m": 2048, "k": 1024, "n": 1024}, False),
    ("default", "study probe", {}, True),
    ("default", "study ccl", {"algorithm": "ring_allreduce_tcm", "elements": 65536}, True),
    ("default", "study ccl", {"algorithm": "hierarchical_allreduce", "cubes": 16, "pes": 8, "elements": 65536}, True),
    ("six_sip_torus", "study ccl", {"algorithm": "tree_allreduce", "cubes": 2, "pes": 2}, True),
    ("default", "study gqa", {}, True),
    ("default", "study gqa", {"items": 4, "tokens": 64}, True),
    ("default", "study layers", {}, True),
    ("default", "collective all_reduce", {"algorithm": "ring_allreduce_tcm"}, True),
    ("default", "collective all_reduce", {"algorithm": "intercube_allreduce", "nbytes": 4096}, True),
    ("default", "collective broadcast", {"algorithm": "tree_broadcast"}, True),
    ("default", "collective reduce_scatter", {}, True),
    ("default", "collective all_gather", {}, True),
    ("default", "collective all_to_all", {}, True),
    ("default", "bench gemm-single-pe", {}, True),
    ("default", "bench matmul-composite", {}, True),
    ("default", "bench qkv-gemm", {}, True),
    ("default", "bench qkv-gemm-multi-pe", {}, True),
    ("default", "bench va-offset-verify", {}, True),
    ("default", "product", {}, True),
    ("default", "copies", {}, True),
    ("default", "Linear", {}, True),
]


def measure() -> Iterator[Row]:
    """Yield the CPU time of each run, and the ratio of its estimate to that: other work on the host does not count."""
    with patch.object(_job, "time", SimpleNamespace(perf_counter=time.thread_time)):
        explorer = Explorer("preset:small", [product, copies, Linear])
        explorer.auto = False
        _run(explorer, *RUNS[0])  # imports modules
        for preset, workload, values, data in RUNS:
            explorer.form.load(f"preset:{preset}")
            if explorer.workloads[workload].cost is None:
                explorer.form.set("cube.hbm.channel_bw_gbs", "16")
                _run(explorer, "", workload, values, data)
                explorer.form.set("cube.hbm.channel_bw_gbs", "32")
            estimate, took = _run(explorer, "", workload, values, data)
            assert estimate is not None
            title = " ".join([workload, *(f"{name}={value}" for name, value in values.items())])
            yield Row(
                f"run of {title}", took, f"estimated {estimate:.3g} s", "the run", estimate / took,
                f"1/{FACTOR} to {FACTOR}",
            )  # fmt: skip


def _run(
    explorer: Explorer, preset: str, workload: str, values: dict[str, Any], data: bool
) -> tuple[float | None, float]:
    """Return the estimate of a run, made before it, and how long it took [s]."""
    if preset:
        explorer.form.load(f"preset:{preset}")
    explorer.choose(workload)
    explorer.set_option("data", data)
    for name, value in values.items():
        assert explorer.set(name, value), explorer.wrong
    estimate, begun = explorer.estimate_s(), len(explorer.history)
    assert explorer.run(again=True), explorer.obstacle
    explorer.wait()
    assert len(explorer.history) > begun, explorer.state.message
    return estimate, explorer.history[-1].seconds
