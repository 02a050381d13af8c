"""Steps of an all-reduce: rings and trees, nested, in one pipeline of steps.

A ring stage leaves each member with a part of the vector, which the next stage reduces. A tree stage brings the whole
vector to its root, and only the root takes part in the next stage. The data that a stage receives are a further source
of the steps of the next one, and its result returns the way that contributions came: every element is accessed once on
the way in and once on the way out, and no stage waits for the previous one to end. Only if that would create too many
short messages, a ring ends its sum in memory, and starts again with the result of the next stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from kernbench.ccl._schedule import Chunking, ElementSpan, Step, row_blocks, take_turns
from kernbench.ccl.stages import Directions, Ring, Stage, Streams, Tree

# Chunks, for each edge to the root, that a member of a tree contributes before it waits for the first result.
LAG = 8
# A ring forwards the chunks of the next stage, unless there are more than `MANY` in a turn of the ring, each shorter
# than `SHORT` bytes for each of them: a message costs a PE some 20 ns, however short (fitted; 16 to 256 participants).
SHORT, MANY = 8, 24


def pipeline(streams: Streams, n_elem: int, chunking: Chunking, n: int) -> Iterator[Step]:
    """Alternate between the steps of a participant's streams; no two streams may use the same queue."""
    parts = row_blocks(0, n_elem, len(streams), chunking.row)
    return take_turns(*(all_reduce_steps(stages, part, chunking) for stages, part in zip(streams, parts, strict=True)))


def all_reduce_steps(
    stages: Sequence[Stage], vector: ElementSpan, chunking: Chunking, up: Directions = (), down: Directions = ()
) -> Iterator[Step]:
    """Yield the steps of one participant; `up` and `down` are further sources and targets of each."""
    if not stages:
        for chunk in chunking.chunks(vector):
            yield Step(*chunk, up, local=True, complete=True, to=down, store=True)
        return
    stage, rest = stages[0], stages[1:]
    if isinstance(stage, Ring):
        yield from _ring(stage, rest, vector, chunking, up, down)
    elif stage.parent is None:
        yield from all_reduce_steps(rest, vector, chunking, (*up, *stage.children), (*stage.children, *down))
    else:
        yield from _below(
            stage, stage.parent, all_reduce_steps(rest, vector, chunking, ("taken",), ("given",)), up, down
        )


def _ring(
    ring: Ring, rest: Sequence[Stage], vector: ElementSpan, chunking: Chunking, up: Directions, down: Directions
) -> Iterator[Step]:
    rank, n, to, source = ring.rank, ring.n, ring.to, ring.source
    last: list[Step] = []
    for segment in chunking.segments(*vector, n):
        parts = row_blocks(*segment, n, chunking.row)
        apart = bool(rest) and ends_in_memory(n, len(_chunks(rest, parts[0], chunking)[0]), parts[0][1], chunking)
        # The others' parts, in the chunks and in the order in which the next stage takes and returns them.
        chunks = [(chunking.chunks(part),) * 2 if apart else _chunks(rest, part, chunking) for part in parts]
        taken, given = [of[0] for of in chunks], [of[1] for of in chunks]
        yield from (Step(*chunk, up, local=True, to=(to,)) for chunk in taken[rank])
        # The first chunks of this segment leave before the last step of the previous one, so that the ring is never
        # idle.
        yield from last
        for step in range(1, n - 1):
            for chunk in taken[(rank - step) % n]:
                yield Step(*chunk, (*up, source), local=True, to=(to,))
        mine = (rank + 1) % n
        if apart:
            yield from (Step(*chunk, (*up, source), local=True, store=True) for chunk in taken[mine])
            yield from all_reduce_steps(rest, parts[mine], chunking)
            yield from (Step(*chunk, local=True, to=(to, *down)) for chunk in given[mine])
        else:
            yield from all_reduce_steps(rest, parts[mine], chunking, (*up, source), (to, *down))
        for step in range(n - 2):
            for chunk in given[(rank - step) % n]:
                yield Step(*chunk, (source,), to=(to, *down), store=True)
        last = [Step(*chunk, (source,), to=down, store=True) for chunk in given[(rank + 2) % n]]
    yield from last


def ends_in_memory(n: int, chunks: int, part: int, chunking: Chunking) -> bool:
    """Whether a ring of `n` stores its sums for the next stage, instead of forwarding its `chunks`.

    They would be too short, and too many. `part` is the longest [elements], the same for every member.
    """
    many = (n - 1) * chunks
    return many > MANY and chunks > len(chunking.chunks((0, part))) and part * chunking.itemsize < SHORT * many * chunks


def _chunks(
    stages: Sequence[Stage], vector: ElementSpan, chunking: Chunking
) -> tuple[list[ElementSpan], list[ElementSpan]]:
    """Spans in which stages take a vector, and those in which they return its sum, each in order."""
    start, size = vector
    taken, given = _chunks_of(tuple(stages), size, chunking)
    return [(start + at, n) for at, n in taken], [(start + at, n) for at, n in given]


@lru_cache(maxsize=10_000)
def _chunks_of(stages: tuple[Stage, ...], size: int, chunking: Chunking) -> tuple[list[ElementSpan], list[ElementSpan]]:
    steps = list(all_reduce_steps(stages, (0, size), chunking, ("taken",), ("given",)))
    taken = [(step.start, step.size) for step in steps if "taken" in step.sources]
    return taken, [(step.start, step.size) for step in steps if "given" in step.to]


def _below(tree: Tree, parent: str, above: Iterable[Step], up: Directions, down: Directions) -> Iterator[Step]:
    """Contributions and results in the order of the root, whose steps are `above`; results lag behind."""
    waiting: deque[Step] = deque()
    for step in above:
        if "taken" in step.sources:
            yield Step(step.start, step.size, (*up, *tree.children), local=True, to=(parent,))
        if "given" in step.to:
            waiting.append(Step(step.start, step.size, (parent,), to=(*tree.children, *down), store=True))
            if len(waiting) > LAG * tree.depth:
                yield waiting.popleft()
    yield from waiting
