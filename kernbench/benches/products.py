"""Matrix products: a small first one, one by a single composite command, and the projections of attention."""

from __future__ import annotations

from typing import Annotated, Literal

from kernbench._dtypes import as_dtype, int8, int32
from kernbench.benches.registry import bench
from kernbench.kernels.gemm import STAGINGS, column_gemm
from kernbench.kernels.gemm import gemm as kernel
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import check_product, operand
from kernbench.runtime_api.context import RuntimeContext

M, _K, N = 128, 256, 128
_Dtype = Literal["f16", "bf16", "f32", "f8e4m3fn", "f8e5m2", "i8"]


@bench("gemm-single-pe", "32 x 128 x 32 (M x K x N) in f16 on one PE, both operands streamed")
def gemm(torch: RuntimeContext) -> None:
    """All tensors are in the HBM slice of PE 0 of cube 0."""
    _multiply(torch, "gemm", (32, 128, 32), "f16", "out = a @ b")


@bench("matmul", "M x K x N on one PE, by one composite command")
def matmul(
    torch: RuntimeContext,
    m: Annotated[int, "rows of a"] = 128,
    k: Annotated[int, "columns of a, rows of b"] = 256,
    n: Annotated[int, "columns of b"] = 128,
    dtype: _Dtype = "f16",
    variant: Annotated[Literal[STAGINGS], "operands that are loaded first; others are streamed"] = STAGINGS[0],  # type: ignore[valid-type]
) -> None:
    """All tensors are in the HBM slice of PE 0 of cube 0; i8 gives i32, other types give their own."""
    _multiply(torch, f"matmul-{variant}", (m, k, n), dtype, f"out = a @ b ({variant}, {as_dtype(dtype).name})", variant)


def _multiply(
    torch: RuntimeContext, name: str, mkn: tuple[int, int, int], dtype_name: str, title: str, *staging: str
) -> None:
    (m, k, n), dtype = mkn, as_dtype(dtype_name)
    a, a_values = operand(torch, "a", (m, k), dtype)
    b, b_values = operand(torch, "b", (k, n), dtype)
    out = torch.empty(m, n, dtype=int32 if dtype is int8 else dtype, device="ahbm", name="out")
    torch.launch(name, kernel, a, b, out, m, k, n, *staging)
    check_product(torch, title, out, a_values, b_values)


def project(torch: RuntimeContext, m: int, k: int, n: int, cubes: int, pes: int) -> None:
    """Compute q, k and v of `n` columns each: weights and results split by columns, the input replicated on every PE.

    Each weight is stored once, in the slice of the PE that uses it. A PE loads the input and streams its
    columns.
    """
    columns = DPPolicy(cube="column_wise", pe="column_wise", num_cubes=cubes, num_pes=pes)
    copies = DPPolicy(cube="replicate", pe="replicate", num_cubes=cubes, num_pes=pes)
    x, x_values = operand(torch, "x", (m, k), torch.float16, copies)
    results = []
    for name in "qkv":
        w, w_values = operand(torch, f"w{name}", (k, n), torch.float16, columns)
        out = torch.empty(m, n, dtype=torch.float16, dp=columns, name=name)
        torch.launch(f"{name}-projection", column_gemm, x, w, out, m, k, n, "load_ref")
        results.append((f"{name} = x @ w{name}", out, w_values))
    for title, out, w_values in results:
        check_product(torch, title, out, x_values, w_values)


@bench("qkv-gemm", f"q, k and v of {M} x {_K} x {N} (M x K x N) each in f16 on one PE")
def qkv_gemm(torch: RuntimeContext) -> None:
    """All tensors are in the HBM slice of PE 0 of cube 0."""
    project(torch, M, _K, N, cubes=1, pes=1)


@bench("qkv-gemm-multi-pe", f"q, k and v of {M} x {_K} x {N} (M x K x N) each in f16, columns over the PEs of a cube")
def qkv_gemm_multi_pe(torch: RuntimeContext) -> None:
    """Each PE of cube 0 has the input, and its columns of weights and results, in its HBM slice."""
    project(torch, M, _K, N, cubes=1, pes=torch.engine.machine.config.pes_per_cube)


@bench("gpt3-qkv", "q, k and v of GPT-3 in f16, columns over all PEs of a SIP")
def gpt3_qkv(
    torch: RuntimeContext,
    d_model: Annotated[int, "size of the hidden state"] = 12288,
    tokens: Annotated[int, "1 for a decode step, which is bound by the weights' bytes"] = 1,
) -> None:
    """Compute one layer's projections."""
    config = torch.engine.machine.config
    project(torch, tokens, d_model, d_model, cubes=config.cubes_per_sip, pes=config.pes_per_cube)
