"""TCM, the memory of a PE: space for the values of its programs, and its ports."""

from __future__ import annotations

from kernbench._units import KIB, MIB, service_times
from kernbench.components._command import Value
from kernbench.config import PeTcmConfig
from kernbench.errors import OutOfMemoryError
from kernbench.policy.address.allocator import FirstFit


class Space:
    """`nbytes` of an `area` for a value; once it is returned, they are free from `at` [ps], by event `by`."""

    def opens(self, area: FirstFit, address: int, nbytes: int) -> None:
        """Set all fields, of an object that compiled code has made without `__init__`."""
        self.area, self.address, self.nbytes = area, address, nbytes
        self.at = self.by = 0


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
        self._returned: list[Space] = []  # in order of time
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
        while self._returned:
            space = self._returned[0]
            if space.at > now:
                break
            self._give_back()
        nbytes = area.aligned(nbytes or 1)
        while True:
            address = area.cut(nbytes)
            if address >= 0:
                value.space = space = Space.__new__(Space)
                space.opens(area, address, nbytes)
                return now
            if not self._returned:
                return -1
            now = max(now, self._give_back())

    def free(self, value: Value, at: int, by: int) -> None:
        space, returned = value.space, self._returned
        space.at, space.by, value.space = at, by, None
        i = len(returned)
        while i:
            earlier = returned[i - 1]
            if earlier.at <= at:
                break
            i -= 1
        returned.insert(i, space)

    def full(self, value: Value, loaded: bool) -> OutOfMemoryError:
        area = self.scratch if not loaded and value.nbytes <= self._small else self.heap
        return OutOfMemoryError(
            f"{self.name}: no room for a tile of shape {value.shape} {value.dtype} ({value.nbytes} B): "
            f"{area.free_bytes} of {area.nbytes} B of the {area.name} are free, the largest hole is "
            f"{area.largest_hole} B; "
            "drop handles that are no longer needed (del), or use smaller tiles"
        )

    def _give_back(self) -> int:
        space = self._returned.pop(0)
        self.freed_by = space.by
        space.area.join(space.address, space.nbytes)
        return space.at


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
