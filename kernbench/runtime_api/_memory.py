"""The memory of all devices, and its allocation to tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from kernbench._dtypes import DType
from kernbench.config import MachineConfig
from kernbench.errors import AllocationError
from kernbench.policy.address.allocator import ALIGNMENT, Allocators
from kernbench.policy.address.va_allocator import VirtualAllocator
from kernbench.policy.placement.dp import DPPolicy, ShardSpec
from kernbench.runtime_api._layout import Layout, TensorShard
from kernbench.sim_engine._races import Copies

_Range = tuple[int, int, int]


def map_ranges(
    va: int, shards: Sequence[TensorShard], pes: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], Sequence[_Range]]:
    """Return the MMU entries (va, nbytes, pa) of each of `pes`, as (cube, pe), for a tensor at `va`.

    Of a replicated part a PE maps its own copy, else one in its cube (the lowest PE's), else the first. Entries that
    are adjacent in both address spaces are merged.
    """
    copies: dict[int, list[TensorShard]] = {}
    for shard in sorted(shards, key=lambda s: (s.offset_bytes, s.cube, s.pe)):
        copies.setdefault(shard.offset_bytes, []).append(shard)
    pes = list(pes)
    if all(len(same) == 1 for same in copies.values()):
        ranges = _ranges(va, [same[0] for same in copies.values()])
        return dict.fromkeys(pes, ranges)
    own = [{(s.cube, s.pe): s for s in reversed(same)} for same in copies.values()]
    near = [{s.cube: s for s in reversed(same)} for same in copies.values()]
    first = [same[0] for same in copies.values()]
    return {
        (cube, pe): _ranges(
            va,
            [o.get((cube, pe)) or n.get(cube) or other for o, n, other in zip(own, near, first, strict=True)],
        )
        for cube, pe in pes
    }


def _ranges(va: int, shards: Iterable[TensorShard]) -> Sequence[_Range]:
    out: list[_Range] = []
    for s in shards:
        start = va + s.offset_bytes
        if out and out[-1][0] + out[-1][1] == start and out[-1][2] + out[-1][1] == s.pa:
            out[-1] = out[-1][0], out[-1][1] + s.nbytes, out[-1][2]
        else:
            out.append((start, s.nbytes, s.pa))
    return tuple(out)


class Claim:
    """Held by a tensor and its views: while it lives, the memory counts as allocated by the program."""

    __slots__ = ("__weakref__",)


class TensorHandle:
    """The memory of one device tensor.

    It is freed when no tensor, no view and no pending operation refers to it. Reference counts decide
    that, so a handle is never part of a cycle. It counts as allocated while a tensor or a view of it lives, as in
    torch: what only pending operations still need does not count.
    """

    __slots__ = (
        "__weakref__", "_claim", "_release", "_unclaim", "copies", "layout", "moved", "name", "nbytes", "sip", "va",
    )  # fmt: skip

    def __init__(
        self, name: str, sip: int, va: int, layout: Layout, release: Callable[[], None], unclaim: Callable[[], None]
    ) -> None:
        self.name, self.sip, self.va, self.layout = name, sip, va, layout
        self.nbytes = sum(part.nbytes for part in layout.parts)
        self.copies: list[Copies] = []
        # Copies of its contents that operators have moved; cleared when the contents may have changed.
        self.moved: dict[Hashable, Any] = {}
        self._release = weakref.finalize(self, release)
        self._release.atexit = False
        self._unclaim = unclaim
        self._claim: weakref.ref[Claim] | None = None

    def claim(self) -> Claim:
        claim = None if self._claim is None else self._claim()
        if claim is None:
            claim = Claim()
            self._claim = weakref.ref(claim)
            weakref.finalize(claim, self._unclaim).atexit = False
        return claim

    @property
    def is_alive(self) -> bool:
        return self._release.alive

    def release(self) -> None:
        """Free the memory; a second call does nothing."""
        self._release()

    def __repr__(self) -> str:
        state = "" if self.is_alive else ", freed"
        return f"<memory of {self.name}: {self.nbytes:,} B at {self.va:#x} of ahbm:{self.sip}{state}>"


class DeviceMemory:
    def __init__(self, config: MachineConfig, allocators: Allocators, unmap: Callable[[int, int, int], None]) -> None:
        self._unmap = unmap
        self._virtual = VirtualAllocator()
        self._allocators = allocators
        self.allocated = [0] * config.n_sips
        self.peak = [0] * config.n_sips

    def place(
        self, name: str, sip: int, shape: Sequence[int], dtype: DType, parts: Sequence[ShardSpec | TensorShard],
        dp: DPPolicy | None,
    ) -> TensorHandle:  # fmt: skip
        held: list[tuple[int, int, int]] = []
        try:
            shards = self._shards(sip, parts, held)
        except AllocationError:
            self._free(sip, held)
            raise
        nbytes = max((s.offset_bytes + s.nbytes for s in parts), default=0)
        va = self._virtual.alloc(nbytes)
        size = sum(s.nbytes for s in parts)
        self.allocated[sip] += size
        self.peak[sip] = max(self.peak[sip], self.allocated[sip])

        claimed = True

        def unclaim() -> None:
            nonlocal claimed
            if claimed:
                claimed = False
                self.allocated[sip] -= size

        def release() -> None:
            if nbytes:
                self._unmap(sip, va, nbytes)
            self._virtual.free(va)
            self._free(sip, held)
            unclaim()

        return TensorHandle(name, sip, va, Layout(shape, dtype, shards, dp), release, unclaim)

    def _shards(
        self, sip: int, parts: Sequence[ShardSpec | TensorShard], held: list[tuple[int, int, int]]
    ) -> list[TensorShard]:
        by_pe: dict[tuple[int, int], list[ShardSpec | TensorShard]] = {}
        for spec in parts:
            by_pe.setdefault((spec.cube, spec.pe), []).append(spec)
        shards = []
        for (cube, pe), own in by_pe.items():
            starts, size = [], 0
            for spec in own:
                starts.append(size)
                size += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
            base = self._allocators.pe(sip, cube, pe).alloc_hbm(size)
            held.append((cube, pe, base))
            shards += [
                TensorShard(sip, cube, pe, base + start, s.offset_bytes, s.nbytes, s.index)
                for s, start in zip(own, starts, strict=True)
            ]
        return shards

    def _free(self, sip: int, held: list[tuple[int, int, int]]) -> None:
        for cube, pe, address in held:
            self._allocators.pe(sip, cube, pe).free(address)
