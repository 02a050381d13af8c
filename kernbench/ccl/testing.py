"""Run a collective on numpy arrays, without a machine: values only, any world size, some 40 us a message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from kernbench.ccl._group import Group, Place
from kernbench.ccl._topologies import through_switch
from kernbench.ccl.algorithm import CollectivePlan, plan_group
from kernbench.ccl.install import AlgorithmLike, resolve_algorithm_config
from kernbench.components._command import Command, Recv, Send, Stopped, Value
from kernbench.components.builtin.queues import UNLIMITED, Inbox, Queue, Receive, Slot, check_read
from kernbench.errors import IpcqDeadlock, KernelError
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu._runner import run_kernel_program
from kernbench.triton_emu.testing import MockBackend, MockMemory

Arrays = np.ndarray | tuple[np.ndarray, ...]


def run_kernel_in_mock(
    kernel: AlgorithmLike | CollectivePlan,
    tensors: Sequence[Arrays] | Mapping[Place, Arrays],
    *,
    group: Group | None = None,
    n_slots: int | None = None,
    slot_bytes: int = 4096,
    **call: Any,
) -> None:
    """Run every participant of a collective in turn, each until it waits for a message, on values only.

    Parameters
    ----------
    kernel : str, Algorithm, callable, module or Plan
        What `resolve_algorithm_config` takes, such as an entry of ccl.yaml, or a
        kernel(t_ptr, n_elem, world_size, *, tl) for a ring; or an algorithm on a group.
    tensors : sequence of array, or mapping of place to array
        The shard of each participant, written in place; a tuple where the kernel takes several pointers. As a
        sequence, in the order of the plan: subgroup by subgroup, by number.
    group : Group, optional
        The devices. By default one for each tensor, connected in a ring.
    n_slots : int, optional
        Slots of each queue; without limit unless given.
    slot_bytes : int
        Size of a slot.
    **call
        Options of this call, such as `op` or `root`.

    Raises
    ------
    KernelError
        If a kernel fails, or leaves messages unread.
    IpcqDeadlock
        On a deadlock; the message says who waits for whom.

    Examples
    --------
    >>> def hello_send(t_ptr, n, world, *, tl):
    ...     tl.send("E", t_ptr, shape=n)
    ...     tl.store(t_ptr, tl.recv("W", shape=n))
    >>> x = [np.full(2, rank, np.float16) for rank in range(3)]
    >>> run_kernel_in_mock(hello_send, x)
    >>> x
    [array([2., 2.], dtype=float16), array([0., 0.], dtype=float16), array([1., 1.], dtype=float16)]
    """
    arrays: Iterable[Any] = tensors.values() if isinstance(tensors, Mapping) else tensors
    strange = [given for given in arrays if not isinstance(given, np.ndarray | tuple)]
    if strange or not tensors:
        raise KernelError(f"{strange[0] if strange else tensors!r}: expected a numpy array for each participant")
    if not isinstance(kernel, CollectivePlan):
        kernel = plan_group(resolve_algorithm_config(kernel), group or Group.line(len(tensors)))
    plan = kernel
    if plan.algorithm.topology is through_switch:
        raise KernelError(f"{plan.algorithm.name}: no switch adds without a machine; run it in a session")
    places = [place for shards in plan.shards for place in shards]
    if len(places) != len(tensors):
        raise KernelError(f"{len(tensors)} tensors for {len(places)} participants; give one for each")
    given = tensors if isinstance(tensors, Mapping) else dict(zip(places, tensors, strict=True))
    memory = MockMemory()
    world = {place: _Participant(plan, place, memory, n_slots, slot_bytes) for place in plan.programs}
    try:
        for participant in world.values():
            for direction, (peer, back) in participant.role.neighbours.items():
                participant.peers[participant.queues[direction]] = world[peer], world[peer].queues[back]
        pointers = {place: world[place].pointers(given[place]) for place in places}
        shared = {} if plan.algorithm.scratch is None else {place[0]: place for place in places}
        for place, participant in world.items():
            participant.start(pointers[shared.get(place[0], place)], given[shared.get(place[0], place)], call)
        _check_distinct(given)
        plan.algorithm.check_kernel(participant.args for participant in world.values())
        _run(list(world.values()))
    finally:
        for participant in world.values():
            participant.stop()
        memory.write_back()


def _check_distinct(given: Mapping[Place, Arrays]) -> None:
    seen: dict[int, Place] = {}
    for place, arrays in given.items():
        for array in arrays if isinstance(arrays, tuple) else (arrays,):
            if seen.setdefault(id(array), place) != place:
                both = f"{seen[id(array)]} and {place} (sip, cube, pe)"
                raise KernelError(f"{both} share an array; give each participant a copy: x.copy()")


def _run(participants: list[_Participant]) -> None:
    running = participants
    while running:
        resumed = [participant.resume() for participant in running]
        running = [participant for participant in running if not participant.dead]
        if not any(resumed):
            waiting = "\n".join(f"- {p.describe()}" for p in running)
            raise IpcqDeadlock(
                f"{len(running)} of {len(participants)} participants wait for each other: a deadlock:\n{waiting}"
            )
    for participant in participants:
        participant.check_end()


class _Participant(MockBackend):
    """One program: its commands complete at once, except receives."""

    def __init__(
        self, plan: CollectivePlan, place: Place, memory: MockMemory, n_slots: int | None, slot_bytes: int
    ) -> None:
        super().__init__(memory)
        self.plan, self.place, self.role = plan, place, plan.programs[place]
        # Without limit, a message of any size has a slot.
        size = (UNLIMITED, UNLIMITED) if n_slots is None else (n_slots, slot_bytes)
        self.queues = {
            direction: Queue(direction, f"participant {plan.programs[peer].rank}", *size)
            for direction, (peer, _) in self.role.neighbours.items()
        }
        self.peers: dict[Queue, tuple[_Participant, Queue]] = {}
        self.inbox = Inbox()
        self.fault: KernelError | None = None
        self._receives: list[Receive] = []  # incomplete ones
        self._waits_for: Value | Command | None = None
        self._greenlet = greenlet(self._program)

    def location(self) -> str:
        sip, cube, pe = self.place
        return f"participant {self.role.rank} (sip{sip}.cube{cube}.pe{pe})"

    @property
    def dead(self) -> bool:
        return bool(self._greenlet.dead)

    def pointers(self, tensors: Arrays) -> list[Pointer]:
        arrays = tensors if isinstance(tensors, tuple) else (tensors,)
        if self.plan.algorithm.scratch is not None:
            arrays = (*arrays, np.zeros(self.plan.algorithm.scratch(arrays[0].size), arrays[0].dtype))
        return [self.memory.add(f"{i} of {self.location()}", array) for i, array in enumerate(arrays)]

    def start(self, pointers: Sequence[Pointer], tensors: Arrays, call: Mapping[str, Any]) -> None:
        arrays = tensors if isinstance(tensors, tuple) else (tensors,)
        n_elem = arrays[0].size if arrays else 0
        self.args = (*pointers, *self.plan.args(self.place, n_elem, **call))

    def _program(self) -> None:
        _, cube, pe = self.place
        subgroup = self.plan.subgroups[self.role.subgroup]
        participant = (self.role.rank, self.plan.world_size)
        run_kernel_program(
            self.plan.algorithm.kernel, self.args, self, (pe, cube), (subgroup.n_pes, subgroup.n_cubes), participant
        )
        while self._receives:
            self.block(self._receives[0].command)

    def resume(self) -> bool:
        """Run until the program waits or ends; False if it is still waiting."""
        if self._waits_for is not None and self._waits_for.done_ps < 0 and self.fault is None:
            return False
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()
        return True

    def stop(self) -> None:
        if self._greenlet and not self.dead:
            self._greenlet.throw(Stopped)

    def check_end(self) -> None:
        """Refuse unread messages, because the next collective would receive them."""
        for ring, (peer, queue) in self.peers.items():
            check_read(ring, queue, queue.sent - ring.taken, self.location(), peer.location())

    def submit(self, command: Command) -> None:
        touched = command.touches() if self._receives else ()
        for receive in [r for r in self._receives if r.command.runs]:
            if any(a.va < end and start < a.va + a.nbytes for a in receive.command.runs for start, end, _ in touched):
                self.block(receive.command)
        if isinstance(command, Send):
            message = self.inbox.message(None, command, None, self.queues)
            if command.inputs:
                message.take_value()
            else:
                message.data = self._read(command.runs)
            command.done_ps = 1
            message.queue.outbox.append(message)
            _deliver([(self, message.queue)])
        elif isinstance(command, Recv):
            receive = self.inbox.receive(None, command, None, self.queues)
            self._receives.append(receive)
            self.inbox.waiting.append(receive)
            _deliver(self.receive())
        else:
            super().submit(command)

    def block(self, on: Value | Command) -> None:
        while on.done_ps < 0 or self.fault is not None:
            if self.fault is not None:
                raise self.fault
            self._waits_for = on
            self._greenlet.parent.switch()
        self._waits_for = None

    def drop(self, value: Value) -> None:
        slot, value.space = value.space, None
        super().drop(value)
        if slot is not None:
            _deliver(self._release(slot))

    def receive(self) -> list[tuple[_Participant, Queue]]:
        """Match messages and receives, and consume full slots; return the (peer, queue)s that get credits."""
        try:
            while self.inbox.match(0, settled=True) is not None:
                pass
        except KernelError as fault:
            self.fault = self.fault or fault
        credited = []
        for receive in [receive for receive in self._receives if receive.message is not None]:
            while (slot := receive.next_part()) is not None:
                credited += self._take(receive, slot)
            if not receive.left:
                self._complete(receive)
        return credited

    def _take(self, receive: Receive, slot: Slot) -> list[tuple[_Participant, Queue]]:
        """Consume a part; a message of one slot is used in place, and its slot is released with its tile."""
        receive.left -= 1
        output = receive.command.output
        if not receive.command.consume:
            return []
        if slot.message.parts == 1 and output is not None and not output.dropped:
            output.space = slot
            return []
        return self._release(slot)

    def _release(self, slot: Slot) -> list[tuple[_Participant, Queue]]:
        receive, sender = slot.message.receive, slot.message.queue
        assert receive is not None
        sender.credits += receive.queue.release(slot)
        return [self.peers[receive.queue]]

    def _complete(self, receive: Receive) -> None:
        command, message = receive.command, receive.message
        if command.output is not None:
            command.output.array, command.output.done_ps = receive.result(), 1
        else:
            data = message.bytes() if message is not None else None
            assert data is not None
            self._write(command.runs, data)
        command.done_ps = 1
        receive.complete()
        self._receives.remove(receive)

    def describe(self) -> str:
        lines = [self.location(), *(receive.describe() for receive in self.inbox.waiting)]
        return "\n    ".join([*lines, *(f"ring {queue.describe()}" for queue in self.queues.values())])


_arrivals = count()


def _deliver(senders: list[tuple[_Participant, Queue]]) -> None:
    """Move parts while there are credits; consuming them returns credits, which may let others move."""
    while senders:
        sender, queue = senders.pop()
        receiver, ring = sender.peers[queue]
        while queue.outbox and queue.credits:
            message = queue.outbox[0]
            receiver.inbox.arrive(ring, queue.fill(message), next(_arrivals))
            if message.left == message.parts:
                queue.outbox.pop(0)
        senders += receiver.receive()
