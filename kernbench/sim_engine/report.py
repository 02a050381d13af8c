"""From a run's counters and log to its records."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis.records import Causes, Launch, LinkTable, Records
from kernbench.sim_engine.backend import ENGINE
from kernbench.sim_engine.op_log import KINDS
from kernbench.units import FLIT_BYTES

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine


def busy_by_component(engine: GraphEngine) -> dict[str, int]:
    """Return the busy time of every server that keeps count [ps]: pipeline stages, memories."""
    busy: dict[str, int] = {}
    for name, part in engine.parts.items():
        if hasattr(part, "busy_ps"):
            busy[name] = part.busy_ps
        for stage in getattr(part, "stages", ()):
            busy[stage.name] = stage.busy_ps
    return busy


def link_table(engine: GraphEngine) -> LinkTable:
    """Return traffic and busy time of every link, from what was sent over each route."""
    ordered = sorted(engine.fabric.links.values(), key=attrgetter("name"))
    number = {link: i for i, link in enumerate(ordered)}
    # For each link of each route: the link, the route's bytes, and by size of flit how many the route carried.
    at: list[int] = []
    nbytes: list[int] = []
    flits: dict[int, tuple[list[int], list[int]]] = {}
    for route in engine.fabric.routes.values():
        if not route.flits and not route.small:
            continue
        mine = [number[link] for link in route.links]
        at += mine
        nbytes += [route.nbytes] * len(mine)
        for size, n in (*route.small.items(), (FLIT_BYTES, route.flits)):
            links, counts = flits.setdefault(size, ([], []))
            links += mine
            counts += [n] * len(mine)
    busy = np.zeros(len(ordered), np.int64)
    for size, (links, counts) in flits.items():
        busy += np.array([link.times[size] for link in ordered], np.int64) * _sums(links, counts, len(ordered))
    return LinkTable(
        tuple([link.name for link in ordered]),
        _sums(at, nbytes, len(ordered)),
        busy,
        np.array([link.bw_gbs for link in ordered]),
    )


def _sums(at: list[int], values: list[int], n: int) -> np.ndarray:
    """Return the sum of the `values` at each of `n` places."""
    sums = np.zeros(n, np.int64)
    np.add.at(sums, np.array(at, np.int64), np.array(values, np.int64))
    return sums


def causes(engine: GraphEngine) -> Causes:
    """Return what the log keeps of moves and of the order of commands."""
    log, graph = engine.log, engine.machine.graph
    nodes: dict[str, int] = {}
    routes = []
    links: dict[tuple[int, int], tuple[int, int, float]] = {}
    for route in log.routes:
        path = [nodes.setdefault(name, len(nodes)) for name in (route.links[0].src, *(x.dst for x in route.links))]
        routes.append(tuple(path))
        for at, link in enumerate(route.links):
            if (path[at], path[at + 1]) in links:
                continue
            # Both ways: a transaction goes out over one and comes back over the other.
            for here, there in ((at, at + 1), (at + 1, at)):
                src, dst = (link.src, link.dst) if here < there else (link.dst, link.src)
                edge = graph.edge(src, dst)
                latency = engine.fabric.link(src, dst).lat
                wire = edge.latency_ps - graph.node(dst).overhead_ps
                links[path[here], path[there]] = wire, latency - wire, edge.bw_gbs
    return Causes(
        log.moves(),
        tuple(nodes),
        tuple(routes),
        links,
        np.array(log.issued, np.int64).reshape(-1, 3),
        np.array(log.after, np.int64).reshape(-1, 2),
        np.array([(x.id, x.target_start_ps) for x in engine.launches], np.int64).reshape(-1, 2),
    )


def collect(engine: GraphEngine) -> Records:
    """Return the records of a run as it stands."""
    log = engine.log
    columns = log.columns()
    counted = busy_by_component(engine)
    for name in counted:
        log.component(name)
    names = tuple(log.components)
    busy = np.zeros(len(names), np.int64)
    for name, i in log.components.items():
        rows = columns["component"] == i
        busy[i] = counted[name] if name in counted else _union(columns["start_ps"][rows], columns["end_ps"][rows])
    launches = [
        Launch(x.name, x.sent_ps, engine.env._now if x.end_ps is None else x.end_ps, x.sip, x.queues or "")
        for x in engine.launches
    ]
    return Records(
        **columns,
        components=names,
        kinds=KINDS,
        commands=log.commands,
        links=link_table(engine),
        component_busy_ps=busy,
        makespan_ps=engine.env._now,
        launches=tuple(launches),
        machine=engine.machine.hash,
        spec=engine.machine.spec,
        causes=causes(engine),
        complete=engine.complete,
        engine=ENGINE,
    )


def _union(start: np.ndarray, end: np.ndarray) -> int:
    """Return the time that any of the intervals covers."""
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    covered = np.maximum(start[1:], end[:-1])
    return int(end[0] - start[0] + np.maximum(0, end[1:] - covered).sum())
