"""Launches of the kernels and the values that they ought to have, from numpy alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


def _rng() -> np.random.Generator:
    return np.random.default_rng(3)


def add(k: Any) -> None:
    x, y = _rng().standard_normal((2, 1003)).astype(np.float32)
    out = np.zeros_like(x)
    k.add[lambda meta: (-(-meta["n"] // meta["BLOCK"]),)](x, y, out, 1003, BLOCK=128, num_warps=4)
    np.testing.assert_array_equal(out, x + y)


def softmax(k: Any) -> None:
    x = _rng().standard_normal((23, 77)).astype(np.float32)
    out = np.zeros_like(x)
    k.softmax[(5,)](x, out, 23, 77, 77, BLOCK=128)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=2e-6)


def matmul(k: Any) -> None:
    M, N, K = 45, 37, 50
    a, b = (_rng().standard_normal(s).astype(np.float16) for s in ((M, K), (K, N)))
    c = np.zeros((M, N), np.float16)
    grid = lambda meta: (-(-M // meta["BM"]) * -(-N // meta["BN"]),)  # noqa: E731
    k.matmul.fn[grid](a, b, c, M, N, K, K, 1, N, 1, N, 1, BM=16, BN=32, BK=16, ACTIVATION="leaky")
    wide = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_allclose(c, np.where(wide >= 0, wide, 0.01 * wide), rtol=2e-3, atol=1e-3)


def layer_norm(k: Any) -> None:
    rows, n, groups = 9, 50, 3
    x, dy = _rng().standard_normal((2, rows, n)).astype(np.float32)
    w, b = _rng().standard_normal((2, n)).astype(np.float32)
    y, dx, mean, rstd = np.zeros_like(x), np.zeros_like(x), np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    k.layer_norm[(rows,)](x, y, w, b, mean, rstd, n, n, 1e-5, BLOCK=64)
    apart = x - x.mean(1, keepdims=True)
    scale = 1 / np.sqrt((apart**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, apart * scale * w + b, rtol=1e-4, atol=1e-5)
    dw, db, lock = np.zeros((groups, n), np.float32), np.zeros((groups, n), np.float32), np.zeros(2 * groups, np.int32)
    k.layer_norm_backward[(rows,)](dx, dy, dw, db, x, w, mean, rstd, lock, n, n, GROUPS=groups, BLOCK=64)
    normal, weighted = apart * scale, w * dy
    c1, c2 = (normal * weighted).mean(1, keepdims=True), weighted.mean(1, keepdims=True)
    np.testing.assert_allclose(dx, (weighted - (normal * c1 + c2)) * scale, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(dw.sum(0), (dy * normal).sum(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(db.sum(0), dy.sum(0), rtol=1e-4, atol=1e-5)
    assert not lock[:groups].any()


def attention(k: Any) -> None:
    heads, T, D = 2, 50, 16
    q, key, v = _rng().standard_normal((3, heads, T, D)).astype(np.float16)
    scale = D**-0.5
    for causal in (False, True):
        out = np.zeros_like(q)
        k.attention[(-(-T // 16), heads)](q, key, v, out, T, scale, D=D, BQ=16, BK=32, CAUSAL=causal)
        score = np.einsum("htd,hsd->hts", q, key, dtype=np.float32) * scale
        score = np.where(np.tril(np.ones((T, T), bool)) | (not causal), score, -np.inf)
        p = np.exp(score - score.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        np.testing.assert_allclose(out, np.einsum("hts,hsd->htd", p, v, dtype=np.float32), rtol=4e-3, atol=4e-3)


def descriptors(k: Any) -> None:
    x = _rng().standard_normal((13, 21)).astype(np.float32)
    out = np.zeros_like(x)
    k.descriptors[(4, 3)](x, out, 13, 21, BM=4, BN=8)
    np.testing.assert_array_equal(out, x * 2 + 1)


def scans(k: Any) -> None:
    a = _rng().integers(-50, 50, 16).astype(np.int32)
    out = np.zeros((3, 16), np.int32)
    k.scans[(1,)](a, out, B=16)
    i = np.arange(16)
    places = np.array([a[: j + 1].argmax() for j in i])
    first = np.cumsum(a[::-1])[::-1] + np.cumsum(a) * 2 + a.sum() + np.maximum.accumulate(a) * 3 + places
    np.testing.assert_array_equal(out[0], first + a.max() * 5 + a.argmax() + a.argmin() + np.bitwise_xor.reduce(a))
    np.testing.assert_array_equal(out[1], np.sort(a)[::-1] + a[::-1] + a[(i * 5) % 16])
    np.testing.assert_array_equal(out[2], a * 7 - a + np.bincount(i % 4, minlength=16))


def functions(k: Any) -> None:
    from math import erf

    x = _rng().standard_normal(29).astype(np.float32)
    out = np.zeros_like(x)
    k.functions[(1,)](x, out, 29, 1e-3, B=32)
    a = x.astype(np.float64)
    z = np.vectorize(erf)(a) + np.floor(a) - np.ceil(a * 0.5) + 1 / (1 + np.exp(-a)) + a * a + 1e-3 + a.clip(-0.5, 0.5)
    z += abs(a) + np.exp(-abs(a)) + np.log(abs(a) + 1e-3) + 1 / np.sqrt(abs(a) + 1) + a / (a * a + 1)
    z += np.cos(a) * np.sin(a) + np.sqrt(abs(a)) + np.exp2(a) + np.log2(abs(a) + 2)
    np.testing.assert_allclose(out, z, rtol=1e-5, atol=2e-6)


def library(k: Any) -> None:
    x = _rng().standard_normal(16).astype(np.float32)
    out = np.zeros_like(x)
    k.library[(1,)](x, out, B=16)
    a = x.astype(np.float64)
    z = np.tanh(a) + np.log1p(abs(a)) + abs(a) ** 1.5 + np.arctan2(a, a + 2) + np.expm1(a)
    np.testing.assert_allclose(out, z + np.trunc(a + np.copysign(0.5, a)), rtol=1e-5, atol=1e-6)


def shapes(k: Any) -> None:
    a = np.arange(32, dtype=np.int32)
    out = np.zeros_like(a)
    k.shapes[(1,)](a, out, B=32)
    cube = a.reshape(2, 4, 4)
    wide = np.broadcast_to(cube.sum(2)[:, :, None], (2, 4, 4)).reshape(-1)
    np.testing.assert_array_equal(out, 2 * cube.transpose(2, 0, 1).reshape(-1) + a + wide)


def atomics(k: Any) -> None:
    total = np.zeros(1, np.int32)
    k.count[(7,)](total, 5)
    assert total[0] == 35


def booleans(k: Any) -> None:
    a, out = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
    k.booleans[(1,)](a, out, 3, B=8)
    big, odd, zero = a > 3, a % 2 == 1, a == 0
    found = ~odd + 2 * zero + 4 * (big & odd) + 8 * (big | odd | zero) + 16 * ((a < 6) & ~zero) + 32
    np.testing.assert_array_equal(out, found)


def signs(k: Any) -> None:
    x, y, bit = np.arange(-4, 4).astype(np.int8), np.full(8, 1, np.uint8), np.arange(8) % 2 == 1
    out = np.zeros((3, 8), np.int32)
    k.signs[(1,)](x, y, bit, out, B=8)
    np.testing.assert_array_equal(out[0], (x >> 1).view(np.uint8))
    np.testing.assert_array_equal(out[1], 2 + 4 * bit)
    assert out[2].all()


class Pair(NamedTuple):
    source: np.ndarray
    factor: int


def pair(k: Any) -> None:
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    k.pair_of[(1,)](Pair(x, 3), out, B=8)
    np.testing.assert_array_equal(out, 3 * x)


CASES = [
    add, softmax, matmul, layer_norm, attention, descriptors, scans, functions, library, shapes, atomics, booleans,
    signs, pair,
]  # fmt: skip
