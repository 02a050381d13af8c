"""Short kernels one after another: what their start costs, launched one by one and as a graph."""

from __future__ import annotations

from typing import Any

from kernbench._units import MIB
from kernbench.config import MachineConfig, load_yaml, preset_path
from kernbench.points._keys import Row
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology.builder import Machine

START_OF_WORK = "start of work"
KERNELS = 8  # one after another
_MEASURED: dict[str, float] = load_yaml(preset_path("gpu_launch"))["system"]["host"]
HOSTS: dict[str, dict[str, float]] = {"none": dict.fromkeys(_MEASURED, 0), "gpu_launch": _MEASURED}


def fits_tcm(config: MachineConfig, nbytes: int) -> list[str]:
    tcm = config.cube.pe.pe_tcm
    most = int((tcm.size_mb - tcm.tile_buffer_mb - tcm.kernel_scratch_mb) * MIB) // 2
    if 2 <= nbytes <= most:
        return []
    return [f"kernel_bytes: {nbytes} must be between 2 and {most} [B], half of the TCM that operands have"]


def short_kernels(machine: Machine, nbytes: int, graph: bool) -> Row:
    """Time of a kernel from call to completion, of `KERNELS` in which each PE of a cube reads its slice."""

    def read(x: Any, n: int, *, tl: Any) -> None:
        tl.load(x + tl.program_id(0) * n, shape=n, dtype="f16")

    def launch(torch: RuntimeContext, x: Any) -> None:
        for i in range(KERNELS):
            torch.launch(f"kernel {i}", read, x, n)

    def run_all(torch: RuntimeContext) -> None:
        x = torch.empty(
            machine.config.pes_per_cube, n, dtype=torch.float16, device="ahbm",
            dp=DPPolicy(cube="row_wise", pe="row_wise", num_cubes=1),
        )  # fmt: skip
        torch.ahbm.synchronize()
        start = torch.engine.now_ns
        if graph:
            with torch.ahbm.graph() as captured:
                launch(torch, x)
            captured.replay()
        else:
            launch(torch, x)
        torch.ahbm.synchronize()
        took.append((torch.engine.now_ns - start) / KERNELS)

    n, took = nbytes // 2, list[float]()
    run_program(machine, run_all, log="off")
    return {
        "phase": START_OF_WORK,
        "batch": 1,
        "sips": 1,
        "nbytes": nbytes,
        "graph": graph,
        "kernel_ns": took[0],
        "left_out": "",
    }
