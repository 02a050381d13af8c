"""Run a collective on numpy arrays, without a machine: values only, any world size, some 40 us a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from greenlet import getcurrent, greenlet

from kernbench.ccl.algorithm import Plan, plan_group
from kernbench.ccl.group import Group, Place
from kernbench.ccl.install import AlgorithmLike, resolve_algorithm_config
from kernbench.components.command import Command, Recv, Send, Stopped, Value
from kernbench.errors import IpcqDeadlock, IpcqInvalidDirection, KernelError
from kernbench.registry import hint
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
        _check_distinct(given)
        plan.algorithm.check_kernel(participant.args for participant in world.values())
        _run(list(world.values()))
    finally:
        for participant in world.values():
            participant.stop()
        memory.write_back()


def _check_distinct(given: Mapping[Place, Arrays]) -> None:
    """Refuse an array that two participants share: each has its own memory."""
    seen: dict[int, Place] = {}
    for place, arrays in given.items():
        for array in arrays if isinstance(arrays, tuple) else (arrays,):
            if seen.setdefault(id(array), place) != place:
                both = f"{seen[id(array)]} and {place} (sip, cube, pe)"
                raise KernelError(f"{both} share an array; give each participant a copy: x.copy()")


def _run(participants: list[_Participant]) -> None:
    """Let participants run in turn until all have ended."""
    running = deque(participants)
    idle = 0
    while running:
        participant = running.popleft()
        idle = 0 if participant.resume() else idle + 1
        if participant.dead:
            continue
        running.append(participant)
        if idle > len(running):
            waiting = "\n".join(f"- {p.describe()}" for p in running)
            raise IpcqDeadlock(
                f"{len(running)} of {len(participants)} participants wait for each other: a deadlock:\n{waiting}"
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

    def resume(self) -> bool:
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
        """Refuse unread messages: the next collective would receive them."""
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


@dataclass(slots=True, eq=False)
class _Sent:
    """A message of `parts` parts: `arrived` and `taken` count those in slots so far, and those copied out of them."""

    data: np.ndarray
    parts: int
    arrived: int = 0
    taken: int = 0
    order: int = 0
    recv: Recv | None = None


@dataclass(slots=True, eq=False)
class _Queue:
    """One direction: its messages, oldest first; `n_slots` None: no limit.

    The first `claimed` of them have a receive, and the first `whole` are completely in slots.
    """

    n_slots: int | None
    slot_bytes: int
    used: int = 0
    messages: deque[_Sent] = field(default_factory=deque)
    claimed: int = 0
    whole: int = 0

    @property
    def head(self) -> _Sent | None:
        """The first message that no receive has claimed, if a part of it is there."""
        if self.claimed == len(self.messages):
            return None
        message = self.messages[self.claimed]
        return message if message.arrived else None


class Inbox:
    """What one program receives: a queue for each direction, and its receives in program order.

    `complete` is called with each receive that has its message, and the bytes; `fault` is set when one does not fit;
    `landing` are the receives to come that go to memory.
    """

    def __init__(self, directions: Iterable[str], n_slots: int | None, slot_bytes: int) -> None:
        self.queues = {direction: _Queue(n_slots, slot_bytes) for direction in directions}
        self.posted: list[Recv] = []
        self.complete: Callable[[Recv, np.ndarray], None]
        self.fault: KernelError | None = None
        self.landing: list[Recv] = []
        self._unclaimed: list[Recv] = []
        self._held: dict[Value, _Queue] = {}
        self._arrivals = 0

    def check(self, what: str, direction: str) -> None:
        """Refuse a direction that the program does not have."""
        if direction not in self.queues:
            known = hint(direction, self.queues) if self.queues else "it has none: no other PE takes part"
            raise IpcqInvalidDirection(f"{what} {direction!r}: no such queue; {known}")

    def push(self, direction: str, data: np.ndarray) -> None:
        """Take a message that a neighbour sends to the queue `direction`."""
        queue = self.queues[direction]
        queue.messages.append(_Sent(data, max(1, -(-data.size // queue.slot_bytes))))
        self._move([queue])

    def post(self, recv: Recv) -> None:
        """Take a receive."""
        if recv.direction is not None:
            self.check("recv", recv.direction)
        self.posted.append(recv)
        if recv.runs:
            self.landing.append(recv)
        self._unclaimed.append(recv)
        self._move([])

    def release(self, value: Value) -> None:
        """Free the slot of a message that was read in place."""
        if value in self._held:
            queue = self._held.pop(value)
            queue.used -= 1
            self._move([queue])

    def held(self) -> list[str]:
        """Return the directions that nothing can come from: tiles that came hold all their slots."""
        tiles = list(self._held.values())
        return [way for way, queue in self.queues.items() if tiles.count(queue) == queue.n_slots]

    def _move(self, changed: list[_Queue]) -> None:
        """Let everything move that can, after `changed`: parts into slots, messages to receives, parts out of slots."""
        while True:
            for queue in changed:
                self._arrive(queue)
            if self._unclaimed:
                changed = [*changed, *self._match()]
            changed = [queue for queue in changed if self._take(queue)]
            if not changed:
                return

    def _arrive(self, queue: _Queue) -> None:
        """Put parts into slots, as far as there are any."""
        while queue.whole < len(queue.messages):
            message = queue.messages[queue.whole]
            n = message.parts - message.arrived
            if queue.n_slots is not None:
                n = min(n, queue.n_slots - queue.used)
            if not n:
                return
            if not message.arrived:
                self._arrivals += 1
                message.order = self._arrivals
            message.arrived += n
            queue.used += n
            queue.whole += message.arrived == message.parts

    def _match(self) -> list[_Queue]:
        """Give messages to receives, in the order of these; return the queues of those that are to be taken."""
        found = []
        for recv in list(self._unclaimed):
            direction = recv.direction or self._earliest()
            queue = self.queues[direction] if direction is not None else None
            head = queue.head if queue is not None else None
            if direction is None or queue is None or head is None or not (recv.consume or head.arrived == head.parts):
                if recv.direction is None:
                    break  # What comes next is for this one.
                continue
            recv.came_from = direction
            self._unclaimed.remove(recv)
            if recv.nbytes != head.data.size:
                self.fault = self.fault or KernelError(
                    f"recv of {recv.nbytes} B from {direction!r}: the next message has {head.data.size} B; "
                    "it is received as it was sent: compare shapes and dtypes at both ends"
                )
            if recv.consume:
                head.recv = recv
                queue.claimed += 1
                found.append(queue)
            else:
                self.posted.remove(recv)
                self.complete(recv, head.data)
        return found

    def _earliest(self) -> str | None:
        there = {d: q.head.order for d, q in self.queues.items() if q.head is not None}
        return min(there, key=lambda d: there[d]) if there else None

    def _take(self, queue: _Queue) -> bool:
        """Copy parts out of their slots; return whether others are to come into them.

        A message of one slot is read in place, its slot free when its tile is.
        """
        freed = 0
        while queue.claimed:
            message = queue.messages[0]
            recv = message.recv
            assert recv is not None
            in_place = message.parts == 1 and recv.output is not None and not recv.output.dropped
            if not in_place:
                freed += message.arrived - message.taken
            message.taken = message.arrived
            if message.taken < message.parts:
                break
            queue.messages.popleft()
            queue.claimed -= 1
            queue.whole -= 1
            self.posted.remove(recv)
            if recv.runs:
                self.landing.remove(recv)
            if in_place and recv.output is not None:
                self._held[recv.output] = queue
            self.complete(recv, message.data)
        queue.used -= freed
        return freed > 0 and queue.whole < len(queue.messages)
