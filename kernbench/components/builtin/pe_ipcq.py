"""The queue engine of a PE: one ring of slots for each direction, filled by the peer, with a credit for each free slot.

A part leaves when a credit is there, and is received when its last flit has arrived and been written to its slot: no
other notice is sent. Slots come free in their order; each sends a credit back. Slots in TCM are written and read
through ports of TCM's bandwidth, which they do not share with tiles (its banks are not modelled); slots in SRAM and HBM
are accesses of these, with a set-up each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from kernbench._units import ns_to_ps
from kernbench.analysis._records import CREDIT, FETCH, PART
from kernbench.components._command import Recv, Run
from kernbench.components.builtin.queues import Inbox, Message, Queue, Receive, Slot
from kernbench.errors import AllocationError, KernbenchError
from kernbench.sim_engine._host_requests import QueueSpec
from kernbench.sim_engine._network import QUEUE, Arbiter
from kernbench.sim_engine._observer import QueueEvent
from kernbench.sim_engine._op_log import KIND
from kernbench.sim_engine._transaction import Callee, Transaction
from kernbench.topology import _naming as naming

if TYPE_CHECKING:
    from kernbench.components._pe import Pe, Program


class Part(Slot):
    """A part on its way to the slot at `pa`, and the way of its credit back.

    `queue` is the receiver's, from the arrival on. `credit` is the key of the credit it waited for, else -1.
    """

    __slots__ = (
        "arrived_ps", "back", "by", "credit", "credit_key", "credit_ps", "key", "loaded", "pa", "queue", "read_ps",
        "route", "sent_ps",
    )  # fmt: skip

    def __init__(self, message: Message) -> None:
        self.fill(message)
        # The ring that it is in, the way of its part and of its credit, and the slot whose release sent that.
        self.queue: Any = None
        self.route: Any = None
        self.back: Any = None
        self.by: Part | None = None
        self.pa = self.credit = self.credit_key = self.credit_ps = -1
        self.sent_ps = self.arrived_ps = self.read_ps = self.key = -1
        self.loaded = False


class PeQueue(Queue):
    """A queue of the machine: parts go `way` where rings are in TCM, credits for its own ring go `way_back`."""

    __slots__ = (
        "credit_bytes", "credit_key", "in_tcm", "leaving", "peer", "peer_pa", "ring_pa", "spec", "wake_ps", "way",
        "way_back", "written",
    )  # fmt: skip

    def __init__(self, owner: PeIpcq, spec: QueueSpec) -> None:
        super().__init__(spec.direction, naming.pe(*spec.peer), spec.n_slots, spec.slot_bytes)
        mine, theirs, network = owner.pe.dma.node_id, naming.pe_dma(*spec.peer), owner.network
        self.spec, self.in_tcm, self.credit_bytes = spec, spec.kind == "tcm", spec.credit_bytes
        self.peer_pa, self.ring_pa = spec.peer_pa, spec.ring_pa
        self.peer = cast("PeIpcq", owner.engine.pe(*spec.peer).ipcq)
        self.way, self.way_back = network.route(mine, theirs), network.back(network.route(theirs, mine))
        self.leaving: list[Part] = []
        self.written: dict[int, Part] = {}
        self.wake_ps = self.credit_key = -1


_SEND, _RECV = KIND["send"], KIND["recv"]


_PROGRESS, _IN_SLOT, _RELEASE, _MATCH = range(4)


class PeIpcq(Callee):
    """The queue engine of a PE.

    `sets` holds what each installation brought, by its key: queues by direction.
    """

    def __init__(self, pe: Pe, node_id: str) -> None:
        self.pe, self.engine, self.name = pe, pe.engine, node_id
        self.core, self.network, self.log = pe.engine.env.core, pe.engine.network, pe.engine.log
        self.observers = pe.engine.observers
        self.component = self.log.component(node_id)
        self.sets: dict[str, dict[str, PeQueue]] = {}
        self.inbox = Inbox()
        config = pe.config.pe_ipcq
        self.setup_ps = {"tcm": 0, "sram": ns_to_ps(config.sram_setup_ns), "hbm": ns_to_ps(config.hbm_setup_ns)}
        self._ports = pe.fetch_store
        self._write_free = self._read_free = 0
        self._deciding = -1
        self._by_ring: dict[int, PeQueue] = {}

    # -- installation

    def install(self, key: str, specs: Sequence[QueueSpec]) -> None:
        if key in self.sets:
            raise AllocationError(f"{self.name}: queues {key!r} are installed already; use them, or another key")
        queues: dict[str, PeQueue] = {}
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
            queues[spec.direction] = self._by_ring[start] = PeQueue(self, spec)
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

    def receive(self, command: Recv, program: Program | None, queues: Mapping[str, PeQueue]) -> Receive:
        job = self.inbox.receive(self.pe, command, program, queues)
        first: PeQueue = job.queues[0]
        # A message of one slot in TCM is used in place.
        job.stays = command.consume and first.in_tcm and command.nbytes <= first.slot_bytes
        return job

    # -- sending

    def progress(self, queue: PeQueue) -> None:
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
                message.start_ps = now
                if self.pe.data:
                    message.take_value()
            while message.left < message.parts:
                if not queue.credits:
                    return
                self._give_slot(queue, message)
            outbox.pop(0)

    def _give_slot(self, queue: PeQueue, message: Message) -> None:
        """Give the next part of a message its slot; it leaves at once, or when it has been read from memory."""
        slot = Part(message)
        slot.pa = queue.peer_pa + slot.number % queue.n_slots * queue.slot_bytes
        slot.credit, queue.credit_key = queue.credit_key, -1
        queue.leaving.append(slot)
        if message.command.runs:
            self._load(slot, queue)
        else:
            slot.loaded = True
            self._leave(queue)

    def _load(self, slot: Part, queue: PeQueue) -> None:
        """Read a part from memory; it leaves when all of it is there."""
        message, first = slot.message, slot.index * queue.slot_bytes
        wanted = self.pe.requests((Run(message.command.runs[0].va + first, slot.nbytes, slot.nbytes),))
        left, asked = len(wanted), self.core.now

        def read(txn: Transaction) -> None:
            nonlocal left
            if message.data is not None and txn.data is not None:
                at = first + txn.arg.at[0]
                message.data[at : at + txn.nbytes] = txn.data
            if self.log.operation:
                self.log.transfer(asked, self.core.now, txn, message.id, slot.index, FETCH)
            left -= 1
            if not left:
                slot.loaded = True
                self._leave(queue)

        for request in wanted:
            txn = Transaction(request.nbytes, request.offset, read, request, None, request.pieces)
            self.pe.dma.port(request.node_id).read(txn, QUEUE)

    def _leave(self, queue: PeQueue) -> None:
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
                slot.route = route = queue.way.drawn()
                slot.key = route.key()
                arbiter.send(QUEUE, route, slot.nbytes, slot.key, queue.peer, slot)
            else:
                node_id, offset = self.engine.locate(slot.pa)
                txn = Transaction(slot.nbytes, offset, queue.peer.in_memory, slot)
                txn.posted = True
                port = self.pe.dma.port(node_id)
                slot.route = port.route.drawn()
                port.write(txn, QUEUE)
                slot.key = txn.key

    # -- arrivals

    def landed(self, slot: Part) -> None:
        """Take what has crossed the links: a slot's credit if it is free, else its part."""
        if slot.free:
            self.credited(slot)
        else:
            self.reached(slot)

    def woken(self, what: int, which: Any) -> None:
        if what == _IN_SLOT:
            self._in_slot(which)
        elif what == _PROGRESS:
            self.progress(which)
        elif what == _MATCH:
            self._match(False)
        else:
            self._release(which)

    def reached(self, slot: Part) -> None:
        """Take a part whose last flit has reached TCM: it goes through the write port to its slot."""
        now = slot.arrived_ps = self.core.now
        self._write_free = max(now, self._write_free) + self._ports.store_ps(slot.nbytes)
        self.core.wake_at(self._write_free, self, _IN_SLOT, slot)

    def in_memory(self, txn: Transaction) -> None:
        """Take a part that a memory has taken; the set-up of the access comes on top."""
        slot: Part = txn.arg
        slot.arrived_ps = now = self.core.now
        self.core.call_at(now + self.setup_ps[slot.message.queue.spec.kind], self._in_slot, slot)

    def _in_slot(self, slot: Part) -> None:
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
        if self.inbox.waiting:
            self._match(False)

    def _arrive(self, queue: PeQueue, slot: Part) -> None:
        now, message = self.core.now, slot.message
        self.inbox.arrive(queue, slot, now)
        if self.observers:
            self.tell("arrive", queue, slot.nbytes)
        if self.log.operation:
            self.log.move(
                slot.sent_ps, now, slot.route, slot.nbytes, message.id, slot.index, PART, slot.key,
                slot.arrived_ps, -1, slot.credit, now,
            )  # fmt: skip
        if message.receive is not None:
            self._take(message.receive)
        if message.arrived == message.parts:
            if self.log.operation:
                sender = message.pe.ipcq.component
                self.log.row(message.start_ps, now, sender, _SEND, message.id, message.nbytes, 0, -1)
            message.finish(now)

    # -- receiving

    def post(self, job: Receive) -> None:
        """Let a receive, which depends on nothing any more, take its message as soon as it can."""
        if job.ready > self.core.now:
            self.core.wake_at(job.ready, self, _MATCH, None)
        else:
            self._match(False)

    def _match(self, settled: bool) -> None:
        """Match receives and messages; those from any direction when all arrivals of this instant are known."""
        if not self.inbox.unclaimed:
            return
        now = self.core.now
        for job in self.inbox.match(now, settled):
            self._take(job)
        if self.inbox.undecided and self._deciding != now:
            self._deciding = now
            self.core.call_last(now, self._decide, None)

    def _decide(self, _: object) -> None:
        self._deciding = -1
        self._match(True)

    def _take(self, job: Receive) -> None:
        """Read the parts that are in their slots and have not been asked for."""
        message, command, now = job.message, job.command, self.core.now
        assert message is not None
        while (slot := job.next_part()) is not None:
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
                return
            self.core.call_at(end, self._copied, (job, slot))

    def _read(self, what: tuple[Receive, Part]) -> None:
        _, slot = what
        node_id, offset = self.engine.locate(slot.pa)
        self.pe.dma.port(node_id).read(Transaction(slot.nbytes, offset, lambda _: self._copied(what), None), QUEUE)

    def _copied(self, what: tuple[Receive, Part]) -> None:
        """Continue with a part that is out of its slot: done, or written to its place in memory."""
        job, slot = what
        command = job.command
        if not command.runs:
            self._done(job, slot)
            return
        first = slot.index * slot.queue.slot_bytes
        wanted = self.pe.requests((Run(command.runs[0].va + first, slot.nbytes, slot.nbytes),))
        data = job.message.bytes() if job.message is not None and self.pe.data else None
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

    def _done(self, job: Receive, slot: Part) -> None:
        self._log_read(job, slot, self.core.now)
        if job.command.consume:
            self.release(slot, self.core.now)
        job.left -= 1
        if not job.left:
            self._received(job, self.core.now)

    def _received(self, job: Receive, end: int) -> None:
        assert job.message is not None
        if self.observers:
            self.tell("recv", job.queue, job.message.nbytes)
        if self.log.operation:
            self.log.after.append((job.id, job.message.id))
        job.finish(end)
        job.complete()

    def _log_read(self, job: Receive, slot: Part, end: int) -> None:
        """Enter what a receive did with one part: out of its slot, and to memory where it goes there."""
        if self.log.operation:
            self.log.row(slot.read_ps, end, self.component, _RECV, job.id, slot.nbytes, 0, slot.index)

    # -- credits

    def release(self, slot: Part, t: int) -> None:
        if t > self.core.now:
            self.core.wake_at(t, self, _RELEASE, slot)
        else:
            self._release(slot)

    def _release(self, slot: Part) -> None:
        queue, arbiter = slot.queue, self.pe.dma.arbiter
        assert arbiter is not None
        for first in queue.release(slot):
            back = queue.way_back.drawn()
            key = back.key()
            if self.observers:
                self.tell("credit", queue, queue.credit_bytes)
            first.credit_key, first.back, first.credit_ps = key, back, self.core.now
            first.by = slot
            arbiter.send(QUEUE, back, queue.credit_bytes, key, queue.peer, first)

    def credited(self, first: Part) -> None:
        """Take the credit of a slot of a peer's ring."""
        key, queue, slot = first.credit_key, first.message.queue, first.by
        first.by = None
        if queue.outbox and not queue.credits:
            queue.credit_key = key
        queue.credits += 1
        if self.log.operation:
            assert slot is not None
            receive = slot.message.receive
            command = receive.id if receive is not None else -1
            self.log.move(
                first.credit_ps, self.core.now, first.back, queue.credit_bytes, command, slot.index, CREDIT, key
            )
        if queue.outbox:
            self.progress(queue)

    # -- what is seen from outside

    def waiting(self, program: Program) -> list[str]:
        """Return the receives of a program that wait for a message, and since when, in words."""
        return [
            f"{job.describe()} since {job.ready / 1000:,.2f} ns"
            + (", behind earlier commands that use its memory" if job.waiting else "")
            for job in self.inbox.waiting
            if job.program is program
        ]

    def tell(self, what: str, queue: PeQueue, nbytes: int) -> None:
        for observer in self.observers:
            observer.queue(QueueEvent(self.engine.now_ns, what, self.pe.name, queue.name, queue.peer_name, nbytes))
