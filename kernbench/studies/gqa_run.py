"""One run of attention over ranks: where q, k and v lie, which algorithm joins the ranks, and whether it is right.

Every rank has its kv tokens of each item (a kv head of a sequence) in its own HBM slice. In prefill it has its query
tokens there, too, and K/V tiles travel; in decode it has a copy of the one query token, and parts travel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.analysis.result import Result
from kernbench.ccl.algorithm import Algorithm, algorithm
from kernbench.ccl.install import resolve_algorithm_config
from kernbench.ccl.mappers import by_shard
from kernbench.ccl.plan import Plan
from kernbench.dtypes import DType, as_dtype
from kernbench.errors import ArgumentError, VerificationError
from kernbench.kernels import ring_attention
from kernbench.kernels.lse_merge import EXTRA, merge, merged_attention
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.program import run_program
from kernbench.runtime_api.tensor import Tensor
from kernbench.studies.gqa_lanes import lanes
from kernbench.topology.builder import Machine

PHASES = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run.

    Attributes
    ----------
    phase : str
        "prefill" or "decode".
    ranks, across : int, str
        Ranks of each lane, and how they stand (see `gqa_lanes`).
    sips, cubes, pes : int
        Devices, cubes of each, PEs of each, that take part.
    items : int
        Key/value heads of all sequences, for each lane.
    group, head_dim : int
        Query heads of a kv head, elements of a head.
    tokens : int
        Key/value tokens of each rank.
    q_tokens : int, optional
        Query tokens: by default, in prefill as many for each rank, in decode one for all. A number between the two is
        a chunk of a prompt that sees the whole context: in prefill, of each rank; in decode, for all.
    causal, order, ring : bool, str, bool
        For prefill, see `ring_attention`.
    merge : str
        For decode: the all-reduce that merges the parts.
    dtype : str
        Of q, k, v and the result.
    n_slots, slot_size : int
        Of each queue.
    """

    phase: str
    ranks: int
    across: str = "pe"
    sips: int = 1
    cubes: int = 1
    pes: int = 8
    items: int = 1
    group: int = 8
    head_dim: int = 128
    tokens: int = 16
    q_tokens: int | None = None
    causal: bool = False
    order: str = "contiguous"
    ring: bool = True
    merge: str = "recursive_doubling_allreduce"
    dtype: str = "f16"
    n_slots: int = 4
    slot_size: int = 4096

    @property
    def programs(self) -> int:
        """PEs that take part."""
        return self.sips * self.cubes * self.pes

    @property
    def n_lanes(self) -> int:
        """Lanes side by side."""
        return self.programs // self.ranks

    @property
    def queries(self) -> int:
        """Query tokens that a rank has."""
        default = self.tokens if self.phase == "prefill" else 1
        return default if self.q_tokens is None else self.q_tokens


def standalone(setting: Setting) -> Algorithm:
    """Return what joins the ranks of one lane whose ranks are devices: for the mock, which has no PEs."""
    return replace(algorithm_of(setting), mapper=by_shard)


def algorithm_of(setting: Setting) -> Algorithm:
    """Return what joins the ranks of a setting.

    Raises
    ------
    ArgumentError
        If the phase is none.
    """
    mapper = lanes(setting.ranks, setting.across)
    if setting.phase == "prefill":
        options = {
            "kv_heads": setting.items, "group": setting.group, "head_dim": setting.head_dim, "causal": setting.causal,
            "order": setting.order, "ring": setting.ring, "slot_bytes": setting.slot_size, "kv_tokens": setting.tokens,
            "grid_w": setting.ranks, "grid_h": 1,
        }  # fmt: skip
        return algorithm(
            ring_attention.ring_attention,
            ring_attention.kernel_args,
            name="ring attention" if setting.ring else "chain attention",
            topology="ring_1d" if setting.ring else "mesh_2d_no_wrap",
            mapper=mapper,
            options=options,
            n_slots=setting.n_slots,
            slot_size=setting.slot_size,
        )
    if setting.phase != "decode":
        raise ArgumentError(f"phase = {setting.phase!r} is unknown; known: {', '.join(PHASES)}")
    base = resolve_algorithm_config(setting.merge)
    merged = replace(base, name=f"decode merged by {base.name}", kernel=merged_attention, mapper=mapper)
    own = replace(merged, n_slots=setting.n_slots, slot_size=setting.slot_size)
    return replace(own, kernel_args=_decode_args(base, setting))


def _decode_args(base: Algorithm, setting: Setting) -> Callable[..., tuple[Any, ...]]:
    """Return the arguments of `merged_attention` for the reduction `base`, told the facts that it names."""
    width = setting.head_dim + EXTRA

    def arguments(*, n_elem: int, world_size: int, **facts: Any) -> tuple[Any, ...]:
        rows = setting.items * setting.queries * setting.group
        inner = base.kernel_args(n_elem=rows * width, world_size=world_size, op=merge, row=width, **facts)
        return setting.items, setting.group, setting.queries, setting.tokens, setting.head_dim, base.kernel, inner

    arguments.__signature__ = signature(base.kernel_args)  # type: ignore[attr-defined]
    return arguments


def run(machine: Machine, setting: Setting, *, data: bool = False, log: str = "operation") -> Result:
    """Run a setting, with data compared with numpy in f64; return what happened.

    Raises
    ------
    VerificationError
        If an element is further off than `attention` says.
    """

    def program(torch: RuntimeContext) -> None:
        start(torch, setting)()

    return run_program(machine, program, data=data, log=log)


def start(torch: RuntimeContext, setting: Setting) -> Callable[[], None]:
    """Queue a setting; what is returned waits for the result and checks it."""
    dtype = as_dtype(setting.dtype)
    given = _values(setting, dtype) if torch.engine.data else None
    tensors = [_tensors(torch, setting, dtype, sip, given) for sip in range(setting.sips)]
    plan = torch.collective(tensors, algorithm_of(setting), name=setting.phase)

    def finish() -> None:
        torch.ahbm.synchronize()
        if given is not None:
            out = np.stack([own[-1].numpy() for own in tensors])
            torch.checks += 1
            check(setting, plan, given, out)

    return finish


def _tensors(
    torch: RuntimeContext, setting: Setting, dtype: DType, sip: int, given: tuple[np.ndarray, ...] | None
) -> list[Tensor]:
    """Return q, k, v, (in decode) part, and out of one device, a row for each PE."""
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=setting.cubes, num_pes=setting.pes)
    shapes = _shapes(setting)
    found = []
    for i, name in enumerate(("q", "k", "v")):
        if given is None:
            tensor = torch.empty(shapes[name], dtype=dtype, dp=dp, device=f"ahbm:{sip}", name=name)
        else:
            tensor = torch.tensor(given[i][sip], dtype=dtype, dp=dp, device=f"ahbm:{sip}", name=name)
        found.append(tensor)
    if setting.phase == "decode":
        part = (*shapes["q"][:-1], setting.head_dim + EXTRA)
        found.append(torch.empty(part, dtype=torch.float32, dp=dp, device=f"ahbm:{sip}", name="part"))
    return [*found, torch.empty(shapes["q"], dtype=dtype, dp=dp, device=f"ahbm:{sip}", name="out")]


def _shapes(setting: Setting) -> dict[str, tuple[int, ...]]:
    here = (setting.cubes * setting.pes, setting.items)
    kv = (*here, setting.tokens, setting.head_dim)
    return {"q": (*here, setting.queries, setting.group, setting.head_dim), "k": kv, "v": kv}


def _values(setting: Setting, dtype: DType) -> tuple[np.ndarray, ...]:
    """Return q, k and v of all devices; in decode a lane's ranks have one q, told apart when the plan is known."""
    rng = np.random.default_rng([setting.ranks, setting.tokens, setting.group])
    shapes = _shapes(setting)
    q, k, v = (
        rng.standard_normal((setting.sips, *shapes[name])).astype(np.float32).astype(dtype.numpy) for name in "qkv"
    )
    if setting.phase == "decode":
        q[...] = q[:1, :1]  # one query for all: lanes differ by their keys
    return q, k, v


def check(setting: Setting, plan: Plan, given: tuple[np.ndarray, ...], out: np.ndarray) -> None:
    """Compare what the ranks wrote with numpy in f64."""
    q, k, v = (x.astype(np.float64) for x in given)
    rows = {place: i for i, place in enumerate(_places(setting, plan))}
    for lane in plan.lanes:
        at = [divmod(rows[place], setting.cubes * setting.pes) for place in lane.places]
        order = np.concatenate([_positions(setting, rank) for rank in range(setting.ranks)])
        keys, values = (np.concatenate([x[i] for i in at], axis=1)[:, np.argsort(order)] for x in (k, v))
        for rank, i in enumerate(at):
            seen = _positions(setting, rank) if setting.causal and setting.phase == "prefill" else None
            _compare(setting, q[i], keys, values, seen, out[i])


def _places(setting: Setting, plan: Plan) -> list[tuple[int, int, int]]:
    """Return the PEs in the order in which tensors hold them."""
    return sorted(place for lane in plan.lanes for place in lane.places)


def _positions(setting: Setting, rank: int) -> np.ndarray:
    order = setting.order if setting.phase == "prefill" else "contiguous"
    spans = ring_attention.tokens_of(order, rank, setting.ranks, setting.tokens)
    return np.concatenate([span.first + span.step * np.arange(span.size) for span in spans])


def _compare(
    setting: Setting, q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray | None, got: np.ndarray
) -> None:
    """Check one rank: q [items, tokens, group, d], k and v [items, all tokens, d]."""
    items, queries, group, width = q.shape
    rows, keys = q.reshape(items, -1, width), k.swapaxes(1, 2)  # as matrices: einsum over them takes 50 times as long
    scores = (rows @ keys).reshape(items, queries, group, -1) / np.sqrt(setting.head_dim)
    if seen is not None:
        hidden = np.arange(k.shape[1])[None, :] > seen[:, None]
        scores = np.where(hidden[None, :, None, :], -np.inf, scores)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    want = ((p / p.sum(-1, keepdims=True)).reshape(items, queries * group, -1) @ v).reshape(q.shape)
    unit = float(ml_dtypes.finfo(got.dtype).eps) / 2  # type: ignore[no-untyped-call]
    lost = (setting.head_dim + 4) * 2.0**-24 * (abs(rows) @ abs(keys)).max()
    allowed = unit * abs(want) + abs(v).max() * (unit + 2 * lost / np.sqrt(setting.head_dim) + 2.0**-20)
    error = abs(got.astype(np.float64) - want)
    if not (error <= allowed).all():
        raise VerificationError(
            f"{setting.phase} over {setting.ranks} ranks: {int((~(error <= allowed)).sum())} of {error.size} elements "
            f"are further off numpy's f64 than allowed; the worst by {np.nanmax(error):.3g}"
        )
