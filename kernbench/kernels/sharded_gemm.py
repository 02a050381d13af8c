"""Matrix products over all PEs of a SIP, for four placements of the operands.

Each PE holds the same elements of A and B in every layout: A by rows and B by columns over all PEs, or for split-K both
by K. `trans_a` and `trans_b` say that an operand is stored transposed, A as [K, M], B as [N, K]: a shard then has other
strides, which pointer tiles follow at no cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from kernbench.components._command import Ref
from kernbench.kernels.partition import chunk, columns_at, program, share
from kernbench.triton_emu._handles import Pointer, Tile
from kernbench.triton_emu.tl_context import TLContext

NARROW = 128  # columns: narrower shards of B are read together up to so many (chosen: four tiles)
BLOCK = 4096  # elements of C that are summed at a time


def columns_gemm(
    a_ptr: Pointer, b_ptr: Pointer, c_ptr: Pointer, M: int, K: int, N: int, BLOCK_M: int, room: int,
    trans_a: bool = False, trans_b: bool = False, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write a[M, K] @ b[K, N] to c[M, N], each program its columns.

    b and c are column-wise over cubes and PEs: every program streams its own shard of b and writes its own of c.
    Every program reads all of a, BLOCK_M rows at a time, into TCM; programs begin with different blocks.

    An operand of more than `room` bytes is streamed instead of loaded, here and below; a transposed one is loaded in
    parts of so many bytes.
    """
    start, size = share(N, tl)
    if not size:
        return
    fits = fitting(K, b_ptr.dtype.itemsize, room)
    step = min(BLOCK_M, fits) if trans_a else BLOCK_M
    blocks = -(-M // step)
    for first, width, _ in column_blocks([size], fits, trans_b):
        own = b_ptr + K * (start + first)
        b = _transposed(own, K, width, tl) if trans_b else tl.ref(own, (K, width))
        for block in _from(program(tl) % blocks, blocks):
            m, rows = block * step, min(step, M - block * step)
            a = _rows(a_ptr, M, K, m, rows, room, trans_a, tl)
            tl.composite("gemm", a, b, c_ptr + (M * (start + first) + m * width))


def rows_gemm(
    a_ptr: Pointer, b_ptr: Pointer, c_ptr: Pointer, M: int, K: int, N: int, room: int, trans_a: bool = False,
    trans_b: bool = False, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write a[M, K] @ b[K, N] to c[M, N], each program its rows.

    a and c are row-wise over cubes and PEs, b column-wise: every program keeps its rows of a in TCM, and reads the
    shards of b one after the other, narrow ones together, beginning with its own, so that programs read from
    different PEs. A program's rows of c are stored block by block, one for the columns that are read together.
    """
    start, size = share(M, tl)
    cubes, pes = tl.num_programs(1), tl.num_programs(0)
    widths = [chunk(chunk(N, cubes, cube)[1], pes, pe)[1] for cube in range(cubes) for pe in range(pes)]
    b = _Columns(b_ptr, K, N, 0, widths, room, trans_b, tl)
    _row_blocks(a_ptr, b, c_ptr + start * N, M, (start, size), program(tl), trans_a)


def grid_gemm(
    a_ptr: Pointer, b_ptr: Pointer, c_ptr: Pointer, M: int, K: int, N: int, room: int, trans_a: bool = False,
    trans_b: bool = False, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write a[M, K] @ b[K, N] to c[M, N]: cubes by columns, the PEs of a cube by rows.

    a is row-wise over cubes and PEs, b column-wise over both, c column-wise over cubes and row-wise over PEs. Every
    program reads the rows of a for its place in the cube, and the shards of b of its cube only, narrow ones together,
    beginning with its own. Its part of c is stored block by block, one for the columns that are read together.
    """
    pes, pe = tl.num_programs(0), tl.program_id(0)
    first, width = chunk(N, tl.num_programs(1), tl.program_id(1))
    start, size = chunk(M, pes, pe)
    widths = [chunk(width, pes, i)[1] for i in range(pes)]
    b = _Columns(b_ptr, K, N, first, widths, room, trans_b, tl)
    _row_blocks(a_ptr, b, c_ptr + (M * first + start * width), M, (start, size), pe, trans_a)


def split_k_gemm(
    a_ptr: Pointer, b_ptr: Pointer, out_ptr: Pointer, M: int, K: int, N: int, room: int, trans_a: bool = False,
    trans_b: bool = False, *, tl: TLContext,
) -> None:  # fmt: skip
    """Write each program's part of the sum a[M, K] @ b[K, N] over K to its row of out[programs, M * N].

    a is column-wise and b row-wise over cubes and PEs: everything that a program reads is in its own memory.
    """
    start, size = share(K, tl)
    if not size:
        return
    out = out_ptr + program(tl) * M * N
    a_own, b_own = a_ptr + M * start, b_ptr + N * start
    b = _transposed(b_own, size, N, tl) if trans_b else _operand(b_own, (size, N), room, tl)
    step = min(M, fitting(size, a_ptr.dtype.itemsize, room)) if trans_a else M
    for m in range(0, M, step):
        rows = min(step, M - m)
        if trans_a:
            places = tl.arange(0, size)[None, :] * M + (m + tl.arange(0, rows)[:, None])
            a: Ref | Tile = tl.load(a_own + places)
        else:
            a = _operand(a_own, (M, size), room, tl)
        tl.composite("gemm", a, b, out + m * N)


def sum_in_cubes(parts_ptr: Pointer, out_ptr: Pointer, n: int, holders: Sequence[int], *, tl: TLContext) -> None:
    """Write the sum of the rows of parts[programs, n] that `holders` in a program's cube wrote to out[cubes, n]."""
    cube, pes = tl.program_id(1), tl.num_programs(0)
    rows = [row for row in range(cube * pes, (cube + 1) * pes) if row in holders]
    _sum(parts_ptr, out_ptr + cube * n, n, rows, chunk(n, pes, tl.program_id(0)), tl.program_id(0), tl)


def sum_over_cubes(parts_ptr: Pointer, out_ptr: Pointer, n: int, cubes: Sequence[int], *, tl: TLContext) -> None:
    """Write the sum of the rows `cubes` of parts[., n] to out[n]."""
    _sum(parts_ptr, out_ptr, n, cubes, share(n, tl), tl.program_id(1), tl)


def _sum(
    parts_ptr: Pointer, out_ptr: Pointer, n: int, rows: Sequence[int], own: tuple[int, int], first: int, tl: TLContext
) -> None:
    """Write the sum of `own` elements (start, size) of some rows; programs begin with different rows."""
    start, size = own
    for at in range(start, start + size if rows else start, BLOCK):
        length = min(BLOCK, start + size - at)
        total = None
        for i in _from(first % len(rows), len(rows)):
            part = tl.load(parts_ptr + (rows[i] * n + at), shape=(length,))
            total = part if total is None else total + part
        assert total is not None
        tl.store(out_ptr + at, total.to(out_ptr.dtype))


def fitting(K: int, itemsize: int, room: int) -> int:
    """Return how many vectors of K elements fit into `room` bytes, at least one."""
    return max(1, room // (K * itemsize))


def column_blocks(widths: Sequence[int], fits: int, trans: bool) -> list[tuple[int, int, bool]]:
    """Return (first column, columns, whether of several shards) of the blocks in which consecutive shards are read.

    Narrow shards of b are read together, up to NARROW columns of which `fits` fit into TCM. A transposed shard that
    does not fit is read in parts; others are streamed.

    >>> column_blocks([40, 40, 40, 40, 200, 0], 1000, trans=False)
    [(0, 120, True), (120, 40, False), (160, 200, False)]
    """
    blocks: list[tuple[int, int, bool]] = []
    for start, width in zip(accumulate(widths, initial=0), widths, strict=False):
        first, together, _ = blocks[-1] if blocks else (0, NARROW, False)
        if width and together + width <= min(NARROW, fits):
            blocks[-1] = first, together + width, True
        elif trans:
            blocks += [(at, min(fits, start + width - at), False) for at in range(start, start + width, fits)]
        elif width:
            blocks.append((start, width, False))
    return blocks


class _Columns(NamedTuple):
    """The columns of b from `first` on that a program reads, in shards of `widths`."""

    pointer: Pointer
    K: int
    N: int
    first: int
    widths: Sequence[int]
    room: int
    trans: bool
    tl: TLContext

    @property
    def blocks(self) -> list[tuple[int, int, bool]]:
        return column_blocks(self.widths, self.fits, self.trans)

    @property
    def fits(self) -> int:
        return fitting(self.K, self.pointer.dtype.itemsize, self.room)

    def read(self, at: int, width: int, several: bool) -> Ref | Tile:
        """Return a block as an operand."""
        tl, start = self.tl, self.first + at
        if self.trans:
            return _transposed(self.pointer + self.K * start, self.K, width, tl)
        if not several:
            return _operand(self.pointer + self.K * start, (self.K, width), self.room, tl)
        place = columns_at(self.K, self.N, tl.num_programs(0), tl.num_programs(1))
        rows, columns = tl.arange(0, self.K)[:, None], start + tl.arange(0, width)[None, :]
        return tl.load(self.pointer + place(rows, columns, tl))


def _row_blocks(
    a_ptr: Pointer, b: _Columns, c_ptr: Pointer, M: int, rows: tuple[int, int], own: int, trans_a: bool
) -> None:
    """Multiply `rows` (start, size) of a[M, K] with the blocks of b, beginning with that of shard `own`."""
    (start, size), blocks, tl = rows, b.blocks, b.tl
    if not size or not blocks:
        return
    column = sum(b.widths[:own])
    begin = next((i for i, (at, width, _) in enumerate(blocks) if at <= column < at + width), 0)
    step = min(size, b.fits) if trans_a else size
    for m in range(0, size, step):
        length = min(step, size - m)
        a = _rows(a_ptr, M, b.K, start + m, length, b.room, trans_a, tl)
        for i in _from(begin, len(blocks)):
            at, width, several = blocks[i]
            tl.composite("gemm", a, b.read(at, width, several), c_ptr + (size * at + m * width))


def _rows(a_ptr: Pointer, M: int, K: int, first: int, rows: int, room: int, trans: bool, tl: TLContext) -> Ref | Tile:
    """Return rows of a[M, K] as an operand, from all PEs that hold them."""
    if not trans:
        return _operand(a_ptr + first * K, (rows, K), room, tl)
    place = columns_at(K, M, tl.num_programs(0), tl.num_programs(1))
    return tl.load(a_ptr + place(tl.arange(0, K)[None, :], first + tl.arange(0, rows)[:, None], tl))


def _transposed(pointer: Pointer, rows: int, columns: int, tl: TLContext) -> Tile:
    """Load a matrix that is stored column by column."""
    return tl.load(pointer + (tl.arange(0, columns)[None, :] * rows + tl.arange(0, rows)[:, None]))


def _operand(pointer: Pointer, shape: tuple[int, int], room: int, tl: TLContext) -> Ref | Tile:
    """Load an operand of a composite into TCM, or stream it if it takes more than `room` bytes."""
    ref = tl.ref(pointer, shape)
    fits = shape[0] * shape[1] * ref.dtype.itemsize <= room
    return tl.load(pointer, shape=shape) if fits else ref


def _from(first: int, n: int) -> Iterator[int]:
    """Yield 0 to n - 1, beginning with `first` and going round."""
    return ((first + i) % n for i in range(n))
