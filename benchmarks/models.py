"""A layer of Llama-3 70B over eight SIPs, as a PyTorch model: times alone, compiling included."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import kernbench as kb
from benchmarks.table import Row, best
from kernbench.studies.models import WIDTH

SIPS = 8
CALLS = {
    "decode at 4,096 tokens": ("llama3-70b-decode", {"context": 4096}),
    "prefill of 2,048 tokens": ("llama3-70b-prefill", {"prompt": 2048}),
}


def measure() -> Iterator[Row]:
    """Yield a decode step and a prefill; nothing where PyTorch is not installed."""
    if find_spec("transformers") is None:
        print("models: not measured without PyTorch; run `build/frontends/bin/python -m benchmarks models`")
        return
    for what in CALLS:
        yield called(what)


def called(what: str) -> Row:
    """Return one call, from the model to its result; a second one would find channels that the first has measured."""
    from kernbench.torch._models import Calls

    name, sizes = CALLS[what]
    machine = kb.load("preset:default", {"system.sips": {"count": SIPS, "topology": "ring_1d"}})
    seconds, result = best(lambda: Calls(machine, name, SIPS, hidden=WIDTH, **sizes).on(machine), repeat=1)
    assert result.device_flops_share == 1.0, "the layer must run on PEs whole"
    return Row(
        f"Llama-3 70B layer in PyTorch, {what}, tp {SIPS}",
        seconds,
        f"{result.latency_ns / 1000:,.0f} us simulated",
        target="60 s",
    )
