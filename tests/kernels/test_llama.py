"""The parts of a Llama block between its linear layers, against numpy."""

import numpy as np
import pytest

from kernbench.kernels.attention import attention
from kernbench.kernels.llama import rmsnorm, split_heads
from kernbench.triton_emu.testing import run_kernel
from tests.kernels.test_attention import attend, drawn

GRIDS = [(1, 1), (4, 2)]


@pytest.mark.parametrize("grid", GRIDS)
def test_rmsnorm(grid):
    x, weight = drawn((13, 24), np.float32) + 3, drawn((24,), np.float32)
    out = np.zeros_like(x)
    run_kernel(rmsnorm, x, weight, out, 13, 24, 1e-5, grid=grid)
    want = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(out, want, rtol=1e-5)


@pytest.mark.parametrize("grid", GRIDS)
def test_heads_are_split_and_rotated(grid):
    tokens, batch, kv_heads, group, d = 5, 2, 2, 3, 8
    qkv = drawn((tokens, batch, kv_heads, group + 2, d), np.float32)
    angle = np.arange(tokens)[:, None] * 10000.0 ** (-np.arange(d // 2) / (d // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    q = np.zeros((batch * kv_heads, tokens, group, d), np.float32)
    k, v = np.zeros((2, batch * kv_heads, tokens, d), np.float32)
    run_kernel(split_heads, qkv, cos, sin, q, k, v, tokens, batch, kv_heads, group, d, 2, grid=grid)
    z = (qkv[..., : d // 2] + 1j * qkv[..., d // 2 :]) * np.exp(1j * angle)[:, None, None, None]
    turned = np.concatenate([z.real, z.imag], -1)
    by_head = np.moveaxis(turned, 0, 2).reshape(batch * kv_heads, tokens, group + 2, d)
    np.testing.assert_allclose(q, by_head[:, :, :group], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(k, by_head[:, :, group], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(v, np.moveaxis(qkv, 0, 2).reshape(batch * kv_heads, tokens, group + 2, d)[:, :, -1])


@pytest.mark.parametrize("grid", GRIDS)
def test_heads_of_a_token_come_together(grid):
    q, (k, v) = drawn((6, 70, 2, 8), np.float32), drawn((2, 6, 70, 8), np.float32)
    out = np.zeros((70, 6, 2, 8), np.float32)
    run_kernel(attention, q, k, v, out, 6, 2, 70, 70, 8, True, True, grid=grid)
    np.testing.assert_array_equal(out, attend(q, k, v, causal=True).transpose(1, 0, 2, 3))
