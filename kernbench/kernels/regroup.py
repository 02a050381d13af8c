"""Copy elements from where they lie in one tensor to where they belong in another, run by run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

Run = tuple[int, int, int]  # first element in the source, first in the target, elements


def regroup(
    src_ptr: Pointer, dst_ptr: Pointer, runs: Mapping[tuple[int, int], Sequence[Run]], *, tl: TLContext
) -> None:
    """Copy this program's runs, found in `runs` by (cube, PE)."""
    for source, target, size in runs.get((tl.program_id(1), tl.program_id(0)), ()):
        tl.store(dst_ptr + target, tl.load(src_ptr + source, shape=(size,)))
