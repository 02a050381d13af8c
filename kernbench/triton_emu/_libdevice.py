"""Functions of libdevice that numpy lacks: inverse error functions, directed rounding, bits of integers."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from kernbench._dtypes import DType, float32, float64, int32

ArrayFunction = Callable[..., np.ndarray]
LibraryFunction = tuple[tuple[str, ...], ArrayFunction]

_SLOW, _SIMPLE = ("slow",), ("simple",)
_ROOT_HALF = math.sqrt(0.5)


def each(function: Callable[[float], float], at_pole: Callable[[float], float] = lambda x: math.nan) -> ArrayFunction:
    """Vectorize a function of Python floats; overflow gives inf, as in C."""

    def value(x: float) -> float:
        try:
            return math.nan if math.isnan(x) else function(float(x))
        except OverflowError:
            return math.inf
        except ValueError:
            return at_pole(x)

    applied = np.frompyfunc(value, 1, 1)
    return lambda x: np.asarray(applied(x), dtype=np.float64).astype(x.dtype)


def erfcinv(p: float) -> float:
    """Inverse of erfc: a rational approximation and three steps of Halley's method."""
    if not 0 < p < 2:
        return {0.0: math.inf, 2.0: -math.inf}.get(p, math.nan)
    tail = min(p, 2 - p)
    if tail > 0.5:
        return erfinv(1 - p)
    t = math.sqrt(-2 * math.log(tail / 2))
    x = -_ROOT_HALF * ((2.30753 + t * 0.27061) / (1 + t * (0.99229 + t * 0.04481)) - t)
    for _ in range(3):
        error = (math.erfc(x) - tail) * math.exp(x * x) * math.sqrt(math.pi) / 2
        x += error / (1 - x * error)
    return math.copysign(x, 1 - p)


def erfinv(y: float) -> float:
    size = abs(y)
    if size >= 0.5:
        return math.copysign(erfcinv(1 - size), y)  # 1 - size is exact
    x = y * math.sqrt(math.pi) / 2
    for _ in range(4):
        error = (y - math.erf(x)) * math.exp(x * x) * math.sqrt(math.pi) / 2
        x += error / (1 - x * error)
    return x


def erfcx(x: float) -> float:
    """exp(x * x) * erfc(x), without overflow for large x."""
    if x < 10:
        return math.exp(x * x) * math.erfc(x) if x > -26.6 else math.inf
    if math.isinf(x):
        return 0.0
    term = total = 1.0
    for n in range(1, 40, 2):
        term *= -n / (2 * x * x)
        total += term
    return total / (x * math.sqrt(math.pi))


def _bessel_i(order: int) -> ArrayFunction:
    """Bessel function I of an order: its power series, or its integral as a sum."""
    angles = np.linspace(0, math.pi, 257)
    weights = np.cos(order * angles) / 256
    weights[[0, -1]] /= 2

    def value(x: float) -> float:
        size = abs(x)
        if size < 15:
            term = total = (size / 2) ** order / math.factorial(order)
            for k in range(1, 60):
                term *= (size / 2) ** 2 / (k * (k + order))
                total += term
        else:
            with np.errstate(over="ignore", invalid="ignore"):
                scaled = np.exp(size * (np.cos(angles) - 1)) @ weights
                total = math.inf if math.isinf(size) else float(scaled * np.exp(size))
        return math.copysign(total, x) if order % 2 else total

    return each(value)


# --- rounding towards zero (rz), down (rd) and up (ru): IEEE 754, exact


def _rounded(exact: Fraction, how: str, kind: type[np.floating]) -> np.floating:
    """Round a nonzero number to a float in the direction `how`."""
    try:
        near = kind(float(exact))
    except OverflowError:
        near = kind(math.copysign(math.inf, exact))
    is_down = how == "rd" or (how == "rz" and exact > 0)
    value = float(near)
    if value > exact and is_down:
        near = np.nextafter(near, kind(-math.inf))
    elif value < exact and not is_down:
        near = np.nextafter(near, kind(math.inf))
    return np.copysign(near, kind(1 if exact > 0 else -1))


def _root(x: np.ndarray, how: str) -> np.ndarray:
    found: np.ndarray = np.sqrt(x)
    for i in np.ndindex(x.shape):
        value = float(found[i])
        if math.isfinite(value):
            square = Fraction(value) ** 2
            if square > float(x[i]) and how != "ru":
                found[i] = np.nextafter(found[i], x.dtype.type(0))
            elif square < float(x[i]) and how == "ru":
                found[i] = np.nextafter(found[i], x.dtype.type(math.inf))
    return found


def _directed(how: str, name: str) -> ArrayFunction:
    _, plain, exact, addends = _OPERATIONS[name]

    def function(*operands: np.ndarray) -> np.ndarray:
        spread = np.broadcast_arrays(*operands)
        found = np.array(plain(*spread))  # right for infinities and NaN
        kind = found.dtype.type
        for i in np.ndindex(found.shape):
            numbers = [a[i] for a in spread]
            if not np.isfinite(numbers).all() or (name in ("div", "rcp") and not numbers[-1]):
                continue
            value = exact(*(Fraction(float(x)) for x in numbers))
            if value:
                found[i] = _rounded(value, how, kind)
            else:
                is_negative = [bool(np.signbit(term)) for term in addends(*numbers)]
                found[i] = kind(-0.0 if all(is_negative) or (how == "rd" and any(is_negative)) else 0.0)
        return found

    return function


def _converted(how: str, kind: DType) -> ArrayFunction:
    target = kind.numpy.type

    def function(x: np.ndarray) -> np.ndarray:
        found = x.astype(kind.numpy)
        for i in np.ndindex(x.shape):
            if x[i] and np.isfinite(x[i]):
                found[i] = _rounded(Fraction(x[i].item()), how, target)
        return found

    return function


# Work on PE_MATH, the operation rounded to nearest, the exact one, and its addends (for the sign of an exact zero).
_OPERATIONS: dict[
    str, tuple[tuple[str, ...], ArrayFunction, Callable[..., Fraction], Callable[..., tuple[np.floating, ...]]]
] = {
    "add": (_SIMPLE, np.add, lambda x, y: x + y, lambda x, y: (x, y)),
    "sub": (_SIMPLE, np.subtract, lambda x, y: x - y, lambda x, y: (x, -y)),
    "mul": (_SIMPLE, np.multiply, lambda x, y: x * y, lambda x, y: (x * y,)),
    "fma": (_SIMPLE, lambda x, y, z: x * y + z, lambda x, y, z: x * y + z, lambda x, y, z: (x * y, z)),
    "div": (_SLOW, np.divide, lambda x, y: x / y, lambda x, y: (x / y,)),
    "rcp": (_SLOW, np.reciprocal, lambda x: 1 / x, lambda x: (x,)),
}  # fmt: skip
_ROUNDINGS = ("rz", "rd", "ru")


def _norm(*x: np.ndarray) -> np.ndarray:
    return np.frompyfunc(math.hypot, len(x), 1)(*x).astype(x[0].dtype)


# As `_MATH`: functions of floats, whose results have their type.
FLOATS: dict[str, LibraryFunction] = {
    "erfinv": (_SLOW, each(erfinv)), "erfcinv": (_SLOW, each(erfcinv)), "erfcx": (_SLOW, each(erfcx)),
    "normcdf": (("slow", "simple", "simple"), each(lambda x: math.erfc(-x * _ROOT_HALF) / 2)),
    "normcdfinv": (("slow", "simple", "simple"), each(lambda p: -erfcinv(2 * p) / _ROOT_HALF)),
    "cyl_bessel_i0": (_SLOW, _bessel_i(0)), "cyl_bessel_i1": (_SLOW, _bessel_i(1)),
    **dict.fromkeys(("norm3d", "norm4d"), (("simple", "simple", "slow"), _norm)),
    **dict.fromkeys(("rhypot", "rnorm3d", "rnorm4d"), (("simple", "simple", "slow", "slow"), lambda *x: 1 / _norm(*x))),
    **{f"sqrt_{how}": (_SLOW, lambda x, how=how: _root(x, how)) for how in _ROUNDINGS},
    **{f"{name}_{how}": (_OPERATIONS[name][0], _directed(how, name)) for name in _OPERATIONS for how in _ROUNDINGS},
}  # fmt: skip


# --- bits of integers


def _unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def _leading_zeros(x: np.ndarray) -> np.ndarray:
    bits = 8 * x.dtype.itemsize
    return np.frompyfunc(lambda a: bits - int(a).bit_length(), 1, 1)(_unsigned(x)).astype(np.int32)


def _reversed(x: np.ndarray) -> np.ndarray:
    bits = 8 * x.dtype.itemsize
    turned = np.frompyfunc(lambda a: int(f"{int(a):0{bits}b}"[::-1], 2), 1, 1)(_unsigned(x))
    return np.asarray(turned, dtype=object).astype(f"u{x.dtype.itemsize}").view(x.dtype)


def _first_set(x: np.ndarray) -> np.ndarray:
    return np.frompyfunc(lambda a: (int(a) & -int(a)).bit_length(), 1, 1)(_unsigned(x)).astype(np.int32)


def _exactly(function: Callable[..., int]) -> ArrayFunction:
    """Vectorize a function of Python integers; results wrap to the operands' type."""
    applied = np.frompyfunc(lambda *x: function(*map(int, x)), len(inspect.signature(function).parameters), 1)

    def compute(*x: np.ndarray) -> np.ndarray:
        mask = (1 << 8 * x[0].dtype.itemsize) - 1
        found: np.ndarray = np.asarray(np.bitwise_and(applied(*x), mask), dtype=object)
        return found.astype(f"u{x[0].dtype.itemsize}").view(x[0].dtype)

    return compute


def _mulhi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _exactly(lambda x, y: x * y >> 8 * a.dtype.itemsize)(a, b)


def _umulhi(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return _mulhi(_unsigned(a), _unsigned(b)).view(a.dtype)


def _low(x: int, bits: int = 24) -> int:
    """Sign-extend the low bits."""
    return ((x & (1 << bits) - 1) ^ 1 << bits - 1) - (1 << bits - 1)


def _selected(a: int, b: int, selector: int) -> int:
    """CUDA's byte_perm: four of the eight bytes of two words."""
    both = (a & 0xFFFFFFFF) | (b & 0xFFFFFFFF) << 32
    return sum((both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i for i in range(4))


def _joined(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    both = _unsigned(high).astype(np.uint64) << np.uint64(32) | _unsigned(low)
    return both.view(np.float64)


def _words(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint64)


# As `OTHER_RESULTS`: the type of the results (None: of the operands), and the function of arrays.
RESULTS: dict[str, tuple[DType | None, ArrayFunction]] = {
    "clz": (int32, _leading_zeros), "ffs": (int32, _first_set), "brev": (None, _reversed), "mulhi": (None, _mulhi),
    "umulhi": (None, _umulhi), "popc": (int32, lambda x: np.bitwise_count(_unsigned(x))),
    "mul24": (None, _exactly(lambda x, y: _low(x) * _low(y))), "hadd": (None, _exactly(lambda x, y: x + y >> 1)),
    "rhadd": (None, _exactly(lambda x, y: x + y + 1 >> 1)), "sad": (None, _exactly(lambda x, y, z: abs(x - y) + z)),
    "byte_perm": (None, _exactly(_selected)), "hiloint2double": (float64, _joined),
    "double2loint": (int32, lambda x: _words(x).astype(np.uint32).view(np.int32)),
    "double2hiint": (int32, lambda x: (_words(x) >> np.uint64(32)).astype(np.uint32).view(np.int32)),
    **{f"double2float_{how}": (float32, _converted(how, float32)) for how in _ROUNDINGS},
    **{
        f"{source}2{name}_{how}": (kind, _converted(how, kind))
        for source in ("int", "uint", "ll", "ull") for name, kind in (("float", float32), ("double", float64))
        for how in _ROUNDINGS
    },
}  # fmt: skip
