"""The queue engine of a PE: one ring of slots for each direction, filled by the peer, with a credit for each free slot.

A part leaves when a credit is there, and is received when its last flit has arrived and been written to its slot: there
is no other notification. Slots become free in order; each sends a credit back. Slots in TCM are written and read
through ports of TCM's bandwidth, which they do not share with tiles (TCM banks are not modelled); slots in SRAM and HBM
are accesses of these, with a set-up each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from kernbench._units import ns_to_ps
from kernbench.analysis._records import ARRIVED, CREDIT, FETCH, NONE, PART, READ, SENT, WRITE
from kernbench.components._command import Recv, Run
from kernbench.components.builtin.queues import Inbox, Message, Queue, Receive, Slot
from kernbench.components.builtin.switch_sum import SwitchSum
from kernbench.errors import AllocationError, KernbenchError
from kernbench.sim_engine._callee import Callee
from kernbench.sim_engine._host_requests import QueueSpec
from kernbench.sim_engine._network import QUEUE, Arbiter
from kernbench.sim_engine._observer import QueueEvent
from kernbench.sim_engine._op_log import KIND, STEP_KIND
from kernbench.sim_engine._transaction import Transaction
from kernbench.topology import _naming as naming

if TYPE_CHECKING:
    from kernbench.components._pe import Pe, PeProgram


class QueuePart(Slot):
    """The slot at `pa` of the ring that `sender` fills: the part in flight to it, and its credit in flight back.

    `queue` is the receiver's, set on arrival. A part that is `written` waits for those before it. `move` and
    `credit_number` are the log's numbers of the part and of its credit. `cause`, `second` and `third` are the causes of
    its departure, since `ready_ps`; `written_by`, `in_by` and `read_by` are the events of its way into the slot and out
    of it, `freed_by` the event that freed it. Command `credit_id` and part `credit_index` sent the credit, which
    arrived at `credited_ps`.
    """

    def __init__(self, sender: PeQueue, pa: int) -> None:
        self.sender, self.pa = sender, pa
        self.queue: Any = None
        # The routes of the part and of its credit.
        self.route: Any = None
        self.back: Any = None
        self.credit_key = self.credit_ps = self.credit_id = self.credit_index = -1
        self.sent_ps = self.arrived_ps = self.read_ps = self.key = self.credited_ps = -1
        self.move = self.credit_number = self.ready_ps = -1
        self.cause = self.second = self.third = self.written_by = self.in_by = self.read_by = self.freed_by = NONE
        self.credited_by = NONE
        self.loaded = self.written = False


class PeQueue(Queue):
    """A queue of the machine: parts take `route` if rings are in TCM, credits for its own ring `credit_route`.

    Parts go to `receiver`: the peer, or the sum at a switch, from which they take `down` to the peer.
    The other times and events are for causes: the last slot given to a part from memory (`given`), the last departure
    (`left`), and the last match of a receive (`matched`).
    """

    def __init__(self, owner: PeIpcq, spec: QueueSpec, key: str) -> None:
        super().__init__(spec.direction, naming.pe(*spec.peer), spec.n_slots, spec.slot_bytes)
        mine, theirs, network = owner.pe.dma.node_id, naming.pe_dma(*spec.peer), owner.network
        self.spec, self.in_tcm, self.credit_bytes = spec, spec.kind == "tcm", spec.credit_bytes
        self.peer_pa, self.ring_pa = spec.peer_pa, spec.ring_pa
        self.peer: PeIpcq = owner.engine.pe(*spec.peer).ipcq
        self.other: PeQueue | None = None  # the peer's, once a part has arrived there
        self.receiver: Callee = self.peer
        self.route, self.credit_route = network.route(mine, theirs), network.back(network.route(theirs, mine))
        if spec.summed:
            at = network.graph.sips.switch_of(spec.peer[0])
            self.route, self.down = network.route(mine, at), network.back(network.route(theirs, at))
            new = SwitchSum(owner.engine, at, len(spec.summed))
            self.receiver = owner.engine.sums.setdefault((key, spec.direction, spec.summed), new)
        self.chunk_ps, self.payload = ns_to_ps(spec.chunk_ns), spec.payload
        self.leaving: list[QueuePart] = []
        self.wake_ps = -1
        self.given_ps = self.left_ps = self.matched_ps = -1
        self.given_by = self.left_by = self.matched_by = NONE

    def slot(self) -> QueuePart:
        return QueuePart(self, self.peer_pa + len(self.slots) * self.slot_bytes)

    def carried(self, nbytes: int) -> int:
        """Bytes on links for `nbytes` of a message."""
        return nbytes if self.payload == 1 else ceil(nbytes / self.payload)


_SEND, _RECV, _SLOT = KIND["send"], KIND["recv"], STEP_KIND["slot"]


_PROGRESS, _IN_SLOT, _RELEASE, _MATCH = range(4)


class PeIpcq(Callee):
    """The queue engine of a PE.

    `sets` maps the key of each installation to its queues by direction.
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
        self._written_by = self._read_by = NONE
        self._write_port, self._read_port = (
            self.log.place(f"{pe.name}.pe_fetch_store.{port}") for port in ("store", "fetch")
        )
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
            queues[spec.direction] = self._by_ring[start] = PeQueue(self, spec, key)
        for size in {spec.chunk_bytes for spec in specs}:
            self._arbitrate(specs[0], size, key)
        self.sets[key] = queues

    def _arbitrate(self, spec: QueueSpec, chunk_bytes: int, key: str) -> None:
        """Share the PE's link between queue and other traffic, in turns of `chunk_bytes`; all installations agree."""
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

    def receive(self, command: Recv, program: PeProgram | None, queues: Mapping[str, PeQueue]) -> Receive:
        job = self.inbox.receive(self.pe, command, program, queues)
        first: PeQueue = job.queues[0] if job.queues else job.queue
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
            del outbox[0]

    def _give_slot(self, queue: PeQueue, message: Message) -> None:
        """Assign a slot to the next part of a message; it leaves at once, or when it has been read from memory."""
        slot: QueuePart = queue.fill(message)
        slot.loaded = slot.written = False
        if self.log.operation:
            self._given(slot, queue, message)
        if message.command.runs:
            queue.leaving.append(slot)
            self._load(slot, queue)
        elif queue.leaving:
            slot.loaded = True
            queue.leaving.append(slot)
        else:
            self._depart(slot, queue)

    def _given(self, slot: QueuePart, queue: PeQueue, message: Message) -> None:
        """Choose the causes of a part's slot: its message, the previous part, or a credit."""
        t, slot.cause, slot.second = message.ready, message.ready_by, slot.credited_by
        if slot.credited_ps > t:
            t, slot.cause, slot.second = slot.credited_ps, slot.second, slot.cause
        if message.command.runs:  # else it leaves after the previous part
            slot.third = queue.given_by
            if queue.given_ps > t:
                t, slot.cause, slot.third = queue.given_ps, slot.third, slot.cause
            queue.given_ps, queue.given_by = t, slot.cause
        slot.ready_ps = t

    def _load(self, slot: QueuePart, queue: PeQueue) -> None:
        message, first = slot.message, slot.index * queue.slot_bytes
        wanted = self.pe.dma.requests((Run(message.command.runs[0].va + first, slot.nbytes, slot.nbytes),))
        left, asked = len(wanted), self.core.now

        def read(txn: Transaction) -> None:
            nonlocal left
            if message.data is not None and txn.data is not None:
                txn.arg.put(txn.data, message.data[first:])
            by = NONE
            if self.log.operation:
                by = self.log.transfer(asked, self.core.now, txn, message.id, slot.index, FETCH)
            left -= 1
            if not left:
                slot.cause, slot.second, slot.third, slot.ready_ps = by, NONE, NONE, self.core.now
                slot.loaded = True
                self._leave(queue)

        for request in wanted:
            txn = Transaction(request.nbytes, request.offset, read, request, None, request.pieces)
            if self.log.operation:
                txn.number = self.log.sent(slot.cause, slot.second, slot.third)
            self.pe.dma.port(request.node_id).read(txn, QUEUE)

    def _leave(self, queue: PeQueue) -> None:
        leaving = queue.leaving
        while leaving:
            slot = leaving[0]
            if not slot.loaded:
                return
            del leaving[0]
            self._depart(slot, queue)

    def _depart(self, slot: QueuePart, queue: PeQueue) -> None:
        arbiter = self.pe.dma.arbiter
        assert arbiter is not None
        slot.sent_ps = self.core.now
        if self.log.operation:
            cause, second = slot.cause, queue.left_by
            if queue.left_ps > slot.ready_ps:
                cause, second = second, cause
            slot.move = self.log.sent(cause, second, slot.second)
            queue.left_ps, queue.left_by = slot.sent_ps, SENT | slot.move << 3
        if self.observers:
            self.tell("send", queue, slot.nbytes)
        if queue.in_tcm:
            slot.route = route = queue.route.drawn()
            slot.key = route.key()
            if self.log.operation:
                self.log.waits.follow(slot.key)
            arbiter.send(QUEUE, route, queue.carried(slot.nbytes), slot.key, queue.receiver, slot)
        else:
            node_id, offset = self.pe.extents.locate(slot.pa)
            txn = Transaction(slot.nbytes, offset, queue.peer.in_memory, slot)
            txn.posted, txn.number = True, slot.move
            port = self.pe.dma.port(node_id)
            slot.route = port.route.drawn()
            port.write(txn, QUEUE)
            slot.key = txn.key

    # -- arrivals

    def landed(self, arg: Any) -> None:
        """Dispatch an arrival from the links: a credit if the slot is free, else a part."""
        slot: QueuePart = arg
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
            self.match()
        else:
            self._release(which)

    def reached(self, slot: QueuePart) -> None:
        """Write a part whose last flit has reached TCM to its slot, through the write port."""
        now = slot.arrived_ps = self.core.now
        sender = slot.sender
        begun, service = max(now, self._write_free), self._ports.store_ps(slot.nbytes) + sender.chunk_ps
        if self.log.operation:
            cause, second = ARRIVED | slot.move << 3, self._written_by
            if begun > now:
                cause, second = second, cause
            self._written_by = slot.written_by = self.log.step(
                begun + service, service, self._write_port, _SLOT, slot.message.id, -1, cause, second
            )
        self._write_free = begun + service
        self.core.wake_at(self._write_free, self, _IN_SLOT, slot)

    def in_memory(self, txn: Transaction) -> None:
        """Handle a part written to SRAM or HBM; the set-up of the access comes on top."""
        slot: QueuePart = txn.arg
        slot.arrived_ps = now = self.core.now
        sender = slot.sender
        setup = self.setup_ps[sender.spec.kind] + sender.chunk_ps
        if self.log.operation:
            place, cause = self.log.place(self.pe.extents.locate(slot.pa)[0]), ARRIVED | slot.move << 3
            slot.written_by = self.log.step(now + setup, setup, place, _SLOT, slot.message.id, -1, cause)
        self.core.call_at(now + setup, self._in_slot, slot)

    def _in_slot(self, slot: QueuePart) -> None:
        """Handle a part in its slot. A queue's parts arrive in order, even if a memory reorders them."""
        sender = slot.sender
        queue = sender.other
        if queue is None:
            queue = sender.other = self._by_ring.get(sender.peer_pa)
        if queue is None:
            raise KernbenchError(f"{self.name}: a part arrived for {sender.peer_pa:#x}, which is in none of its rings")
        slot.queue = queue
        slot.written = True
        by = slot.written_by
        while slot.written and slot.number == queue.arrived:
            self._arrive(queue, slot, by)
            by = slot.in_by
            if queue.arrived < sender.sent:
                slot = queue.held(queue.arrived)
        if self.inbox.waiting:
            self.match()

    def _arrive(self, queue: PeQueue, slot: QueuePart, by: int) -> None:
        now, message = self.core.now, slot.message
        self.inbox.arrive(queue, slot, now)
        if self.observers:
            self.tell("arrive", queue, slot.nbytes)
        if self.log.operation:
            sent_by: PeQueue = message.queue
            slot.in_by = self.log.move(
                slot.move, slot.sent_ps, now, slot.route, sent_by.carried(slot.nbytes), message.id, slot.index, PART,
                slot.key, slot.arrived_ps, -1, -1, now, by,
            )  # fmt: skip
        if message.receive is not None:
            self._take(message.receive)
        if message.arrived == message.parts:
            whole = NONE
            if self.log.operation:
                sender = message.pe.ipcq.component
                whole = self.log.row(
                    message.start_ps, now, sender, _SEND, message.id, message.nbytes, 0, -1, slot.in_by
                )
            message.finish(now, whole)

    # -- receiving

    def post(self, job: Receive) -> None:
        if job.ready > self.core.now:
            self.core.wake_at(job.ready, self, _MATCH, None)
        else:
            self.match()

    def match(self, settled: bool = False) -> None:
        """Match receives and messages; those from any direction once all arrivals of this instant are `settled`."""
        inbox, now = self.inbox, self.core.now
        if not inbox.unclaimed:
            return
        job = inbox.match(now, settled)
        while job is not None:
            self._take(job)
            job = inbox.match(now, settled)
        if inbox.undecided and self._deciding != now:
            self._deciding = now
            self.core.call_last(now, self._decide, None)

    def _decide(self, _: object) -> None:
        self._deciding = -1
        self.match(True)

    def _take(self, job: Receive) -> None:
        message, command, now = job.message, job.command, self.core.now
        assert message is not None
        while job.asked < message.arrived:
            slot: QueuePart = job.next_part()
            slot.read_ps = now
            if self.log.operation:
                self._taken(job, slot)
            if not slot.queue.in_tcm:
                setup = self.setup_ps[slot.queue.spec.kind]
                if self.log.operation:
                    place = self.log.place(self.pe.extents.locate(slot.pa)[0])
                    slot.read_by = self.log.step(now + setup, setup, place, _SLOT, job.id, -1, slot.cause, slot.second)
                self.core.call_at(now + setup, self._read, (job, slot))
                continue
            slot.read_ps = max(now, self._read_free)
            end = slot.read_ps + self._ports.fetch_ps(slot.nbytes)
            if self.log.operation:
                cause, second, third = slot.cause, slot.second, self._read_by
                if self._read_free > now:
                    cause, second, third = third, cause, second
                self._read_by = slot.read_by = self.log.step(
                    end, end - slot.read_ps, self._read_port, _SLOT, job.id, -1, cause, second, third
                )
            self._read_free = end
            if message.parts == 1 and command.consume and command.output is not None:
                command.output.space = slot
                self._received(job, end, self._log_read(job, slot, end))
                return
            self.core.call_at(end, self._copied, (job, slot))

    def _taken(self, job: Receive, slot: QueuePart) -> None:
        """Choose the causes of reading a slot: the receive, the part, or the previous receive."""
        queue = slot.queue
        t, slot.cause, slot.second = job.ready, job.ready_by, slot.in_by
        if slot.order > t:
            t, slot.cause, slot.second = slot.order, slot.second, slot.cause
        if queue.matched_ps > t:
            slot.cause, slot.second = queue.matched_by, slot.cause
        queue.matched_ps, queue.matched_by = self.core.now, slot.cause

    def _read(self, what: tuple[Receive, QueuePart]) -> None:
        job, slot = what
        asked = self.core.now

        def read(txn: Transaction) -> None:
            if self.log.operation:
                slot.read_by = self.log.transfer(asked, self.core.now, txn, job.id, -1, READ)
            self._copied(what)

        node_id, offset = self.pe.extents.locate(slot.pa)
        txn = Transaction(slot.nbytes, offset, read, None)
        if self.log.operation:
            txn.number = self.log.sent(slot.read_by)
        self.pe.dma.port(node_id).read(txn, QUEUE)

    def _copied(self, what: tuple[Receive, QueuePart]) -> None:
        job, slot = what
        command = job.command
        if not command.runs:
            self._done(job, slot)
            return
        first = slot.index * slot.queue.slot_bytes
        wanted = self.pe.dma.requests((Run(command.runs[0].va + first, slot.nbytes, slot.nbytes),))
        data = job.message.bytes() if job.message is not None and self.pe.data else None
        left, asked, cause = len(wanted), self.core.now, slot.read_by

        def written(txn: Transaction) -> None:
            nonlocal left
            if self.log.operation:
                slot.read_by = self.log.transfer(asked, self.core.now, txn, job.id, -1, WRITE)
            left -= 1
            if not left:
                self._done(job, slot)

        for request in wanted:
            txn = Transaction(request.nbytes, request.offset, written, None, None, request.pieces)
            if data is not None:
                txn.data = request.take(data[first:])
            if self.log.operation:
                txn.number = self.log.sent(cause)
            self.pe.dma.port(request.node_id).write(txn, QUEUE)

    def _done(self, job: Receive, slot: QueuePart) -> None:
        by = self._log_read(job, slot, self.core.now)
        if job.command.consume:
            self.release(slot, self.core.now, by)
        job.left -= 1
        if not job.left:
            self._received(job, self.core.now, by)

    def _received(self, job: Receive, end: int, by: int) -> None:
        assert job.message is not None
        if self.observers:
            self.tell("recv", job.queue, job.message.nbytes)
        if self.log.operation:
            self.log.after(job.id, job.message.id)
        job.finish(end, by)
        job.complete()

    def _log_read(self, job: Receive, slot: QueuePart, end: int) -> int:
        log = self.log
        if not log.operation:
            return NONE
        return log.row(slot.read_ps, end, self.component, _RECV, job.id, slot.nbytes, 0, slot.index, slot.read_by)

    # -- credits

    def release(self, slot: QueuePart, t: int, by: int) -> None:
        slot.freed_by = by
        if t > self.core.now:
            self.core.wake_at(t, self, _RELEASE, slot)
        else:
            self._release(slot)

    def _release(self, slot: QueuePart) -> None:
        queue, arbiter = slot.queue, self.pe.dma.arbiter
        assert arbiter is not None
        receive, command = slot.message.receive, -1
        if receive is not None:
            command = receive.id
        freed = queue.release(slot)
        for number in range(queue.released - freed, queue.released):
            first: QueuePart = queue.held(number)
            back = queue.credit_route.drawn()
            key = back.key()
            if self.observers:
                self.tell("credit", queue, queue.credit_bytes)
            first.credit_key, first.back, first.credit_ps = key, back, self.core.now
            if self.log.operation:
                first.credit_id, first.credit_index = command, slot.index
                first.credit_number = self.log.sent(slot.freed_by)
                self.log.waits.follow(key)
            arbiter.send(QUEUE, back, queue.credit_bytes, key, queue.peer, first)

    def credited(self, slot: QueuePart) -> None:
        queue = slot.sender
        queue.credits += 1
        if self.log.operation:
            slot.credited_ps = self.core.now
            slot.credited_by = self.log.move(
                slot.credit_number, slot.credit_ps, self.core.now, slot.back, queue.credit_bytes, slot.credit_id,
                slot.credit_index, CREDIT, slot.credit_key,
            )  # fmt: skip
        if queue.outbox:
            self.progress(queue)

    # -- observation

    def waiting(self, program: PeProgram) -> list[str]:
        return [
            f"{job.describe()} since {job.ready / 1000:,.2f} ns"
            + (", behind earlier commands that use its memory" if job.waiting else "")
            for job in self.inbox.waiting
            if job.program is program
        ]

    def tell(self, what: str, queue: PeQueue, nbytes: int) -> None:
        for observer in self.observers:
            observer.queue(QueueEvent(self.engine.now_ns, what, self.pe.name, queue.name, queue.peer_name, nbytes))
