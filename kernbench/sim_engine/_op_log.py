"""The op log, one row per operation or per stage of a tile, and the records of a run."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from kernbench.analysis._records import (
    ALLOCATIONS,
    ARRIVED,
    HELD,
    LOG_COLUMNS,
    MOVE,
    NONE,
    ROW,
    SENT,
    STAGE_PATHS,
    STAGES,
    STEP,
    STEP_KINDS,
    STEPS,
    TRANSFERS,
    WAITS,
    CommandInfo,
    Dependencies,
    Launch,
    LinkTable,
    Records,
    StageWork,
    covered_ps,
)
from kernbench.analysis._stages import ROW_KINDS
from kernbench.sim_engine._causes import Cause, Moment
from kernbench.sim_engine._log_table import LogTable
from kernbench.sim_engine._network import ENGINE
from kernbench.sim_engine._waits import Waits

if TYPE_CHECKING:
    from kernbench.sim_engine._network import Link
    from kernbench.sim_engine._transaction import Route, Transaction
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.topology._graph import Graph

LEVELS = ("off", "operation", "tile")
KIND = {name: i for i, name in enumerate(ROW_KINDS)}
STEP_KIND = {name: i for i, name in enumerate(STEP_KINDS)}
_OPENERS, _DEEPEST = 8192, 64


class OpLog:
    """Rows (start, end, component, kind, command, nbytes, flops, tile), in ps, bytes and ids, and their causes.

    `operation` is False when nothing is logged; `tiles` is True when stages of tiles are logged, too. Every row,
    transfer and step has four candidate causes, two per number, the decisive one first (see `_causes`).
    """

    def __init__(self, level: str = "operation") -> None:
        if level not in LEVELS:
            raise ValueError(f"log = {level!r} is unknown; known: {', '.join(LEVELS)}")
        self.level = level
        self.operation, self.tiles = level != "off", level == "tile"
        self.components: dict[str, int] = {}
        self.places: dict[str, int] = {}  # of steps
        self.waits = Waits()
        self.routes: list[Route] = []
        self._commands: list[CommandInfo] = []
        self._entered = 0
        # Rows and moves end with two numbers of causes.
        self.rows, self.moves = LogTable(len(LOG_COLUMNS) + 2), LogTable(len(TRANSFERS) + 2)
        self.stages, self.allocations = LogTable(len(StageWork._fields)), LogTable(len(ALLOCATIONS))
        self.steps, self.paths = LogTable(len(STEPS)), LogTable(len(STAGE_PATHS))
        self.order = LogTable(2)  # (command, predecessor)
        # Unless tiles are logged: when and why the latest requests that began a busy period were sent, by key.
        self.openers: dict[int, Moment] = {}

    def component(self, name: str) -> int:
        return self.components.setdefault(name, len(self.components))

    def command(self, info: CommandInfo) -> int:
        """Add a command, if the log is on; return its id."""
        if self.operation:
            self._commands.append(info)
        self._entered += 1
        return self._entered - 1

    @property
    def commands(self) -> tuple[CommandInfo, ...]:
        return tuple(self._commands)

    def after(self, command: int, first: int) -> None:
        """Record that `command` follows `first`."""
        self.order.add()
        after, i = self.order.last, self.order.place
        after[i], after[i + 1] = command, first

    def route(self, route: Route) -> int:
        if route.logged < 0:
            route.logged = len(self.routes)
            self.routes.append(route)
        return route.logged

    def place(self, name: str) -> int:
        return self.places.setdefault(name, len(self.places))

    def row(
        self, start: int, end: int, component: int, kind: int, command: int, nbytes: int, flops: int, tile: int,
        cause: int = NONE, second: int = NONE, third: int = NONE,
    ) -> int:  # fmt: skip
        """Add a row and the causes of its start (of a whole command: of its end); return the event of its end."""
        number = self.rows.add()
        rows, i = self.rows.last, self.rows.place
        rows[i], rows[i + 1], rows[i + 2], rows[i + 3] = start, end, component, kind
        rows[i + 4], rows[i + 5], rows[i + 6], rows[i + 7] = command, nbytes, flops, tile
        rows[i + 8], rows[i + 9] = cause | second << 32, third
        return ROW | number << 3

    def left(self, row: int, room: int, held: bool) -> None:
        """Record the event that made room behind the stage of a row, and whether the stage was blocked until then."""
        number = row >> 3
        rows = self.rows.block(number)
        rows[self.rows.place_of(number) + 9] |= (room | HELD if held else room) << 32

    def sent(self, cause: int = NONE, second: int = NONE, third: int = NONE, fourth: int = NONE) -> int:
        """Reserve the row of a transfer that starts now, with its causes; return its number."""
        number = self.moves.add()
        moves, i = self.moves.last, self.moves.place
        moves[i] = -1
        moves[i + 13], moves[i + 14] = cause | second << 32, third | fourth << 32
        return number

    def move(
        self, number: int, start: int, end: int, route: Route, nbytes: int, command: int, tile: int, kind: int,
        key: int, arrived: int = -1, since: int = -1, opener: int = -1, served: int = -1, held: int = NONE,
    ) -> int:  # fmt: skip
        """Complete the row of a transfer (see `TRANSFERS`); return the event of its end.

        `held` is the cause of the end if that is not the end of the route.
        """
        moves, i = self.moves.block(number), self.moves.place_of(number)
        moves[i], moves[i + 1], moves[i + 2], moves[i + 3] = start, end, self.route(route), nbytes
        moves[i + 4], moves[i + 5], moves[i + 6], moves[i + 7] = command, tile, kind, key
        moves[i + 8], moves[i + 9], moves[i + 10], moves[i + 11] = arrived, since, opener, served
        moves[i + 12] = self.waits.forget(key)
        moves[i + 14] |= held << 32
        return MOVE | number << 3

    def step(
        self, end: int, ps: int, place: int, kind: int, command: int, of: int = -1,
        cause: int = NONE, second: int = NONE, third: int = NONE,
    ) -> int:  # fmt: skip
        """Add a delay of `ps` until `end` that is no operation (see `STEPS`); return its event."""
        number = self.steps.add()
        steps, i = self.steps.last, self.steps.place
        steps[i], steps[i + 1], steps[i + 2], steps[i + 3] = end, ps, place, kind
        steps[i + 4], steps[i + 5], steps[i + 6], steps[i + 7] = command, of, cause | second << 32, third
        return STEP | number << 3

    def opened(self, key: int, asked: int, cause: Cause) -> None:
        """Record the request that began a busy period of a memory; a full table drops its oldest half."""
        if len(self.openers) == _OPENERS:
            for old in list(self.openers)[: _OPENERS // 2]:
                del self.openers[old]
        self.openers[key] = Moment(asked, cause)

    def then(self, cause: Cause, command: int, part: int, ps: int) -> Cause:
        """Extend a cause by `ps` in a part of a command; a long chain of paths is converted to events."""
        if cause.depth >= _DEEPEST:
            self.event(cause)
        return cause.then(command, part, ps)

    def event(self, cause: Cause) -> int:
        """Event of a cause; a path is logged, with its predecessors, and becomes one."""
        if cause.event == NONE and cause.before is not None:
            before = self.event(cause.before)
            number = self.paths.add()
            paths, i = self.paths.last, self.paths.place
            paths[i], paths[i + 1] = cause.command, before
            for part in range(self.paths.width - 2):
                paths[i + 2 + part] = cause.parts[part]
            cause.event = STAGES | number << 3
            cause.before = None
        return cause.event

    def stage(
        self, command: int, kind: int, start: int, end: int, busy: int, n: int, nbytes: int = 0, route: int = -1
    ) -> None:
        """Add what one stage did with all tiles of a command (see `Stage`)."""
        self.stages.add()
        stages, i = self.stages.last, self.stages.place
        stages[i], stages[i + 1], stages[i + 2], stages[i + 3] = command, kind, start, end
        stages[i + 4], stages[i + 5], stages[i + 6], stages[i + 7] = busy, n, nbytes, route

    def allocated(self, t: int, place: int, nbytes: int) -> None:
        """Record that bytes of a memory are allocated at `t`, or freed if negative."""
        self.allocations.add()
        rows, i = self.allocations.last, self.allocations.place
        rows[i], rows[i + 1], rows[i + 2] = t, place, nbytes

    def transfer(self, start: int, end: int, txn: Transaction, command: int, tile: int, kind: int) -> int:
        """Complete the row of a memory transaction, from its request to its completion at the requester."""
        return self.move(
            txn.number, start, end, txn.back, txn.nbytes, command, tile, kind, txn.key,
            txn.arrived_ps, txn.since_ps, txn.opener, txn.served_ps,
        )  # fmt: skip


def busy_by_component(engine: GraphEngine) -> dict[str, int]:
    """Busy time [ps] of every server that counts it: pipeline stages, memories."""
    busy: dict[str, int] = {}
    for name, part in engine.parts.items():
        if hasattr(part, "busy_ps"):
            busy[name] = part.busy_ps
        for stage in getattr(part, "stages", ()):
            busy[stage.name] = stage.busy_ps
    return busy


def _by_name(engine: GraphEngine) -> list[Link]:
    return sorted(engine.network.links.values(), key=attrgetter("name"))


def _link_numbers(engine: GraphEngine) -> np.ndarray:
    """Map link numbers to places in the link table; -1 maps to -1."""
    places = np.full(len(engine.network.links) + 1, -1)
    for place, link in enumerate(_by_name(engine)):
        places[link.number] = place
    return places


def link_table(engine: GraphEngine) -> LinkTable:
    """Derive traffic and busy time of every link from the flits counted per route."""
    ordered = _by_name(engine)
    number = {link: i for i, link in enumerate(ordered)}
    # For each link of each route: the link, the route's bytes, and its number of flits by size.
    at: list[int] = []
    nbytes: list[int] = []
    flits: dict[int, tuple[list[int], list[int]]] = {}
    for route in engine.network.routes:
        counts = route.counts()
        if not any(counts.values()):
            continue
        mine = [number[link] for link in route.links]
        at += mine
        nbytes += [route.nbytes] * len(mine)
        for size, n in counts.items():
            links, sent = flits.setdefault(size, ([], []))
            links += mine
            sent += [n] * len(mine)
    busy = np.zeros(len(ordered), np.int64)
    for size, (links, sent) in flits.items():
        busy += np.array([link.times[size] for link in ordered], np.int64) * _sums(links, sent, len(ordered))
    return LinkTable(
        tuple([link.name for link in ordered]),
        _sums(at, nbytes, len(ordered)),
        busy,
        np.array([link.bw_gbs for link in ordered]),
    )


def _sums(at: list[int], values: list[int], n: int) -> np.ndarray:
    """Sum `values` by their index in `at`."""
    sums = np.zeros(n, np.int64)
    np.add.at(sums, np.array(at, np.int64), np.array(values, np.int64))
    return sums


LinkTimes = tuple[int, int, float, int, int]


def _times(graph: Graph, link: Link) -> LinkTimes:
    """Latencies of a link and of the node behind it, its bandwidth, header, and cycle."""
    wire, cycle, behind = link.edge_ps, 0, graph.node(link.dst)
    wire -= behind.overhead_ps
    node = link.lat - wire
    if graph.clocks:
        clock = graph.clocks.get(behind.kind, graph.clocks.get(graph.node(link.src).kind))
        if clock is not None:  # latencies are rounded so that a whole flit takes whole cycles: report the link's own
            service, cycle = link.times[link.flit_bytes], clock.cycle_ps
            wire -= clock.cycles(service) * cycle - service
    return wire, node, link.bw_gbs, link.header_bytes, cycle


def dependencies(engine: GraphEngine) -> Dependencies:
    log, graph = engine.log, engine.machine.graph
    nodes: dict[str, int] = {}
    routes = []
    links: dict[tuple[int, int], LinkTimes] = {}
    for route in log.routes:
        path = [nodes.setdefault(name, len(nodes)) for name in (route.links[0].src, *(x.dst for x in route.links))]
        routes.append(tuple(path))
        for at, link in enumerate(route.links):
            if (path[at], path[at + 1]) not in links:
                # Both directions: a transaction uses one for its request and the other for its reply.
                back = engine.network.link(link.dst, link.src)
                links[path[at], path[at + 1]] = _times(graph, link)
                links[path[at + 1], path[at]] = _times(graph, back)
    # Candidate causes of every row and of every transfer, two per number; transfers in flight start at -1.
    causes, sent = (table.rows(slice(-2, None)) for table in (log.rows, log.moves))
    moves = log.moves.columns(TRANSFERS | {"wait": np.int64})  # of all waits, which may not fit into its own type
    steps, paths = log.steps.columns(STEPS), log.paths.columns(STAGE_PATHS)
    under_way = moves["start_ps"] < 0
    if under_way.any():
        number = np.where(under_way, -1, np.cumsum(~under_way) - 1)
        moves = {name: column[~under_way] for name, column in moves.items()}
        sent = _renumbered(sent[~under_way], number)
        causes = _renumbered(causes, number)
        for table, columns in ((steps, ("cause", "more")), (paths, ("before",))):
            table |= {name: _renumbered(table[name], number) for name in columns}
    kept, last = log.waits.kept.rows(), moves["wait"]
    number, before, *others = kept[np.argsort(kept[:, 0])].T
    waits = dict(zip(WAITS, (np.searchsorted(number, before), *others), strict=True))
    moves["wait"] = np.where(last > 0, np.searchsorted(number, last), last).astype(TRANSFERS["wait"])
    waits["front"] = _numbers(moves["key"], waits["front"])
    waits["link"] = _link_numbers(engine)[waits["link"]]
    return Dependencies(
        moves,
        tuple(nodes),
        tuple(routes),
        links,
        log.order.rows(),
        np.array([(x.command, max(0, x.target_start_ps)) for x in engine.launches if log.operation], np.int64).reshape(
            -1, 2
        ),
        log.stages.rows(),
        steps,
        tuple(log.places),
        paths,
        causes,
        sent,
        {name: waits[name].astype(dtype) for name, dtype in WAITS.items()},
        log.allocations.columns(ALLOCATIONS),
    )


def _numbers(keys: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Index of each wanted key in unsorted `keys`, -1 if absent."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys)
    place = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[place] == wanted, place, -1)


def _renumbered(causes: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Renumber the transfers in causes; those in flight (-1) have no event."""
    pairs = np.ascontiguousarray(causes, np.int64).view(np.uint32)
    kept, event = pairs & np.uint32(HELD), pairs & np.uint32(HELD - 1)
    tag = event & 7
    of_move = (tag == MOVE) | (tag == SENT) | (tag == ARRIVED)
    new = number[np.where(of_move, event >> 3, 0)]
    event = np.where(of_move, np.where(new < 0, 0, new << 3 | tag), event)
    return (event.astype(np.uint32) | kept).view(np.int64).reshape(causes.shape)


def collect(engine: GraphEngine) -> Records:
    log = engine.log
    columns = log.rows.columns(LOG_COLUMNS)
    counted = busy_by_component(engine)
    for name in counted:
        log.component(name)
    names = tuple(log.components)
    busy = np.zeros(len(names), np.int64)
    order = np.argsort(columns["component"], kind="stable")
    ends = np.searchsorted(columns["component"][order], np.arange(len(names) + 1))
    for name, i in log.components.items():
        rows = order[ends[i] : ends[i + 1]]
        busy[i] = counted[name] if name in counted else covered_ps(columns["start_ps"][rows], columns["end_ps"][rows])
    launches = [
        Launch(
            x.name,
            x.sent_ps,
            engine.env._now if x.end_ps < 0 else x.end_ps,
            x.sip,
            x.queues,
            x.operation,
            x.start_ps,
            x.done_ps,
            x.protocol,
        )
        for x in engine.launches
    ]
    return Records(
        **columns,
        components=names,
        kinds=ROW_KINDS,
        commands=log.commands,
        links=link_table(engine),
        component_busy_ps=busy,
        drams={name: part.activity for name, part in engine.parts.items() if hasattr(part, "activity")},
        makespan_ps=engine.env._now,
        launches=tuple(launches),
        operations=tuple(engine.operations),
        machine=engine.machine.hash,
        spec=engine.machine.spec,
        dependencies=dependencies(engine),
        complete=engine.complete,
        engine=ENGINE,
    )
