"""Kernels on matrices whose columns are spread over programs, against numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.kernels.gemm import linear
from kernbench.kernels.llama import heads_at, rmsnorm_columns, split_heads
from kernbench.kernels.partition import columns_at, rows_at
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.triton_emu.testing import run_kernel
from tests.kernels.test_attention import drawn

COLUMNS = DPPolicy(cube="column_wise", pe="column_wise")


def placed(x, grid):
    """The bytes of a matrix in the order of its shards."""
    pes, cubes = grid
    specs = resolve_dp_policy(COLUMNS, shape=x.shape, itemsize=1, num_pe=pes, num_cubes=cubes, target_sip=0)
    return np.concatenate([x[s.index].reshape(-1) for s in specs])


def unplaced(flat, shape, grid):
    whole = np.zeros(shape, flat.dtype)
    order = placed(np.arange(whole.size).reshape(shape), grid)
    whole.reshape(-1)[order] = flat
    return whole


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 4), st.integers(1, 3))
def test_places_are_those_of_the_policy(rows, columns, pes, cubes):
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    out = np.zeros((pes * cubes, rows, columns), np.float32)

    def read(x_ptr, out_ptr, tl):
        at = columns_at(rows, columns, pes, cubes)(tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :], tl)
        program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.store(out_ptr + program * rows * columns, tl.load(x_ptr + at))

    run_kernel(read, placed(x, (pes, cubes)), out, grid=(pes, cubes))
    for seen in out:
        np.testing.assert_array_equal(seen, x)


@pytest.mark.parametrize("grid", [(1, 1), (4, 2)])
@pytest.mark.parametrize("layout", ["rows", "columns"])
@pytest.mark.parametrize("n", [50, 3])
def test_linear(grid, layout, n):
    x, w, bias = drawn((40, 70), np.float32), drawn((70, n), np.float32), drawn((n,), np.float32)
    out = np.zeros(40 * n, np.float32)
    at = rows_at(70) if layout == "rows" else columns_at(40, 70, *grid)
    given_x = x if layout == "rows" else placed(x, grid)
    run_kernel(linear, given_x, placed(w, grid), bias, out, 40, 70, n, at, grid=grid)
    np.testing.assert_allclose(unplaced(out, (40, n), grid), x @ w + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grid", [(1, 1), (4, 2)])
def test_rmsnorm(grid):
    x, weight = drawn((13, 24), np.float32) + 3, drawn((24,), np.float32)
    out = np.zeros(13 * 24, np.float32)
    run_kernel(rmsnorm_columns, placed(x, grid), weight, out, 13, 24, columns_at(13, 24, *grid), 1e-5, grid=grid)
    want = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(unplaced(out, x.shape, grid), want, rtol=1e-5)


@pytest.mark.parametrize("grid", [(1, 1), (4, 2)])
def test_heads_are_split_and_rotated(grid):
    tokens, batch, kv_heads, group, d = 5, 2, 2, 3, 8
    qkv = drawn((tokens, batch, kv_heads, group + 2, d), np.float32)
    angle = np.arange(tokens)[:, None] * 10000.0 ** (-np.arange(d // 2) / (d // 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    q = np.zeros((batch * kv_heads, tokens, group, d), np.float32)
    k, v = np.zeros((2, batch * kv_heads, tokens, d), np.float32)
    flat = placed(qkv.reshape(tokens * batch, -1), grid)
    at = columns_at(tokens * batch, qkv[0, 0].size, *grid)
    run_kernel(split_heads, flat, cos, sin, q, k, v, tokens, batch, kv_heads, group, d, at, 2, grid=grid)
    z = (qkv[..., : d // 2] + 1j * qkv[..., d // 2 :]) * np.exp(1j * angle)[:, None, None, None]
    turned = np.concatenate([z.real, z.imag], -1)
    by_head = np.moveaxis(turned, 0, 2).reshape(batch * kv_heads, tokens, group + 2, d)
    np.testing.assert_allclose(q, by_head[:, :, :group], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(k, by_head[:, :, group], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(v, np.moveaxis(qkv, 0, 2).reshape(batch * kv_heads, tokens, group + 2, d)[:, :, -1])


def test_heads_come_back_together():
    tokens, batch, kv_heads, group, d = 4, 3, 2, 2, 5
    x = drawn((batch, kv_heads, tokens, group, d), np.float32)
    w = np.eye(kv_heads * group * d, dtype=np.float32)
    out = np.zeros((tokens * batch, kv_heads * group * d), np.float32)
    at = heads_at(tokens, batch, kv_heads, group, d)
    run_kernel(linear, x, w, None, out, *out.shape, out.shape[1], at)
    np.testing.assert_array_equal(out, x.transpose(2, 0, 1, 3, 4).reshape(out.shape))
