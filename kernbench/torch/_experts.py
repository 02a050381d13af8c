"""Layers of experts over ranks: the experts of each token, and the launches and exchanges of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import permutations
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from kernbench._dtypes import float32
from kernbench.errors import ArgumentError
from kernbench.kernels.partition import Parts, chunk, cut_span, mine
from kernbench.ops._access import BLOCK, load_places, store_places
from kernbench.ops._stored import Span
from kernbench.ops.copy import copy
from kernbench.ops.matmul import BY_BLOCKS, Product, group_parts, grouped, grouped_placement
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api._devices import StartOfWork
from kernbench.runtime_api._process_group import exchanged, route
from kernbench.runtime_api.work import Call, Exchange, TensorPart
from kernbench.topology._naming import PeId
from kernbench.torch._memory import TensorMemory, TensorPlace, typed
from kernbench.triton_emu._places import Affine

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.triton_emu._handles import Pointer, Tile
    from kernbench.triton_emu.tl_context import TLContext

# Launches of a layer on a rank: name, and a function that returns PEs, kernel, arguments and tensors when it is queued.
Launch = tuple[list[PeId], Any, tuple[Any, ...], list[TensorPlace]]
# A rank's tensors whose rows it sends and receives, and the messages of all ranks.
Exchanged = tuple[DeviceTensor, DeviceTensor, Sequence["Message"]]


@dataclass(frozen=True)
class Routing:
    """Which experts compute each token, in a layer of a plan with "experts".

    With values, the router of the model decides. Without values, experts get shares of the tokens as by Zipf's law, in
    whole rows, and tokens of all ranks evenly.

    Parameters
    ----------
    skew : float
        Without values: the exponent of Zipf's law; with 0, all experts get the same number of rows.
    seed : int
        Without values: selects which experts get more.
    capacity : float, optional
        Rows that an expert takes at most, relative to the mean; the later tokens of a full expert are dropped: the
        expert adds nothing to them. By default there is no limit, and nothing is dropped.
    on_device : bool
        Whether the device itself uses the routing, as kernels in a captured graph do: the host reads nothing. Without
        values only.

    Examples
    --------
    >>> import kernbench as kb  # doctest: +SKIP
    >>> kb.torch.Routing(skew=1).drawn(tokens=8, k=2, experts=4, ranks=2)  # doctest: +SKIP
    """

    skew: float = 0.0
    seed: int = 0
    capacity: float | None = None
    on_device: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.skew < float("inf"):
            raise ArgumentError(f"Routing: skew = {self.skew} must be 0 or more")
        if self.capacity is not None and not 0 < self.capacity < float("inf"):
            raise ArgumentError(f"Routing: capacity = {self.capacity} must be above 0, or None")

    def drawn(self, tokens: int, k: int, experts: int, ranks: int) -> np.ndarray:
        """Return experts by token: int64 of shape (tokens, k), different ones for each token."""
        weights = np.random.default_rng(self.seed).permutation(np.arange(1.0, experts + 1) ** -self.skew)
        runs = np.repeat(np.arange(experts), _counts(tokens * k, weights, tokens))
        of_rank = [chunk(tokens, ranks, rank) for rank in range(ranks)]
        in_turn = sorted((i, first + i) for first, n in of_rank for i in range(n))  # successive tokens: of all ranks
        found = np.empty((tokens, k), np.int64)
        found[[token for _, token in in_turn]] = runs.reshape(k, tokens).T
        return self.kept(found, experts)

    def kept(self, chosen: np.ndarray, experts: int) -> np.ndarray:
        """Return experts by token with -1 where an expert is full."""
        if self.capacity is None:
            return chosen
        flat = chosen.reshape(-1).copy()
        order, limit = np.argsort(flat, kind="stable"), ceil(self.capacity * flat.size / experts)
        ends = np.searchsorted(flat[order], np.arange(experts))
        flat[order[np.arange(flat.size) - ends[flat[order]] >= limit]] = -1
        return flat.reshape(chosen.shape)


def _counts(total: int, weights: np.ndarray, most: int) -> np.ndarray:
    """Split `total` by weights into whole numbers of at most `most`; the largest remainders are rounded up."""
    full = np.zeros(weights.size, bool)
    while True:
        shares = np.where(full, most, (total - most * full.sum()) * weights / weights[~full].sum())
        if not (shares > most).any():
            break
        full |= shares > most
    found = np.floor(shares).astype(np.int64)
    found[np.argsort(found - shares, kind="stable")[: total - found.sum()]] += 1
    return found


class Message(NamedTuple):
    """Rows that a rank sends to another or itself: the first in its tensor and in the other's, and their number."""

    source: int
    first: int
    target: int
    at: int
    n: int


class Assignment:
    """The rows of a layer on all ranks: each has consecutive tokens and experts."""

    def __init__(self, chosen: np.ndarray, experts: int, ranks: int) -> None:
        self.tokens, self.k = chosen.shape
        self.ranks, self.per_rank = ranks, experts // ranks
        self.own = [chunk(self.tokens, ranks, rank) for rank in range(ranks)]
        self.slots, counts = [], []  # places in `chosen` of the rows that a rank sends, by expert
        for first, n in self.own:
            flat = chosen[first : first + n].reshape(-1)
            order = np.argsort(flat, kind="stable")
            order = order[flat[order] >= 0]
            self.slots.append(order + first * self.k)
            counts.append(np.bincount(flat[order], minlength=experts))
        self.counts = np.array(counts)  # (ranks, experts)

    def ends(self, rank: int) -> list[int]:
        """Return the last row + 1 of each expert of a rank, in the rows that it receives."""
        own = self.counts[:, rank * self.per_rank : (rank + 1) * self.per_rank]
        return [int(x) for x in own.sum(0).cumsum()]

    @cached_property
    def dispatch(self) -> list[Message]:
        """Messages from tokens to experts: a receiver's rows are in the order of experts, and of ranks for each."""
        found = []
        sent = np.cumsum(self.counts, axis=1) - self.counts
        for target in range(self.ranks):
            at = 0
            for expert in range(target * self.per_rank, (target + 1) * self.per_rank):
                for source in range(self.ranks):
                    n = int(self.counts[source, expert])
                    if n:
                        found.append(Message(source, int(sent[source, expert]), target, at, n))
                    at += n
        return found

    @property
    def combine(self) -> list[Message]:
        return [Message(m.target, m.at, m.source, m.first, m.n) for m in self.dispatch]

    @property
    def gather(self) -> list[Message]:
        return [
            Message(source, 0, target, first, n)
            for source, (first, n) in enumerate(self.own)
            for target in range(self.ranks)
            if n
        ]


def queue_exchange(
    session: RuntimeContext, of: Sequence[DeviceTensor], to: Sequence[DeviceTensor], messages: Sequence[Message],
    name: str, places: Mapping[int, StartOfWork] | None = None,
) -> None:  # fmt: skip
    """Queue an all-to-all with uneven parts on the SIPs of `of`: the rows of `messages`, from those tensors to `to`.

    `places` are those in the graphs of the SIPs.
    """
    host, sips = session._host, [x.sip for x in of]
    moves = [route(m.source, TensorPart(of[m.source], m.first, m.n), m.target, TensorPart(to[m.target], m.at, m.n))
             for m in messages]  # fmt: skip
    found = exchanged(host.config, "all_to_all", moves, sips, frozenset(permutations(range(len(sips)), 2)))
    assert found is not None, "each rank has rows"
    planned, given = found
    starts = session._collectives.starts(planned, "experts", given, name, {})
    rows = np.zeros((len(sips), len(sips)), int)
    for m in messages:
        rows[m.source, m.target] += m.n
    for x, y, sent, received in zip(of, to, rows.tolist(), rows.T.tolist(), strict=True):
        call = Call("all_gather", tensors={"input": x, "output": y})
        if any(n < x.shape[0] for n in sent):
            sends, receives = (
                {j: TensorPart(t, 0, n) for j, n in enumerate(own)} for t, own in ((x, sent), (y, received))
            )
            call = Exchange("all_to_all", sends=sends, receives=receives)
        after = host.start_of_work(collective=True) if places is None else places[x.sip]
        communication = call.communication(tuple(sips))
        host.start(x.sip, starts[x.sip], [x._handle, y._handle], after, communication=communication)


class Layer:
    """The launches of a layer of experts on one rank, when its assignment is known: `assigned` returns it then."""

    def __init__(
        self, session: RuntimeContext, memory: TensorMemory, rank: int, assigned: Callable[[], Assignment],
        tensors: Mapping[str, TensorPlace], dtype: torch.dtype,
    ) -> None:  # fmt: skip
        self._session, self._memory, self._assigned, self._given = session, memory, assigned, tensors
        self.rank, self._dtype = rank, dtype
        self._held: dict[str, torch.Tensor] = {}

    def _rows(self, name: str, n: int, width: int) -> TensorPlace:
        x = self._held[name] = self._memory.rows(max(1, n), width, self._dtype, later=True)
        return self._memory.place(x)

    def _place(self, name: str) -> TensorPlace:
        return self._memory.place(self._held[name])

    def permute(self) -> Launch:
        assigned, x = self._assigned(), self._given["x"]
        rows = assigned.slots[self.rank] // assigned.k
        to = self._rows("sent" if assigned.ranks > 1 else "received", len(rows), x.shape[1])
        moved = to.pointer, (x.pointer,), _Rows(rows, x.shape[1], x.strides, parts := _parts(to, len(rows)))
        return sorted(parts), copy, moved, [x, to]

    def gate_up(self) -> Launch:
        return self._product("received", "gate_up", "up")

    def activate(self) -> Launch:
        x = self._place("up")
        to = self._rows("active", x.shape[0], x.shape[1] // 2)
        parts = _parts(to, self._assigned().ends(self.rank)[-1])
        del self._held["up"]
        return sorted(parts), silu_and_mul, (x.pointer, to.pointer, parts, to.shape[1]), [x, to]

    def down(self) -> Launch:
        return self._product("active", "down", "computed" if self._assigned().ranks > 1 else "back")

    def _product(self, source: str, weight: str, target: str) -> Launch:
        x, w = self._place(source), self._given[weight]
        ends = self._assigned().ends(self.rank)
        z = self._rows(target, ends[-1], w.shape[2])
        del self._held[source]
        targets, kernel = grouped_product(self._session, x, w, z, ends)
        return targets, kernel, (x.pointer, w.pointer, x.pointer, z.pointer), [x, w, z]

    def weigh(self) -> Launch:
        assigned, weights = self._assigned(), self._given["weights"]
        first, n = assigned.own[self.rank]
        back = self._place("back")
        out = self._given["out"] if assigned.ranks == 1 else self._rows("weighed", n, back.shape[1])
        at = np.full(assigned.tokens * assigned.k, -1)
        at[assigned.slots[self.rank]] = np.arange(len(assigned.slots[self.rank]))
        own = at.reshape(-1, assigned.k)[first : first + n]
        scales = (np.arange(n) + first)[:, None] * weights.strides[0] + np.arange(assigned.k) * weights.strides[1]
        parts = _parts(out, n)
        args = back.pointer, weights.pointer, out.pointer, parts, out.shape[1], own, scales
        del self._held["back"]
        return sorted(parts), weighed_sum, args, [back, weights, out]

    def dispatch(self) -> Exchanged:
        n = self._assigned().ends(self.rank)[-1]
        return self._exchange("sent", self._rows("received", n, self._given["x"].shape[1]), self._assigned().dispatch)

    def combine(self) -> Exchanged:
        back = self._rows("back", len(self._assigned().slots[self.rank]), self._given["x"].shape[1])
        return self._exchange("computed", back, self._assigned().combine)

    def gather(self) -> Exchanged:
        return self._exchange("weighed", self._given["out"], self._assigned().gather)

    def _exchange(self, source: str, to: TensorPlace, messages: list[Message]) -> Exchanged:
        of = typed(self._place(source))
        del self._held[source]
        return of, typed(to), messages


class _Rows(NamedTuple):
    """Rows of a matrix, and the rows of the target that each PE copies."""

    rows: np.ndarray
    width: int
    strides: tuple[int, ...]
    parts: Parts

    def moves(self, tl: TLContext) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        columns = np.arange(self.width)
        for own in mine(self.parts, tl):
            for first, n in cut_span(own, max(1, BLOCK // self.width)):
                read = self.rows[first : first + n, None] * self.strides[0] + columns * self.strides[1]
                yield 0, read.reshape(-1), np.arange(first * self.width, (first + n) * self.width)


def grouped_product(
    session: RuntimeContext, x: TensorPlace, w: TensorPlace, z: TensorPlace, ends: Sequence[int] | None
) -> tuple[list[PeId], Any]:
    """Return the PEs and the kernel of z = x w for groups of rows that end before `ends`, each with its matrix."""
    (rows, k), (groups, _, n), machine = x.shape, w.shape, session.engine.machine
    product = Product(rows, n, k, x.dtype.name, x.stored, w.stored, z.stored)
    placement, parts = grouped_placement(machine, product, groups), group_parts(machine.config, groups)
    pes, each = range(machine.config.pes_per_sip), machine.config.pes_per_cube
    targets = [divmod(i, each) for i in pes] if placement == BY_BLOCKS else sorted(parts)
    return targets, partial(
        grouped, product=product, placement=placement, groups=parts, known=ends, config=machine.config
    )


def _parts(place: TensorPlace, n: int) -> dict[PeId, list[Span]]:
    """Return which of the first `n` rows of a tensor each PE holds; if there are none, one PE with nothing to do."""
    shards, found = place.buffer.layout.shards, dict[PeId, list[Span]]()
    for s in shards:
        first, end = s.index[0].start, min(n, s.index[0].stop)
        if first < end:
            found.setdefault((s.cube, s.pe), []).append((first, end - first))
    return found or {(shards[0].cube, shards[0].pe): []}


def silu_and_mul(x: Pointer, out: Pointer, parts: Parts, width: int, *, tl: TLContext) -> None:
    """Write silu(gate) * up to rows of out; a row of x has both."""
    for own in mine(parts, tl):
        for left, n in cut_span((0, width), BLOCK):
            for first, rows in cut_span(own, max(1, BLOCK // n)):
                at = first * 2 * width + left
                gate, up = (
                    load_places(x, Affine(at + more, (rows, n), (2 * width, 1)), tl).to(float32) for more in (0, width)
                )
                y = (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty)
                store_places(out, Affine(first * width + left, (rows, n), (width, 1)), y, tl)


def weighed_sum(
    x: Pointer, weights: Pointer, out: Pointer, parts: Parts, width: int, own: np.ndarray, scales: np.ndarray, *,
    tl: TLContext,
) -> None:  # fmt: skip
    """Write the sums of rows `own` of x, (rows, k), times the weights at places `scales`; rows of -1 are left out."""
    for part in mine(parts, tl):
        for left, n in cut_span((0, width), BLOCK):
            columns = np.arange(left, left + n)
            for first, rows in cut_span(part, max(1, BLOCK // n)):
                total: Tile | None = None
                for j in range(own.shape[1]):
                    at = own[first : first + rows, j, None]
                    y = load_places(x, np.maximum(at, 0) * width + columns, tl).to(float32)
                    scale = load_places(weights, scales[first : first + rows, j, None], tl).to(float32)
                    if (at < 0).any():
                        scale = scale * tl.constant((at >= 0).astype(np.int64))
                    total = y * scale if total is None else total + y * scale
                assert total is not None
                places = Affine(first * width + left, (rows, n), (width, 1))
                store_places(out, places, total.to(out.dtype.element_ty), tl)
