"""The engine: clock, network and components of one machine, and the host's requests to them."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
import simpy

from kernbench._interrupts import hold, release
from kernbench._registry import COMPONENTS
from kernbench.analysis._records import NONE, Records
from kernbench.errors import DeadlockError, IpcqDeadlock, StateError
from kernbench.policy.address.allocator import AddressConfig, Allocators
from kernbench.policy.address.pe_mmu import Range, TranslationTable
from kernbench.sim_engine._extents import Extents
from kernbench.sim_engine._host_records import LaunchTable, OperationTable
from kernbench.sim_engine._host_requests import (
    CpuView,
    DryLaunch,
    GraphStep,
    HostCopy,
    LaunchBroadcast,
    PeView,
    QueueInstall,
    QueueSpec,
    RangeMap,
    RunningProgram,
    post,
)
from kernbench.sim_engine._memory_store import MemoryStore
from kernbench.sim_engine._network import Clock, Network
from kernbench.sim_engine._observer import Counters, Observer, Tick, environment_observers, read_counters
from kernbench.sim_engine._op_log import OpLog, busy_by_component, collect
from kernbench.sim_engine._races import DeviceRaces
from kernbench.sim_engine._transaction import Memory
from kernbench.topology import _naming as naming
from kernbench.topology._naming import PeId
from kernbench.topology.builder import Machine

_SLICE = 65536
_COLLECT_EVERY = 500_000

_lock = threading.Lock()
_runs = 0
_thresholds: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Raise the threshold of the cycle collector during the with-block.

    A run creates millions of objects but hardly any cycles. Blocks in other threads share the setting; the last one to
    end restores it.
    """
    global _runs, _thresholds  # noqa: PLW0603  the interpreter has one collector
    with _lock:
        _runs += 1
        if _runs == 1:
            _thresholds = gc.get_threshold()
            if 0 < _thresholds[0] < _COLLECT_EVERY:
                gc.set_threshold(_COLLECT_EVERY, *_thresholds[1:])
    try:
        yield
    finally:
        with _lock:
            _runs -= 1
            if _runs == 0 and gc.get_threshold()[0] == _COLLECT_EVERY:  # unless the user has changed it meanwhile
                gc.set_threshold(*_thresholds)


@contextmanager
def running() -> Iterator[None]:
    """Collect rarely, and defer interrupts to safe points, during the with-block."""
    with collecting_rarely():
        hold()
        try:
            yield
        finally:
            release()


class GraphEngine:
    """A simulated machine in operation, on the clock `env`: a `simpy.Environment` in ps, also for a user's processes.

    `enable_data` moves and computes values; times are the same without. `log` is "off", "operation" or "tile"; `trace`
    keeps every hop of every flit in `network.hops`. `tie_seed` permutes the ranks that decide between simultaneous
    arrivals. `live` enables `counters`. `races`, with data, detects unordered accesses to the same bytes.
    """

    def __init__(
        self,
        topology: Machine,
        enable_data: bool = False,
        *,
        log: str = "operation",
        trace: bool = False,
        observers: Sequence[Observer] = (),
        tie_seed: int | None = None,
        live: bool = False,
        races: bool = True,
    ) -> None:
        topology.import_components()
        self.machine, self.data, self.live = topology, enable_data, live
        self.env = Clock()
        self.env.core.live = live
        self.network = Network(topology.graph, self.env.core, trace=trace, tie_seed=tie_seed)
        self.log = OpLog(log)
        if self.log.operation:
            self.env.core.waits = self.log.waits
        self.memory = MemoryStore()
        self._races: dict[int, DeviceRaces] | None = {} if enable_data and races else None
        self.addresses = AddressConfig.of(topology.config)
        self.extents = Extents(topology.graph, self.addresses)
        self.allocators = Allocators(self.addresses, self._allocated)
        self.line_bits = topology.config.cube.hbm.burst_bytes.bit_length() - 1
        self.observers = [*observers, *environment_observers()]
        self.programs: dict[RunningProgram, None] = {}
        self.launches = LaunchTable()
        self.operations = OperationTable()
        self.operation = -1  # the one whose launches are being sent
        self.graph_step: GraphStep | None = None  # their place in a graph
        self.parts: dict[str, Any] = {}
        self.plans: dict[Any, Any] = {}  # of tiled commands, by shapes and types
        self.sums: dict[Any, Any] = {}  # at switches, by installation, direction and PEs
        self.commands = self.ahead_ps = 0
        self.interrupted = False
        self.doing = ""  # what the host does that takes no simulated time, in words
        self.failure: Exception | None = None
        self.waiter: Callable[[simpy.Event, object], None] | None = None
        self._spreads: dict[tuple[Any, int], int] = {}
        self.programs_started = self.programs_ended = 0
        self.host_by = NONE  # cause of the host's next action: the last operation whose completion it has received

    def _allocated(self, node_id: str, nbytes: int) -> None:
        if self.log.operation:
            self.log.allocated(self.env._now, self.log.place(node_id), nbytes)

    def races(self, sip: int) -> DeviceRaces | None:
        """Get the race detector of a SIP; None if the run has none."""
        if self._races is None:
            return None
        found = self._races.get(sip)
        if found is None:
            found = self._races[sip] = DeviceRaces(self.memory)
        return found

    @property
    def now_ns(self) -> float:
        return self.env.now / 1000

    def pe(self, sip: int, cube: int, pe: int) -> PeView:
        """Get a PE, created on first use."""
        return self._cpu(sip, cube, pe).pe

    def pes(self) -> list[PeView]:
        """List the PEs used so far."""
        return [part.pe for part in self.parts.values() if getattr(part, "stages", ())]

    def memory_at(self, node_id: str) -> Memory:
        memory: Memory = self._part(node_id)
        return memory

    def _cpu(self, sip: int, cube: int, pe: int) -> CpuView:
        cpu: CpuView = self._part(naming.pe_cpu(sip, cube, pe))
        return cpu

    def _part(self, node_id: str) -> Any:
        """Get the component at a node, created on first use."""
        part = self.parts.get(node_id)
        if part is None:
            cls = COMPONENTS.resolve(self.machine.graph.node(node_id).impl)
            part = self.parts[node_id] = cls(self, node_id)
        return part

    def message(self, src: str, dst: str, nbytes: int, arg: object, command: int, by: int) -> None:
        """Send a control message of `command` with cause `by`; `dst` gets `on_broadcast(arg, event)`."""
        post(self, self.network.route(src, dst), nbytes, self._part(dst).on_broadcast, arg, command, by)

    def begin(self, node_id: str, arg: object) -> None:
        """Deliver a control message locally."""
        self._part(node_id).on_broadcast(arg, self.host_by)

    def write(self, pieces: Sequence[tuple[int, int]], data: np.ndarray | None) -> simpy.Event:
        """Copy `data` (uint8, or None without data) from the host into `pieces`; return the event of its end."""
        self._usable()
        return HostCopy(self, pieces, data, write=True).done

    def read(self, pieces: Sequence[tuple[int, int]]) -> simpy.Event:
        """Copy `pieces` to the host; the event's value is their bytes (uint8, None without data)."""
        self._usable()
        return HostCopy(self, pieces, None, write=False).done

    def map(self, sip: int, ranges: Mapping[PeId, Sequence[Range]], owner: str) -> simpy.Event:
        """Send (va, nbytes, pa) ranges of the tensor `owner` to the MMUs of PEs, by (cube, pe)."""
        self._usable()
        message = RangeMap(self, sip, ranges, owner)
        message.send()
        return message.done

    def unmap(self, sip: int, targets: Sequence[PeId], va: int, nbytes: int) -> None:
        """Remove the ranges in `va` .. `va + nbytes` from PEs; takes no simulated time (not modelled)."""
        made: dict[TranslationTable, TranslationTable] = {}
        for cube, pe in targets:
            self._cpu(sip, cube, pe).mmu.unmap(va, nbytes, made)

    def install(self, sip: int, wiring: Mapping[PeId, Sequence[QueueSpec]], key: str) -> simpy.Event:
        """Send queues to PEs (cube, pe) of a SIP; launches name them by `key`. The caller reserves the rings."""
        self._usable()
        message = QueueInstall(self, sip, wiring, key)
        message.send()
        return message.done

    def launch(
        self,
        sip: int,
        targets: Sequence[PeId],
        kernel: Callable[..., Any],
        args: tuple[Any, ...] | Mapping[PeId, tuple[Any, ...]],
        name: str,
        queues: str | None = None,
        ranks: Mapping[PeId, int] | None = None,
        world: int = 1,
        protocol: str = "",
    ) -> LaunchBroadcast:
        """Send a kernel to PEs (cube, pe) of a SIP; its `done` succeeds with the last completion at the host.

        `args` are those of all programs, or of each by (cube, pe). With `queues`, the key of an installation, they are
        participants `ranks` of `world`, over all SIPs; `protocol` is for the record.
        """
        self._usable()
        launch = LaunchBroadcast(self, sip, targets, kernel, args, name, queues, ranks, world, protocol)
        launch.done.callbacks.append(lambda _: self._launched(launch))
        self.programs_started += len(targets)
        launch.send()
        for observer in self.observers:
            observer.launch_sent(launch)
        return launch

    def _launched(self, launch: LaunchBroadcast) -> None:
        launch.finish()
        for observer in self.observers:
            observer.launch_done(launch)

    def spread_ps(self, cubes: Mapping[int, Sequence[int]], nbytes: int) -> int:
        """Time from the IO chiplet's CPU to the last PE's decoding of a launch on an idle machine [ps]; cached."""
        key = (tuple((cube, *pes) for cube, pes in cubes.items()), nbytes)
        if key not in self._spreads:
            idle = GraphEngine(self.machine, log="off")
            dry = DryLaunch(idle, 0, [(cube, pe) for cube, pes in cubes.items() for pe in pes], nbytes)
            idle._part(naming.io_cpu(0)).forward(dry, NONE)
            idle.run()
            self._spreads[key] = dry.last_ps
        return self._spreads[key]

    def wait(self, event: simpy.Event, what: object = "a transfer") -> Any:
        """Run until `event` has happened; return its value.

        `waiter`, if set, decides who runs the clock meanwhile, and what else runs. Raises DeadlockError if the event
        can no longer happen; the message names all waiters, the host by `what`.
        """
        if self.waiter is not None:
            self.waiter(event, what)
        elif not self.advance(event):
            self.deadlock([f"the host, for {what}"])
        return event.value

    def advance(self, event: simpy.Event) -> bool:
        """Run until `event` has happened; return False if the calendar empties before."""
        for _ in self._slices(event):
            pass
        return event.processed

    def run(self) -> None:
        """Run to the end; raise DeadlockError if programs still wait."""
        for _ in self._slices(None):
            pass
        if self.programs:
            self.deadlock([])

    def step(self) -> None:
        self.guarded(self.env.step)

    def ticks(self, every_ms: float = 50, until: simpy.Event | None = None) -> Iterator[Tick]:
        """Run (until `until`, or to the end), and yield the progress every `every_ms` of host time."""
        due = time.perf_counter() + every_ms / 1000
        self.env.core.couple(1)  # a tick shows all SIPs at one time
        for _ in self._slices(until):
            if time.perf_counter() >= due:
                yield self._tick(finished=False)
                due = time.perf_counter() + every_ms / 1000
        if self.programs if until is None else not until.processed:
            self.deadlock(["the host, for the event that ends the run"] if until is not None else [])
        yield self._tick(finished=True)

    def _slices(self, event: simpy.Event | None) -> Iterator[None]:
        if event is not None and event.processed:
            return
        more = True
        with running():
            while more:
                more = self.guarded(lambda: self.env.core.drain(_SLICE, event))
                self.guarded(self.pulse)
                if more:
                    yield

    def ahead(self, commands: int, now_ps: int) -> None:
        """Count commands that a program has issued up to `now_ps`: one that never waits must reach limits, too."""
        self.commands += commands
        self.ahead_ps = max(self.ahead_ps, now_ps)
        self.pulse()

    def pulse(self) -> None:
        for observer in self.observers:
            observer.pulse(self)

    def guarded(self, action: Callable[[], Any]) -> Any:
        """Call `action`; an error ends the run."""
        self._usable()
        try:
            return action()
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        except Exception as error:
            self.failure = error
            self.stop()
            raise

    def _usable(self) -> None:
        if self.failure is not None:
            raise StateError(f"this run ended with an error ({self.failure}); open a new session")

    def deadlock(self, hosts: Sequence[str]) -> NoReturn:
        waiters = "\n".join(f"  {who}" for who in [*(p.describe() for p in self.programs), *hosts])
        kind = IpcqDeadlock if any(p.receives() for p in self.programs) else DeadlockError
        error = kind(f"deadlock at {self.now_ns:,.2f} ns; waiting:\n{waiters}")
        self.failure = error
        self.stop()
        raise error

    def stop(self) -> None:
        """Stop all programs and clear the calendar."""
        for program in list(self.programs):
            program.stop()
        self.programs.clear()
        self.env.core.clear()

    def _tick(self, finished: bool) -> Tick:
        busy: dict[str, float] = {}
        for name, ps in busy_by_component(self).items():
            kind = name.rsplit(".", 1)[-1]
            busy[kind] = busy.get(kind, 0.0) + ps / 1000
        tick = Tick(self.now_ns, self.env.events, self.programs_ended, self.programs_started, busy, finished)
        for observer in self.observers:
            observer.tick(tick)
        return tick

    @property
    def complete(self) -> bool:
        """Whether no requested work is pending; timeouts of a user's processes may be."""
        return not (self.interrupted or self.failure or self.programs or len(self.env.core) > self.env.timeouts)

    def counters(self) -> Counters:
        """Snapshot of links and PEs; takes the same time however long the run. Raises StateError without `live`."""
        if not self.live:
            raise StateError("counters need GraphEngine(..., live=True): other runs keep no account of what is ahead")
        return read_counters(self)

    def records(self) -> Records:
        with collecting_rarely():
            return collect(self)
