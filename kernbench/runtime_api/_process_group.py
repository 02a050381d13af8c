"""Process groups: ranks that run collectives together; selection of the algorithm, its queues and its buffers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import simpy

from kernbench._registry import hint
from kernbench.ccl._group import Neighbours, Place, Subgroup
from kernbench.ccl._schedule import row_blocks
from kernbench.ccl.algorithm import Algorithm, CollectivePlan, plan
from kernbench.ccl.algorithms import Copy, PeerMessage, exchange
from kernbench.ccl.install import AlgorithmLike, load_ccl_config, names, resolve_algorithm_config, unnamed
from kernbench.config import AUTO, CclConfig, MachineConfig
from kernbench.config._ccl import COLLECTIVES
from kernbench.errors import CollectiveMismatchError, ConfigError, PlacementError, quote
from kernbench.runtime_api._device_tensor import DeviceTensor, deploy_like
from kernbench.runtime_api._devices import HostProgram, Start, StartOfWork
from kernbench.runtime_api._layout import CopyRun, Layout, Region, along, chunks, elements, runs, stacked, whole_region
from kernbench.runtime_api._meeting import Mailbox, Meeting
from kernbench.runtime_api.collective import Collectives, ShardArguments, arguments, over_channels, title
from kernbench.runtime_api.work import Call, CapturedWork, Exchange, LaunchCall, TensorPart, Work
from kernbench.topology._naming import PeId
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

_MOST_RUNS = 4096

_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class CopyRoute:
    """The runs that copy a part of a tensor of member `source` to one of member `target`."""

    source: int
    target: int
    of: DeviceTensor
    to: DeviceTensor
    runs: Sequence[CopyRun]


@dataclass(frozen=True, slots=True)
class Pairs:
    """The graph of the members that exchange messages, in either direction."""

    pairs: frozenset[tuple[int, int]]

    def __call__(self, subgroup: Subgroup) -> Neighbours:
        """Each member's neighbours are named `to0`, `to1`, ..."""
        joined = self.pairs | {(b, a) for a, b in self.pairs}
        return [
            {f"to{peer}": (peer, f"to{me}") for peer in range(subgroup.world_size) if (me, peer) in joined}
            for me in range(subgroup.world_size)
        ]


def no_args(*, n_elem: int, world_size: int) -> tuple[()]:
    """For kernels whose buffers hold all arguments."""
    return ()


def _tasks(routes: Sequence[CopyRoute], members: int) -> list[dict[PeId, tuple[object, ...]]]:
    """Return the arguments of `exchange` on the PEs of each member: all members use the same PEs, some of them idle."""
    places = sorted({place for route in routes for run in route.runs for place in run.holders})
    found: list[dict[PeId, tuple[list[PeerMessage], list[PeerMessage], list[Copy]]]] = [
        {place: ([], [], []) for place in places} for _ in range(members)
    ]
    # The next member first, so that not all of them send to one at a time.
    for route in sorted(routes, key=lambda route: (route.target - route.source) % members):
        src, dst = route.of.pointer, route.to.pointer
        for run in route.runs:
            for place in run.holders:
                sends, _, copies = found[route.source][place]
                _, receives, _ = found[route.target][place]
                if route.source == route.target:
                    copies.append((src + run.source, dst + run.target, run.n))
                else:
                    sends.append((route.target, src + run.source, run.n))
                    receives.append((route.source, dst + run.target, run.n))
    return [
        {place: (tuple(sends), tuple(receives), tuple(copies)) for place, (sends, receives, copies) in each.items()}
        for each in found
    ]


def exchanged(
    machine: MachineConfig, name: str, moves: Sequence[CopyRoute], sips: Sequence[int],
    pairs: frozenset[tuple[int, int]],
) -> tuple[CollectivePlan, dict[Place, ShardArguments]] | None:  # fmt: skip
    """Plan messages between `sips`, whose members are joined by `pairs`; None without messages and copies."""
    own = unnamed(load_ccl_config(machine=machine))
    plain = replace(own, name="exchange", kernel=exchange, kernel_args=no_args, topology=Pairs(pairs), collective=name)
    todo = _tasks(moves, len(sips))
    if not todo[0]:
        return None
    sent = max(sum(run.n for m in moves if m.source == r for run in m.runs) for r in range(len(sips)))
    nbytes = sent * moves[0].of.dtype.itemsize
    given = {
        (sip, *at): ShardArguments(args, 0)
        for sip, mine in zip(sips, todo, strict=True)
        for at, (args,) in over_channels(machine, own, nbytes, {pe: [each] for pe, each in mine.items()}, _cut).items()
    }
    places = [place[1:] for place in given if place[0] == sips[0]]
    return plan(plain, machine, sips, places, nbytes), given


def _cut(args: tuple[Any, ...], n: int) -> list[tuple[Any, ...]]:
    """Cut each message (peer, pointer, elements) and copy (from, to, elements) of `exchange` into `n`."""
    pieces: list[tuple[list[Any], ...]] = [tuple([] for _ in args) for _ in range(n)]
    for kind, moves in enumerate(args):
        for *ends, size in moves:
            for piece, (at, each) in zip(pieces, row_blocks(0, size, min(n, size)), strict=False):
                piece[kind].append((*(end + at if isinstance(end, Pointer) else end for end in ends), each))
    return [tuple(map(tuple, piece)) for piece in pieces]


def checked_runs(part: Region, other: Region, most: int = _MOST_RUNS) -> list[CopyRun]:
    found = runs(part, other)
    if len(found) > most:
        raise PlacementError(
            f"a part of shape {part.shape} of one tensor takes {len(found):,} runs of bytes of another, more than "
            f"{most}; give both the same DPPolicy, or cut them along dim 0 (row_wise)"
        )
    return found


def route(source: int, of: TensorPart, target: int, to: TensorPart) -> CopyRoute:
    """Copy a part of one member's tensor to a part of another's: by dims if their shapes agree, else in order."""
    a, b = of.tensor, to.tensor
    placed = (tuple(a.shape), tuple(b.shape)) == (a.layout.shape, b.layout.shape)
    part: Region | None
    other: Region | None
    if of.n is None and a.layout.shape == b.layout.shape and a.shape == b.shape:
        part, other = whole_region(a.layout), whole_region(b.layout)
    elif of.n is not None and placed and a.shape[1:] == b.shape[1:]:
        part, other = along(a.layout, 0, of.first, of.first + of.n), along(b.layout, 0, to.first, to.first + of.n)
    else:
        row, n = (1, a.numel()) if of.n is None else (a.numel() // max(a.shape[0], 1), of.n)
        part, other = (elements(p.tensor.layout, p.first * row, (p.first + n) * row) for p in (of, to))
    if part is None or other is None:
        raise out_of_order(a, b)
    return CopyRoute(source, target, a, b, checked_runs(part, other))


def routes(calls: Sequence[Exchange]) -> list[CopyRoute]:
    found = []
    for r, sender in enumerate(calls):
        for j, part in sender.sends.items():
            receives = calls[j].receives
            if part.n != receives[r].n:
                sent, got = ([p.n for p in parts.values()] for parts in (sender.sends, receives))
                raise CollectiveMismatchError(
                    f"all_to_all_single: rank {r} of the group sends {sent[j]} rows to rank {j}, which expects "
                    f"{got[r]}; input_split_sizes = {sent}, output_split_sizes there = {got}"
                )
            of, to = part.tensor, receives[r].tensor
            if part.n is None and (of.numel(), of.dtype) != (to.numel(), to.dtype):
                raise CollectiveMismatchError(
                    f"all_to_all: input_tensor_list[{j}] of rank {r} of the group is {tuple(of.shape)} {of.dtype}, but "
                    f"output_tensor_list[{r}] of rank {j} is {tuple(to.shape)} {to.dtype}; give both one size and type"
                )
            if part.n != 0:
                found.append(route(r, part, j, receives[r]))
    return found


def out_of_order(of: DeviceTensor, to: DeviceTensor) -> PlacementError:
    return PlacementError(
        f"{of.name} {tuple(of.shape)} and {to.name} {tuple(to.shape)}: their shapes differ, and the parts of one do "
        "not follow in row-major order; use the shapes in which they were placed, or the DPPolicy row_wise"
    )


def copying(host: HostProgram, routes: Sequence[CopyRoute], name: str) -> Start:
    """Return a function that starts device-local copies; it keeps the tensors alive."""
    (args,) = _tasks(routes, 1)
    return lambda: host.engine.launch(routes[0].of.sip, list(args), exchange, args, name).done


class Transport:
    """Maps a group's collectives to launches on the machine."""

    def __init__(self, host: HostProgram, collectives: Collectives) -> None:
        self._host = host
        self._collectives = collectives

    def chosen(self, algorithms: Mapping[str, AlgorithmLike]) -> dict[str, Algorithm]:
        found, config = {}, self._config
        for collective, name in algorithms.items():
            if collective not in COLLECTIVES:
                raise ConfigError(f"pg_options: {collective!r} is not a collective; {hint(collective, COLLECTIVES)}")
            if collective == "all_to_all":
                raise ConfigError("pg_options: all_to_all goes straight from rank to rank here; leave it out")
            found[collective] = own = resolve_algorithm_config(name, config)
            if own.collective != collective:
                raise ConfigError(f"pg_options: {collective}: algorithm {own.name!r} does {own.collective}")
        return found

    def starts(self, group: ProcessGroup, members: Sequence[int], calls: Sequence[Call], key: str) -> list[Start]:
        """Return a function per device that starts what `members` call.

        `key` names the queues: on one device, collectives with the same key run one after another.
        """
        launches = [call for call in calls if isinstance(call, LaunchCall)]
        if launches:
            return self._launch(group, launches, key)
        return self._exchange([group.devices[m] for m in members], [c for c in calls if isinstance(c, Exchange)], key)

    def _exchange(self, sips: Sequence[int], calls: Sequence[Exchange], key: str) -> list[Start]:
        moves = routes(calls)
        pairs = frozenset((move.source, move.target) for move in moves if move.source != move.target)
        found = exchanged(self._host.config, calls[0].name, moves, sips, pairs)
        return [self._nothing] * len(sips) if found is None else self._starts(key, *found, {})

    def _launch(self, group: ProcessGroup, calls: Sequence[LaunchCall], key: str) -> list[Start]:
        """Start the kernel of a plan on the shards of each member; on several shards of one PE, one after another."""
        named, call = self._named(group, calls[0]), calls[0]
        asked = named or unnamed(self._config)
        shards = [each.shards() for each in calls]
        if call.args:
            cut = partial(over_channels, self._host.config, asked, call.nbytes, cut=ShardArguments.cut)
            shards = [cut(shards=each) for each in shards]
        if not any(shards):
            return [self._nothing] * len(calls)
        planned, options = self._plan(group, call, named, shards[0]), call.options
        own = {(sip, *at): mine for sip, each in zip(group.devices, shards, strict=True) for at, mine in each.items()}
        if all(len(mine) == 1 for mine in own.values()):
            return self._starts(key, planned, {place: mine[0] for place, mine in own.items()}, options)
        several = replace(planned.algorithm, kernel=partial(_each, planned.algorithm.kernel), kernel_args=no_args)
        args = {
            place: ShardArguments((tuple(arguments(planned, place, each, options) for each in mine),), 0)
            for place, mine in own.items()
        }
        return self._starts(key, replace(planned, algorithm=several), args, {})

    def _named(self, group: ProcessGroup, call: LaunchCall) -> Algorithm | None:
        """Select the algorithm: the group's, else that of ccl.yaml; None for the best."""
        config = self._config
        named, default = group.algorithms.get(call.name), config.defaults.algorithm
        if named is None and default != AUTO and config.algorithms[default].collective == call.name:
            named = resolve_algorithm_config(default, config)
        if named is None and len(known := names(config, call.name, "rank")) == 1:
            named = resolve_algorithm_config(known[0], config)
        return named

    def _plan(
        self, group: ProcessGroup, call: LaunchCall, named: Algorithm | None,
        shards: Mapping[PeId, Sequence[ShardArguments]],
    ) -> CollectivePlan:  # fmt: skip
        places, sips = list(shards), group.devices
        if named is not None:
            return plan(named, self._host.config, sips, places, call.nbytes)
        n_elem = max(shard.n_elem for mine in shards.values() for shard in mine)
        itemsize = next(t.dtype.itemsize for t in call.tensors.values())
        nbytes, op = n_elem * itemsize * (len(sips) if call.name == "all_gather" else 1), call.options.get("op", "sum")
        return self._collectives.chosen(self._config, call.name, nbytes, itemsize, sips, places, call.nbytes, op=op)

    @cached_property
    def _config(self) -> CclConfig:
        return load_ccl_config(machine=self._host.config)

    def _starts(
        self, key: str, planned: CollectivePlan, shards: Mapping[Place, ShardArguments], options: Mapping[str, object]
    ) -> list[Start]:
        starts = self._collectives.starts(planned, key, shards, title(planned.algorithm), options)
        self._host.requests += len(starts)
        return [starts[sip] for sip in planned.sips]

    def _nothing(self) -> simpy.Event:
        return self._host.engine.env.timeout(0)


def _each(kernel: Callable[..., object], calls: Sequence[tuple[object, ...]], *, tl: TLContext) -> None:
    for args in calls:
        kernel(*args, tl=tl)


@dataclass(slots=True)
class Packer:
    """The buffers and runs of one rank's calls in a group, cached for later calls."""

    moves: dict[_Key, tuple[Layout, list[list[CopyRun]]] | None] = field(default_factory=dict)
    tensors: dict[_Key, DeviceTensor] = field(default_factory=dict)

    def packed(
        self, host: HostProgram, given: Sequence[DeviceTensor], part: DeviceTensor, n: int, *, unpack: bool
    ) -> tuple[DeviceTensor, Sequence[Start]]:
        """Return one tensor in the order of the kernels, and the starts of the copies to it (`unpack`: from it)."""
        key = part.dtype, n, unpack, *((t.layout.shape, t.layout.placement) for t in (part, *given))
        if key not in self.moves:
            self.moves[key] = _moves(given, part, n, unpack)
        moves = self.moves[key]
        if moves is None:
            return given[0], ()
        layout, found = moves
        place = part.dtype, n, (layout.shape, layout.placement)
        if place not in self.tensors:
            self.tensors[place] = deploy_like(host, layout, given[0].device, f"packed {given[0].name}")
        pack = self.tensors[place]
        ends = zip([given[0]] * n if len(given) == 1 else given, found, strict=True)
        routes = [CopyRoute(0, 0, pack, t, own) if unpack else CopyRoute(0, 0, t, pack, own) for t, own in ends]
        return pack, (copying(host, routes, "unpack" if unpack else "pack"),)


def _moves(
    given: Sequence[DeviceTensor], part: DeviceTensor, n: int, unpack: bool
) -> tuple[Layout, list[list[CopyRun]]] | None:
    """Return the layout of a packed tensor and the runs between it and the ranks' parts; None if they are in place."""
    base, regions = _regions(given, part, n)
    layout = stacked(base, n)
    inner = chunks(layout, n, base.shape)
    assert inner is not None, "a stack is the stack of its layers"
    pairs = zip(inner, regions, strict=True)
    found = [checked_runs(a, b) if unpack else checked_runs(b, a) for a, b in pairs]
    places = [[(s.cube, s.pe, s.offset_bytes) for s in own.shards] for own in (layout, given[0].layout)]
    stays = len(given) == 1 and places[0] == places[1]
    return None if stays and all(run.source == run.target for own in found for run in own) else (layout, found)


def _regions(given: Sequence[DeviceTensor], part: DeviceTensor, n: int) -> tuple[Layout, list[Region]]:
    """Return the layout of a part and each rank's region: by dims, else in row-major order."""
    base, size = part.layout, part.numel()
    found = None
    if len(given) == 1:
        found = chunks(given[0].layout, n, base.shape)
    elif all(t.layout.shape == base.shape for t in given):
        found = [whole_region(t.layout) for t in given]
    if found is not None:
        return base, found
    flat = base.flat()
    ends = [(given[0], i * size) for i in range(n)] if len(given) == 1 else [(t, 0) for t in given]
    pieces = [elements(t.layout, at, at + size) for t, at in ends]
    if flat is None or any(piece is None for piece in pieces):
        raise out_of_order(given[0], part)
    return flat, [piece for piece in pieces if piece is not None]


Algorithms = Mapping[str, AlgorithmLike]
NON_GROUP_MEMBER = -100


class GroupMember:
    """As in torch: `new_group` returns its constant to ranks outside the group."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


@dataclass(slots=True)
class _Member:
    """Counts of one rank's calls and of those that launch something, and its buffers."""

    calls: int = 0
    launches: int = 0
    packer: Packer = field(default_factory=Packer)


class ProcessGroup:
    """Ranks that run collectives together; all of them hold the same object.

    Its collectives run in order on a separate stream of each device, concurrently with the device's other work.
    """

    def __init__(
        self, host: HostProgram, ranks: Sequence[int], devices: Sequence[int], name: str, title: str,
        algorithms: Mapping[str, Algorithm], transport: Transport,
    ) -> None:  # fmt: skip
        self.ranks, self.devices, self.name, self.title = tuple(ranks), tuple(devices), name, title
        self.algorithms = dict(algorithms)
        self.left: set[int] = set()  # ranks that have destroyed it
        self.children: list[ProcessGroup] = []  # of the world: the groups that `new_group` has made
        self.mailbox = Mailbox(host, self, transport)
        self._host = host
        self._transport = transport
        self._members = [_Member() for _ in self.ranks]
        self._open: dict[int, Meeting] = {}

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        return self.index(self._host.rank_index)

    def index(self, rank: int) -> int:
        return self.ranks.index(rank) if rank in self.ranks else -1

    @property
    def is_over(self) -> bool:
        """True if every rank has left, and no call or message waits for another rank."""
        return self.left.issuperset(self.ranks) and not self._open and self.mailbox.is_idle

    @property
    def packer(self) -> Packer:
        return self._members[self.rank()].packer

    def call(self, call: Call) -> Work:
        """Join the other members on the device; while it captures a graph, where that is replayed."""
        rank = self.rank()
        graph = self._host.capturing(self.devices[rank])
        if graph is None or not call.runs:
            return self.meet(call)[1]
        graph.add(partial(self._replay, rank, call), len(call.tensors))
        return CapturedWork(self._host, partial(str, call))

    def _replay(self, rank: int, call: Call, after: StartOfWork) -> None:
        if self.rank() != rank or rank in self.left or not self._members:
            raise RuntimeError(
                f"a graph with {call} of {self.title} is replayed by another program than rank {self.ranks[rank]}, "
                "which captured it, or after the group's end; replay it there"
            )
        self.meet(call, after)[1].block_current_stream()

    def meet(self, call: Call, after: StartOfWork | None = None) -> tuple[Meeting, Work]:
        rank = self.rank()
        member = self._members[rank]
        number = member.calls
        member.calls += 1
        member.launches += call.runs
        meeting = self._open.get(number)
        if meeting is None:
            title = f"call {member.launches + (not call.runs)} of {self.title}"
            start = partial(self._transport.starts, self, range(self.size()), key=self.name)
            meeting = self._open[number] = Meeting(self._host, title, self.ranks, self.devices, self.name, start)
        work = meeting.join(rank, call, after)
        if meeting.is_complete:
            del self._open[number]
        return meeting, work

    def leave(self, ranks: Sequence[int]) -> None:
        self.left.update(ranks)
        for rank in set(ranks).intersection(self.ranks):
            self._members[self.index(rank)].packer = Packer()

    def cancel(self) -> None:
        for meeting in self._open.values():
            meeting.cancel()
        self._open.clear()
        self.mailbox.cancel()
        self._members.clear()

    def restart(self) -> None:
        self.cancel()
        self.left.clear()
        self._members = [_Member() for _ in self.ranks]

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.name}: ranks {self.ranks}>"


@dataclass(slots=True)
class _Scope:
    """The groups of one spawn, or of the program outside of ranks."""

    entering: ProcessGroup | None = None  # the world that some ranks have not entered yet
    world: dict[int, ProcessGroup] = field(default_factory=dict)  # rank: its world
    made: list[ProcessGroup] = field(default_factory=list)
    is_inherited: bool = False  # by the ranks of every spawn


class Groups:
    """The process groups of a session: the world of each rank, and the groups made in it."""

    def __init__(self, host: HostProgram, collectives: Collectives) -> None:
        self._host = host
        self._transport = Transport(host, collectives)
        self._outside, self._spawned = _Scope(), _Scope()
        host.at_ranks_start.append(self._inherit)
        host.at_ranks_end.append(self._forget)

    @property
    def speaks_for_all(self) -> bool:
        """True for the main program, if it has set up a world for ranks to inherit."""
        return self._host.rank is None and self._outside.is_inherited

    @property
    def scope(self) -> _Scope:
        return self._outside if self._host.rank is None else self._spawned

    def find(self, group: ProcessGroup | int | None) -> ProcessGroup:
        scope, me = self.scope, self._host.rank_index
        if me not in scope.world:
            raise ValueError(
                "Default process group has not been initialized, please make sure to call init_process_group."
            )
        found = scope.world[me] if group is None else group
        if not isinstance(found, ProcessGroup):
            raise TypeError(f"group = {quote(group)} is not a process group of rank {me}")
        if me in found.left or (found is not scope.world[me] and found not in scope.world[me].children):
            raise ValueError(f"{found!r} has been destroyed")
        return found

    def make(self, ranks: Sequence[int], devices: Sequence[int], algorithms: Algorithms) -> ProcessGroup:
        """Create a group of global ranks and their SIPs; its name, and so its queues, are reused when it is over."""
        chosen = self._transport.chosen(algorithms)
        for scope in (self._outside, self._spawned):
            scope.made = [group for group in scope.made if not group.is_over]
        taken = {group.name for scope in (self._outside, self._spawned) for group in scope.made}
        # A name is free again when its group is over, and so are the queues installed under it.
        sips = ".".join(map(str, devices))
        endings = (f" ({i})" if i else "" for i in itertools.count())
        end = next(end for end in endings if f"group {sips}{end}" not in taken)
        name, title = f"group {sips}{end}", f"group {tuple(ranks)}{end}"
        group = ProcessGroup(self._host, ranks, devices, name, title, chosen, self._transport)
        self.scope.made.append(group)
        return group

    def split(self, world: ProcessGroup, ranks: Sequence[int], algorithms: Algorithms) -> ProcessGroup:
        made = self.make(ranks, [world.devices[r] for r in ranks], algorithms)
        world.children = [group for group in world.children if not group.is_over] + [made]
        return made

    def _inherit(self, nprocs: int) -> None:
        if not self._outside.is_inherited:
            return
        world = self._outside.world[0]
        if nprocs != world.size():
            raise ValueError(
                f"spawn: nprocs = {nprocs}, but init_process_group() was called before spawn, and its world is the "
                f"machine's {world.size()} SIPs; give nprocs={world.size()}, or call init_process_group() in the ranks"
            )
        self._spawned.world = dict.fromkeys(world.ranks, world)

    def _forget(self) -> None:
        for group in self._spawned.made:
            group.cancel()
        self._spawned = _Scope()
        for group in self._outside.made:
            group.children = [child for child in group.children if child in self._outside.made]
            group.restart()
