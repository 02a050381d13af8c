"""Attention over ranks, for the explorer: prefill round a ring or along a chain, decode merged by any all-reduce."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal

from kernbench.ccl.install import load_ccl_config, names
from kernbench.ccl.plan import plan
from kernbench.dtypes import as_dtype
from kernbench.errors import ConfigError, KernbenchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.explore import SESSION_US, Choices, at_most, fits_slice
from kernbench.studies.gqa_run import Setting, algorithm_of, start
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
    setting = _setting(
        phase, causal=causal, order=order, tokens=tokens, ranks=ranks, across=across, cubes=cubes, pes=pes, items=items,
        group=group, head_dim=head_dim, ring=ring, merge=merge, dtype=dtype,
    )  # fmt: skip
    start(torch, setting)()
    bound = work(torch.engine.machine.config, setting)
    limits = ", ".join(f"{name} {ns:,.0f} ns" for name, ns in bound.bounds.items())
    return f"{setting.n_lanes} x {ranks} ranks; no run is faster than: {limits}"


def explore_cost(machine: Machine, data: bool, **values: Any) -> float:
    """Return the host time of `explore` [us]: programs, tiles of keys by queries, and with data the reference."""
    setting = _setting(**values)
    itemsize, prefill = as_dtype(setting.dtype).itemsize, setting.phase == "prefill"
    faults = at_most(machine, cubes=setting.cubes, pes=setting.pes)
    row_bytes = setting.items * setting.head_dim * itemsize * 2 * (1 + prefill * setting.group)
    faults += fits_slice(machine, "tokens", setting.tokens, setting.tokens * row_bytes)
    if prefill and setting.order == "zigzag" and setting.tokens % 2:
        faults.append(f"tokens = {setting.tokens} must be even: zigzag cuts the tokens of a rank into halves")
    if setting.programs % setting.ranks:
        faults.append(f"ranks = {setting.ranks} must divide cubes x pes = {setting.programs}")
    if faults:
        raise ConfigError(faults)
    try:
        plan(algorithm_of(setting), machine.config, [0], list(product(range(setting.cubes), range(setting.pes))))
    except KernbenchError as error:
        raise ConfigError(f"merge = {setting.merge!r} does not run here: {error}") from error
    tile = machine.config.cube.pe.pe_gemm.tile
    rows, steps = setting.queries * setting.group, setting.ranks if prefill else 1
    tiles = -(-rows // tile.m) * -(-setting.tokens // tile.n) * -(-setting.head_dim // tile.k)
    seen = 0.5 if setting.causal else 1.0
    each = 20_000 + setting.items * steps * (2000 + 60 * setting.tokens + 400 * seen * tiles)
    macs = 3 * setting.items * rows * setting.tokens * setting.ranks * setting.head_dim
    return SESSION_US + setting.programs * (each + (2e-4 * macs if data else 0.0))


def _setting(phase: str, *, causal: bool, order: str, **values: Any) -> Setting:
    """Return what the panel asks for: decode has no mask and no order of tokens."""
    prefill = phase == "prefill"
    return Setting(phase, causal=causal and prefill, order=order if prefill else "contiguous", **values)
