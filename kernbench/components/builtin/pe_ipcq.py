"""Queues between PEs: one ring of slots for each direction, filled by the peer, with a credit for each free slot.

A message of more than a slot travels in parts of a slot each. A part leaves when a credit is there, and is received
when its last flit has arrived and been written to its slot: no other notice is sent. Slots come free in their order;
each sends a credit back. Slots in TCM are written and read through ports of TCM's bandwidth, which they do not
share with tiles (its banks are not modelled); slots in SRAM and HBM are accesses of these, with a set-up each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kernbench.analysis.records import CREDIT, FETCH, PART
from kernbench.components.command import Recv, Run, Send
from kernbench.components.pe import Job
from kernbench.config.schema import PeIpcqConfig
from kernbench.dtypes import DType
from kernbench.errors import AllocationError, IpcqInvalidDirection, KernbenchError, KernelError
from kernbench.registry import hint
from kernbench.sim_engine.host_requests import QueueSpec
from kernbench.sim_engine.network import QUEUE, Arbiter
from kernbench.sim_engine.observer import QueueEvent
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transaction import Callee, Transaction
from kernbench.topology import naming
from kernbench.units import ns_to_ps

if TYPE_CHECKING:
    from kernbench.components.pe import Pe, Program


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
    `acknowledged` of the peer's ring, `arrived` and `released` of this PE's; `taken` counts those of messages that
    receives have claimed, arrived or not. Parts go
    `way` where rings lie in TCM, credits for its own ring go `way_back`.
    """

    __slots__ = (
        "arrived", "credit_bytes", "credit_key", "credits", "held", "in_tcm", "inbox", "leaving", "n_slots", "name",
        "outbox", "owner", "peer", "peer_pa", "released", "ring_pa", "sent", "slot_bytes", "spec", "taken",
        "wake_ps", "way", "way_back", "written",
    )  # fmt: skip

    def __init__(self, owner: PeIpcq, spec: QueueSpec) -> None:
        self.owner, self.spec, self.name = owner, spec, spec.direction
        mine, theirs, network = owner.pe.dma.node_id, naming.pe_dma(*spec.peer), owner.network
        self.n_slots, self.slot_bytes, self.in_tcm = spec.n_slots, spec.slot_bytes, spec.kind == "tcm"
        self.peer_pa, self.ring_pa, self.credit_bytes = spec.peer_pa, spec.ring_pa, spec.credit_bytes
        self.peer = cast("PeIpcq", owner.engine.pe(*spec.peer).ipcq)
        self.way, self.way_back = network.route(mine, theirs), network.back(network.route(theirs, mine))
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
        self.queue.owner.progress(self.queue)

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
        # A message of one slot in TCM is used in place.
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


_RECV = KIND["recv"]


@lru_cache(maxsize=16)
def _setup_ps(config: PeIpcqConfig) -> dict[str, int]:
    """Return what an access to a slot costs on top, by the kind of memory; one table for all PEs."""
    return {"tcm": 0, "sram": ns_to_ps(config.sram_setup_ns), "hbm": ns_to_ps(config.hbm_setup_ns)}


class Receiver(Callee):
    """The receives of one PE; `waiting` are those that have no message yet, in program order.

    `unclaimed` counts the messages that have no receive yet.
    """

    def __init__(self, ipcq: PeIpcq) -> None:
        pe = ipcq.pe
        self.ipcq, self.pe, self.engine = ipcq, pe, pe.engine
        self.core, self.log = pe.engine.env.core, pe.engine.log
        self.setup_ps = _setup_ps(pe.config.pe_ipcq)
        self.waiting: list[RecvJob] = []
        self.unclaimed = 0
        self._ports = pe.fetch_store
        self._read_free = 0
        self._served: Queue | None = None
        self._looking = -1

    def post(self, job: RecvJob) -> None:
        """Let a receive, which depends on nothing any more, take its message as soon as it can."""
        now = self.core.now
        if job.ready > now:
            self.core.wake_at(job.ready, self, 0, job)
        else:
            self.look(job)

    def woken(self, what: int, job: Any) -> None:
        """Look for a message for a receive whose time has come."""
        self.look(job)

    def look(self, _: object) -> None:
        """Match receives and messages; of one queue, in the order of the receives."""
        if not self.unclaimed:
            return
        now = self.core.now
        if len(self.waiting) == 1:
            job = self.waiting[0]
            if len(job.queues) == 1:
                first = job.queues[0]
                if first.inbox and not job.waiting and job.ready <= now:
                    self._claim(job, first)
                return
        passed: set[Queue] = set()
        for job in tuple(self.waiting):
            queues, able = job.queues, not job.waiting and job.ready <= now
            first = queues[0]
            if len(queues) > 1:
                if able and passed.isdisjoint(queues) and [q for q in queues if q.inbox] and self._looking != now:
                    self._looking = now
                    self.core.call_last(now, self._look_at_any, None)
                passed.update(queues)
            elif able and first.inbox and first not in passed:
                self._claim(job, first)
                if not self.unclaimed:
                    return
            else:
                passed.add(first)

    def _look_at_any(self, _: object) -> None:
        """Match receives from any direction, when all arrivals of this instant are known."""
        self._looking = -1
        now = self.core.now
        passed: set[Queue] = set()
        for job in list(self.waiting):
            queues = job.queues
            if not passed.isdisjoint(queues) or job.waiting or job.ready > now:
                passed.update(queues)
                continue
            after = queues.index(self._served) + 1 if self._served in queues else 0
            in_turn = [queue for queue in queues[after:] + queues[:after] if queue.inbox]
            if not in_turn:
                passed.update(queues)
                continue
            self._claim(job, min(in_turn, key=lambda queue: queue.inbox[0].slots[0].since_ps))

    def _claim(self, job: RecvJob, queue: Queue) -> None:
        """Give a receive the first message of a queue."""
        command, message = job.command, queue.inbox[0]
        if message.nbytes != command.nbytes:
            who = self.pe.name if job.program is None else job.program.location()
            raise KernelError(
                f"{who}: recv of {command.nbytes} B from {queue.name!r}, where a message of {message.nbytes} B is "
                "next; receive with the shape and dtype (f16 unless stated) that were sent"
            )
        if not command.consume and len(message.slots) < message.parts:
            return
        self.waiting.remove(job)
        self._served = queue
        job.queue, job.message, job.left = queue, message, message.parts
        command.came_from = queue.name
        if command.consume:
            queue.inbox.pop(0)
            self.unclaimed -= 1
            queue.taken += message.parts
            message.claimed = job
        self.take(job)

    def take(self, job: RecvJob) -> None:
        """Read the parts that are in their slots and have not been asked for."""
        message, command = job.message, job.command
        assert message is not None
        now = self.core.now
        while job.asked < len(message.slots):
            slot = message.slots[job.asked]
            job.asked += 1
            slot.read_ps = now
            if not slot.queue.in_tcm:
                self.core.call_at(now + self.setup_ps[slot.queue.spec.kind], self._read, (job, slot))
                continue
            slot.read_ps = max(now, self._read_free)
            end = self._read_free = slot.read_ps + self._ports.fetch_ps(slot.nbytes)
            if message.parts == 1 and command.consume and command.output is not None:
                command.output.space = slot
                self._log_read(job, slot, end)
                self._received(job, end)
            else:
                self.core.call_at(end, self._copied, (job, slot))

    def _read(self, what: tuple[RecvJob, Slot]) -> None:
        """Read a slot in SRAM or HBM."""
        _, slot = what
        node_id, offset = self.engine.locate(slot.pa)
        self.pe.dma.port(node_id).read(Transaction(slot.nbytes, offset, lambda _: self._copied(what), None), QUEUE)

    def _copied(self, what: tuple[RecvJob, Slot]) -> None:
        """Continue with a part that is out of its slot: done, or written to its place in memory."""
        job, slot = what
        command = job.command
        if not command.runs:
            self._done(job, slot)
            return
        first = slot.index * slot.queue.spec.slot_bytes
        wanted = self.pe.requests((Run(command.runs[0].va + first, slot.nbytes, slot.nbytes),))
        data = job.message.bytes() if job.message is not None and self.engine.data else None
        left = len(wanted)

        def written(_: Transaction) -> None:
            nonlocal left
            left -= 1
            if not left:
                self._done(job, slot)

        for request in wanted:
            txn = Transaction(request.nbytes, request.offset, written, None, None, request.pieces)
            if data is not None:
                at = first + request.at[0]
                txn.data = data[at : at + request.nbytes]
            self.pe.dma.port(request.node_id).write(txn, QUEUE)

    def _done(self, job: RecvJob, slot: Slot) -> None:
        command = job.command
        self._log_read(job, slot, self.core.now)
        if command.consume:
            self.ipcq.release(slot, self.core.now)
        job.left -= 1
        if not job.left:
            self._received(job, self.core.now)

    def _received(self, job: RecvJob, end: int) -> None:
        assert job.queue is not None
        assert job.message is not None
        if self.ipcq.observers:
            self.ipcq.tell("recv", job.queue, job.message.nbytes)
        if self.log.operation:
            self.log.after.append((job.id, job.message.id))
        job.finish(end)
        # Message, slots and jobs would keep each other alive.
        command = job.command
        if command.consume:
            job.message.slots.clear()
        job.message = None

    def _log_read(self, job: RecvJob, slot: Slot, end: int) -> None:
        """Enter what a receive did with one part: out of its slot, and to memory where it goes there."""
        if self.log.operation:
            self.log.row(slot.read_ps, end, self.ipcq.component, _RECV, job.id, slot.nbytes, 0, slot.index)

    def describe(self, key: str | None) -> list[str]:
        """Return the receives over an installation's queues that wait for a message, and since when, in words."""
        mine = self.ipcq.sets.get(key or "", {}).values()
        found = []
        for job in self.waiting:
            if job.queues[0] not in mine:
                continue
            peers = ", ".join(naming.pe(*queue.spec.peer) for queue in job.queues)
            names = " or ".join(queue.name for queue in job.queues)
            behind = ", behind earlier commands that use its memory" if job.waiting else ""
            since = f"since {job.ready / 1000:,.2f} ns{behind}"
            found.append(f"recv of {job.command.nbytes} B from {names} ({peers}) {since}")
        return found


_SEND, _RECV = KIND["send"], KIND["recv"]


_PROGRESS, _IN_SLOT, _RELEASE = range(3)


class PeIpcq(Callee):
    """The queue engine of a PE.

    `sets` holds what each installation brought, by its key: queues by direction.
    """

    def __init__(self, pe: Pe, node_id: str) -> None:
        self.pe, self.engine, self.name = pe, pe.engine, node_id
        self.core, self.network, self.log = pe.engine.env.core, pe.engine.network, pe.engine.log
        self.observers = pe.engine.observers
        self.component = self.log.component(node_id)
        self.sets: dict[str, dict[str, Queue]] = {}
        self.receiver = Receiver(self)
        self._ports = pe.fetch_store
        self._write_free = 0
        self._by_ring: dict[int, Queue] = {}

    # -- installation

    def install(self, key: str, specs: Sequence[QueueSpec]) -> None:
        """Set up the queues of one installation."""
        if key in self.sets:
            raise AllocationError(f"{self.name}: queues {key!r} are installed already; use them, or another key")
        queues: dict[str, Queue] = {}
        for spec in specs:
            if spec.direction in queues:
                raise AllocationError(f"{self.name}: {key!r} names direction {spec.direction!r} twice")
            start, end = spec.ring_pa, spec.ring_pa + spec.n_slots * spec.slot_bytes
            for other_start, other in self._by_ring.items():
                other_end = other_start + other.spec.n_slots * other.spec.slot_bytes
                if start < other_end and other_start < end:
                    raise AllocationError(
                        f"{self.name}: the ring of {spec.direction!r} [{start:#x}, {end:#x}) overlaps that of "
                        f"{other.name!r} [{other_start:#x}, {other_end:#x}); reserve each ring from the allocator"
                    )
            queues[spec.direction] = self._by_ring[start] = Queue(self, spec)
        for size in {spec.chunk_bytes for spec in specs}:
            self._arbitrate(specs[0], size, key)
        self.sets[key] = queues

    def _arbitrate(self, spec: QueueSpec, chunk_bytes: int, key: str) -> None:
        """Share the PE's link between queue and other traffic, by turns of one size."""
        arbiter = self.pe.dma.arbiter
        if arbiter is None:
            first = self.network.route(self.pe.dma.node_id, naming.pe_dma(*spec.peer)).links[0]
            self.pe.dma.arbiter = Arbiter(self.network.core, first, chunk_bytes)
        elif arbiter.nbytes != chunk_bytes:
            raise AllocationError(
                f"{self.name}: {key!r} asks for turns of {chunk_bytes} B (vc_chunk_size), but this PE's link takes "
                f"turns of {arbiter.nbytes} B already; give all algorithms of a session one size"
            )

    # -- commands

    def message(self, command: Send, program: Program | None) -> Message:
        """Return the job of a send."""
        queues = program.queues if program is not None else {}
        queue = queues.get(command.direction)
        if queue is None:
            raise self._unknown(queues, command.direction)
        return Message(self.pe, command, program, queue)

    def receive(self, command: Recv, program: Program | None) -> RecvJob:
        """Return the job of a receive."""
        queues, name = program.queues if program is not None else {}, command.direction
        among = tuple(queues.values()) if name is None else (queues[name],) if name in queues else ()
        if not among:
            raise self._unknown(queues, name)
        first = among[0]
        spec = first.spec
        if not command.consume and command.nbytes > spec.n_slots * spec.slot_bytes:
            raise KernelError(
                f"{self.name}: recv_no_consume of {command.nbytes} B, where a ring holds {spec.n_slots} x "
                f"{spec.slot_bytes} B; a message that never fits there as a whole cannot be looked at"
            )
        return RecvJob(self.pe, command, program, among)

    def _unknown(self, queues: dict[str, Queue], name: str | None) -> IpcqInvalidDirection:
        known = hint(str(name), queues) if queues else "it has none: its launch has no queues, or no other program"
        return IpcqInvalidDirection(f"{self.name}: no queue {name!r}; {known}")

    # -- sending

    def progress(self, queue: Queue) -> None:
        """Send what can be sent."""
        now, outbox = self.core.now, queue.outbox
        while outbox:
            message = outbox[0]
            if message.waiting:
                return
            if message.ready > now:
                if queue.wake_ps != message.ready:
                    queue.wake_ps = message.ready
                    self.core.wake_at(message.ready, self, _PROGRESS, queue)
                return
            if message.start_ps < 0:
                message.begin(now)
            while message.left < message.parts:
                if not queue.credits:
                    return
                self._give_slot(queue, message)
            outbox.pop(0)

    def _give_slot(self, queue: Queue, message: Message) -> None:
        """Give the next part of a message its slot; it leaves at once, or when it has been read from memory."""
        i = message.left
        at = queue.peer_pa + queue.sent % queue.n_slots * queue.slot_bytes
        slot = Slot(message, i, queue.sent, at, min(queue.slot_bytes, message.nbytes - i * queue.slot_bytes))
        slot.credit, queue.credit_key = queue.credit_key, -1
        message.left += 1
        queue.sent += 1
        queue.credits -= 1
        queue.leaving.append(slot)
        command = message.command
        if command.runs:
            self._load(slot, queue, command.runs[0].va + i * queue.slot_bytes)
        else:
            slot.loaded = True
            self._leave(queue)

    def _load(self, slot: Slot, queue: Queue, va: int) -> None:
        """Read a part from memory; it leaves when all of it is there."""
        wanted = self.pe.requests((Run(va, slot.nbytes, slot.nbytes),))
        left, asked = len(wanted), self.core.now
        first = slot.index * queue.spec.slot_bytes

        def read(txn: Transaction) -> None:
            nonlocal left
            data = slot.message.data
            if data is not None and txn.data is not None:
                at = first + txn.arg.at[0]
                data[at : at + txn.nbytes] = txn.data
            if self.log.operation:
                self.log.transfer(asked, self.core.now, txn, slot.message.id, slot.index, FETCH)
            left -= 1
            if not left:
                slot.loaded = True
                self._leave(queue)

        for request in wanted:
            txn = Transaction(request.nbytes, request.offset, read, request, None, request.pieces)
            self.pe.dma.port(request.node_id).read(txn, QUEUE)

    def _leave(self, queue: Queue) -> None:
        """Send the parts that are there, in order."""
        leaving = queue.leaving
        arbiter = self.pe.dma.arbiter
        assert arbiter is not None
        while leaving:
            slot = leaving[0]
            if not slot.loaded:
                return
            leaving.pop(0)
            slot.sent_ps = self.core.now
            if self.observers:
                self.tell("send", queue, slot.nbytes)
            if queue.in_tcm:
                slot.route = route = queue.way
                slot.key = route.key()
                arbiter.send(QUEUE, route, slot.nbytes, slot.key, queue.peer, slot)
            else:
                node_id, offset = self.engine.locate(slot.pa)
                txn = Transaction(slot.nbytes, offset, queue.peer.in_memory, slot)
                txn.posted = True
                port = self.pe.dma.port(node_id)
                port.write(txn, QUEUE)
                slot.key, slot.route = txn.key, port.route

    # -- arrivals

    def landed(self, slot: Slot) -> None:
        """Take what has crossed the links: a slot's credit if it is free, else its part."""
        if slot.free:
            self.credited(slot)
        else:
            self.reached(slot)

    def woken(self, what: int, which: Any) -> None:
        """Continue at the time asked for."""
        if what == _IN_SLOT:
            self._in_slot(which)
        elif what == _PROGRESS:
            self.progress(which)
        else:
            self._release(which)

    def reached(self, slot: Slot) -> None:
        """Take a part whose last flit has reached TCM: it goes through the write port to its slot."""
        now = slot.arrived_ps = self.core.now
        self._write_free = max(now, self._write_free) + self._ports.store_ps(slot.nbytes)
        self.core.wake_at(self._write_free, self, _IN_SLOT, slot)

    def in_memory(self, txn: Transaction) -> None:
        """Take a part that a memory has taken; the set-up of the access comes on top."""
        slot: Slot = txn.arg
        slot.arrived_ps = now = self.core.now
        self.core.call_at(now + self.receiver.setup_ps[slot.message.queue.spec.kind], self._in_slot, slot)

    def _in_slot(self, slot: Slot) -> None:
        """Take note of a part in its slot. A queue's parts count in their order, whatever its memory did."""
        ring_pa = slot.message.queue.peer_pa
        queue = self._by_ring.get(ring_pa)
        if queue is None:
            raise KernbenchError(f"{self.name}: a part arrived for {ring_pa:#x}, which is in none of its rings")
        slot.queue = queue
        written = queue.written
        if slot.number == queue.arrived:
            self._arrive(queue, slot)
            while queue.arrived in written:
                self._arrive(queue, written.pop(queue.arrived))
        else:
            written[slot.number] = slot
        if self.receiver.waiting:
            self.receiver.look(None)

    def _arrive(self, queue: Queue, slot: Slot) -> None:
        now, message = self.core.now, slot.message
        slot.since_ps = now
        queue.arrived += 1
        queue.held.append(slot)
        message.slots.append(slot)
        if not slot.index:
            queue.inbox.append(message)
            self.receiver.unclaimed += 1
        if self.observers:
            self.tell("arrive", queue, slot.nbytes)
        if self.log.operation:
            self.log.move(
                slot.sent_ps, now, slot.route, slot.nbytes, message.id, slot.index, PART, slot.key,
                slot.arrived_ps, -1, slot.credit, now,
            )  # fmt: skip
        message.arrived += 1
        if message.claimed is not None:
            self.receiver.take(message.claimed)
        if message.arrived == message.parts:
            if self.log.operation:
                sender = message.queue.owner.component
                self.log.row(message.start_ps, now, sender, _SEND, message.id, message.nbytes, 0, -1)
            message.finish(now)

    # -- credits

    def release(self, slot: Slot, t: int) -> None:
        """Free a slot at `t`."""
        if t > self.core.now:
            self.core.wake_at(t, self, _RELEASE, slot)
        else:
            self._release(slot)

    def _release(self, slot: Slot) -> None:
        slot.free = True
        queue, arbiter = slot.queue, self.pe.dma.arbiter
        assert arbiter is not None
        held = queue.held
        while held:
            first = held[0]
            if not first.free:
                return
            held.pop(0)
            queue.released += 1
            back = queue.way_back
            key = back.key()
            if self.observers:
                self.tell("credit", queue, queue.credit_bytes)
            first.credit_key, first.back, first.credit_ps = key, back, self.core.now
            first.by = slot
            arbiter.send(QUEUE, back, queue.credit_bytes, key, queue.peer, first)

    def credited(self, first: Slot) -> None:
        """Take the credit of a slot of a peer's ring."""
        key, queue, slot = first.credit_key, first.message.queue, first.by
        first.by = None
        if queue.outbox and not queue.credits:
            queue.credit_key = key
        queue.credits += 1
        if self.log.operation:
            assert slot is not None
            receive = slot.message.claimed
            command = receive.id if receive is not None else -1
            self.log.move(
                first.credit_ps, self.core.now, first.back, queue.credit_bytes, command, slot.index, CREDIT, key
            )
        if queue.outbox:
            self.progress(queue)

    # -- what is seen from outside

    def tell(self, what: str, queue: Queue, nbytes: int) -> None:
        """Tell observers of a step of a message."""
        for observer in self.observers:
            observer.queue(
                QueueEvent(self.engine.now_ns, what, self.pe.name, queue.name, naming.pe(*queue.spec.peer), nbytes)
            )
