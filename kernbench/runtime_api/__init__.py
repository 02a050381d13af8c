"""The host's side: a torch-like namespace over one simulated machine."""

from typing import Any

from kernbench._names import found

_WHERE = {
    "Distributed": "kernbench.runtime_api.distributed",
    "ReduceOp": "kernbench.runtime_api.work",
    "RuntimeContext": "kernbench.runtime_api.context",
    "Work": "kernbench.runtime_api.work",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
