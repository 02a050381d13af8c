"""Process groups: ranks that do collectives together, each in the order of its own program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernbench.runtime_api.p2p import Mailbox
from kernbench.runtime_api.packing import Packer
from kernbench.runtime_api.work import Call, Meeting, Start, Work

if TYPE_CHECKING:
    from kernbench.ccl.algorithm import Algorithm
    from kernbench.runtime_api.host import Host
    from kernbench.runtime_api.transport import Transport

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
