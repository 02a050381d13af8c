"""The matrix engine: the time of a tile at a flat rate, as a systolic array, or from a table."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

from kernbench._dtypes import MATRIX_TYPES, DType
from kernbench._units import decimal
from kernbench.config import PeGemmConfig
from kernbench.errors import KernelError


class PeGemm:
    """The built-in engine; accumulates in f32 (i32 for i8). Power is not modelled."""

    def __init__(self, config: PeGemmConfig) -> None:
        self.config = config
        self.tile = (config.tile.m, config.tile.k, config.tile.n)
        self._slots = _MODELS[config.model](config)

    def tile_ps(self, m: int, k: int, n: int, dtype: DType) -> int:
        """Return the time of a tile of these true sizes [ps], rounded up: the slots it occupies / peak."""
        ps = self._slots(m, k, n) * 1000 / self._peak(dtype)
        return -(-ps.numerator // ps.denominator)

    def peak(self, dtype: DType) -> float:
        """Return the multiply-accumulates per ns of an engine without idle slots."""
        return float(self._peak(dtype))

    def _peak(self, dtype: DType) -> Fraction:
        rates = self.config.macs_per_cycle
        rate = getattr(rates, MATRIX_TYPES.get(dtype.name, ""), None)
        if rate is None:
            raise KernelError(
                f"the matrix engine does not take {dtype}; expected one of {', '.join(sorted(MATRIX_TYPES))}"
            )
        return self.config.macs * Fraction(rate, rates.f16) * decimal(self.config.clock_ghz)


Slots = Callable[[int, int, int], Fraction]


def _rate(config: PeGemmConfig) -> Slots:
    """Charge every tile as a full one."""
    full = Fraction(config.tile.m * config.tile.k * config.tile.n)
    return lambda m, k, n: full


def _systolic(config: PeGemmConfig) -> Slots:
    """Fill, stream and drain each fold of a tile, one after the other; the first cycle has the number 0.

    Two dims of the tile are mapped to rows and columns, the third streams through the array. Stationary operands are
    loaded row by row first.
    """
    array = config.systolic
    rows, cols = array.rows, array.cols

    def slots(m: int, k: int, n: int) -> Fraction:
        load = rows
        match array.dataflow:
            case "output_stationary":
                over_rows, over_cols, streamed, load = m, n, k, 0
            case "weight_stationary":
                over_rows, over_cols, streamed = k, n, m
            case "input_stationary":
                over_rows, over_cols, streamed = k, m, n
        folds = -(-over_rows // rows) * -(-over_cols // cols)
        return Fraction((folds * (load + streamed + rows + cols - 2) - 1) * rows * cols)

    return slots


def _table(config: PeGemmConfig) -> Slots:
    """Interpolate the efficiency linearly between the sizes of the table; a smaller tile costs as the smallest."""
    known = {(m, k, n): decimal(share) for m, k, n, share in config.table}
    axes = [sorted(set(sizes)) for sizes in zip(*known, strict=True)]

    def slots(m: int, k: int, n: int) -> Fraction:
        at = [max(size, axis[0]) for size, axis in zip((m, k, n), axes, strict=True)]
        corners = (_between(size, axis) for size, axis in zip(at, axes, strict=True))
        efficiency = sum((known[x, y, z] * a * b * c for (x, a), (y, b), (z, c) in product(*corners)), start=Fraction())
        return Fraction(at[0] * at[1] * at[2]) / efficiency

    return slots


def _between(size: int, axis: list[int]) -> list[tuple[int, Fraction]]:
    """Neighbours of `size` on an axis of the table, each with its weight."""
    above = next(x for x in axis if x >= size)
    if above == size:
        return [(size, Fraction(1))]
    below = axis[axis.index(above) - 1]
    weight = Fraction(size - below, above - below)
    return [(below, 1 - weight), (above, weight)]


_MODELS: dict[str, Callable[[PeGemmConfig], Slots]] = {"rate": _rate, "systolic": _systolic, "table": _table}
