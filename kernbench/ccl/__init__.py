"""Collectives: algorithms as kernels on many PEs, the queues that join them, what they cost and which one to take."""

from typing import Any


def __getattr__(name: str) -> Any:
    """Return `choose`, the public function of `kernbench.ccl`: it simulates, which this layer does not know how to."""
    if name != "choose":
        raise AttributeError(f"module 'kernbench.ccl' has no attribute {name!r}; known: choose")
    from importlib import import_module

    return import_module("kernbench.studies.best").choose
