"""Matrix products: as one composite per program, and tile by tile as in Triton's tutorial."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernbench.components._command import Ref
from kernbench.errors import KernelError
from kernbench.kernels.partition import program_number, programs, share
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

STAGINGS = ("ref_ref", "load_ref", "load_load")


def gemm(
    a_ptr: Pointer, b_ptr: Pointer, out_ptr: Pointer, M: int, K: int, N: int, staging: str = "ref_ref",
    epilogue: Sequence[Any] = (), *, tl: TLContext,
) -> None:  # fmt: skip
    """Write a[M, K] @ b[K, N] to out[M, N], as one composite; every program computes all of it.

    `staging` is the treatment of a and of b: loaded into TCM first ("load") or streamed from memory ("ref").
    """
    if staging not in STAGINGS:
        raise KernelError(f"unknown staging {staging!r}; known: {', '.join(STAGINGS)}")
    stage_a, stage_b = staging.split("_")
    a = _operand(a_ptr, (M, K), stage_a, tl)
    b = _operand(b_ptr, (K, N), stage_b, tl)
    tl.wait(tl.composite("gemm", a, b, out_ptr, epilogue=epilogue))


def column_gemm(
    a_ptr: Pointer, b_ptr: Pointer, out_ptr: Pointer, M: int, K: int, N: int, staging: str = "ref_ref", *,
    tl: TLContext,
) -> None:  # fmt: skip
    """Write a[M, K] @ b[K, N] to out[M, N], each program its columns.

    b and out are placed column-wise over cubes and PEs, a is replicated: every program reads and writes its own
    shards, which are consecutive, each in row-major order.
    """
    start, size = share(N, tl)
    if size:
        gemm(a_ptr, b_ptr + K * start, out_ptr + M * start, M, K, size, staging, tl=tl)


def tiled_gemm(
    a_ptr: Pointer, b_ptr: Pointer, out_ptr: Pointer, M: int, N: int, K: int, BLOCK_M: int = 32, BLOCK_N: int = 32,
    BLOCK_K: int = 64, activation: str = "", *, tl: TLContext,
) -> None:  # fmt: skip
    """Write activation(a[M, K] @ b[K, N]) to out[M, N] with pointer tiles; output tiles are assigned round-robin.

    `activation` is "", "relu" or "silu". Matrices are row-major; ragged edges are masked.
    """
    columns = tl.cdiv(N, BLOCK_N)
    for tile in range(program_number(tl), tl.cdiv(M, BLOCK_M) * columns, programs(tl)):
        rm = (tile // columns) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        rn = (tile % columns) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        rk = tl.arange(0, BLOCK_K)
        a_ptrs = a_ptr + (rm * K + rk[None, :])
        b_ptrs = b_ptr + (rk[:, None] * N + rn)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            a = tl.load(a_ptrs, mask=(rm < M) & (rk[None, :] < K - k), other=0.0)
            b = tl.load(b_ptrs, mask=(rk[:, None] < K - k) & (rn < N), other=0.0)
            acc = tl.dot(a, b, acc)
            a_ptrs += BLOCK_K
            b_ptrs += BLOCK_K * N
        if activation == "relu":
            acc = tl.maximum(acc, 0.0)
        elif activation == "silu":
            acc = acc * tl.sigmoid(acc)
        elif activation:
            raise KernelError(f"unknown activation {activation!r}; known: relu, silu")
        tl.store(out_ptr + (rm * N + rn), acc.to(out_ptr.dtype.element_ty), mask=(rm < M) & (rn < N))


def _operand(pointer: Pointer, shape: tuple[int, int], stage: str, tl: TLContext) -> Ref | Tile:
    return tl.load(pointer, shape=shape) if stage == "load" else tl.ref(pointer, shape)
