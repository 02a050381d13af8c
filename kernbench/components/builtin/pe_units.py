"""Parts of a PE that are rates and space: TCM and its ports, the MMU, and the vector engine."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from kernbench._units import KIB, MIB, ns_to_ps, ps_per_unit, service_times
from kernbench.components._command import Value, VectorOp
from kernbench.config import PeMathConfig, PeMmuConfig, PeTcmConfig
from kernbench.errors import OutOfMemoryError
from kernbench.policy.address.allocator import FirstFit
from kernbench.policy.address.pe_mmu import PeMMU


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


class PeMmu(PeMMU):
    """A table of ranges without misses: table walks are not modelled."""

    def __init__(self, name: str, config: PeMmuConfig) -> None:
        super().__init__(name)
        self.lookup_ps = ns_to_ps(config.lookup_ns)


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
