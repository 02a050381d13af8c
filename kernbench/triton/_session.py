"""`with kb.triton.on(torch)`: launches of Triton kernels go to the PEs of a session."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from math import prod
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import numpy as np

from kernbench._dtypes import as_dtype, int64, uint64
from kernbench._registry import hint
from kernbench.errors import KernelError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology._naming import PeId
from kernbench.triton import _arguments as arguments
from kernbench.triton._cuda import CAPABILITY, Cuda, replace
from kernbench.triton._grid import ASSIGNMENTS, body_of, grid_of, programs_by_pe, tl_program
from kernbench.triton._owner import check_constants
from kernbench.triton._translate import check_names, decoration, names_of, raw
from kernbench.triton_emu._blocks import tensor_descriptor
from kernbench.triton_emu._handles import Pointer

_PES = DPPolicy(cube="row_wise", pe="row_wise", num_cubes=1)


class _Open(threading.local):
    def __init__(self) -> None:
        self.blocks: list[On] = []


_open = _Open()


def current(kernel: str) -> On:
    if not _open.blocks:
        raise KernelError(
            f"launch of {kernel!r}: use it inside of `with kb.triton.on(torch):`, which says where it runs"
        )
    return _open.blocks[-1]


class _Buffers:
    """Device memory for host tensors: reused from launch to launch, filled in no simulated time."""

    def __init__(self, torch: RuntimeContext, dp: DPPolicy) -> None:
        self.torch, self.dp = torch, dp
        self._free: dict[tuple[int, str], list[DeviceTensor]] = {}
        # By address: the memory, its copy on the device, and whether that is to be written back.
        self._taken: dict[int, tuple[arguments.HostMemory, DeviceTensor, bool]] = {}

    def pes(self) -> list[PeId]:
        """PEs over which host tensors are distributed."""
        whole = self.torch.empty(self.torch.engine.machine.config.n_pes, dtype="f32", dp=self.dp)
        assert isinstance(whole, DeviceTensor)
        return whole.pes

    def place(self, x: Any, where: str, holds_addresses: bool) -> Pointer:
        """Place a host tensor on the device; tensors that share memory are placed once.

        With `holds_addresses`, i64 or u64 memory may contain addresses of torch tensors: those tensors are placed, too,
        and their addresses translated.
        """
        memory = arguments.host_memory(x, where)
        known = self._taken.get(memory.address)
        if known is None or known[0].nbytes != memory.nbytes:
            values, changed = memory.bytes(), False
            if holds_addresses and memory.dtype in (int64, uint64):
                values, changed = self._on_the_device(values.view(np.int64))
            known = self._taken[memory.address] = memory, self._buffer(memory, values), not changed
        return Pointer(known[1].data_ptr() + memory.offset, memory.dtype)

    def _on_the_device(self, addresses: np.ndarray) -> tuple[np.ndarray, bool]:
        found = addresses.copy()
        for i, address in enumerate(addresses.tolist()):
            owner = arguments.tensor_at(address)
            if owner is not None:
                start = arguments.host_memory(owner, "a tensor whose address is in memory")
                va = self.place(owner, "a tensor whose address is in memory", False).va - start.offset
                found[i] = va + address - start.address
        return found.view(np.uint8), bool((found != addresses).any())

    def _buffer(self, memory: arguments.HostMemory, found: np.ndarray) -> DeviceTensor:
        kind = as_dtype(f"u{8 * memory.dtype.itemsize}")
        count = max(1, -(-memory.nbytes // kind.itemsize))
        free = self._free.get((count, kind.name))
        buffer = free.pop() if free else self.torch.empty(count, dtype=kind, dp=self.dp)
        assert isinstance(buffer, DeviceTensor)
        if self.torch.engine.data:
            values = np.zeros(count * kind.itemsize, np.uint8)
            values[: memory.nbytes] = found
            buffer.poke(values.view(kind.numpy))
        return buffer

    @property
    def tensors(self) -> list[DeviceTensor]:
        return [buffer for _, buffer, _ in self._taken.values()]

    def read_back(self) -> None:
        """Copy the values of the current launch to the host, and free its buffers."""
        for memory, buffer, is_returned in self._taken.values():
            if self.torch.engine.data and memory.nbytes and is_returned:
                memory.bytes()[:] = buffer.peek().view(np.uint8)[: memory.nbytes]
        self.release()

    def release(self) -> None:
        for _, buffer, _ in self._taken.values():
            self._free.setdefault((buffer.numel(), buffer.dtype.name), []).append(buffer)
        self._taken.clear()


class On:
    """A with-block in which `kernel[grid](...)` of Triton runs on the PEs of a session."""

    def __init__(
        self, torch: RuntimeContext, placement: str = "round-robin", dp: DPPolicy | None = None, cuda: bool = False
    ) -> None:  # fmt: skip
        if placement not in ASSIGNMENTS:
            raise ValueError(f"placement = {placement!r} is unknown; {hint(placement, ASSIGNMENTS)}")
        self.torch, self.placement, self.dp = torch, placement, _PES if dp is None else dp
        self.cuda = cuda
        self._buffers = _Buffers(torch, self.dp)
        self._replaced = ExitStack()
        self.tuned: dict[int, dict[tuple[Any, ...], Any]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.cuda:
                stack.enter_context(Cuda(self.torch, lambda: self in _open.blocks).replaced())
            if not _open.blocks:
                for owner, name, value in _replacements():
                    replace(stack, owner, name, value)
            self._replaced = stack.pop_all()
        _open.blocks.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.blocks.remove(self)
        self._replaced.close()

    def run(self, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any], grid: Any) -> CompiledKernel:
        fn, given = kernel, dict(kwargs)
        while decoration(fn):
            if decoration(fn) == "Autotuner":
                from kernbench.triton._autotune import fastest_arguments

                given |= fastest_arguments(self, fn, args, given, grid)
            else:
                given |= computed(fn, args, given)
            fn = fn.fn
        self.launch(fn, grid, args, given)
        values, known = arguments.bind(raw(fn), raw(fn).__name__, args, given)
        return CompiledKernel(fn, given.get("num_warps", 4), {k: values[k] for k in values if k in known})

    def launch(self, kernel: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Queue a kernel on the PEs; wait for it if a tensor is on the host."""
        function = raw(kernel)
        name = function.__name__
        values, known = arguments.bind(function, name, args, kwargs)
        sizes = grid_of(grid, values, name)
        asserts = check_names(kernel)
        if not prod(sizes):
            return
        tensors: list[DeviceTensor] = []
        try:
            casts = "pointer_type" in names_of(function.__code__)
            placed = {
                k: self._place(v, f"launch of {name!r}: argument {k!r}", tensors, casts) for k, v in values.items()
            }
            buffers = self._buffers.tensors
            targets = sorted({pe for x in tensors for pe in x.pes} | set(self._buffers.pes() if buffers else ()))
            if not targets:
                raise TypeError(f"launch of {name!r}: no argument is a tensor; a kernel runs where its tensors are")
            if asserts:
                check_constants(tl_program(function, placed, known, sizes, [(0, 0)], [[0]]))
            body = partial(body_of, function, placed, known, sizes)
            assigned = programs_by_pe(self.placement, name, body, prod(sizes), targets, tensors + buffers, self._settle)
            program = tl_program(function, placed, known, sizes, targets, assigned)
            host = self.torch._host
            handles = [x._handle for x in (*tensors, *buffers)]
            host.launch(host.current, targets, program, (), name, handles)
            if buffers:
                self.torch.ahbm.synchronize()
                self._buffers.read_back()
        finally:
            self._buffers.release()

    def _place(self, x: Any, where: str, tensors: list[DeviceTensor], casts: bool) -> Any:
        if isinstance(x, DeviceTensor):
            current = self.torch._host.current
            if x.device.index != current:
                raise TypeError(f"{where} is on {x.device}, but the current device is ahbm:{current}")
            tensors.append(x)
            return Pointer(x.data_ptr(), x.dtype)
        if arguments.is_host(x):
            return self._buffers.place(x, where, casts)
        if hasattr(x, "_array") and hasattr(x, "_host"):
            return self._buffers.place(x.numpy(), where, casts)
        if arguments.is_descriptor(x):
            shape, strides, block = ([int(n) for n in v] for v in (x.shape, x.strides, x.block_shape))
            padding = str(getattr(x, "padding", "zero"))
            return tensor_descriptor(None, self._place(x.base, where, tensors, casts), shape, strides, block, padding)
        if arguments.is_pointer(x):
            holder = arguments.tensor_of(x, where, self.torch._host)
            place = self._place(holder, where, tensors, casts)
            offset = x.data_ptr() - arguments.first_address(holder)
            return Pointer(place.va + offset, as_dtype(x.dtype))
        if isinstance(x, tuple):
            items = [self._place(item, where, tensors, casts) for item in x]
            return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
        return x

    def _settle(self) -> bool:
        """Complete queued work; return whether there are values."""
        if self.torch.engine.data:
            self.torch.ahbm.synchronize()
        return self.torch.engine.data


def computed(heuristics: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `@triton.heuristics`; each rule sees the results of earlier ones."""
    named = {**dict(zip(heuristics.arg_names, args, strict=False)), **kwargs}
    found: dict[str, Any] = {}
    for name, rule in heuristics.values.items():
        found[name] = named[name] = rule(named)
    return found


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Yield (owner, name, value) for each replaced launch or query of the installed Triton and torch."""
    # Triton is imported now, because a package may be imported inside of the block; torch takes seconds to import.
    installed = find_spec("triton") is not None
    for module, kind, name, value in (
        ("triton.runtime.jit", "JITFunction", "run", launch), ("triton.runtime.autotuner", "Autotuner", "run", launch),
        ("triton.runtime.autotuner", "Heuristics", "run", launch),
        ("triton.runtime.interpreter", "InterpretedFunction", "run", launch),
        ("triton.runtime.driver", "driver", "_active", Driver()), ("triton.testing", "", "do_bench", do_bench),
        ("triton.testing", "", "do_bench_cudagraph", do_bench),
        ("torch", "cuda", "get_device_properties", cuda_properties), ("torch", "cuda", "device", nullcontext),
    ):  # fmt: skip
        owner = import_module(module) if installed and module != "torch" else sys.modules.get(module)
        owner = getattr(owner, kind, None) if kind else owner
        if owner is not None:
            yield owner, name, value


class CompiledKernel:
    """The result of a launch or warm-up, as Triton's compiled kernel: it takes all registers and memory of a PE.

    It can be launched with all arguments, or, after a launch, without the compile-time constants.
    """

    n_spills = 0

    def __init__(self, kernel: Any, num_warps: int = 4, constants: Mapping[str, Any] | None = None) -> None:
        self.kernel, self._num_warps, self._constants = kernel, num_warps, constants or {}

    @property
    def n_regs(self) -> int:
        device = device_properties()
        return device["max_num_regs"] // (self._num_warps * device["warpSize"])

    @property
    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(shared=device_properties()["max_shared_mem"], num_warps=self._num_warps)

    def _init_handles(self) -> None: ...

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        names = list(signature(raw(self.kernel)).parameters)

        def run(*args: Any) -> None:
            given = names if len(args) == len(names) else [name for name in names if name not in self._constants]
            launch(self.kernel, grid=grid, **{**self._constants, **dict(zip(given, args, strict=True))})

        return run


def launch(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> CompiledKernel:
    if warmup:
        return CompiledKernel(kernel, kwargs.get("num_warps", 4))
    return current(raw(kernel).__name__).run(kernel, args, kwargs, grid)


def device_properties(_index: int | None = None) -> dict[str, int]:
    """Triton's properties of a device: a PE is a multiprocessor that runs one program with all of its memory."""
    config = current("get_device_properties").torch.engine.machine.config
    tcm = int(config.cube.pe.pe_tcm.size_mb * 2**20)
    return {"multiprocessor_count": config.n_pes, "max_shared_mem": tcm, "max_num_regs": tcm // 4, "warpSize": 1}


def cuda_properties(_device: Any = None) -> SimpleNamespace:
    found = device_properties()
    return SimpleNamespace(
        name="kernbench", major=CAPABILITY[0], minor=CAPABILITY[1],
        multi_processor_count=found["multiprocessor_count"], warp_size=1,
        regs_per_multiprocessor=found["max_num_regs"], shared_memory_per_multiprocessor=found["max_shared_mem"],
        shared_memory_per_block=found["max_shared_mem"], shared_memory_per_block_optin=found["max_shared_mem"],
    )  # fmt: skip


class Driver:
    """`triton.runtime.driver.active`: there is one device."""

    utils = SimpleNamespace(get_device_properties=device_properties)

    def get_active_torch_device(self) -> Any:
        """Return the CPU, whose tensors kernels take, or the CUDA device if that is simulated."""
        torch = import_module("torch")
        return torch.device("cuda", 0) if current("driver").cuda else torch.device("cpu")

    def get_device_interface(self) -> Any:
        torch = import_module("torch")
        return torch.cuda if current("driver").cuda else torch.cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        return do_bench

    def get_current_stream(self, device: Any = None) -> int:
        return 0

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> Any:
        if current("driver").cuda:
            return SimpleNamespace(backend="cuda", arch=80, warp_size=32)
        return SimpleNamespace(backend="kernbench", arch=0, warp_size=1)


def do_bench(
    fn: Callable[[], Any], *_: Any, quantiles: Sequence[float] | None = None, return_mode: str = "mean", **__: Any
) -> Any:
    """Return the simulated time of the launches of `fn` [ms]; it is deterministic, so one run is enough."""
    torch = current("do_bench").torch
    torch.ahbm.synchronize()
    start = torch.engine.now_ns
    fn()
    torch.ahbm.synchronize()
    ms = float((torch.engine.now_ns - start) / 1e6)
    if quantiles is not None and len(quantiles) > 1:
        return [ms] * len(quantiles)
    return [ms] if return_mode == "all" else ms


def on(
    torch: RuntimeContext, placement: str = "round-robin", dp: DPPolicy | None = None, cuda: bool = False
) -> On:  # fmt: skip
    """Run Triton kernels on the PEs of a session, inside a with-block.

    A kernel takes tensors of the device, numpy arrays, and torch tensors of the CPU. Host tensors are placed for the
    launch and written back after it, in no simulated time: only the kernel counts. Programs run on the PEs that hold a
    part of a tensor argument.

    Parameters
    ----------
    torch : RuntimeContext
        The session.
    placement : str
        Which PE runs which program: "round-robin", "blocks" (consecutive ones), or "owner" (the PE whose memory the
        program stores to first).
    dp : DPPolicy, optional
        Placement of host tensors, as consecutive bytes; by default over all PEs of cube 0.
    cuda : bool
        Whether the machine is torch's CUDA device "cuda:0" inside the block, for host code that allocates on one or
        asks for it. Memory remains the CPU's; tensors from outside the block count as on the device. Needs torch.

    Returns
    -------
    On
        The with-block.

    Raises
    ------
    ValueError
        If `placement` is unknown.
    KernelError
        At a launch, if the kernel uses what the machine does not have: with file, line and name.

    Examples
    --------
    >>> import kernbench as kb
    >>> kernels = kb.triton.load("kernels.py")  # doctest: +SKIP
    >>> with kb.session(data=True) as torch, kb.triton.on(torch):  # doctest: +SKIP
    ...     kernels.add[(4,)](x, y, out, n, BLOCK=256)
    """
    return On(torch, placement, dp, cuda)
