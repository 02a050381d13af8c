"""Files of Triton kernels, run without Triton: they import a `triton` with the names that they need."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench._dtypes import TRITON, BlockType, DType, PointerType
from kernbench.errors import KernelError
from kernbench.triton._session import Driver, do_bench, launch
from kernbench.triton_emu._math_ops import MATH_NAMES
from kernbench.triton_emu.tl_context import TLContext

_numbers = count()


class constexpr:
    """A compile-time constant, and the annotation for one."""

    __module__ = "triton.language"

    def __init__(self, value: Any) -> None:
        self.value = getattr(value, "value", value)

    def __index__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == getattr(other, "value", other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"constexpr[{self.value}]"


class _Function:
    """A function of Triton's language, as seen outside of a kernel."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__module__ = "triton.language"

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise KernelError(f"tl.{self.__name__} works inside of a kernel only; launch it with kernel[grid](...)")


_Function.__module__ = "triton.language"


class Launchable:
    """Base of what `kernel[grid]` accepts."""

    fn: Any
    arg_names: list[str]

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            return self.run(*args, grid=grid, **kwargs)

        return run

    run = launch


class JITFunction(Launchable):
    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.__name__, self.__module__ = fn, fn.__name__, fn.__module__
        self.__doc__, self.__qualname__ = fn.__doc__, fn.__qualname__
        self.arg_names = list(fn.__code__.co_varnames[: fn.__code__.co_argcount + fn.__code__.co_kwonlyargcount])

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Resources of the compiled kernel, as Triton reports them: all of a PE."""
        return self.run(*args, grid=grid, warmup=True, **kwargs)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(f"cannot call @triton.jit function {self.__name__} outside of a kernel; use [grid](...)")


class ConstexprFunction:
    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.__name__, self.__module__ = fn, fn.__name__, fn.__module__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)


class Heuristics(Launchable):
    def __init__(self, fn: Any, values: Mapping[str, Callable[..., Any]]) -> None:
        self.fn, self.values, self.arg_names = fn, dict(values), fn.arg_names


class Config:
    def __init__(
        self, kwargs: Mapping[str, Any], num_warps: int = 4, num_stages: int = 3, num_ctas: int = 1,
        maxnreg: int | None = None, pre_hook: Callable[..., Any] | None = None, ir_override: Any = None,
    ) -> None:  # fmt: skip
        self.kwargs, self.num_warps, self.num_stages = dict(kwargs), num_warps, num_stages
        self.num_ctas, self.maxnreg, self.pre_hook, self.ir_override = num_ctas, maxnreg, pre_hook, ir_override

    def all_kwargs(self) -> dict[str, Any]:
        options = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
        return {**self.kwargs, **{k: getattr(self, k) for k in options if getattr(self, k) is not None}}

    def __str__(self) -> str:
        return ", ".join(f"{k}: {v}" for k, v in self.all_kwargs().items())


class Autotuner(Launchable):
    def __init__(
        self, fn: Any, configs: Sequence[Config], key: Sequence[str], prune_configs_by: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:  # fmt: skip
        self.fn, self.configs, self.keys, self.arg_names = fn, list(configs) or [Config({})], list(key), fn.arg_names
        rules = prune_configs_by or {}
        self.early_config_prune, self.perf_model = rules.get("early_config_prune"), rules.get("perf_model")
        self.configs_top_k = rules.get("top_k", 1.0)


class TensorDescriptor:
    def __init__(
        self, base: Any, shape: Sequence[int], strides: Sequence[int], block_shape: Sequence[int],
        padding: str = "zero", **_: Any,
    ) -> None:  # fmt: skip
        self.base, self.shape, self.strides = base, list(shape), list(strides)
        self.block_shape, self.padding = list(block_shape), padding

    @classmethod
    def from_tensor(cls, tensor: Any, block_shape: Sequence[int], padding: str = "zero") -> TensorDescriptor:
        strides = (
            tensor.stride()
            if callable(getattr(tensor, "stride", None))
            else [n // tensor.itemsize for n in tensor.strides]
        )
        return cls(tensor, tensor.shape, strides, block_shape, padding)


def jit(fn: Callable[..., Any] | None = None, **_: Any) -> Any:
    return JITFunction if fn is None else JITFunction(fn)


def heuristics(values: Mapping[str, Callable[..., Any]]) -> Callable[[Any], Heuristics]:
    return lambda fn: Heuristics(fn, values)


def autotune(configs: Sequence[Config], key: Sequence[str], **options: Any) -> Callable[[Any], Autotuner]:
    return lambda fn: Autotuner(fn, configs, key, **options)


def cdiv(x: int, y: int) -> int:
    return -(-x // y)


class _Language(ModuleType):
    """`triton.language` outside of kernels."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in MATH_NAMES and not hasattr(TLContext, name) and self.__name__ == "triton.language":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return _Function(name)


def _modules() -> dict[str, ModuleType]:
    made: dict[str, ModuleType] = {}

    def module(name: str, language: bool = False, **members: Any) -> ModuleType:
        found = _Language(name) if language else ModuleType(name)
        found.__dict__.update(members, __path__=[], __file__="(kernbench)")
        made[name] = found
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(made[parent], last, found)
        return found

    names = dict(constexpr=constexpr, dtype=DType, pointer_type=PointerType, block_type=BlockType, **TRITON)
    module(
        "triton", jit=jit, autotune=autotune, heuristics=heuristics, Config=Config, cdiv=cdiv, __version__="3.9.0",
        next_power_of_2=TLContext.next_power_of_2, constexpr_function=ConstexprFunction, JITFunction=JITFunction,
        set_allocator=lambda _: None,
    )  # fmt: skip
    module("triton.language", True, **names, range=builtins.range, static_range=builtins.range)
    for name in ("math", "core", "standard", "random", "extra", "extra.libdevice", "extra.cuda", "extra.cuda.libdevice",
                 "extra.hip", "extra.hip.libdevice"):  # fmt: skip
        module(f"triton.language.{name}", True, **(names if name == "core" else {}))
    driver = ModuleType("driver")
    driver.__dict__.update(active=Driver())
    module("triton.runtime", driver=driver, JITFunction=JITFunction, Autotuner=Autotuner, Config=Config)
    module("triton.runtime.jit", JITFunction=JITFunction, jit=jit, constexpr_function=ConstexprFunction)
    module("triton.runtime.autotuner", Autotuner=Autotuner, Config=Config, Heuristics=Heuristics)
    module("triton.tools")
    module("triton.tools.tensor_descriptor", TensorDescriptor=TensorDescriptor)
    module("triton.testing", **_testing())
    return made


def _testing() -> dict[str, Any]:
    """`triton.testing`; benchmarks of the file do nothing while it is loaded."""

    class Benchmark:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

    class _Mark:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

        def run(self, *_: Any, **__: Any) -> None: ...

    return {
        "Benchmark": Benchmark,
        "perf_report": lambda _: _Mark,
        "do_bench": do_bench,
        "do_bench_cudagraph": do_bench,
    }


def load(path: str | Path) -> ModuleType:
    """Run a file of Triton kernels without Triton, and return it as a module.

    `import triton` and `import triton.language as tl` give the file what kernels need. Other modules do not see it, and
    an installed Triton is not used.

    Parameters
    ----------
    path : str or Path
        The file.

    Returns
    -------
    module
        Its kernels are launched with `kernel[grid](...)` inside `with kb.triton.on(torch)`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> kernels = load("kernels.py")  # doctest: +SKIP
    """
    file = Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file of kernels")
    name = f"kernbench_triton_{file.stem}_{next(_numbers)}"
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    ours = _modules()
    hidden = {key: sys.modules.pop(key) for key in list(sys.modules) if key.partition(".")[0] == "triton"}
    sys.modules.update(ours)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        for key in [key for key in sys.modules if key.partition(".")[0] == "triton"]:
            del sys.modules[key]
        sys.modules.update(hidden)
    return module
