"""One run of attention over ranks: where q, k and v are stored, which algorithm joins the ranks, what bounds it.

Every rank has its kv tokens of each item (a kv head of a sequence) in its HBM slice. In prefill it also has its query
tokens there, and K/V tiles travel; in decode it has a copy of the one query token, and parts travel. With data, the
result is compared with numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.analysis.result import Result
from kernbench.analysis.roofline import macs_per_ns
from kernbench.ccl.algorithm import Algorithm, Mapper, Plan, algorithm
from kernbench.ccl.algorithms import recursive_doubling
from kernbench.ccl.group import Group, Place, by_shard
from kernbench.ccl.install import resolve_algorithm_config
from kernbench.components.builtin.pe_scheduler import cuts
from kernbench.config import MachineConfig
from kernbench.dtypes import DType, as_dtype
from kernbench.errors import ArgumentError, VerificationError
from kernbench.kernels import ring_attention
from kernbench.kernels.attention import tiles
from kernbench.kernels.ring_attention import EXTRA, exchanged_attention, merge, merged_attention
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.topology.builder import Machine

PHASES = ("prefill", "decode")
ACROSS = ("pe", "cube")
# Llama-3 70B, from its published configuration.
LAYERS, HEADS, KV_HEADS, HEAD_DIM = 80, 64, 8, 128
HIDDEN, FFN, VOCABULARY = 8192, 28672, 128256
GROUP = HEADS // KV_HEADS
# The linear layers: inputs and outputs of those of one layer, and of the last one.
_LAYER = {
    "qkv": (HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_DIM), "o": (HEADS * HEAD_DIM, HIDDEN),
    "gate and up": (HIDDEN, 2 * FFN), "down": (FFN, HIDDEN),
}  # fmt: skip
PRODUCTS = _LAYER | {"head": (HIDDEN, VOCABULARY)}
TIMES = {name: LAYERS if name in _LAYER else 1 for name in PRODUCTS}  # in one step
STREAMED = sum(TIMES[name] * k * n for name, (k, n) in PRODUCTS.items())  # weights that a step reads
WEIGHTS = STREAMED + VOCABULARY * HIDDEN  # and the embedding, of which it reads a row for each token


@dataclass(frozen=True, slots=True)
class Setting:
    """What is run.

    Attributes
    ----------
    phase : str
        "prefill" or "decode".
    ranks, across : int, str
        Ranks of each lane, and their order (see `lanes`).
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
    named = replace(base, name=f"decode merged by {base.name}", mapper=mapper, cost=None)
    own = replace(named, n_slots=setting.n_slots, slot_size=setting.slot_size)
    if _in_tcm(base):
        return replace(own, kernel=exchanged_attention, kernel_args=lambda *, n_elem, world_size: _sizes(setting))
    return replace(own, kernel=merged_attention, kernel_args=_decode_args(base, setting))


def _in_tcm(base: Algorithm) -> bool:
    """Return whether parts are merged in TCM: recursive doubling exchanges them whole; others take them from memory."""
    return base.kernel is recursive_doubling.kernel


def _sizes(setting: Setting) -> tuple[int, ...]:
    return setting.items, setting.group, setting.queries, setting.tokens, setting.head_dim


def _decode_args(base: Algorithm, setting: Setting) -> Callable[..., tuple[Any, ...]]:
    """Return the arguments of `merged_attention` for the reduction `base`, told the facts that it names."""
    width = setting.head_dim + EXTRA

    def arguments(*, n_elem: int, world_size: int, **facts: Any) -> tuple[Any, ...]:
        rows = setting.items * setting.queries * setting.group
        inner = base.kernel_args(n_elem=rows * width, world_size=world_size, op=merge, row=width, **facts)
        return *_sizes(setting), base.kernel, inner

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
    """Return q, k, v, part (where parts are merged in memory), and out of one device, a row for each PE."""
    dp = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=setting.cubes, num_pes=setting.pes)
    shapes = _shapes(setting)
    found = []
    for i, name in enumerate(("q", "k", "v")):
        if given is None:
            tensor = torch.empty(shapes[name], dtype=dtype, dp=dp, device=f"ahbm:{sip}", name=name)
        else:
            tensor = torch.tensor(given[i][sip], dtype=dtype, dp=dp, device=f"ahbm:{sip}", name=name)
        found.append(tensor)
    if setting.phase == "decode" and not _in_tcm(resolve_algorithm_config(setting.merge)):
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
    for subgroup in plan.subgroups:
        at = [divmod(rows[place], setting.cubes * setting.pes) for place in subgroup.places]
        order = np.concatenate([_positions(setting, rank) for rank in range(setting.ranks)])
        keys, values = (np.concatenate([x[i] for i in at], axis=1)[:, np.argsort(order)] for x in (k, v))
        for rank, i in enumerate(at):
            seen = _positions(setting, rank) if setting.causal and setting.phase == "prefill" else None
            _compare(setting, q[i], keys, values, seen, out[i])


def _places(setting: Setting, plan: Plan) -> list[tuple[int, int, int]]:
    """Return the PEs in the order in which tensors hold them."""
    return sorted(place for subgroup in plan.subgroups for place in subgroup.places)


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


def lanes(ranks: int, across: str) -> Mapper:
    """Return a mapper that makes lanes of `ranks` of the PEs that hold a shard, as many from each SIP.

    Parameters
    ----------
    ranks : int
        Participants of each lane.
    across : str
        "pe": the PEs of a cube follow each other, then those of the next cube; "cube": one PE of each cube, cube
        after cube, and a lane for each PE. Cubes follow each other row by row, forth and back, so that neighbours are
        neighbours on the mesh; SIPs follow each other in rank order.
    """
    if across not in ACROSS:
        raise ArgumentError(f"across = {across!r} is unknown; known: {', '.join(ACROSS)}")

    def mapper(group: Group) -> list[tuple[Place, ...]]:
        sips = len(group.shards)
        if ranks % sips or len(group.shards[0]) * sips % ranks:
            raise ArgumentError(
                f"ranks = {ranks}: {sips} SIPs with {len(group.shards[0])} PEs that hold shards each; expected a "
                "multiple of the SIPs and a divisor of the PEs"
            )
        parts = [_cut(_ordered(places, group.cube_columns), ranks // sips) for places in group.shards]
        return [tuple(place for part in lane for place in part) for lane in zip(*parts, strict=True)]

    def _ordered(places: Sequence[Place], columns: int) -> list[Place]:
        order = sorted(places, key=lambda p: (snake(p[1], columns), _round_cube(p[2], places)))
        return sorted(order, key=lambda p: p[2]) if across == "cube" else order

    return mapper


def snake(cube: int, columns: int) -> tuple[int, int]:
    """Return where a cube comes when rows are gone through forth and back.

    >>> sorted(range(6), key=lambda cube: snake(cube, 3))
    [0, 1, 2, 5, 4, 3]
    """
    row, column = divmod(cube, columns)
    return row, columns - 1 - column if row % 2 else column


def _round_cube(pe: int, places: Sequence[Place]) -> tuple[bool, int]:
    """Return where a PE comes on the way round a cube: the corners are listed NW, NE, SW, SE."""
    n = max(p[2] for p in places) + 1
    lower = pe >= n // 2
    return lower, -pe if lower else pe


def _cut(order: Sequence[Place], size: int) -> list[Sequence[Place]]:
    return [order[at : at + size] for at in range(0, len(order), size)]


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of the whole model on the machine [B].

    Attributes
    ----------
    weights, kv, room : int
        What the weights take, the keys and values of all layers, and the HBM of the SIPs.
    """

    weights: int
    kv: int
    room: int

    @property
    def obstacle(self) -> str:
        """Why it does not fit, or nothing."""
        if self.weights + self.kv <= self.room:
            return ""
        return (
            f"infeasible: {self.weights:,} B of weights and {self.kv:,} B of keys and values, HBM has {self.room:,} B"
        )


def need(config: MachineConfig, sips: int, kv_elements: int, dtype: str) -> Need:
    """Return what the whole model needs on `sips` SIPs, with so many elements of keys (as many values) in a layer."""
    item = as_dtype(dtype).itemsize
    room = config.cube.hbm.slice_bytes(config.pes_per_cube) * config.pes_per_sip * sips
    return Need(WEIGHTS * item, 2 * LAYERS * kv_elements * item, room)


def slice_gbs(config: MachineConfig) -> float:
    """Return the bandwidth of one HBM slice."""
    return config.cube.hbm.slice_gbs


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one setting, of all PEs together; bounds of the busiest PE [ns].

    Attributes
    ----------
    flops : int
        Useful ones: scores and weighted sums of the pairs that count.
    kv_bytes : int
        Keys and values, each read once.
    hbm_ns : float
        No run is faster: reading them from the slices.
    matrix_ns : float
        Nor this: the tiles of the matrix engine, padding included, spread evenly.
    vector_ns : float
        Nor this: the vector engine's passes over the scores.
    useful : float
        Useful MACs as a share of those of whole tiles.
    """

    flops: int
    kv_bytes: int
    hbm_ns: float
    matrix_ns: float
    vector_ns: float
    useful: float

    @property
    def bound_ns(self) -> float:
        """The largest of the bounds."""
        return max(self.bounds.values())

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds by name."""
        return {"HBM": self.hbm_ns, "matrix engine": self.matrix_ns, "vector engine": self.vector_ns}

    @property
    def limiter(self) -> str:
        """Which bound is the largest."""
        return max(self.bounds, key=lambda name: self.bounds[name])


def work(config: MachineConfig, setting: Setting) -> Work:
    """Return the counts of a setting.

    Notes
    -----
    Vector passes per score: max, fused multiply-add, exp (slow), sum and cast on 32-bit lanes, a transposition on
    16-bit ones. Under a causal mask half of the pairs count, plus half a diagonal; bounds count the pairs that are
    useful, whatever tiles a diagonal cuts.
    """
    pe, item = config.cube.pe, as_dtype(setting.dtype).itemsize
    lanes, context = setting.n_lanes * setting.items, setting.tokens * setting.ranks
    queries = setting.queries * (setting.ranks if setting.phase == "prefill" else 1)
    pairs = queries * (context + 1) // 2 if setting.causal else queries * context
    macs = 2 * lanes * pairs * setting.group * setting.head_dim
    tile, (q, kv) = pe.pe_gemm.tile, tiles(setting.group, setting.queries)
    rows, kv = q * setting.group, min(kv, setting.tokens)
    whole = (
        cuts(kv, tile.m) * cuts(setting.head_dim, tile.k) * cuts(rows, tile.n)
        + cuts(rows, tile.m) * cuts(kv, tile.k) * cuts(setting.head_dim, tile.n)
    ) * (tile.m * tile.k * tile.n)
    useful = 2 * rows * kv * setting.head_dim / whole
    scores = lanes * pairs * setting.group / setting.programs
    cycles = scores * ((4 + pe.pe_math.slow_op_cycles) / pe.pe_math.lanes_32bit + 1 / pe.pe_math.lanes_16bit)
    kv_bytes = 2 * lanes * context * setting.head_dim * item
    return Work(
        flops=2 * macs,
        kv_bytes=kv_bytes,
        hbm_ns=kv_bytes / (slice_gbs(config) * setting.programs),
        matrix_ns=macs / useful / macs_per_ns(config, setting.dtype) / setting.programs,
        vector_ns=cycles / pe.pe_math.clock_ghz,
        useful=useful,
    )
