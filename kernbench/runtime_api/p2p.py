"""Messages from one rank to another: which send belongs to which receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernbench.errors import quote
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import Call, Meeting, Start, Work

if TYPE_CHECKING:
    from kernbench.runtime_api.host import Host
    from kernbench.runtime_api.process_group import ProcessGroup
    from kernbench.runtime_api.transport import Transport


@dataclass(frozen=True, slots=True)
class P2POp:
    """A send or receive of a batch.

    Parameters
    ----------
    op : callable
        `torch.distributed.isend` or `irecv`.
    tensor : Tensor
        What is sent, or where it goes.
    peer : int, optional
        Global rank of the other.
    group : ProcessGroup, optional
        By default the world.
    tag : int
        Sends and receives of one tag belong together.
    group_peer : int, optional
        The other's number in the group, in place of `peer`.
    """

    op: Callable[..., Work | None]
    tensor: Tensor
    peer: int | None = None
    group: ProcessGroup | None = None
    tag: int = 0
    group_peer: int | None = None

    def __post_init__(self) -> None:
        if getattr(self.op, "__name__", "") not in ("isend", "irecv"):
            raise ValueError(f"op = {quote(self.op)}: expected torch.distributed.isend or torch.distributed.irecv")


@dataclass(eq=False, slots=True)
class _Post:
    """One side of a message that waits for the other.

    `source` is None for a receive from anybody. What has no meeting yet gets one when the source is known.
    """

    is_send: bool
    source: int | None
    target: int
    tag: int
    call: Call
    work: Received | None
    meeting: Meeting | None


class Received(Work):
    """A receive from anybody: `source` is known once a send has been found for it."""

    def __init__(self, host: Host, what: str) -> None:
        super().__init__(host, lambda: what)
        self.source: int | None = None

    def follow(self, work: Work, source: int) -> None:
        """Be complete when `work` is."""
        self.source = source
        assert work.event.callbacks is not None, "what has just been called is not complete"

        def complete(_: Any) -> None:
            self.event.succeed()

        work.event.callbacks.append(complete)


class Mailbox:
    """Sends and receives of a group: they belong together by source, target and tag, first to first.

    Each source, target and tag has a stream of its own on both devices, so that no message waits for another that it
    does not follow. Streams take queues that no other has messages in.
    """

    def __init__(self, host: Host, group: ProcessGroup, transport: Transport) -> None:
        self._host, self._group, self._transport = host, group, transport
        self._open: list[_Post] = []
        # Of each source and target: the stream that used each set of queues last, and its message.
        self._used: dict[tuple[int, int], list[tuple[str, Meeting]]] = {}

    def send(self, call: Call, target: int, tag: int) -> Work:
        """Take the calling rank's send to a member of the group."""
        me = self._group.rank()
        other = self._take(lambda p: not p.is_send and p.source in (me, None) and (p.target, p.tag) == (target, tag))
        if other is None:
            meeting = self._meeting(me, target, tag)
            self._open.append(_Post(True, me, target, tag, call, None, meeting))
            return meeting.join(0, call)
        meeting = other.meeting or self._meeting(me, target, tag)
        if other.work is not None:
            other.work.follow(meeting.join(1, other.call), me)
        return meeting.join(0, call)

    def receive(self, call: Call, source: int | None, tag: int) -> tuple[Work, Callable[[], int]]:
        """Take the calling rank's receive from a member of the group, or from any; return how to learn from which."""
        me = self._group.rank()
        other = self._take(lambda p: p.is_send and source in (p.source, None) and (p.target, p.tag) == (me, tag))
        if other is not None:
            assert other.meeting is not None
            assert other.source is not None
            found = other.source
            return other.meeting.join(1, call), lambda: found
        if source is not None:
            known = source
            meeting = self._meeting(source, me, tag)
            self._open.append(_Post(False, source, me, tag, call, None, meeting))
            return meeting.join(1, call), lambda: known
        work = Received(self._host, f"recv from any rank of {self._group.title}, tag {tag}: nobody has sent")
        self._open.append(_Post(False, None, me, tag, call, work, None))
        return work, lambda: -1 if work.source is None else work.source

    @property
    def is_idle(self) -> bool:
        """Whether no message is under way, or waits for its other side."""
        return not self._open and all(message.is_over for used in self._used.values() for _, message in used)

    def cancel(self) -> None:
        """Forget messages that only one side has asked for."""
        for post in self._open:
            if post.meeting is not None:
                post.meeting.cancel()
        self._open.clear()

    def _take(self, fits: Callable[[_Post], bool]) -> _Post | None:
        found = next(filter(fits, self._open), None)
        if found is not None:
            self._open.remove(found)
        return found

    def _meeting(self, source: int, target: int, tag: int) -> Meeting:
        group = self._group
        ranks, devices = ([of[source], of[target]] for of in (group.ranks, group.devices))
        title = f"the message from rank {ranks[0]} to rank {ranks[1]}, tag {tag}"
        stream = f"{group.name}.{source}-{target}.{tag}"

        def prepare(calls: list[Call]) -> list[Start]:
            queues = self._queues((source, target), stream, meeting)
            return self._transport.exchange(group, [source, target], calls, f"{group.name}, messages {queues}")

        meeting = Meeting(self._host, title, ranks, devices, stream, prepare)
        return meeting

    def _queues(self, way: tuple[int, int], stream: str, meeting: Meeting) -> int:
        """Return the number of a set of queues in which nothing of another stream is under way."""
        used = self._used.setdefault(way, [])
        free = (i for i, (last, message) in enumerate(used) if last == stream or message.is_over)
        found = next(free, len(used))
        used[found : found + 1] = [(stream, meeting)]
        return found
