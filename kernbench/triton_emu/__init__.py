"""The kernel language: what a kernel calls `tl`, and the handles that it returns."""

from typing import Any

from kernbench._names import found
from kernbench.triton_emu import _program as _program  # compiled handles refer to its type: it comes first

_WHERE = {
    "run_kernel": "kernbench.triton_emu.testing",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
