"""Run a collective on numpy arrays, without a machine: values only, any world size, some 40 us a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from kernbench.ccl.group import Group, Place
from kernbench.ccl.install import AlgorithmLike, resolve_algorithm_config
from kernbench.ccl.mock_queues import Inbox
from kernbench.ccl.plan import Plan, plan_group
from kernbench.components.command import Command, Recv, Send, Stopped, Value
from kernbench.errors import IpcqDeadlock, KernelError
from kernbench.triton_emu.runner import run_program
from kernbench.triton_emu.testing import Memory, MockBackend

Arrays = np.ndarray | tuple[np.ndarray, ...]


def run_kernel_in_mock(
    kernel: AlgorithmLike | Plan,
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
        The devices. Unless given, as many as there are tensors, joined in a ring.
    n_slots : int, optional
        Slots of each queue; without limit unless given.
    slot_bytes : int
        Size of a slot.
    **call
        What this call asks for, such as `op` or `root`.

    Raises
    ------
    KernelError
        If a kernel fails, or leaves messages unread.
    IpcqDeadlock
        If nobody can go on; the message says who waits for whom.

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
    if not isinstance(kernel, Plan):
        kernel = plan_group(resolve_algorithm_config(kernel), group or Group.line(len(tensors)))
    plan = kernel
    places = [place for subgroup in plan.subgroups for place in subgroup.places]
    if len(places) != len(tensors):
        raise KernelError(f"{len(tensors)} tensors for {len(places)} participants; give one for each")
    given = tensors if isinstance(tensors, Mapping) else dict(zip(places, tensors, strict=True))
    memory = Memory()
    world = {place: _Participant(plan, place, memory, n_slots, slot_bytes) for place in places}
    try:
        for place, participant in world.items():
            participant.neighbours = {
                way: (world[peer].inbox, back) for way, (peer, back) in plan.programs[place].neighbours.items()
            }
            participant.start(given[place], call)
        _check_apart(given)
        plan.algorithm.check_kernel(participant.args for participant in world.values())
        _run(list(world.values()))
    finally:
        for participant in world.values():
            participant.stop()
        memory.write_back()


def _check_apart(given: Mapping[Place, Arrays]) -> None:
    """Refuse an array of two participants: each is a memory of its own."""
    seen: dict[int, Place] = {}
    for place, arrays in given.items():
        for array in arrays if isinstance(arrays, tuple) else (arrays,):
            if seen.setdefault(id(array), place) != place:
                both = f"{seen[id(array)]} and {place} (sip, cube, pe)"
                raise KernelError(f"{both} have one array; give each participant its own: x.copy()")


def _run(participants: list[_Participant]) -> None:
    """Let participants run in turn until all have ended."""
    running = deque(participants)
    idle = 0
    while running:
        participant = running.popleft()
        idle = 0 if participant.go_on() else idle + 1
        if participant.dead:
            continue
        running.append(participant)
        if idle > len(running):
            waiting = "\n".join(f"- {p.describe()}" for p in running)
            raise IpcqDeadlock(
                f"{len(running)} of {len(participants)} participants wait, and nobody can go on:\n{waiting}"
            )
    for participant in participants:
        participant.check_end()


class _Participant(MockBackend):
    """One program: its commands complete at once, except receives."""

    def __init__(self, plan: Plan, place: Place, memory: Memory, n_slots: int | None, slot_bytes: int) -> None:
        super().__init__(memory)
        self.plan, self.place, self.role = plan, place, plan.programs[place]
        self.inbox = Inbox(self.role.neighbours, n_slots, slot_bytes)
        self.inbox.complete = self._received
        self.neighbours: dict[str, tuple[Inbox, str]] = {}
        self._waits_for: Value | Command | None = None
        self._greenlet = greenlet(self._program)

    @property
    def name(self) -> str:
        sip, cube, pe = self.place
        return f"participant {self.role.rank} (sip{sip}.cube{cube}.pe{pe})"

    @property
    def dead(self) -> bool:
        return bool(self._greenlet.dead)

    def start(self, tensors: Arrays, call: Mapping[str, Any]) -> None:
        arrays = tensors if isinstance(tensors, tuple) else (tensors,)
        pointers = [self.memory.add(f"{i} of {self.name}", array) for i, array in enumerate(arrays)]
        n_elem = arrays[0].size if arrays else 0
        self.args = (*pointers, *self.plan.args(self.place, n_elem, **call))

    def _program(self) -> None:
        _, cube, pe = self.place
        subgroup = self.plan.subgroups[self.role.subgroup]
        participant = (self.role.rank, self.plan.world_size)
        run_program(
            self.plan.algorithm.kernel, self.args, self, (pe, cube), (subgroup.n_pes, subgroup.n_cubes), participant
        )
        while self.inbox.posted:
            self.block(self.inbox.posted[0])

    def go_on(self) -> bool:
        """Run until the program waits or ends; return whether it could."""
        if self._waits_for is not None and self._waits_for.done_ps is None and self.inbox.fault is None:
            return False
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()
        return True

    def stop(self) -> None:
        if self._greenlet and not self.dead:
            self._greenlet.throw(Stopped)

    def check_end(self) -> None:
        """Refuse messages that nobody has read: the next collective would get them."""
        unread = {way: len(queue.messages) for way, queue in self.inbox.queues.items() if queue.messages}
        if unread:
            text = ", ".join(f"{n} from {way!r}" for way, n in unread.items())
            raise KernelError(f"{self.name}: its kernel ended and left messages unread: {text}")

    def submit(self, command: Command) -> None:
        if self.inbox.landing:
            touched = command.touches()
            for recv in list(self.inbox.landing):
                if any(a.va < e and s < a.va + a.nbytes for a in recv.runs for s, e, _ in touched):
                    self.block(recv)
        if isinstance(command, Send):
            self.inbox.check("send", command.direction)
            inbox, back = self.neighbours[command.direction]
            if command.inputs:
                assert command.compute is not None
                assert command.inputs[0].array is not None
                data = command.compute(command.inputs[0].array)
            else:
                data = self._read(command.runs)
            command.done_ps = 1
            inbox.push(back, data)
        elif isinstance(command, Recv):
            self.inbox.post(command)
        else:
            super().submit(command)

    def block(self, on: Value | Command) -> None:
        while on.done_ps is None or self.inbox.fault is not None:
            if self.inbox.fault is not None:
                raise self.inbox.fault
            self._waits_for = on
            self._greenlet.parent.switch()
        self._waits_for = None

    def drop(self, value: Value) -> None:
        super().drop(value)
        self.inbox.release(value)

    def _received(self, recv: Recv, data: np.ndarray) -> None:
        if self.inbox.fault is None:
            if recv.output is not None:
                assert recv.compute is not None
                recv.output.array, recv.output.done_ps = recv.compute(data), 1
            else:
                self._write(recv.runs, data)
        recv.done_ps = 1

    def describe(self) -> str:
        """Return who waits for whom, and how full the queues are."""
        recv = next((r for r in self.inbox.posted if self._waits_for in (r, r.output)), None)
        whom = "a message"
        if recv is not None:
            ways = [recv.direction] if recv.direction else list(self.inbox.queues)
            behind = [f"{self.plan.programs[self.role.neighbours[w][0]].rank} ({w})" for w in ways]
            whom = f"{recv.nbytes} B from participant {' or '.join(behind)}"
        queues = ", ".join(f"{way} {len(q.messages)}" for way, q in self.inbox.queues.items() if q.messages)
        held = ", ".join(self.inbox.held())
        drop = f"; every slot of {held} holds a tile that came: drop it (del) before the next message" if held else ""
        return f"{self.name} waits for {whom}; messages not yet taken: {queues or 'none'}{drop}"
