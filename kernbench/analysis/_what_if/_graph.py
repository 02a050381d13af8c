"""The dependency graph of a run: events, the servers that serve them, and the terms of their distances.

Every event has a time; an edge is a minimum distance after another event. A distance is a sum of terms, each a
coefficient times a *quantity*: the value that a field of the machine file gives to one unit of it. On the run's
machine the graph reproduces the recorded times exactly: what the edges do not explain is a delay of the event, and
what they would overstate is subtracted from them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from kernbench._units import ACK_BYTES, flits
from kernbench.analysis._critical_path import check_logged
from kernbench.analysis._records import (
    ARRIVED,
    BEGIN,
    CREDIT,
    FETCH,
    MESSAGE,
    MOVE,
    PART,
    PARTS,
    READ,
    ROW,
    SENT,
    STAGES,
    STEP,
    STEP_KINDS,
    WRITE,
    Records,
    StageWork,
    Transfer,
    candidates,
)
from kernbench.analysis._stages import COMMAND_KINDS, STAGE_ENGINES, STAGE_LABELS, TILE_STAGES
from kernbench.analysis._what_if._quantities import Quantities
from kernbench.analysis._what_if._retime import retime

Term: TypeAlias = tuple[int, float]  # quantity, coefficient
_COMMAND, _M_CPU, _IO_CPU = "cube.pe.pe_cpu.command_ns", "cube.m_cpu.service_ns", "sip.io.io_cpu.service_ns"
_FETCH_GBS, _STORE_GBS = "cube.pe.pe_tcm.read_bw_gbs", "cube.pe.pe_tcm.write_bw_gbs"
_KIND_OF = {STAGE_LABELS[stage]: stage for stage in STAGE_ENGINES}


class Served(NamedTuple):
    """The service of an event by a server: `service` [ps] at the slowdown `rate` (a quantity).

    The work arrives over the difference of the quantities `last` and `first`, at least over the service. With `lead`
    [ps], it arrives at once, `lead` before the event is ready.
    """

    rate: int
    service: float
    last: int
    first: int
    lead: float = 0.0


class Events:
    def __init__(self) -> None:
        self.times: list[int] = []
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.term_edge: list[int] = []
        self.term_quantity: list[int] = []
        self.term_factor: list[float] = []
        self.servers: dict[str, int] = {}
        self.previous: dict[int, int] = {}  # by served key: the event of the previous service
        self.served: dict[int, tuple[int, Served]] = {}  # by event: its server

    def add(self, t: int) -> int:
        self.times.append(t)
        return len(self.times) - 1

    def serve(self, event: int, server: str, served: Served) -> None:
        """Queue an event at a server, which serves events in the order in which they are ready."""
        self.served[event] = self.servers.setdefault(server, len(self.servers)), served

    def edge(self, source: int, target: int, *terms: Term) -> None:
        """Constrain target >= source + terms; ignore edges that contradict the recorded order."""
        if self.times[source] > self.times[target] or source == target:
            return
        number = len(self.sources)
        self.sources.append(source)
        self.targets.append(target)
        for quantity, factor in terms:
            self.term_edge.append(number)
            self.term_quantity.append(quantity)
            self.term_factor.append(factor)


class _Graph:
    """Builds the events of a run. Its edges are the candidate causes that the engine recorded."""

    def __init__(self, records: Records, quantities: Quantities) -> None:
        self.r, self.d, self.q, self.events = records, records.dependencies, quantities, Events()
        self.kinds = [records.kinds[kind] for kind in records.kind.tolist()]
        self.transfers = self.d.at(slice(None))
        self.start: list[int] = []  # of each transfer: its start, arrival, service and end
        self.arrived: list[int] = []
        self.end: list[int] = []
        self.stages = [*map(StageWork._make, self.d.stages.tolist())]
        self.tiles_of = {s.command: s.n for s in self.stages if records.kinds[s.kind] == "fetch"}
        self.step_causes = _events(np.stack([self.d.steps["cause"], self.d.steps["more"]], axis=1))
        self._enter_transfers()
        self._enter_rows()
        self._enter_steps()
        self._enter_paths()
        self._join_rows()
        self._join_transfers()
        self._join_steps()
        self._join_launches()
        self._tiled_without_tiles()
        self.last = self.events.add(records.makespan_ps)
        for node in (*self.end, *(node for node in self.left if node >= 0)):
            self.events.edge(node, self.last)

    def _enter_transfers(self) -> None:
        """Add four events for each transfer: start, arrival at the other end, end of the memory's service, end."""
        add, edge, q = self.events.add, self.events.edge, self.q
        nodes = self.d.nodes
        self._enter_waits()
        at_memory: dict[str, list[tuple[int, int, int, float, bool]]] = defaultdict(list)
        for i, x in enumerate(self.transfers):
            start, end = add(x.start_ps), add(x.end_ps)
            arrived = start
            if x.kind in (MESSAGE, CREDIT):
                self._cross(i, x, False, start, end, x.nbytes)
            elif x.kind == PART:
                arrived = landed = add(x.arrived_ps)
                memory = nodes[self.d.routes[x.route][-1]]
                if ".hbm_ctrl." in memory:
                    landed = add(self._over(i, x, False, x.nbytes, x.arrived_ps))
                    edge(landed, arrived, (q.memory, q.burst_ps))
                    came, bursts = self.events.times[landed], q.bursts_ps(x.nbytes)
                    at_memory[memory].append((x.arrived_ps, came, arrived, bursts, False))
                self._cross(i, x, False, start, landed, x.nbytes)
            else:
                read = x.kind != WRITE
                there, back = (q.command_bytes, x.nbytes) if read else (x.nbytes, ACK_BYTES)
                if x.served_ps < 0:
                    arrived = add(self._over(i, x, True, there, x.end_ps))
                    self._cross(i, x, True, start, arrived, there)
                    self._cross(i, x, False, arrived, end, back)
                else:
                    arrived, served = add(x.arrived_ps), add(x.served_ps)
                    self._cross(i, x, True, start, arrived, there)
                    bursts = q.bursts_ps(x.nbytes)
                    access = (q.ns("cube.hbm.access_ns"), 1.0) if read else (q.one, 0.0)
                    # The channels are free for the next request before the access latency of a read is over.
                    free_ps = max(x.arrived_ps, x.served_ps - int(q.now(access[0]) * access[1]))
                    free = add(free_ps) if read else served
                    if read:
                        edge(arrived, free, (q.memory, min(bursts, free_ps - x.arrived_ps)))
                        edge(free, served, access)
                        # All channels end at once: their last bursts cross the links after that.
                        late = served, min(back, q.wave_bytes)
                        self._cross(i, x, False, arrived, end, back, (q.memory, q.burst_ps), access, late=late)
                    else:
                        edge(arrived, served, (q.memory, q.burst_ps))
                        flit = q.transit(x.route, min(there, q.flit_bytes), reverse=True)
                        edge(start, served, (q.memory, bursts), (flit, 1.0))
                        self._cross(i, x, False, served, end, back)
                    memory = nodes[self.d.routes[x.route][0]]
                    at_memory[memory].append((free_ps, x.arrived_ps, free, bursts, read))
            self.start.append(start)
            self.arrived.append(arrived)
            self.end.append(end)
        for memory, members in at_memory.items():
            members.sort()
            before = 0
            for free_ps, came, event, bursts, read in members:
                # A request that waited took as long as its slowest channel; others may have had less to do.
                service = max(bursts, free_ps - before) if came < before else bursts
                lead = bursts if read else 0.0
                self.events.serve(event, memory, Served(q.memory, service, q.memory, q.memory, lead))
                before = free_ps

    # -- links

    def _enter_waits(self) -> None:
        self.waits: dict[int, dict[int, int]] = defaultdict(dict)
        hops = [self.q.hop(name) for name in self.r.links.names]
        links, ps = (self.d.waits[name].tolist()[1:] for name in ("link", "ps"))
        for i, link, waited in zip(self.d.waiting().tolist()[1:], links, ps, strict=True):
            mine = self.waits[i]
            mine[hops[link]] = mine.get(hops[link], 0) + waited

    def _over(self, i: int, x: Transfer, reverse: bool, nbytes: int, end_ps: int) -> int:
        """When bytes that left at the start of a transfer had crossed its route or the reverse [ps]."""
        waits, hops = self.waits.get(i, {}), self.q.hops(x.route, reverse)
        took = self.q.now(self.q.transit(x.route, nbytes, reverse=reverse)) + sum(waits.get(hop, 0) for hop in hops)
        return min(x.start_ps + int(took), end_ps)

    def _cross(
        self, i: int, x: Transfer, reverse: bool, source: int, end: int, nbytes: int, *terms: Term,
        late: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        """Add the crossing of a route, `terms` after `source`; the `late` bytes leave after another event.

        There is an event for each link: the last flit has crossed it. Up to the slowest link this time follows from the
        source; behind that link flits do not wait for each other, so it follows from the end.
        """
        q, edge, times, route = self.q, self.events.edge, self.events.times, x.route
        hops, flit, waits = q.hops(route, reverse), min(nbytes, q.flit_bytes), self.waits.get(i, {})
        sources = [(source, nbytes, terms)] if late is None else [(source, nbytes, terms), (*late, ())]
        ps = [q.link_ps(hop, flit) for hop in hops]
        n, slowest = flits(nbytes, q.flit_bytes), ps.index(max(ps))
        t, following = times[end], end
        for at in reversed(range(len(hops))):
            rest = q.transit(route, flit, reverse=reverse, first=at + 1, last=at + 2)
            t -= int(q.now(rest)) + (waits.get(hops[at + 1], 0) if following != end else 0)
            before = [
                (node, (*of, (q.transit(route, size, reverse=reverse, last=at + 1), 1.0))) for node, size, of in sources
            ]
            if at < slowest:
                came = max(times[node] + sum(q.now(of) * factor for of, factor in more) for node, more in before)
                t = min(t, int(came) + sum(waits.get(hop, 0) for hop in hops[: at + 1]))
            through = self.events.add(max(t, times[source]))
            edge(through, following, (rest, 1.0))
            for node, more in before:
                edge(node, through, *more)
            server = q.link_name(hops[at])
            if not at and x.kind in (PART, CREDIT):  # at a PE's first link, queue traffic and bulk transfers alternate
                server += " of queues"
            last, first = (q.transit(route, size, reverse=reverse, last=at + 1) for size in (nbytes, flit))
            self.events.serve(through, server, Served(q.link_rate(hops[at]), float(n * ps[at]), last, first))
            if following != end:
                self.events.previous[following] = through
            following = through

    # -- rows, steps and paths through stages

    def _enter_rows(self) -> None:
        """Add the work of engines from `begin` until it has `left`, and the completion of whole commands."""
        add, edge, r = self.events.add, self.events.edge, self.r
        starts, ends, commands, tiles = r.start_ps.tolist(), r.end_ps.tolist(), r.command.tolist(), r.tile.tolist()
        self.begin, self.left = [-1] * len(r), [-1] * len(r)
        self.finish = [-1] * len(r)
        self.done: dict[int, int] = {}  # by command
        self.fetched: dict[tuple[int, int], int] = {}  # by (command, tile): the tile's row at the fetch stage
        for i, kind in enumerate(self.kinds):
            command = commands[i]
            if kind in STAGE_ENGINES:
                took = ends[i] - starts[i]
                self.begin[i], self.finish[i] = add(starts[i]), add(ends[i])
                edge(self.begin[i], self.finish[i], (self._engine(kind, command), took))
                self.left[i] = self.finish[i]
                if kind == "fetch":
                    self.fetched[command, tiles[i]] = i
            elif kind in COMMAND_KINDS:
                self.left[i] = add(ends[i])
            if kind in COMMAND_KINDS or (kind == "math" and tiles[i] < 0):
                if command in self.done:  # a receive of several parts
                    edge(self.done[command], self.left[i])
                self.done[command] = self.left[i]

    def _engine(self, kind: str, command: int) -> int:
        """Quantity of a stage's slowdown."""
        if kind in ("gemm", "math"):
            info = self.r.commands[command]
            return self.q.matrix(info.dtype) if kind == "gemm" else self.q.vector(info.vector)
        return self.q.rate(_FETCH_GBS if kind == "fetch" else _STORE_GBS)

    def _enter_steps(self) -> None:
        steps = self.d.steps
        self.step = [self.events.add(t) for t in steps["end_ps"].tolist()]
        self.step_kind = [STEP_KINDS[kind] for kind in steps["kind"].tolist()]
        self.step_of = list(zip(*(steps[name].tolist() for name in ("command", "ps", "place", "of")), strict=True))
        self.issued = {c: i for i, (c, *_) in enumerate(self.step_of) if self.step_kind[i] == "issue"}
        self.ready: dict[int, int] = {}
        after: dict[int, list[int]] = defaultdict(list)
        for command, other in self.d.after.tolist():
            after[command].append(other)
        sends = {int(command) for command, kind in zip(self.r.command, self.kinds, strict=True) if kind == "send"}
        receives = {int(command) for command, kind in zip(self.r.command, self.kinds, strict=True) if kind == "recv"}
        for command, i in self.issued.items():
            # A receive does not wait for its send as for a command: the arrival of the message has its own edge.
            others = [o for o in after[command] if o in self.done and not (command in receives and o in sends)]
            sources = [self.step[i], *(self.done[other] for other in others)]
            node = self.ready[command] = self.events.add(max(self.events.times[source] for source in sources))
            for source in sources:
                self.events.edge(source, node)

    def _enter_paths(self) -> None:
        add, edge, paths = self.events.add, self.events.edge, self.d.paths
        routes: dict[int, StageWork] = {s.command: s for s in self.stages if s.route >= 0}
        self.path: list[int] = []
        self.nodes_of = {
            ROW: self.left, BEGIN: self.begin, MOVE: self.end, SENT: self.start, ARRIVED: self.arrived, STEP: self.step,
            STAGES: self.path,
        }  # fmt: skip
        for i in range(len(paths["command"])):
            command, before = int(paths["command"][i]), self._node(int(paths["before"][i]))
            took = [(part, int(paths[f"{part}_ps"][i])) for part in PARTS]
            terms = [self._part(command, part, ps, routes.get(command)) for part, ps in took if ps]
            start = 0 if before < 0 else self.events.times[before]
            self.path.append(add(start + sum(ps for _, ps in took)))
            if before >= 0:
                edge(before, self.path[-1], *terms)

    def _part(self, command: int, part: str, ps: int, dma: StageWork | None) -> Term:
        q = self.q
        if part == "plan":
            return self._field("cube.pe.pe_scheduler.tile_ns", ps)
        if part == "memory":
            return q.memory, ps
        if part in ("read", "write"):
            if dma is None:
                return q.one, ps
            transit = q.transit(dma.route, dma.nbytes // max(dma.n, 1), reverse=part == "write")
            return transit, ps / q.now(transit)
        return self._engine(_KIND_OF[part], command), ps

    def _field(self, field: str, ps: int) -> Term:
        """Term of a time that a field determines."""
        quantity = self.q.ns(field)
        now = self.q.now(quantity)
        return (quantity, ps / now) if now else (self.q.one, ps)

    # -- causes

    def _node(self, event: int) -> int:
        nodes = self.nodes_of.get(event & 7)
        return -1 if nodes is None else nodes[event >> 3]

    def _follow(self, event: int, node: int, tile: int = -1, *terms: Term) -> None:
        """Constrain a node to follow an event; a tile also follows the planning of the tiles before it."""
        source = self._node(event)
        if source < 0:
            return
        if tile >= 0 and event & 7 == STEP and self.step_kind[event >> 3] == "lookup":
            terms = (self.q.ns("cube.pe.pe_scheduler.tile_ns"), tile + 1.0), *terms
        self.events.edge(source, node, *terms)

    def _join_rows(self) -> None:
        r, add, edge = self.r, self.events.add, self.events.edge
        commands, tiles = r.command.tolist(), r.tile.tolist()
        for i, (own, room) in enumerate(_events(self.d.causes)):
            if self.begin[i] >= 0:
                for event in own:
                    self._follow(event, self.begin[i], tiles[i])
                if tiles[i] < 0 and commands[i] in self.ready:
                    edge(self.ready[commands[i]], self.begin[i])
            elif self.left[i] >= 0:
                for event in own:
                    self._follow(event, self.left[i])
            if room:
                # What made room began later in the log; the rows after this one are joined to it below.
                self.left[i] = add(max(int(r.end_ps[i]), self.events.times[self._node(room)]))
                edge(self.finish[i], self.left[i])
                self._follow(room, self.left[i])

    def _join_transfers(self) -> None:
        edge, q = self.events.edge, self.q
        nodes, routes = self.d.nodes, self.d.routes
        for i, ((own, last), x) in enumerate(zip(_events(self.d.sent), self.transfers, strict=True)):
            start, command = self.start[i], x.command
            if command in self.issued:
                for event in (*own, *(() if x.kind == PART else (last,))):
                    self._follow(event, start, x.tile if x.kind == READ else -1)
                if x.kind in (PART, FETCH) and command in self.ready and not (x.kind == PART and self._carries(own)):
                    edge(self.ready[command], start)
                if x.kind == PART:
                    self._follow(last, self.end[i])
                if x.kind == READ and x.tile >= 0 and (row := self.fetched.get((command, x.tile))) is not None:
                    edge(self.end[i], self.begin[row])
                if x.kind in (READ, WRITE, PART) and command in self.done and (x.tile < 0 or x.kind != READ):
                    edge(self.end[i], self.done[command])
                continue
            from_host = x.kind != MESSAGE or nodes[routes[x.route][0]] == "host"
            for event in own:
                source = self._node(event)
                if source >= 0:
                    gap = self.events.times[start] - self.events.times[source] if from_host else 0
                    edge(source, start, (q.one, float(gap)))
            if command in self.done and from_host:
                edge(self.end[i], self.done[command])

    def _carries(self, own: Sequence[int]) -> bool:
        """Whether a part of a message follows a read of the data that it carries."""
        return any(event & 7 == MOVE and self.transfers[event >> 3].kind == FETCH for event in own)

    def _join_steps(self) -> None:
        for i, (own, _) in enumerate(self.step_causes):
            kind, (command, ps, place, _) = self.step_kind[i], self.step_of[i]
            if kind == "start":
                continue  # of all PEs: see `_join_launches`
            term = self._step_term(kind, self.d.places[place], ps)
            for event in own:
                before = self.step_of[event >> 3][0] if event & 7 == STEP else -1
                if kind == "lookup" and before >= 0 and self.step_kind[event >> 3] == "lookup":
                    plan = self.q.ns("cube.pe.pe_scheduler.tile_ns"), float(self.tiles_of.get(before, 0))
                    self._follow(event, self.step[i], -1, plan, term)
                else:
                    self._follow(event, self.step[i], -1, term)
            if kind in ("lookup", "slot") and command in self.ready and self._of_receive(kind, own):
                self.events.edge(self.ready[command], self.step[i], term)

    def _of_receive(self, kind: str, own: Sequence[int]) -> bool:
        """Whether a step needs its command to be ready: a part that arrives in a slot does not."""
        return kind == "lookup" or not any(event & 7 == ARRIVED for event in own)

    def _step_term(self, kind: str, place: str, ps: int) -> Term:
        if kind == "issue":
            return self._field(_COMMAND, ps)
        if kind == "lookup":
            return self._field("cube.pe.pe_mmu.lookup_ns", ps)
        if kind == "cpu":
            return self._field({"io_cpu": _IO_CPU, "m_cpu": _M_CPU}.get(place.rpartition(".")[2], _COMMAND), ps)
        if kind == "slot":
            if place.endswith((".store", ".fetch")):
                return self.q.rate(_STORE_GBS if place.endswith(".store") else _FETCH_GBS), ps
            return self._field(f"cube.pe.pe_ipcq.{'hbm' if '.hbm_ctrl.' in place else 'sram'}_setup_ns", ps)
        return self.q.one, ps

    def _join_launches(self) -> None:
        """Start programs when all PEs have decoded the launch; end a launch when all have answered."""
        add, edge, places = self.events.add, self.events.edge, self.d.places
        begin = dict(self.d.begin.tolist())
        common = {command: add(t) for command, t in begin.items()}
        programs: dict[tuple[int, str], list[int]] = defaultdict(list)
        for i, (command, _, place, of) in enumerate(self.step_of):
            kind = self.step_kind[i]
            if kind == "cpu" and command in common and places[place].endswith(".pe_cpu"):
                edge(self.step[i], common[command])
            elif kind == "issue":
                programs[of, places[place]].append(command)
        for i, (own, _) in enumerate(self.step_causes):
            command, _, place, _ = self.step_of[i]
            if self.step_kind[i] == "start":
                edge(common[command], self.step[i])
                for event in own:
                    if event & 7 == STEP and places[self.step_of[event >> 3][2]].endswith(".pe_cpu"):
                        self._follow(event, self.step[i])
            elif self.step_kind[i] == "end":
                for other in programs[command, places[place]]:
                    edge(self.step[self.issued[other]], self.step[i])
                    if other in self.done:
                        edge(self.done[other], self.step[i])
        answers: dict[tuple[int, int], list[int]] = defaultdict(list)
        upward = []
        for i, x in enumerate(self.transfers):
            if x.kind == MESSAGE:
                path = self.d.routes[x.route]
                if self._is_answer(path):
                    answers[x.command, path[-1]].append(i)
                    upward.append((i, x.command, path[0]))
        for i, command, src in upward:
            for answer in answers.get((command, src), ()):
                edge(self.end[answer], self.start[i])
        host = self.d.nodes.index("host") if "host" in self.d.nodes else -1
        for (command, dst), ends in answers.items():
            if dst == host and command in self.done:
                for answer in ends:
                    edge(self.end[answer], self.done[command])

    def _is_answer(self, path: Sequence[int]) -> bool:
        rank = {"host": 0, "io_cpu": 1, "m_cpu": 2, "pe_cpu": 3}
        src, dst = (rank[self.d.nodes[at].rpartition(".")[2]] for at in (path[0], path[-1]))
        return dst < src

    def _tiled_without_tiles(self) -> None:
        """Join the stages of tiled commands as wholes, if the log does not contain their tiles."""
        r, add, edge, q = self.r, self.events.add, self.events.edge, self.q
        seen = set(r.command[(r.tile >= 0) & r.is_kind(*STAGE_ENGINES)].tolist())
        found: dict[int, list[StageWork]] = defaultdict(list)
        for stage in self.stages:
            if stage.command not in seen and stage.command in self.ready:
                found[stage.command].append(stage)
        last: dict[Any, int] = {}
        for command in sorted(found):
            stages = sorted(found[command], key=lambda x: TILE_STAGES.index(r.kinds[x.kind]))
            works = [self._work(command, stage) for stage in stages]
            begins, ends = [add(stage.start_ps) for stage in stages], [add(stage.end_ps) for stage in stages]
            for i, (stage, (quantity, busy)) in enumerate(zip(stages, works, strict=True)):
                stalls = self._stalls(stages, works, i)
                alone = ends[i]
                if not i and stalls:
                    alone_ps = stage.start_ps + int(busy)
                    stalled_ps = max(stages[j].start_ps + ps + busy / stage.n for j, ps in stalls)
                    # What neither explains delays the stage itself, unless it waited for room.
                    alone = add(min(alone_ps, stage.end_ps) if stalled_ps >= alone_ps else stage.end_ps)
                    edge(alone, ends[i])
                edge(begins[i], alone, (quantity, busy))
                for j, ps in stalls:
                    edge(begins[j], ends[i], (works[j][0], ps), (quantity, busy / stage.n))
                c = r.commands[command]
                engine = (c.sip, c.cube, c.pe), r.kinds[stage.kind]
                if engine in last:
                    edge(last[engine], begins[i])
                last[engine] = ends[i]
                if not i:
                    plan = (q.ns("cube.pe.pe_scheduler.tile_ns"), 1.0), (q.ns("cube.pe.pe_mmu.lookup_ns"), 1.0)
                    edge(self.ready[command], begins[i], *plan)
                    continue
                other, (of, work) = stages[i - 1], works[i - 1]
                gap = stage.start_ps - other.start_ps
                if stage.n < other.n:  # an output: behind all its tiles along k, at the pace of each stage in front
                    edge(begins[i - 1], begins[i], (of, min(gap, work / stage.n)))
                    for paced, ps in works[: i - 1]:
                        first = (paced, ps * (1 / stage.n - 1 / other.n)), (of, work / other.n)
                        edge(begins[i - 1], begins[i], *first)
                    if stage.n == 1:
                        edge(ends[i - 1], begins[i])
                else:
                    edge(begins[i - 1], begins[i], (of, float(min(gap, other.busy_ps))))
                last_tile = min(max(0, stage.end_ps - other.end_ps), stage.busy_ps / stage.n)
                edge(ends[i - 1], ends[i], (quantity, last_tile))
            if command in self.done:
                edge(ends[-1], self.done[command])

    def _work(self, command: int, stage: StageWork) -> Term:
        kind = self.r.kinds[stage.kind]
        if kind in STAGE_ENGINES:
            return self._engine(kind, command), float(stage.busy_ps)
        return self.q.stream(stage.route, stage.nbytes)

    def _stalls(self, stages: Sequence[StageWork], works: Sequence[Term], i: int) -> list[tuple[int, float]]:
        """Later stages whose tiles fill the buffers, with their work [ps] before the last tile of stage `i` begins.

        A stage keeps a result for which there is no buffer, and the next one works on a tile.
        """
        tcm = self.r.spec["cube"]["pe"]["pe_tcm"]
        found = []
        for j in range(i + 1, len(stages)):
            n, streamed = stages[j].n, self.r.kinds[stages[i].kind] == "dma_in"
            room = tcm["buffers_per_operand"] + 1 if streamed else tcm["stage_buffers"] + 2
            room += (tcm["stage_buffers"] + (1 if streamed else 2)) * (j - i - 1)
            if stages[i].n >= n > room and self.r.kinds[stages[j].kind] in ("fetch", "gemm"):
                found.append((j, works[j][1] * (n - room) / n))
        return found


def _events(causes: np.ndarray) -> list[tuple[list[int], int]]:
    """Existing candidates of each row of causes, and the last column, which may be what made room."""
    return [([event for event in own if event], last) for *own, last in candidates(causes).tolist()]


class _Timing:
    """A graph as arrays, in topological order."""

    def __init__(self, records: Records) -> None:
        self.quantities = Quantities(records)
        graph = _Graph(records, self.quantities)
        self.quantities.freeze()
        events = graph.events
        times = np.array(events.times, float)
        source, target = np.array(events.sources, np.int64), np.array(events.targets, np.int64)
        times[graph.last] += 0.5  # after everything else
        place = _order(times, source, target)
        times[graph.last] -= 0.5
        keep = place[source] < place[target]
        number = np.cumsum(keep) - 1
        term = keep[np.array(events.term_edge, np.int64)] if events.term_edge else np.zeros(0, bool)
        edge = number[np.array(events.term_edge, np.int64)[term]]
        quantity = np.array(events.term_quantity, np.int64)[term]
        factor = np.array(events.term_factor, float)[term]
        source, target = place[source[keep]], place[target[keep]]
        by_source = np.argsort(source, kind="stable")
        back = np.empty_like(by_source)
        back[by_source] = np.arange(len(by_source))
        source, self._target = source[by_source], target[by_source]
        self._edge, self._quantity, self._factor = back[edge], quantity, factor
        n = len(times)
        self._first = np.searchsorted(source, np.arange(n + 1))
        self._before = np.bincount(self._target, minlength=n)
        one, served = self.quantities.one, place[list(events.served)].astype(np.int64)
        self._server, self._service, self._lead = np.full(n, -1), np.zeros(n), np.zeros(n)
        self._rate, self._last, self._first_flit = np.full(n, one), np.full(n, one), np.full(n, one)
        self._server[served] = [server for server, _ in events.served.values()]
        columns = zip(*(of for _, of in events.served.values()), strict=True)
        for mine, column in zip(
            (self._rate, self._service, self._last, self._first_flit, self._lead), columns, strict=False
        ):
            mine[served] = column
        self._previous = np.full(n, -1)
        for event, previous in events.previous.items():
            self._previous[place[event]] = place[previous]
        self._recorded = np.empty(n)
        self._recorded[place] = times
        # What an edge would overstate is subtracted from it; what no edge explains is the event's own delay.
        weight = self._weights(self.quantities._base)
        room = self._recorded[self._target] - self._recorded[source]
        self._less = np.where((weight > room) & (weight > 0), room / np.where(weight > 0, weight, 1), 1.0)
        self._share, self._least, self._own = np.ones(n), np.zeros(n), np.zeros(n)
        self._retimed(self.quantities._base, self._recorded)
        self.credits = any(cycle for *_, cycle in records.dependencies.links.values())
        self.messages = bool((records.dependencies.transfers["kind"] == PART).any())

    def _weights(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self._edge, self._factor * values[self._quantity], len(self._target))

    def _retimed(self, values: np.ndarray, recorded: np.ndarray | None = None) -> np.ndarray:
        """All times with these quantities; with `recorded` times, fit the delays that reproduce them."""
        weight = self._weights(values) * self._less
        rate = values[self._rate]
        service, lead = self._service * rate, self._lead * rate
        spread = np.where(lead > 0, lead, np.maximum(service, values[self._last] - values[self._first_flit]))
        servers = self._server, service, spread, (lead > 0).astype(np.int64), self._previous
        least, own = self._least, self._own
        if recorded is None:
            least, own = least * rate, own * rate
        return retime(
            self._first, self._target, weight, self._before, *servers, self._share, least, own, recorded=recorded
        )

    def predict(self, ratio: dict[str, float], new: dict[str, float], window: tuple[int, int] | None = None) -> float:
        """Time of the last event [ps] with some fields changed, or the length of a window [ps]."""
        values = self.quantities.on(ratio, new)
        times = self._retimed(values)
        if window is None:
            return float(times[-1])
        start, end = (times[self._recorded <= t].max(initial=0.0) for t in window)
        return float(end - start)


_timings: WeakKeyDictionary[Records, _Timing] = WeakKeyDictionary()


def timing_of(records: Records) -> _Timing:
    """Dependency graph of a run, built once; a StateError if the run was not logged."""
    if records not in _timings:
        check_logged(records)
        _timings[records] = _Timing(records)
    return _timings[records]


def _order(times: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rank of each event by time; among simultaneous events, those that others depend on come first."""
    n = len(times)
    rank = np.zeros(n, np.int64)
    same = times[source] == times[target]
    a, b = source[same], target[same]
    for _ in range(60):  # chains within an instant are short; a cycle would never end
        before = rank.copy()
        np.maximum.at(rank, b, rank[a] + 1)
        if (rank == before).all():
            break
    place = np.empty(n, np.int64)
    place[np.lexsort((np.arange(n), rank, times))] = np.arange(n)
    return place
