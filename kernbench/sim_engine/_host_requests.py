"""Requests of the host: messages to the PEs of a SIP (launches, maps, queues), and copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import simpy

from kernbench._units import ACK_BYTES
from kernbench.analysis._records import MESSAGE, NONE, READ, WRITE, CommandInfo
from kernbench.policy.address.pe_mmu import PeMMU, Range, TranslationTable
from kernbench.policy.address.phyaddr import sip_of
from kernbench.sim_engine._callee import Callee
from kernbench.sim_engine._host_records import LaunchRow
from kernbench.sim_engine._op_log import KIND, STEP_KIND
from kernbench.sim_engine._transaction import Transaction
from kernbench.topology import _naming as naming
from kernbench.topology._naming import PeId

if TYPE_CHECKING:
    from kernbench.sim_engine._network import Core
    from kernbench.sim_engine._op_log import OpLog
    from kernbench.sim_engine._transaction import Route
    from kernbench.sim_engine.engine import GraphEngine

LAUNCH_BYTES = 64
ARGUMENT_BYTES = 8
RANGE_BYTES = 32

_host_command = lru_cache(maxsize=1024)(CommandInfo)  # equal host operations share an entry of the log


class PeView(Protocol):
    name: str
    place: tuple[int, int, int]

    @property
    def mmu(self) -> PeMMU: ...

    @property
    def ipcq(self) -> Any: ...


class CpuView(Protocol):
    """The control processor of a PE: receives the host's messages, and creates its PE on first use."""

    name: str
    place: tuple[int, int, int]

    @property
    def mmu(self) -> PeMMU: ...

    @property
    def pe(self) -> PeView: ...

    def start_at(self, t: int, launch: LaunchBroadcast, by: int) -> None: ...


class RunningProgram(Protocol):
    @property
    def pe(self) -> PeView: ...

    def location(self) -> str:
        """PE, kernel and line of code, for messages."""

    def describe(self) -> str:
        """Describe what it waits for, and since when."""

    def receives(self) -> bool: ...

    def stop(self) -> None: ...


_LAST_PE = "the launch's last PE"  # the place of a start that waited for it


class ControlMessage(Callee):
    """A message of `command` on its way, which is logged when it arrives; `fn` gets `arg` and the event of that."""

    def __init__(
        self, log: OpLog, core: Core, route: Route, nbytes: int, fn: Callable[[Any, int], None], command: int, by: int
    ) -> None:
        self.log, self.core, self.route, self.nbytes, self.fn, self.command = log, core, route, nbytes, fn, command
        self.key, self.sent_ps, self.number = route.key(), core.now, -1
        if log.operation:
            log.waits.follow(self.key)
            self.number = log.sent(by)
            log.route(route)

    def landed(self, arg: Any) -> None:
        by = NONE
        if self.number >= 0:
            t = self.core.now
            by = self.log.move(
                self.number, self.sent_ps, t, self.route, self.nbytes, self.command, -1, MESSAGE, self.key
            )
        self.fn(arg, by)


def post(
    engine: GraphEngine, route: Route, nbytes: int, fn: Callable[[Any, int], None], arg: object, command: int, by: int
) -> None:
    """Send a control message with cause `by`."""
    message = ControlMessage(engine.log, engine.env.core, route, nbytes, fn, command, by)
    engine.network.send(route, nbytes, message.key, message, arg)


class Broadcast:
    """One message to PEs of a SIP; `done` succeeds when the last completion has reached the host.

    Unless `kind` is empty, it is logged on completion as a row of that kind.
    """

    kind = ""

    def __init__(self, engine: GraphEngine, sip: int, targets: Sequence[PeId], name: str) -> None:
        self.engine, self.sip = engine, sip
        self.id = engine.log.command(_host_command(name, sip))
        self.cubes: dict[int, list[int]] = {}
        for cube, pe in targets:
            self.cubes.setdefault(cube, []).append(pe)
        self._left = {cube: len(pes) for cube, pes in self.cubes.items()}
        self._cubes_left = len(self.cubes)
        self.sent_ps = engine.env._now
        self.by = NONE
        self.done = simpy.Event(engine.env)
        self.done.callbacks.append(self._heard_of)

    def send(self) -> None:
        by = self.engine.host_by
        self.engine.message(naming.HOST, naming.io_cpu(self.sip), self.nbytes_of(), self, self.id, by)

    def _heard_of(self, _: object) -> None:
        """Make the end of this message the cause of the host's next actions."""
        self.engine.host_by = self.by

    def nbytes_of(self, cube: int | None = None, pe: int | None = None) -> int:
        """Size of the copy for a cube, for one of its PEs, or for the whole SIP [bytes]."""
        raise TypeError(f"{type(self).__name__} has no size")

    def stamp(self, t: int, by: int) -> None:
        """Handle the message's departure from the IO chiplet's CPU at `t`."""

    def comes(self, t: int, by: int) -> None:
        """Handle the arrival of a copy at a PE, which will have decoded it at `t`."""

    def taken(self, cpu: CpuView, by: int) -> None:
        """Execute the message on a PE whose CPU has decoded it."""
        raise TypeError(f"{type(self).__name__} does nothing on a PE")

    def answer(self, place: tuple[int, int, int], by: int) -> None:
        """Send a PE's completion towards the host; M_CPU and IO_CPU combine those of their PEs and cubes."""
        _, cube, pe = place
        self._reply(naming.m_cpu(self.sip, cube), naming.pe_cpu(self.sip, cube, pe), self._pe_done, cube, by)

    def _reply(self, asker: str, answerer: str, fn: Callable[[Any, int], None], arg: object, by: int) -> None:
        network = self.engine.network
        post(self.engine, network.back(network.route(asker, answerer)), ACK_BYTES, fn, arg, self.id, by)

    def _pe_done(self, cube: int, by: int) -> None:
        self._left[cube] -= 1
        if not self._left[cube]:
            self._reply(naming.io_cpu(self.sip), naming.m_cpu(self.sip, cube), self._cube_done, None, by)

    def _cube_done(self, _: object, by: int) -> None:
        self._cubes_left -= 1
        if not self._cubes_left:
            self._heard(by)

    def _heard(self, by: int) -> None:
        self._reply(naming.HOST, naming.io_cpu(self.sip), self._all_done, None, by)

    def _all_done(self, _: object, by: int) -> None:
        self.by = by
        if self.kind:
            self.log_row(self.kind, self.nbytes_of())
        self.done.succeed()

    def log_row(self, kind: str, nbytes: int) -> None:
        log = self.engine.log
        if log.operation:
            row = self.sent_ps, self.engine.env._now, log.component(naming.HOST), KIND[kind], self.id, nbytes, 0, -1
            self.by = log.row(*row, self.by)


@dataclass(frozen=True, slots=True)
class GraphStep:
    """The place of a launch in a graph, which the host sends as one message with one completion.

    `nbytes` is the size of that message for the first launch, 0 for the others.
    """

    nbytes: int
    is_last: bool


class LaunchBroadcast(Broadcast):
    """A kernel launch: 64 B and 8 B per argument; all PEs start at the time that the IO chiplet's CPU sets.

    `args` are those of all programs, or of each by (cube, PE). With `queues`, the key of an installation, programs
    are participants `ranks` of `world`; a collective has a `protocol`, for the record.
    """

    def __init__(
        self,
        engine: GraphEngine,
        sip: int,
        targets: Sequence[PeId],
        kernel: Callable[..., Any],
        args: tuple[Any, ...] | Mapping[PeId, tuple[Any, ...]],
        name: str,
        queues: str | None = None,
        ranks: Mapping[PeId, int] | None = None,
        world: int = 1,
        protocol: str = "",
    ) -> None:
        super().__init__(engine, sip, targets, name)
        self._step = engine.graph_step
        self.kernel, self.args, self.name = kernel, args, name
        self.queues, self.ranks, self.world = queues, ranks or {}, world
        self.grid = (max(len(pes) for pes in self.cubes.values()), len(self.cubes))
        self._count = len(args) if isinstance(args, tuple) else max(map(len, args.values()), default=0)
        races = engine.races(sip)
        self.task = None if races is None else races.task
        self.target_start_ps = self.start_ps = self.done_ps = self.end_ps = -1
        self._stamped_ps = self._last_ps = -1
        self._stamped_by = self._last_by = NONE
        row = LaunchRow(name, queues or "", protocol, sip, self.id, engine.operation, self.sent_ps, -1, -1, -1, -1)
        self._number = engine.launches.append(row)
        if queues is not None:  # a message is complete for its sender when it arrives
            engine.env.core.couple(1)

    def nbytes_of(self, cube: int | None = None, pe: int | None = None) -> int:
        return LAUNCH_BYTES + ARGUMENT_BYTES * self._count

    def send(self) -> None:
        """Send it from the host; later launches of a graph are already at the SIP."""
        if self._step is None:
            super().send()
        elif self._step.nbytes:
            self.engine.message(
                naming.HOST, naming.io_cpu(self.sip), self._step.nbytes, self, self.id, self.engine.host_by
            )
        else:
            self.engine.begin(naming.io_cpu(self.sip), self)

    def _heard(self, by: int) -> None:
        if self._step is None or self._step.is_last:
            super()._heard(by)
        else:
            self._all_done(None, by)

    def args_of(self, cube: int, pe: int) -> tuple[Any, ...]:
        return self.args if isinstance(self.args, tuple) else self.args[cube, pe]

    def stamp(self, t: int, by: int) -> None:
        """Set the common start: the time at which the last PE would have decoded its copy on an idle machine."""
        self._stamped_ps, self._stamped_by = t, by
        self.target_start_ps = t + self.engine.spread_ps(self.cubes, self.nbytes_of())
        self.engine.launches.note(self._number, self.target_start_ps, -1)

    def taken(self, cpu: CpuView, by: int) -> None:
        """Start the program at the common time, or now if that has passed (logged as skew)."""
        now, log = self.engine.env._now, self.engine.log
        if now > self.target_start_ps and log.operation:
            log.row(self.target_start_ps, now, log.component(cpu.name), KIND["skew"], self.id, 0, 0, -1)
        start = max(now, self.target_start_ps)
        if self.start_ps < 0 or start < self.start_ps:
            self.start_ps = start
            self.engine.launches.note(self._number, self.target_start_ps, start)
        cpu.start_at(start, self, by)

    def begins(self, by: int) -> int:
        """Log the start of a program now; return the event. `by` is the event of its CPU's decoding."""
        now, log = self.engine.env._now, self.engine.log
        if not log.operation:
            return NONE
        cause, second, since = self._stamped_by, by, self._stamped_ps
        if now > self.target_start_ps:
            cause, second, since = by, cause, now
        elif now == self._last_ps:
            cause, second, since = self._last_by, by, now
        return log.step(now, now - since, log.place(_LAST_PE), STEP_KIND["start"], self.id, -1, cause, second)

    def comes(self, t: int, by: int) -> None:
        """Track the last PE that decodes its copy before the common start."""
        if self._last_ps < t <= self.target_start_ps:
            self._last_ps, self._last_by = t, by

    def program_done(self, program: RunningProgram, by: int) -> None:
        self.engine.programs_ended += 1
        self.done_ps = self.engine.env._now
        self.answer(program.pe.place, by)

    def finish(self) -> None:
        self.end_ps = self.engine.env._now
        self.engine.launches.note(self._number, self.target_start_ps, self.start_ps, self.done_ps, self.end_ps)
        self.log_row("launch", 0)
        self.engine.host_by = self.by
        if self.queues is not None:
            self.engine.env.core.couple(-1)


class RangeMap(Broadcast):
    """Address ranges for the MMUs: 32 B per distinct range of the PEs behind a copy."""

    kind = "map"

    def __init__(self, engine: GraphEngine, sip: int, ranges: Mapping[PeId, Sequence[Range]], owner: str) -> None:
        super().__init__(engine, sip, list(ranges), f"map {owner}")
        self.ranges, self.owner = ranges, owner
        # Most PEs, often all, receive the same ranges: sizes are cached by the set of distinct mappings.
        self._told = {id(mine): mine for mine in ranges.values()}
        if any(sip_of(pa) != sip for mine in self._told.values() for _, _, pa in mine):
            engine.env.core.couple(1)  # values in the memory of another SIP are read and written when requests end
        self._tellings: dict[int | None, set[int]] = {None: set(self._told)}
        for (cube, _), mine in ranges.items():
            self._tellings.setdefault(cube, set()).add(id(mine))
        self._nbytes: dict[frozenset[int], int] = {}
        self._made: dict[int, dict[TranslationTable, TranslationTable]] = {}

    def send(self) -> None:
        if not self.engine.machine.config.memory_apart:
            super().send()
            return
        # Tables of a device's shared memory are filled before a program allocates from it (M2.4).
        for cube, pe in self.ranges:
            self._map(self.engine._cpu(self.sip, cube, pe))
        self.by = self.engine.host_by
        self.done.succeed()

    def nbytes_of(self, cube: int | None = None, pe: int | None = None) -> int:
        if cube is None or pe is None:
            tellings = frozenset(self._tellings[cube])
        else:
            tellings = frozenset((id(self.ranges[cube, pe]),))
        nbytes = self._nbytes.get(tellings)
        if nbytes is None:
            distinct = set().union(*[self._told[telling] for telling in tellings])
            nbytes = self._nbytes[tellings] = RANGE_BYTES * len(distinct)
        return nbytes

    def taken(self, cpu: CpuView, by: int) -> None:
        self._map(cpu)
        self.answer(cpu.place, by)

    def _map(self, cpu: CpuView) -> None:
        _, cube, pe = cpu.place
        mine = self.ranges[cube, pe]
        cpu.mmu.map_all(mine, self.owner, self._made.setdefault(id(mine), {}))


class DryLaunch(Broadcast):
    """A dry run of a launch's copies, which measures when the last PE has decoded its copy."""

    def __init__(self, engine: GraphEngine, sip: int, targets: Sequence[PeId], nbytes: int) -> None:
        super().__init__(engine, sip, targets, "spread")
        self._nbytes = nbytes
        self.last_ps = 0

    def nbytes_of(self, cube: int | None = None, pe: int | None = None) -> int:
        return self._nbytes

    def taken(self, cpu: CpuView, by: int) -> None:
        self.last_ps = self.engine.env._now


# A direction's entry: two addresses, a place, two names, sizes (chosen: one line of registers).
QUEUE_BYTES = 64


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """One direction of a PE: a ring that its peer fills, and the peer's ring that it fills.

    The switch on the way adds the messages of all PEs of `summed`, unless this is empty.
    """

    direction: str
    peer: tuple[int, int, int]
    ring_pa: int
    peer_pa: int
    kind: str
    n_slots: int
    slot_bytes: int
    credit_bytes: int
    chunk_bytes: int
    summed: tuple[tuple[int, int, int], ...] = ()
    chunk_ns: float = 0.0
    payload: float = 1.0


class QueueInstall(Broadcast):
    """The queues of PEs of one SIP: `QUEUE_BYTES` for each direction of the PEs behind a copy."""

    kind = "install"

    def __init__(self, engine: GraphEngine, sip: int, wiring: Mapping[PeId, Sequence[QueueSpec]], key: str) -> None:
        super().__init__(engine, sip, list(wiring), f"install {key}")
        self.wiring, self.key = wiring, key
        self._directions: dict[int | None, int] = {None: sum(map(len, wiring.values()))}
        for (cube, _), specs in wiring.items():
            self._directions[cube] = self._directions.get(cube, 0) + len(specs)

    def nbytes_of(self, cube: int | None = None, pe: int | None = None) -> int:
        if cube is None or pe is None:
            return QUEUE_BYTES * self._directions[cube]
        return QUEUE_BYTES * len(self.wiring[cube, pe])

    def taken(self, cpu: CpuView, by: int) -> None:
        _, cube, pe = cpu.place
        cpu.pe.ipcq.install(self.key, self.wiring[cube, pe])
        self.answer(cpu.place, by)


class HostCopy:
    """A copy between the host and `pieces` (physical address, bytes): one transaction each, all sent at once."""

    def __init__(
        self, engine: GraphEngine, pieces: Sequence[tuple[int, int]], data: np.ndarray | None, write: bool
    ) -> None:
        self.engine, self.pieces, self.write = engine, list(pieces), write
        self.by = NONE
        self.done = simpy.Event(engine.env)
        self.done.callbacks.append(self._heard_of)
        self._start = engine.env._now
        self._id = engine.log.command(_host_command("h2d" if write else "d2h"))
        extents = engine.extents.requests(self.pieces)
        self._left, self._bytes = len(extents), sum([nbytes for _, nbytes in self.pieces])
        self._taken: np.ndarray | None = None
        if not self.pieces:
            self.done.succeed(np.zeros(0, np.uint8) if engine.data and not write else None)
        if self.pieces and (races := engine.races(engine.addresses.locate(self.pieces[0][0]).sip)) is not None:
            engine.guarded(lambda: races.host(self.pieces, write))
        for extent in extents:
            txn = Transaction(extent.nbytes, extent.offset, self._finished, extent, None, extent.pieces)
            route = engine.network.route(naming.HOST, extent.node_id)
            if engine.log.operation:
                txn.number = engine.log.sent(engine.host_by)
            if write:
                if data is not None:
                    txn.data = extent.take(data)
                engine.network.write(txn, route, engine.memory_at(extent.node_id))
            else:
                engine.network.read(txn, route, engine.memory_at(extent.node_id))

    def _heard_of(self, _: object) -> None:
        """Make the end of this copy the cause of the host's next actions."""
        if self.pieces:
            self.engine.host_by = self.by

    def _finished(self, txn: Transaction) -> None:
        if txn.data is not None and not self.write:
            if self._taken is None:
                self._taken = np.zeros(self._bytes, np.uint8)
            txn.arg.put(txn.data, self._taken)
        engine, log = self.engine, self.engine.log
        if log.operation:
            self.by = log.transfer(self._start, engine.env._now, txn, self._id, -1, WRITE if self.write else READ)
        self._left -= 1
        if self._left:
            return
        if log.operation:
            name = "h2d" if self.write else "d2h"
            nbytes = self._bytes
            host = log.component(naming.HOST)
            self.by = log.row(self._start, engine.env._now, host, KIND[name], self._id, nbytes, 0, -1, self.by)
        self.done.succeed(self._taken)
