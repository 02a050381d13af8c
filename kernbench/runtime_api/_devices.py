"""The devices of one program: their memory and streams, and the host's requests."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simpy
from greenlet import getcurrent, greenlet

from kernbench._dtypes import DType
from kernbench._units import ns_to_ps
from kernbench.errors import AllocationError
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api._layout import ByteSpan, TensorShard
from kernbench.runtime_api._memory import DeviceMemory, TensorHandle, map_ranges
from kernbench.runtime_api.types import Device, DeviceLike, DeviceSelector
from kernbench.sim_engine._host_requests import ARGUMENT_BYTES, LAUNCH_BYTES, GraphStep
from kernbench.sim_engine._races import Copies
from kernbench.sim_engine._user_code import Line, line_number, user_line

if TYPE_CHECKING:
    from kernbench.analysis._records import Communication
    from kernbench.runtime_api._multiprocessing import Rank, SpawnContext
    from kernbench.sim_engine.engine import GraphEngine


def warn(message: str, line: Line | None = None) -> None:
    """Warn at a line of the user's program: by default the one that called the package."""
    line = line or user_line()
    if line is not None:
        warnings.warn_explicit(message, UserWarning, line[0].co_filename, line_number(line))


Start = Callable[[], simpy.Event]


@dataclass(frozen=True, slots=True)
class StartOfWork:
    """When a device knows of a launch, how long it takes to fetch the descriptor, and the place in a graph."""

    ready_ps: int = 0
    fetch_ps: int = 0
    step: GraphStep | None = None

    def of(self, i: int, n: int) -> StartOfWork:
        """Return that of launch `i` of `n` that follow each other here: only the first one waits for the host."""
        step = self.step and GraphStep(0 if i else self.step.nbytes, self.step.is_last and i == n - 1)
        return StartOfWork(step=step) if i else replace(self, step=step)


_AT_ONCE = StartOfWork()


class Later:
    """An operation of a stream that has begun before the event that completes it exists."""

    def __init__(self, engine: GraphEngine, sip: int) -> None:
        self.done = simpy.Event(engine.env)
        races = engine.races(sip)
        self._task = None if races is None else races.task
        self._engine, self._sent_as = engine, (engine.operation, engine.graph_step)

    def run(self, start: Start) -> None:
        started = _sending(
            self._engine, *self._sent_as, start if self._task is None else partial(self._task.run, start)
        )
        assert started.callbacks is not None, "what has just been started is not complete"
        started.callbacks.append(self._complete)

    def _complete(self, event: simpy.Event) -> None:
        self.done.succeed(event.value)


def _sending(engine: GraphEngine, operation: int, step: GraphStep | None, start: Start) -> simpy.Event:
    """Call `start`; the launches that it sends are those of an operation, in a place of a graph."""
    before = engine.operation, engine.graph_step
    engine.operation, engine.graph_step = operation, step
    try:
        return start()
    finally:
        engine.operation, engine.graph_step = before


class Mark(NamedTuple):
    """A place in a stream: after its submission `number`, which follows `after`: as many submissions of other streams.

    `order` are the latest operations that precede the place.
    """

    stream: Stream
    number: int
    after: Mapping[object, int]
    order: tuple[int, ...]


class Stream:
    """An in-order queue of operations on one device; it never blocks the program that fills it."""

    def __init__(self, host: HostProgram, device: Device) -> None:
        self._host = host
        self._engine = engine = host.engine
        self.device = device
        self._last: simpy.Event | None = None
        assert device.index is not None
        self._races = engine.races(device.index)
        self._submitted = 0
        self._after: dict[object, int] = {}  # other stream: how many of its operations precede the next one here
        self._waits: list[tuple[simpy.Event, object]] = []  # what it has been told to wait for; for messages
        self._order: tuple[int, ...] = ()  # the latest operations that precede the next one, and so do those:
        self._heard: dict[Stream, tuple[int, ...]] = {}

    def operation(self, communication: Communication | None = None) -> int:
        """Record what the host queues here next; return its number."""
        assert self.device.index is not None
        heard = self._host.heard
        waited = sorted({n for s, order in heard.items() if self._heard.get(s) != order for n in order})
        number = self._engine.operations.append(self.device.index, self._order, waited, communication)
        self._order, self._heard = (number,), dict(heard)
        return number

    def submit(
        self, start: Start, keep: object = None, after: StartOfWork = _AT_ONCE, operation: int = -1
    ) -> simpy.Event:
        """Call `start` when all earlier operations are complete; return its completion event.

        The event has the value of the one that `start` returns. `keep`, and what `start` refers to, live until then.
        `start` is not called before `after`, when the host and the device are ready for it.
        """
        done = simpy.Event(self._engine.env)
        self._submitted += 1
        if after.step is not None:  # the steps of several devices may begin together
            self._engine.env.core.couple(1)
        task = None if self._races is None else self._races.submit(self, self._submitted, self._after)

        def finished(event: simpy.Event, keep: object = (start, keep)) -> None:
            if task is not None:
                task.finish()
            done.succeed(event.value)

        def begin(_: simpy.Event | None = None) -> None:
            now = self._engine.env._now
            at = max(now, after.ready_ps) + after.fetch_ps
            if at > now:
                self._engine.env.call_at(at, started)
            else:
                started()

        def started(_: object = None) -> None:
            if task is not None:
                task.begin()
            event = _sending(self._engine, operation, after.step, start if task is None else partial(task.run, start))
            assert event.callbacks is not None, "what has just been started is not complete"
            event.callbacks.append(finished)

        before, self._last = self._last, done
        if before is None or before.callbacks is None:
            begin()
        else:
            before.callbacks.append(begin)
        return done

    def wait_stream(self, other: Stream) -> None:
        """Order all later submissions after everything that `other` holds now."""
        self._follow(other.mark())
        last = other._last
        if last is not None and last.callbacks is not None:
            self.submit(lambda: self._engine.env.timeout(0) if last.processed else last)

    def mark(self) -> Mark:
        """Return the place after the operations that have been submitted."""
        return Mark(self, self._submitted, self._after, self._order)

    def wait_event(self, event: simpy.Event, what: object, mark: Mark) -> None:
        """Order all later submissions after `event`, which completes the operation before `mark`."""
        self._follow(mark)
        if event.callbacks is not None:
            self._waits = [(e, w) for e, w in self._waits if not e.processed] + [(event, what)]
            self.submit(lambda: self._engine.env.timeout(0) if event.processed else event)

    def _follow(self, mark: Mark) -> None:
        self._order = tuple(sorted({*self._order, *mark.order}))
        if self._races is not None:
            after = {**mark.after, mark.stream: mark.number}
            self._after = {s: max(self._after.get(s, 0), after.get(s, 0)) for s in {**self._after, **after}}

    def wait(self, event: simpy.Event, what: object, mark: Mark | None = None) -> Any:
        """Run the clock until `event` of this stream has happened; return its value. `what` is for messages."""
        value = self._engine.wait(event, _Waited(what, self._waits))
        if event is self._last:
            self._last = None
        self._host.heard[self] = self._order if mark is None else mark.order
        return value

    def synchronize(self) -> None:
        """Run the clock until every operation is complete."""
        if self._last is not None:
            self.wait(self._last, f"a synchronize of {self.device}")

    def query(self) -> bool:
        """Return True if every operation is complete."""
        return self._last is None or self._last.callbacks is None

    def __repr__(self) -> str:
        return f"<Stream of {self.device}, {'idle' if self.query() else 'busy'}>"


@dataclass(frozen=True, slots=True)
class _Waited:
    """The wait of the host, and that of its stream then; for messages."""

    what: object
    waits: Sequence[tuple[simpy.Event, object]]

    def __str__(self) -> str:
        blocked = (str(what) for event, what in self.waits if not event.processed)
        return ", whose stream waits for ".join([str(self.what), *list(blocked)[:1]])


class Event:
    """A mark in a stream, as `torch.cuda.Event`: `record` queues it, `elapsed_time` compares two.

    `record` without a stream uses what `current_stream` returns.
    """

    def __init__(self, current_stream: Callable[[], Stream], enable_timing: bool = False) -> None:
        self._current_stream = current_stream
        self._timing = enable_timing
        self._stream: Stream | None = None
        self._done: simpy.Event | None = None
        self._mark: Mark | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the point after everything that `stream` (by default the current device's) holds now."""
        self._stream = stream or self._current_stream()
        engine = self._stream._engine
        self._done = self._stream.submit(lambda: engine.env.timeout(0, engine.now_ns))
        self._mark = self._stream.mark()

    def query(self) -> bool:
        """Return True if the mark has been reached, or was never recorded."""
        return self._done is None or self._done.callbacks is None

    def synchronize(self) -> None:
        """Run the clock until the mark has been reached."""
        if self._stream is not None and self._done is not None and not self.query():
            self._stream.wait(self._done, "a synchronize with an event", self._mark)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the simulated time from this mark to `end_event` [ms]; both must be reached, with timing enabled."""
        if not (self._timing and end_event._timing):
            raise RuntimeError("both events need enable_timing=True before calculating elapsed time")
        if self._done is None or end_event._done is None:
            raise RuntimeError("both events must be recorded before calculating elapsed time")
        if not (self.query() and end_event.query()):
            raise RuntimeError(
                "both events must be completed before calculating elapsed time; call torch.ahbm.synchronize() first"
            )
        return (self._at(end_event._done) - self._at(self._done)) / 1e6

    @staticmethod
    def _at(done: simpy.Event) -> float:
        now_ns: Any = done.value
        return float(now_ns)

    def __repr__(self) -> str:
        state = "not recorded" if self._done is None else "reached" if self.query() else "pending"
        return f"<Event, {state}>"


class LaunchGraph:
    """Launches and collectives on one device that the host sends in one message; `torch.ahbm.graph()` captures them.

    The device's IO CPU starts each one when it learns of the end of the previous one, without the host.
    """

    def __init__(self, host: HostProgram, sip: int) -> None:
        self._host, self._sip = host, sip
        self._queue: list[Callable[[StartOfWork], object]] = []
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, queue: Callable[[StartOfWork], object], arguments: int) -> None:
        """Capture a launch or collective: `queue` queues it on the device."""
        self._queue.append(queue)
        self._nbytes += LAUNCH_BYTES + ARGUMENT_BYTES * arguments

    def replay(self) -> None:
        """Queue all of them, in capture order; collectives meet those of the other ranks, which replay graphs, too."""
        for _ in self.replaying():
            pass

    def replaying(self) -> Iterator[None]:
        """Queue them one by one."""
        self._host.forget_moved(self._sip)
        if not self._queue:
            return
        start = replace(self._host.start_of_work(), step=GraphStep(self._nbytes, True))
        for i, queue in enumerate(self._queue):
            queue(start.of(i, len(self)))
            yield

    def __repr__(self) -> str:
        return f"<Graph of {len(self)} launches on ahbm:{self._sip}>"


@dataclass(slots=True)
class _Rank:
    device: int
    chosen: bool = False
    busy_until_ps: int = 0  # preparing launches
    heard: dict[Stream, tuple[int, ...]] = field(default_factory=dict)  # the latest operations it has waited for


class HostProgram:
    """Shared by a program's tensors and launches.

    The program takes no simulated time: requests to a device are queued in the device's stream, and time passes while
    the program waits.
    """

    def __init__(self, engine: GraphEngine, selector: DeviceSelector) -> None:
        self.engine = engine
        self.config = engine.machine.config
        self.n_devices: int = self.config.n_sips
        self.pes = [(c, p) for c in range(self.config.cubes_per_sip) for p in range(self.config.pes_per_cube)]
        self.memory = DeviceMemory(self.config, engine.allocators, self._unmap)
        self.requests = 0
        # Collectives in progress that the program must wait for: a description, and the line of the call.
        self.unwaited: dict[simpy.Event, tuple[Callable[[], str], Line | None]] = {}
        self.is_open = True
        self.ranks: SpawnContext | None = None
        self.at_ranks_start: list[Callable[[int], None]] = []
        self.at_ranks_end: list[Callable[[], None]] = []
        self._first = selector.first
        self._streams: dict[tuple[int, str], Stream] = {}
        self.stream_of: Callable[[str], str] = str  # of a group or message; those with one result share a stream
        self._graphs: dict[int, LaunchGraph] = {}  # those that are capturing, by SIP
        # In the order of allocation, in which the end of the session frees them.
        self._handles: weakref.WeakValueDictionary[int, TensorHandle] = weakref.WeakValueDictionary()
        self._moved: weakref.WeakSet[TensorHandle] = weakref.WeakSet()  # those that operators have moved
        self._ranks: weakref.WeakKeyDictionary[greenlet, _Rank] = weakref.WeakKeyDictionary()
        self._named = self._allocated = 0

    # -- devices

    @property
    def current(self) -> int:
        return self._rank().device

    def set_current(self, device: DeviceLike) -> None:
        rank = self._rank()
        rank.device, rank.chosen = self.index(device), True

    @contextmanager
    def on(self, device: DeviceLike) -> Iterator[None]:
        rank = self._rank()
        before = rank.device, rank.chosen
        self.set_current(device)
        try:
            yield
        finally:
            rank.device, rank.chosen = before

    def device(self, device: DeviceLike) -> Device:
        found = Device(device)
        if found.type == "cpu":
            return Device("cpu")
        index = self.current if found.index is None else found.index
        if index >= self.n_devices:
            raise RuntimeError(
                f"device = {found}: the machine has {self.n_devices} SIPs, ahbm:0 to ahbm:{self.n_devices - 1}"
            )
        return Device("ahbm", index)

    def place(self, device: DeviceLike) -> Device:
        """As `device`, for a new tensor; with KERNBENCH_DEBUG=1 warn if the program chose no device."""
        rank = self._rank()
        found = Device(device)
        unchosen = found.type != "cpu" and found.index is None and not rank.chosen and self.n_devices > 1
        if unchosen and os.environ.get("KERNBENCH_DEBUG") == "1":
            rank.chosen = True  # warn once
            warn(
                f"a tensor goes to ahbm:{rank.device} because no device was chosen; call torch.ahbm.set_device(...) "
                'first, or name one: device="ahbm:0"'
            )
        return self.device(found)

    def index(self, device: DeviceLike | None) -> int:
        if device is None:
            return self.current
        index = self.device(device).index
        if index is None:
            raise RuntimeError(f"device = {device} is the host; expected an ahbm device")
        return index

    def stream(self, sip: int, name: str = "") -> Stream:
        """Return the stream of a device; each `name` is a separate, concurrent one, unless `stream_of` maps it."""
        name = self.stream_of(name) if name else name
        found = self._streams.get((sip, name))
        if found is None:
            found = self._streams[sip, name] = Stream(self, Device("ahbm", sip))
        return found

    def synchronize(self, sip: int | None = None) -> None:
        for (device, _), stream in list(self._streams.items()):
            if sip in (None, device):
                stream.synchronize()
        self.unwaited = {event: found for event, found in self.unwaited.items() if not event.processed}

    # -- ranks

    @property
    def rank(self) -> Rank | None:
        """None in the program that spawned the ranks."""
        return None if self.ranks is None else self.ranks.current

    @property
    def rank_index(self) -> int:
        rank = self.rank
        return 0 if rank is None else rank.index

    def ranks_ended(self) -> None:
        if self.ranks is not None and self.ranks.errors:
            self.unwaited.clear()  # nobody is left to wait for them
        for notify in self.at_ranks_end:
            notify()

    @property
    def heard(self) -> dict[Stream, tuple[int, ...]]:
        """By stream, the latest operations that the calling rank has waited for."""
        return self._rank().heard

    def _rank(self) -> _Rank:
        return self._ranks.setdefault(getcurrent(), _Rank(self._first))

    # -- memory

    def allocate(
        self, sip: int, shape: Sequence[int], dtype: DType, shards: Sequence[ShardSpec | TensorShard],
        dp: DPPolicy | None = None, name: str | None = None,
    ) -> TensorHandle:  # fmt: skip
        """Allocate a tensor, mapped on every PE of its SIP; its contents are undefined."""
        self.check_open()
        if name is None:
            name, self._named = f"tensor{self._named}", self._named + 1
        place = partial(self.memory.place, name, sip, shape, dtype, shards, dp)
        try:
            handle = place()
        except AllocationError:
            # Pending operations may still hold the memory of deleted tensors.
            self.stream(sip).synchronize()
            handle = place()
        self._handles[self._allocated] = handle
        self._allocated += 1
        races = self.engine.races(sip)
        if races is not None:
            for same in handle.layout.replicated():
                copies = Copies(handle.name, [shard.pa for shard in same], same[0].nbytes)
                handle.copies.append(copies)
                weakref.finalize(handle, races.replicate(copies)).atexit = False
        if handle.nbytes:
            ranges = map_ranges(handle.va, handle.layout.shards, self.pes)
            self._submit(handle, lambda: self.engine.map(sip, ranges, handle.name))
        return handle

    def _unmap(self, sip: int, va: int, nbytes: int) -> None:
        if self.is_open and self.engine.failure is None:
            self.engine.unmap(sip, self.pes, va, nbytes)

    # -- operations

    def read(self, handle: TensorHandle, pieces: list[ByteSpan]) -> np.ndarray | None:
        """Return the bytes of `pieces` once everything queued before is complete; None in a session without data."""
        self._check_alive(handle)
        self.check_no_capture(handle.sip)
        if not pieces:
            return np.zeros(0, np.uint8)
        self.requests += 1
        done = self._submit(handle, lambda: self.engine.read(pieces))
        data: np.ndarray | None = self.stream(handle.sip).wait(done, f"a read of {handle.name!r}")
        for copies in handle.copies:
            self.engine.guarded(partial(copies.check, self.engine.memory))
        return data

    def write(self, handle: TensorHandle, pieces: list[ByteSpan], data: np.ndarray | None) -> None:
        self._check_alive(handle)
        self.check_no_capture(handle.sip)
        handle.moved.clear()
        if pieces:
            self.requests += 1
            self._submit(handle, lambda: self.engine.write(pieces, data))

    def launch(
        self, sip: int, targets: Sequence[tuple[int, int]], kernel: Callable[..., object], args: tuple[object, ...],
        name: str, handles: Sequence[TensorHandle], reads: Sequence[TensorHandle] = (),
    ) -> None:  # fmt: skip
        """Queue a kernel on `targets`, as (cube, PE); `handles` live until it is complete.

        The kernel does not write the memory in `reads`.
        """

        def begin() -> simpy.Event:
            return self.engine.launch(sip, targets, kernel, args, name).done

        if (graph := self._graphs.get(sip)) is not None:
            graph.add(lambda after: self.start(sip, begin, handles, after), len(args))
            return
        self.start(sip, begin, handles, self.start_of_work(name), reads)

    def start_of_work(self, name: str = "", collective: bool = False) -> StartOfWork:
        """Reserve host time to prepare a launch, a graph or a collective, after the calling rank's earlier ones."""
        host, rank = self.config.system.host, self._rank()
        prepare_ns = host.launch_ns + (host.collective_ns if collective else 0.0)
        rank.busy_until_ps = max(self.engine.env._now, rank.busy_until_ps) + ns_to_ps(prepare_ns)
        bell_ps = rank.busy_until_ps + ns_to_ps(host.doorbell_ns)
        return StartOfWork(bell_ps, ns_to_ps(host.fetch_ns(name, collective)))

    def start(
        self, sip: int, start: Start, handles: Sequence[TensorHandle], after: StartOfWork = _AT_ONCE,
        reads: Sequence[TensorHandle] = (), communication: Communication | None = None,
    ) -> None:  # fmt: skip
        """Queue `start` on a device; `handles` live until it is complete, and those in `reads` are not written."""
        self.check_no_capture(sip)
        for handle in handles:
            self._check_alive(handle)
            if handle not in reads:
                handle.moved.clear()
        self.check_open()
        self.requests += 1
        stream = self.stream(sip)
        stream.submit(start, tuple(handles), after, stream.operation(communication))

    def forget_moved(self, sip: int) -> None:
        """Drop the copies of operands that operators keep on a device: the originals may have changed."""
        for handle in [x for x in self._moved if x.sip == sip]:
            handle.moved.clear()
            self._moved.remove(handle)

    def keep_moved(self, handle: TensorHandle, key: Hashable, moved: object) -> None:
        handle.moved[key] = moved
        self._moved.add(handle)

    def capturing(self, sip: int) -> LaunchGraph | None:
        return self._graphs.get(sip)

    @contextmanager
    def capture(self, sip: int, graph: LaunchGraph | None = None) -> Iterator[LaunchGraph]:
        """Add launches and collectives to `graph`, or to a new one."""
        self.check_no_capture(sip)
        graph = self._graphs[sip] = LaunchGraph(self, sip) if graph is None else graph
        try:
            yield graph
        finally:
            del self._graphs[sip]

    def check_no_capture(self, sip: int) -> None:
        if sip in self._graphs:
            raise RuntimeError(
                f"ahbm:{sip} is capturing a graph, which takes launches and collectives of torch.distributed only; "
                "move it out of the block"
            )

    def _submit(self, handle: TensorHandle, start: Start) -> simpy.Event:
        return self.stream(handle.sip).submit(start, keep=handle)

    # -- end

    def close(self) -> None:
        self.is_open = False
        if self.ranks is not None:
            self.ranks.stop()
        self._streams.clear()
        for handle in list(self._handles.values()):
            handle.release()

    def check_open(self) -> None:
        if not self.is_open:
            raise RuntimeError("the session is closed: its with-block has ended; open a new one with kb.session()")

    def _check_alive(self, handle: TensorHandle) -> None:
        self.check_open()
        if not handle.is_alive:
            raise RuntimeError(f"tensor {handle.name!r} has been freed")
