"""Fetch and store: between TCM and the engines' registers, two servers at the speed of the TCM ports."""

from __future__ import annotations

from kernbench.config import PeTcmConfig
from kernbench.units import ServiceTimes


class PeFetchStore:
    """Moves a tile's true bytes through the read port, results through the write port."""

    def __init__(self, tcm: PeTcmConfig) -> None:
        self._read, self._write = ServiceTimes(tcm.read_bw_gbs), ServiceTimes(tcm.write_bw_gbs)

    def fetch_ps(self, nbytes: int) -> int:
        """Return the time to read `nbytes` of operands from TCM [ps]."""
        return self._read[nbytes]

    def store_ps(self, nbytes: int) -> int:
        """Return the time to write `nbytes` of results to TCM [ps]."""
        return self._write[nbytes]
