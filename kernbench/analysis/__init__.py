"""What a run recorded, and what can be read from it: nothing here knows the machine, only its numbers."""

from typing import Any

from kernbench._names import found

_WHERE = {
    "Comparison": "kernbench.analysis.compare",
    "Result": "kernbench.analysis.result",
    "Why": "kernbench.analysis.why",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
