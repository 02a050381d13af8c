"""Functions of Triton's math and libdevice that the kernel language does not have, and what is refused."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from kernbench import _dtypes as dtypes
from kernbench.errors import KernelError
from kernbench.sim_engine._user_code import line_text, user_line
from kernbench.triton import _libdevice
from kernbench.triton._types import TYPES
from kernbench.triton_emu._handles import Tile
from kernbench.triton_emu._program import broadcast as broadcast_shapes
from kernbench.triton_emu._program import when_complete

if TYPE_CHECKING:
    from kernbench.triton._language import Language


class StaticAssertError(KernelError):
    """`tl.static_assert` does not hold: the kernel cannot be compiled with these constants."""


class _TritonsError(StaticAssertError):
    """The same as an error of the installed Triton, for tuners and host code that catch Triton's."""

    src = node = None
    message = error_message = property(str)
    __str__ = Exception.__str__

    def __reduce__(self) -> tuple[Any, ...]:
        return static_assert_error, self.args


@cache
def _with_tritons(error: type[Exception]) -> type[_TritonsError]:
    return type(StaticAssertError.__name__, (_TritonsError, error), {"__module__": __name__})


def static_assert_error(text: str) -> StaticAssertError:
    """Return the error of a `static_assert`; where Triton is imported, it is Triton's own kind as well."""
    errors = sys.modules.get("triton.compiler.errors")
    return StaticAssertError(text) if errors is None else _with_tritons(errors.CompileTimeAssertionFailure)(text)


class Namespace:
    """`tl.math`, `libdevice` and other modules inside `triton.language`: the functions of the program's."""

    def __init__(self, lang: Language, name: str) -> None:
        self._lang, self._name = lang, name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(type(self._lang), name) or name in vars(self._lang):
            return getattr(self._lang, name)
        return self._lang._function(name, self._name)

    def __repr__(self) -> str:
        return f"<{self._name} of a program>"


_SLOW, _SIMPLE = ("slow",), ("simple",)


def _each(
    function: Callable[..., float], at_pole: Callable[[float], float] = lambda x: math.nan
) -> Callable[..., np.ndarray]:
    """Return a function of Python numbers as one of arrays; what is too large is inf, as in C."""

    def of(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return at_pole(x)

    applied = np.frompyfunc(of, 1, 1)

    def of_array(x: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.asarray(applied(x)).astype(x.dtype)
        return found

    return of_array


def _exponent(x: np.ndarray) -> np.ndarray:
    """Return the exponents, as floats: of 0 it is -inf, of inf it is inf."""
    exponent = np.where(np.isfinite(x), np.frexp(x)[1] - 1, np.abs(x))
    found: np.ndarray = np.where(x == 0, -np.inf, exponent).astype(x.dtype)
    return found


def _to(kind: dtypes.DType, rounded: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return a function that rounds floats to integers as CUDA does: what is too large is the largest, and NaN is 0."""
    range_of = np.iinfo(kind.numpy)

    def convert(x: np.ndarray) -> np.ndarray:
        whole = np.nan_to_num(rounded(x).astype(np.float64), nan=0.0)
        found = np.clip(whole, float(range_of.min), float(range_of.max))
        # The largest of 64 bits is not a float64: it is put in as an integer.
        top = found >= float(range_of.max)
        return np.where(top, range_of.max, np.where(top, 0, found).astype(kind.numpy)).astype(kind.numpy)

    return convert


def _away(x: np.ndarray) -> np.ndarray:
    """Round halves away from zero."""
    found: np.ndarray = np.trunc(x + np.copysign(x.dtype.type(0.5), x))
    return found


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the IEEE remainder: the quotient is rounded to the nearest, halves to even. Every step is exact."""
    size = np.abs(y)
    left = np.fmod(np.abs(x), 2 * size)  # the quotient modulo 2 decides on halves
    less = left - size
    nearest = np.where(2 * left <= size, left, np.where(2 * less < size, less, less - size))
    found: np.ndarray = np.where(np.signbit(x), -nearest, nearest)
    return found


# Their work on PE_MATH, and the function of arrays.
MATH: dict[str, tuple[tuple[str, ...], Callable[..., np.ndarray]]] = {
    "acos": (_SLOW, np.arccos), "acosh": (_SLOW, np.arccosh), "asin": (_SLOW, np.arcsin),
    "asinh": (_SLOW, np.arcsinh), "atan": (_SLOW, np.arctan), "atanh": (_SLOW, np.arctanh), "cbrt": (_SLOW, np.cbrt),
    "cosh": (_SLOW, np.cosh), "sinh": (_SLOW, np.sinh), "tan": (_SLOW, np.tan),
    "erfc": (_SLOW, _each(math.erfc)), "lgamma": (_SLOW, _each(math.lgamma, lambda x: math.inf)),
    "tgamma": (_SLOW, _each(math.gamma, lambda x: math.nan if x else math.copysign(math.inf, x))),
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
# Functions of integers, and those whose results have another type: the type of the results, the function of arrays.
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
# Other names of the same functions.
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
# What Triton has and this machine does not; named so that a launch can say why.
REFUSED = {
    "inline_asm_elementwise": "inline assembly is the code of another machine",
    "dot_scaled": "the matrix engine has no block scales; scale the operands, and use tl.dot",
    "extern_elementwise": "it calls the library of another machine; use the functions of tl.math or libdevice",
    "map_elementwise": "it runs scalar code for each element; use operations on tensors",
    **dict.fromkeys(("j0", "j1", "jn", "y0", "y1", "yn"), "of the Bessel functions there are cyl_bessel_i0 and i1"),
    "atomic_poll": "spin on tl.atomic_cas or tl.atomic_or instead",
}


def log2(n: int) -> int:
    """Return the logarithm of a constant that is a power of two."""
    return n.bit_length() - 1


def get_int_dtype(bitwidth: int, signed: bool) -> Any:
    """Return the integer type of so many bits."""
    return TYPES[f"{'' if signed else 'u'}int{bitwidth}"]


def umulhi(lang: Language, x: Any, y: Any) -> Any:
    """Return the upper half of the product of unsigned integers."""
    tiles, common = lang._tl._unify("umulhi", (lang._native(x), lang._native(y)))
    bits = 8 * common.itemsize
    whole, shape = np.frompyfunc(lambda a, b: int(a) * int(b) >> bits, 2, 1), [t.shape for t in tiles]
    unsigned = np.dtype(f"u{common.itemsize}")

    def upper(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.asarray(whole(a.astype(unsigned), b.astype(unsigned)), dtype=object)
        return found.astype(unsigned)

    out = broadcast_shapes("umulhi", *shape)
    return lang._wrap(lang._tl._vector("umulhi", _SIMPLE, upper, tiles, out, common, common))


def ldexp(lang: Language, x: Any, n: Any) -> Any:
    """Return x times two to the power of n, which is an integer."""
    tiles = lang._wide(x), lang._tile(n)
    shape = broadcast_shapes("ldexp", *(tile.shape for tile in tiles))

    def scaled(a: np.ndarray, exponent: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.ldexp(a, exponent.astype(np.intc))
        return found

    return lang._wrap(lang._tl._vector("ldexp", _SIMPLE, scaled, tiles, shape, tiles[0].dtype, None))


def popc(lang: Language, x: Any) -> Any:
    """Return the number of bits that are set."""
    tile = lang._tile(x)
    unsigned = np.dtype(f"u{tile.dtype.itemsize}")

    def count(a: np.ndarray) -> np.ndarray:
        bits: np.ndarray = np.bitwise_count(a.astype(unsigned))
        return bits

    return lang._wrap(lang._tl._vector("popc", _SIMPLE, count, (tile,), tile.shape, dtypes.int32, None))


def histogram(lang: Language, input: Any, num_bins: int, mask: Any = None) -> Any:
    """Return how often each integer below `num_bins` is there."""
    tiles = [lang._tile(input)] if mask is None else [lang._tile(input), lang._tile(mask)]

    def count(a: np.ndarray, wanted: np.ndarray | None = None) -> np.ndarray:
        kept = a.reshape(-1) if wanted is None else a[np.broadcast_to(wanted, a.shape)]
        return np.bincount(kept[(kept >= 0) & (kept < num_bins)], minlength=num_bins)

    size = int(np.prod(tiles[0].shape))
    found = lang._tl._vector("histogram", ("reduce",), count, tiles, (int(num_bins),), dtypes.int32, None, size)
    return lang._wrap(found)


def assert_of_values(lang: Language, condition: Callable[..., Any], values: Sequence[Any], message: str) -> None:
    """Check a condition on the arrays behind tensors when they are complete, at no cost; without values, nothing.

    Raises
    ------
    KernelError
        From the run, with the message, where the condition does not hold.
    """
    if lang._tl._data:
        natives = [lang._native(value) for value in values]
        line = user_line()
        tiles = [x for x in natives if isinstance(x, Tile)]
        left = {id(tile._value): tile for tile in tiles}

        def check() -> None:
            arrays = [
                np.reshape(cast("np.ndarray", x._value.array), x.shape) if isinstance(x, Tile) else x for x in natives
            ]
            if not np.all(condition(*arrays)):
                raise KernelError(f"{line_text(line)}: {message}")

        def complete(value: Any, _done_ps: int) -> None:
            del left[id(value)]
            if not left:
                check()

        if not tiles:
            check()
        for value in [tile._value for tile in left.values()]:
            when_complete(value, complete)
