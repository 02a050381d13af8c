"""Process groups: ranks that do collectives together, each in the order of its own program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernbench.ccl.install import AlgorithmLike
from kernbench.errors import quote
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.host import Host
from kernbench.runtime_api.layout import Layout
from kernbench.runtime_api.regions import Region, Run, chunks, elements, stacked, whole
from kernbench.runtime_api.transport import Route, Transport, checked_runs, copying, out_of_order
from kernbench.runtime_api.work import Call, Coalesced, Mailbox, Meeting, Start, Work

if TYPE_CHECKING:
    from kernbench.ccl.algorithm import Algorithm
    from kernbench.runtime_api.host import Host
    from kernbench.runtime_api.transport import Transport


Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """What moves between a packed tensor and the parts, for tensors that lie in one way."""

    layout: Layout
    runs: tuple[list[Run], ...]
    in_place: bool


@dataclass(slots=True)
class Packer:
    """What one rank's calls in a group have found and used, for later ones."""

    moves: dict[Key, Moves] = field(default_factory=dict)
    tensors: dict[Key, DeviceTensor] = field(default_factory=dict)

    def packed(
        self, host: Host, given: Sequence[DeviceTensor], part: DeviceTensor, n: int, *, unpack: bool
    ) -> tuple[DeviceTensor, Sequence[Start]]:
        """Return tensors as kernels take them, in one, and what starts the copies that this needs."""
        ways = part.dtype, n, unpack, *(_key(t.layout) for t in (part, *given))
        moves = self.moves.get(ways)
        if moves is None:
            moves = self.moves[ways] = _moves(given, part, n, unpack)
        if moves.in_place:
            return given[0], ()
        place = part.dtype, n, _key(moves.layout)
        if place not in self.tensors:
            self.tensors[place] = host.deploy_like(moves.layout, given[0].device, f"packed {given[0].name}")
        pack = self.tensors[place]
        ends = [given[0]] * n if len(given) == 1 else given
        routes = [
            Route(0, 0, pack, t, own) if unpack else Route(0, 0, t, pack, own)
            for t, own in zip(ends, moves.runs, strict=True)
        ]
        return pack, (copying(host, routes, "unpack" if unpack else "pack"),)


def _moves(given: Sequence[DeviceTensor], part: DeviceTensor, n: int, unpack: bool) -> Moves:
    base, regions = _regions(given, part, n)
    layout = stacked(base, n)
    inner = chunks(layout, n, base.shape)
    assert inner is not None, "a stack is the stack of its layers"
    pairs = zip(inner, regions, strict=True)
    found = tuple(checked_runs(a, b) if unpack else checked_runs(b, a) for a, b in pairs)
    places = [[(s.cube, s.pe, s.offset) for s in own.shards] for own in (layout, given[0].layout)]
    stays = len(given) == 1 and places[0] == places[1]
    return Moves(layout, found, stays and all(run.source == run.target for own in found for run in own))


def _regions(given: Sequence[DeviceTensor], part: DeviceTensor, n: int) -> tuple[Layout, list[Region]]:
    """Return where each rank's part is, and how a part is laid out: by its dims, else in row-major order."""
    base, size = part.layout, part.numel()
    if len(given) == 1:
        found = chunks(given[0].layout, n, base.shape)
        pieces = [elements(given[0].layout, i * size, (i + 1) * size) for i in range(n)] if found is None else []
    else:
        alike = all(t.layout.shape == base.shape for t in given)
        found = [whole(t.layout) for t in given] if alike else None
        pieces = [elements(t.layout, 0, size) for t in given]
    if found is not None:
        return base, found
    flat = base.flat()
    if flat is None or any(piece is None for piece in pieces):
        raise out_of_order(given[0], part)
    return flat, [piece for piece in pieces if piece is not None]


def _key(layout: Layout) -> Key:
    shards = ((s.cube, s.pe, s.offset, s.nbytes, *((i.start, i.stop) for i in s.index)) for s in layout.shards)
    return layout.shape, *shards


NON_GROUP_MEMBER = -100


class GroupMember:
    """What `new_group` gives to ranks that are no members."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


class ProcessGroup:
    """Ranks that do collectives together; all of them hold the same object.

    Collectives of a group run in order on a stream of their own, beside whatever else a device does.

    Parameters
    ----------
    host : Host
    ranks : sequence of int
        Global ranks, in the order of the group.
    devices : sequence of int
        The SIP of each.
    name : str
        For streams and installed queues.
    title : str
        What messages call it.
    algorithms : mapping
        Collective to the algorithm that this group uses for it; others are chosen.
    transport : Transport
        What its calls come to on the machine.

    Attributes
    ----------
    ranks, devices : tuple of int
    mailbox : Mailbox
        Its messages from one rank to another.
    left : set of int
        Ranks that have destroyed it.
    children : list of ProcessGroup
        Of the world: the groups that `new_group` has made in it.
    """

    def __init__(
        self, host: Host, ranks: Sequence[int], devices: Sequence[int], name: str, title: str,
        algorithms: Mapping[str, Algorithm], transport: Transport,
    ) -> None:  # fmt: skip
        self.ranks, self.devices, self.name, self.title = tuple(ranks), tuple(devices), name, title
        self.algorithms = dict(algorithms)
        self.left: set[int] = set()
        self.children: list[ProcessGroup] = []
        self.mailbox = Mailbox(host, self, transport)
        self._host = host
        self._transport = transport
        self._packers = [Packer() for _ in self.ranks]
        self._counts = [0] * len(self.ranks)  # of all calls
        self._numbers = [0] * len(self.ranks)  # of those that do something, as messages count them
        self._open: dict[int, Meeting] = {}

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)

    def rank(self) -> int:
        """Return the calling rank's number in the group; -1 if it is no member."""
        return self.index(self._host.rank_index)

    def index(self, rank: int) -> int:
        """Return a global rank's number in the group; -1 if it is no member."""
        return self.ranks.index(rank) if rank in self.ranks else -1

    @property
    def is_over(self) -> bool:
        """Whether every rank has left it, and none of its calls or messages still waits for another rank."""
        return self.left.issuperset(self.ranks) and not self._open and self.mailbox.is_idle

    @property
    def packer(self) -> Packer:
        """What the calling rank's calls have found and used, for later ones."""
        return self._packers[self.rank()]

    def call(self, call: Call) -> Work:
        """Take part in the calling rank's next collective of this group."""
        return self.meet(call)[1]

    def meet(self, call: Call) -> tuple[Meeting, Work]:
        """Do as `call` does, and return where the ranks meet, too."""
        member = self.rank()
        number = self._counts[member]
        self._counts[member] += 1
        self._numbers[member] += call.runs
        meeting = self._open.get(number)
        if meeting is None:
            title = f"call {self._numbers[member] + (not call.runs)} of {self.title}"
            meeting = Meeting(self._host, title, self.ranks, self.devices, self.name, self._start)
            self._open[number] = meeting
        work = meeting.join(member, call)
        if meeting.is_complete:
            del self._open[number]
        return meeting, work

    def leave(self, ranks: Sequence[int]) -> None:
        """Note that these global ranks have destroyed the group, and free what it keeps for the members' calls."""
        self.left.update(ranks)
        for rank in set(ranks).intersection(self.ranks):
            self._packers[self.index(rank)] = Packer()

    def cancel(self) -> None:
        """Forget collectives that not all members have called."""
        for meeting in self._open.values():
            meeting.cancel()
        self._open.clear()
        self.mailbox.cancel()
        self._packers.clear()

    def restart(self) -> None:
        """Forget whatever ranks have done in it: those of the next spawn begin anew."""
        self.cancel()
        self.left.clear()
        self._packers = [Packer() for _ in self.ranks]
        self._counts = [0] * len(self.ranks)
        self._numbers = [0] * len(self.ranks)

    def _start(self, calls: list[Call]) -> list[Start]:
        return self._transport.prepare(self, calls)

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.name}: ranks {self.ranks}>"


BACKEND = "ahbm"
Algorithms = Mapping[str, AlgorithmLike]


class _Scope:
    """The groups of one spawn, or of the program outside of any."""

    def __init__(self) -> None:
        self.entering: ProcessGroup | None = None  # the world that not all have come to
        self.world: dict[int, ProcessGroup] = {}  # the one that each is in
        self.made: list[ProcessGroup] = []
        self.is_inherited = False  # by the ranks of every spawn


@dataclass(frozen=True, slots=True)
class World:
    """What `torch.distributed.group` is in torch: the name of the calling rank's world."""

    WORLD: ProcessGroup | None


class Groups:
    """The part of `torch.distributed` that makes groups and tells of them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._transport = Transport(host)
        self._outside, self._spawned = _Scope(), _Scope()
        self._coalescing: dict[int, Coalesced] = {}
        host.at_ranks_start.append(self._inherit)
        host.at_ranks_end.append(self._forget)

    @property
    def _speaks_for_all(self) -> bool:
        """Whether the caller is no rank itself, and sets up the world that ranks will inherit."""
        return self._host.rank is None and self._outside.is_inherited

    @property
    def _scope(self) -> _Scope:
        return self._outside if self._host.rank is None else self._spawned

    def is_available(self) -> bool:
        """Return whether there is a backend: always."""
        return True

    def is_initialized(self) -> bool:
        """Return whether the calling rank is in a process group."""
        return self._host.rank_index in self._scope.world

    def init_process_group(
        self,
        backend: str | None = None,
        init_method: str | None = None,
        timeout: object = None,
        world_size: int = -1,
        rank: int = -1,
        store: object = None,
        group_name: str = "",
        pg_options: Algorithms | None = None,
        device_id: object = None,
    ) -> None:
        """Make the calling rank a member of the world: all ranks of its spawn.

        Called before `spawn`, it makes a world of all SIPs of the machine, which the ranks of every later spawn
        inherit; only with `world_size=1` it makes a world of the program alone. A rank waits for all others. Takes no
        simulated time: queues are installed, by messages through the machine, when a group first uses them.

        Parameters
        ----------
        backend : str, optional
            "ahbm", the only one.
        init_method, timeout : optional
            torch's; without meaning where ranks share a process.
        world_size, rank : int, optional
            As the spawn has bound them.
        store, group_name : optional
            As `init_method`.
        pg_options : mapping, optional
            Collective to the name of the algorithm, or an algorithm, that the world uses for it; by default the best
            that keeps torch's meaning is chosen.
        device_id : optional
            As `init_method`.
        """
        self._host.check_open()
        scope, me, ranks = self._scope, self._host.rank_index, self._host.ranks
        inside = ranks is not None and scope is self._spawned
        outside = 1 if world_size == 1 else self._host.n_devices
        size = outside if ranks is None or not inside else len(ranks.ranks)
        if me in scope.world:
            raise ValueError("trying to initialize the default process group twice!")
        _check_backend(backend)
        algorithms = _algorithms(pg_options)
        if rank not in (-1, me) or world_size not in (-1, size):
            raise ValueError(
                f"init_process_group: rank = {rank}, world_size = {world_size}, but this is rank {me} of {size}; leave "
                "them out, and start as many ranks as there shall be: torch.multiprocessing.spawn(fn, nprocs=...)"
            )
        if not inside:
            devices = [self._host.current] if size == 1 else range(size)
            scope.world[me] = self._new(range(size), devices, algorithms)
            scope.is_inherited = world_size != 1
            return
        if scope.entering is None:
            scope.entering = self._new(range(size), range(size), algorithms)
        world = scope.world[me] = scope.entering
        if all(scope.world.get(r) is world for r in world.ranks):
            scope.entering = None
        world.call(Call("init_process_group", more={"pg_options": algorithms}, runs=False)).wait()

    def destroy_process_group(self, group: ProcessGroup | None = None) -> None:
        """Leave a group; by default the world, and every group in it."""
        scope, me = self._scope, self._host.rank_index
        found = self._group(group)
        for each in (found, *found.children):
            each.leave(each.ranks if self._speaks_for_all else (me,))
        if found is scope.world[me]:
            del scope.world[me]
            scope.is_inherited = False

    def get_backend(self, group: ProcessGroup | None = None) -> str:
        """Return the name of the backend."""
        self._group(group)
        return BACKEND

    def get_rank(self, group: ProcessGroup | int | None = None) -> int:
        """Return the calling rank's number in a group (the world); -1 if it is no member."""
        return -1 if group == NON_GROUP_MEMBER else self._group(group).rank()

    def get_world_size(self, group: ProcessGroup | int | None = None) -> int:
        """Return the number of ranks of a group (the world); -1 if the caller is no member."""
        return -1 if self.get_rank(group) < 0 else self._group(group).size()

    def new_group(
        self,
        ranks: Sequence[int] | None = None,
        timeout: object = None,
        backend: str | None = None,
        pg_options: Algorithms | None = None,
        use_local_synchronization: bool = False,
        group_desc: str | None = None,
        device_id: object = None,
        sort_ranks: bool = True,
    ) -> ProcessGroup | int:
        """Return a group of some ranks; `GroupMember.NON_GROUP_MEMBER` for who is none of them.

        Every rank of the world calls it, members or not, in the same order among its collectives of the world, and
        waits for all. Before `spawn` the program calls it once for all ranks, and gets the group in any case.

        Parameters
        ----------
        ranks : sequence of int, optional
            Global ranks; by default all.
        timeout : optional
            As for `init_process_group`.
        backend : str, optional
            "ahbm", the only one.
        pg_options : mapping, optional
            As for `init_process_group`.
        use_local_synchronization, group_desc, device_id : optional
            torch's; without meaning where ranks share a process.
        sort_ranks : bool
            Number the members by their global ranks; else as `ranks` has them.
        """
        world = self._group(None)
        _check_backend(backend)
        algorithms = _algorithms(pg_options)
        members = list(world.ranks if ranks is None else ranks)
        if sort_ranks:
            members.sort()
        strangers = [rank for rank in members if rank not in world.ranks]
        if strangers or len(set(members)) < len(members) or not members:
            raise ValueError(
                f"new_group: ranks = {quote(ranks)}: expected different ranks of the world, 0 to {world.size() - 1}"
            )
        if self._speaks_for_all:
            made = self._new(members, [world.devices[r] for r in members], algorithms)
            world.children.append(made)
            return made
        meeting, work = world.meet(Call("new_group", more={"ranks": members, "pg_options": algorithms}, runs=False))
        if meeting.shared is None:
            meeting.shared = self._new(members, [world.devices[r] for r in members], algorithms)
            world.children = [group for group in world.children if not group.is_over] + [meeting.shared]
        work.wait()
        group: ProcessGroup = meeting.shared
        return group if world.rank() in members else NON_GROUP_MEMBER

    def new_subgroups(
        self,
        group_size: int | None = None,
        group: ProcessGroup | None = None,
        timeout: object = None,
        backend: str | None = None,
        pg_options: Algorithms | None = None,
        group_desc: str | None = None,
    ) -> tuple[ProcessGroup | int, list[ProcessGroup | int]]:
        """Cut a group (the world) into groups of `group_size` neighbouring ranks; every rank of the world calls it.

        Returns the calling rank's own and all of them, each as `new_group` returns it. By default one group has as
        many ranks as the machine has SIPs. The other parameters are those of `new_group`.

        Raises
        ------
        ValueError
            If `group_size` does not divide the number of ranks.
        """
        ranks = self._group(group).ranks
        size = self._host.n_devices if group_size is None else group_size
        if size < 1 or len(ranks) % size:
            raise ValueError(f"new_subgroups: group_size = {size} must divide the {len(ranks)} ranks of the group")
        parts = [ranks[i : i + size] for i in range(0, len(ranks), size)]
        made = [self.new_group(part, backend=backend, pg_options=pg_options) for part in parts]
        own = (found for part, found in zip(parts, made, strict=True) if self._host.rank_index in part)
        return next(own, NON_GROUP_MEMBER), made

    def get_process_group_ranks(self, group: ProcessGroup | None = None) -> list[int]:
        """Return the global ranks of a group (the world), in its order."""
        return list(self._group(group).ranks)

    def get_global_rank(self, group: ProcessGroup | None, group_rank: int) -> int:
        """Return the global rank of a group's member."""
        found = self._group(group)
        if not 0 <= group_rank < found.size():
            raise ValueError(f"group rank {quote(group_rank)} is not part of group {found.ranks}")
        return found.ranks[group_rank]

    def get_group_rank(self, group: ProcessGroup | None, global_rank: int) -> int:
        """Return the number of a global rank in a group."""
        found = self._group(group)
        if global_rank not in found.ranks:
            raise ValueError(f"global rank {quote(global_rank)} is not part of group {found.ranks}")
        return found.index(global_rank)

    @property
    def group(self) -> World:
        """`group.WORLD`: the group that collectives are among by default; None before there is one."""
        return World(self._scope.world.get(self._host.rank_index))

    def _group(self, group: ProcessGroup | int | None) -> ProcessGroup:
        """Return `group`, or the calling rank's world."""
        scope, me = self._scope, self._host.rank_index
        if me not in scope.world:
            raise ValueError(
                "Default process group has not been initialized, please make sure to call init_process_group."
            )
        found = scope.world[me] if group is None else group
        if not isinstance(found, ProcessGroup):
            raise TypeError(f"group = {quote(group)} is no process group that rank {me} is in")
        if me in found.left or (found is not scope.world[me] and found not in scope.world[me].children):
            raise ValueError(f"{found!r} has been destroyed")
        return found

    def _new(self, ranks: Sequence[int], devices: Sequence[int], algorithms: Algorithms) -> ProcessGroup:
        chosen = self._transport.chosen(algorithms)
        for scope in (self._outside, self._spawned):
            scope.made = [group for group in scope.made if not group.is_over]
        taken = {group.name for scope in (self._outside, self._spawned) for group in scope.made}
        # A name is used again when its group is over, and with it the queues that are installed under it.
        sips = ".".join(map(str, devices))
        endings = itertools.chain([""], (f" ({i})" for i in itertools.count(1)))
        end = next(end for end in endings if f"group {sips}{end}" not in taken)
        name, title = f"group {sips}{end}", f"group {tuple(ranks)}{end}"
        group = ProcessGroup(self._host, ranks, devices, name, title, chosen, self._transport)
        self._scope.made.append(group)
        return group

    def _inherit(self, nprocs: int) -> None:
        """Make ranks that are about to start members of the world that was made before."""
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
        """Leave nothing of the ranks that have ended."""
        for group in self._spawned.made:
            group.cancel()
        self._spawned = _Scope()
        self._coalescing.clear()
        for group in self._outside.made:
            group.children = [child for child in group.children if child in self._outside.made]
            group.restart()


def _algorithms(pg_options: Algorithms | None) -> dict[str, AlgorithmLike]:
    if not isinstance(pg_options, Mapping | None):
        raise TypeError(
            f"pg_options = {quote(pg_options)}: expected an algorithm for each of some collectives: "
            '{"all_reduce": ...}'
        )
    return dict(pg_options or {})


def _check_backend(backend: str | None) -> None:
    if backend not in (None, BACKEND):
        raise ValueError(f"backend = {quote(backend)} is unknown; the only one here is {BACKEND!r}")
