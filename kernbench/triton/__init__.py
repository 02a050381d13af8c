"""Triton kernels on the PEs of a machine: `kb.triton.on`, `program`, `load` and `autotune`."""

from typing import Any

from kernbench._names import found

_WHERE = {
    "autotune": "kernbench.triton._autotune",
    "load": "kernbench.triton._module",
    "on": "kernbench.triton._session",
    "program": "kernbench.triton._program",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
