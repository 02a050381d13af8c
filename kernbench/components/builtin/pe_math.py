"""The vector engine: cycles by lanes; exp, log, sqrt, div, sin and cos take several; reductions add a tree."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.components.command import VectorOp
from kernbench.config import PeMathConfig


class PeMath:
    """Streams its operands from TCM at lane rate: contention for the TCM port is not modelled."""

    def __init__(self, config: PeMathConfig) -> None:
        self.config = config
        self._cycles, ns = config.clock_ghz.as_integer_ratio()
        self._ps = 1000 * ns

    def lanes(self, itemsize: int) -> int:
        """Return the lanes for values of `itemsize` bytes: up to 2, 4, and half of the latter for 8."""
        if itemsize <= 2:
            return self.config.lanes_16bit
        return max(1, self.config.lanes_32bit * 4 // itemsize)

    def cycles(self, op: VectorOp, elements: int) -> int:
        """Return the cycles of `op` on `elements`: elements / lanes (x slow), a reduction + log2(lanes)."""
        lanes = self.lanes(op.itemsize)
        rounds = -(-elements // lanes)
        if op.kind == "slow":
            return rounds * self.config.slow_op_cycles
        return rounds + (lanes - 1).bit_length() if op.kind == "reduce" else rounds

    def ps(self, work: Iterable[VectorOp], elements: int | None = None) -> int:
        """Return the time of `work`, one op after the other [ps]; `elements` replaces the ops' own."""
        cycles = 0
        for op in work:
            cycles += self.cycles(op, op.elements if elements is None else elements)
        return -(-cycles * self._ps // self._cycles)
