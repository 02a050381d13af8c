"""Where bytes are: the memory that holds a physical address, and the extents of a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.errors import ArgumentError
from kernbench.policy.address.allocator import AddressConfig, by_controller
from kernbench.policy.address.phyaddr import HBM_BIT
from kernbench.topology import _naming as naming

if TYPE_CHECKING:
    from kernbench.topology._graph import Graph

_MOST_KEPT = 1 << 15


class Extent:
    """Bytes of one memory that one request transfers.

    `pieces` are their physical (address, bytes), empty where nothing needs them, and `at` is the place of each among
    the bytes of a whole command; `lines`, if given, are those touched.
    """

    def __init__(
        self, node_id: str, offset: int, nbytes: int, pieces: Any = (), lines: list[int] | None = None, at: Any = ()
    ) -> None:
        self.node_id, self.offset, self.nbytes, self.pieces, self.lines = node_id, offset, nbytes, pieces, lines
        self.at = at

    def take(self, command: np.ndarray) -> np.ndarray:
        """Return these bytes from those of a command."""
        parts = [command[at : at + n] for at, (_, n) in zip(self.at, self.pieces, strict=True)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def put(self, data: np.ndarray, command: np.ndarray) -> None:
        """Put these bytes at their places among those of a command."""
        taken = 0
        for at, (_, n) in zip(self.at, self.pieces, strict=True):
            command[at : at + n] = data[taken : taken + n]
            taken += n


class Extents:
    """The extents of physical addresses of one machine; those of interleaved memory are kept."""

    def __init__(self, graph: Graph, addresses: AddressConfig) -> None:
        self.graph, self.addresses = graph, addresses
        self.controllers, self.slice_bytes = addresses.controllers, addresses.slice_bytes
        self._slices: dict[int, str] = {}  # of HBM, by the physical address of their first byte
        self._interleaved: dict[tuple[int, int], list[Extent]] = {}  # by physical address and bytes

    def locate(self, pa: int) -> tuple[str, int]:
        """(memory node, offset in it) of a physical address."""
        if pa & HBM_BIT and not self.controllers:
            offset = (pa & (HBM_BIT - 1)) % self.slice_bytes
            node_id = self._slices.get(pa - offset)
            if node_id is not None:
                return node_id, offset
        place = self.addresses.locate(pa)
        if place.component == "hbm_ctrl":
            assert place.pe is not None
            node_id = self.graph.memory(place.sip, place.cube or 0, place.pe)
            if not self.controllers:
                self._slices[pa - place.offset] = node_id
        elif place.component == "sram":
            node_id = naming.sram(place.sip, place.cube or 0)
        else:
            raise ArgumentError(f"physical address {pa:#x} is {place}: no transaction reaches it; use HBM or SRAM")
        return node_id, place.offset

    def of(self, pa: int, nbytes: int) -> list[Extent]:
        """Return the extents of a range that one allocation contains, which callers do not change."""
        if not self.controllers or not pa & HBM_BIT:
            return [Extent(*self.locate(pa), nbytes, [(pa, nbytes)])]
        found = self._interleaved.get((pa, nbytes))
        if found is None:
            if len(self._interleaved) == _MOST_KEPT:
                self._interleaved.clear()
            found = self._interleaved[pa, nbytes] = self._split(pa, nbytes)
        return found

    def _split(self, pa: int, nbytes: int) -> list[Extent]:
        addresses, memory = self.addresses, self.graph.memory
        place = addresses.locate(pa)
        sip, cube = place.sip, place.cube or 0
        split = by_controller(pa, nbytes, addresses.interleave_bytes, self.controllers, addresses.hashed)
        return [
            Extent(memory(sip, cube, i), offset, sum([n for _, n in pieces]), pieces) for i, offset, pieces in split
        ]

    def requests(self, pieces: Iterable[tuple[int, int]], at: int = 0) -> list[Extent]:
        """Return the extents of `pieces`, with their places among the bytes of a command, of which `at` come before."""
        found = []
        for pa, nbytes in pieces:
            for each in self.of(pa, nbytes):
                places = [at + part - pa for part, _ in each.pieces]
                found.append(Extent(each.node_id, each.offset, each.nbytes, each.pieces, None, places))
            at += nbytes
        return found
