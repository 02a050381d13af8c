"""Messages from memory to memory, each between two participants: for what is no reduction and has no regular shape.

Queues: `to<participant>`, as in the topology `all_to_all`. Everything is sent before anything is awaited, and every
receive is posted before the first is awaited, so that no order of messages can block.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

COPIED_AT_ONCE = 16384  # elements: a few pieces fit TCM in every type

Message = tuple[int, Pointer, int]
Copy = tuple[Pointer, Pointer, int]


def kernel(sends: Sequence[Message], receives: Sequence[Message], copies: Sequence[Copy], *, tl: TLContext) -> None:
    """Send and receive (participant, pointer, elements), and copy (from, to, elements) inside the device."""
    for peer, src, n in sends:
        tl.send(f"to{peer}", src, shape=n)
    arrivals = [tl.recv_async(f"to{peer}", shape=n, dst=dst) for peer, dst, n in receives]
    for src, dst, n in copies:
        for at in range(0, n, COPIED_AT_ONCE):
            tl.store(dst + at, tl.load(src + at, shape=(min(COPIED_AT_ONCE, n - at),)))
    for arrival in arrivals:
        tl.wait(arrival)
