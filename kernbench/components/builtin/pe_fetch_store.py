"""Fetch and store: between TCM and the engines' registers, two servers at the speed of the TCM ports."""

from __future__ import annotations

from kernbench.config import PeTcmConfig
from kernbench.units import service_times


class PeFetchStore:
    """Moves a tile's true bytes through the read port, results through the write port."""

    def __init__(self, tcm: PeTcmConfig) -> None:
        self._read, self._write = service_times(tcm.read_bw_gbs), service_times(tcm.write_bw_gbs)
        self._fetched = self._stored = -1
        self._fetch = self._store = 0

    def fetch_ps(self, nbytes: int) -> int:
        """Return the time to read `nbytes` of operands from TCM [ps]."""
        if nbytes != self._fetched:
            self._fetched, self._fetch = nbytes, self._read[nbytes]
        return self._fetch

    def store_ps(self, nbytes: int) -> int:
        """Return the time to write `nbytes` of results to TCM [ps]."""
        if nbytes != self._stored:
            self._stored, self._store = nbytes, self._write[nbytes]
        return self._store
