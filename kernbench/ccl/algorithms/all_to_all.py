"""All-to-all, each part straight to where it belongs, out of place.

Part r of the tensor goes to participant r, whose part s comes from participant s. Everything leaves from memory at
once, to the next participant first. Queues: to<participant>.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.ccl.algorithms.moves import Cut, Move, perform
from kernbench.ccl.algorithms.parts import equal_part
from kernbench.ccl.algorithms.reduction import Reduction
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext


def kernel_args(*, n_elem: int, world_size: int, chunk_bytes: int | None = None) -> tuple[int, int, int | None]:
    """Return the kernel's arguments after its pointers; `n_elem` is the whole tensor's."""
    return equal_part(n_elem, world_size), world_size, chunk_bytes


def kernel(t_ptr: Pointer, out_ptr: Pointer, part: int, n: int, chunk_bytes: int | None, *, tl: TLContext) -> None:
    """Exchange parts of `part` elements with everybody."""
    cut = Cut(t_ptr.dtype.itemsize, 1, chunk_bytes)
    perform(moves(tl.program_id(2), n, part, cut), t_ptr, out_ptr, Reduction(), tl)


def moves(rank: int, n: int, part: int, cut: Cut) -> Iterator[Move]:
    """Yield the moves of one participant."""
    chunks = [cut.chunks((r * part, part)) for r in range(n)]
    for peer in ((rank + step) % n for step in range(1, n)):
        yield from (Move(*chunk, own=True, to=(f"to{peer}",)) for chunk in chunks[peer])
    yield from (Move(*chunk, own=True, keep=True) for chunk in chunks[rank])
    for peer in ((rank - step) % n for step in range(1, n)):
        yield from (Move(*chunk, (f"to{peer}",), keep=True) for chunk in chunks[peer])
