"""Process groups: ranks that run collectives together, each in program order."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kernbench.ccl.install import AlgorithmLike
from kernbench.errors import quote
from kernbench.runtime_api.transport import Packer, Transport
from kernbench.runtime_api.work import Call, Mailbox, Meeting

if TYPE_CHECKING:
    from kernbench.ccl.algorithm import Algorithm
    from kernbench.runtime_api.collective import Collectives
    from kernbench.runtime_api.devices import Host
    from kernbench.runtime_api.work import Work

Algorithms = Mapping[str, AlgorithmLike]
NON_GROUP_MEMBER = -100


class GroupMember:
    """What `new_group` returns to ranks outside the group."""

    NON_GROUP_MEMBER = NON_GROUP_MEMBER


@dataclass(slots=True)
class _Member:
    """The calls of one rank, those of them that do something, and what they have found and used, for later ones."""

    calls: int = 0
    launches: int = 0
    packer: Packer = field(default_factory=Packer)


class ProcessGroup:
    """Ranks that do collectives together; all of them hold the same object.

    Its collectives run in order on a separate stream of each device, concurrently with the device's other work.
    """

    def __init__(
        self, host: Host, ranks: Sequence[int], devices: Sequence[int], name: str, title: str,
        algorithms: Mapping[str, Algorithm], transport: Transport,
    ) -> None:  # fmt: skip
        self.ranks, self.devices, self.name, self.title = tuple(ranks), tuple(devices), name, title
        self.algorithms = dict(algorithms)
        self.left: set[int] = set()  # ranks that have destroyed it
        self.children: list[ProcessGroup] = []  # of the world: the groups that `new_group` has made in it
        self.mailbox = Mailbox(host, self, transport)
        self._host = host
        self._transport = transport
        self._members = [_Member() for _ in self.ranks]
        self._open: dict[int, Meeting] = {}

    def size(self) -> int:
        """Return the number of ranks."""
        return len(self.ranks)

    def rank(self) -> int:
        """Return the calling rank's number in the group; -1 if it is not a member."""
        return self.index(self._host.rank_index)

    def index(self, rank: int) -> int:
        """Return a global rank's number in the group; -1 if it is not a member."""
        return self.ranks.index(rank) if rank in self.ranks else -1

    @property
    def is_over(self) -> bool:
        """Whether every rank has left it, and none of its calls or messages still waits for another rank."""
        return self.left.issuperset(self.ranks) and not self._open and self.mailbox.is_idle

    @property
    def packer(self) -> Packer:
        """What the calling rank's calls have found and used, for later ones."""
        return self._members[self.rank()].packer

    def call(self, call: Call) -> Work:
        """Take part in the calling rank's next collective of this group."""
        return self.meet(call)[1]

    def meet(self, call: Call) -> tuple[Meeting, Work]:
        """Do as `call` does, and return where the ranks meet, too."""
        rank = self.rank()
        member = self._members[rank]
        number = member.calls
        member.calls += 1
        member.launches += call.runs
        meeting = self._open.get(number)
        if meeting is None:
            title = f"call {member.launches + (not call.runs)} of {self.title}"
            start = partial(self._transport.prepare, self)
            meeting = self._open[number] = Meeting(self._host, title, self.ranks, self.devices, self.name, start)
        work = meeting.join(rank, call)
        if meeting.is_complete:
            del self._open[number]
        return meeting, work

    def leave(self, ranks: Sequence[int]) -> None:
        """Note that these global ranks have destroyed the group, and free what it keeps for the members' calls."""
        self.left.update(ranks)
        for rank in set(ranks).intersection(self.ranks):
            self._members[self.index(rank)].packer = Packer()

    def cancel(self) -> None:
        """Forget collectives that not all members have called."""
        for meeting in self._open.values():
            meeting.cancel()
        self._open.clear()
        self.mailbox.cancel()
        self._members.clear()

    def restart(self) -> None:
        """Forget whatever ranks have done in it: those of the next spawn start afresh."""
        self.cancel()
        self.left.clear()
        self._members = [_Member() for _ in self.ranks]

    def __repr__(self) -> str:
        return f"<ProcessGroup {self.name}: ranks {self.ranks}>"


class _Scope:
    """The groups of one spawn, or of the program outside of any."""

    def __init__(self) -> None:
        self.entering: ProcessGroup | None = None  # the world that some ranks have not entered yet
        self.world: dict[int, ProcessGroup] = {}  # the one that each is in
        self.made: list[ProcessGroup] = []
        self.is_inherited = False  # by the ranks of every spawn


class Groups:
    """The process groups of a session: the world of each rank, and the groups that were made in it."""

    def __init__(self, host: Host, collectives: Collectives) -> None:
        self._host = host
        self._transport = Transport(host, collectives)
        self._outside, self._spawned = _Scope(), _Scope()
        host.at_ranks_start.append(self._inherit)
        host.at_ranks_end.append(self._forget)

    @property
    def speaks_for_all(self) -> bool:
        """Whether the caller is the main program, which sets up the world that ranks will inherit."""
        return self._host.rank is None and self._outside.is_inherited

    @property
    def scope(self) -> _Scope:
        """The groups that the caller is in."""
        return self._outside if self._host.rank is None else self._spawned

    def find(self, group: ProcessGroup | int | None) -> ProcessGroup:
        """Return `group`, or the calling rank's world."""
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
        """Return a new group of global ranks and their SIPs."""
        chosen = self._transport.chosen(algorithms)
        for scope in (self._outside, self._spawned):
            scope.made = [group for group in scope.made if not group.is_over]
        taken = {group.name for scope in (self._outside, self._spawned) for group in scope.made}
        # A name is used again when its group is over, and with it the queues that are installed under it.
        sips = ".".join(map(str, devices))
        endings = (f" ({i})" if i else "" for i in itertools.count())
        end = next(end for end in endings if f"group {sips}{end}" not in taken)
        name, title = f"group {sips}{end}", f"group {tuple(ranks)}{end}"
        group = ProcessGroup(self._host, ranks, devices, name, title, chosen, self._transport)
        self.scope.made.append(group)
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
        for group in self._outside.made:
            group.children = [child for child in group.children if child in self._outside.made]
            group.restart()
