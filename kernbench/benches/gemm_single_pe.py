"""One small matrix product on one PE: the first thing to look at on a new machine."""

from __future__ import annotations

from kernbench.benches.registry import bench
from kernbench.kernels.gemm import gemm
from kernbench.runtime_api.bench_runner import check_product, operand
from kernbench.runtime_api.context import RuntimeContext

M, K, N = 32, 128, 32


@bench("gemm-single-pe", f"{M} x {K} x {N} (M x K x N) in f16 on one PE, both operands streamed")
def run(torch: RuntimeContext) -> None:
    """Everything lies in the HBM slice of PE 0 of cube 0."""
    a, a_values = operand(torch, "a", (M, K), torch.float16)
    b, b_values = operand(torch, "b", (K, N), torch.float16)
    out = torch.empty(M, N, dtype=torch.float16, device="ahbm", name="out")
    torch.launch("gemm", gemm, a, b, out, M, K, N)
    check_product(torch, "out = a @ b", out, a_values, b_values)
