"""Queues between programs without a machine: messages, slots and credits, but no time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from kernbench.components.command import Recv, Value
from kernbench.errors import IpcqInvalidDirection, KernelError
from kernbench.registry import hint


@dataclass(slots=True, eq=False)
class Message:
    """A message of `parts` parts: `arrived` and `taken` count those in slots so far, and those copied out of them."""

    data: np.ndarray
    parts: int
    arrived: int = 0
    taken: int = 0
    order: int = 0
    recv: Recv | None = None


@dataclass(slots=True, eq=False)
class Queue:
    """One direction: its messages, oldest first; `n_slots` None: no limit.

    The first `claimed` of them have a receive, and the first `whole` lie in slots altogether.
    """

    n_slots: int | None
    slot_bytes: int
    used: int = 0
    messages: deque[Message] = field(default_factory=deque)
    claimed: int = 0
    whole: int = 0

    @property
    def head(self) -> Message | None:
        """The first message that no receive has claimed, if a part of it is there."""
        if self.claimed == len(self.messages):
            return None
        message = self.messages[self.claimed]
        return message if message.arrived else None


class Inbox:
    """What one program receives: a queue for each direction, and its receives in program order.

    `complete` is called with each receive that has its message, and the bytes; `fault` is set when one does not fit;
    `landing` are the receives to come that go to memory.
    """

    def __init__(self, directions: Iterable[str], n_slots: int | None, slot_bytes: int) -> None:
        self.queues = {direction: Queue(n_slots, slot_bytes) for direction in directions}
        self.posted: list[Recv] = []
        self.complete: Callable[[Recv, np.ndarray], None]
        self.fault: KernelError | None = None
        self.landing: list[Recv] = []
        self._unclaimed: list[Recv] = []
        self._held: dict[Value, Queue] = {}
        self._arrivals = 0

    def check(self, what: str, direction: str) -> None:
        """Refuse a direction that the program does not have."""
        if direction not in self.queues:
            known = hint(direction, self.queues) if self.queues else "it has none: nobody else takes part"
            raise IpcqInvalidDirection(f"{what} {direction!r}: no such queue; {known}")

    def push(self, direction: str, data: np.ndarray) -> None:
        """Take a message that a neighbour sends to the queue `direction`."""
        queue = self.queues[direction]
        queue.messages.append(Message(data, max(1, -(-data.size // queue.slot_bytes))))
        self._move([queue])

    def post(self, recv: Recv) -> None:
        """Take a receive."""
        if recv.direction is not None:
            self.check("recv", recv.direction)
        self.posted.append(recv)
        if recv.runs:
            self.landing.append(recv)
        self._unclaimed.append(recv)
        self._move([])

    def release(self, value: Value) -> None:
        """Free the slot of a message that was read where it lay."""
        if value in self._held:
            queue = self._held.pop(value)
            queue.used -= 1
            self._move([queue])

    def held(self) -> list[str]:
        """Return the directions that nothing can come from: tiles that came hold all their slots."""
        tiles = list(self._held.values())
        return [way for way, queue in self.queues.items() if tiles.count(queue) == queue.n_slots]

    def _move(self, changed: list[Queue]) -> None:
        """Let everything move that can, after `changed`: parts into slots, messages to receives, parts out of slots."""
        while True:
            for queue in changed:
                self._arrive(queue)
            if self._unclaimed:
                changed = [*changed, *self._match()]
            changed = [queue for queue in changed if self._take(queue)]
            if not changed:
                return

    def _arrive(self, queue: Queue) -> None:
        """Put parts into slots, as far as there are any."""
        while queue.whole < len(queue.messages):
            message = queue.messages[queue.whole]
            n = message.parts - message.arrived
            if queue.n_slots is not None:
                n = min(n, queue.n_slots - queue.used)
            if not n:
                return
            if not message.arrived:
                self._arrivals += 1
                message.order = self._arrivals
            message.arrived += n
            queue.used += n
            queue.whole += message.arrived == message.parts

    def _match(self) -> list[Queue]:
        """Give messages to receives, in the order of these; return the queues of those that are to be taken."""
        found = []
        for recv in list(self._unclaimed):
            direction = recv.direction or self._earliest()
            queue = self.queues[direction] if direction is not None else None
            head = queue.head if queue is not None else None
            if direction is None or queue is None or head is None or not (recv.consume or head.arrived == head.parts):
                if recv.direction is None:
                    break  # What comes next is for this one.
                continue
            recv.came_from = direction
            self._unclaimed.remove(recv)
            if recv.nbytes != head.data.size:
                self.fault = self.fault or KernelError(
                    f"recv of {recv.nbytes} B from {direction!r}: the next message has {head.data.size} B; "
                    "it is received as it was sent: compare shapes and dtypes at both ends"
                )
            if recv.consume:
                head.recv = recv
                queue.claimed += 1
                found.append(queue)
            else:
                self.posted.remove(recv)
                self.complete(recv, head.data)
        return found

    def _earliest(self) -> str | None:
        there = {d: q.head.order for d, q in self.queues.items() if q.head is not None}
        return min(there, key=lambda d: there[d]) if there else None

    def _take(self, queue: Queue) -> bool:
        """Copy parts out of their slots; return whether others are to come into them.

        A message of one slot is read in place, its slot free when its tile is.
        """
        freed = 0
        while queue.claimed:
            message = queue.messages[0]
            recv = message.recv
            assert recv is not None
            in_place = message.parts == 1 and recv.output is not None and not recv.output.dropped
            if not in_place:
                freed += message.arrived - message.taken
            message.taken = message.arrived
            if message.taken < message.parts:
                break
            queue.messages.popleft()
            queue.claimed -= 1
            queue.whole -= 1
            self.posted.remove(recv)
            if recv.runs:
                self.landing.remove(recv)
            if in_place and recv.output is not None:
                self._held[recv.output] = queue
            self.complete(recv, message.data)
        queue.used -= freed
        return freed > 0 and queue.whole < len(queue.messages)
