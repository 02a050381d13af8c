"""Attention over ranks, for the explorer: prefill round a ring or along a chain, decode merged by any all-reduce."""

from __future__ import annotations

from typing import Annotated, Literal

from kernbench.ccl.install import load_ccl_config, names
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.explore import Choices
from kernbench.studies.gqa_run import Setting, start
from kernbench.studies.gqa_work import work
from kernbench.topology.builder import Machine

_USUAL = "recursive_doubling_allreduce"


def _merges(_: Machine) -> list[str]:
    known = names(load_ccl_config(), "all_reduce", "rank")
    return sorted(known, key=lambda name: name != _USUAL)


def explore(
    torch: RuntimeContext,
    *,
    phase: Annotated[Literal["decode", "prefill"], "one token, or as many as keys"] = "decode",
    tokens: Annotated[int, "keys and values of each rank"] = 128,
    ranks: Annotated[int, "PEs that share the tokens of a kv head"] = 8,
    across: Annotated[Literal["pe", "cube"], "ranks follow each other over"] = "pe",
    cubes: Annotated[int, "that take part"] = 1,
    pes: Annotated[int, "of each cube"] = 8,
    items: Annotated[int, "kv heads for each group of ranks"] = 1,
    group: Annotated[int, "query heads of a kv head"] = 8,
    head_dim: Annotated[int, "elements of a head"] = 128,
    causal: Annotated[bool, "prefill: a token sees those up to its own"] = True,
    order: Annotated[Literal["zigzag", "striped", "contiguous"], "prefill: tokens of a rank"] = "zigzag",
    ring: Annotated[bool, "prefill: K and V go round; else along an open chain"] = True,
    merge: Annotated[str, "decode: what merges the parts", Choices(_merges)] = _USUAL,
    dtype: Annotated[Literal["f16", "bf16"], "of q, k, v and the result"] = "f16",
) -> str:
    """Attention with keys and values spread over ranks, from q, k, v in HBM to the result there."""
    prefill = phase == "prefill"
    setting = Setting(
        phase, ranks, across, cubes=cubes, pes=pes, items=items, group=group, head_dim=head_dim, tokens=tokens,
        causal=causal and prefill, order=order if prefill else "contiguous", ring=ring, merge=merge, dtype=dtype,
    )  # fmt: skip
    start(torch, setting)()
    bound = work(torch.engine.machine.config, setting)
    limits = ", ".join(f"{name} {ns:,.0f} ns" for name, ns in bound.bounds.items())
    return f"{setting.n_lanes} x {ranks} ranks; no run is faster than: {limits}"
