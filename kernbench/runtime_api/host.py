"""The host of one program: its engine, the memory it hands out, and the queue of each device."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import greenlet
import numpy as np
import simpy

from kernbench.dtypes import DType
from kernbench.errors import AllocationError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.layout import Layout, Piece
from kernbench.runtime_api.memory import DeviceMemory, TensorHandle
from kernbench.runtime_api.messages import map_ranges
from kernbench.runtime_api.ranks import Rank, Ranks
from kernbench.runtime_api.stream import Stream
from kernbench.runtime_api.types import Device, DeviceLike, DeviceSelector
from kernbench.sim_engine.races import Copies

if TYPE_CHECKING:
    from kernbench.runtime_api.collective import Collectives
    from kernbench.runtime_api.work import Work
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.sim_engine.lines import Line

ONE_PE = DPPolicy(num_cubes=1, num_pes=1)


@dataclass(slots=True)
class _Rank:
    """The current device of one rank (a greenlet), and whether the program chose it."""

    device: int
    chosen: bool = False


class Host:
    """What a program's tensors and launches are made of.

    The program runs in no simulated time. What it asks of a device is queued in the device's stream; time passes
    when it waits.

    Parameters
    ----------
    engine : GraphEngine
        The simulated machine.
    selector : DeviceSelector
        Which device is current at the start.

    Attributes
    ----------
    n_devices : int
        SIPs of the machine.
    pes : list of (cube, pe)
        Every PE of a SIP.
    collectives : Collectives
        Queues between PEs, installed so far.
    requests : int
        Launches and copies asked for so far.
    unwaited : dict
        Asynchronous collectives and messages that the program has not waited for, and the lines that began them.
    is_open : bool
        False after `close`.
    ranks : Ranks or None
        The ranks that were started last.
    at_ranks_start : list of callable
        Called with the number of ranks that are about to start; may refuse it.
    at_ranks_end : list of callable
        Called when no rank is left.
    """

    def __init__(self, engine: GraphEngine, selector: DeviceSelector) -> None:
        self.engine = engine
        self.config = engine.machine.config
        self.n_devices: int = self.config.n_sips
        self.pes = [(c, p) for c in range(self.config.cubes_per_sip) for p in range(self.config.pes_per_cube)]
        self.memory = DeviceMemory(self.config, engine.allocators, self._unmap)
        self.requests = 0
        self.unwaited: dict[Work, Line | None] = {}
        self.is_open = True
        self.ranks: Ranks | None = None
        self.at_ranks_start: list[Callable[[int], None]] = []
        self.at_ranks_end: list[Callable[[], None]] = []
        self._first = selector.first
        self._streams: dict[tuple[int, str], Stream] = {}
        self._handles: weakref.WeakSet[TensorHandle] = weakref.WeakSet()
        self._ranks: weakref.WeakKeyDictionary[greenlet.greenlet, _Rank] = weakref.WeakKeyDictionary()
        self._named = 0

    @cached_property
    def collectives(self) -> Collectives:
        """Queues between PEs, installed so far; not imported before a collective is asked for."""
        from kernbench.runtime_api.collective import Collectives

        return Collectives(self.engine)

    # -- devices

    @property
    def current(self) -> int:
        """The current device of the calling rank."""
        return self._rank().device

    def set_current(self, device: DeviceLike) -> None:
        """Make `device` the current one of the calling rank."""
        rank = self._rank()
        rank.device, rank.chosen = self.index(device), True

    @contextmanager
    def on(self, device: DeviceLike) -> Iterator[None]:
        """Make `device` the current one for a while."""
        rank = self._rank()
        before = rank.device, rank.chosen
        self.set_current(device)
        try:
            yield
        finally:
            rank.device, rank.chosen = before

    def device(self, device: DeviceLike) -> Device:
        """Return `device` with its index filled in, checked against the machine."""
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
        """Return `device` as `device` does, for a new tensor; with KERNBENCH_DEBUG=1 warn if nobody chose it."""
        rank = self._rank()
        found = Device(device)
        unchosen = found.type != "cpu" and found.index is None and not rank.chosen and self.n_devices > 1
        if unchosen and os.environ.get("KERNBENCH_DEBUG") == "1":
            rank.chosen = True  # said once
            warnings.warn(
                f"a tensor goes to ahbm:{rank.device} because nobody chose a device; call torch.ahbm.set_device(...) "
                'first, or name one: device="ahbm:0"',
                stacklevel=5,
            )
        return self.device(found)

    def index(self, device: DeviceLike | None) -> int:
        """Return the SIP that `device` (None: the current one) means."""
        if device is None:
            return self.current
        index = self.device(device).index
        if index is None:
            raise RuntimeError(f"device = {device} is the host; expected an ahbm device")
        return index

    def stream(self, sip: int, name: str = "") -> Stream:
        """Return the stream of a device; by `name`, one that runs beside it."""
        found = self._streams.get((sip, name))
        if found is None:
            found = self._streams[sip, name] = Stream(self.engine, Device("ahbm", sip))
        return found

    def synchronize(self, sip: int | None = None) -> None:
        """Run the clock until everything queued on one device, or on all, is complete."""
        for (device, _), stream in list(self._streams.items()):
            if sip in (None, device):
                stream.synchronize()
        for work in list(self.unwaited):
            work.is_completed()

    # -- ranks

    @property
    def rank(self) -> Rank | None:
        """The rank that is running; None in the program that started them."""
        return None if self.ranks is None else self.ranks.current

    @property
    def rank_index(self) -> int:
        """The number of the rank that is running; 0 in a program of one."""
        rank = self.rank
        return 0 if rank is None else rank.index

    def start_ranks(self, programs: Sequence[Callable[[], object]]) -> Ranks:
        """Return ranks that run `programs` whenever the host waits."""
        for tell in self.at_ranks_start:
            tell(len(programs))
        self.ranks = Ranks(self.engine, programs, self._ranks_ended)
        return self.ranks

    def _ranks_ended(self) -> None:
        if self.ranks is not None and self.ranks.errors:
            self.unwaited.clear()  # who would have waited has been ended
        for tell in self.at_ranks_end:
            tell()

    def _rank(self) -> _Rank:
        me = greenlet.getcurrent()
        rank = self._ranks.get(me)
        if rank is None:
            rank = self._ranks[me] = _Rank(self._first)
        return rank

    # -- memory

    def deploy(
        self, shape: Sequence[int], dtype: DType, device: DeviceLike, dp: DPPolicy | None, name: str | None
    ) -> DeviceTensor:
        """Return a tensor with memory on `device`, mapped on every PE of its SIP; its contents are undefined."""
        sip = self.index(device)
        handle = self._hold(sip, lambda: self.memory.place(self._name(name), sip, shape, dtype, dp or ONE_PE))
        return DeviceTensor(self, handle, handle.layout)

    def deploy_like(self, layout: Layout, device: Device, name: str | None = None) -> DeviceTensor:
        """Return a tensor on the PEs that `layout` names, on `device`; its contents are undefined."""
        sip = self.index(device)
        handle = self._hold(sip, lambda: self.memory.place_like(self._name(name), sip, layout))
        return DeviceTensor(self, handle, handle.layout)

    def _hold(self, sip: int, place: Callable[[], TensorHandle]) -> TensorHandle:
        self.check_open()
        try:
            handle = place()
        except AllocationError:
            # Memory of deleted tensors may wait for operations that still need it.
            self.stream(sip).synchronize()
            handle = place()
        self._handles.add(handle)
        self._watch_copies(sip, handle)
        if handle.nbytes:
            ranges = map_ranges(handle.va, handle.layout.shards, self.pes)
            self._submit(handle, lambda: self.engine.map(sip, ranges, handle.name))
        return handle

    def _watch_copies(self, sip: int, handle: TensorHandle) -> None:
        races = self.engine.races(sip)
        if races is None:
            return
        for shards in handle.layout.replicated():
            copies = Copies(handle.name, [shard.pa for shard in shards], shards[0].nbytes)
            handle.copies.append(copies)
            weakref.finalize(handle, races.replicate(copies)).atexit = False

    def _unmap(self, sip: int, va: int, nbytes: int) -> None:
        if self.is_open and self.engine.failure is None:
            self.engine.unmap(sip, self.pes, va, nbytes)

    def _name(self, name: str | None) -> str:
        if name is None:
            name, self._named = f"tensor{self._named}", self._named + 1
        return name

    # -- operations

    def read(self, handle: TensorHandle, pieces: list[Piece]) -> np.ndarray | None:
        """Return the bytes of `pieces` when everything queued before is complete; None in a session without data."""
        self._check_alive(handle)
        if not pieces:
            return np.zeros(0, np.uint8)
        self.requests += 1
        done = self._submit(handle, lambda: self.engine.read(pieces))
        data: np.ndarray | None = self.stream(handle.sip).wait(done, f"a read of {handle.name!r}")
        for copies in handle.copies:
            self.engine.guarded(partial(copies.check, self.engine.memory))
        return data

    def write(self, handle: TensorHandle, pieces: list[Piece], data: np.ndarray | None) -> None:
        """Queue a copy of `data` to `pieces`."""
        self._check_alive(handle)
        if pieces:
            self.requests += 1
            self._submit(handle, lambda: self.engine.write(pieces, data))

    def launch(
        self, sip: int, targets: Sequence[tuple[int, int]], kernel: Callable[..., object], args: tuple[Any, ...],
        name: str, handles: Sequence[TensorHandle],
    ) -> None:  # fmt: skip
        """Queue a kernel on `targets`, as (cube, PE); `handles` are kept until it is complete."""
        self.start(sip, lambda: self.engine.launch(sip, targets, kernel, args, name).done, handles)

    def start(self, sip: int, start: Callable[[], simpy.Event], handles: Sequence[TensorHandle]) -> None:
        """Queue what `start` starts on a device; `handles` are kept until it is complete."""
        for handle in handles:
            self._check_alive(handle)
        self.check_open()
        self.requests += 1
        self.stream(sip).submit(start, keep=tuple(handles))

    def _submit(self, handle: TensorHandle, start: Callable[[], simpy.Event]) -> simpy.Event:
        return self.stream(handle.sip).submit(start, keep=handle)

    # -- end

    def close(self) -> None:
        """Free every tensor; what is still queued is forgotten."""
        self.is_open = False
        if self.ranks is not None:
            self.ranks.stop()
        self._streams.clear()
        for handle in list(self._handles):
            handle.release()

    def check_open(self) -> None:
        """Refuse to go on after the end of the session."""
        if not self.is_open:
            raise RuntimeError("the session is closed: its with-block has ended; open a new one with kb.session()")

    def _check_alive(self, handle: TensorHandle) -> None:
        self.check_open()
        if not handle.is_alive:
            raise RuntimeError(f"tensor {handle.name!r} has been freed")
