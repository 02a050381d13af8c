"""Physical memory of a machine: the allocators of each PE and cube."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kernbench._units import KIB, MIB
from kernbench.config import MachineConfig
from kernbench.errors import AllocationError
from kernbench.policy.address.phyaddr import (
    ADDRESS_BITS,
    FIRST_IO_DIE,
    HBM_BIT,
    OFFSET_BITS,
    SIPS_PER_RACK,
    Location,
    PhysAddr,
)
from kernbench.topology import _naming as naming

__all__ = ["AddressConfig", "AllocationError", "Allocators", "CubeSramAllocator", "FirstFit", "PEMemAllocator"]

ALIGNMENT = 256

# Told of each allocation by the host: the node of the memory, and its bytes; negative when they are freed.
Changed = Callable[[str, int], None]


def _untold(node_id: str, nbytes: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class AddressConfig:
    """Sizes of a machine's memories [bytes], and counts.

    TCM holds, from its start: tile buffers (the scheduler's), kernel scratch, then the heap of operands, handles and
    rings. `slice_bytes` of a cube's HBM belong to each PE: its slice, or with `controllers`, consecutive addresses,
    which are interleaved over these.
    """

    sip_count: int
    cubes_per_sip: int
    pes_per_cube: int
    hbm_bytes_per_cube: int
    hbm_slices_per_cube: int
    tcm_bytes_per_pe: int
    tcm_scheduler_reserved_bytes: int
    sram_bytes_per_cube: int
    scratch_bytes: int = 0
    controllers: int = 0
    interleave_bytes: int = 1
    hashed: bool = False
    slice_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "slice_bytes", self.hbm_bytes_per_cube // self.hbm_slices_per_cube)

    @classmethod
    def of(cls, config: MachineConfig) -> AddressConfig:
        cube, tcm = config.cube, config.cube.pe.pe_tcm
        return cls(
            sip_count=config.n_sips,
            cubes_per_sip=config.cubes_per_sip,
            pes_per_cube=config.pes_per_cube,
            hbm_bytes_per_cube=cube.hbm.slice_bytes(config.pes_per_cube) * config.pes_per_cube,
            controllers=cube.hbm.controllers or 0,
            interleave_bytes=cube.hbm.interleave_bytes,
            hashed=cube.hbm.hash == "xor",
            hbm_slices_per_cube=config.pes_per_cube,
            tcm_bytes_per_pe=round(tcm.size_mb * MIB),
            tcm_scheduler_reserved_bytes=round(tcm.tile_buffer_mb * MIB),
            scratch_bytes=round(tcm.kernel_scratch_mb * MIB),
            sram_bytes_per_cube=round(cube.sram.size_mib * MIB),
        )

    @property
    def scratch_start(self) -> int:
        return self.tcm_scheduler_reserved_bytes

    @property
    def heap_start(self) -> int:
        return self.tcm_scheduler_reserved_bytes + self.scratch_bytes

    @property
    def heap_bytes(self) -> int:
        return self.tcm_bytes_per_pe - self.heap_start

    def locate(self, address: int) -> Location:
        """Locate an address; AllocationError if the machine has no memory there.

        The `pe` of HBM is the number of the slice that contains the address: a PE's, or a controller's.
        """
        cube: int | None
        pe: int | None = None
        if address & HBM_BIT and not address >> (OFFSET_BITS + 4) & 1 and not address >> ADDRESS_BITS:
            # Fast path.
            sip, cube = address >> (OFFSET_BITS + 5), address >> OFFSET_BITS & (FIRST_IO_DIE - 1)
            component, offset = "hbm_ctrl", address & (HBM_BIT - 1)
        else:
            sip, cube, pe, component, offset = PhysAddr.decode(address).locate()
        in_hbm = component == "hbm_ctrl"
        if in_hbm and not self.controllers:
            pe, offset = divmod(offset, self.slice_bytes)
        place = Location(sip, cube, pe, component, offset)
        if (
            offset >= self._bytes_of(component)
            or sip >= self.sip_count
            or (cube or 0) >= self.cubes_per_sip
            or (pe or 0) >= self.pes_per_cube
        ):
            raise AllocationError(
                f"physical address {address:#x} is {place}: no memory of this machine "
                f"({self.sip_count} SIPs x {self.cubes_per_sip} cubes x {self.pes_per_cube} PEs)"
            )
        if in_hbm and self.controllers:
            number, offset = controller_of(offset, self.interleave_bytes, self.controllers, self.hashed)
            place = place._replace(pe=number, offset=offset)
        return place

    def _bytes_of(self, component: str) -> int:
        if component == "hbm_ctrl":
            return self.hbm_bytes_per_cube if self.controllers else self.slice_bytes
        if component == "pe_tcm":
            return self.tcm_bytes_per_pe
        return self.sram_bytes_per_cube if component == "sram" else 0


def controller_of(offset: int, nbytes: int, n: int, hashed: bool) -> tuple[int, int]:
    """Find the controller of a byte of a cube's HBM, and its place there; each `nbytes` are on one of `n` controllers.

    A row of `n` blocks has one on each controller. Hashed, row r begins at controller r ^ (r >> b) ^ (r >> 2 b), modulo
    `n`, where b bits hold `n`.
    """
    block = offset // nbytes
    row = block // n
    if hashed:
        bits = n.bit_length()
        block += row ^ row >> bits ^ row >> 2 * bits
    return block % n, row * nbytes + offset % nbytes


_Extent = tuple[int, int, list[tuple[int, int]]]


def by_controller(address: int, size: int, nbytes: int, n: int, hashed: bool) -> list[_Extent]:
    """Split a range of HBM addresses by controller: number, place there, and pieces (address, bytes), in order.

    The pieces of a controller follow one another there.
    """
    extents: dict[int, _Extent] = {}
    found: list[_Extent] = []
    at, end = address & (HBM_BIT - 1), (address & (HBM_BIT - 1)) + size
    high = address - at
    while at < end:
        number, offset = controller_of(at, nbytes, n, hashed)
        count = min(end - at, nbytes - at % nbytes)
        extent = extents.get(number)
        if extent is None:
            extent = extents[number] = number, offset, []
            found.append(extent)
        extent[2].append((high + at, count))
        at += count
    return found


class Hole:
    """Free space from `start` to `end`."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end


class FirstFit:
    """First-fit allocation from the lowest address; freed space merges with adjacent holes.

    `take` and `free` know what is allocated where. Who keeps the size of an allocation itself uses `cut` and `join`.
    """

    def __init__(self, name: str, start: int, nbytes: int, alignment: int = ALIGNMENT) -> None:
        self.name = name
        self.alignment = alignment
        first, end = -(-start // alignment) * alignment, (start + nbytes) // alignment * alignment
        self.nbytes = max(0, end - first)
        self._holes = [Hole(first, end)] if self.nbytes else []  # in order
        self._held: dict[int, int] = {}

    def held(self, address: int) -> int:
        """Bytes of the allocation at `address`, with those for its alignment; 0 if there is none."""
        return self._held.get(address, 0)

    @property
    def free_bytes(self) -> int:
        return sum(hole.end - hole.start for hole in self._holes)

    @property
    def largest_hole(self) -> int:
        """Bytes of the largest allocation that would succeed."""
        return max((hole.end - hole.start for hole in self._holes), default=0)

    def take(self, nbytes: int) -> int:
        """Allocate `nbytes`; return the address, or -1 if no hole is large enough."""
        if nbytes <= 0:
            raise AllocationError(f"{self.name}: cannot allocate {nbytes} B; expected a size of at least 1 B")
        size = self.aligned(nbytes)
        address = self.cut(size)
        if address >= 0:
            self._held[address] = size
        return address

    def aligned(self, nbytes: int) -> int:
        """Bytes of an allocation of `nbytes`."""
        return -(-nbytes // self.alignment) * self.alignment

    def cut(self, size: int) -> int:
        """Take `size` bytes, which are aligned; return the address, or -1 if no hole is large enough."""
        holes = self._holes
        for i in range(len(holes)):
            hole = holes[i]
            start = hole.start
            if hole.end - start >= size:
                hole.start = start + size
                if hole.start == hole.end:
                    del holes[i]
                return start
        return -1

    def alloc(self, nbytes: int) -> int:
        """As `take`, but AllocationError if no hole is large enough."""
        found = self.take(nbytes)
        if found >= 0:
            return found
        raise AllocationError(
            f"{self.name}: no room for {_size(nbytes)}: {_size(self.free_bytes)} of {_size(self.nbytes)} are free, "
            f"the largest hole is {_size(self.largest_hole)}; free tensors, or spread them over more PEs"
        )

    def free(self, address: int) -> None:
        size = self._held.pop(address, None)
        if size is None:
            raise AllocationError(
                f"{self.name}: free of {address:#x}, where no allocation starts: it was freed before, or belongs to "
                "another memory; free each allocation once, at the address alloc returned"
            )
        self.join(address, size)

    def join(self, address: int, size: int) -> None:
        """Make the `size` bytes at `address` free again."""
        holes, end = self._holes, address + size
        i, n = 0, len(holes)
        while i < n:  # to the first hole after them
            middle = (i + n) >> 1
            hole = holes[middle]
            if hole.start < address:
                i = middle + 1
            else:
                n = middle
        following = holes[i] if i < len(holes) else None
        if following is not None and following.start != end:
            following = None
        if i:
            hole = holes[i - 1]
            if hole.end == address:
                hole.end = end
                if following is not None:
                    hole.end = following.end
                    del holes[i]
                return
        if following is not None:
            following.start = address
        else:
            holes.insert(i, Hole(address, end))


class PEMemAllocator:
    """The memory of one PE: its HBM slice and the heap of its TCM. Addresses are physical, as integers."""

    __slots__ = ("_changed", "_nodes", "hbm", "tcm")

    def __init__(
        self, cfg: AddressConfig, sip_id: int, cube_id: int, pe_id: int, rack_id: int = 0, changed: Changed = _untold
    ) -> None:
        sip = rack_id * SIPS_PER_RACK + sip_id
        place = sip, cube_id, pe_id
        # With controllers, a PE's addresses are interleaved over all; its allocations are logged at one of them.
        apart = cfg.controllers > 0
        hbm_node = naming.memory(*place[:2], "hbm_ctrl", pe_id % cfg.controllers if apart else pe_id, apart=apart)
        self._changed, self._nodes = changed, (hbm_node, naming.pe_tcm(*place))
        hbm = PhysAddr.pe_hbm_addr(sip, cube_id, pe_id, 0, slice_bytes=cfg.slice_bytes)
        tcm = PhysAddr.pe_tcm_addr(sip, cube_id, pe_id, cfg.heap_start)
        name = f"sip{sip}.cube{cube_id}.pe{pe_id}"
        self.hbm = FirstFit(f"HBM slice of {name}", hbm.encode(), cfg.slice_bytes)
        self.tcm = FirstFit(f"TCM of {name}", tcm.encode(), cfg.heap_bytes)

    def alloc_hbm(self, nbytes: int) -> int:
        return _alloc(self.hbm, nbytes, self._nodes[0], self._changed)

    def alloc_tcm(self, nbytes: int) -> int:
        return _alloc(self.tcm, nbytes, self._nodes[1], self._changed)

    def free(self, address: int) -> None:
        in_tcm = not address & HBM_BIT
        _free(self.tcm if in_tcm else self.hbm, address, self._nodes[in_tcm], self._changed)

    def reserve_ipcq_hbm(self, nbytes: int) -> int:
        return self.alloc_hbm(nbytes)

    def reserve_ipcq_tcm(self, nbytes: int) -> int:
        return self.alloc_tcm(nbytes)


class CubeSramAllocator:
    def __init__(self, config: AddressConfig, sip: int, cube: int, changed: Changed = _untold) -> None:
        self._changed, self._node = changed, naming.sram(sip, cube)
        start = PhysAddr.cube_sram_addr(sip, cube, 0).encode()
        self.sram = FirstFit(f"SRAM of sip{sip}.cube{cube}", start, config.sram_bytes_per_cube)

    def reserve_ipcq_sram(self, nbytes: int) -> int:
        return _alloc(self.sram, nbytes, self._node, self._changed)

    def free(self, address: int) -> None:
        _free(self.sram, address, self._node, self._changed)


def _alloc(area: FirstFit, nbytes: int, node_id: str, changed: Changed) -> int:
    address = area.alloc(nbytes)
    changed(node_id, area.held(address))
    return address


def _free(area: FirstFit, address: int, node_id: str, changed: Changed) -> None:
    nbytes = area.held(address)
    area.free(address)
    changed(node_id, -nbytes)


class Allocators:
    """All allocators of a machine, created on first use."""

    def __init__(self, config: AddressConfig, changed: Changed = _untold) -> None:
        self.config, self._changed = config, changed
        self._pes: dict[tuple[int, int, int], PEMemAllocator] = {}
        self._srams: dict[tuple[int, int], CubeSramAllocator] = {}

    def pe(self, sip: int, cube: int, pe: int) -> PEMemAllocator:
        found = self._pes.get((sip, cube, pe))
        if found is None:
            found = self._pes[sip, cube, pe] = PEMemAllocator(self.config, sip, cube, pe, changed=self._changed)
        return found

    def ring(self, kind: str, place: tuple[int, int, int], nbytes: int) -> int:
        """Allocate the ring of a PE's queue in "tcm", "sram" or "hbm"."""
        if kind == "sram":
            return self.sram(*place[:2]).reserve_ipcq_sram(nbytes)
        pe = self.pe(*place)
        return pe.reserve_ipcq_tcm(nbytes) if kind == "tcm" else pe.reserve_ipcq_hbm(nbytes)

    def sram(self, sip: int, cube: int) -> CubeSramAllocator:
        found = self._srams.get((sip, cube))
        if found is None:
            found = self._srams[sip, cube] = CubeSramAllocator(self.config, sip, cube, self._changed)
        return found


def _size(nbytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if nbytes >= unit:
            return f"{nbytes} B ({nbytes / unit:.4g} {name})"
    return f"{nbytes} B"
