"""TCM, the memory of a PE: space for the values of its programs, and its ports."""

from __future__ import annotations

from bisect import bisect_right

from kernbench._units import KIB, MIB, service_times
from kernbench.components._command import Value
from kernbench.config import PeTcmConfig
from kernbench.errors import OutOfMemoryError
from kernbench.policy.address.allocator import FirstFit


class PeTcm:
    """Space for a program's values. Space freed at a future time is available from then on.

    Results up to `scratch_result_kib` use the scratch, loaded operands and larger results the heap.
    """

    def __init__(self, name: str, config: PeTcmConfig, heap: FirstFit) -> None:
        self.name, self.config = name, config
        start = round(config.tile_buffer_mb * MIB)
        self.scratch = FirstFit(f"kernel scratch of {name}", start, round(config.kernel_scratch_mb * MIB))
        self.heap = heap
        self._small = config.scratch_result_kib * KIB
        self._returned_ps: list[int] = []  # ascending, with space and event of each
        self._returned: list[tuple[FirstFit, int]] = []
        self._returned_by: list[int] = []
        self.freed_by = 0

    def alloc(self, value: Value, loaded: bool, now: int) -> int:
        """Allocate space for `value`; return the time from which it is available [ps], >= `now`, or -1 if none is."""
        nbytes = value.nbytes
        area = self.scratch if not loaded and nbytes <= self._small else self.heap
        if nbytes > area.nbytes:
            raise OutOfMemoryError(
                f"{self.name}: a tile of shape {value.shape} {value.dtype} takes {nbytes} B, {area.name} has "
                f"{area.nbytes} B; use smaller tiles, or stream the operand with tl.ref"
            )
        while self._returned and self._returned_ps[0] <= now:
            self._give_back()
        while True:
            address = area.take(nbytes or 1)
            if address >= 0:
                value.space = (area, address)
                return now
            if not self._returned:
                return -1
            now = max(now, self._give_back())

    def free(self, value: Value, at: int, by: int) -> None:
        i = bisect_right(self._returned_ps, at)
        self._returned_ps.insert(i, at)
        self._returned.insert(i, value.space)
        self._returned_by.insert(i, by)
        value.space = None

    def full(self, value: Value, loaded: bool) -> OutOfMemoryError:
        area = self.scratch if not loaded and value.nbytes <= self._small else self.heap
        return OutOfMemoryError(
            f"{self.name}: no room for a tile of shape {value.shape} {value.dtype} ({value.nbytes} B): "
            f"{area.free_bytes} of {area.nbytes} B of the {area.name} are free, the largest hole is "
            f"{area.largest_hole} B; "
            "drop handles that are no longer needed (del), or use smaller tiles"
        )

    def _give_back(self) -> int:
        area, address = self._returned.pop(0)
        t, self.freed_by = self._returned_ps.pop(0), self._returned_by.pop(0)
        freed: FirstFit = area
        freed.free(address)
        return t


class PeFetchStore:
    """Moves a tile's true bytes through the read port, results through the write port."""

    def __init__(self, tcm: PeTcmConfig) -> None:
        self._read, self._write = service_times(tcm.read_bw_gbs), service_times(tcm.write_bw_gbs)
        self._fetched = self._stored = -1
        self._fetch = self._store = 0

    def fetch_ps(self, nbytes: int) -> int:
        if nbytes != self._fetched:
            self._fetched, self._fetch = nbytes, self._read[nbytes]
        return self._fetch

    def store_ps(self, nbytes: int) -> int:
        if nbytes != self._stored:
            self._stored, self._store = nbytes, self._write[nbytes]
        return self._store
