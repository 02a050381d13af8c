"""Functions of libdevice: values of mpmath's or Python's exact numbers, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

import kernbench as kb
from kernbench.errors import KernelError

RNG = np.random.default_rng(7)


def launched(kernels, machine, name, *args, **constants):
    with kb.session(machine, data=True) as torch, kb.triton.on(torch):
        getattr(kernels, name)[(1,)](*args, **constants)


def bisected(function, y, low, high):
    """Return x with function(x) = y of an increasing function."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < y else (low, middle)
    return low


def normcdf(x):
    return math.erfc(-x * math.sqrt(0.5)) / 2


@pytest.mark.parametrize(("kind", "ulps"), [(np.float32, 1), (np.float64, 4096)])
def test_inverse_functions(kind, ulps, kernels, machine):
    x = np.array([1e-30, 1e-8, 1e-3, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999], kind)
    out = np.zeros((6, len(x)), kind)
    launched(kernels, machine, "inverses", x, out, len(x), B=16)
    given = [float(a) for a in x]
    expected = [
        [bisected(math.erf, a, 0, 9) if a > 1e-6 else a * math.sqrt(math.pi) / 2 for a in given],
        [bisected(lambda b: -math.erfc(b), -a, -9, 30) for a in given],
        [bisected(normcdf, a, -40, 9) for a in given],
        [normcdf(a) for a in given],
        [math.exp(a * a) * math.erfc(a) for a in given],
        [sum((a / 2) ** (2 * k + 1) / math.factorial(k) / math.factorial(k + 1) for k in range(30)) for a in given],
    ]
    wide = np.array(expected)
    # Bisection is exact to 1e-13; near erfcinv(1) and normcdfinv(0.5) the result has the error of the argument.
    limit = ulps * np.finfo(kind).eps * np.maximum(abs(wide), 1e-3 * (abs(wide) < 0.2))
    assert (abs(out - wide) <= limit).all(), np.argwhere(abs(out - wide) > limit)


def test_ends_of_inverse_functions(kernels, machine):
    x = np.array([0, 1, 2, -1, -3, np.nan], np.float32)
    out = np.zeros((6, 6), np.float32)
    launched(kernels, machine, "inverses", x, out, 6, B=8)
    inf, nan = np.inf, np.nan
    assert np.array_equal(out[0], np.float32([0, inf, nan, -inf, nan, nan]), equal_nan=True)
    assert np.array_equal(out[1], np.float32([inf, 0, -inf, nan, nan, nan]), equal_nan=True)
    assert np.array_equal(out[2], np.float32([-inf, inf, nan, nan, nan, nan]), equal_nan=True)


def test_a_kernel_may_have_the_name_of_a_function(kernels, machine):
    x = np.float32([0, 0.5, -3, 20, 80, 100, np.nan, 14.9])
    out = np.zeros_like(x)
    launched(kernels, machine, "i0", x, out, B=8)
    expected = np.i0(x.astype(np.float64)[:5])
    np.testing.assert_allclose(out[:5], expected, rtol=2e-7)
    np.testing.assert_allclose(out[7], np.i0(float(x[7])), rtol=2e-7)
    assert out[5] == np.inf
    assert np.isnan(out[6])


def directed(exact, how, kind, square=False):
    """Return the float next to an exact number in a direction, by its definition."""
    near = kind(float(exact)) if not square else kind(math.sqrt(exact))

    def error(x):
        return (Fraction(float(x)) ** 2 if square else Fraction(float(x))) - exact

    is_down = how == "rd" or (how == "rz" and exact > 0)
    below, above = np.nextafter(near, kind(-np.inf)), np.nextafter(near, kind(np.inf))
    around = [x for x in (below, near, above) if (error(x) <= 0 if is_down else error(x) >= 0)]
    return max(around) if is_down else min(around)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_directed_rounding(kind, kernels, machine):
    x, y, z = ((RNG.standard_normal(64) * 10.0 ** RNG.integers(-6, 6, 64)).astype(kind) for _ in range(3))
    x[:3], y[:3] = [3, 0.1, 1], [4, 0.1, 3]
    out = np.zeros((21, 64), kind)
    launched(kernels, machine, "rounded", x, y, z, out, B=64)
    operations = [
        lambda a, b, c: a + b, lambda a, b, c: a - b, lambda a, b, c: a * b, lambda a, b, c: a / b,
        lambda a, b, c: a * b + c, lambda a, b, c: 1 / b,
    ]  # fmt: skip
    for i in range(64):
        exact = [Fraction(float(v)) for v in (x[i], y[i], z[i])]
        for j, operation in enumerate(operations):
            value = operation(*exact)
            expected = [directed(value, how, kind) if value else 0 for how in ("rz", "rd", "ru")]
            assert out[3 * j : 3 * j + 3, i].tolist() == expected, (i, j)
        roots = [directed(abs(exact[0]), how, kind, True) for how in ("rz", "rd", "ru")]
        assert out[18:, i].tolist() == roots, i


def test_directed_rounding_at_the_ends(kernels, machine):
    most, least = np.finfo(np.float32).max, np.finfo(np.float32).smallest_subnormal
    x = np.float32([most, -most, 1, 0, np.inf, np.nan, least, -least])
    y = np.float32([most, -most, -1, -0.0, 1, 1, 0.25, 0.25])
    out = np.zeros((21, 8), np.float32)
    launched(kernels, machine, "rounded", x, y, np.zeros(8, np.float32), out, B=8)
    assert out[:3, 0].tolist() == [most, most, np.inf]
    assert out[:3, 1].tolist() == [-most, -np.inf, -most]
    assert [np.signbit(v) for v in out[:3, 2]] == [False, True, False]
    assert [np.signbit(v) for v in out[:3, 3]] == [False, True, False]
    assert out[:3, 4].tolist() == [np.inf] * 3
    assert np.isnan(out[:3, 5]).all()
    assert out[6:9, 6].tolist() == [0, 0, least]
    assert out[6:9, 7].tolist() == [0, -least, 0]
    assert np.signbit(out[8, 7])


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_remainder_is_exact_at_all_exponents(kind, kernels, machine):
    limits = np.finfo(kind)
    least = limits.minexp - limits.nmant
    both = RNG.integers(least, limits.maxexp, (2, 2000))
    both[1, 500:1000] = np.clip(both[0, 500:1000] + RNG.integers(-3, 4, 500), least, limits.maxexp - 1)
    x, y = np.ldexp(RNG.choice([-1, 1], (2, 2000)) * RNG.uniform(1, 2, (2, 2000)).astype(kind), both).astype(kind)
    y[1000:1500] = x[1000:1500] * kind(0.4)  # quotients 2.5, rounded to one side or the other
    with np.errstate(over="ignore"):
        x[1500:] = (RNG.integers(-9, 9, 500) / 2).astype(kind) * y[1500:]  # halves, and products that are not finite
    ends = [0, -0.0, 1, -3, np.inf, -np.inf, np.nan, limits.max, -limits.smallest_subnormal]
    pairs = np.array(list(product(ends, ends)), kind)
    x, y = np.concatenate([x, pairs[:, 0]]), np.concatenate([y, pairs[:, 1]])
    out = np.zeros_like(x)
    with kb.session(machine, data=True) as torch, kb.triton.on(torch):
        kernels.ieee_remainders[(-(-len(x) // 256),)](x, y, out, len(x), B=256)
    expected = [
        math.nan if math.isinf(a) or b == 0 else math.remainder(a, b)
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(out, np.array(expected, kind))
    numbers = ~np.isnan(out)
    assert numbers.sum() > 1700
    assert (np.signbit(out) == np.signbit(expected))[numbers].all(), "zeros have the sign of the dividend"


@pytest.mark.parametrize("kind", [np.int32, np.uint32, np.int64, np.uint64])
def test_bits(kind, kernels, machine):
    width, signed = 8 * np.dtype(kind).itemsize, np.dtype(kind).kind == "i"
    x, y = (RNG.integers(0, 2**63, 64, np.uint64).astype(f"u{width // 8}").view(kind) for _ in range(2))
    x[:4] = [0, 1, np.iinfo(kind).max, np.iinfo(kind).min]
    out = np.zeros((6, 64), kind)
    launched(kernels, machine, "bits", x, y, out, B=64)

    def as_kind(n):
        n &= (1 << width) - 1
        return n - (1 << width) if signed and n >> (width - 1) else n

    for i in range(64):
        a, b = int(x[i]), int(y[i])
        word = f"{a & (1 << width) - 1:0{width}b}"
        expected = [
            width - len(word.lstrip("0")), as_kind(int(word[::-1], 2)), len(word) - word.rfind("1") if a else 0,
            as_kind(a * b >> width), as_kind((a + b) >> 1), as_kind(abs(a - b) + b),
        ]  # fmt: skip
        assert out[:, i].tolist() == expected, i


def test_words(kernels, machine):
    x, y = np.int32([5, -5, 1 << 23, 2**31 - 1]), np.int32([7, 7, 1, 0x01020304])
    out = np.zeros((5, 4), np.int32)
    launched(kernels, machine, "words", x, y, out, B=4)
    assert out[0].tolist() == [35, -35, -(1 << 23), -0x020304]
    assert out[1].view(np.uint32)[3] == 0x7F02FF04
    assert out[2].tolist() == x.tolist()
    assert out[3].tolist() == y.tolist()
    assert out[4].tolist() == [5, -5, 1 << 23, 2**31 - 128]


def test_constants_have_a_value(kernels, machine):
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    language = kernels.tl
    for kind, how, expected in (
        (language.float16, "", x + 1), (language.float32, "twice", x * 2), (language.int32, "twice", x)
    ):  # fmt: skip
        launched(kernels, machine, "constants", x, out, B=4, kind=kind, how=how)
        assert out.tolist() == expected.tolist()


def test_what_libdevice_does_not_have_is_named_after_it(kernels, machine):
    x = np.zeros(4, np.float32)
    with pytest.raises(KernelError, match=r"kernel bessel: libdevice\.j0 is not supported: of the Bessel functions"):
        launched(kernels, machine, "bessel", x, x, B=4)
