"""The cost of reads between the PEs of a SIP: the links and memories on their routes, from the graph of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

from kernbench.analysis._resources import attribution
from kernbench.config import MachineConfig
from kernbench.policy._routing import reverse, router_of
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Graph
from kernbench.topology.builder import Machine


class Routes:
    def __init__(self, graph: Graph) -> None:
        config, router = graph.config, router_of(graph)
        places = [divmod(i, config.pes_per_cube) for i in range(config.pes_per_sip)]
        memories: dict[str, int] = {}
        self._memory_of = np.array([memories.setdefault(graph.memory(0, *place), len(memories)) for place in places])
        pairs, by_pair, names = _links_of_data(graph, places, list(memories))
        latency_ps = np.array([graph.edge(src, dst).latency_ps for dst, src in names])  # the way of the request
        one_way = np.bincount(pairs, weights=latency_ps[by_pair], minlength=len(places) * len(memories))
        by_link = np.argsort(by_pair, kind="stable")
        self._pairs = pairs[by_link]
        self._begins = np.searchsorted(by_pair[by_link], np.arange(len(names)))
        self._names = [f"{src}->{dst}" for src, dst in names]
        self._bw_gbs = np.array([graph.edge(*link).bw_gbs for link in names])
        hbm = config.cube.hbm
        there_and_back = 2 * one_way.reshape(len(places), -1)[:, self._memory_of] / 1000
        self.outstanding_reads = router.outstanding_reads
        self._latency_ns = (there_and_back + hbm.access_ns) / self.outstanding_reads
        self._slice_gbs, self._shared = config.hbm_gbs_per_pe, config.memory_apart

    def busiest(self, nbytes: np.ndarray, served_bytes: np.ndarray) -> tuple[float, str]:
        """Time of the busiest link or memory [ns], and its kind.

        `nbytes` and `served_bytes`, as the memories serve them, are (reader, holder). Interleaved memories hold a part
        of everything each.
        """
        if self._shared:
            held = np.bincount(self._memory_of) / len(self._memory_of)
            nbytes, served_bytes = nbytes.sum(axis=1, keepdims=True) * held, served_bytes / len(self._memory_of)
            served_bytes = np.broadcast_to(served_bytes.sum(axis=1, keepdims=True), served_bytes.shape)
        carried = np.add.reduceat(nbytes.reshape(-1)[self._pairs], self._begins)
        ns = carried / self._bw_gbs
        link, served = int(ns.argmax()), float(served_bytes.sum(axis=0).max() / self._slice_gbs)
        if served >= ns[link]:
            return served, "HBM slice"
        return float(ns[link]), attribution("serialization", self._names[link]).group

    def latency_ns(self, nbytes: np.ndarray) -> float:
        """Latency of one read per pair of PEs [ns], summed over the holders, of the PE that waits longest."""
        return float(((nbytes > 0) * self._latency_ns).sum(axis=1).max())


def _links_of_data(
    graph: Graph, readers: Sequence[tuple[int, int]], memories: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, list[tuple[str, str]]]:
    """Links that data take from each memory to each reader: pair and number of each, and the ids of those numbered.

    The path between two cubes depends only on how many rows and columns lie between them: such a path is looked up
    once, and shifted by the numbers of the first cube's nodes. A link is one number, of both nodes.
    """
    router = router_of(graph)
    cube = graph.index(naming.pe_dma(0, 1, 0)) - graph.index(naming.pe_dma(0, 0, 0)) if graph.w * graph.h > 1 else 0
    most = 1 << 31  # nodes
    known: dict[object, np.ndarray] = {}
    ways = []

    def nodes(pair: int) -> tuple[str, ...]:
        reader, memory = divmod(pair, len(memories))
        return reverse(router.path(naming.pe_dma(0, *readers[reader]), memories[memory]))

    memory_places = [(*divmod(its_cube, graph.w), local) for _, its_cube, local in map(graph.place, memories)]
    for number, (own, pe) in enumerate(readers):
        row, column = divmod(own, graph.w)
        for j, (to_row, to_column, local) in enumerate(memory_places):
            key = pe, local, to_row - row, to_column - column
            if key not in known:
                found = np.array([graph.index(node) for node in nodes(number * len(memories) + j)]) - own * cube
                known[key] = found[:-1] * most + found[1:]
            ways.append(known[key] + own * cube * (most + 1))
    ends = np.cumsum([0, *map(len, ways)])
    _, first, found = np.unique(np.concatenate(ways), return_index=True, return_inverse=True)
    pairs = np.repeat(np.arange(len(ways)), np.diff(ends))
    order = np.argsort(first)
    paths = [nodes(int(pair)) for pair in pairs[first[order]]]
    at = first[order] - ends[pairs[first[order]]]
    return pairs, np.argsort(order)[found], [(path[i], path[i + 1]) for path, i in zip(paths, at, strict=True)]


def routes_of(machine: Machine) -> Routes:
    return _routes_of(machine.graph)


@lru_cache(maxsize=4)
def _routes_of(graph: Graph) -> Routes:
    return Routes(graph)


@lru_cache(maxsize=4)
def cubes_near_io(machine: Machine) -> tuple[int, ...]:
    """Cubes of a SIP, nearest to its IO chiplet first."""
    graph, router = machine.graph, router_of(machine.graph)

    def latency_ps(cube: int) -> int:
        links = pairwise(router.path(naming.io_cpu(0), naming.m_cpu(0, cube)))
        return sum(graph.edge(*link).latency_ps for link in links)

    return tuple(sorted(range(machine.config.cubes_per_sip), key=latency_ps))


def host_ns(config: MachineConfig, name: str = "") -> float:
    """Time before the start of a launch that is not part of a graph [ns]."""
    host = config.system.host
    return host.launch_ns + host.doorbell_ns + host.fetch_ns(name)


@lru_cache(maxsize=8)
def launch_ns(machine: Machine, one: bool) -> float:
    """Simulate an empty launch on all PEs, or on one [ns]."""
    engine, config = GraphEngine(machine), machine.config
    pes = [(cube, pe) for cube in range(config.cubes_per_sip) for pe in range(config.pes_per_cube)]
    engine.wait(engine.launch(0, pes[:1] if one else pes, _nothing, (0,), "nothing").done, "an empty launch")
    return engine.now_ns


def _nothing(_: object, *, tl: object) -> None:
    pass
