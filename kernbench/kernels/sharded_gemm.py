"""Matrix products over all PEs of a SIP, for three placements of the operands.

A is cut by rows over all PEs (row-major as a whole), so that any of its rows are one run of addresses. B is
cut by columns; a shard of it is a row-major matrix of its own. No kernel splits K: nothing has to be summed
between PEs.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.components.command import Ref
from kernbench.kernels.partition import chunk, share
from kernbench.triton_emu.handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext


def columns_gemm(
    a_ptr: Pointer,
    b_ptr: Pointer,
    c_ptr: Pointer,
    M: int,
    K: int,
    N: int,
    BLOCK_M: int,
    room: int,
    *,
    tl: TLContext,
) -> None:
    """Write a[M, K] @ b[K, N] to c[M, N], each program its columns.

    b and c are column-wise over cubes and PEs: every program streams its own shard of b and writes its own of c.
    Every program reads all of a, BLOCK_M rows at a time, into TCM; programs begin with different blocks.

    An operand of more than `room` bytes is streamed instead of loaded, here and below.
    """
    start, size = share(N, tl)
    if not size:
        return
    b = tl.ref(b_ptr + K * start, (K, size))
    out = c_ptr + M * start
    blocks = -(-M // BLOCK_M)
    for block in _from(_index(tl) % blocks, blocks):
        m, rows = block * BLOCK_M, min(BLOCK_M, M - block * BLOCK_M)
        a = _operand(a_ptr + m * K, (rows, K), room, tl)
        tl.composite("gemm", a, b, out + m * size)


def rows_gemm(
    a_ptr: Pointer,
    b_ptr: Pointer,
    c_ptr: Pointer,
    M: int,
    K: int,
    N: int,
    room: int,
    *,
    tl: TLContext,
) -> None:
    """Write a[M, K] @ b[K, N] to c[M, N], each program its rows.

    a and c are row-wise over cubes and PEs, b column-wise: every program keeps its rows of a in TCM, and reads the
    shards of b one after the other, beginning with its own, so that no two programs read from one PE at once.
    A program's rows of c lie block by block, one for the columns of each shard of b.
    """
    start, size = share(M, tl)
    shards = [
        (at + inner, width)
        for cube in range(tl.num_programs(1))
        for at, part in [chunk(N, tl.num_programs(1), cube)]
        for inner, width in [chunk(part, tl.num_programs(0), pe) for pe in range(tl.num_programs(0))]
        if width
    ]
    _row_blocks(a_ptr + start * K, b_ptr, c_ptr + start * N, size, K, shards, _index(tl), room, tl)


def grid_gemm(
    a_ptr: Pointer,
    b_ptr: Pointer,
    c_ptr: Pointer,
    M: int,
    K: int,
    N: int,
    room: int,
    *,
    tl: TLContext,
) -> None:
    """Write a[M, K] @ b[K, N] to c[M, N]: cubes by columns, the PEs of a cube by rows.

    a is row-wise over cubes and PEs, b column-wise over both, c column-wise over cubes and row-wise over PEs. Every
    program reads the rows of a for its place in the cube, and the shards of b of its cube only, beginning with its
    own. Its part of c lies block by block, one for the columns of each shard of b.
    """
    first, width = chunk(N, tl.num_programs(1), tl.program_id(1))
    start, size = chunk(M, tl.num_programs(0), tl.program_id(0))
    parts = [chunk(width, tl.num_programs(0), pe) for pe in range(tl.num_programs(0))]
    shards = [(first + at, part) for at, part in parts if part]
    out = c_ptr + (M * first + start * width)
    _row_blocks(a_ptr + start * K, b_ptr, out, size, K, shards, tl.program_id(0), room, tl)


def _row_blocks(
    a_ptr: Pointer,
    b_ptr: Pointer,
    c_ptr: Pointer,
    M: int,
    K: int,
    shards: list[tuple[int, int]],
    first: int,
    room: int,
    tl: TLContext,
) -> None:
    """Multiply M rows of a with each of the (first column, columns) `shards` of b, and write the blocks to c."""
    if not M or not shards:
        return
    a = _operand(a_ptr, (M, K), room, tl)
    for i in _from(first % len(shards), len(shards)):
        start, size = shards[i]
        b = _operand(b_ptr + K * start, (K, size), room, tl)
        tl.composite("gemm", a, b, c_ptr + M * (start - shards[0][0]))


def _operand(pointer: Pointer, shape: tuple[int, int], room: int, tl: TLContext) -> Ref | Tile:
    """Load an operand of a composite into TCM, or stream it if it takes more than `room` bytes."""
    ref = tl.ref(pointer, shape)
    fits = shape[0] * shape[1] * ref.dtype.itemsize <= room
    return tl.load(pointer, shape=shape) if fits else ref


def _index(tl: TLContext) -> int:
    return tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)


def _from(first: int, n: int) -> Iterator[int]:
    """Yield 0 to n - 1, beginning with `first` and going round."""
    return ((first + i) % n for i in range(n))
