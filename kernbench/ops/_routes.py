"""The cost of reads between the PEs of a SIP: the links and memories on their routes, from the graph of the machine."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import numpy as np

from kernbench.analysis._resources import attribution
from kernbench.config import MachineConfig
from kernbench.policy._routing import reverse, router_of
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine


class Routes:
    def __init__(self, machine: Machine) -> None:
        config, graph, router = machine.config, machine.graph, router_of(machine.graph)
        places = [divmod(i, config.pes_per_cube) for i in range(config.pes_per_sip)]
        memories: dict[str, int] = {}
        self._memory_of = np.array([memories.setdefault(graph.memory(0, *place), len(memories)) for place in places])
        number: dict[tuple[str, str], int] = {}
        # For each PE and memory, the links of the request and those of the data.
        asking: tuple[list[int], list[int]] = ([], [])
        carrying: tuple[list[int], list[int]] = ([], [])
        for i, reader in enumerate(places):
            for memory, j in memories.items():
                path = router.path(naming.pe_dma(0, *reader), memory)
                for route, (pairs, links) in ((path, asking), (reverse(path), carrying)):
                    used = [number.setdefault(link, len(number)) for link in pairwise(route)]
                    pairs += [i * len(memories) + j] * len(used)
                    links += used
        edges = [graph.edge(*link) for link in number]
        latency_ps = np.array([edge.latency_ps for edge in edges])
        one_way = np.bincount(asking[0], weights=latency_ps[asking[1]], minlength=len(places) * len(memories))
        self._pairs, self._links = map(np.array, carrying)
        self._names = [f"{src}->{dst}" for src, dst in number]
        self._bw_gbs = np.array([edge.bw_gbs for edge in edges])
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
        carried = np.bincount(self._links, weights=nbytes.reshape(-1)[self._pairs], minlength=len(self._names))
        ns = carried / self._bw_gbs
        link, served = int(ns.argmax()), float(served_bytes.sum(axis=0).max() / self._slice_gbs)
        if served >= ns[link]:
            return served, "HBM slice"
        return float(ns[link]), attribution("serialization", self._names[link]).group

    def latency_ns(self, nbytes: np.ndarray) -> float:
        """Latency of one read per pair of PEs [ns], summed over the holders, of the PE that waits longest."""
        return float(((nbytes > 0) * self._latency_ns).sum(axis=1).max())


@lru_cache(maxsize=4)
def routes_of(machine: Machine) -> Routes:
    return Routes(machine)


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
