"""The components of a machine: PEs, memories, CPUs and network nodes."""

from typing import Any

from kernbench._names import found

_WHERE = {
    "HbmCtrl": "kernbench.components.builtin.memory",
    "PeGemm": "kernbench.components.builtin.pe_gemm",
    "Transit": "kernbench.components.builtin.transit",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
