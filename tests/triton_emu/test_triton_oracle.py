"""The same kernels on Triton's interpreter, where triton is installed: values, and the rounding that types imply."""

import os
import sys
import types
import warnings

import numpy as np
import pytest

from kernbench.triton_emu.testing import run_kernel

os.environ.setdefault("TRITON_INTERPRET", "1")
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import triton
        import triton.language as tl
except ImportError:
    pytest.skip("triton is not installed", allow_module_level=True)

N = 16
NAMES = {"float16": "fp16", "float32": "fp32", "int32": "i32", "int8": "i8"}


class Tensor:
    """As much of a torch tensor as the interpreter asks for, over a numpy array."""

    def __init__(self, array):
        self.array = array
        self.dtype = NAMES[array.dtype.name]

    def data_ptr(self):
        return self.array.ctypes.data

    def untyped_storage(self):
        return self

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)

    def storage_offset(self):
        return 0

    def size(self):
        return self.array.shape

    def cpu(self):
        return self

    def new_empty(self, *_, **__):
        return self

    def set_(self, *_):
        return self

    def copy_(self, *_):
        return self


@triton.jit
def add(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, (tl.load(x + i) + tl.load(y + i)).to(tl.float32))


@triton.jit
def sub_mul(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(out + i, ((a - b) * b).to(tl.float32))


@triton.jit
def divide(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, (tl.load(x + i) / tl.load(y + i)).to(tl.float32))


@triton.jit
def remainder(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, (tl.load(x + i) % tl.load(y + i)).to(tl.float32))


@triton.jit
def numbers(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(out + i, (a * 3 + 1 - 2 * a).to(tl.float32) * 0.1)


@triton.jit
def fractions(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, (tl.load(x + i) * 0.1 + 0.3).to(tl.float32))


@triton.jit
def choose(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    c = tl.where((a > b) & (a != 3) | (b <= -4), a, b)
    tl.store(out + i, (tl.maximum(c, 1) + tl.minimum(a, b)).to(tl.float32))


@triton.jit
def masked(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i, mask=i < n)
    b = tl.load(y + B - 1 - i, mask=(i >= 3) & (i < n), other=7)
    tl.store(out + i, (a + b).to(tl.float32), mask=i != 5)


@triton.jit
def reduced(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i[:, None] % 4 + i[None, :])
    row = tl.sum(a, axis=1) + tl.max(a, axis=0) - tl.min(a)
    tl.store(out + i, row.to(tl.float32))


@triton.jit
def functions(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.abs(tl.load(x + i).to(tl.float32)) + 0.5
    z = tl.exp(-a) + tl.exp2(-a) + tl.log(a) + tl.log2(a) + tl.sqrt(a) + tl.rsqrt(a) + tl.sin(a) + tl.cos(a)
    tl.store(out + i, tl.fma(z, a, tl.sigmoid(a)) + tl.clamp(a, 1.0, 2.0))


@triton.jit
def softmax_of(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.softmax(tl.load(x + i).to(tl.float32)))


@triton.jit
def product(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + (i[:, None] * 3 + i[None, :]) % B)
    b = tl.load(y + (i[:, None] + i[None, :] * 5) % B)
    c = tl.dot(a, tl.trans(b), tl.zeros((B, B), tl.float32) if a.dtype == tl.float16 else None)
    tl.store(out + i, tl.sum(c, axis=1).to(tl.float32))


@triton.jit
def integers(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    c = (a // b) * 100 + tl.cdiv(i, 3) + ((a & 7) ^ (b | 1)) + (i << 2) + (a >> 1) + ~b
    tl.store(out + i, c.to(tl.float32))


@triton.jit
def scanned(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.load(x + i)
    tl.store(out + i, (tl.cumsum(a, 0) + tl.cumprod(a, 0, reverse=True)).to(tl.float32))


@triton.jit
def sorted_values(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a, b = tl.load(x + i), tl.load(y + i)
    c = tl.interleave(tl.sort(a), tl.flip(b))
    low, high = tl.split(tl.reshape(c, (B, 2)))
    tl.store(out + i, (low - high + tl.gather(a, (i * 7) % B, 0)).to(tl.float32))


@triton.jit
def permuted(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    a = tl.permute(tl.reshape(tl.join(tl.load(x + i), tl.load(y + i)), (4, 4, 2)), (2, 1, 0))
    low, high = tl.split(tl.reshape(a, (B, 2)))
    tl.store(out + i, (low * 3 + high).to(tl.float32))


@triton.jit
def random(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, tl.rand(n, i) + tl.randn(n + 5, i * 3) + (tl.randint(n, i) % 1000).to(tl.float32))


@triton.jit
def atomics(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    b = tl.load(y + i)
    old = tl.atomic_add(x + i % 5, b, mask=i < n)
    more = tl.atomic_max(x + i, b) + tl.atomic_min(x + 15 - i, b - 1) + tl.atomic_xchg(x + (i ^ 1), b)
    seen = tl.atomic_cas(x + i, tl.load(x + i), b)
    tl.store(out + i, (tl.where(i < n, old, 0) + more + seen + tl.load(x + i)).to(tl.float32))


@triton.jit
def bits(x, y, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    b = tl.load(y + i)
    c = tl.atomic_and(x + i, b) + tl.atomic_or(x + i, b << 2) + tl.atomic_xor(x + i, 5)
    tl.store(out + i, (c + tl.load(x + i)).to(tl.float32))


PAIRS = [("float16", "float16"), ("float16", "float32"), ("int32", "float16"), ("int32", "int32"), ("int8", "int32")]
CASES = [
    *[(k, p) for k in (add, sub_mul, divide, choose, masked) for p in PAIRS],
    *[(k, (t, t)) for k in (numbers, fractions) for t in ("float16", "float32", "int32", "int8")],
    *[(k, (t, t)) for k in (functions, softmax_of) for t in ("float32", "int32", "float16")],
    # Not f16: the interpreter accumulates it in f16, kernbench in f32.
    *[(reduced, (t, t)) for t in ("float32", "int32", "int8")],
    *[(remainder, (t, t)) for t in ("float16", "float32", "int32")],
    *[(product, (t, t)) for t in ("float16", "int8")],
    (integers, ("int32", "int32")),
    *[(scanned, (t, t)) for t in ("float32", "int32", "float16", "int8")],
    *[(k, (t, t)) for k in (sorted_values, permuted) for t in ("float32", "int32", "float16")],
    (atomics, ("int32", "int32")),
    (bits, ("int32", "int32")),
    (random, ("int32", "int32")),
]


@pytest.mark.parametrize(
    ("kernel", "dtypes"), CASES, ids=lambda c: "-".join(c) if isinstance(c, tuple) else c.fn.__name__
)
def test_as_triton(kernel, dtypes):
    rng = np.random.default_rng(7)
    x, y = (rng.integers(-9, 9, 2 * N).astype(dtype) for dtype in dtypes)
    y[y == 0] = 5
    if np.issubdtype(x.dtype, np.floating):
        x *= np.float16(0.37)
    ours, theirs = np.full(N, -1, np.float32), np.full(N, -1, np.float32)
    kernel[(1,)](Tensor(x.copy()), Tensor(y), Tensor(theirs), 11, N)

    def on_kernbench(*args, tl):
        types.FunctionType(kernel.fn.__code__, {"tl": tl, **vars(sys.modules["builtins"])})(*args)

    run_kernel(on_kernbench, x, y, ours, 11, N)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
