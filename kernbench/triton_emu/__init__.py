"""The kernel language: what a kernel calls `tl`, and the handles that it returns."""

from typing import Any

from kernbench._names import found

_WHERE = {
    "run_kernel": "kernbench.triton_emu.testing",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
