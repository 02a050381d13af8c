"""Queues between PEs: a direction's two rings of slots, what lies in them, and the commands that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.components.command import Recv, Send
from kernbench.components.jobs import Job
from kernbench.dtypes import DType
from kernbench.sim_engine.host import QueueSpec
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_cpu import Program
    from kernbench.components.builtin.pe_ipcq import PeIpcq
    from kernbench.components.pe import Pe


class Slot:
    """Part `index` of a message: on its way to slot `number` of a ring, at `pa`; there since `since_ps`.

    `queue` is the receiver's, from the arrival on. `credit` is the key of the credit it waited for, else -1.
    """

    __slots__ = (
        "arrived_ps", "back", "by", "credit", "credit_key", "credit_ps", "free", "index", "key", "loaded", "message",
        "nbytes", "number", "pa", "queue", "read_ps", "route", "sent_ps", "since_ps",
    )  # fmt: skip

    def __init__(self, message: Message, index: int, number: int, pa: int, nbytes: int) -> None:
        self.message, self.index, self.number, self.pa, self.nbytes = message, index, number, pa, nbytes
        # The ring that it is in, the way of its part and of its credit, and the slot whose release sent that.
        self.queue: Any = None
        self.route: Any = None
        self.back: Any = None
        self.by: Slot | None = None
        self.credit_key = self.credit_ps = -1
        self.sent_ps = self.arrived_ps = self.since_ps = self.read_ps = self.credit = self.key = -1
        self.loaded = self.free = False


class Queue:
    """One direction of a PE: the ring that its peer fills, and the peer's ring, which it fills while it has credits.

    `credits` are the free slots of the peer's ring. Heads and tails count slots since the installation: `sent` and
    `acknowledged` of the peer's ring, `arrived` and `released` of its own; `taken` counts those of messages that
    receives have claimed, arrived or not. Parts go
    `way` where rings lie in TCM, credits for its own ring go `way_back`.
    """

    __slots__ = (
        "arrived",
        "credit_bytes",
        "credit_key",
        "credits",
        "held",
        "in_tcm",
        "inbox",
        "leaving",
        "n_slots",
        "name",
        "outbox",
        "owner",
        "peer",
        "peer_pa",
        "released",
        "ring_pa",
        "sent",
        "slot_bytes",
        "spec",
        "taken",
        "wake_ps",
        "way",
        "way_back",
        "written",
    )  # fmt: skip

    def __init__(self, owner: PeIpcq, spec: QueueSpec) -> None:
        self.owner, self.spec, self.name = owner, spec, spec.direction
        mine, theirs, fabric = owner.pe.dma.node_id, naming.pe_dma(*spec.peer), owner.fabric
        self.n_slots, self.slot_bytes, self.in_tcm = spec.n_slots, spec.slot_bytes, spec.kind == "tcm"
        self.peer_pa, self.ring_pa, self.credit_bytes = spec.peer_pa, spec.ring_pa, spec.credit_bytes
        self.peer: PeIpcq = owner.engine.part(naming.pe_cpu(*spec.peer)).pe.ipcq
        self.way, self.way_back = fabric.route(mine, theirs), fabric.back(fabric.route(theirs, mine))
        self.credits = spec.n_slots
        self.sent = self.arrived = self.released = self.taken = 0
        self.outbox: list[Message] = []
        self.leaving: list[Slot] = []
        self.inbox: list[Message] = []
        self.held: list[Slot] = []
        self.written: dict[int, Slot] = {}
        self.wake_ps = self.credit_key = -1

    @property
    def acknowledged(self) -> int:
        """How many slots of the peer's ring have come free."""
        return self.sent - self.spec.n_slots + self.credits

    def describe(self) -> str:
        """Return the state of both rings in words."""
        spec = self.spec
        waiting = sum(message.parts - message.left for message in self.outbox)
        return (
            f"{self.name}: {self.arrived - self.released} of {spec.n_slots} slots hold data "
            f"(head {self.released}, tail {self.arrived}); to {naming.pe(*spec.peer)} {self.credits} of "
            f"{spec.n_slots} credits (head {self.acknowledged}, tail {self.sent}), {waiting} parts wait for one"
        )


class Message(Job):
    """A send under way: `left` of its `parts` have a slot, `landed` are in it; it is complete with the last of these.

    `slots` hold the parts that have come, in order; `claimed` is the receive that takes it. Its bytes are `data`, or
    what the command makes of `array`.
    """

    __slots__ = (
        "array", "arrived", "claimed", "data", "dtype", "left", "nbytes", "parts", "queue", "slots", "start_ps",
    )  # fmt: skip

    def __init__(self, pe: Pe, command: Send, program: Program | None, queue: Queue) -> None:
        self.begins(pe, command, program)
        self.queue, self.nbytes = queue, command.nbytes
        self.parts = (command.nbytes + queue.slot_bytes - 1) // queue.slot_bytes
        self.left = self.arrived = 0
        self.start_ps = -1
        self.array: np.ndarray | None = None
        self.data: np.ndarray | None = None
        self.dtype: DType | None = None
        self.slots: list[Slot] = []
        self.claimed: RecvJob | None = None

    def enter(self) -> None:
        """Queue behind what is sent the same way."""
        self.queue.outbox.append(self)
        self.go()

    def go(self) -> None:
        """Leave, if it is the first that way."""
        self.queue.owner.pump(self.queue)

    def begin(self, t: int) -> None:
        """Take the value that is sent, at `t`."""
        self.start_ps = t
        if not self.pe.data:
            return
        if self.command.inputs:
            value = self.command.inputs[0]
            self.array, self.dtype = value.array, value.dtype
        else:
            self.data = np.zeros(self.nbytes, np.uint8)

    def bytes(self) -> np.ndarray | None:
        """Return its bytes (uint8); None in a run without data."""
        if self.data is None and self.array is not None:
            assert self.command.compute is not None
            self.data = self.command.compute(self.array)
        return self.data


class RecvJob(Job):
    """A receive under way: `queues` are those it may take from, `queue` is the one it has taken from.

    `asked` parts of its message have been asked for, `left` have not been taken.
    """

    __slots__ = ("asked", "left", "message", "queue", "queues", "receiver")

    def __init__(self, pe: Pe, command: Recv, program: Program | None, queues: tuple[Queue, ...]) -> None:
        self.begins(pe, command, program)
        self.queues, self.receiver = queues, pe.ipcq.receiver
        self.queue: Queue | None = None
        self.message: Message | None = None
        self.asked = self.left = 0
        self.loaded = True
        first = queues[0]
        # A message of one slot in TCM is a tile where it lies.
        self.stays = command.consume and first.in_tcm and command.nbytes <= first.slot_bytes

    def enter(self) -> None:
        """Queue behind the receives before it."""
        receiver = self.receiver
        receiver.waiting.append(self)
        if not self.waiting:
            receiver.post(self)

    def go(self) -> None:
        """Look for a message."""
        self.receiver.post(self)

    def result(self) -> np.ndarray | None:
        """Return what the message carries, as the output has it."""
        message, command = self.message, self.command
        assert message is not None
        assert command.output is not None
        if message.array is not None and message.dtype is command.output.dtype:
            return message.array.reshape(command.output.shape)
        return None if command.compute is None else command.compute(message.bytes())
