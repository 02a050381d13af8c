"""Queues between programs, without time: slots and credits, and which receive takes which message.

The queue engine of a PE drives them with events (`builtin.pe_ipcq`); the mock of collectives drives them round by
round. A message larger than a slot travels in parts of a slot each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._dtypes import DType
from kernbench._registry import hint
from kernbench.components._command import Recv, Send
from kernbench.components._pe import Job
from kernbench.errors import IpcqInvalidDirection, KernelError

if TYPE_CHECKING:
    from kernbench.components._pe import PeProgram

UNLIMITED = 1 << 31  # slots of a ring without limit, and bytes of each


class Slot:
    """A slot of a ring, and what it holds: part `index` of `message`, the `number`-th since the installation.

    `order` is of arrivals. A `free` slot has no message.
    """

    message: Message

    def fill(self, message: Message, number: int, slot_bytes: int) -> None:
        self.message, self.index, self.number = message, message.left, number
        self.nbytes = min(slot_bytes, message.nbytes - message.left * slot_bytes)
        self.order, self.free = -1, False
        if not message.left:
            message.first = number
        message.left += 1


class Queue:
    """One direction of a program: its ring, which its peer fills, and the peer's, which it fills while it has credits.

    `credits` counts the free slots of the peer's ring. Heads and tails count slots: `sent` and `acknowledged` of the
    peer's ring, `arrived` and `released` of this program's; `taken` counts slots of messages that receives have
    claimed, arrived or not. `outbox` holds the messages that have not left. `slots` are those of the peer's ring,
    each created when it is first filled, and `ring` are this program's.
    """

    def __init__(self, name: str, peer_name: str, n_slots: int, slot_bytes: int) -> None:
        self.name, self.peer_name, self.n_slots, self.slot_bytes = name, peer_name, n_slots, slot_bytes
        self.credits = n_slots
        self.sent = self.arrived = self.released = self.taken = 0
        self.passed = 0  # the last pass of `Inbox.match` in which an earlier receive waits for it
        self.outbox: list[Message] = []
        self.slots: list[Slot] = []
        self.ring = self.slots

    @property
    def acknowledged(self) -> int:
        return self.sent - self.n_slots + self.credits

    def slot(self) -> Slot:
        return Slot()

    def fill(self, message: Message) -> Any:
        """Fill the next slot of the peer's ring, which is free, with the next part of a message."""
        at = self.sent % self.n_slots
        if at == len(self.slots):
            self.slots.append(self.slot())
        slot = self.slots[at]
        slot.fill(message, self.sent, self.slot_bytes)
        self.sent += 1
        self.credits -= 1
        return slot

    def held(self, number: int) -> Any:
        """Get the slot of this program's ring with the `number`-th part."""
        return self.ring[number % self.n_slots]

    def release(self, slot: Slot) -> int:
        """Free a slot; return the number of slots that leave the ring with it: a ring frees its slots in order."""
        slot.free = True
        before = self.released
        while self.released < self.arrived:
            first: Slot = self.held(self.released)
            if not first.free:
                break
            first.message = None  # type: ignore[assignment]
            self.released += 1
        return self.released - before

    def describe(self) -> str:
        if self.n_slots == UNLIMITED:
            return f"{self.name}: {self.arrived - self.released} messages"
        held = [self.held(number) for number in range(self.released, self.arrived)]
        waiting = sum(message.parts - message.left for message in self.outbox)
        text = (
            f"{self.name}: {len(held)} of {self.n_slots} slots hold data (head {self.released}, tail "
            f"{self.arrived}); to {self.peer_name} {self.credits} of {self.n_slots} credits (head "
            f"{self.acknowledged}, tail {self.sent}), {waiting} parts wait for one"
        )
        if len([slot for slot in held if slot.message.is_tile]) == self.n_slots:
            text += "; every slot holds a tile: drop it (del) before the next message"
        return text


class Message(Job):
    """A send in flight: `left` of its `parts` have a slot, from number `first` on; `arrived` of them are there.

    `receive` has claimed it. Its bytes are `data`, or computed from `array`.
    """

    def opens(self, pe: Any, command: Send, program: PeProgram | None, queue: Queue) -> None:
        self.begins(pe, command, program)
        self.queue: Any = queue
        self.nbytes = command.nbytes
        self.parts = (command.nbytes + queue.slot_bytes - 1) // queue.slot_bytes
        self.left = self.arrived = self.first = 0
        self.start_ps = -1
        self.array: np.ndarray | None = None
        self.data: np.ndarray | None = None
        self.dtype: DType | None = command.dtype
        self.receive: Receive | None = None

    @property
    def is_tile(self) -> bool:
        """Whether its receive is complete; a filled slot is then a tile used in place."""
        return self.receive is not None and self.receive.message is None

    def enter(self) -> None:
        self.queue.outbox.append(self)
        self.go()

    def go(self) -> None:
        self.pe.ipcq.progress(self.queue)

    def take_value(self) -> None:
        """Capture the value to send; bytes from memory are read later."""
        if self.command.inputs:
            self.array = self.command.inputs[0].array
        else:
            self.data = np.zeros(self.nbytes, np.uint8)

    def bytes(self) -> np.ndarray | None:
        """Its bytes (uint8); None in a run without data."""
        if self.data is None and self.array is not None:
            assert self.command.compute is not None
            self.data = self.command.compute(self.array)
        return self.data


class Receive(Job):
    """A receive in flight, from `queue` or, until it has claimed a `message`, from any of `queues`.

    `asked` parts of its message have been requested, `left` have not been received.
    """

    def opens(
        self, pe: Any, command: Recv, program: PeProgram | None, queue: Queue | None, queues: tuple[Any, ...]
    ) -> None:
        self.begins(pe, command, program)
        self.queue: Any = queue
        self.queues = queues
        self.message: Message | None = None
        self.asked = self.left = 0
        self.loaded = True

    def enter(self) -> None:
        self.pe.ipcq.inbox.waiting.append(self)
        if not self.waiting:
            self.go()

    def go(self) -> None:
        self.pe.ipcq.post(self)

    def next_part(self) -> Any:
        """Request the next part that is in its slot; None if there is none."""
        message = self.message
        assert message is not None
        if self.asked == message.arrived:
            return None
        self.asked += 1
        return self.queue.held(message.first + self.asked - 1)

    def result(self) -> np.ndarray | None:
        """Pass the array on if the types agree, without a round trip through bytes."""
        message, command = self.message, self.command
        assert message is not None
        assert command.output is not None
        if message.array is not None and message.dtype is command.output.dtype:
            return message.array.reshape(command.output.shape)
        return None if command.compute is None else command.compute(message.bytes())

    def complete(self) -> None:
        """Drop the message, which refers to this."""
        self.message = None

    def describe(self) -> str:
        queues = self.queues or (self.queue,)
        names = " or ".join(queue.name for queue in queues)
        peers = ", ".join(queue.peer_name for queue in queues)
        return f"recv of {self.command.nbytes} B from {names} ({peers})"


class Inbox:
    """Receives of one PE: `waiting` are those without a message, in program order.

    `unclaimed` counts the messages without a receive. `undecided`: a receive from any direction has to wait until all
    arrivals of this instant are known.
    """

    def __init__(self) -> None:
        self.waiting: list[Receive] = []
        self.unclaimed = self._pass = 0
        self.undecided = False
        self._served: Queue | None = None

    def message(self, pe: Any, command: Send, program: PeProgram | None, queues: Mapping[str, Any]) -> Message:
        queue = self._named(queues, command.direction)
        message = Message.__new__(Message)
        message.opens(pe, command, program, queue)
        return message

    def receive(self, pe: Any, command: Recv, program: PeProgram | None, queues: Mapping[str, Any]) -> Receive:
        queue: Any = None
        among: tuple[Any, ...] = ()
        if command.direction is None and queues:
            among = tuple(queues.values())
            first: Queue = among[0]
        else:
            queue = first = self._named(queues, command.direction)
        n_slots, slot_bytes = first.n_slots, first.slot_bytes
        if not command.consume and command.nbytes > n_slots * slot_bytes:
            raise KernelError(
                f"recv_no_consume of {command.nbytes} B, where a ring holds {n_slots} x {slot_bytes} B; a message that "
                "never fits there as a whole cannot be looked at"
            )
        receive = Receive.__new__(Receive)
        receive.opens(pe, command, program, queue, among)
        return receive

    def _named(self, queues: Mapping[str, Any], name: str | None) -> Any:
        queue = None if name is None else queues.get(name)
        if queue is None:
            known = hint(str(name), queues) if queues else "it has none: its launch has no queues, or no other program"
            raise IpcqInvalidDirection(f"no queue {name!r}; {known}")
        return queue

    def arrive(self, queue: Queue, slot: Slot, order: int) -> None:
        slot.order = order
        message = slot.message
        queue.ring = message.queue.slots
        queue.arrived += 1
        message.arrived += 1
        if not slot.index:
            self.unclaimed += 1

    def match(self, now: int, settled: bool) -> Receive | None:
        """Match the next ready receive with its message, in order within each queue; return it.

        Receives from any direction take the earliest message once the arrivals of this instant are `settled`.
        """
        waiting = self.waiting
        self.undecided = False
        self._pass += 1
        if not self.unclaimed:
            return None
        for at in range(len(waiting)):
            receive = waiting[at]
            if not receive.waiting and receive.ready <= now and not self._is_passed(receive):
                queue = self._earliest(receive.queues) if receive.queues else receive.queue
                if queue is not None and queue.taken < queue.arrived:
                    if receive.queues and not settled:
                        self.undecided = True
                    elif self._claim(receive, queue):
                        del waiting[at]
                        return receive
            self._passes(receive)
        return None

    def _is_passed(self, receive: Receive) -> bool:
        """Whether an earlier receive waits for one of its queues."""
        for queue in receive.queues:
            if queue.passed == self._pass:
                return True
        return not receive.queues and receive.queue.passed == self._pass

    def _passes(self, receive: Receive) -> None:
        for queue in receive.queues:
            queue.passed = self._pass
        if not receive.queues:
            receive.queue.passed = self._pass

    def _earliest(self, queues: tuple[Queue, ...]) -> Queue | None:
        """Find the queue with the earliest message; on ties, round-robin after the queue served last."""
        after = queues.index(self._served) + 1 if self._served in queues else 0
        in_turn = [queue for queue in queues[after:] + queues[:after] if queue.taken < queue.arrived]
        return min(in_turn, key=lambda queue: queue.held(queue.taken).order) if in_turn else None

    def _claim(self, receive: Receive, queue: Queue) -> bool:
        """Match a receive with the first message of a queue; a look (not `consume`) needs all of its parts."""
        command = receive.command
        message = queue.held(queue.taken).message
        if message.nbytes != command.nbytes:
            who = "" if receive.program is None else f"{receive.program.location()}: "
            raise KernelError(
                f"{who}recv of {command.nbytes} B from {queue.name!r}, where a message of "
                f"{message.nbytes} B is next; receive with the shape and dtype (f16 unless stated) that were sent"
            )
        if not command.consume and message.arrived < message.parts:
            return False
        self._served = queue
        receive.queue, receive.message, receive.left = queue, message, message.parts
        command.came_from = queue.name
        if command.consume:
            self.unclaimed -= 1
            queue.taken += message.parts
            message.receive = receive
        return True


def check_read(ring: Any, queue: Any, parts: int, receiver: str, sender: str) -> None:
    """Refuse `parts` that a program left unread in a ring when it ended: the next collective would receive them."""
    if parts:
        sizes, number = [], ring.taken
        while parts > 0 and number < ring.arrived:
            message = ring.held(number).message
            sizes.append(f"{message.nbytes} B")
            number += message.parts
            parts -= message.parts
        raise KernelError(
            f"{receiver} ended without reading what {sender} sent it over {queue.name!r} ({ring.name!r} where it "
            f"arrives): {', '.join(sizes)}; receive every message that is sent, or the next collective gets it"
        )
