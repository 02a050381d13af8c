"""Parts of a user's own, as `topology.yaml` names them by dotted path."""

from __future__ import annotations

from kernbench.components.builtin.cpus import MCpu
from kernbench.components.builtin.transit import Router
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology._graph import Node


class SlowRouter(Router):
    """A router that takes 5 ns more."""

    def latency_ps(self) -> int:
        return self.node.overhead_ps + 5000


class UnequalRouter(Router):
    """A router that takes 5 ns more in cube 6."""

    def latency_ps(self) -> int:
        return self.node.overhead_ps + 5000 * (".cube6." in self.node.id)


class CountingRouter(Router):
    """A router that sees every flit, and holds each up for 7 ps a byte."""

    seen = 0

    def on_head(self, nbytes: int, t_ps: int) -> int:
        assert t_ps > 0
        type(self).seen += 1
        return 7 * nbytes


class StallingRouter(Router):
    """A router that holds up one flit of every `period` by `delay_ps`: number `turn` of them."""

    period, turn, delay_ps = 3, 0, 50_000

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.seen = 0

    def on_head(self, nbytes: int, t_ps: int) -> int:
        self.seen += 1
        return self.delay_ps if (self.seen - 1) % self.period == self.turn else 0


class QuickMCpu(MCpu):
    """A management processor that needs 1 ns for a message, whatever the machine file says."""

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        super().__init__(engine, node_id)
        self.service_ps = 1000
