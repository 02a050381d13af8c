"""Parts that messages pass through: they cost a latency, delay every flit by the same time and occupy nothing.

A user-defined part is a class with the same constructor and `latency_ps`; one that also defines
`on_head(nbytes, t_ps) -> extra_ps` is asked for every flit that reaches it.
"""

from __future__ import annotations

from kernbench.topology._graph import Node


class Transit:
    """A part whose latency is the overhead that the machine file gives it."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def latency_ps(self) -> int:
        """Return the delay of every flit that passes [ps]."""
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
