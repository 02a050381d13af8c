"""`torch`: the namespace in which a program for one simulated machine is written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import numpy as np

from kernbench import _dtypes as dtypes
from kernbench._dtypes import DType, as_dtype, bool_, float32, int64
from kernbench._registry import hint
from kernbench.analysis._manifest import Manifest
from kernbench.analysis.result import Result
from kernbench.errors import LimitError, StateError, quote
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api import _devices as devices
from kernbench.runtime_api import _operators as operators
from kernbench.runtime_api import tensor, types
from kernbench.runtime_api._device_tensor import DeviceTensor, deploy, queue_launch
from kernbench.runtime_api._devices import HostProgram, warn
from kernbench.runtime_api._making import Told, ValueMaker
from kernbench.runtime_api._multiprocessing import Multiprocessing
from kernbench.runtime_api.tensor import CPU, HostTensor, Tensor, as_shape
from kernbench.runtime_api.types import Device, DeviceLike, DeviceSelector, resolve_device
from kernbench.sim_engine._limits import Expired, Guard, Limits
from kernbench.sim_engine._user_code import Line
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import Machine, resolve_topology

if TYPE_CHECKING:
    from kernbench.ccl.algorithm import CollectivePlan
    from kernbench.ccl.install import AlgorithmLike, CclLike
    from kernbench.runtime_api.collective import Collectives
    from kernbench.runtime_api.distributed import Distributed


class TypeNames:
    Tensor = tensor.Tensor
    Size = tensor.Size
    device = types.Device
    dtype = dtypes.DType

    float32 = float = dtypes.float32
    float64 = double = dtypes.float64
    float16 = half = dtypes.float16
    bfloat16 = dtypes.bfloat16
    float8_e4m3fn = dtypes.float8_e4m3fn
    float8_e5m2 = dtypes.float8_e5m2
    int8 = dtypes.int8
    uint8 = dtypes.uint8
    int16 = short = dtypes.int16
    int32 = int = dtypes.int32
    int64 = long = dtypes.int64
    uint16 = dtypes.uint16
    uint32 = dtypes.uint32
    uint64 = dtypes.uint64
    bool = dtypes.bool_


SizeLike = int | Sequence[int]
_Values = Callable[[tuple[int, ...]], Any]


class _Options(TypedDict, total=False):
    dtype: DType | str | None
    device: DeviceLike | None
    dp: DPPolicy | None
    name: str | None


def _all(value: float) -> _Values:
    """Return a factory of broadcast constants, which take no memory."""
    return lambda shape: np.broadcast_to(np.asarray(value), shape)


def _default(values: np.ndarray) -> DType:
    return bool_ if values.dtype == bool else int64 if values.dtype.kind in "iu" else float32


class _Devices:
    """Common to both names of the device module: a device is a SIP."""

    def __init__(self, host: HostProgram) -> None:
        self._host = host

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return self._host.n_devices

    def synchronize(self, device: DeviceLike | None = None) -> None:
        """Run the clock until everything queued on `device` (default: the current one) is complete."""
        self._host.synchronize(self._host.index(device))

    def _current(self) -> int:
        return self._host.current

    def _set(self, device: DeviceLike) -> None:
        self._host.set_current(device)

    def _on(self, device: DeviceLike) -> AbstractContextManager[None]:
        return self._host.on(device)


class Ahbm(_Devices):
    """`torch.ahbm`, the device module: a device is a SIP."""

    Stream = devices.Stream
    current_device, set_device, device = _Devices._current, _Devices._set, _Devices._on

    def current_stream(self, device: DeviceLike | None = None) -> devices.Stream:
        """Return the queue of `device` (default: the current one); each device has one."""
        return self._host.stream(self._host.index(device))

    def graph(self) -> AbstractContextManager[devices.LaunchGraph]:
        """Capture launches on the current device inside the with-block; `replay()` of the graph queues them.

        The host sends a graph in one message, and the device starts each launch at the end of the previous one without
        the host: this saves the round trips between the host and the device. Collectives of `torch.distributed` are
        captured, too, on each rank, with `async_op` or without: all ranks of the group replay their graphs.

        Returns
        -------
        context manager
            Of the `LaunchGraph`.

        Raises
        ------
        RuntimeError
            If the block copies from or to the device, sends or receives a message, or calls `torch.collective`.

        Examples
        --------
        >>> from kernbench.kernels.elementwise import add
        >>> with session("preset:small", data=True) as torch:
        ...     x = torch.ones(4, device="ahbm")
        ...     with torch.ahbm.graph() as graph:
        ...         torch.launch("first", add, x, x, x, 4)
        ...         torch.launch("second", add, x, x, x, 4)
        ...     graph.replay()
        ...     x.numpy()
        array([4., 4., 4., 4.], dtype=float32)
        """
        return self._host.capture(self._host.current)

    def Event(self, enable_timing: bool = False) -> devices.Event:
        """Return a mark to record in a stream; `elapsed_time` is simulated time in ms."""
        return devices.Event(self.current_stream, enable_timing)


class Accelerator(_Devices):
    """`torch.accelerator`: the same devices under torch's general names."""

    current_device_index, set_device_index, device_index = _Devices._current, _Devices._set, _Devices._on

    def current_accelerator(self, check_available: bool = False) -> Device:
        return Device("ahbm")

    def memory_allocated(self, device_index: DeviceLike | None = None) -> int:
        """Return the bytes of the program's tensors on a device, copies of replicated parts included."""
        return self._host.memory.allocated[self._host.index(device_index)]

    def max_memory_allocated(self, device_index: DeviceLike | None = None) -> int:
        """Return the peak of `memory_allocated` since the start or the last reset."""
        return self._host.memory.peak[self._host.index(device_index)]

    def reset_peak_memory_stats(self, device_index: DeviceLike | None = None) -> None:
        """Restart the measurement of the peak."""
        sip = self._host.index(device_index)
        self._host.memory.peak[sip] = self._host.memory.allocated[sip]


class _Open(threading.local):
    def __init__(self) -> None:
        self.sessions: list[RuntimeContext] = []


_open = _Open()


def current_session() -> RuntimeContext:
    """Return the session whose with-block the caller is in; of several, the innermost."""
    if not _open.sessions:
        raise StateError("no session is open: call it inside `with kb.session(...) as torch:`, or pass torch=torch")
    return _open.sessions[-1]


class RuntimeContext(TypeNames):
    """One simulated machine under torch's names; a context manager, used as `torch`.

    Every function that makes a tensor takes `dtype` (torch's objects, or names such as "f16"), `device` (default "cpu",
    with `dp` the current device), `dp` (a DPPolicy: which PEs hold which part; default PE 0 of cube 0) and `name` (for
    messages). Values of a new tensor on a device cost no simulated time: `copy_` and `to` model how values
    get into a machine. Its memory is mapped by messages through the machine.

    The with-block's end waits for everything that was queued, then frees every tensor; `result` remains. After an
    exception nothing is waited for, and the result is marked incomplete.

    Parameters
    ----------
    engine : GraphEngine
        The machine.
    target_device : DeviceSelector or str, optional
        "all" (default; device 0 is current at first) or "sip:N".
    correlation_id : str
        Name of the run in its result.
    spec : mapping, optional
        The content of the machine file; default: the engine's.
    limits : Limits or mapping, optional
        Limits on events, simulated time and host time.

    Attributes
    ----------
    ahbm : Ahbm
        The device module.
    accelerator : Accelerator
        torch's general names for it.
    multiprocessing : Multiprocessing
        Programs for several devices.
    distributed : Distributed
        Collectives between them.
    checks : int
        Number of results that the program has compared with a reference; a comparison adds one.
    """

    def __init__(
        self, engine: GraphEngine, target_device: DeviceSelector | str | None = None, correlation_id: str = "run",
        spec: Mapping[str, Any] | None = None, limits: Limits | Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.target_device = resolve_device(target_device, engine.machine.config.n_sips)
        self.correlation_id = correlation_id
        self.spec = engine.machine.spec if spec is None else spec
        self._host = HostProgram(engine, self.target_device)
        self._random: dict[Device, np.random.Generator] = {}
        self._seed = 0
        self._maker = ValueMaker(engine.memory)
        self.ahbm = Ahbm(self._host)
        self.accelerator = Accelerator(self._host)
        self.multiprocessing = Multiprocessing(self._host)
        self.checks = 0
        self._guard = Guard(engine, Limits.of(limits), self._ranks)
        self._broken = False
        self._final: Result | None = None

    # -- new tensors

    def empty(self, *size: SizeLike, **options: Unpack[_Options]) -> Tensor:
        """Return a tensor whose values are undefined."""
        return self._new(as_shape(size), float32, None, **options)

    def zeros(self, *size: SizeLike, **options: Unpack[_Options]) -> Tensor:
        return self._new(as_shape(size), float32, _all(0.0), **options)

    def ones(self, *size: SizeLike, **options: Unpack[_Options]) -> Tensor:
        return self._new(as_shape(size), float32, _all(1.0), **options)

    def full(self, size: SizeLike, fill_value: float, **options: Unpack[_Options]) -> Tensor:
        """Return a tensor filled with `fill_value`, whose type is the default type."""
        default = _default(np.asarray(fill_value))
        return self._new(as_shape((size,)), default, _all(fill_value), **options)

    def arange(self, start: float, end: float | None = None, step: float = 1, **options: Unpack[_Options]) -> Tensor:
        """Return start, start + step, ... below end; `arange(end)` begins at 0."""
        first, last = (0, start) if end is None else (start, end)
        if step == 0 or (last - first) / step < 0:
            raise RuntimeError(f"arange({first}, {last}, {step}): step must lead from the first to the last")
        values = np.arange(first, last, step)
        return self._new(values.shape, _default(values), lambda _: values, **options)

    def rand(self, *size: SizeLike, **options: Unpack[_Options]) -> Tensor:
        """Return random numbers, uniform in [0, 1)."""
        return self._drawn(as_shape(size), np.random.Generator.random, **options)

    def randn(self, *size: SizeLike, **options: Unpack[_Options]) -> Tensor:
        """Return random numbers of the standard normal distribution."""
        return self._drawn(as_shape(size), np.random.Generator.standard_normal, **options)

    def manual_seed(self, seed: int) -> None:
        """Restart the random numbers of every device; a session begins with seed 0, unlike torch."""
        self._seed = seed
        self._random.clear()

    def tensor(self, data: Any, **options: Unpack[_Options]) -> Tensor:
        """Return a tensor with a copy of `data`: numbers, nested sequences, or an array, which keeps its type."""
        values = np.asarray(data)
        default = as_dtype(values.dtype) if hasattr(data, "dtype") else _default(values)
        return self._new(values.shape, default, lambda _: values, **options)

    def from_numpy(self, array: np.ndarray) -> Tensor:
        """Return a tensor on the host that shares the memory of `array`."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"expected np.ndarray (got {type(array).__name__})")
        return HostTensor(self._host, array)

    def zeros_like(self, input: Tensor, **options: Unpack[_Options]) -> Tensor:
        """Return zeros with the shape, type, device and placement of `input`."""
        return self._like(input, _all(0.0), **options)

    def empty_like(self, input: Tensor, **options: Unpack[_Options]) -> Tensor:
        """Return a tensor with the shape, type, device and placement of `input`; its values are undefined."""
        return self._like(input, None, **options)

    def _like(self, input: Tensor, values: _Values | None, **options: Unpack[_Options]) -> Tensor:
        dtype = options.get("dtype")
        kind = input.dtype if dtype is None else as_dtype(dtype)
        device = options.get("device")
        where = None if device is None else self._host.device(device)
        if isinstance(input, DeviceTensor) and where in (None, input.device) and options.get("dp") is None:
            return self._filled(input._like(kind, options.get("name")), values)
        placed: _Options = {**options, "dtype": kind, "device": input.device if device is None else device}
        return self._new(tuple(input.shape), kind, values, **placed)

    def _drawn(self, shape: tuple[int, ...], draw: Callable[..., Any], **options: Unpack[_Options]) -> Tensor:
        dtype = options.get("dtype")
        if dtype is not None and not as_dtype(dtype).is_floating_point:
            raise RuntimeError(f"random numbers have a floating point type, not {as_dtype(dtype)}")

        tensor = self._new(shape, float32, None, **options)
        generator = self._generator(self._place(options.get("device"), options.get("dp")))

        def values(told: Told) -> np.ndarray:
            found: np.ndarray = np.asarray(draw(generator, shape))
            told(found.size)
            return found

        if isinstance(tensor, HostTensor):
            tensor.numpy()[...] = values(lambda _: None)
        elif self._host.engine.data:
            self.fill_later(tensor, values)
        return tensor

    def fill_later(self, tensor: Tensor, make: Callable[[Told], np.ndarray]) -> Future[np.ndarray]:
        """Fill a tensor of a device with `make(told)`, in a thread if it is large; return these values."""
        assert isinstance(tensor, DeviceTensor)
        return self._maker.fill(tensor, make)

    def _generator(self, device: Device) -> np.random.Generator:
        if device not in self._random:
            self._random[device] = np.random.default_rng(self._seed)
        return self._random[device]

    def _new(
        self, shape: tuple[int, ...], default: DType, values: _Values | None, *, dtype: DType | str | None = None,
        device: DeviceLike | None = None, dp: DPPolicy | None = None, name: str | None = None,
    ) -> Tensor:  # fmt: skip
        if min(shape, default=0) < 0:
            raise RuntimeError(f"shape {quote(shape)} has a negative size")
        kind = default if dtype is None else as_dtype(dtype)
        place = self._place(device, dp)
        if place == CPU:
            array = np.empty(shape, kind.numpy)
            if values is not None:
                array[...] = values(shape)
            return HostTensor(self._host, array)
        return self._filled(deploy(self._host, shape, kind, place, dp, name), values)

    def _filled(self, tensor: DeviceTensor, values: _Values | None) -> Tensor:
        if values is not None and self._host.engine.data:
            tensor.poke(np.asarray(values(tuple(tensor.shape))))
        return tensor

    def _place(self, device: DeviceLike | None, dp: DPPolicy | None) -> Device:
        if device is None:
            return self._host.place("ahbm") if dp is not None else CPU
        place = self._host.place(device)
        if place == CPU and dp is not None:
            raise ValueError(f'dp = {dp} places a tensor on a device, but device = {device!r}; use device="ahbm"')
        return place

    # -- operators

    nn = operators.Nn
    """`torch.nn`, of which there is `functional`."""
    matmul = staticmethod(operators.matmul)
    """Return torch's matrix product of two device tensors."""
    cat = staticmethod(operators.cat)
    """Return device tensors joined along `dim`."""
    softmax = staticmethod(operators.softmax)
    """Return softmax of a device tensor along `dim`."""
    sum = staticmethod(operators.total)
    """Return the sum of a device tensor over some dims (all)."""
    mean = staticmethod(operators.mean)
    """Return the mean of a device tensor over some dims (all)."""
    max = staticmethod(operators.largest)
    """Return the largest value of a device tensor; along `dim`, `values` and `indices`."""

    def permute(self, input: Tensor, dims: Sequence[int]) -> Tensor:
        return input.permute(*dims)

    def unsqueeze(self, input: Tensor, dim: int) -> Tensor:
        return input.unsqueeze(dim)

    # -- programs

    @cached_property
    def _collectives(self) -> Collectives:
        from kernbench.runtime_api.collective import Collectives

        return Collectives(self.engine)

    @cached_property
    def distributed(self) -> Distributed:
        """`torch.distributed`, imported when first used."""
        from kernbench.runtime_api.distributed import Distributed

        return Distributed(self._host, self._collectives)

    def launch(self, name: str, kernel: Callable[..., object], *args: Any) -> None:
        """Queue `kernel` on every PE of the current device that holds a part of a tensor argument.

        Returns at once; host reads and `synchronize` wait. Each PE runs `kernel(*args, tl=tl)`; it gets a tensor as
        a typed pointer to its first element, anything else unchanged. The tensors' memory is kept until the end.

        Parameters
        ----------
        name : str
            Name of the launch in the result.
        kernel : callable
            The program of one PE.
        *args
            Tensors on the current device, and values.
        """
        queue_launch(self._host, self._host.current, name, kernel, args)

    def collective(
        self, tensors: Sequence[Tensor | Sequence[Tensor]], algorithm: AlgorithmLike | None = None, *,
        config: CclLike | None = None, name: str | None = None, n_slots: int | None = None, **call: Any,
    ) -> CollectivePlan:  # fmt: skip
        """Queue a collective over several devices: by default an all-reduce of one tensor per device.

        Returns at once, like `launch`. A program that drives every device by itself uses this; one program for each
        device uses `torch.distributed`.

        Parameters
        ----------
        tensors : sequence
            One on each device, in rank order; where the algorithm's kernel takes several, a sequence of them each.
        algorithm : str, Algorithm, module or callable, optional
            A name of ccl.yaml or "pkg.mod:attribute"; an algorithm, made with `kernbench.ccl.algorithm.algorithm`; or
            a kernel for a ring. By default that of ccl.yaml.
        config : path, mapping or CclConfig, optional
            The ccl.yaml; by default the nearest one.
        name : str, optional
            Name of the launches in the result.
        n_slots : int, optional
            Slots of each queue's ring; by default as in the algorithm, ccl.yaml or the machine file. With
            "auto" and none stated they are chosen with the algorithm.
        **call
            Arguments of the algorithm, such as `op="max"` or `root=1`.

        Returns
        -------
        Plan
            The algorithm, and its participants.
        """
        from kernbench.runtime_api.collective import queue_collective

        return queue_collective(self._host, self._collectives, tensors, algorithm, config, name, n_slots, call)

    @property
    def is_open(self) -> bool:
        """True until its with-block has ended."""
        return self._host.is_open

    @property
    def requests(self) -> int:
        """Launches and copies requested so far."""
        return self._host.requests

    @property
    def result(self) -> Result:
        """The result of the run; stays valid after the with-block."""
        if self.is_open:
            return self._summary()
        if self._final is None:
            self._final = self._summary()
        return self._final

    def _summary(self) -> Result:
        records = self.engine.records()
        if self._broken:
            records = replace(records, complete=False)
        engine, machine = self.engine, self.engine.machine
        options: dict[str, bool | str] = {"data": engine.data, "log": engine.log.level}
        ran = Manifest("", {}, options, machine.source, machine.overrides)
        return Result(records, self.correlation_id, ran)

    def _ranks(self) -> list[str]:
        ranks = self._host.ranks
        return [] if ranks is None else [rank.place for rank in ranks.ranks if not rank.has_ended]

    def __enter__(self) -> Self:
        _open.sessions.append(self)
        self._guard.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        forgotten: list[tuple[str, Line]] = []
        late: LimitError | None = None
        try:
            if error is None and self.engine.failure is None:
                self.multiprocessing.finish()
                forgotten = [(what(), line) for what, line in self._host.unwaited.values() if line]
                self._host.synchronize()
        except Expired as expired:
            error = expired
        finally:
            _open.sessions.remove(self)
            self._guard.stop()
            late = self._guard.told(error)
            self._broken = error is not None
            self._host.close()
            self._maker.close()
        if late is not None:
            raise late from None
        for what, line in forgotten:
            warn(
                f"{what}, was never waited for: its tensors can be read too early and written too early; call wait() "
                "on the Work that it returned",
                line,
            )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            known = [n for n in dir(self) if not n.startswith("_")]
            raise AttributeError(f"torch, as simulated here, has no {quote(name)}; {hint(name, known)}")

    def __repr__(self) -> str:
        state = "open" if self._host.is_open else "closed"
        return f"<torch on {self.engine.machine!r}, {state}, {self.engine.now_ns:,.2f} ns>"


def session(
    machine: Machine | str | Path | Mapping[str, Any] | None = None, data: bool = False, log: str = "operation",
    device: DeviceSelector | str | None = None, limits: Limits | Mapping[str, float] | None = None, races: bool = True,
) -> RuntimeContext:  # fmt: skip
    """Return the torch-like namespace of a fresh machine, for a with-block.

    Parameters
    ----------
    machine : Machine, str, Path, mapping, optional
        As for `kb.load`.
    data : bool
        Whether values are moved and computed. Times are the same; without, values read from a device are NaN (or
        0 where the type has none).
    log : str
        Detail of the result: "off", "operation" or "tile".
    device : DeviceSelector or str, optional
        "all" or "sip:N": the device that is current at first.
    limits : Limits or mapping, optional
        Limits on the session's events, simulated time and host time:
        `kb.Limits(events=10**7, simulated_ns=1e9, host_s=60)`, or a mapping with these names. Without them it has no
        limit.
    races : bool
        With data, whether unordered accesses to the same bytes are an error.

    Raises
    ------
    RaceError
        Later, if two accesses race; the message names both lines.
    ConfigError
        If the machine is invalid, or a limit is not a number > 0.
    LimitError
        Later, when a limit is exceeded; the message names the line of the kernel or rank that was running.

    Examples
    --------
    >>> with session("preset:small", data=True) as torch:
    ...     a = torch.ones(4, 4, dtype=torch.float16, device="ahbm")
    ...     a.numpy().sum()
    np.float16(16.0)
    """
    engine = GraphEngine(resolve_topology(machine), data, log=log, races=races)
    return RuntimeContext(engine, device, limits=limits)
