"""How contributions become one: the operator of a reduction, and where its results are rounded.

Rule: 16-bit floats are combined in f32. A PE rounds once, to nearest even, when a result leaves it or goes to memory,
however many contributions it has combined; messages have the element type of the tensor. So a sum over n
contributions is rounded at most n - 1 times, in an order that the algorithm fixes. `avg` divides the complete sum, in
f32, before it is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernbench.dtypes import DType, float32
from kernbench.errors import ConfigError
from kernbench.registry import hint
from kernbench.triton_emu.handles import Tile
from kernbench.triton_emu.tl_context import TLContext

# An associative and commutative operator on two tiles of shape (rows, row).
Operator = Callable[[Tile, Tile, TLContext], Tile]

_BUILTIN: dict[str, Operator] = {
    "sum": lambda a, b, _tl: a + b,
    "avg": lambda a, b, _tl: a + b,
    "min": lambda a, b, tl: tl.minimum(a, b),
    "max": lambda a, b, tl: tl.maximum(a, b),
    "product": lambda a, b, _tl: a * b,
}


@dataclass(frozen=True, slots=True)
class Reduction:
    """An operator over `count` contributions.

    Attributes
    ----------
    op : str or callable
        "sum", "avg", "min", "max", "product", or a function op(a, b, tl) on f32 tiles of shape (rows, row).
    count : int
        Contributions in all, for `avg`.
    row : int
        Elements that belong together and are never cut apart.
    """

    op: str | Operator = "sum"
    count: int = 1
    row: int = 1

    def __post_init__(self) -> None:
        if not callable(self.op) and self.op not in _BUILTIN:
            raise ConfigError(
                f"op = {self.op!r} is no reduction; {hint(self.op, _BUILTIN)}; or a function of two tiles"
            )

    def join(self, tl: TLContext, tiles: list[Tile], *, complete: bool) -> Tile:
        """Return what `tiles` come to, in their type; `complete` says that nothing is missing any more."""
        dtype = tiles[0].dtype
        divide = complete and self.op == "avg"
        if callable(self.op):
            size = tiles[0].shape[0]
            operator: Operator = self.op
            tiles = [_wide(tl, t).reshape(size // self.row, self.row) for t in tiles]
        else:
            operator = _BUILTIN[self.op]
            if len(tiles) > 2 or divide:
                tiles = [_wide(tl, tiles[0]), *tiles[1:]]
        joined = tiles[0]
        for tile in tiles[1:]:
            joined = operator(joined, tile, tl)
        if divide:
            joined = joined / self.count
        if callable(self.op):
            joined = joined.reshape(size)
        return tl.cast(joined, dtype)


def reduction(n_elem: int, count: int, op: str | Operator, row: int) -> Reduction:
    """Return the operator that a call asks for.

    Raises
    ------
    ConfigError
        If it is unknown, or the `n_elem` elements of a shard are not whole rows.
    """
    if row < 1 or n_elem % row:
        raise ConfigError(f"row = {row}: expected a divisor of the {n_elem} elements of a shard")
    return Reduction(op, count, row)


def kernel_args(
    *, n_elem: int, world_size: int, op: str | Operator = "sum", row: int = 1, chunk_bytes: int | None = None
) -> tuple[object, ...]:
    """Return the arguments after its pointer of a kernel that asks for nothing of its own."""
    return n_elem, reduction(n_elem, world_size, op, row), chunk_bytes


def grid_args(
    *,
    n_elem: int,
    world_size: int,
    grid_w: int,
    grid_h: int,
    op: str | Operator = "sum",
    row: int = 1,
    chunk_bytes: int | None = None,
) -> tuple[object, ...]:
    """Return the arguments after its pointer of a kernel that asks for a grid."""
    return n_elem, reduction(n_elem, world_size, op, row), chunk_bytes, grid_w, grid_h


def _wide(tl: TLContext, tile: Tile) -> Tile:
    dtype: DType = tile.dtype
    return tl.cast(tile, float32) if dtype.is_floating_point and dtype.itemsize < 4 else tile
