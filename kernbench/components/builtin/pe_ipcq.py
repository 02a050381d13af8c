"""Queues between PEs: one ring of slots for each direction, filled by the peer, with a credit for each free slot.

A message of more than a slot travels in parts of a slot each. A part leaves when a credit is there, and is received
when its last flit has arrived and been written to its slot: no other notice is sent. Slots come free in their order;
each sends a credit back. Slots in TCM are written and read through ports of TCM's bandwidth, which they do not
share with tiles (its banks are not modelled); slots in SRAM and HBM are accesses of these, with a set-up each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernbench.analysis.records import FETCH
from kernbench.components.access import requests
from kernbench.components.command import Recv, Run, Send
from kernbench.components.queues import Message, Queue, RecvJob, Slot
from kernbench.components.receiver import Receiver
from kernbench.errors import AllocationError, IpcqInvalidDirection, KernbenchError, KernelError
from kernbench.registry import hint
from kernbench.sim_engine.host import QueueSpec
from kernbench.sim_engine.network import QUEUE, Arbiter
from kernbench.sim_engine.observer import QueueEvent
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Callee, Transaction
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_cpu import Program
    from kernbench.components.pe import Pe

_SEND, _RECV = KIND["send"], KIND["recv"]


_PUMP, _IN_SLOT, _RELEASE = range(3)


class PeIpcq(Callee):
    """The queue engine of a PE.

    `sets` holds what each installation brought, by its key: queues by direction.
    """

    def __init__(self, pe: Pe, node_id: str) -> None:
        self.pe, self.engine, self.name = pe, pe.engine, node_id
        self.core, self.fabric, self.log = pe.engine.env.core, pe.engine.fabric, pe.engine.log
        self.observers = pe.engine.observers
        self.component = self.log.component(node_id)
        self.sets: dict[str, dict[str, Queue]] = {}
        self.receiver = Receiver(self)
        self._ports = pe.fetch_store
        self._write_free = 0
        self._by_ring: dict[int, Queue] = {}

    # -- installation

    def install(self, key: str, specs: Sequence[QueueSpec]) -> None:
        """Set up the queues of one installation.

        Raises
        ------
        AllocationError
            If the key is known already, a direction stands twice, or rings overlap.
        """
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
            first = self.fabric.route(self.pe.dma.node_id, naming.pe_dma(*spec.peer)).links[0]
            self.pe.dma.arbiter = Arbiter(self.fabric.core, first, chunk_bytes)
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
                f"{spec.slot_bytes} B; a message that never lies there whole cannot be looked at"
            )
        return RecvJob(self.pe, command, program, among)

    def _unknown(self, queues: dict[str, Queue], name: str | None) -> IpcqInvalidDirection:
        known = hint(str(name), queues) if queues else "it has none: its launch has no queues, or no other program"
        return IpcqInvalidDirection(f"{self.name}: no queue {name!r}; {known}")

    # -- sending

    def pump(self, queue: Queue) -> None:
        """Let leave what can leave."""
        now, outbox = self.core.now, queue.outbox
        while outbox:
            message = outbox[0]
            if message.waiting:
                return
            if message.ready > now:
                if queue.wake_ps != message.ready:
                    queue.wake_ps = message.ready
                    self.core.wake_at(message.ready, self, _PUMP, queue)
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
        wanted = requests(self.pe, (Run(va, slot.nbytes, slot.nbytes),))
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
        """Go on at a time that has come."""
        if what == _IN_SLOT:
            self._in_slot(which)
        elif what == _PUMP:
            self.pump(which)
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
            raise KernbenchError(f"{self.name}: a part arrived for {ring_pa:#x}, which lies in none of its rings")
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
            self.log.part(slot)
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
            self.log.credit(first.back, first.credit_ps, self.core.now, queue.spec.credit_bytes, slot, key)
        if queue.outbox:
            self.pump(queue)

    # -- what is seen from outside

    def tell(self, what: str, queue: Queue, nbytes: int) -> None:
        """Tell observers of a step of a message."""
        for observer in self.observers:
            observer.queue(
                QueueEvent(self.engine.now_ns, what, self.pe.name, queue.name, naming.pe(*queue.spec.peer), nbytes)
            )
