"""A linear layer over all programs: each has its columns of the weights, and reads all of the input."""

from __future__ import annotations

from kernbench.kernels.partition import share
from kernbench.kernels.placed import At
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

BLOCK_M = 32


def linear(
    x_ptr: Pointer,
    w_ptr: Pointer,
    bias_ptr: Pointer | None,
    out_ptr: Pointer,
    M: int,
    K: int,
    N: int,
    x_at: At,
    *,
    tl: TLContext,
) -> None:
    """Write x[M, K] @ w[K, N] (+ bias[N]) to out[M, N].

    w, bias and out are column-wise over cubes and PEs: every program streams its own shard of w, and writes its own
    of out. x is loaded BLOCK_M rows at a time from where `x_at` says its elements are.
    """
    start, size = share(N, tl)
    if not size:
        return
    w = tl.ref(w_ptr + K * start, (K, size))
    epilogue = [] if bias_ptr is None else [("bias", bias_ptr + start)]
    for m in range(0, M, BLOCK_M):
        rows = min(BLOCK_M, M - m)
        x = tl.load(x_ptr + x_at(m + tl.arange(0, rows)[:, None], tl.arange(0, K)[None, :], tl))
        tl.composite("gemm", x, w, out_ptr + (M * start + m * size), epilogue=epilogue)
