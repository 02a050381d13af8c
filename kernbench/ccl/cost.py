"""Closed forms of collectives: what each would take on an idle machine.

A form knows steps and sizes; a network says what they cost. With `AlphaBeta` forms are the formulas of the text books;
with the channels of a machine (`Estimate`) they know latency, bandwidth, window and how chunks overlap, as the
algorithms split messages, and share the links and memories that channels in use at the same time have in common.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import hypot, prod
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

from kernbench.ccl.channels import Channel, Ends, Flows, PeMemory, RingBuffer, channel_model
from kernbench.ccl.schedule import AHEAD, Chunking
from kernbench.ccl.stages import LAG, Pairwise, Ring, Stage, Tree, ends_in_memory
from kernbench.errors import ConfigError
from kernbench.registry import hint
from kernbench.units import FLIT_BYTES

if TYPE_CHECKING:
    from kernbench.ccl.algorithm import Plan
    from kernbench.ccl.group import Target
    from kernbench.topology.builder import Machine

# What a program issues for a message that it takes: its receive, the wait for it, what is done with it, its store.
COMMANDS = 4


@dataclass(frozen=True, slots=True)
class AlphaBeta:
    """The network of the text books: a message is one chunk, and takes alpha + n / B; a sum takes gamma n.

    Attributes
    ----------
    alpha_ns, bw_gbs : float
        Start-up of a message, and bandwidth of a port in each direction.
    gamma_ns : float
        Time to add a byte.
    """

    alpha_ns: float
    bw_gbs: float
    gamma_ns: float = 0.0

    def first(self, nbytes: float, adds: int = 0) -> float:
        """Return alpha + n / B, and gamma n for each sum."""
        return self.alpha_ns + nbytes / self.bw_gbs + adds * self.gamma_ns * nbytes

    def rest(self, nbytes: float, adds: int = 0, *, loaded: bool = False, alone: bool = False) -> float:
        """Return nothing: there is one chunk."""
        return 0.0

    def busy(self, nbytes: float, adds: int = 0, *, loaded: bool = False) -> float:
        """Return n / B."""
        return nbytes / self.bw_gbs

    def before(self, nbytes: float, chunks: int) -> float:
        """Return all of it."""
        return nbytes

    def late(self, nbytes: float) -> float:
        """Return nothing: a message is a chunk."""
        return 0.0


class SharedChannel(NamedTuple):
    """A channel, what links give it while all that are used with it are, and how many vectors its receiver adds."""

    channel: Channel
    share_gbs: float
    fan: int = 1

    def send(self, chunk: int) -> float:
        """Return the time of a chunk: alone, or behind half of those that share its links."""
        first, alone = min(chunk, FLIT_BYTES), self.channel.bw_gbs
        behind = self.channel.send(first) - first / alone + chunk * (1 / self.share_gbs + 1 / alone) / 2
        return max(self.channel.send(chunk), behind)


@dataclass(frozen=True)
class StageNetwork:
    """The channels of a stage. A message takes the mean of their times, at the lowest rate.

    Attributes
    ----------
    timed : mapping of SharedChannel to int
        Those whose times count, and how often each.
    channels : frozenset of Channel
        All: the slowest sets the rate.
    share_gbs : float
        What links give each of them while all are in use.
    alone_gbs : float
        The same where one direction of a tree is in use at a time: all that goes up, or all that comes down.
    hbm : PeMemory
        The HBM that the local elements are loaded from.
    ready : bool
        Whether what fits into the slots of a queue leaves before it is asked for, while others are in use.
    streams : int
        How many vectors a program processes in turn.
    chunk : int
        Bytes of the messages that longer ones are split into.
    """

    timed: Mapping[SharedChannel, int]
    channels: frozenset[Channel]
    share_gbs: float
    alone_gbs: float
    hbm: PeMemory
    ready: bool = False
    streams: int = 1
    chunk: int = 0

    def with_slots(self, n_slots: int) -> StageNetwork:
        """Return the same with another number of slots."""
        found = {channel: channel.with_slots(n_slots) for channel in self.channels}
        timed = {shared._replace(channel=found[shared.channel]): n for shared, n in self.timed.items()}
        return replace(self, timed=timed, channels=frozenset(found.values()))

    def first(self, nbytes: float, adds: int = 0) -> float:
        """Return the time of a message's first chunk, and to add others to it where it arrives.

        Before it, a program sends and takes a chunk of each other vector that it processes.
        """
        chunk = self._chunk(nbytes)
        times = (
            n * (shared.send(chunk) + shared.channel.reduce(chunk, shared.fan if adds else 0))
            for shared, n in self.timed.items()
        )
        any_of = self._any
        in_turn = (self.streams - 1) * (2 * COMMANDS * any_of.command_ns + any_of.reduce(chunk, adds))
        return sum(times) / sum(self.timed.values()) + in_turn

    def rest(self, nbytes: float, adds: int = 0, *, loaded: bool = False, alone: bool = False) -> float:
        """Return how long the other chunks take, at the channels' rate.

        `loaded` where they leave from memory, `alone` where only one direction of a tree is in use.
        """
        chunk = self._chunk(nbytes)
        more_ns = self._more_ns(chunk, adds, loaded=loaded, stored=True)
        rate_gbs = self._rate_gbs(chunk, adds, self.alone_gbs if alone else self.share_gbs)
        credits_ns = (_credits_ns(channel, nbytes, chunk, more_ns) for channel in self.channels)
        return max((nbytes - chunk) / rate_gbs, 0.0, *credits_ns)

    def busy(self, nbytes: float, adds: int = 0, *, loaded: bool = False) -> float:
        """Return how long a port is busy with all chunks, one vector after the other.

        Links and window are added as squares: where both are near each other, what waited for a link comes back late
        with its credit.
        """
        chunk = self._chunk(nbytes)
        more_ns = self._more_ns(chunk, adds, loaded=loaded, stored=False)
        if self.ready:
            windows = [_refills_ns(channel, self.late(nbytes), chunk, more_ns) for channel in self.channels]
        else:
            windows = [nbytes / channel.window(chunk, more_ns) for channel in self.channels]
        issued = COMMANDS * -(-nbytes // chunk) * self._any.command_ns
        return max(issued, hypot(nbytes / self._rate_gbs(chunk, adds, self.share_gbs), max(windows)))

    def before(self, nbytes: float, chunks: int) -> float:
        """Return the bytes of the first `chunks` of a message."""
        return min(nbytes, chunks * self._chunk(nbytes))

    def late(self, nbytes: float) -> float:
        """Return the bytes of a message that find no slot before it is asked for."""
        chunk = self._chunk(nbytes)
        return max(0.0, nbytes - chunk * min(_slots(channel, chunk) for channel in self.channels))

    @property
    def _any(self) -> Channel:
        return next(iter(self.channels))

    def _more_ns(self, chunk: int, adds: int, *, loaded: bool, stored: bool) -> float:
        """Return how long a slot is taken in addition to a part's route and its credit's.

        While the part is loaded, where it leaves from memory, behind half of a chunk that is loaded to be added to. And
        until it is added, copied or `stored`, where a message is one part in TCM, which is not copied out of its slot.
        """
        channel = self._any
        part = min(chunk, channel.ring.slot_bytes)
        loading = self.hbm.load_ps(part) / 1000 + (chunk / 2 / self.hbm.hbm_gbs if adds else 0.0) if loaded else 0.0
        if chunk > channel.ring.slot_bytes or channel.ring.kind != "tcm":
            return loading
        return loading + (self.hbm.store_ps(chunk) / 1000 if stored and not adds else channel.reduce(chunk, adds or 1))

    def _rate_gbs(self, chunk: int, adds: int, share_gbs: float) -> float:
        """Return what links and vector engines sustain."""
        return min(share_gbs, chunk / self._any.reduce(chunk, adds)) if adds else share_gbs

    def _chunk(self, nbytes: float) -> int:
        return min(self.chunk, max(1, -int(-nbytes // 1)))


def _slots(channel: Channel, chunk: int) -> int:
    """Return how many chunks the slots of a queue hold."""
    return max(1, channel.ring.n_slots // -(-chunk // channel.ring.slot_bytes))


def _refills_ns(channel: Channel, nbytes: float, chunk: int, more_ns: float) -> float:
    """Return how long it takes to fill all slots of a queue, again and again, until `nbytes` are through."""
    full = _slots(channel, chunk) * chunk
    return -int(-nbytes // full) * full / channel.window(chunk, more_ns)


def _credits_ns(channel: Channel, nbytes: float, chunk: int, more_ns: float) -> float:
    """Return how long the chunks of a message behind the first one wait for credits."""
    slots = _slots(channel, chunk)
    return max(0, -int(-nbytes // chunk) - 1) // slots * slots * chunk / channel.window(chunk, more_ns)


# -- forms

Network = AlphaBeta | StageNetwork


@dataclass(frozen=True, slots=True)
class RingCost:
    """A stage of `n` ranks in a ring: each leaves an n-th of the sum to the next stage, and gets all of it back."""

    n: int
    net: Network


@dataclass(frozen=True, slots=True)
class TreeCost:
    """A stage of ranks in a tree: the vector goes over `depth` edges to its root, for the next stage, and back.

    Each rank adds what `fan` children send, and takes the first result when it has forwarded `lag` chunks.
    """

    depth: int
    net: Network
    fan: int = 1
    lag: int = 0


StageCost = RingCost | TreeCost
Form = Callable[[Sequence[StageCost], float], float]


def steps(net: Network, count: int, nbytes: float, adds: int = 0, *, loaded: bool = False) -> float:
    """Return the time of `count` steps: every rank sends `nbytes` in each, chunk after chunk of the step before."""
    first, rest = net.first(nbytes, adds), net.rest(nbytes, adds, loaded=loaded and count == 1)
    if count < 2:
        return count * (first + rest)
    ports = net.busy(nbytes, adds, loaded=loaded) + (count - 2) * net.busy(nbytes, adds)
    return max(count * first, ports + first) + rest


def all_reduce(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return an all-reduce over stages, innermost first: rings and trees, each nested in the previous one.

    Notes
    -----
    One ring: 2 (n - 1) alpha + 2 (n - 1) / n S / B + (n - 1) / n S gamma (Patarasuk and Yuan, 2009). Rings of two:
    halving and doubling, 2 log n alpha + ... (Rabenseifner, 2004). Two rings, r and c: the bucket form on a torus,
    2 (r + c - 2) alpha + 2 (n - 1) / n S / B. A tree: 2 log n (alpha + S / B) + log n S gamma. Whatever the stages, an
    inner one works on the part that the stage outside leaves it.

    Examples
    --------
    >>> all_reduce([RingCost(16, AlphaBeta(alpha_ns=1000, bw_gbs=50))], 1e6)
    67500.0
    """
    if not stages:
        return 0.0
    stage, net, inner = stages[0], stages[0].net, stages[1:]
    if isinstance(stage, RingCost):
        around = reduce_scatter([stage], nbytes) + steps(net, stage.n - 1, nbytes / stage.n)
        return around + all_reduce(inner, nbytes / stage.n)
    there_and_back = stage.depth * (net.first(nbytes, stage.fan) + net.first(nbytes))
    # A ring gives its first result when all parts but one have gone round.
    parts = prod(outer.n for outer in inner if isinstance(outer, RingCost))
    first = max(net.before(nbytes, stage.lag), nbytes - nbytes / parts)
    up = net.rest(first, stage.fan, loaded=True, alone=True)
    behind = up + max(net.rest(nbytes, alone=True), net.rest(nbytes, stage.fan, loaded=True) - up)
    return there_and_back + max(behind, all_reduce(inner, nbytes))


def reduce_scatter(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return n - 1 steps round a ring, each of an n-th of the vector received and added."""
    stage = _ring(stages)
    return steps(stage.net, stage.n - 1, nbytes / stage.n, adds=1, loaded=True)


def all_gather(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return n - 1 steps round a ring, each of an n-th of the whole forwarded."""
    stage = _ring(stages)
    return steps(stage.net, stage.n - 1, nbytes / stage.n, loaded=True)


def ring_flat(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return an all-reduce in which whole vectors go round the ring: n - 1 of them come, and are added."""
    stage = _ring(stages)
    return steps(stage.net, stage.n - 1, nbytes, adds=1, loaded=True)


def recursive_doubling(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return exchanges of the whole vector: a step for each ring of two; a tree before them folds, chunk by chunk."""
    folds = [stage for stage in stages if isinstance(stage, TreeCost)]
    pairs = [stage for stage in stages if isinstance(stage, RingCost)]
    total = sum(stage.net.first(nbytes, adds=1) for stage in pairs)
    total += max(stage.net.rest(nbytes, adds=1, loaded=True) for stage in pairs)
    total += sum(stage.net.rest(stage.net.late(nbytes), adds=1) for stage in pairs[1:])
    return total + sum(stage.net.first(nbytes, adds=1) + stage.net.first(nbytes) for stage in folds)


def reduce(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return the time of a vector up a tree, with sums."""
    stage = _tree(stages)
    return stage.depth * stage.net.first(nbytes, stage.fan) + stage.net.rest(nbytes, stage.fan, loaded=True)


def broadcast(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return the time of a vector down a tree."""
    stage = _tree(stages)
    return stage.depth * stage.net.first(nbytes) + stage.net.rest(nbytes, loaded=True)


def all_to_all(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return n - 1 messages of an n-th of the vector, which leave one behind the other."""
    stage = _ring(stages)
    part = nbytes / stage.n
    return stage.net.first(part) + stage.net.rest(part, loaded=True) + (stage.n - 2) * stage.net.busy(part, loaded=True)


def barrier(stages: Sequence[StageCost], nbytes: float) -> float:
    """Return the time of a byte up a tree, and down."""
    stage = _tree(stages)
    return 2 * stage.depth * stage.net.first(1)


def _ring(stages: Sequence[StageCost]) -> RingCost:
    [stage] = stages
    assert isinstance(stage, RingCost)
    return stage


def _tree(stages: Sequence[StageCost]) -> TreeCost:
    [stage] = stages
    assert isinstance(stage, TreeCost)
    return stage


# -- on a machine

# Of one participant: for each stream, its stages, the innermost first.
Places = tuple[tuple[Stage | Pairwise, ...], ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a closed form needs to know about a collective.

    Attributes
    ----------
    streams : callable
        streams(call, rank, n, n_elem, itemsize): the stages of a participant; `call` holds options and facts.
    form : callable
    splits : bool
        Whether rings split the vector, each into as many parts as it has members.
    turns : callable
        How often each channel of a ring carries such a part, of the ring's members.
    moved : callable
        Vectors that pass between a participant and its HBM, of the participants.
    """

    streams: Callable[[Mapping[str, Any], int, int, int, int], Sequence[Sequence[Stage | Pairwise]]]
    form: Form = all_reduce
    splits: bool = True
    turns: Callable[[int], int] = lambda n: 2 * (n - 1)
    moved: Callable[[int], float] = lambda n: 2.0


@dataclass(frozen=True, slots=True)
class StageChannels:
    """The channels of one stage of all participants, as (from, direction).

    Attributes
    ----------
    used, up : list of (int, str)
        Those in use together, and those of them that lead to a parent.
    n : int
        Members of a ring, or peers of a pairwise stage, which uses one channel of a participant after the other.
    path : list of (participant, parent, children of the parent)
        From a participant farthest from the root of a tree to it.
    """

    used: list[tuple[int, str]]
    up: list[tuple[int, str]]
    n: int = 0
    path: tuple[tuple[int, int, int], ...] = ()
    pairwise: bool = False

    @property
    def fan(self) -> int:
        """The most children that a participant on the path adds up."""
        return max((fan for _, _, fan in self.path), default=1)


class Sent(NamedTuple):
    """What each channel of a stage, of which there are `channels` of each kind, carries: messages of `nbytes`."""

    channels: Mapping[Channel, int]
    messages: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class StageModel:
    """A stage on a machine: its directions, its network, and how many channels there are of each kind."""

    of: StageChannels
    net: StageNetwork
    channels: Mapping[Channel, int]

    def over(self, net: Network) -> StageCost:
        """Return what it is over a network."""
        if self.of.n:
            return RingCost(self.of.n, net)
        depth = len(self.of.path)
        # A member that forwards sums takes results that many chunks later, but posts their receives some steps ahead.
        return TreeCost(depth, net, self.of.fan, max(0, LAG * (depth - 1) - AHEAD))


class Estimate:
    """The closed form of a plan, for any size; `known` is False for an algorithm that has none."""

    def __init__(self, plan: Plan, machine: Machine, itemsize: int = 2) -> None:
        self.cost = plan.algorithm.cost
        self.known = self.cost is not None
        self._plan, self._itemsize, self._model = plan, itemsize, channel_model(machine)
        self._call = {**plan.algorithm.options, **plan.algorithm.facts(plan.subgroups[0])}
        self._flows = _PlanFlows(plan)
        self._hbm = self._model.memory(next(iter(plan.programs)), "hbm")
        self._stages: dict[Places, list[StageModel]] = {}
        self._n_slots: int | None = None

    def with_slots(self, n_slots: int) -> Estimate:
        """Return the closed form of the same plan with another number of slots."""
        other = copy(self)
        other._n_slots = n_slots
        return other

    def ns(self, nbytes: int) -> float:
        """Return the closed form for shards of `nbytes`."""
        assert self.cost is not None, "ask for what is known only"
        stages, streams = self.stages(nbytes)
        if not stages:
            return 0.0
        chunks = self._chunks(stages, streams, nbytes)
        # A ring that ends in memory stores its result, and the next stage loads it.
        again = 1 + sum(a != b for a, b in pairwise(chunks))
        first_and_last = again * (self._hbm.load_ps(chunks[-1]) + self._hbm.store_ps(chunks[-1])) / 1000
        costs = [
            stage.over(replace(stage.net, streams=streams, chunk=chunk))
            for stage, chunk in zip(stages, chunks, strict=True)
        ]
        form = self.cost.form(costs, nbytes / streams)
        moved = self.cost.moved(self._plan.world_size) * nbytes
        return max(form + first_and_last, self._hbm.load_ps(1) / 1000 + moved / self._hbm.hbm_gbs)

    def sent(self, nbytes: int) -> Iterator[Sent]:
        """Yield what channels carry for shards of `nbytes`, stage by stage."""
        assert self.cost is not None, "ask for what is known only"
        stages, streams = self.stages(nbytes)
        vector = nbytes / streams
        for stage, chunk in zip(stages, self._chunks(stages, streams, nbytes), strict=True):
            n = stage.of.n if self.cost.splits and stage.of.n else 1
            vector /= n
            messages = max(1, -int(-vector // chunk)) * (self.cost.turns(stage.of.n) if stage.of.n else 1)
            yield Sent(stage.channels, messages, min(chunk, max(1, -int(-vector // 1))))

    def stages(self, nbytes: int) -> tuple[list[StageModel], int]:
        """Return the stages for shards of `nbytes`, and how many streams share the vector."""
        n = self._plan.world_size
        if self.cost is None or n == 1:
            return [], 1
        first = self._streams(0, nbytes)
        if first not in self._stages:
            places = [self._streams(rank, nbytes) for rank in range(n)]
            found = [_channels(self._plan, places, at) for at in range(len(first[0]))]
            self._stages[first] = [self._on_machine(each) for each in found if each.n > 1 or each.path]
        stages = self._stages[first]
        if self._n_slots is not None:
            stages = [replace(stage, net=stage.net.with_slots(self._n_slots)) for stage in stages]
        return stages, len(first)

    def _streams(self, rank: int, nbytes: int) -> Places:
        assert self.cost is not None
        n_elem = -(-nbytes // self._itemsize)
        n = self._plan.world_size
        try:
            streams = self.cost.streams(self._call, rank, n, n_elem, self._itemsize)
        except Exception as error:
            name, what = self._plan.algorithm.name, f"{type(error).__name__}: {error}"
            raise ConfigError(f"algorithm {name!r}: the stages of participant {rank} of {n} fail: {what}") from error
        return tuple(map(tuple, streams))

    def _chunks(self, stages: Sequence[StageModel], streams: int, nbytes: int) -> list[int]:
        """Return the bytes of messages of each stage: what nested rings leave, as the algorithms split it."""
        assert self.cost is not None
        if not stages:
            return []
        chunking = Chunking(self._itemsize, chunk_bytes=self._plan.algorithm.options.get("chunk_bytes"))
        rings = [stage.of.n or 1 for stage in stages] if self.cost.splits else [1] * len(stages)
        parts = [max(1, -(-nbytes // (streams * n * self._itemsize))) for n in accumulate(rings, mul)]
        alone = [chunking.chunks((0, part)) for part in parts]
        chunks, pieces = [alone[-1][0][1]], len(alone[-1])
        for n, part, pieces_alone in list(zip(rings, parts, alone, strict=True))[-2::-1]:
            pieces *= rings[len(parts) - len(chunks)]
            apart = n > 1 and ends_in_memory(n, pieces, part, chunking)
            chunks.append(pieces_alone[0][1] if apart else chunks[-1])
            pieces = len(pieces_alone) if apart else pieces
        return [chunk * self._itemsize for chunk in reversed(chunks)]

    def _on_machine(self, of: StageChannels) -> StageModel:
        """Return a stage with its channels, each at its share of the links that are in use together."""
        algorithm, model, itemsize = self._plan.algorithm, self._model, self._itemsize
        assert algorithm.n_slots is not None
        assert algorithm.slot_size is not None
        assert algorithm.credit_bytes is not None
        ring = RingBuffer(algorithm.buffer_kind, algorithm.n_slots, algorithm.slot_size, algorithm.credit_bytes)
        flows = self._flows.of(of.used)
        share = model.shared_gbs(flows, ring)
        channels = slowest = model.counted(flows, ring, itemsize=itemsize)
        if len(self._plan.subgroups) > 1:
            # The subgroup with the longest route ends last.
            (src, dst), ends = next(iter(flows.items()))
            routes = [model.channel((src, *a), (dst, *b), ring, itemsize=itemsize) for a, b in ends.pairs]
            last = max(range(len(self._plan.subgroups)), key=lambda i: routes[i].alpha_ns)
            slowest = model.counted(self._flows.of(of.used, subgroup=last), ring, itemsize=itemsize)
        if of.pairwise:
            farthest = max(channels, key=lambda channel: channel.alpha_ns)
            in_turn = share * (of.n - 1)
            timed = {SharedChannel(farthest, in_turn): 1}
            return StageModel(
                of, StageNetwork(timed, frozenset(channels), in_turn, in_turn, self._hbm, ready=True), channels
            )
        if of.n:
            timed = {SharedChannel(channel, share): n for channel, n in slowest.items()}
            return StageModel(of, StageNetwork(timed, frozenset(channels), share, share, self._hbm), channels)
        # A tree's edges are used one after the other by a chunk, each in all subgroups at a time.
        path: Counter[SharedChannel] = Counter()
        for child, parent, fan in of.path:
            edge = self._flows.between([(child, parent)])
            channel = max(model.counted(edge, ring, itemsize=itemsize), key=lambda channel: channel.alpha_ns)
            path[SharedChannel(channel, model.shared_gbs(edge, ring), fan)] += 1
        up = set(of.up)
        directions = self._flows.of(of.up), self._flows.of([each for each in of.used if each not in up])
        alone = min(model.shared_gbs(flows, ring) for flows in directions if flows)
        return StageModel(of, StageNetwork(path, frozenset(channels), share, alone, self._hbm), channels)


def _channels(plan: Plan, places: Sequence[Places], at: int) -> StageChannels:
    """Return the channels of stage `at` of the streams of all participants; below a tree, only its root takes part."""
    neighbours = [plan.programs[place].neighbours for place in plan.subgroups[0].places]
    active: dict[int, list[Stage | Pairwise]] = {}
    for rank, streams in enumerate(places):
        if not any(isinstance(before, Tree) and before.parent for before in streams[0][:at]):
            active[rank] = [stream[at] for stream in streams]
    used: list[tuple[int, str]] = []
    up: list[tuple[int, str]] = []
    for rank, stages in active.items():
        for stage in stages:
            if isinstance(stage, Tree):
                parent = (stage.parent,) if stage.parent else ()
                directions: Iterable[str] = (*parent, *stage.children)
                up += [(rank, direction) for direction in parent]
            else:
                directions = (stage.to,) if isinstance(stage, Ring) else stage.to
            for _, queue in () if isinstance(stage, Pairwise) else stage.ends:
                if queue not in neighbours[rank]:
                    raise ConfigError(
                        f"algorithm {plan.algorithm.name!r}: participant {rank} has no queue {queue!r}; "
                        f"{hint(queue, neighbours[rank])}"
                    )
            used += [(rank, direction) for direction in directions if direction in neighbours[rank]]
    kind = next(iter(active.values()))[0]
    if not isinstance(kind, Tree):
        return StageChannels(used, up, kind.n, pairwise=isinstance(kind, Pairwise))
    trees = [(stage.depth, -rank, -i) for rank, stages in active.items() for i, stage in enumerate(stages)
             if isinstance(stage, Tree)]  # fmt: skip
    _, rank, i = max(trees)
    return StageChannels(used, up, path=tuple(_path(plan, active, -rank, -i)))


def _path(
    plan: Plan, active: Mapping[int, Sequence[Stage | Pairwise]], rank: int, stream: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the edges from a member of a tree to its root."""
    places = plan.subgroups[0].places
    while isinstance(tree := active[rank][stream], Tree) and tree.parent:
        above = plan.programs[plan.programs[places[rank]].neighbours[tree.parent][0]].rank
        parent = active[above][stream]
        assert isinstance(parent, Tree)
        yield rank, above, len(parent.children)
        rank = above


class _PlanFlows:
    """The channels of a plan whose subgroups differ in their PEs only: examined once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        members = zip(*(subgroup.places for subgroup in plan.subgroups), strict=True)
        # For each participant its PE in every subgroup, the same object where it is the same.
        known: dict[tuple[Target, ...], tuple[Target, ...]] = {}
        self._targets = [known.setdefault(t, t) for t in (tuple(place[1:] for place in at) for at in members)]
        self._ends: dict[tuple[tuple[int, int], ...], Ends] = {}

    def of(self, channels: Iterable[tuple[int, str]], *, subgroup: int | None = None) -> Flows:
        """Return the flows of channels (from, direction), of all subgroups or one."""
        places, programs = self._plan.subgroups[0].places, self._plan.programs
        pairs = ((rank, programs[programs[places[rank]].neighbours[to][0]].rank) for rank, to in channels)
        return self.between(pairs, subgroup)

    def between(self, pairs: Iterable[tuple[int, int]], subgroup: int | None = None) -> Flows:
        """Return the flows from one participant to another, of all subgroups or one."""
        places, found = self._plan.subgroups[0].places, defaultdict(list)
        for a, b in pairs:
            found[places[a][0], places[b][0]].append((a, b))
        return {sips: self._between(ranks, subgroup) for sips, ranks in found.items()}

    def _between(self, ranks: Sequence[tuple[int, int]], subgroup: int | None) -> Ends:
        if subgroup is not None:
            return Ends(tuple((self._targets[a][subgroup], self._targets[b][subgroup]) for a, b in ranks))
        ends = [(self._targets[a], self._targets[b]) for a, b in ranks]
        key = tuple((id(a), id(b)) for a, b in ends)
        if key not in self._ends:
            self._ends[key] = Ends(tuple(pair for a, b in ends for pair in zip(a, b, strict=True)))
        return self._ends[key]
