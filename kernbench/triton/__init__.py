"""Triton kernels on the PEs of a machine: `kb.triton.on`, `program`, `load` and `autotune`."""

from typing import Any

_WHERE = {
    "autotune": "kernbench.triton._autotune",
    "load": "kernbench.triton._module",
    "on": "kernbench.triton._session",
    "program": "kernbench.triton._program",
}


def __getattr__(name: str) -> Any:
    """Import the public functions of `kernbench.triton` on first use."""
    if name not in _WHERE:
        raise AttributeError(f"module 'kernbench.triton' has no attribute {name!r}; known: {', '.join(_WHERE)}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)
