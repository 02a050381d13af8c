"""Collectives: algorithms as kernels on many PEs, the queues that connect them, their cost, and their choice."""

from typing import Any

_WHERE = {
    "AlphaBeta": "kernbench.ccl.alpha_beta",
    "Bounds": "kernbench.ccl.bounds",
    "choose": "kernbench.studies.best",  # it simulates, which this layer must not do
    "from_msccl": "kernbench.ccl._msccl",
    "run_kernel_in_mock": "kernbench.ccl.testing",
    "simulator": "kernbench.runtime_api.collective",
    "to_msccl": "kernbench.ccl._msccl_writer",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'kernbench.ccl' has no attribute {name!r}; known: {', '.join(_WHERE)}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
