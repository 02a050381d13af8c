"""`kb.triton.on(torch, cuda=True)`: the simulated device as torch's CUDA device, inside the block.

All memory is the CPU's. A mark on each storage says whether it counts as on the device: results of operators inherit
it from their operands; `device=`, `.to`, `.cuda` and `.cpu` set it. Unmarked storage counts as on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from importlib import import_module
from typing import Any

from kernbench.runtime_api.context import RuntimeContext

_MARK, _MISSING = "_kernbench_is_cuda", object()
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor", "new_empty_strided")


def replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute until the end of a with-block; then restore or delete it."""
    before = vars(owner).get(name, _MISSING)
    undo = (delattr, owner, name) if before is _MISSING else (setattr, owner, name, before)
    setattr(owner, name, value)
    stack.callback(*undo)


def storage_of(x: Any) -> Any:
    try:
        storage = x.untyped_storage()
    except RuntimeError:  # sparse, or inside of a transform
        return None
    return storage if storage.device.type == "cpu" else None


def is_cuda(x: Any) -> bool:
    """Whether a tensor counts as on the device; unmarked storage does."""
    storage = storage_of(x)
    return storage is not None and bool(getattr(storage, _MARK, True))


def marked(x: Any, on_device: bool) -> Any:
    storage = storage_of(x)
    if storage is not None:
        setattr(storage, _MARK, on_device)
    return x


def _moved(x: Any, on_device: bool) -> Any:
    """Move a tensor: return it if it is marked as there, else a copy."""
    storage = storage_of(x)
    if storage is None or getattr(storage, _MARK, None) is on_device:
        return x
    return marked(x.clone(), on_device)


class Cuda:
    """Replacements of torch's names, for one thread: others see torch unchanged."""

    def __init__(self, session: RuntimeContext, is_active: Callable[[], bool]) -> None:
        self.session, self.is_active = session, is_active
        self.torch = import_module("torch")
        self._defaults = import_module("torch.utils._device")
        self.device = self.torch.device("cuda", 0)

    def replaced(self) -> AbstractContextManager[Any]:
        with ExitStack() as stack:
            for owner, name, value in list(self._all()):
                replace(stack, owner, name, value)
            stack.enter_context(_mode())
            return stack.pop_all()

    def _all(self) -> Iterator[tuple[Any, str, Any]]:
        torch = self.torch
        base = torch._C.TensorBase
        constructors = self._defaults._device_constructors()
        for owner in (torch, torch.fft):
            for name, value in list(vars(owner).items()):
                if callable(value) and not isinstance(value, type) and value in constructors:
                    yield owner, name, self._factory(value, True)
        for name in ("from_numpy", "frombuffer"):
            yield torch, name, self._here(getattr(torch, name), lambda f, *a, **k: marked(f(*a, **k), False))
        for name in _LIKE:
            yield torch, name, self._factory(getattr(torch, name), False)
        for name in _NEW:
            yield torch.Tensor, name, self._factory(getattr(base, name), False)
        for name, method in (("to", self._to), ("cuda", self._cuda), ("cpu", self._cpu), ("get_device", self._index)):
            yield torch.Tensor, name, self._here(getattr(base, name), method)
        for name, getter in (
            ("device", lambda f, x: self.device if is_cuda(x) else f(x)), ("is_cuda", lambda f, x: is_cuda(x) or f(x)),
            ("is_cpu", lambda f, x: not is_cuda(x) and f(x)),
        ):  # fmt: skip
            yield torch.Tensor, name, property(self._here(getattr(base, name).__get__, getter))
        for name in ("pin_memory", "record_stream"):
            yield torch.Tensor, name, self._here(getattr(base, name), lambda _, x, *__, **___: x)
        yield torch, "Generator", self._generator()
        for name, value in self._runtime().items():
            yield (
                torch.cuda,
                name,
                self._here(getattr(torch.cuda, name), lambda _, *a, value=value, **k: value(*a, **k)),
            )
        for name, value in (
            ("is_available", lambda: True), ("device_count", lambda: 1), ("current_device_index", lambda: 0),
            ("current_accelerator", lambda check_available=False: torch.device("cuda")),
            ("synchronize", lambda _=None: self.session.ahbm.synchronize()),
        ):  # fmt: skip
            yield (
                torch.accelerator,
                name,
                self._here(getattr(torch.accelerator, name), lambda _, *a, value=value, **k: value(*a, **k)),
            )

    def _here(self, original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
        """Call `function(original, ...)` in the block's thread, and `original(...)` in others."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs) if self.is_active() else original(*args, **kwargs)

        return call

    def _wanted(self, device: Any) -> bool | None:
        """Return True for the simulated device, False for the CPU, None for others."""
        if isinstance(device, int):
            device = self.torch.device("cuda", device)
        device = self.torch.device(device)
        if device.type == "cuda" and device.index not in (None, 0):
            raise RuntimeError(f"{device}: kb.triton.on(cuda=True) simulates one CUDA device, cuda:0")
        return {"cuda": True, "cpu": False}.get(device.type)

    def _default(self) -> Any:
        modes = self.torch.overrides._get_current_function_mode_stack()
        kind = self._defaults.DeviceContext
        return next((mode.device for mode in reversed(modes) if isinstance(mode, kind)), "cpu")

    def _factory(self, original: Callable[..., Any], is_constructor: bool) -> Callable[..., Any]:
        def make(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            if device is None and is_constructor:
                device = self._default()
            wanted = None if device is None else self._wanted(device)
            if wanted is None:
                return function(*args, **kwargs)
            kwargs.pop("pin_memory", None)
            found = function(*args, **{**kwargs, "device": "cpu"})
            source = args[0] if args else kwargs.get("data")
            if isinstance(source, self.torch.Tensor) and found.data_ptr() == source.data_ptr():
                return _moved(found, wanted)  # as_tensor gives its argument
            return marked(found, wanted)

        return self._here(original, make)

    def _to(self, function: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
        torch = self.torch
        wanted: bool | None = None
        given = list(args)
        other = kwargs.get("other", args[0] if args else None)
        if isinstance(other, torch.Tensor):
            wanted = is_cuda(other)
        elif kwargs.get("device") is not None:
            wanted = self._wanted(kwargs["device"])
            if wanted is not None:
                kwargs["device"] = "cpu"
        elif args and isinstance(args[0], (str, torch.device, int)) and not isinstance(args[0], bool):
            wanted = self._wanted(args[0])
            if wanted is not None:
                given[0] = "cpu"
        found = function(x, *given, **kwargs)
        if wanted is None:
            return found
        return _moved(x, wanted) if found is x else marked(found, wanted)

    def _cuda(self, _: Callable[..., Any], x: Any, device: Any = None, *__: Any, **___: Any) -> Any:
        self._wanted("cuda" if device is None else device)
        return _moved(x, True)

    def _cpu(self, _: Callable[..., Any], x: Any, *__: Any, **___: Any) -> Any:
        return _moved(x, False)

    def _index(self, function: Callable[..., Any], x: Any) -> int:
        return 0 if is_cuda(x) else int(function(x))

    def _generator(self) -> type:
        base, wanted = self.torch.Generator, self._wanted

        class Generator(base):  # type: ignore[misc,valid-type]
            """All random numbers come from the CPU's generator."""

            def __new__(cls, device: Any = "cpu") -> Any:
                return base(device="cpu" if wanted(device) is not None else device)

        return Generator

    def _runtime(self) -> dict[str, Callable[..., Any]]:
        torch, session = self.torch, self.session

        def nothing(*_: Any, **__: Any) -> None: ...

        def seed(seed: int) -> None:
            torch.default_generator.manual_seed(seed)

        def event(enable_timing: bool = False, *_: Any, **__: Any) -> Any:
            return session.ahbm.Event(enable_timing)

        def stream(*_: Any, **__: Any) -> Any:
            return session.ahbm.current_stream()

        return {
            "is_available": lambda: True, "is_initialized": lambda: True, "init": nothing, "_lazy_init": nothing,
            "device_count": lambda: 1, "current_device": lambda: 0, "set_device": self._wanted, "empty_cache": nothing,
            "synchronize": lambda device=None: session.ahbm.synchronize(), "is_bf16_supported": lambda *_, **__: True,
            "get_device_name": lambda device=None: "kernbench", "get_device_capability": lambda device=None: CAPABILITY,
            "manual_seed": seed, "manual_seed_all": seed, "Event": event, "Stream": stream, "current_stream": stream,
            "default_stream": stream, "stream": lambda _: nullcontext(), "device_of": lambda _: nullcontext(),
            "is_current_stream_capturing": lambda: False,
        }  # fmt: skip


# Launchers select kernels by it: the lowest with bf16 and asynchronous copies; no tensor memory, no clusters.
CAPABILITY = (8, 0)


def _mode() -> AbstractContextManager[Any]:
    torch = import_module("torch")
    base = import_module("torch.utils._python_dispatch").TorchDispatchMode
    leaves, registered = torch.utils._pytree.tree_leaves, torch.library._impls
    key = torch._C.DispatchKey.CUDA

    class Mode(base):  # type: ignore[misc,valid-type]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = [x for x in leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            on_device = any(is_cuda(x) for x in given)
            if on_device and f"{func._schema.name.replace('::', '/')}{_overload(func)}/CUDA" in registered:
                with self:
                    return func._op_dk(key, *args, **(kwargs or {}))
            found = func(*args, **(kwargs or {}))
            known = {storage._cdata for x in given if (storage := storage_of(x)) is not None}
            for x in leaves(found):
                storage = storage_of(x) if isinstance(x, torch.Tensor) else None
                if storage is not None and storage._cdata not in known:
                    setattr(storage, _MARK, on_device)
            return found

    return Mode()


def _overload(func: Any) -> str:
    return f".{func._schema.overload_name}" if func._schema.overload_name else ""
