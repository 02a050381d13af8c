"""Collectives: algorithms as kernels on many PEs, the queues that connect them, their cost, and their choice."""

from typing import Any

from kernbench._names import found

_WHERE = {
    "AlphaBeta": "kernbench.ccl.alpha_beta",
    "Bounds": "kernbench.ccl.bounds",
    "choose": "kernbench.studies.choice",  # it simulates, which this layer must not do
    "from_msccl": "kernbench.ccl._msccl",
    "run_kernel_in_mock": "kernbench.ccl.testing",
    "simulator": "kernbench.runtime_api.collective",
    "to_msccl": "kernbench.ccl._msccl_writer",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
