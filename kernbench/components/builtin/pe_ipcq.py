"""Queues between PEs: one ring of slots for each direction, filled by the peer, with a credit for each free slot.

A message of more than a slot travels in parts of a slot each. A part leaves when a credit is there, and is received
when its last flit has arrived and been written to its slot: no other notice is sent. Slots come free in their order;
each sends a credit back. Slots in TCM are written and read through ports of TCM's bandwidth, which they do not
share with tiles (its banks are not modelled); slots in SRAM and HBM are accesses of these, with a set-up each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kernbench.analysis.causes import FETCH
from kernbench.components.access import requests
from kernbench.components.command import Command, Recv, Run, Send
from kernbench.components.queues import Queue, RecvJob, SendJob, Slot
from kernbench.components.receiver import Receiver
from kernbench.errors import AllocationError, IpcqInvalidDirection, KernbenchError, KernelError
from kernbench.registry import hint
from kernbench.sim_engine.install import QueueSpec
from kernbench.sim_engine.link import HELD
from kernbench.sim_engine.observer import QueueEvent
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Transaction
from kernbench.sim_engine.turns import QUEUE, Turns
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.components.pe import Pe
    from kernbench.sim_engine.link import Route

_SEND, _RECV = KIND["send"], KIND["recv"]


class PeIpcq:
    """The queue engine of a PE.

    `sets` holds what each installation brought, by its key: queues by direction.
    """

    def __init__(self, pe: Pe, node_id: str) -> None:
        self.pe, self.engine, self.name = pe, pe.engine, node_id
        self.clock, self.fabric, self.log = pe.engine.env, pe.engine.fabric, pe.engine.log
        self.component = self.log.component(node_id)
        self.sets: dict[str, dict[str, Queue]] = {}
        self.receiver = Receiver(self)
        self._write_ps = pe.fetch_store.store_ps
        self._write_free = 0
        self._by_peer_ring: dict[int, Queue] = {}
        self._rings: list[tuple[int, int, Queue]] = []

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
            for other_start, other_end, other in self._rings:
                if start < other_end and other_start < end:
                    raise AllocationError(
                        f"{self.name}: the ring of {spec.direction!r} [{start:#x}, {end:#x}) overlaps that of "
                        f"{other.name!r} [{other_start:#x}, {other_end:#x}); reserve each ring from the allocator"
                    )
            queue = queues[spec.direction] = Queue(self, spec)
            self._rings.append((start, end, queue))
            self._by_peer_ring[spec.peer_pa] = queue
        for size in {spec.chunk_bytes for spec in specs}:
            self._take_turns(specs[0], size, key)
        self.sets[key] = queues

    def _take_turns(self, spec: QueueSpec, chunk_bytes: int, key: str) -> None:
        """Share the PE's link between queue and other traffic, by turns of one size."""
        turns = self.pe.dma.turns
        if turns is None:
            first = self.fabric.route(self.pe.dma.node_id, naming.pe_dma(*spec.peer)).links[0]
            if first.free >= HELD:
                first.held((self.clock._now, 0, 0))
            self.pe.dma.turns = Turns(self.fabric, first, chunk_bytes)
        elif turns.nbytes != chunk_bytes:
            raise AllocationError(
                f"{self.name}: {key!r} asks for turns of {chunk_bytes} B (vc_chunk_size), but this PE's link takes "
                f"turns of {turns.nbytes} B already; give all algorithms of a session one size"
            )

    def direction(self, key: str | None, name: str | None) -> Queue | None:
        """Return the queue that a program means; None for any.

        Raises
        ------
        IpcqInvalidDirection
            If the program has no such queue.
        """
        queues = self.sets.get(key or "", {})
        if name is None and queues:
            return None
        if name is None or name not in queues:
            known = f"{hint(str(name), list(queues))}" if queues else "the launch has no queues; give it some"
            raise IpcqInvalidDirection(f"{self.name}: no queue {name!r}; {known}")
        return queues[name]

    def job(self, command: Command, command_id: int, issued: int, key: str | None) -> SendJob | RecvJob:
        """Return the job of a send or a receive."""
        assert isinstance(command, Send | Recv)
        queue = self.direction(key, command.direction)
        if isinstance(command, Send):
            assert queue is not None
            return SendJob(self.pe, command, command_id, issued, queue)
        queues = tuple(self.sets[key or ""].values())
        spec = queues[0].spec
        if not command.consume and command.nbytes > spec.n_slots * spec.slot_bytes:
            raise KernelError(
                f"{self.name}: recv_no_consume of {command.nbytes} B, where a ring holds {spec.n_slots} x "
                f"{spec.slot_bytes} B; a message that never lies there whole cannot be looked at"
            )
        return RecvJob(self.pe, command, command_id, issued, queues, queue)

    def keeps(self, command: Command, key: str | None) -> bool:
        """Return whether a received tile stays in its slot: a message of one slot, in TCM."""
        if not isinstance(command, Recv) or command.output is None or not command.consume:
            return False
        spec = next(iter(self.sets[key or ""].values())).spec
        return spec.kind == "tcm" and command.nbytes <= spec.slot_bytes

    def add(self, job: SendJob | RecvJob) -> None:
        """Take a job in program order."""
        if isinstance(job, SendJob):
            job.queue.outbox.append(job)
            self.pump(job.queue)
        else:
            self.receiver.add(job)

    # -- sending

    def pump(self, queue: Queue) -> None:
        """Let leave what can leave."""
        now, outbox = self.clock._now, queue.outbox
        while outbox:
            job = outbox[0]
            if job.waiting:
                return
            if job.ready > now:
                if queue.wake_ps != job.ready:
                    queue.wake_ps = job.ready
                    self.clock.call_at(job.ready, self.pump, queue)
                return
            if job.start_ps < 0:
                job.start_ps = now
                job.take()
            while job.left < job.message.parts:
                if not queue.credits:
                    return
                self._give_slot(queue, job)
            outbox.popleft()

    def _give_slot(self, queue: Queue, job: SendJob) -> None:
        """Give the next part of a send its slot; it leaves at once, or when it has been read from memory."""
        spec, i = queue.spec, job.left
        at = spec.peer_pa + queue.sent % spec.n_slots * spec.slot_bytes
        slot = Slot(job, i, queue.sent, at, job.part_bytes(i))
        slot.credit, queue.credit_key = queue.credit_key, -1
        job.left += 1
        queue.sent += 1
        queue.leaving.append(slot)
        command = job.command
        assert isinstance(command, Send)
        if command.runs:
            self._load(slot, queue, command.runs[0].va + i * spec.slot_bytes)
        else:
            slot.loaded = True
            self._leave(queue)

    def _load(self, slot: Slot, queue: Queue, va: int) -> None:
        """Read a part from memory; it leaves when all of it is there."""
        wanted = requests(self.pe, (Run(va, slot.nbytes, slot.nbytes),), tiled=False)
        left, asked = len(wanted), self.clock._now
        first = slot.index * queue.spec.slot_bytes

        def read(txn: Transaction) -> None:
            nonlocal left
            data = slot.job.message.data
            if data is not None and txn.data is not None:
                at = first + txn.arg.at[0]
                data[at : at + txn.nbytes] = txn.data
            if self.log.operation:
                self.log.transfer(asked, self.clock._now, txn, slot.job.id, slot.index, FETCH)
            left -= 1
            if not left:
                slot.loaded = True
                self._leave(queue)

        for request in wanted:
            txn = Transaction(request.nbytes, request.offset, read, request, None, request.pieces)
            self.pe.dma.port(request.node_id).read(txn, QUEUE)

    def _leave(self, queue: Queue) -> None:
        """Send the parts that are there, in order."""
        spec, leaving = queue.spec, queue.leaving
        turns = self.pe.dma.turns
        assert turns is not None
        while leaving and leaving[0].loaded:
            slot = leaving.popleft()
            slot.sent_ps = self.clock._now
            self.tell("send", queue, slot.nbytes)
            if spec.kind == "tcm":
                slot.route = route = queue.way
                slot.key = route.key()
                turns.send(QUEUE, route, slot.nbytes, slot.key, queue.peer.reached, slot)
            else:
                node_id, offset = self.engine.locate(slot.pa)
                txn = Transaction(slot.nbytes, offset, queue.peer.in_memory, slot)
                txn.posted = True
                port = self.pe.dma.port(node_id)
                port.write(txn, QUEUE)
                slot.key, slot.route = txn.key, port.route

    # -- arrivals

    def reached(self, slot: Slot) -> None:
        """Take a part whose last flit has reached TCM: it goes through the write port to its slot."""
        now = slot.arrived_ps = self.clock._now
        self._write_free = max(now, self._write_free) + self._write_ps(slot.nbytes)
        self.clock.call_at(self._write_free, self._in_slot, slot)

    def in_memory(self, txn: Transaction) -> None:
        """Take a part that a memory has taken; the set-up of the access comes on top."""
        slot: Slot = txn.arg
        slot.arrived_ps = now = self.clock._now
        self.clock.call_at(now + self.receiver.setup_ps[slot.job.queue.spec.kind], self._in_slot, slot)

    def _in_slot(self, slot: Slot) -> None:
        """Take note of a part in its slot. A queue's parts count in their order, whatever its memory did."""
        queue = self._ring_at(slot.pa)
        slot.queue = queue
        queue.written[slot.number] = slot
        while queue.arrived in queue.written:
            self._arrive(queue, queue.written.pop(queue.arrived))
        if self.receiver.waiting:
            self.receiver.look(None)

    def _ring_at(self, pa: int) -> Queue:
        for start, end, queue in self._rings:
            if start <= pa < end:
                return queue
        raise KernbenchError(f"{self.name}: a part arrived for {pa:#x}, which lies in none of its rings")

    def _arrive(self, queue: Queue, slot: Slot) -> None:
        now, job = self.clock._now, slot.job
        slot.since_ps = now
        queue.arrived += 1
        queue.held.append(slot)
        message = job.message
        message.slots.append(slot)
        if not slot.index:
            queue.inbox.append(message)
        self.tell("arrive", queue, slot.nbytes)
        if self.log.operation:
            self.log.part(slot)
        job.landed += 1
        if message.claimed is not None:
            self.receiver.take(message.claimed)
        if job.landed == message.parts:
            if self.log.operation:
                self.log.row(job.start_ps, now, job.queue.owner.component, _SEND, job.id, message.nbytes, 0, -1)
            job.finish(now)

    # -- credits

    def release(self, slot: Slot, t: int) -> None:
        """Free a slot at `t`."""
        if t > self.clock._now:
            self.clock.call_at(t, self._release, slot)
        else:
            self._release(slot)

    def _release(self, slot: Slot) -> None:
        slot.free = True
        queue, turns = slot.queue, self.pe.dma.turns
        assert turns is not None
        spec, held = queue.spec, queue.held
        while held and held[0].free:
            held.popleft()
            queue.released += 1
            back = queue.way_back
            key = back.key()
            self.tell("credit", queue, spec.credit_bytes)
            credit = spec.ring_pa, key, back, self.clock._now, slot
            turns.send(QUEUE, back, spec.credit_bytes, key, queue.peer.credited, credit)

    def credited(self, credit: tuple[int, int, Route, int, Slot]) -> None:
        """Take a credit for the ring at an address."""
        ring_pa, key, route, sent, slot = credit
        queue = self._by_peer_ring[ring_pa]
        if queue.outbox and not queue.credits:
            queue.credit_key = key
        queue.acknowledged += 1
        if self.log.operation:
            self.log.credit(route, sent, self.clock._now, queue.spec.credit_bytes, slot, key)
        self.pump(queue)

    # -- what is seen from outside

    def tell(self, what: str, queue: Queue, nbytes: int) -> None:
        """Tell observers of a step of a message."""
        for observer in self.engine.observers:
            observer.queue(
                QueueEvent(self.engine.now_ns, what, self.pe.name, queue.name, naming.pe(*queue.spec.peer), nbytes)
            )
