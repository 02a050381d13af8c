"""The vector engine of a PE."""

from __future__ import annotations

from collections.abc import Iterable

from kernbench._units import ps_per_unit
from kernbench.components._command import VectorOp
from kernbench.config import PeMathConfig


class PeMath:
    """Streams its operands from TCM at lane rate: contention for the TCM port is not modelled."""

    def __init__(self, config: PeMathConfig) -> None:
        self.config = config
        self._ps, self._cycles = ps_per_unit(config.clock_ghz)
        self._known: dict[tuple[VectorOp, ...], int] = {}

    def service_ps(self, work: tuple[VectorOp, ...]) -> int:
        found = self._known.get(work)
        if found is None:
            found = self._known[work] = self.ps(work)
        return found

    def lanes(self, itemsize: int) -> int:
        """Lanes by item size: one rate up to 2 bytes, one for 4, half of that for 8."""
        if itemsize <= 2:
            return self.config.lanes_16bit
        return max(1, self.config.lanes_32bit * 4 // itemsize)

    def cycles(self, op: VectorOp, elements: int) -> int:
        """Cycles for `elements` / lanes rounds: slow operations take longer, a reduction takes log2(lanes) more."""
        lanes = self.lanes(op.itemsize)
        rounds = -(-elements // lanes)
        if op.kind == "slow":
            return rounds * self.config.slow_op_cycles
        return rounds + (lanes - 1).bit_length() if op.kind == "reduce" else rounds

    def ps(self, work: Iterable[VectorOp], elements: int | None = None) -> int:
        """Time of `work`, one op after the other [ps]; `elements` overrides the ops' own."""
        cycles = 0
        for op in work:
            cycles += self.cycles(op, op.elements if elements is None else elements)
        return -(-cycles * self._ps // self._cycles)
