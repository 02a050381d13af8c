"""One matrix product by one composite command, sizes, type and staging from the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernbench.benches.registry import bench
from kernbench.benches.support import check_product, env_choice, env_int, operand
from kernbench.dtypes import as_dtype, int8, int32
from kernbench.runtime_api.context import RuntimeContext

if TYPE_CHECKING:
    from kernbench.triton_emu.tl_context import TLContext

VARIANTS = ("ref_ref", "load_ref", "load_load")
DTYPES = ("f16", "bf16", "f32", "f8e4m3fn", "f8e5m2", "i8")


def matmul(a: Any, b: Any, out: Any, M: int, K: int, N: int, variant: str, *, tl: TLContext) -> None:
    """Load into TCM first what `variant` says ("load", a then b); stream the rest ("ref")."""
    stage = {"load": tl.load, "ref": tl.ref}
    of_a, of_b = variant.split("_")
    tl.composite("gemm", stage[of_a](a, shape=(M, K)), stage[of_b](b, shape=(K, N)), out)


@bench(
    "matmul-composite",
    "M x K x N on one PE: MATMUL_M (128), _K (256), _N (128), _DTYPE (f16), _VARIANT (ref_ref, load_ref, load_load)",
)
def run(torch: RuntimeContext) -> None:
    """Everything lies in the HBM slice of PE 0 of cube 0; i8 gives i32, other types give their own."""
    m, k, n = env_int("MATMUL_M", 128), env_int("MATMUL_K", 256), env_int("MATMUL_N", 128)
    dtype = as_dtype(env_choice("MATMUL_DTYPE", "f16", DTYPES))
    variant = env_choice("MATMUL_VARIANT", "ref_ref", VARIANTS)
    a, a_values = operand(torch, "a", (m, k), dtype)
    b, b_values = operand(torch, "b", (k, n), dtype)
    out = torch.empty(m, n, dtype=int32 if dtype is int8 else dtype, device="ahbm", name="out")
    torch.launch(f"matmul-{variant}", matmul, a, b, out, m, k, n, variant)
    check_product(torch, f"out = a @ b ({variant}, {dtype.name})", out, a_values, b_values)
