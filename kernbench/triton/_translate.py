"""Rebinds a kernel's Python functions: `triton.language` becomes the language of one program."""

from __future__ import annotations

import builtins
import dis
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from kernbench._dtypes import DType, PointerType, as_dtype
from kernbench.errors import KernelError
from kernbench.triton import _boolean as boolean
from kernbench.triton._language import Language
from kernbench.triton_emu._handles import Tile
from kernbench.triton_emu._math_ops import Namespace
from kernbench.triton_emu.testing import MockBackend
from kernbench.triton_emu.tl_context import TLContext


def raw(fn: Any) -> FunctionType:
    while not isinstance(fn, FunctionType):
        fn = fn.fn
    return fn


def is_jit(value: object) -> bool:
    """Whether a value is a function decorated with `triton.jit`, perhaps with other decorators of Triton around it."""
    ours = ("triton.runtime.", "kernbench.triton.")
    return hasattr(value, "fn") and any(kind.__module__.startswith(ours) for kind in type(value).__mro__)


def decoration(value: object) -> str:
    names = {kind.__name__ for kind in type(value).__mro__} if is_jit(value) else set()
    return next((name for name in ("Autotuner", "Heuristics") if name in names), "")


def maybe_dtype(value: object) -> DType | PointerType | None:
    """Convert a type of ours, Triton, torch or numpy; None for other values."""
    if isinstance(value, (DType, PointerType)):
        return value
    kind = type(value)
    if not isinstance(value, np.dtype) and kind.__module__.partition(".")[0] not in ("triton", "torch"):
        return None
    if kind.__name__ == "pointer_type":
        return PointerType(getattr(value, "element_ty"))  # noqa: B009 : no static type has it
    with suppress(TypeError):
        return as_dtype(value)
    return None


class _TritonModule:
    def __init__(self, lang: Language) -> None:
        self.language, self.cdiv, self.next_power_of_2 = lang, lang.cdiv, lang.next_power_of_2


class _ModuleOf:
    """Another module, as a kernel sees it: its attributes are bound like globals."""

    def __init__(self, module: ModuleType, binder: Binder) -> None:
        self._module, self._binder = module, binder

    def __getattr__(self, name: str) -> Any:
        return self._binder.bind(getattr(self._module, name))


class Binder:
    """Rebinds functions to one program; each function once."""

    def __init__(self, lang: Language) -> None:
        self.lang = lang
        self._made: dict[int, Any] = {}
        self._builtins = {
            **vars(builtins), "range": lang.range, "min": self._min, "max": self._max, "print": lang.device_print,
            "float": self._float, **boolean.NAMES,
        }  # fmt: skip

    def _min(self, *values: Any) -> Any:
        return self._extreme(min, self.lang.minimum, values)

    def _max(self, *values: Any) -> Any:
        return self._extreme(max, self.lang.maximum, values)

    def _extreme(self, plain: Callable[..., Any], of_tensors: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        if len(values) < 2 or not any(isinstance(value, Tile) for value in values):
            return plain(*values)
        first, *rest = values
        for value in rest:
            first = of_tensors(first, value)
        return first

    def _float(self, value: Any = 0.0) -> Any:
        return self.lang.cast(value, "f32") if isinstance(value, Tile) else float(value)

    def bind(self, value: Any) -> Any:
        """Replace a global of the kernel's file by its counterpart in the program."""
        if isinstance(value, ModuleType):
            return self._module(value)
        if isinstance(value, (bool, int, float, str, type(None))):
            return value
        kind, module = type(value), getattr(value, "__module__", None) or ""
        if kind.__name__ == "ConstexprFunction":
            return raw(value)
        if (isinstance(value, FunctionType) or is_jit(value)) and _is_language(_module_of(value)):
            return getattr(self._namespace(_module_of(value)), name_of(value))
        if is_jit(value) or isinstance(value, FunctionType):
            return self.function(raw(value))
        if _is_language(kind.__module__) or _is_language(module):
            if kind.__name__ == "constexpr":
                return value.value
            found = maybe_dtype(value)
            return found if found is not None else getattr(self.lang, name_of(value), value)
        return value

    def _module(self, module: ModuleType) -> Any:
        name = getattr(module, "__triton_name__", module.__name__)
        if name == "triton":
            return _TritonModule(self.lang)
        if _is_language(name):
            return self._namespace(name)
        return module if module is math else _ModuleOf(module, self)

    def _namespace(self, module: str) -> Any:
        last = module.rpartition(".")[2]
        return getattr(self.lang, last) if last in ("libdevice", "math") else self.lang

    def function(self, fn: FunctionType) -> FunctionType:
        made: FunctionType | None = self._made.get(id(fn))
        if made is not None:
            return made
        closure = None if fn.__closure__ is None else tuple(CellType() for _ in fn.__closure__)
        names: dict[str, Any] = {"__builtins__": self._builtins, "__name__": fn.__globals__.get("__name__", "")}
        made = FunctionType(boolean.code_of(fn.__code__), names, fn.__name__, None, closure)
        self._made[id(fn)] = made
        for name in names_of(fn.__code__):
            if name in fn.__globals__:
                names[name] = self.bind(fn.__globals__[name])
        for own, cell in zip(closure or (), fn.__closure__ or (), strict=True):
            try:
                own.cell_contents = self.bind(cell.cell_contents)
            except ValueError:  # a cell that is empty yet
                continue
        made.__defaults__ = None if fn.__defaults__ is None else tuple(map(self.bind, fn.__defaults__))
        made.__kwdefaults__ = {k: self.bind(v) for k, v in (fn.__kwdefaults__ or {}).items()}
        return made


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", None) or getattr(getattr(value, "fn", None), "__name__", ""))


def _module_of(value: Any) -> str:
    return str(getattr(getattr(value, "fn", value), "__module__", None) or getattr(value, "__module__", None) or "")


def _is_language(module: str) -> bool:
    return module == "triton.language" or module.startswith("triton.language.")


@cache
def names_of(code: CodeType) -> frozenset[str]:
    inner = (names_of(const) for const in code.co_consts if isinstance(const, CodeType))
    return frozenset(code.co_names).union(*inner)


def _chains(code: CodeType) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, names) of each `a.b.c` that begins with a global or a free variable."""
    chain: list[str] = []
    line = at = code.co_firstlineno
    for instruction in dis.get_instructions(code):
        if instruction.starts_line is not None and not isinstance(instruction.starts_line, bool):
            line = instruction.starts_line
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"):
            if chain:
                yield at, chain
            chain, at = [str(instruction.argval)], line
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain.append(str(instruction.argval))
        elif instruction.opname not in ("CACHE", "EXTENDED_ARG", "PUSH_NULL"):
            if chain:
                yield at, chain
            chain = []
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _chains(const)


_checked: dict[CodeType, bool] = {}


def check_names(fn: Any) -> bool:
    """Refuse unsupported names of Triton in a kernel and the functions that it calls.

    The KernelError names file, line and name. Returns whether one of the functions has a `static_assert`.
    """
    function = raw(fn)
    kernel = function.__code__
    if kernel in _checked:
        return _checked[kernel]
    binder = Binder(Language(TLContext(MockBackend(data=False), (0, 0), (1, 1)), (1, 1, 1)))  # nothing runs
    found: list[FunctionType] = []
    todo = [function]
    while todo:
        function = todo.pop()
        if function.__code__ in {f.__code__ for f in found}:
            continue
        found.append(function)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for line, (first, *rest) in _chains(function.__code__):
            value = function.__globals__.get(first)
            if first in cells:
                try:
                    value = cells[first].cell_contents
                except ValueError:
                    continue
            todo += _follow(binder, function, line, value, [first, *rest])
    _checked[kernel] = any("static_assert" in names_of(f.__code__) for f in found)
    return _checked[kernel]


def _follow(binder: Binder, function: FunctionType, line: int, value: Any, chain: list[str]) -> list[FunctionType]:
    """Resolve `a.b.c` step by step; return the user's jit function that it names, if any."""
    place = f"{function.__code__.co_filename}:{line}: kernel {function.__name__}"
    if is_jit(value) and not _is_language(_module_of(value)):
        return [raw(value)]
    if isinstance(value, FunctionType) and not _is_language(value.__module__ or ""):
        return []
    try:
        bound = binder.bind(value)
        for name in chain[1:]:
            if isinstance(bound, _ModuleOf):
                inner = getattr(bound._module, name, None)
                if is_jit(inner) and not _is_language(_module_of(inner)):
                    return [raw(inner)]
            if not isinstance(bound, (Language, Namespace, _TritonModule, _ModuleOf)):
                return []
            bound = getattr(bound, name)
    except AttributeError as error:
        raise KernelError(f"{place}: {error}") from None
    return []
