"""Serving of requests: an engine's scheduler on a table of step times, and its latencies and goodput.

`generate` makes requests and `read_trace` reads them; `run` serves them under a `Policy`. The time of a step is any
callable: `LayerProfile` has measured layers, `steps` simulates them.
"""

from typing import Any

from kernbench._names import found

_WHERE = {
    "LayerProfile": "kernbench.serving._profile",
    "Policy": "kernbench.serving._scheduler",
    "ServingResult": "kernbench.serving._result",
    "generate": "kernbench.serving._requests",
    "read_trace": "kernbench.serving._requests",
    "run": "kernbench.serving._run",
    "steps": "kernbench.serving._steps",
}


def __getattr__(name: str) -> Any:
    return found(__name__, _WHERE, name)
