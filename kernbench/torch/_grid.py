"""The division of a kernel written by Inductor into programs, and their assignment to PEs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from kernbench.torch._memory import TensorPlace

TILE = 8192  # elements of a tile, at most


def holders(place: TensorPlace) -> list[tuple[int, int]]:
    first, nbytes = place.extent
    parts = place.buffer.layout.parts
    return list(
        dict.fromkeys(
            (s.cube, s.pe) for s in parts if s.offset_bytes < first + nbytes and s.offset_bytes + s.nbytes > first
        )
    )


def grid_owners(place: TensorPlace, count: int) -> tuple[list[tuple[int, int]], list[Sequence[int]]]:
    """Return the PEs of a grid and the programs of each: a program runs where the middle of its result is."""
    parts, (first, nbytes) = place.buffer.layout.parts, place.extent
    starts = [s.offset_bytes for s in parts]
    owned: dict[tuple[int, int], list[int]] = {}
    for i in range(count):
        middle = first + (2 * i + 1) * nbytes // (2 * count)
        part = parts[bisect_right(starts, middle) - 1]
        owned.setdefault((part.cube, part.pe), []).append(i)
    targets = sorted(owned)
    return targets, [owned[pe] for pe in targets]


def _power(n: int) -> int:
    return 1 << max(0, n - 1).bit_length()


def block_sizes(sizes: dict[str, int], reduced: int, holders: int, names: Sequence[str]) -> dict[str, int]:
    """Choose block sizes such that each PE gets the rows or elements that it holds."""
    found: dict[str, int] = {}
    if "R0_BLOCK" in names:
        found["R0_BLOCK"] = min(_power(reduced), 2048)
    width = found.get("R0_BLOCK", _power(reduced))
    room = max(1, TILE // width)
    axes = [axis for axis in ("z", "y", "x") if f"{axis.upper()}BLOCK" in names]
    if "x" in axes:
        lines = max(1, -(-sizes["x"] // holders)) if len(axes) == 1 else 32
        found["XBLOCK"] = min(_power(sizes["x"]), room, _power(lines))
    for axis in axes:
        if axis != "x":
            found[f"{axis.upper()}BLOCK"] = min(_power(sizes[axis]), 32) if axis == "y" else 1
    return found
