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
    """One direction: its messages, the first in slots and the others still at the sender; `n_slots` None: no limit."""

    n_slots: int | None
    slot_bytes: int
    used: int = 0
    messages: deque[Message] = field(default_factory=deque)

    @property
    def full(self) -> bool:
        """Whether every slot holds a part."""
        return self.n_slots is not None and self.used >= self.n_slots

    @property
    def head(self) -> Message | None:
        """The first message that no receive has claimed, if a part of it is there."""
        message = next((m for m in self.messages if m.recv is None), None)
        return message if message is not None and message.arrived else None


class Inbox:
    """What one program receives: a queue for each direction, and its receives in program order.

    `complete` is called with each receive that has its message, and the bytes; `fault` is set when one does not fit.
    """

    def __init__(self, directions: Iterable[str], n_slots: int | None, slot_bytes: int) -> None:
        self.queues = {direction: Queue(n_slots, slot_bytes) for direction in directions}
        self.posted: list[Recv] = []
        self.complete: Callable[[Recv, np.ndarray], None]
        self.fault: KernelError | None = None
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
        self.move()

    def post(self, recv: Recv) -> None:
        """Take a receive."""
        if recv.direction is not None:
            self.check("recv", recv.direction)
        self.posted.append(recv)
        self.move()

    def release(self, value: Value) -> None:
        """Free the slot of a message that was read where it lay."""
        queue = self._held.pop(value, None)
        if queue is not None:
            queue.used -= 1
            self.move()

    def move(self) -> None:
        """Let everything move that can: parts into slots, messages to receives, parts out of slots."""
        while self._arrive() | self._match() | self._take():
            pass

    def _arrive(self) -> bool:
        moved = False
        for queue in self.queues.values():
            for message in queue.messages:
                while message.arrived < message.parts and not queue.full:
                    if not message.arrived:
                        self._arrivals += 1
                        message.order = self._arrivals
                    message.arrived += 1
                    queue.used += 1
                    moved = True
                if message.arrived < message.parts:
                    break
        return moved

    def _match(self) -> bool:
        moved = False
        for recv in [r for r in self.posted if not r.came_from]:
            direction = recv.direction or self._earliest()
            head = self.queues[direction].head if direction is not None else None
            if direction is None or head is None or not (recv.consume or head.arrived == head.parts):
                if recv.direction is None:
                    break  # What comes next is for this one.
                continue
            moved = True
            recv.came_from = direction
            if recv.nbytes != head.data.size:
                self.fault = self.fault or KernelError(
                    f"recv of {recv.nbytes} B from {direction!r}: the next message has {head.data.size} B; "
                    "it is received as it was sent: compare shapes and dtypes at both ends"
                )
            if recv.consume:
                head.recv = recv
            else:
                self.posted.remove(recv)
                self.complete(recv, head.data)
        return moved

    def _earliest(self) -> str | None:
        there = {d: q.head.order for d, q in self.queues.items() if q.head is not None}
        return min(there, key=lambda d: there[d]) if there else None

    def _take(self) -> bool:
        """Copy parts out of their slots; a message of one slot is read in place, its slot free when its tile is."""
        moved = False
        for queue in self.queues.values():
            while queue.messages and (recv := queue.messages[0].recv) is not None:
                message = queue.messages[0]
                in_place = message.parts == 1 and recv.output is not None and not recv.output.dropped
                if message.taken < message.arrived:
                    queue.used -= 0 if in_place else message.arrived - message.taken
                    message.taken = message.arrived
                    moved = True
                if message.taken < message.parts:
                    break
                queue.messages.popleft()
                self.posted.remove(recv)
                if in_place and recv.output is not None:
                    self._held[recv.output] = queue
                self.complete(recv, message.data)
        return moved
