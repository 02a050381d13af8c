"""Records of a run and their evaluation, which uses only numbers, not the machine."""

from typing import Any

from kernbench._names import found

_WHERE = {
    "Comparison": "kernbench.analysis.compare",
    "Result": "kernbench.analysis.result",
    "Why": "kernbench.analysis.why",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
