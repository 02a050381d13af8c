"""One matrix product by one composite command, sizes, type and staging from the environment."""

from __future__ import annotations

from kernbench.benches.registry import bench, env_choice, env_int
from kernbench.dtypes import as_dtype, int8, int32
from kernbench.kernels.gemm import STAGINGS, gemm
from kernbench.runtime_api.bench_runner import check_product, operand
from kernbench.runtime_api.context import RuntimeContext

DTYPES = ("f16", "bf16", "f32", "f8e4m3fn", "f8e5m2", "i8")


@bench(
    "matmul-composite",
    f"M x K x N on one PE: MATMUL_M (128), _K (256), _N (128), _DTYPE (f16), _VARIANT ({', '.join(STAGINGS)})",
)
def run(torch: RuntimeContext) -> None:
    """Everything lies in the HBM slice of PE 0 of cube 0; i8 gives i32, other types give their own."""
    m, k, n = env_int("MATMUL_M", 128), env_int("MATMUL_K", 256), env_int("MATMUL_N", 128)
    dtype = as_dtype(env_choice("MATMUL_DTYPE", "f16", DTYPES))
    variant = env_choice("MATMUL_VARIANT", STAGINGS[0], STAGINGS)
    a, a_values = operand(torch, "a", (m, k), dtype)
    b, b_values = operand(torch, "b", (k, n), dtype)
    out = torch.empty(m, n, dtype=int32 if dtype is int8 else dtype, device="ahbm", name="out")
    torch.launch(f"matmul-{variant}", gemm, a, b, out, m, k, n, variant)
    check_product(torch, f"out = a @ b ({variant}, {dtype.name})", out, a_values, b_values)
