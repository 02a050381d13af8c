"""The kernels behind tensor methods that work on a device: each PE handles its own parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernbench.triton_emu.tl_context import TLContext

Parts = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
CHUNK = 16384  # elements at a time: a few pieces fit TCM in every type


def copy(dst: Any, src: Any, parts: Parts, *, tl: TLContext) -> None:
    """Copy each PE's parts of `src`, as (first element, elements) by (cube, PE), to the same place in `dst`."""
    for at, size in _chunks(parts, tl):
        tl.store(dst + at, tl.load(src + at, shape=(size,), dtype=src.dtype))


def fill(dst: Any, value: float, parts: Parts, *, tl: TLContext) -> None:
    """Write `value` to each PE's parts of `dst`."""
    for at, size in _chunks(parts, tl):
        tl.store(dst + at, tl.full((size,), value, dst.dtype))


def _chunks(parts: Parts, tl: TLContext) -> Sequence[tuple[int, int]]:
    own = parts.get((int(tl.program_id(1)), int(tl.program_id(0))), ())
    return [(at, min(CHUNK, first + n - at)) for first, n in own for at in range(first, first + n, CHUNK)]
