"""Network nodes that messages pass through: each delays every flit by its latency and is never occupied.

A user-defined node is a class with the same constructor and `latency_ps`; if it also defines
`on_head(nbytes, t_ps) -> extra_ps`, that is called for every flit that reaches it.
"""

from __future__ import annotations

from kernbench.topology._graph import Node


class Transit:
    """A network node whose latency is its overhead in the machine file."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def latency_ps(self) -> int:
        """Delay of every flit [ps]."""
        return self.node.overhead_ps


class Router(Transit):
    """A router of a cube's mesh, with flow: unbounded: no back-pressure inside the mesh."""


class Switch(Transit):
    """The PCIe switch between the host and the SIPs."""


class Ucie(Transit):
    """One port of a UCIe connection; a crossing passes two."""


class PcieEp(Transit):
    """The PCIe end point of an IO chiplet."""


class IoNoc(Transit):
    """The network of an IO chiplet, a single crossbar."""


class SipSwitch(Transit):
    """A switch of the network between SIPs, non-blocking: messages meet at the links that leave its ports only."""
