"""Receiving: which message a receive takes, and its parts on their way out of the slots."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kernbench.components.access import requests
from kernbench.components.command import Run
from kernbench.components.queues import Queue, RecvJob, Slot
from kernbench.config.schema import PeIpcqConfig
from kernbench.errors import KernelError
from kernbench.sim_engine.network import QUEUE
from kernbench.sim_engine.op_log import KIND
from kernbench.sim_engine.transfer import Callee, Transaction
from kernbench.topology import naming
from kernbench.units import ns_to_ps

if TYPE_CHECKING:
    from kernbench.components.builtin.pe_ipcq import PeIpcq

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
            who = self.pe.name if job.program is None else job.program.stands()
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
        """Go on with a part that is out of its slot: done, or on to its place in memory."""
        job, slot = what
        command = job.command
        if not command.runs:
            self._done(job, slot)
            return
        first = slot.index * slot.queue.spec.slot_bytes
        wanted = requests(self.pe, (Run(command.runs[0].va + first, slot.nbytes, slot.nbytes),))
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
