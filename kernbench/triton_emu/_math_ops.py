"""Functions of Triton's math and libdevice, and the unsupported ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from kernbench import _dtypes as dtypes
from kernbench._registry import hint
from kernbench.errors import KernelError
from kernbench.sim_engine._user_code import line_text, user_line
from kernbench.triton_emu import _libdevice
from kernbench.triton_emu._handles import Tile
from kernbench.triton_emu._program import Program, broadcast_shape, when_complete
from kernbench.triton_emu._promotion import wide


class Namespace:
    """`tl.math`, `libdevice` and other modules inside `triton.language`, bound to a program."""

    def __init__(self, tl: Program, name: str) -> None:
        self._tl, self._name = tl, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        of_tl = getattr(type(self._tl), name, None)
        is_method = of_tl is not None and not isinstance(of_tl, Named)
        return getattr(self._tl, name) if is_method else function(self._tl, name, self._name)

    def __repr__(self) -> str:
        return f"<{self._name} of a program>"


class Named:
    """A name of the language that is not a method; with `__getattr__`, Python would look up each method twice."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, tl: Program | None, _: type | None = None) -> Any:
        return self if tl is None else function(tl, self._name, "tl")


_SLOW, _SIMPLE = ("slow",), ("simple",)


def _exponent(x: np.ndarray) -> np.ndarray:
    """Compute logb as floats: -inf for 0, inf for inf."""
    exponent = np.where(np.isfinite(x), np.frexp(x)[1] - 1, np.abs(x))
    return np.where(x == 0, -np.inf, exponent).astype(x.dtype)


def _to(kind: dtypes.DType, rounded: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Convert floats to integers as CUDA does: saturate, and map NaN to 0."""
    range_of = np.iinfo(kind.numpy)

    def convert(x: np.ndarray) -> np.ndarray:
        whole = np.nan_to_num(rounded(x).astype(np.float64), nan=0.0)
        found = np.clip(whole, float(range_of.min), float(range_of.max))
        # The largest 64-bit integer is not a float64.
        top = found >= float(range_of.max)
        return np.where(top, range_of.max, np.where(top, 0, found).astype(kind.numpy)).astype(kind.numpy)

    return convert


def _away(x: np.ndarray) -> np.ndarray:
    """Round half away from zero."""
    return np.trunc(x + np.copysign(x.dtype.type(0.5), x))


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """IEEE remainder: the quotient is rounded to nearest even. Every step is exact."""
    size = np.abs(y)
    left = np.fmod(np.abs(x), 2 * size)  # the quotient modulo 2 decides on halves
    less = left - size
    nearest = np.where(2 * left <= size, left, np.where(2 * less < size, less, less - size))
    return np.where(np.signbit(x), -nearest, nearest)


# Work on PE_MATH, function of arrays.
_MATH: dict[str, tuple[tuple[str, ...], Callable[..., np.ndarray]]] = {
    "acos": (_SLOW, np.arccos), "acosh": (_SLOW, np.arccosh), "asin": (_SLOW, np.arcsin),
    "asinh": (_SLOW, np.arcsinh), "atan": (_SLOW, np.arctan), "atanh": (_SLOW, np.arctanh), "cbrt": (_SLOW, np.cbrt),
    "cosh": (_SLOW, np.cosh), "sinh": (_SLOW, np.sinh), "tan": (_SLOW, np.tan),
    "erfc": (_SLOW, _libdevice.each(math.erfc)), "lgamma": (_SLOW, _libdevice.each(math.lgamma, lambda x: math.inf)),
    "tgamma": (_SLOW, _libdevice.each(math.gamma, lambda x: math.nan if x else math.copysign(math.inf, x))),
    "exp10": (_SLOW, lambda x: np.power(x.dtype.type(10), x)), "expm1": (_SLOW, np.expm1),
    "log10": (_SLOW, np.log10), "log1p": (_SLOW, np.log1p),
    "trunc": (_SIMPLE, np.trunc), "rint": (_SIMPLE, np.rint), "nearbyint": (_SIMPLE, np.rint),
    "round": (_SIMPLE, _away), "logb": (_SIMPLE, _exponent),
    "cospi": (_SLOW, lambda x: np.cos(np.pi * np.remainder(x, 2)).astype(x.dtype)),
    "sinpi": (_SLOW, lambda x: np.sin(np.pi * np.remainder(x, 2)).astype(x.dtype)),
    "saturatef": (("simple",) * 2, lambda x: np.clip(x, 0, 1)),
    "rcp_rn": (_SLOW, lambda x: 1 / x), "rcbrt": (_SLOW, lambda x: 1 / np.cbrt(x)),
    "atan2": (_SLOW, np.arctan2), "copysign": (_SIMPLE, np.copysign), "fmod": (_SLOW, np.fmod),
    "hypot": (("simple", "simple", "slow"), np.hypot), "nextafter": (_SIMPLE, np.nextafter),
    "fdim": (("simple",) * 2, lambda x, y: np.maximum(x - y, 0)),
    "pow": (("slow", "simple", "slow"), np.power), "remainder": (_SLOW, _remainder),
    **_libdevice.FLOATS,
}  # fmt: skip
_ROUNDED = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}
_INTEGERS = {"int": dtypes.int32, "uint": dtypes.uint32, "ll": dtypes.int64, "ull": dtypes.uint64}
# Functions of integers, and those with another result type: result type (None: as the operands), function of arrays.
OTHER_RESULTS: dict[str, tuple[dtypes.DType | None, Callable[..., np.ndarray]]] = {
    "isnan": (dtypes.bool_, np.isnan), "isinf": (dtypes.bool_, np.isinf), "signbit": (dtypes.bool_, np.signbit),
    "finitef": (dtypes.bool_, np.isfinite), "isfinited": (dtypes.bool_, np.isfinite),
    "llrint": (dtypes.int64, _to(dtypes.int64, np.rint)), "llround": (dtypes.int64, _to(dtypes.int64, _away)),
    "ilogb": (dtypes.int32, lambda x: _to(dtypes.int32, _exponent)(np.where(np.isnan(x), x.dtype.type(0), x))),
    **{
        f"{of}2{name}_{how}": (kind, _to(kind, rounded))
        for of in ("float", "double") for name, kind in _INTEGERS.items() for how, rounded in _ROUNDED.items()
    },
    **_libdevice.RESULTS,
}  # fmt: skip
CASTS = {f"{name}2{to}_rn": kind for name in _INTEGERS for to, kind in (("float", "fp32"), ("double", "fp64"))}
CASTS["double2float_rn"] = "fp32"
ALIASES = {
    "fast_cosf": "cos", "fast_sinf": "sin", "fast_expf": "exp", "fast_logf": "log", "fast_log2f": "log2",
    "fast_log10f": "log10", "fast_exp10f": "exp10", "fast_tanf": "tan", "fast_tanhf": "tanh", "fast_powf": "pow",
    "fast_dividef": "fdiv", "sqrt_rn": "sqrt", "rsqrt_rn": "rsqrt", "div_rn": "fdiv", "fma_rn": "fma", "fabs": "abs",
    "mul_rn": "mul", "add_rn": "add", "sub_rn": "sub", "fmax": "maximum", "fmin": "minimum",
    "powf": "pow", "fast_gelu": "gelu", "scalbn": "ldexp",
}  # fmt: skip
BITS = {
    "int_as_float": "fp32", "uint_as_float": "fp32", "float_as_int": "int32", "float_as_uint": "uint32",
    "longlong_as_double": "fp64", "double_as_longlong": "int64",
}  # fmt: skip
# Functions of Triton that this machine lacks, with the reason that a launch reports.
REFUSED = {
    "inline_asm_elementwise": "inline assembly is the code of another machine",
    "dot_scaled": "the matrix engine has no block scales; scale the operands, and use tl.dot",
    "extern_elementwise": "it calls the library of another machine; use the functions of tl.math or libdevice",
    "map_elementwise": "it runs scalar code for each element; use operations on tensors",
    **dict.fromkeys(("j0", "j1", "jn", "y0", "y1", "yn"), "of the Bessel functions there are cyl_bessel_i0 and i1"),
    "atomic_poll": "spin on tl.atomic_cas or tl.atomic_or instead",
}


MATH_NAMES = frozenset((*_MATH, *OTHER_RESULTS, *CASTS, *BITS, *ALIASES, *REFUSED))
MODULES = ("math", "libdevice", "extra", "cuda", "hip")


def function(tl: Program, name: str, module: str) -> Any:
    """Look up a function or type of the language that is not a method of the program; AttributeError if unknown."""
    if name in dtypes.TRITON:
        return dtypes.TRITON[name]
    if name in ALIASES:
        return getattr(tl, ALIASES[name])
    if name in _MATH:
        return partial(_math, tl, name)
    if name in OTHER_RESULTS:
        return partial(_result, tl, name)
    if name in CASTS:
        return partial(tl.cast, dtype=CASTS[name])
    if name in BITS:
        return partial(tl.cast, dtype=BITS[name], bitcast=True)
    if name in MODULES:
        return Namespace(tl, name if name == "libdevice" else f"{module}.{name}")
    if name in REFUSED:
        raise AttributeError(f"{module}.{name} is not supported: {REFUSED[name]}", name=name)
    known = [*_MATH, *OTHER_RESULTS, *CASTS, *BITS, *ALIASES]
    if module == "tl":
        known = [name for name in dir(type(tl)) if not name.startswith("_") and name not in REFUSED]
    raise AttributeError(f"{module}.{name} is not supported; {hint(name, sorted(known))}", name=name)


def _math(tl: Program, name: str, *operands: Any) -> Tile:
    kinds, compute = _MATH[name]
    tiles, common = tl._unify(name, operands)
    if not common.is_floating_point:
        raise KernelError(f"tl.{name} takes floats, got {common}; convert them first: x.to(tl.float32)")
    shape = broadcast_shape(name, *(tile.shape for tile in tiles))
    return tl._vector(name, kinds, compute, tiles, shape, common, common)


def _result(tl: Program, name: str, *operands: Any) -> Tile:
    dtype, compute = OTHER_RESULTS[name]
    tiles, taken = tl._unify(name, [tl._constant(x) for x in operands])
    shape = broadcast_shape(name, *(tile.shape for tile in tiles))
    return tl._vector(name, _SIMPLE, compute, tiles, shape, dtype or taken, taken)


def ldexp(tl: Program, x: Any, n: Any) -> Tile:
    """Return x * 2**n for integer n: one simple operation."""
    x, n = tl._constant(x), tl._constant(n)
    x = tl.cast(x, wide(x.dtype))

    def scaled(a: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        return np.ldexp(a, exponent.astype(np.intc))

    return tl._vector("ldexp", _SIMPLE, scaled, (x, n), broadcast_shape("ldexp", x.shape, n.shape), x.dtype, None)


def assert_of_values(tl: Program, condition: Callable[..., Any], values: Sequence[Any], message: str) -> None:
    """Check a condition on the arrays of tensors once they are complete, at no cost; a KernelError ends the run."""
    if tl._data:
        line = user_line()
        # Not the tiles, whose space in TCM the program may free before.
        known = [(x._value, x.shape) if isinstance(x, Tile) else (None, x) for x in values]
        left = {id(value): value for value, _ in known if value is not None}

        def check() -> None:
            arrays = [x if value is None else np.reshape(cast("np.ndarray", value.array), x) for value, x in known]
            if not np.all(condition(*arrays)):
                raise KernelError(f"{line_text(line)}: {message}")

        def complete(value: Any, _done_ps: int) -> None:
            del left[id(value)]
            if not left:
                check()

        if not left:
            check()
        for value in list(left.values()):
            when_complete(value, complete)
