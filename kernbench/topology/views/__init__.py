"""Geometry of the four views of a machine, with the labels to put on it. Drawing is `viz`'s business."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from kernbench.errors import ArgumentError
from kernbench.topology.graph import Graph
from kernbench.topology.views.cube import cube_view
from kernbench.topology.views.pe import pe_view
from kernbench.topology.views.shapes import Box, Line, View
from kernbench.topology.views.sip import sip_view
from kernbench.topology.views.system import system_view

__all__ = ["Box", "Line", "View", "Views"]

_VIEWS = {"system": system_view, "sip": sip_view, "cube": cube_view, "pe": pe_view}


class Views:
    """The four views of one machine, by name: system, sip, cube, pe. Each is made when first asked for."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[str, View] = {}

    def __getitem__(self, name: str) -> View:
        if name not in _VIEWS:
            near = get_close_matches(name, _VIEWS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ArgumentError(f"no view is called {name!r}; {hint}known: {', '.join(_VIEWS)}")
        if name not in self._made:
            self._made[name] = _VIEWS[name](self._graph)
        return self._made[name]

    def __iter__(self) -> Iterator[View]:
        return (self[name] for name in _VIEWS)

    @property
    def system(self) -> View:
        """Host, switch and SIPs."""
        return self["system"]

    @property
    def sip(self) -> View:
        """The IO chiplet and the cubes of a SIP."""
        return self["sip"]

    @property
    def cube(self) -> View:
        """The router mesh of a cube and what hangs on it."""
        return self["cube"]

    @property
    def pe(self) -> View:
        """The parts of a PE."""
        return self["pe"]
