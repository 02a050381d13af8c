import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.errors import KernelError
from kernbench.kernels import elementwise, gemm, norm, partition
from kernbench.triton_emu.testing import run_kernel

rng = np.random.default_rng(2)


def wide(x):
    return x.astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@given(st.integers(1, 200), st.integers(1, 12), st.integers(1, 7))
def test_chunks_cover_everything_once(n, parts, inner):
    covered = []
    for i in range(parts):
        start, size = partition.chunk(n, parts, i)
        for j in range(inner):
            at, m = partition.chunk(size, inner, j)
            covered += range(start + at, start + at + m)
    assert covered == [*range(n)]


@pytest.mark.parametrize("staging", gemm.STAGINGS)
def test_gemm(staging):
    a, b = rng.normal(size=(33, 70)).astype(np.float16), rng.normal(size=(70, 40)).astype(np.float16)
    out = np.zeros((33, 40), np.float16)
    run_kernel(gemm.gemm, a, b, out, 33, 70, 40, staging)
    np.testing.assert_array_equal(out, (wide(a) @ wide(b)).astype(np.float16))


def test_gemm_with_epilogue():
    a, b = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=(8, 4)).astype(np.float32)
    out = np.zeros((4, 4), np.float32)
    run_kernel(gemm.gemm, a, b, out, 4, 8, 4, "load_ref", ["relu", ("scale", 2.0)])
    np.testing.assert_array_equal(out, np.maximum(a @ b, 0) * 2)


def test_gemm_refuses_an_unknown_staging():
    x = np.zeros((2, 2), np.float16)
    with pytest.raises(KernelError, match="known: ref_ref, load_ref, load_load"):
        run_kernel(gemm.gemm, x, x, x, 2, 2, 2, "ref_load")


@pytest.mark.parametrize("n", [64, 50, 3])
@pytest.mark.parametrize("grid", [(1, 1), (4, 2)])
def test_column_gemm_on_shards(n, grid):
    """Shards lie one after the other: cube by cube, PE by PE, each row by row."""
    pes, cubes = grid
    a, b = rng.normal(size=(8, 16)).astype(np.float16), rng.normal(size=(16, n)).astype(np.float16)

    def placed(x):
        parts = []
        for cube in range(cubes):
            start, size = partition.chunk(n, cubes, cube)
            for pe in range(pes):
                at, m = partition.chunk(size, pes, pe)
                parts.append(x[:, start + at : start + at + m].reshape(-1))
        return np.concatenate(parts)

    out = np.zeros(8 * n, np.float16)
    run_kernel(gemm.column_gemm, a, placed(b), out, 8, 16, n, "load_ref", grid=grid)
    np.testing.assert_array_equal(out, placed((wide(a) @ wide(b)).astype(np.float16)))


@pytest.mark.parametrize("activation", ["", "relu", "silu"])
@pytest.mark.parametrize("grid", [(1, 1), (3, 2)])
def test_tiled_gemm(activation, grid):
    m, n, k = 70, 45, 100
    a, b = rng.normal(size=(m, k)).astype(np.float16), rng.normal(size=(k, n)).astype(np.float16)
    out = np.zeros((m, n), np.float16)
    run_kernel(gemm.tiled_gemm, a, b, out, m, n, k, 32, 32, 64, activation, grid=grid)
    x = wide(a) @ wide(b)
    expected = {"": x, "relu": np.maximum(x, 0), "silu": x * sigmoid(x)}[activation]
    np.testing.assert_allclose(wide(out), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_add(dtype):
    x, y = rng.normal(size=(2, 1000)).astype(dtype)
    out = np.zeros(1000, dtype)
    run_kernel(elementwise.add, x, y, out, 1000, 64, grid=(3, 2))
    np.testing.assert_array_equal(out, (wide(x) + wide(y)).astype(dtype))


@pytest.mark.parametrize("grid", [(1, 1), (4, 2)])
def test_layernorm(grid):
    x = rng.normal(size=(19, 64)).astype(np.float16) + 3
    weight, bias = rng.normal(size=(2, 64)).astype(np.float16)
    out = np.zeros_like(x)
    run_kernel(norm.layernorm, x, weight, bias, out, 19, 64, grid=grid)
    centred = wide(x) - wide(x).mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5) * wide(weight) + wide(bias)
    np.testing.assert_allclose(wide(out), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("grid", [(1, 1), (4, 2)])
def test_softmax(grid):
    x = (rng.normal(size=(19, 33)) * 20).astype(np.float16)
    out = np.zeros_like(x)
    run_kernel(norm.softmax, x, out, 19, 33, 4, grid=grid)
    e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    np.testing.assert_allclose(wide(out), e / e.sum(1, keepdims=True), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(wide(out).sum(1), 1, atol=5e-3)
