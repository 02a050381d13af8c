"""Physical addresses: 57 bits, from the group of dies down to the byte.

    56:55 die // 32   53:48 rack   47:44 sip   43:39 die % 32   38:0 offset

SIP n of a system is sip n % 16 of rack n // 16. Of each 32 dies, the first 16 are cubes; dies 16-20 are IO chiplets.
Bit 54 is set in virtual addresses only. In a cube, offset bit 38 selects the HBM window or the resource window, which
`RESOURCE_WINDOW` divides into fixed ranges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kernbench._units import GIB, MIB
from kernbench.config._rules import FEW_PES, MAX_CUBES, MAX_PES, MAX_SIPS, SMALL_TCM_WINDOW_MIB, TCM_WINDOW_MIB
from kernbench.errors import AllocationError

OFFSET_BITS = 39
SIPS_PER_RACK = 16
FIRST_IO_DIE = 16
_DIES = 2 * MAX_CUBES  # of each 32, the second half is not cubes
IO_DIES = 5
WINDOW_BYTES = 1 << (OFFSET_BITS - 1)
HBM_BIT = WINDOW_BYTES

_LOW_DIES = 32
_SIP_SHIFT = OFFSET_BITS + 5
_RACK_SHIFT = _SIP_SHIFT + 4
ADDRESS_BITS = _RACK_SHIFT + 6  # below the group of dies; virtual addresses begin above them
_GROUP_SHIFT = ADDRESS_BITS + 1


def sip_of(address: int) -> int:
    """SIP of a physical address."""
    return address >> _SIP_SHIFT & (1 << ADDRESS_BITS - _SIP_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Resource:
    """A range of a cube's resource window: `size` bytes for the cube, or for each of `pes` PEs from `first_pe` on."""

    name: str
    start: int
    size: int
    pes: int = 0
    first_pe: int = 0

    @property
    def end(self) -> int:
        return self.start + self.size * (self.pes or 1)


# The resource window, for encode and decode. Sizes are the address format's limits; the actual sizes are in the
# machine file.
_MORE_PES = MAX_PES - FEW_PES
RESOURCE_WINDOW = (
    Resource("pe_tcm", 0, TCM_WINDOW_MIB * MIB, FEW_PES),
    Resource("pe_regfile", 16 * GIB, 16 * MIB, FEW_PES),
    Resource("m_cpu", 17 * GIB, 1 * GIB),
    Resource("sram", 18 * GIB, 4 * GIB),
    Resource("pe_tcm", 22 * GIB, SMALL_TCM_WINDOW_MIB * MIB, _MORE_PES, FEW_PES),
    Resource("pe_regfile", 82 * GIB, 16 * MIB, _MORE_PES, FEW_PES),
    Resource("reserved", 97 * GIB, WINDOW_BYTES - 97 * GIB),
)


class Location(NamedTuple):
    """Component and offset of an address.

    `component` is hbm_ctrl, one of the names in `RESOURCE_WINDOW`, "io" on an IO chiplet or "reserved". `pe` is None
    for what belongs to the whole die; the PE of an HBM slice depends on the machine, so only `AddressConfig.locate`
    sets it. `cube` is None on an IO chiplet.
    """

    sip: int
    cube: int | None
    pe: int | None
    component: str
    offset: int


@dataclass(frozen=True, slots=True, order=True)
class PhysAddr:
    """A physical address as its fields.

    >>> address = PhysAddr.pe_tcm_addr(sip=17, cube=5, pe=3, offset=64)
    >>> address.rack, address.sip, address.die
    (1, 1, 5)
    >>> PhysAddr.decode(address.encode()) == address
    True
    >>> address.locate()
    Location(sip=17, cube=5, pe=3, component='pe_tcm', offset=64)
    """

    rack: int
    sip: int
    die: int
    offset: int

    def __post_init__(self) -> None:
        _require("rack", self.rack, MAX_SIPS // SIPS_PER_RACK)
        _require("sip", self.sip, SIPS_PER_RACK)
        _require("die", self.die, _DIES)
        _require("offset", self.offset, 1 << OFFSET_BITS)

    def encode(self) -> int:
        group, die = divmod(self.die, _LOW_DIES)
        high = group << _GROUP_SHIFT | self.rack << _RACK_SHIFT
        return high | self.sip << _SIP_SHIFT | die << OFFSET_BITS | self.offset

    __int__ = encode
    __index__ = encode

    @classmethod
    def decode(cls, value: int) -> PhysAddr:
        _require("physical address", value, _DIES // _LOW_DIES << _GROUP_SHIFT)
        group, low = value >> _GROUP_SHIFT, value & ((1 << _GROUP_SHIFT) - 1)
        _require("physical address", low, 1 << ADDRESS_BITS)
        return cls(
            low >> _RACK_SHIFT,
            (low >> _SIP_SHIFT) & (SIPS_PER_RACK - 1),
            group * _LOW_DIES + (low >> OFFSET_BITS) % _LOW_DIES,
            value & ((1 << OFFSET_BITS) - 1),
        )

    def locate(self) -> Location:
        sip = self.rack * SIPS_PER_RACK + self.sip
        group, die = divmod(self.die, _LOW_DIES)
        if die >= FIRST_IO_DIE:
            io = self.die < FIRST_IO_DIE + IO_DIES
            return Location(sip, None, None, "io" if io else "reserved", self.offset)
        cube = group * FIRST_IO_DIE + die
        if self.offset & HBM_BIT:
            return Location(sip, cube, None, "hbm_ctrl", self.offset - HBM_BIT)
        resource = next(r for r in RESOURCE_WINDOW if self.offset < r.end)
        offset = self.offset - resource.start
        if not resource.pes:
            return Location(sip, cube, None, resource.name, offset)
        pe, offset = divmod(offset, resource.size)
        return Location(sip, cube, resource.first_pe + pe, resource.name, offset)

    @classmethod
    def hbm_addr(cls, sip: int, cube: int, offset: int) -> PhysAddr:
        _require("HBM offset", offset, WINDOW_BYTES)
        return cls._in_cube(sip, cube, HBM_BIT + offset)

    @classmethod
    def pe_hbm_addr(cls, sip: int, cube: int, pe: int, offset: int, *, slice_bytes: int) -> PhysAddr:
        """Byte `offset` of a PE's HBM slice, where a slice holds `slice_bytes`."""
        _require("pe", pe, MAX_PES)
        _require("HBM slice offset", offset, slice_bytes)
        return cls.hbm_addr(sip, cube, pe * slice_bytes + offset)

    @classmethod
    def pe_tcm_addr(cls, sip: int, cube: int, pe: int, offset: int) -> PhysAddr:
        return cls._resource("pe_tcm", sip, cube, pe, offset)

    @classmethod
    def pe_scratchpad_addr(cls, sip: int, cube: int, pe: int, offset: int, *, scratch_start: int) -> PhysAddr:
        """Byte `offset` of a PE's kernel scratch, at `scratch_start` of its TCM."""
        return cls.pe_tcm_addr(sip, cube, pe, scratch_start + offset)

    @classmethod
    def pe_ipcq_addr(cls, sip: int, cube: int, pe: int, offset: int, *, heap_start: int) -> PhysAddr:
        """Byte `offset` of the TCM heap, which rings share with handles, at `heap_start`."""
        return cls.pe_tcm_addr(sip, cube, pe, heap_start + offset)

    @classmethod
    def pe_regfile_addr(cls, sip: int, cube: int, pe: int, offset: int) -> PhysAddr:
        return cls._resource("pe_regfile", sip, cube, pe, offset)

    @classmethod
    def cube_sram_addr(cls, sip: int, cube: int, offset: int) -> PhysAddr:
        return cls._resource("sram", sip, cube, 0, offset)

    @classmethod
    def _resource(cls, name: str, sip: int, cube: int, pe: int, offset: int) -> PhysAddr:
        _require("pe", pe, MAX_PES)
        resource = next(r for r in RESOURCE_WINDOW if r.name == name and pe < r.first_pe + (r.pes or 1))
        _require(f"{name} offset", offset, resource.size)
        return cls._in_cube(sip, cube, resource.start + (pe - resource.first_pe) * resource.size + offset)

    @classmethod
    def _in_cube(cls, sip: int, cube: int, offset: int) -> PhysAddr:
        _require("sip", sip, MAX_SIPS)
        _require("cube", cube, MAX_CUBES)
        group, die = divmod(cube, FIRST_IO_DIE)
        return cls(sip // SIPS_PER_RACK, sip % SIPS_PER_RACK, group * _LOW_DIES + die, offset)


def _require(name: str, value: int, limit: int) -> None:
    if not 0 <= value < limit:
        raise AllocationError(f"{name} = {value:#x} does not fit: expected 0 <= {name} < {limit:#x}")
