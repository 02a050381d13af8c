"""The matrix engine: a tile takes all its MACs at the type's rate, however little of it is useful."""

from __future__ import annotations

from kernbench.config import PeGemmConfig
from kernbench.dtypes import DType
from kernbench.errors import KernelError

_FAMILY = {
    "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8", "float8_e5m2": "f8", "int8": "i8", "float32": "f32",
}  # fmt: skip


class PeGemm:
    """Output-stationary tiles of fixed size; accumulates in f32 (i32 for i8). Power and skew are not modelled."""

    def __init__(self, config: PeGemmConfig) -> None:
        self.config = config
        self.tile = (config.tile.m, config.tile.k, config.tile.n)

    def macs_per_cycle(self, dtype: DType) -> float:
        """Return the multiply-accumulates per cycle for operands of `dtype`.

        Raises
        ------
        KernelError
            If the engine does not take that type.
        """
        rate: float | None = getattr(self.config.macs_per_cycle, _FAMILY.get(dtype.name, ""), None)
        if rate is None:
            raise KernelError(f"the matrix engine does not take {dtype}; expected one of {', '.join(sorted(_FAMILY))}")
        return rate

    def tile_ps(self, dtype: DType) -> int:
        """Return the time of one tile [ps]: tile MACs / (MACs per cycle x clock), rounded up."""
        m, k, n = self.tile
        macs, cycles = self.macs_per_cycle(dtype).as_integer_ratio()
        ticks, ns = self.config.clock_ghz.as_integer_ratio()
        return -(-m * k * n * 1000 * cycles * ns // (macs * ticks))
