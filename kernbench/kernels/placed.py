"""Where an element of a matrix lies whose columns are spread over PEs.

Such a matrix is shard after shard, each the rows of its own columns: the layout of DPPolicy column_wise over cubes
and PEs. What comes out is integers known to the program: they cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.triton_emu.handles import Tile
from kernbench.triton_emu.tl_context import TLContext

# Element (row, column) to its place, counted in elements from the pointer.
At = Callable[[Tile, Tile, TLContext], Tile]


def rows_at(columns: int) -> At:
    """Return the places in a row-major matrix of so many columns."""
    return lambda m, k, _tl: m * columns + k


def columns_at(rows: int, columns: int, pes: int, cubes: int) -> At:
    """Return the places in a matrix of that shape, cut by columns over cubes and then over the PEs of each."""
    wide = -(-columns // cubes)

    def at(m: Tile, k: Tile, tl: TLContext) -> Tile:
        cube = k // wide
        held = tl.minimum(columns - cube * wide, wide)
        narrow = tl.cdiv(held, pes)
        start = (k - cube * wide) // narrow * narrow
        width = tl.minimum(held - start, narrow)
        start = start + cube * wide
        place: Tile = start * rows + m * width + (k - start)
        return place

    return at
