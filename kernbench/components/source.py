"""What feeds a DMA channel."""

from __future__ import annotations

from kernbench.sim_engine.transfer import Callee


class Source(Callee):
    """What feeds a DMA channel with requests, in their order."""

    __slots__ = ()

    def next_ps(self) -> int:
        """Return when the next request may be issued, or -1 if that is not known yet."""
        raise TypeError(f"{type(self).__name__} has no requests")

    def issue(self) -> bool:
        """Issue the next request now; return True if it was the last one."""
        raise TypeError(f"{type(self).__name__} has no requests")
