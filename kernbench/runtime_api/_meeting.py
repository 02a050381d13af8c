"""Where calls of ranks meet: the meeting of all ranks of a collective, and sends matched with receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import simpy

from kernbench.errors import CollectiveMismatchError, KernbenchError
from kernbench.runtime_api._devices import HostProgram, Later, Start, StartOfWork
from kernbench.runtime_api.work import Call, Exchange, Work

if TYPE_CHECKING:
    from kernbench.runtime_api._process_group import ProcessGroup, Transport


class Meeting:
    """One collective of a group; it starts when its last member has called it.

    Each device then begins when its earlier work is complete.
    """

    def __init__(
        self, host: HostProgram, title: str, members: Sequence[int], devices: Sequence[int], stream: str,
        prepare: Callable[[list[Call]], list[Start]],
    ) -> None:  # fmt: skip
        self._host, self.title, self.members, self._devices = host, title, members, devices
        self._stream, self._prepare = stream, prepare
        self.calls: dict[int, Call] = {}
        self.shared: dict[int, Any] = {}  # by member: what a call on the host hands to the others
        self._works: dict[int, Work] = {}
        self._begun: dict[int, Later] = {}
        self._starts: list[Start] | None = None
        self._is_cancelled = False

    @property
    def is_complete(self) -> bool:
        return len(self.calls) == len(self.members)

    @property
    def is_over(self) -> bool:
        return self.is_complete and all(work.is_completed() for work in self._works.values())

    def join(self, member: int, call: Call, after: StartOfWork | None = None) -> Work:
        """Queue a member's part; in a graph, `after` the start of its place there."""
        host, device = self._host, self._devices[member]
        self.calls[member] = call
        self._check(member)
        work = self._works[member] = Work(host, partial(self._describe, member))
        if not call.runs:
            if self.is_complete:
                for each in self._works.values():
                    each.event.succeed()
            return work
        host.forget_moved(device)
        stream = host.stream(device, self._stream)
        stream.wait_stream(host.stream(device))
        if after is None:
            after = host.start_of_work(collective=True)
        operation = stream.operation(call.communication(tuple(self._devices)))
        steps = call.steps(partial(self._begin, member))
        for i, step in enumerate(steps):
            work.submit(stream, step, after.of(i, len(steps)), operation)
        assert work.event.callbacks is not None, "what has just been queued is not complete"
        work.event.callbacks.append(self._release)
        if self.is_complete:
            try:
                self._starts = self._prepare([self.calls[m] for m in range(len(self.members))])
            except KernbenchError as error:
                self._fail(member, error)
                raise
            for begun in list(self._begun):
                self._begun[begun].run(self._starts[begun])
        return work

    def cancel(self) -> None:
        """Complete the streams' operations of a collective that some members have not called."""
        self._is_cancelled = True
        waiting = [work.event for m, work in self._works.items() if not self.calls[m].runs]
        for event in (*(begun.done for begun in self._begun.values()), *waiting):
            if not event.triggered:
                event.succeed()

    def _release(self, _: simpy.Event) -> None:
        """Drop the tensors when the last device is done: handles may outlive them, and refer to this meeting."""
        if self.is_complete and all(work.event.triggered for work in self._works.values()):
            self.calls = {member: Call(call.label or call.name) for member, call in self.calls.items()}
            self._starts = None

    def _begin(self, member: int) -> simpy.Event:
        begun = self._begun[member] = Later(self._host.engine, self._devices[member])
        if self._is_cancelled:
            begun.done.succeed()
        elif self._starts is not None:
            begun.run(self._starts[member])
        return begun.done

    def _check(self, member: int) -> None:
        first, call = next(iter(self.calls.values())), self.calls[member]
        agrees = call.signature == first.signature
        if agrees and call.places == first.places:
            return
        lines = [f"\n  rank {self.members[m]}: {call}" for m, call in sorted(self.calls.items())]
        late = [str(rank) for m, rank in enumerate(self.members) if m not in self.calls]
        lines += [f"\n  not called yet by rank {', '.join(late)}"] if late else []
        lines += (
            ["\n  the tensors are sharded differently: place them with the same DPPolicy on every rank"]
            if agrees
            else []
        )
        error = CollectiveMismatchError(f"ranks disagree about {self.title}:{''.join(lines)}")
        self._fail(member, error)
        raise error

    def _fail(self, member: int, error: Exception) -> None:
        for other, work in self._works.items():
            if other != member:
                work.fail(error)
        self.cancel()

    def _describe(self, member: int) -> str:
        text = f"{self.calls[member].label or self.calls[member].name}, {self.title}"
        late = [rank for m, rank in enumerate(self.members) if m not in self.calls]
        if late and self._host.ranks is not None:
            over = self._host.ranks.over(late)
            notes = [f"rank {rank} {'has ended' if rank in over else 'has not called it'}" for rank in late]
            return f"{text}: {', '.join(notes)}"
        return f"{text} with rank {', '.join(str(r) for m, r in enumerate(self.members) if m != member)}"


@dataclass(eq=False, slots=True)
class _Post:
    """One side of a message, waiting for the other.

    A receive from any rank has no source, and no meeting until a send matches: its `work` is complete when that
    of the meeting is.
    """

    is_send: bool
    source: int | None
    target: int
    tag: int
    call: Exchange
    meeting: Meeting | None
    work: Work | None = None


class Mailbox:
    """Sends and receives of a group, matched by source, target and tag, in order.

    Each source, target and tag has a separate stream on both devices, so that no message waits for another that it
    does not follow. Streams use queues that contain no messages of another stream.
    """

    def __init__(self, host: HostProgram, group: ProcessGroup, transport: Transport) -> None:
        self._host, self._group, self._transport = host, group, transport
        self._open: list[_Post] = []
        # (source, target): for each set of queues, the stream that used it last, and its message.
        self._used: dict[tuple[int, int], list[tuple[str, Meeting]]] = {}

    def send(self, call: Exchange, target: int, tag: int) -> Work:
        me = self._rank()
        other = self._take(lambda p: not p.is_send and p.source in (me, None) and (p.target, p.tag) == (target, tag))
        meeting = (other and other.meeting) or self._meeting(me, target, tag)
        if other is None:
            self._open.append(_Post(True, me, target, tag, call, meeting))
        elif other.work is not None:
            received = meeting.join(1, other.call)
            assert received.event.callbacks is not None, "what has just been called is not complete"
            received.event.callbacks.append(other.work.complete)
            other.work.source, other.work._mark = me, received._mark
        return meeting.join(0, call)

    def receive(self, call: Exchange, source: int | None, tag: int) -> Work:
        me = self._rank()
        other = self._take(lambda p: p.is_send and source in (p.source, None) and (p.target, p.tag) == (me, tag))
        if other is None:
            meeting = None if source is None else self._meeting(source, me, tag)
            other = _Post(False, source, me, tag, call, meeting)
            self._open.append(other)
        if other.meeting is None:
            what = f"recv from any rank of {self._group.title}, tag {tag}: no rank has sent"
            other.work = Work(self._host, lambda: what)
            return other.work
        work = other.meeting.join(1, call)
        work.source = other.source
        return work

    @property
    def is_idle(self) -> bool:
        return not self._open and all(message.is_over for used in self._used.values() for _, message in used)

    def cancel(self) -> None:
        for post in self._open:
            if post.meeting is not None:
                post.meeting.cancel()
        self._open.clear()

    def _rank(self) -> int:
        me = self._group.rank()
        self._host.check_no_capture(self._group.devices[me])
        return me

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
            return self._transport.starts(group, [source, target], calls, f"{group.name}, messages {queues}")

        meeting = Meeting(self._host, title, ranks, devices, stream, prepare)
        return meeting

    def _queues(self, pair: tuple[int, int], stream: str, meeting: Meeting) -> int:
        """Return the index of a set of queues in which no other stream has a message in progress."""
        used = self._used.setdefault(pair, [])
        free = (i for i, (last, message) in enumerate(used) if last == stream or message.is_over)
        found = next(free, len(used))
        used[found : found + 1] = [(stream, meeting)]
        return found
