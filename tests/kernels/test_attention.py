"""Attention against numpy in f64, within the stated bound, for any grouping, length, type and number of programs."""

from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.kernels import elementwise, ring_attention
from kernbench.kernels.attention import NEG, attention, tiles
from kernbench.triton_emu.testing import run_kernel

BF16 = np.dtype(ml_dtypes.bfloat16)
rng = np.random.default_rng(6)


def drawn(shape, dtype, scale=1.0):
    return (rng.standard_normal(shape) * scale).astype(np.float32).astype(dtype)


def exact(q, k, v, causal=False):
    """q [kv_heads, q_len, group, d], k and v [kv_heads, kv_len, d], in f64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    s = np.einsum("hqgd,hkd->hqgk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        q_len, kv_len = q.shape[1], k.shape[1]
        seen = np.arange(kv_len)[None, :] <= (kv_len - q_len + np.arange(q_len))[:, None]
        s = np.where(seen[None, :, None, :], s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hqgk,hkd->hqgd", p / p.sum(-1, keepdims=True), v)


def bound(q, k, v, out):
    """The bound in the notes of the kernel."""
    u = float(ml_dtypes.finfo(q.dtype).eps) / 2
    d = q.shape[-1]
    q, k, v = (np.abs(x.astype(np.float64)) for x in (q, k, v))
    lost = (d + 4) * 2.0**-24 * np.einsum("hqgd,hkd->hqgk", q, k).max() / np.sqrt(d)
    return u * np.abs(out) + v.max() * (u + 2 * lost + 2.0**-20)


def attend(q, k, v, causal=False, grid=(1, 1)):
    kv_heads, q_len, group, d = q.shape
    out = np.full_like(q, 7)
    run_kernel(attention, q, k, v, out, kv_heads, group, q_len, k.shape[1], d, causal, grid=grid)
    return out


@pytest.mark.parametrize("dtype", [np.float16, BF16, np.float32])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 16, 64), (2, 8, 1, 1100, 64), (2, 8, 40, 300, 32), (1, 1, 200, 200, 16)])
def test_within_the_bound(dtype, causal, shape):
    kv_heads, group, q_len, kv_len, d = shape
    q = drawn((kv_heads, q_len, group, d), dtype, 2)
    k, v = drawn((2, kv_heads, kv_len, d), dtype, 2)
    got, want = attend(q, k, v, causal).astype(np.float64), exact(q, k, v, causal)
    assert (np.abs(got - want) <= bound(q, k, v, want)).all()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 40), st.integers(0, 200), st.booleans(), st.integers(1, 3))
def test_any_shape_on_any_grid(kv_heads, group, q_len, more, causal, pes):
    q = drawn((kv_heads, q_len, group, 16), np.float32)
    k, v = drawn((2, kv_heads, q_len + more, 16), np.float32)
    got = attend(q, k, v, causal, grid=(pes, 2))
    assert np.abs(got - exact(q, k, v, causal)).max() < 1e-4
    np.testing.assert_array_equal(got, attend(q, k, v, causal))  # who computes a row does not change it


def test_large_scores_do_not_overflow():
    q = drawn((1, 3, 4, 64), np.float16, 100)
    k, v = drawn((2, 1, 700, 64), np.float16, 100)
    got, want = attend(q, k, v), exact(q, k, v)
    assert np.isfinite(got).all()
    assert (np.abs(got - want) <= bound(q, k, v, want)).all()


def test_tiles_never_exceed_a_result():
    for group in range(1, 200):
        tokens, kv = tiles(group, 10_000)
        assert tokens * group <= max(64, group)
        assert kv >= 32
        assert tokens * group * kv * 4 <= 32 * 1024


def parts_of(q, k, v, cuts):
    """The packed parts of the kv tokens between `cuts`, in f64."""
    found = []
    for a, b in pairwise(cuts):
        s = np.einsum("gd,kd->gk", q, k[a:b]) / np.sqrt(q.shape[-1])
        m = s.max(-1, keepdims=True)
        p = np.exp(s - m)
        found.append(np.concatenate([m, p.sum(-1, keepdims=True), p @ v[a:b]], axis=1))
    return found


def merged(x, y):
    def kernel(x_ptr, y_ptr, out_ptr, tl):
        a, b = (tl.load(p, shape=x.shape) for p in (x_ptr, y_ptr))
        tl.store(out_ptr, ring_attention.merge(a, b, tl))

    out = np.zeros_like(x)
    run_kernel(kernel, x, y, out)
    return out


def test_merge_is_a_reduction_operator():
    q, k, v = rng.standard_normal((8, 16)), *rng.standard_normal((2, 90, 16))
    a, b, c = (p.astype(np.float32) for p in parts_of(q, k, v, [0, 7, 50, 90]))
    whole = parts_of(q, k, v, [0, 90])[0]
    for got in (merged(merged(a, b), c), merged(a, merged(c, b)), merged(c, merged(b, a))):
        np.testing.assert_allclose(got, whole, rtol=2e-6, atol=2e-6)
    np.testing.assert_array_equal(merged(a, b), merged(b, a))
    identity = np.zeros_like(a)
    identity[:, 0] = NEG
    np.testing.assert_array_equal(merged(identity, a), a)
    np.testing.assert_array_equal(merged(identity, identity), identity)


@pytest.mark.parametrize("dtype", [np.float16, BF16])
@pytest.mark.parametrize("q_len", [1, 5])
def test_attention_by_way_of_parts(dtype, q_len):
    kv_heads, group, d, kv_len = 2, 4, 32, 600
    q = drawn((kv_heads, q_len, group, d), dtype, 2)
    k, v = drawn((2, kv_heads, kv_len, d), dtype, 2)
    parts, out = np.zeros((kv_heads, q_len, group, d + 2), np.float32), np.zeros_like(q)

    def kernel(*pointers, tl):
        alone = lambda part_ptr, *, tl: None  # noqa: E731  one rank has nothing to merge
        ring_attention.merged_attention(*pointers, kv_heads, group, q_len, kv_len, d, alone, (), tl=tl)

    run_kernel(kernel, q, k, v, parts, out)
    want = exact(q, k, v)
    assert (np.abs(out.astype(np.float64) - want) <= bound(q, k, v, want)).all()


def test_no_tokens_give_the_identity():
    x = np.zeros((1, 2, 8), np.float16)
    parts = np.ones((2, 10), np.float32)
    run_kernel(ring_attention.attend, x, x, x, parts, 1, 2, 1, 0, 8)
    np.testing.assert_array_equal(parts, np.float32([[NEG] + [0] * 9] * 2))


@pytest.mark.parametrize("grid", [(1, 1), (4, 2)])
def test_rotary(grid):
    x = drawn((70, 3, 16), np.float16)
    angle = np.arange(70)[:, None] * 10000.0 ** (-np.arange(8) / 8)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    out = np.zeros_like(x)
    run_kernel(elementwise.rotary, x, cos, sin, out, 70, 3, 16, grid=grid)
    wide = x.astype(np.float64)
    turned = (wide[..., :8] + 1j * wide[..., 8:]) * np.exp(1j * angle)[:, None, :]
    np.testing.assert_allclose(out, np.concatenate([turned.real, turned.imag], -1), rtol=1e-3, atol=1e-3)


def test_swiglu():
    gate, up = drawn((2, 1000), np.float16, 3)
    out = np.zeros_like(gate)
    run_kernel(elementwise.swiglu, gate, up, out, 1000, 64, grid=(3, 2))
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(out, wide / (1 + np.exp(-wide)) * up, rtol=2e-3, atol=1e-6)
