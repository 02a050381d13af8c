"""What every rank's part of a gather, or of a scatter, is for a kernel: one behind the other in each PE's memory.

A tensor that lies so already is used as it is. For any other there is a packed one beside it, and the PEs copy between
the two: inside a device, which is fast beside the links between devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.exchange import Route, checked_runs, copying, out_of_order
from kernbench.runtime_api.host import Host
from kernbench.runtime_api.layout import Layout
from kernbench.runtime_api.regions import Region, Run, chunks, elements, stacked, whole
from kernbench.runtime_api.work import Start

Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Moves:
    """What moves between a packed tensor and the parts, for tensors that lie in one way.

    Attributes
    ----------
    layout : Layout
        Of the packed tensor.
    runs : tuple of list of Run
        For each part.
    in_place : bool
        Whether every element has its place already.
    """

    layout: Layout
    runs: tuple[list[Run], ...]
    in_place: bool


@dataclass(slots=True)
class Packer:
    """What one rank's calls in a group have found and used, for later ones."""

    moves: dict[Key, Moves] = field(default_factory=dict)
    tensors: dict[Key, DeviceTensor] = field(default_factory=dict)

    def packed(
        self, host: Host, given: Sequence[DeviceTensor], part: DeviceTensor, n: int, *, unpack: bool
    ) -> tuple[DeviceTensor, Sequence[Start]]:
        """Return tensors as kernels take them, in one, and what starts the copies that this needs.

        Parameters
        ----------
        host : Host
        given : sequence of DeviceTensor
            One that is the concatenation or stack of `n` parts, or `n` that are a part each.
        part : DeviceTensor
            Its shards say which PE has to do with which elements.
        n : int
        unpack : bool
            Whether to copy from the packed tensor to those given, or the other way.

        Raises
        ------
        PlacementError
            If the elements cannot be matched.
        """
        ways = part.dtype, n, unpack, *(_key(t.layout) for t in (part, *given))
        moves = self.moves.get(ways)
        if moves is None:
            moves = self.moves[ways] = _moves(given, part, n, unpack)
        if moves.in_place:
            return given[0], ()
        place = part.dtype, n, _key(moves.layout)
        if place not in self.tensors:
            self.tensors[place] = host.deploy_like(moves.layout, given[0].device, f"packed {given[0].name}")
        pack = self.tensors[place]
        ends = [given[0]] * n if len(given) == 1 else given
        routes = [
            Route(0, 0, pack, t, own) if unpack else Route(0, 0, t, pack, own)
            for t, own in zip(ends, moves.runs, strict=True)
        ]
        return pack, (copying(host, routes, "unpack" if unpack else "pack"),)


def _moves(given: Sequence[DeviceTensor], part: DeviceTensor, n: int, unpack: bool) -> Moves:
    base, regions = _regions(given, part, n)
    layout = stacked(base, n)
    inner = chunks(layout, n, base.shape)
    assert inner is not None, "a stack is the stack of its layers"
    pairs = zip(inner, regions, strict=True)
    found = tuple(checked_runs(a, b) if unpack else checked_runs(b, a) for a, b in pairs)
    places = [[(s.cube, s.pe, s.offset) for s in own.shards] for own in (layout, given[0].layout)]
    stays = len(given) == 1 and places[0] == places[1]
    return Moves(layout, found, stays and all(run.source == run.target for own in found for run in own))


def _regions(given: Sequence[DeviceTensor], part: DeviceTensor, n: int) -> tuple[Layout, list[Region]]:
    """Return where each rank's part is, and how a part is laid out: by its dims, else in row-major order."""
    base, size = part.layout, part.numel()
    if len(given) == 1:
        found = chunks(given[0].layout, n, base.shape)
        pieces = [elements(given[0].layout, i * size, (i + 1) * size) for i in range(n)] if found is None else []
    else:
        alike = all(t.layout.shape == base.shape for t in given)
        found = [whole(t.layout) for t in given] if alike else None
        pieces = [elements(t.layout, 0, size) for t in given]
    if found is not None:
        return base, found
    flat = base.flat()
    if flat is None or any(piece is None for piece in pieces):
        raise out_of_order(given[0], part)
    return flat, [piece for piece in pieces if piece is not None]


def _key(layout: Layout) -> Key:
    shards = ((s.cube, s.pe, s.offset, s.nbytes, *((i.start, i.stop) for i in s.index)) for s in layout.shards)
    return layout.shape, *shards
