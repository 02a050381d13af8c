"""Parts of a user's own, as `topology.yaml` names them by dotted path."""

from __future__ import annotations

from kernbench.components.builtin.transit import Router


class SlowRouter(Router):
    """A router that takes 5 ns more."""

    def latency_ps(self) -> int:
        return self.node.overhead_ps + 5000


class CountingRouter(Router):
    """A router that sees every flit, and holds each up for 7 ps a byte."""

    seen = 0

    def on_head(self, nbytes: int, t_ps: int) -> int:
        assert t_ps > 0
        type(self).seen += 1
        return 7 * nbytes
