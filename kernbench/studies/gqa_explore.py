"""Attention with grouped query heads over the PEs of a machine, for the explorer."""

from __future__ import annotations

from typing import Annotated, Literal

from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.gqa_run import Setting, start


def explore(
    torch: RuntimeContext,
    *,
    phase: Annotated[Literal["prefill", "decode"], "all tokens of a prompt, or the next one"] = "prefill",
    ranks: Annotated[int, "PEs that share a sequence"] = 8,
    tokens: Annotated[int, "key/value tokens of each rank"] = 16,
    items: Annotated[int, "key/value heads of all sequences"] = 1,
    group: Annotated[int, "query heads of a key/value head"] = 8,
    head_dim: Annotated[int, "elements of a head"] = 128,
    causal: Annotated[bool, "a token sees only those before it"] = False,
    ring: Annotated[bool, "keys and values go round; else along a chain and back"] = True,
) -> None:
    """Attention with grouped query heads, tokens spread over the PEs of a cube."""
    setting = Setting(
        phase, ranks, items=items, group=group, head_dim=head_dim, tokens=tokens, causal=causal, ring=ring
    )
    start(torch, setting)()
