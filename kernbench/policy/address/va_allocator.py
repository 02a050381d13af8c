"""Virtual addresses: one space for all SIPs of a machine, so that an address identifies one tensor everywhere."""

from __future__ import annotations

from kernbench.policy.address.allocator import FirstFit
from kernbench.policy.address.phyaddr import ADDRESS_BITS

# Above every physical address: the two kinds are never confused, and 0 is never allocated.
VA_START = 1 << ADDRESS_BITS
VA_BYTES = 1 << ADDRESS_BITS
_PAGE = 4096


class VirtualAllocator:
    """Allocates the VA ranges of tensors.

    A range begins at a multiple of 4 KiB and is followed by at least 4 KiB that are never allocated: an access beyond
    the end of a tensor is an error and never reaches another tensor.
    """

    def __init__(self) -> None:
        self._space = FirstFit("virtual address space", VA_START, VA_BYTES, _PAGE)

    def alloc(self, nbytes: int) -> int:
        return self._space.alloc(nbytes + _PAGE)

    def free(self, va: int) -> None:
        self._space.free(va)
