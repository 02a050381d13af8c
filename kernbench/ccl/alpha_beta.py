"""An alpha-beta model of collectives, with alpha and beta measured on the machine.

For each kind of connection (PE to PE, cube to cube, SIP to SIP), a few messages between two PEs are simulated. The
time of an algorithm is the sum over its stages of alpha x messages + beta x bytes, where connections in use at the same
time share links. The tuner ranks algorithms by it, and simulates the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from math import ceil, hypot, prod
from operator import mul
from typing import NamedTuple

import numpy as np

from kernbench._registry import hint
from kernbench.ccl._all_reduce_steps import LAG, ends_in_memory
from kernbench.ccl._group import Grid, Place, Subgroup
from kernbench.ccl._schedule import AHEAD, LARGEST_CHUNK, Chunking, Reduction, Step, run_schedule
from kernbench.ccl.algorithm import Algorithm, CollectivePlan, Role
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.stages import COPY, SUM, Pairwise, Ring, Stage, Tree
from kernbench.components._command import VectorOp
from kernbench.components.builtin.pe_math import PeMath
from kernbench.config import MachineConfig
from kernbench.errors import ConfigError
from kernbench.policy._routing import router_of
from kernbench.policy.address.allocator import AddressConfig
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Edge
from kernbench.topology.builder import Machine
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

Simulate = Callable[[CollectivePlan, int, int], float]  # (plan, bytes of a shard, bytes of an element) -> ns
_Kernel = Callable[..., None]
_Link = tuple[str, str]
# Of one participant: for each stream, its stages, the innermost first.
_Places = tuple[tuple[Stage | Pairwise, ...], ...]
# Of a route, for its cost: latency [ps], bandwidth of the slowest link, number of links.
_Kind = tuple[int, float, int]

_MESSAGES = "messages"  # the algorithm that measures a connection
_TURNS, _STREAM, _AMPLE = 5, 8, 64  # messages there and back; messages of a stream; slots that are never a limit


class Connection(NamedTuple):
    """Costs of messages over a connection."""

    sizes: tuple[int, ...]  # the measured sizes [B]
    copied_ns: tuple[float, ...]  # time of a message of each size that is forwarded where it arrives
    added_ns: tuple[float, ...]  # of one that is added there
    ends_ns: tuple[float, ...]  # of the first load and the last store
    gap_ns: float  # between the shortest messages
    round_trip_ns: float  # between messages with a single slot
    beta_ns: float  # per byte of long messages

    def at(self, times_ns: Sequence[float], nbytes: float) -> float:
        """Time for `nbytes`, interpolated linearly between measured sizes and extrapolated beyond the last."""
        beyond = max(0.0, nbytes - self.sizes[-1]) / (self.sizes[-1] - self.sizes[-2])
        return float(np.interp(nbytes, self.sizes, times_ns)) + beyond * (times_ns[-1] - times_ns[-2])

    def round_trip_of(self, nbytes: float, slot_bytes: int) -> float:
        return self.round_trip_ns - self.at(self.copied_ns, slot_bytes) + self.at(self.copied_ns, nbytes)


class AlphaBeta:
    """The connections of one machine, each kind measured on first use, and the links that they share."""

    def __init__(self, machine: Machine, simulate: Simulate) -> None:
        self.machine, self._simulate = machine, simulate
        self._router, self._math = router_of(machine.graph), PeMath(machine.config.cube.pe.pe_math)
        self._connections: dict[tuple[object, ...], Connection] = {}
        self._kinds: dict[tuple[Place, Place], _Kind] = {}
        self.ends: dict[_Kind, tuple[Place, Place]] = {}
        self._bounds: dict[tuple[object, ...], Bounds] = {}
        self._edges: dict[_Link, Edge] = {}
        self._shares_ns: dict[tuple[tuple[tuple[Place, Place], ...], str], float] = {}

    def bounds(self, places: Iterable[Place], contribution: str) -> Bounds:
        key = (tuple(sorted(places)), contribution)
        if key not in self._bounds:
            self._bounds[key] = Bounds(self.machine, *key)
        return self._bounds[key]

    def kind(self, src: Place, dst: Place) -> _Kind:
        if (src, dst) not in self._kinds:
            edges = [self._edge(link) for link in self._links(src, dst, "tcm")]
            kind = sum(e.latency_ps for e in edges), min(e.bw_gbs for e in edges), len(edges)
            self._kinds[src, dst] = kind
            self.ends.setdefault(kind, (src, dst))
        return self._kinds[src, dst]

    def share_ns(self, connections: Iterable[tuple[Place, Place]], kind: str) -> float:
        """Time of a byte if all connections are in use, on the link with the most sharers; cached."""
        key = (tuple(connections), kind)
        if key not in self._shares_ns:
            users = Counter(link for src, dst in key[0] for link in self._links(src, dst, kind))
            edges, flit = [(self._edge(link), n) for link, n in users.items()], self.machine.config.system.flit_bytes
            each_ns = (n / edge.bw_gbs * (1 + edge.header_bytes / flit) for edge, n in edges)
            self._shares_ns[key] = max(each_ns, default=0.0)
        return self._shares_ns[key]

    def sum_ns(self, nbytes: float, adds: int, itemsize: int) -> float:
        """Time to add vectors to one; several 16-bit ones are added to a widened copy, which is then rounded."""
        passes = adds if adds < 2 or itemsize > 2 else adds + 2
        added = [VectorOp("simple", -(-int(nbytes) // itemsize), 4)]
        return passes * (self.machine.config.cube.pe.pe_cpu.command_ns + self._math.ps(added) / 1000)

    def connection(self, src: Place, dst: Place, algorithm: Algorithm, itemsize: int = 2) -> Connection:
        algorithm = algorithm.on(self.machine.config)
        by = algorithm.sends_by
        ring = (algorithm.buffer_kind, algorithm.slot_size, algorithm.credit_bytes, by.chunk_ns, by.payload)
        key = (self.kind(src, dst), ring, itemsize)
        if key not in self._connections:
            self._connections[key] = self._measured(src, dst, algorithm, itemsize)
        return self._connections[key]

    def _measured(self, src: Place, dst: Place, algorithm: Algorithm, itemsize: int) -> Connection:
        slot = algorithm.slot_size
        assert slot is not None
        roles = {src: Role(0, 0, {"to": (dst, "to")}), dst: Role(1, 0, {"to": (src, "to")})}
        pair = (Subgroup((src, dst), Grid(2, 1)),)
        ring = replace(
            algorithm, name=_MESSAGES, kernel_args=_elements, collective="broadcast", world_size=None, options={},
            cost=None,
        )  # fmt: skip

        ample = max(1, min(_AMPLE, room_for_rings(self.machine.config, algorithm.buffer_kind) // 2 // slot))

        def took(kernel: _Kernel, nbytes: int, n_slots: int = ample) -> float:
            return self._simulate(
                CollectivePlan(replace(ring, kernel=kernel, n_slots=n_slots), 2, roles, pair), nbytes, itemsize
            )

        def turn(nbytes: int, *, local: bool) -> tuple[float, float]:
            """Time of a message one way, and of the work before the first and after the last."""
            once = took(_there_and_back(1, local), nbytes)
            each = (took(_there_and_back(_TURNS, local), nbytes) - once) / (_TURNS - 1)
            return each, once - each

        def apart(nbytes: int, n_slots: int = ample, *, local: bool = True) -> float:
            kernel = _stream(nbytes, local)
            twice, once = (took(kernel, n * _STREAM * nbytes, n_slots) for n in (2, 1))
            return (twice - once) / _STREAM

        other = 4 * slot if slot <= LARGEST_CHUNK else slot // 4  # a message fills a large slot, and is not longer
        sizes = tuple(sorted({itemsize, self.machine.config.system.flit_bytes, slot, other}))
        copied, ends = zip(*(turn(nbytes, local=False) for nbytes in sizes), strict=True)
        added = tuple(turn(nbytes, local=True)[0] for nbytes in sizes)
        return Connection(sizes, copied, added, ends, apart(itemsize), apart(slot, 1), apart(slot, local=False) / slot)

    def _edge(self, link: _Link) -> Edge:
        if link not in self._edges:
            self._edges[link] = self.machine.graph.like(*link)
        return self._edges[link]

    def _links(self, src: Place, dst: Place, kind: str) -> Iterable[_Link]:
        end = {"tcm": naming.pe_dma(*dst), "sram": naming.sram(*dst[:2]), "hbm": self.machine.graph.memory(*dst)}[kind]
        return pairwise(self._router.path(naming.pe_dma(*src), end))


def room_for_rings(config: MachineConfig, kind: str) -> int:
    """Bytes of the memory that a PE's rings of a kind are in; all PEs of a cube share its SRAM."""
    sizes = AddressConfig.of(config)
    return {"tcm": sizes.heap_bytes, "sram": sizes.sram_bytes_per_cube, "hbm": sizes.slice_bytes}[kind]


@lru_cache(maxsize=32)
def alpha_beta(machine: Machine, simulate: Simulate) -> AlphaBeta:
    """Cache the model of `machine`, so that its connections are measured once."""
    return AlphaBeta(machine, simulate)


def _elements(*, n_elem: int, world_size: int) -> tuple[int]:
    return (n_elem,)


def _there_and_back(turns: int, local: bool) -> _Kernel:
    """Kernel that sends a vector there and back, `turns` messages in all, and adds the local one if `local`."""

    def kernel(t_ptr: Pointer, n_elem: int, *, tl: TLContext) -> None:
        rank = tl.program_id(2)
        steps = [] if rank else [Step(0, n_elem, local=True, to=("to",))]
        for turn in range(1 - rank, turns, 2):
            last = turn == turns - 1
            steps.append(Step(0, n_elem, ("to",), local=local, to=() if last else ("to",), store=last))
        run_schedule(steps, t_ptr, t_ptr, Reduction(), tl)

    return kernel


def _stream(nbytes: int, local: bool) -> _Kernel:
    """Kernel that sends a vector one way, in messages of `nbytes`, added to the local one if `local`."""

    def kernel(t_ptr: Pointer, n_elem: int, *, tl: TLContext) -> None:
        chunks = Chunking(t_ptr.dtype.element_ty.itemsize, chunk_bytes=nbytes).chunks((0, n_elem))
        if tl.program_id(2):
            steps = [Step(*chunk, ("to",), local=local, store=True) for chunk in chunks]
        else:
            steps = [Step(*chunk, local=True, to=("to",)) for chunk in chunks]
        run_schedule(steps, t_ptr, t_ptr, Reduction(), tl)

    return kernel


@dataclass(frozen=True, slots=True)
class StageConnections:
    """The connections of one stage of all participants.

    `hops` counts (kind of route, vectors added at its end): around a ring, from the farthest member of a tree to its
    root, or to the farthest peer.
    """

    of: Stage | Pairwise  # the stage of one participant
    hops: Counter[tuple[_Kind, int]]
    connections: int  # in all
    share_ns: float  # time of a byte on the link with the most sharers, if all are in use

    @property
    def n(self) -> int:
        return 1 if isinstance(self.of, Tree) else self.of.n

    @property
    def steps(self) -> int:
        """Consecutive messages in one pass."""
        if isinstance(self.of, Ring):
            return self.of.n - 1
        return self.hops.total()


class Sent(NamedTuple):
    """Traffic of some connections: each carries messages of `nbytes`."""

    connections: int
    messages: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StageTime:
    """The times of a stage whose messages have `chunk` bytes, in queues of `n_slots`."""

    stage: StageConnections
    connections: Sequence[tuple[Connection, int, int]]
    model: AlphaBeta
    chunk: float
    slot_bytes: int
    n_slots: int
    itemsize: int
    streams: int

    def message(self, adds: bool) -> float:
        """Time of one chunk: alpha + beta x bytes, behind half of those that share its links."""
        total = 0.0
        for connection, fan, n in self.connections:
            each = connection.at(connection.added_ns if adds else connection.copied_ns, self.chunk)
            if adds and fan > 1:
                each += self._sum_ns(fan) - self._sum_ns(1)
            refills = (ceil(self.chunk / self.slot_bytes) - 1) // self.n_slots
            each += refills * max(0.0, self._round_trip_ns - self._window * connection.beta_ns)
            each += max(0.0, self.stage.share_ns - connection.beta_ns) * self.chunk / 2
            total += n * (each + (self.streams - 1) * connection.gap_ns)
        return total / self.stage.hops.total()

    def behind(self, nbytes: float, *, adds: bool) -> float:
        """Time of the bytes behind the first chunk: they fill the slots, and wait to fill them again."""
        if nbytes <= 0:
            return 0.0
        return hypot(self.busy(nbytes, adds=adds), nbytes // self._window * self._round_trip_ns)

    def turn(self, nbytes: float, *, adds: bool) -> float:
        """Time of messages that follow others: a message that waits for a link returns its credit late."""
        return hypot(self.busy(nbytes, adds=adds), nbytes * self._round_trip_ns / self._window)

    def busy(self, nbytes: float, *, adds: bool) -> float:
        """Time that links, vector engine and commands are busy."""
        beta_ns = max(self.stage.share_ns, *(connection.beta_ns for connection, _, _ in self.connections))
        if adds:
            beta_ns = max(beta_ns, self._sum_ns(max(fan for _, fan, _ in self.connections)) / self.chunk)
        return max(
            nbytes * beta_ns, nbytes / self.chunk * max(connection.gap_ns for connection, _, _ in self.connections)
        )

    def _sum_ns(self, adds: int) -> float:
        return self.model.sum_ns(self.chunk, adds, self.itemsize)

    @property
    def _held(self) -> float:
        """Bytes in a slot; a shorter message occupies a whole slot."""
        return min(self.chunk, self.slot_bytes)

    @property
    def _window(self) -> float:
        return self.n_slots * self._held

    @property
    def _round_trip_ns(self) -> float:
        return max(connection.round_trip_of(self._held, self.slot_bytes) for connection, _, _ in self.connections)


class Estimate:
    """The time of a plan by the model, for any size; `known` is False for an algorithm of unknown stages."""

    def __init__(self, plan: CollectivePlan, model: AlphaBeta, itemsize: int = 2) -> None:
        self.cost = plan.algorithm.cost
        self.known = self.cost is not None
        self._plan, self._model, self._itemsize = plan, model, itemsize
        self._call = {**plan.algorithm.options, **plan.algorithm.facts(plan.subgroups[0])}
        self._stages: dict[_Places, list[StageConnections]] = {}

    def ns(self, nbytes: int, n_slots: int | None = None) -> float:
        assert self.cost is not None, "ask for what is known only"
        stages, streams = self.stages(nbytes)
        if not stages:
            return 0.0
        plan, model, algorithm = self._plan, self._model, self._plan.algorithm
        chunks = self._chunks(stages, streams, nbytes)
        times = [
            self._time(stage, chunk, streams, n_slots or algorithm.n_slots)
            for stage, chunk in zip(stages, chunks, strict=True)
        ]
        connection = times[0].connections[0][0]
        # A ring that ends in memory stores its result, and the next stage loads it.
        ends = (1 + sum(a != b for a, b in pairwise(chunks))) * connection.at(connection.ends_ns, chunks[-1])
        moved = self.cost.moved(plan.world_size) * nbytes / model.machine.config.cube.hbm.slice_gbs
        bound = model.bounds(plan.programs, algorithm.contribution).of(algorithm.collective, nbytes, self._itemsize)
        return max(ends + self._stages_ns(times, nbytes / streams), connection.ends_ns[0] + moved, bound.ns)

    def _stages_ns(self, times: Sequence[StageTime], vector: float) -> float:
        """Time of nested stages, the innermost first; each works on what the previous one leaves of the vector."""
        if not times:
            return 0.0
        assert self.cost is not None
        time, inner, stage = times[0], times[1:], times[0].stage
        part = vector / stage.n if self.cost.splits else vector
        if isinstance(stage.of, Tree):
            return self._tree_ns(time, inner, vector)
        if isinstance(stage.of, Pairwise):  # the connections of each participant one after another
            return time.message(False) + max(0.0, time.busy((stage.n - 1) * part - time.chunk, adds=False))
        total = self._stages_ns(inner, part)
        for adds in self.cost.ring:
            first = time.message(adds)
            total += max(stage.steps * first, (stage.steps - 1) * time.turn(part, adds=adds) + first)
            total += time.behind(part - time.chunk, adds=adds)
        return total

    def _tree_ns(self, time: StageTime, inner: Sequence[StageTime], vector: float) -> float:
        """Time of a tree and of the stages that its root takes part in."""
        assert self.cost is not None
        stage, passes = time.stage, self.cost.tree
        there_and_back = sum(stage.steps * time.message(adds) for adds in passes)
        rest = vector - time.chunk
        if len(passes) == 1:
            return there_and_back + time.behind(rest, adds=passes[0])
        # Results follow when all parts but one have gone around the rings above, and some chunks behind the sums.
        parts = prod(outer.stage.n for outer in inner) if self.cost.splits else 1
        late = max(0, LAG * (stage.steps - 1) - AHEAD) * time.chunk
        first = max(min(vector, late), vector - vector / parts) - time.chunk
        behind = time.behind(first, adds=True) + time.behind(rest, adds=False)
        return there_and_back + max(behind, self._stages_ns(inner, vector))

    def sent(self, nbytes: int) -> Iterator[Sent]:
        assert self.cost is not None, "ask for what is known only"
        stages, streams = self.stages(nbytes)
        vector = nbytes / streams
        for stage, chunk in zip(stages, self._chunks(stages, streams, nbytes), strict=True):
            vector /= stage.n if self.cost.splits else 1
            turns = stage.steps * len(self.cost.ring) if isinstance(stage.of, Ring) else 1
            yield Sent(stage.connections, turns * max(1, ceil(vector / chunk)), min(chunk, max(1, ceil(vector))))

    def stages(self, nbytes: int) -> tuple[list[StageConnections], int]:
        """Stages for shards of `nbytes`, and the number of streams that share the vector."""
        n = self._plan.world_size
        if self.cost is None or n == 1:
            return [], 1
        first = self._streams(0, nbytes)
        if first not in self._stages:
            places = [self._streams(rank, nbytes) for rank in range(n)]
            found = [self._connections(places, at) for at in range(len(first[0]))]
            self._stages[first] = [stage for stage in found if stage.hops]
        return self._stages[first], len(first)

    def _streams(self, rank: int, nbytes: int) -> _Places:
        assert self.cost is not None
        n_elem, n = -(-nbytes // self._itemsize), self._plan.world_size
        try:
            streams = self.cost.streams(self._call, rank, n, n_elem, self._itemsize)
        except Exception as error:
            name, what = self._plan.algorithm.name, f"{type(error).__name__}: {error}"
            raise ConfigError(f"algorithm {name!r}: the stages of participant {rank} of {n} fail: {what}") from error
        return tuple(map(tuple, streams))

    def _time(self, stage: StageConnections, chunk: int, streams: int, n_slots: int | None) -> StageTime:
        algorithm, model = self._plan.algorithm, self._model
        assert n_slots is not None
        assert algorithm.slot_size is not None
        connections = [
            (model.connection(*model.ends[kind], algorithm, self._itemsize), fan, n)
            for (kind, fan), n in stage.hops.items()
        ]
        return StageTime(stage, connections, model, chunk, algorithm.slot_size, n_slots, self._itemsize, streams)

    def _chunks(self, stages: Sequence[StageConnections], streams: int, nbytes: int) -> list[int]:
        """Message size of each stage [B], for what nested rings leave, split as the algorithms do."""
        assert self.cost is not None
        if not stages:
            return []
        chunking = Chunking(self._itemsize, chunk_bytes=self._plan.algorithm.options.get("chunk_bytes"))
        rings = [stage.n if self.cost.splits else 1 for stage in stages]
        parts = [max(1, -(-nbytes // (streams * n * self._itemsize))) for n in accumulate(rings, mul)]
        alone = [chunking.chunks((0, part)) for part in parts]
        chunks, count = [alone[-1][0][1]], len(alone[-1])
        for n, part, own in list(zip(rings, parts, alone, strict=True))[-2::-1]:
            count *= rings[len(parts) - len(chunks)]
            apart = n > 1 and ends_in_memory(n, count, part, chunking)
            chunks.append(own[0][1] if apart else chunks[-1])
            count = len(own) if apart else count
        return [chunk * self._itemsize for chunk in reversed(chunks)]

    def _connections(self, places: Sequence[_Places], at: int) -> StageConnections:
        """Collect the connections of stage `at` of all streams; after a tree, only its root takes part."""
        assert self.cost is not None
        active = {
            rank: [stream[at] for stream in streams]
            for rank, streams in enumerate(places)
            if not any(isinstance(before, Tree) and before.parent for before in streams[0][:at])
        }
        up, down = [], []
        for rank, stages in active.items():
            for stage in stages:
                if not isinstance(stage, Pairwise):
                    self._check_queues(rank, [queue for _, queue in stage.ends])
                if isinstance(stage, Tree):
                    up += self._edges(rank, [stage.parent] if stage.parent else []) if self.cost.tree != COPY else []
                    down += self._edges(rank, stage.children) if self.cost.tree != SUM else []
                else:
                    down += self._edges(rank, [stage.to] if isinstance(stage, Ring) else stage.to)
        of = next(iter(active.values()))[0]
        path = [(a, b, 1) for a, b in down]
        if isinstance(of, Tree):
            path = list(self._to_root(active))
        hops, share_ns = self._slowest(path), self._share_ns(up + down)
        if isinstance(of, Pairwise):  # one connection after the other
            hops, share_ns = Counter([max(hops)]), share_ns / max(1, of.n - 1)
        return StageConnections(of, hops, len(up + down) * len(self._plan.subgroups), share_ns)

    def _to_root(self, active: Mapping[int, Sequence[Stage | Pairwise]]) -> Iterator[tuple[int, int, int]]:
        """Edges from the farthest member of a tree to its root, each with the number of children added at its end."""
        trees = {
            (rank, stream): stage
            for rank, stages in active.items()
            for stream, stage in enumerate(stages)
            if isinstance(stage, Tree)
        }
        rank, stream = max(trees, key=lambda place: trees[place].depth)
        while parent := trees[rank, stream].parent:
            [(_, above)] = self._edges(rank, [parent])
            yield rank, above, len(trees[above, stream].children)
            rank = above

    def _check_queues(self, rank: int, queues: Iterable[str]) -> None:
        neighbours = self._plan.programs[self._plan.subgroups[0].places[rank]].neighbours
        for queue in queues:
            if queue not in neighbours:
                raise ConfigError(
                    f"algorithm {self._plan.algorithm.name!r}: participant {rank} has no queue {queue!r}; "
                    f"{hint(queue, neighbours)}"
                )

    def _edges(self, rank: int, directions: Iterable[str]) -> list[tuple[int, int]]:
        programs = self._plan.programs
        neighbours = programs[self._plan.subgroups[0].places[rank]].neighbours
        return [(rank, programs[neighbours[to][0]].rank) for to in directions if to in neighbours]

    def _share_ns(self, edges: Iterable[tuple[int, int]]) -> float:
        subgroups = [subgroup.places for subgroup in self._plan.subgroups]
        connections = ((places[a], places[b]) for a, b in edges for places in subgroups)
        return self._model.share_ns(connections, self._plan.algorithm.buffer_kind)

    def _slowest(self, path: Sequence[tuple[int, int, int]]) -> Counter[tuple[_Kind, int]]:
        """Kinds of messages of a path, in the subgroup with the largest latency."""
        each = [
            Counter((self._model.kind(subgroup.places[a], subgroup.places[b]), fan) for a, b, fan in path)
            for subgroup in self._plan.subgroups
        ]
        return max(each, key=lambda hops: sum(kind[0] * n for (kind, _), n in hops.items()))
