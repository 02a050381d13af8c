"""The packaged collectives. `module` of an entry of ccl.yaml names one of them: kernbench.ccl.algorithms.ring, ...

An all-reduce is a function that returns the stages of a participant: its rings and trees, each with its directions.
`all_reduce` turns it into a kernel, with arguments and cost. The names of the function's parameters state what it
needs: `rank` and `n` (participants), `n_elem` and `itemsize` (the vector), and any of `FACTS` of
kernbench.config._ccl. To add an all-reduce, write such a function, here or in your own module, and name it in
ccl.yaml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from inspect import Parameter, Signature, signature
from typing import Any

from kernbench.ccl._all_reduce_steps import LAG, pipeline
from kernbench.ccl._schedule import (
    Chunking,
    ElementSpan,
    Operator,
    Reduction,
    Step,
    reduction,
    row_blocks,
    run_schedule,
    take_turns,
)  # fmt: skip
from kernbench.ccl.stages import (
    COPY,
    SUM,
    CostTerms,
    Directions,
    Pairwise,
    Ring,
    Stage,
    Streams,
    Tree,
    cycle,
    heap_tree,
    in_order_height,
    in_order_tree,
    mesh_tree,
    sip_stages,
)  # fmt: skip
from kernbench.errors import ConfigError
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

Schedule = Callable[[Streams, int, Chunking, int], Iterator[Step]]

COPIED_AT_ONCE = 16384  # elements: a few copies fit into TCM in every type
# Bytes of a slice that uses a tree of cubes: a cycle takes more steps, each with a shorter message. Simulated on 2 x 16
# cubes, a tree takes 0.6 of the time with 256 B and 2 KiB, and 0.87 with 12 KiB.
SHORT_SLICE = 16384
# Assumed delay in chunks on each edge of the two trees; it determines how the steps of both are merged.
EDGE = 4

_VECTOR = ("rank", "n", "n_elem", "itemsize")


@dataclass(frozen=True, eq=False, slots=True)
class Collective:
    """A kernel, the function that returns its arguments, and its cost; None if unknown."""

    kernel: Callable[..., object]
    kernel_args: Callable[..., tuple[Any, ...]]
    cost: CostTerms | None = None


def all_reduce(
    *, both_ways: bool | None = None, schedule: Schedule = pipeline, only_sum: bool = False, **costs: Any
) -> Callable[[Callable[..., Streams]], Collective]:
    """Return a decorator that makes an all-reduce of a function that returns a participant's streams of stages.

    Parameters
    ----------
    both_ways : bool, optional
        Default of the option `both_ways`, which sends one half of the vector around the rings in the other direction;
        None if the option does not exist.
    schedule : callable
        Returns the steps of one participant: `schedule(streams, n_elem, chunking, n)`.
    only_sum : bool
        It takes no other `op`.
    **costs
        Fields of `kernbench.ccl.stages.CostTerms`, for a user-defined schedule.

    Examples
    --------
    >>> @all_reduce(both_ways=False)
    ... def my_ring(rank, n):
    ...     return [[Ring(rank, n, "E", "W")]]
    >>> my_ring.kernel_args(n_elem=8, world_size=2, both_ways=True)[0]
    8
    """

    def decorate(stages: Callable[..., Streams]) -> Collective:
        takes = signature(stages).parameters
        defaults = {name: taken.default for name, taken in takes.items() if taken.default is not Parameter.empty}
        # Arguments that `kernel_args` adds, by name; the launch sends each of them to the PEs.
        added = [*(name for name in takes if name not in _VECTOR), *["both_ways"] * (both_ways is not None)]

        def streams(call: Mapping[str, Any], *of: int) -> Streams:
            values = {**defaults, **call, **dict(zip(_VECTOR, of, strict=True))}
            found: Streams = stages(**{name: values[name] for name in takes})
            if call.get("both_ways", both_ways):
                found = [*found, *(_reversed(stages.__name__, stream) for stream in found)]
            _check_queues(stages.__name__, found)
            return found

        def kernel_args(
            *, n_elem: int, world_size: int, op: str | Operator = "sum", row: int = 1, chunk_bytes: int | None = None,
            both_ways: bool | None = both_ways, **facts: Any,
        ) -> tuple[Any, ...]:  # fmt: skip
            if only_sum and op != "sum":
                raise ConfigError(f"op = {op!r}: {stages.__name__} only adds; use op = 'sum', or another algorithm")
            further = {**defaults, **facts, "both_ways": both_ways}
            return n_elem, reduction(n_elem, world_size, op, row), chunk_bytes, *(further[name] for name in added)

        def kernel(
            t_ptr: Pointer, n_elem: int, work: Reduction, chunk_bytes: int | None, *further: Any, tl: TLContext
        ) -> None:
            if work.count > 1:
                itemsize = t_ptr.dtype.element_ty.itemsize
                call = dict(zip(added, further, strict=True))
                own = streams(call, tl.program_id(2), work.count, n_elem, itemsize)
                steps = schedule(own, n_elem, Chunking(itemsize, work.row, chunk_bytes, len(own)), work.count)
                run_schedule(steps, t_ptr, t_ptr, work, tl)

        kernel.__name__ = kernel.__qualname__ = stages.__name__
        takes_args = signature(kernel_args).parameters
        fact = Parameter("fact", Parameter.KEYWORD_ONLY)
        order = ["n_elem", "world_size", *(name for name in added if name not in takes_args), "op", "row"]
        order += ["chunk_bytes", *(name for name in added if name in takes_args)]
        named = [
            takes_args[name] if name in takes_args else fact.replace(name=name, default=takes[name].default)
            for name in order
        ]
        _sign(kernel_args, named)
        *pointer, _, tl = signature(kernel).parameters.values()
        _sign(kernel, [*pointer, *(Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in added), tl])
        return Collective(kernel, kernel_args, CostTerms(streams, **costs))

    return decorate


def _reversed(name: str, stream: Sequence[Stage]) -> list[Stage]:
    found: list[Stage] = []
    for stage in stream:
        if not isinstance(stage, Ring):
            raise ConfigError(
                f"all-reduce {name!r}: both_ways reverses its stages, which must all be rings, but one is {stage}; "
                "leave both_ways out"
            )
        found.append(stage.reversed)
    return found


def _check_queues(name: str, streams: Streams) -> None:
    """Refuse streams that share a queue, because their messages would mix."""
    used: set[tuple[str, str]] = set()
    for stream in streams if len(streams) > 1 else ():
        own = {end for stage in stream for end in stage.ends}
        if used & own:
            action, queue = min(used & own)
            raise ConfigError(
                f"all-reduce {name!r}: two of its streams {action} queue {queue!r}; give every stream queues that no "
                "other stream uses. both_ways=True adds the reverse of every stream"
            )
        used |= own


def _sign(function: Callable[..., object], parameters: Sequence[Parameter]) -> None:
    """Set `__signature__` so that calls are checked."""
    function.__signature__ = Signature(parameters)  # type: ignore[attr-defined]


# -- all-reduces


@all_reduce(both_ways=False)
def ring(rank: int, n: int) -> Streams:
    """Reduce-scatter, then all-gather, each of n - 1 steps of an n-th of the vector."""
    return [[Ring(rank, n, "E", "W")]]


def _whole_vectors(streams: Streams, n_elem: int, chunking: Chunking, n: int) -> Iterator[Step]:
    """Circulate whole vectors: each participant adds what it receives, and forwards it unchanged."""
    for segment in chunking.segments(0, n_elem, 1):
        chunks = chunking.chunks(segment)
        yield from (Step(*chunk, local=True, to=("E",)) for chunk in chunks)
        for step in range(1, n):
            last = step == n - 1
            to = () if last else ("E",)
            for chunk in chunks:
                yield Step(*chunk, ("W",), local=True, complete=last, to=to, store=True, unchanged=True)


@all_reduce(schedule=_whole_vectors, ring=SUM, splits=False, moved=lambda n: 2 * n - 1)
def ring_flat(rank: int, n: int) -> Streams:
    """N - 1 steps of the whole vector. Participants add in different orders: results may differ in the last bit."""
    return [[Ring(rank, n, "E", "W")]]


@all_reduce(both_ways=False)
def ring_mesh(rank: int, grid_w: int, grid_h: int) -> Streams:
    """Ring along a Hamiltonian cycle of the mesh: every hop is one link, no wrap is needed."""
    return [[cycle(rank, grid_w, grid_h) or Ring(0, 1, "", "")]]


@all_reduce()
def mesh_2d(rank: int, grid_w: int, grid_h: int) -> Streams:
    """Along each row to the middle column, along that to its middle, and back; no wrap."""
    return [[mesh_tree(rank, grid_w, grid_h, grid_h // 2 * grid_w + grid_w // 2)]]


@all_reduce()
def tree_binary(rank: int, n: int) -> Streams:
    """Up a binary heap to its root, and back, chunk after chunk."""
    return [[heap_tree(rank, n)]]


def _in_height_order(streams: Streams, n_elem: int, chunking: Chunking, n: int) -> Iterator[Step]:
    """Merge the steps of both trees by height: a chunk is `EDGE` later on every edge, up and down.

    Each message is then earlier in the order of its sender than in that of its receiver.
    """
    top = in_order_height(n)

    def steps(tree: Stage, chunks: list[ElementSpan]) -> Iterator[tuple[int, Step]]:
        assert isinstance(tree, Tree)
        children, parent = tree.children, tree.parent
        if parent is None:
            for i, chunk in enumerate(chunks):
                yield i + EDGE * top, Step(*chunk, children, local=True, complete=True, to=children, store=True)
            return
        up = ((i + EDGE * tree.height, Step(*at, children, local=True, to=(parent,))) for i, at in enumerate(chunks))
        late = EDGE * (top + tree.depth)
        down = ((i + late, Step(*at, (parent,), to=children, store=True)) for i, at in enumerate(chunks))
        yield from merge(up, down, key=lambda step: step[0])

    halves = row_blocks(0, n_elem, 2, chunking.row)
    both = [steps(stages[0], chunking.chunks(half)) for stages, half in zip(streams, halves, strict=True)]
    return (step for _, step in merge(*both, key=lambda step: step[0]))


@all_reduce(schedule=_in_height_order)
def double_tree(rank: int, n: int) -> Streams:
    """Two binary trees with half of the vector each; participants that forward data in one are leaves of the other.

    Tree a is the in-order tree of 1 .. n-1 under 0, b its mirror image for even n, else a shifted by one.
    """
    image = (rank - 1) % n if n % 2 else n - 1 - rank
    return [[in_order_tree(rank, n, "a_")], [in_order_tree(image, n, "b_")]]


def _pairs(rank: int, n: int) -> Streams:
    """Rings of two at distance 1, 2, 4, ...; participants beyond the power of two fold into a partner first."""
    power = 1 << n.bit_length() - 1
    place, folded = rank % power, ("fold",) if rank < n - power else ()
    fold: list[Stage] = [Tree("fold", (), 1) if rank >= power else Tree(None, folded, 0)] if n > power else []
    return [[*fold, *(Ring(place >> bit & 1, 2, f"bit{bit}", f"bit{bit}") for bit in range(power.bit_length() - 1))]]


@all_reduce()
def halving_doubling(rank: int, n: int) -> Streams:
    """Exchange of half of the rest with partners at distance 1, 2, 4, ... (Rabenseifner)."""
    return _pairs(rank, n)


def _exchange_whole(streams: Streams, n_elem: int, chunking: Chunking, n: int) -> Iterator[Step]:
    """Recursive doubling: whole vectors to each partner; sums stay in memory between the steps."""
    folds = [stage for stage in streams[0] if isinstance(stage, Tree)]
    outside = any(tree.parent for tree in folds)
    fold: Directions = ("fold",) if outside or any(tree.children for tree in folds) else ()
    partners = [stage.to for stage in streams[0] if isinstance(stage, Ring)]
    for segment in chunking.segments(0, n_elem, 1):
        chunks = chunking.chunks(segment)
        if outside:
            yield from (Step(*chunk, local=True, to=fold) for chunk in chunks)
            yield from (Step(*chunk, fold, store=True) for chunk in chunks)
            continue
        sources = [fold, *((partner,) for partner in partners)]
        for source, partner in zip(sources, partners, strict=False):
            yield from (Step(*chunk, source, local=True, to=(partner,), store=bool(source)) for chunk in chunks)
        yield from (Step(*chunk, sources[-1], local=True, complete=True, to=fold, store=True) for chunk in chunks)


def _doublings(n: int) -> float:
    """HBM traffic of recursive doubling, in vectors: a load and a store per step, once more where others fold in."""
    bits = n.bit_length() - 1
    return 2 * bits + 1 + 2 * (n != 1 << bits)


@all_reduce(schedule=_exchange_whole, ring=SUM, splits=False, moved=_doublings)
def recursive_doubling(rank: int, n: int) -> Streams:
    """Exchange of the whole vector with partners at distance 1, 2, 4, ...: for the smallest sizes."""
    return _pairs(rank, n)


@all_reduce(both_ways=True)
def torus_2d(rank: int, grid_w: int, grid_h: int) -> Streams:
    """Bucket algorithm: reduce-scatter in rows, all-reduce of the parts in columns, all-gather in rows."""
    row, column = divmod(rank, grid_w)
    return [[Ring(column, grid_w, "E", "W"), Ring(row, grid_h, "S", "N")]]


def _by_switch(streams: Streams, n_elem: int, chunking: Chunking, n: int) -> Iterator[Step]:
    """Send each chunk to the switch; the sums lag behind."""
    chunks = chunking.chunks((0, n_elem))
    sums = [Step(*chunk, ("from_switch",), store=True) for chunk in chunks]
    for i, chunk in enumerate(chunks):
        yield Step(*chunk, local=True, to=("to_switch",))
        yield from sums[i - LAG : i - LAG + 1] if i >= LAG else ()
    yield from sums[-LAG:]


@all_reduce(schedule=_by_switch, only_sum=True, ring=COPY, splits=False)
def switch() -> Streams:
    """Sum at the switch of the SIPs: every link carries the vector once each way, as for a message through it."""
    return [[Ring(0, 2, "to_switch", "from_switch")]]


@all_reduce()
def double_torus(rank: int, grid_w: int, grid_h: int) -> Streams:
    """Bucket algorithm on both axes at a time: all four links of a participant carry data.

    It takes down to half the time of `torus_2d` where links between participants are the limit, and no less where these
    share a route, as the links of a device of the default machine do. Queues a_E, ... are for the part that begins in
    rows, b_E, ... for the part that begins in columns.
    """
    row, column = divmod(rank, grid_w)
    rows_first = [Ring(column, grid_w, "a_E", "a_W"), Ring(row, grid_h, "a_S", "a_N")]
    columns_first = [Ring(row, grid_h, "b_S", "b_N"), Ring(column, grid_w, "b_E", "b_W")]
    forward = [rows_first, columns_first]
    return [*forward, *([stage.reversed for stage in stream] for stream in forward)]


@all_reduce()
def intercube(rank: int, cube_w: int, cube_h: int, root_cube: int, sip_w: int, sip_h: int, sip_wraps: bool) -> Streams:
    """Through each device's mesh of cubes to its root cube, among the root cubes, and back.

    Participants are cubes, device by device.
    """
    sip, cube = divmod(rank, cube_w * cube_h)
    return [[mesh_tree(cube, cube_w, cube_h, root_cube), *sip_stages(sip, sip_w, sip_h, sip_wraps)]]


@all_reduce()
def hierarchical(
    rank: int, n_pes: int, cube_w: int, cube_h: int, root_cube: int, sip_w: int, sip_h: int, sip_wraps: bool
) -> Streams:
    """Along the PEs of a cube to the first, through the mesh of cubes to the root cube, around the devices, and back.

    Participants are PEs, device by device, cube by cube.
    """
    above, pe = divmod(rank, n_pes)
    sip, cube = divmod(above, cube_w * cube_h)
    chain = Tree("local_W" if pe else None, ("local_E",) if pe < n_pes - 1 else (), pe)
    return [[chain, mesh_tree(cube, cube_w, cube_h, root_cube), *sip_stages(sip, sip_w, sip_h, sip_wraps)]]


@all_reduce()
def hierarchical_sliced(
    rank: int, n_elem: int, itemsize: int,
    n_pes: int, cube_w: int, cube_h: int, root_cube: int, sip_w: int, sip_h: int, sip_wraps: bool,
) -> Streams:  # fmt: skip
    """Each PE reduces a slice of the vector: reduce-scatter over a cube's PEs, then over cubes and devices, and back.

    Long slices use a cycle of cubes if the mesh has one, others a tree; between devices every PE sends its own slice.
    Participants are PEs, device by device, cube by cube.
    """
    above, pe = divmod(rank, n_pes)
    sip, cube = divmod(above, cube_w * cube_h)
    slices: list[Stage] = [Ring(pe, n_pes, "local_E", "local_W")] if n_pes > 1 else []
    short = -(-n_elem // n_pes) * itemsize <= SHORT_SLICE
    around = None if short else cycle(cube, cube_w, cube_h)
    cubes = around or mesh_tree(cube, cube_w, cube_h, root_cube)
    return [[*slices, cubes, *sip_stages(sip, sip_w, sip_h, sip_wraps)]]


# -- other collectives


def _root_args(
    *, n_elem: int, world_size: int, root: int = 0, chunk_bytes: int | None = None
) -> tuple[int, int, int, int | None]:
    return n_elem, world_size, root, chunk_bytes


def _heap(call: Mapping[str, Any], rank: int, n: int, n_elem: int, itemsize: int) -> Streams:
    return [[heap_tree(rank, n)]]


def _sent_down(n: int) -> float:
    """HBM reads of the root of a broadcast, in vectors: one for each of its at most two children."""
    return min(2, n - 1)


def _broadcast(t_ptr: Pointer, n_elem: int, n: int, root: int, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Send the root's elements down a binary tree, chunk after chunk."""
    _send_down(heap_tree(tl.program_id(2), n, root), t_ptr, n_elem, chunk_bytes, tl)


def _send_down(tree: Tree, t_ptr: Pointer, n_elem: int, chunk_bytes: int | None, tl: TLContext) -> None:
    chunks = Chunking(t_ptr.dtype.element_ty.itemsize, 1, chunk_bytes).chunks((0, n_elem))
    if tree.parent is None:
        steps = [Step(*chunk, local=True, to=tree.children) for chunk in chunks]
    else:
        steps = [Step(*chunk, (tree.parent,), to=tree.children, store=True) for chunk in chunks]
    run_schedule(steps, t_ptr, t_ptr, Reduction(), tl)


broadcast = Collective(_broadcast, _root_args, CostTerms(_heap, tree=COPY, moved=_sent_down))


def _away(rank: int, n: int) -> Tree:
    """Position of a participant `rank` after the root of a ring, from which data travel in both directions."""
    east = n // 2
    if rank == 0:
        return Tree(None, ("E",) * (east > 0) + ("W",) * (n - 1 > east), 0)
    source, onward = ("W", "E") if rank <= east else ("E", "W")
    return Tree(source, () if rank in (east, east + 1) else (onward,), min(rank, n - rank))


def _broadcast_ring(t_ptr: Pointer, n_elem: int, n: int, root: int, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Send the root's elements along a ring in both directions: for long vectors."""
    _send_down(_away((tl.program_id(2) - root) % n, n), t_ptr, n_elem, chunk_bytes, tl)


broadcast_ring = Collective(
    _broadcast_ring, _root_args,
    CostTerms(lambda call, rank, n, *vector: [[_away(rank, n)]], tree=COPY, moved=_sent_down),
)  # fmt: skip


def _reduce_args(
    *, n_elem: int, world_size: int, root: int = 0, op: str | Operator = "sum", row: int = 1,
    chunk_bytes: int | None = None,
) -> tuple[object, ...]:  # fmt: skip
    return n_elem, reduction(n_elem, world_size, op, row), root, chunk_bytes


def _reduce(t_ptr: Pointer, n_elem: int, work: Reduction, root: int, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Reduce up a binary tree, chunk after chunk, into the root's tensor; no other tensor changes."""
    tree = heap_tree(tl.program_id(2), work.count, root)
    chunks = Chunking(t_ptr.dtype.element_ty.itemsize, work.row, chunk_bytes).chunks((0, n_elem))
    if tree.parent is not None:
        steps = [Step(*chunk, tree.children, local=True, to=(tree.parent,)) for chunk in chunks]
    elif tree.children:
        steps = [Step(*chunk, tree.children, local=True, complete=True, store=True) for chunk in chunks]
    else:
        steps = []
    run_schedule(steps, t_ptr, t_ptr, work, tl)


reduce = Collective(_reduce, _reduce_args, CostTerms(_heap, tree=SUM))


@dataclass(frozen=True, slots=True)
class _Around:
    """A vector of n equal parts that travels around a ring in one direction; `parts` are numbered along it."""

    ring: Ring
    parts: list[ElementSpan]

    def segments(self, chunking: Chunking) -> Iterator[list[list[ElementSpan]]]:
        first = self.parts[0][0]
        for at, size in chunking.segments(*self.parts[0], 1):
            yield [chunking.chunks((start + at - first, size)) for start, _ in self.parts]


def _around(rank: int, n: int, part: int, stride: int, row: int, both_ways: bool) -> list[_Around]:
    """Split the vector by direction; it has n parts of `part` elements, `stride` apart."""
    spans = [[(r * stride + start, size) for r in range(n)] for start, size in row_blocks(0, part, 1 + both_ways, row)]
    east = Ring(rank, n, "E", "W")
    return [_Around(east, spans[0]), *([_Around(east.reversed, spans[1][::-1])] if both_ways else [])]


def _ring_streams(call: Mapping[str, Any], rank: int, n: int, n_elem: int, itemsize: int) -> Streams:
    east = Ring(rank, n, "E", "W")
    return [[east], [east.reversed]] if call.get("both_ways") else [[east]]


def _equal_part(n_elem: int, world_size: int) -> int:
    part, rest = divmod(n_elem, world_size)
    if rest:
        raise ConfigError(f"{n_elem} elements have no {world_size} equal parts; give a multiple of {world_size}")
    return part


def _reduce_scatter_args(
    *, n_elem: int, world_size: int, op: str | Operator = "sum", row: int = 1, chunk_bytes: int | None = None,
    both_ways: bool = False, stride: int | None = None,
) -> tuple[object, ...]:  # fmt: skip
    """`n_elem` is the size of the whole vector; its parts are `stride` apart (None: one follows the other)."""
    part = _equal_part(n_elem, world_size)
    return part, reduction(part, world_size, op, row), chunk_bytes, both_ways, part if stride is None else stride


def _reduce_scatter(
    t_ptr: Pointer, out_ptr: Pointer, part: int, work: Reduction, chunk_bytes: int | None, both_ways: bool,
    stride: int, *, tl: TLContext,
) -> None:  # fmt: skip
    """Reduce vectors of n x `part` elements over a ring; participant r gets the r-th part of the sum."""

    def steps(around: _Around) -> Iterator[Step]:
        rank, n, to, source = around.ring.rank, around.ring.n, (around.ring.to,), (around.ring.source,)
        for parts in around.segments(chunking):
            if n == 1:
                yield from (Step(*chunk, local=True, store=True) for chunk in parts[0])
                continue
            yield from (Step(*chunk, local=True, to=to) for chunk in parts[rank - 1])
            for step in range(1, n - 1):
                yield from (Step(*chunk, source, local=True, to=to) for chunk in parts[(rank - 1 - step) % n])
            yield from (Step(*chunk, source, local=True, complete=True, store=True) for chunk in parts[rank])

    rank = tl.program_id(2)
    chunking = Chunking(t_ptr.dtype.element_ty.itemsize, work.row, chunk_bytes, 1 + both_ways)
    streams = [steps(around) for around in _around(rank, work.count, part, stride, work.row, both_ways)]
    run_schedule(take_turns(*streams), t_ptr, out_ptr - rank * stride, work, tl)


reduce_scatter = Collective(
    _reduce_scatter, _reduce_scatter_args,
    CostTerms(_ring_streams, ring=SUM, moved=lambda n: 1 + 1 / n),
)  # fmt: skip


def _all_gather_args(
    *, n_elem: int, world_size: int, chunk_bytes: int | None = None, both_ways: bool = False, stride: int | None = None
) -> tuple[int, int, int | None, bool, int]:
    """`n_elem` is the size of one participant's part; in the result, parts are `stride` apart (None: `n_elem`)."""
    return n_elem, world_size, chunk_bytes, both_ways, n_elem if stride is None else stride


def _all_gather(
    t_ptr: Pointer, out_ptr: Pointer, part: int, n: int, chunk_bytes: int | None, both_ways: bool, stride: int, *,
    tl: TLContext,
) -> None:  # fmt: skip
    """Write the `part` elements of each participant, in order, to out; each part travels n - 1 steps around a ring."""

    def steps(around: _Around) -> Iterator[Step]:
        rank, to, source = around.ring.rank, (around.ring.to,), (around.ring.source,)
        for parts in around.segments(chunking):
            yield from (Step(*chunk, local=True, to=to * (n > 1), store=True) for chunk in parts[rank])
            for step in range(1, n):
                onward = to if step < n - 1 else ()
                yield from (Step(*chunk, source, to=onward, store=True) for chunk in parts[(rank - step) % n])

    rank = tl.program_id(2)
    chunking = Chunking(t_ptr.dtype.element_ty.itemsize, 1, chunk_bytes, 1 + both_ways)
    streams = [steps(around) for around in _around(rank, n, part, stride, 1, both_ways)]
    run_schedule(take_turns(*streams), t_ptr - rank * stride, out_ptr, Reduction(), tl)


all_gather = Collective(
    _all_gather, _all_gather_args,
    CostTerms(_ring_streams, ring=COPY, moved=lambda n: 1 + 2 / n),
)  # fmt: skip


def _all_to_all_args(*, n_elem: int, world_size: int, chunk_bytes: int | None = None) -> tuple[int, int, int | None]:
    """`n_elem` is the size of the whole tensor."""
    return _equal_part(n_elem, world_size), world_size, chunk_bytes


def _all_to_all(t_ptr: Pointer, out_ptr: Pointer, part: int, n: int, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Exchange parts of `part` elements with all others, each part directly, to the next participant first."""
    rank, chunking = tl.program_id(2), Chunking(t_ptr.dtype.element_ty.itemsize, 1, chunk_bytes)
    chunks = [chunking.chunks((r * part, part)) for r in range(n)]
    others = [(rank + step) % n for step in range(1, n)]
    steps = [Step(*chunk, local=True, to=(f"to{peer}",)) for peer in others for chunk in chunks[peer]]
    steps += [Step(*chunk, local=True, store=True) for chunk in chunks[rank]]
    steps += [Step(*chunk, (f"to{peer}",), store=True) for peer in reversed(others) for chunk in chunks[peer]]
    run_schedule(steps, t_ptr, out_ptr, Reduction(), tl)


all_to_all = Collective(
    _all_to_all, _all_to_all_args,
    CostTerms(lambda call, rank, n, *vector: [[Pairwise(n, tuple(f"to{peer}" for peer in range(n)))]]),
)  # fmt: skip


def _barrier_args(*, n_elem: int, world_size: int) -> tuple[()]:
    return ()


def _barrier(*_pointers: Pointer, tl: TLContext) -> None:
    """Send a byte up a binary tree when all descendants have arrived, and down when all participants have."""
    tree = heap_tree(tl.program_id(2), tl.num_programs(2))
    token = tl.zeros((1,), tl.int8)
    for child in tree.children:
        tl.recv(child, shape=1, dtype=tl.int8)
    if tree.parent is not None:
        tl.send(tree.parent, token)
        tl.recv(tree.parent, shape=1, dtype=tl.int8)
    for child in tree.children:
        tl.send(child, token)


barrier = Collective(_barrier, _barrier_args, CostTerms(_heap, tree=COPY * 2, moved=lambda n: 0))


# -- messages without a regular pattern

PeerMessage = tuple[int, Pointer, int]
Copy = tuple[Pointer, Pointer, int]


def exchange(
    sends: Sequence[PeerMessage], receives: Sequence[PeerMessage], copies: Sequence[Copy], *, tl: TLContext
) -> None:
    """Send and receive (participant, pointer, elements), and copy (from, to, elements) inside the device.

    Queues: `to<participant>`. Everything is sent, and every receive posted, before the first wait, so no order of
    messages can block.
    """
    for peer, src, n in sends:
        tl.send(f"to{peer}", src, shape=n)
    arrivals = [tl.recv_async(f"to{peer}", shape=n, dst=dst) for peer, dst, n in receives]
    for src, dst, n in copies:
        for at in range(0, n, COPIED_AT_ONCE):
            tl.store(dst + at, tl.load(src + at, shape=(min(COPIED_AT_ONCE, n - at),)))
    for arrival in arrivals:
        tl.wait(arrival)
