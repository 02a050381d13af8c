"""Benches: host programs, each a function `run(torch)`."""

from typing import Any

from kernbench._names import found

_WHERE = {
    "bench": "kernbench.benches.registry",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
