"""How a tiled command is cut: tiles in order m, n, k, their bytes and where they lie in memory.

Ragged tiles move their true bytes; the matrix engine still spends a full tile on them. Two layouts of an
operand in memory: `packed`, tile after tile in row-major tile order, and `strided`, the plain row-major matrix.
"""

from __future__ import annotations

from dataclasses import dataclass


def cuts(size: int, tile: int) -> int:
    """Return how many tiles cover `size`, at least one."""
    return max(1, -(-size // tile))


@dataclass(frozen=True, slots=True)
class Grid:
    """A row-major matrix of `rows` x `cols` elements, cut into tiles of `tile_rows` x `tile_cols`.

    >>> grid = Grid(3, 5, 2, 4, itemsize=2)
    >>> grid.packed(1, 0), grid.packed(1, 1)
    ((20, 8), (28, 2))
    >>> grid.strided(0, 1)
    [(8, 2), (18, 2)]
    """

    rows: int
    cols: int
    tile_rows: int
    tile_cols: int
    itemsize: int

    def shape(self, r: int, c: int) -> tuple[int, int]:
        """Return the true rows and columns of tile (r, c)."""
        return min(self.tile_rows, self.rows - r * self.tile_rows), min(self.tile_cols, self.cols - c * self.tile_cols)

    def nbytes(self, r: int, c: int) -> int:
        """Return the true bytes of tile (r, c)."""
        rows, cols = self.shape(r, c)
        return rows * cols * self.itemsize

    def packed(self, r: int, c: int) -> tuple[int, int]:
        """Return (offset, bytes) of tile (r, c) where tiles are stored one after the other."""
        rows, cols = self.shape(r, c)
        offset = (r * self.tile_rows * self.cols + rows * c * self.tile_cols) * self.itemsize
        return offset, rows * cols * self.itemsize

    def strided(self, r: int, c: int) -> list[tuple[int, int]]:
        """Return (offset, bytes) of every row of tile (r, c) where the matrix is stored row by row."""
        rows, cols = self.shape(r, c)
        first = (r * self.tile_rows * self.cols + c * self.tile_cols) * self.itemsize
        return [(first + row * self.cols * self.itemsize, cols * self.itemsize) for row in range(rows)]


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """Tiles of C[m, n] = A[m, k] B[k, n]: `mt`, `nt`, `kt` of them along each size, in order m, n, k.

    >>> plan = GemmPlan.of(33, 64, 32, (32, 64, 32))
    >>> plan.n, plan.at(1), plan.flops(1)
    (2, (1, 0, 0), 4096)
    """

    m: int
    k: int
    n_size: int
    tile: tuple[int, int, int]
    mt: int
    kt: int
    nt: int

    @classmethod
    def of(cls, m: int, k: int, n: int, tile: tuple[int, int, int]) -> GemmPlan:
        """Return the plan of an m x k by k x n product in tiles of (m, k, n)."""
        return cls(m, k, n, tile, cuts(m, tile[0]), cuts(k, tile[1]), cuts(n, tile[2]))

    @property
    def n(self) -> int:
        """Return the number of tiles."""
        return self.mt * self.kt * self.nt

    def at(self, i: int) -> tuple[int, int, int]:
        """Return (m, n, k) of tile `i`."""
        out, k = divmod(i, self.kt)
        m, n = divmod(out, self.nt)
        return m, n, k

    def flops(self, i: int) -> int:
        """Return the useful operations of tile `i`."""
        m, n, k = self.at(i)
        tm, tk, tn = self.tile
        return 2 * min(tm, self.m - m * tm) * min(tk, self.k - k * tk) * min(tn, self.n_size - n * tn)

    def a(self, itemsize: int) -> Grid:
        """Return the grid of A."""
        return Grid(self.m, self.k, self.tile[0], self.tile[1], itemsize)

    def b(self, itemsize: int) -> Grid:
        """Return the grid of B."""
        return Grid(self.k, self.n_size, self.tile[1], self.tile[2], itemsize)

    def c(self, itemsize: int) -> Grid:
        """Return the grid of C."""
        return Grid(self.m, self.n_size, self.tile[0], self.tile[2], itemsize)
