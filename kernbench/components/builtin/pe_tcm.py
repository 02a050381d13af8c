"""TCM: the PE's own memory, shared out to tile buffers, kernel scratch and the heap of operands."""

from __future__ import annotations

from heapq import heappop, heappush

from kernbench.components.command import Value
from kernbench.config import PeTcmConfig
from kernbench.errors import OutOfMemoryError
from kernbench.policy.address.allocator import FirstFit
from kernbench.units import KIB, MIB


class PeTcm:
    """Space for a program's values. What is given back at a future time can be had again from then on.

    Results up to `scratch_result_kib` go to the scratch, loaded operands and larger results to the heap.
    """

    def __init__(self, name: str, config: PeTcmConfig, heap: FirstFit) -> None:
        self.name, self.config = name, config
        start = round(config.tile_buffer_mb * MIB)
        self.scratch = FirstFit(f"kernel scratch of {name}", start, round(config.kernel_scratch_mb * MIB))
        self.heap = heap
        self._small = config.scratch_result_kib * KIB
        self._returned: list[tuple[int, int, FirstFit, int]] = []
        self._count = 0

    def alloc(self, value: Value, loaded: bool, now: int) -> int | None:
        """Give `value` its space, not before `now`; return from when on it has it, or None if none is free yet.

        Raises
        ------
        OutOfMemoryError
            If it would not fit even in an empty memory.
        """
        nbytes = value.nbytes
        area = self.scratch if not loaded and nbytes <= self._small else self.heap
        if nbytes > area.nbytes:
            raise OutOfMemoryError(
                f"{self.name}: a tile of shape {value.shape} {value.dtype} takes {nbytes} B, {area.name} has "
                f"{area.nbytes} B; use smaller tiles, or stream the operand with tl.ref"
            )
        while self._returned and self._returned[0][0] <= now:
            self._give_back()
        while True:
            address = area.take(nbytes or 1)
            if address is not None:
                value.space = (area, address)
                return now
            if not self._returned:
                return None
            now = max(now, self._give_back())

    def free(self, value: Value, at: int) -> None:
        """Take the space of `value` back at time `at`."""
        area, address = value.space
        value.space = None
        self._count += 1
        heappush(self._returned, (at, self._count, area, address))

    def full(self, value: Value, loaded: bool) -> OutOfMemoryError:
        """Return the error of a program that holds everything itself."""
        area = self.scratch if not loaded and value.nbytes <= self._small else self.heap
        return OutOfMemoryError(
            f"{self.name}: no room for a tile of shape {value.shape} {value.dtype} ({value.nbytes} B): "
            f"{area.free_bytes} of {area.nbytes} B of the {area.name} are free, the largest hole is "
            f"{area.largest_hole} B; "
            "drop handles that are no longer needed (del), or use smaller tiles"
        )

    def _give_back(self) -> int:
        t, _, area, address = heappop(self._returned)
        area.free(address)
        return t
