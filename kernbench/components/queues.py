"""Queues between PEs: a direction's two rings of slots, what lies in them, and the commands that use them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.components.command import Recv, Send
from kernbench.components.jobs import Job
from kernbench.sim_engine.install import QueueSpec
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_ipcq import PeIpcq
    from kernbench.components.pe import Pe
    from kernbench.sim_engine.link import Route


class Message:
    """What one send carries. `slots` hold the parts that have come, in order; `claimed` is the receive that takes it.

    Its bytes are `data`, or what `pack` makes of `array` (a tile of `dtype`).
    """

    __slots__ = ("array", "claimed", "command", "data", "dtype", "nbytes", "pack", "parts", "slots")

    def __init__(self, command: int, nbytes: int, parts: int) -> None:
        self.command, self.nbytes, self.parts = command, nbytes, parts
        self.array: np.ndarray | None = None
        self.data: np.ndarray | None = None
        self.dtype: Any = None
        self.pack: Any = None
        self.slots: list[Slot] = []
        self.claimed: RecvJob | None = None

    def bytes(self) -> np.ndarray | None:
        """Return its bytes (uint8); None in a run without data."""
        if self.data is None and self.array is not None:
            self.data = self.pack(self.array)
        return self.data


class Slot:
    """Part `index` of a message: on its way to slot `number` of a ring, at `pa`; there since `since_ps`.

    `queue` is the receiver's, from the arrival on. `credit` is the key of the credit it waited for, else -1.
    """

    __slots__ = (
        "arrived_ps", "credit", "free", "index", "job", "key", "loaded", "nbytes", "number", "pa", "queue", "read_ps",
        "route", "sent_ps", "since_ps",
    )  # fmt: skip

    def __init__(self, job: SendJob, index: int, number: int, pa: int, nbytes: int) -> None:
        self.job, self.index, self.number, self.pa, self.nbytes = job, index, number, pa, nbytes
        self.queue: Queue
        self.route: Route
        self.sent_ps = self.arrived_ps = self.since_ps = self.read_ps = self.credit = self.key = -1
        self.loaded = self.free = False


class Queue:
    """One direction of a PE: the ring that its peer fills, and the peer's ring, which it fills while it has credits.

    Heads and tails count slots since the installation: `sent` and `acknowledged` of the peer's ring, `arrived`
    and `released` of its own; `taken` counts those of messages that receives have claimed, arrived or not. Parts go
    `way` where rings lie in TCM, credits for its own ring go `way_back`.
    """

    __slots__ = (
        "acknowledged",
        "arrived",
        "credit_key",
        "held",
        "inbox",
        "leaving",
        "name",
        "outbox",
        "owner",
        "peer",
        "released",
        "sent",
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
        self.peer: PeIpcq = owner.engine.part(naming.pe_cpu(*spec.peer)).pe.ipcq
        self.way, self.way_back = fabric.route(mine, theirs), fabric.back(fabric.route(theirs, mine))
        self.sent = self.acknowledged = self.arrived = self.released = self.taken = 0
        self.outbox: deque[SendJob] = deque()
        self.leaving: deque[Slot] = deque()
        self.inbox: deque[Message] = deque()
        self.held: deque[Slot] = deque()
        self.written: dict[int, Slot] = {}
        self.wake_ps = self.credit_key = -1

    @property
    def credits(self) -> int:
        """How many slots of the peer's ring are free."""
        return self.spec.n_slots + self.acknowledged - self.sent

    def describe(self) -> str:
        """Return the state of both rings in words."""
        spec = self.spec
        waiting = sum(job.message.parts - job.left for job in self.outbox)
        return (
            f"{self.name}: {self.arrived - self.released} of {spec.n_slots} slots hold data "
            f"(head {self.released}, tail {self.arrived}); to {naming.pe(*spec.peer)} {self.credits} of "
            f"{spec.n_slots} credits (head {self.acknowledged}, tail {self.sent}), {waiting} parts wait for one"
        )


class SendJob(Job):
    """A send under way: `left` parts have a slot, `landed` are in it; it is complete with the last of these."""

    __slots__ = ("landed", "left", "message", "queue", "start_ps")

    def __init__(self, pe: Pe, command: Send, command_id: int, issued: int, queue: Queue) -> None:
        super().__init__(pe, command, command_id, issued)
        self.queue = queue
        self.message = Message(command_id, command.nbytes, -(-command.nbytes // queue.spec.slot_bytes))
        self.left = self.landed = 0
        self.start_ps = -1

    def part_bytes(self, i: int) -> int:
        """Return the bytes of part `i`."""
        slot = self.queue.spec.slot_bytes
        return min(slot, self.message.nbytes - i * slot)

    def take(self) -> None:
        """Take the value that is sent, when the send begins."""
        command, message = self.command, self.message
        if not self.pe.engine.data:
            return
        if command.inputs:
            value = command.inputs[0]
            message.array, message.dtype, message.pack = value.array, value.dtype, command.compute
        else:
            message.data = np.zeros(message.nbytes, np.uint8)

    def _released(self, t: int) -> None:
        self.ready = max(self.ready, t)
        self.waiting -= 1
        if not self.waiting:
            self.queue.owner.pump(self.queue)


class RecvJob(Job):
    """A receive under way: `queues` are those it may take from.

    `asked` parts of its message have been asked for, `left` have not been taken.
    """

    __slots__ = ("asked", "left", "message", "queue", "queues")

    def __init__(
        self, pe: Pe, command: Recv, command_id: int, issued: int, queues: tuple[Queue, ...], queue: Queue | None
    ) -> None:
        super().__init__(pe, command, command_id, issued)
        self.queues, self.queue = queues, queue
        self.message: Message | None = None
        self.asked = self.left = 0

    def finish(self, t: int, data: Any = None) -> None:
        """Complete the command at `t`, its output being what the message carries."""
        command, message = self.command, self.message
        output = command.output
        if output is not None and message is not None and self.pe.engine.data:
            if message.array is not None and message.dtype == output.dtype:
                output.array = message.array.reshape(output.shape)
                command.compute = None
            else:
                data = message.bytes()
        super().finish(t, data)

    def _released(self, t: int) -> None:
        self.ready = max(self.ready, t)
        self.waiting -= 1
        if not self.waiting:
            self.pe.ipcq.receiver.post(self)
