"""The dependency graph of a run: its events in recorded order, and what their distances consist of.

Every event has a time; an edge says how long after another event it may be at the earliest. A distance is a sum of
terms, each a coefficient times a *quantity*: what a field of the machine file makes of one unit of it. On the run's
machine the graph gives the recorded times exactly: what the edges do not explain is kept as a delay of the event, what
they would overstate is taken from them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from kernbench._units import ACK_BYTES, flits
from kernbench.analysis._critical_path import critical_path as check_logged
from kernbench.analysis._records import CREDIT, FETCH, PART, READ, WRITE, Records, Stage, Transfer
from kernbench.analysis._what_if._quantities import Quantities
from kernbench.analysis._what_if._retime import retime
from kernbench.analysis.breakdown import COMMAND_KINDS, ENGINES, HOST_KINDS, TILE_STAGES

Term: TypeAlias = tuple[int, float]  # quantity, coefficient
_COMMAND, _M_CPU, _IO_CPU = "cube.pe.pe_cpu.command_ns", "cube.m_cpu.service_ns", "sip.io.io_cpu.service_ns"
_FETCH_GBS, _STORE_GBS = "cube.pe.pe_tcm.read_bw_gbs", "cube.pe.pe_tcm.write_bw_gbs"
_CHAINED = 2  # links of a route on which a transfer follows the one before


class Events:
    """Events and the edges between them, as they are found."""

    def __init__(self) -> None:
        self.times: list[int] = []
        self.sources: list[int] = []
        self.targets: list[int] = []
        self.term_edge: list[int] = []
        self.term_quantity: list[int] = []
        self.term_factor: list[float] = []
        self.waits: dict[int, int] = {}  # the quantity that an event's unexplained delay follows

    def add(self, t: int) -> int:
        """Enter an event at a recorded time."""
        self.times.append(t)
        return len(self.times) - 1

    def edge(self, source: int, target: int, *terms: Term) -> None:
        """Let `target` be at least so long after `source`; an edge against the recorded order is left out."""
        if self.times[source] > self.times[target] or source == target:
            return
        number = len(self.sources)
        self.sources.append(source)
        self.targets.append(target)
        for quantity, factor in terms:
            self.term_edge.append(number)
            self.term_quantity.append(quantity)
            self.term_factor.append(factor)


class _Server:
    """What serves one after another: members are (exit, entry, event, service [ps], terms on the way out)."""

    def __init__(self, quantity: int) -> None:
        self.quantity = quantity
        self.members: list[tuple[float, float, int, float, tuple[Term, ...]]] = []

    def connect(self, events: Events) -> None:
        """Let each member leave after the one before, by its own service or by as much as it did."""
        self.members.sort()
        for (left, _, before, _, out), (exit_, entry, event, service, mine) in pairwise(self.members):
            step = min(exit_ - left, service) if entry < left else service
            back = tuple((quantity, -factor) for quantity, factor in out)
            events.edge(before, event, (self.quantity, max(step, 0.0)), *mine, *back)


class Graph:
    """Builds the events of a run."""

    def __init__(self, records: Records, quantities: Quantities) -> None:
        self.r, self.q, self.events = records, quantities, Events()
        self.kinds = [records.kinds[kind] for kind in records.kind.tolist()]
        self.transfers = records.dependencies.at(slice(None))
        self.start: list[int] = []  # of each transfer: its start, arrival, service, and end
        self.arrived: list[int] = []
        self.served: list[int] = []
        self.end: list[int] = []
        self.by_command: dict[int, list[int]] = defaultdict(list)
        self.issued: dict[int, int] = {}
        self.ready: dict[int, int] = {}
        self.done: dict[int, int] = {}
        self.servers: dict[Any, _Server] = {}
        self.types_known = True
        self.busy = dict(zip(records.links.names, records.links.busy_ps.tolist(), strict=True))
        self._enter_transfers()
        self._enter_commands()
        self._tiles()
        self._tiled_without_tiles()
        self._queues()
        self._programs()
        self._host()
        for server in self.servers.values():
            server.connect(self.events)
        self.last = self.events.add(records.makespan_ps)
        for node in (*self.end, *self.done.values()):
            self.events.edge(node, self.last)

    # -- transfers

    def _enter_transfers(self) -> None:
        add, edge, q = self.events.add, self.events.edge, self.q
        nodes = self.r.dependencies.nodes
        self.chained: dict[tuple[int, bool], list[int]] = {}
        self.busiest: dict[tuple[int, bool], int] = {}
        came: dict[tuple[int, int], int] = {}  # arrivals of reads, by key and time
        for i, x in enumerate(self.transfers):
            self.by_command[x.command].append(i)
            start = add(x.start_ps)
            memory = x.kind in (READ, WRITE, FETCH)
            path = self.r.dependencies.routes[x.route]
            if memory and x.served_ps >= 0:
                arrived, served, end = add(x.arrived_ps), add(x.served_ps), add(x.end_ps)
                slice_ = nodes[path[0]]
                bursts = q.bursts_ps(x.nbytes)
                read = x.kind != WRITE
                access = (q.ns("cube.hbm.access_ns"), 1.0) if read else (q.one, 0.0)
                # The channels are free for the next request before the access latency of a read is over.
                free_ps = max(x.arrived_ps, x.served_ps - int(q.now(access[0]) * access[1]))
                free = add(free_ps) if read else served
                if read:
                    edge(start, arrived, (q.transit(x.route, q.command_bytes, reverse=True), 1.0))
                    edge(arrived, free, (q.memory, min(bursts, free_ps - x.arrived_ps)))
                    edge(free, served, access)
                    # All channels end at once: their last bursts are on the links after that.
                    edge(served, end, (q.transit(x.route, min(x.nbytes, q.wave_bytes)), 1.0))
                    came[x.key, x.arrived_ps] = arrived
                    edge(arrived, end, (q.memory, q.burst_ps), access, (q.transit(x.route, x.nbytes), 1.0))
                    self._on_links(x, x.route, False, x.arrived_ps, end)
                else:
                    edge(start, arrived, (q.transit(x.route, x.nbytes, reverse=True), 1.0))
                    edge(arrived, served, (q.memory, q.burst_ps))
                    flit = q.transit(x.route, min(x.nbytes, q.flit_bytes), reverse=True)
                    edge(start, served, (q.memory, bursts), (flit, 1.0))
                    edge(served, end, (q.transit(x.route, ACK_BYTES), 1.0))
                    self._on_links(x, x.route, True, x.start_ps, arrived)
                if (opener := came.get((x.opener, x.since_ps))) is not None:
                    # The channel was at work since then: for longer than `bursts` where others have less to do.
                    edge(opener, free, (q.memory, free_ps - x.since_ps))
                server = self._server(slice_, q.memory)
                server.members.append((free_ps, x.arrived_ps, free, bursts, ()))
            elif memory:
                arrived = served = start
                end = add(x.end_ps)
                there, back = (q.command_bytes, x.nbytes) if x.kind != WRITE else (x.nbytes, ACK_BYTES)
                edge(start, end, (q.transit(x.route, there, reverse=True), 1.0), (q.transit(x.route, back), 1.0))
                self._on_links(x, x.route, x.kind == WRITE, x.start_ps, end)
            elif x.kind == PART:
                arrived, end = add(x.arrived_ps), add(x.end_ps)
                served = arrived
                edge(start, arrived, (q.transit(x.route, x.nbytes), 1.0))
                self._on_links(x, x.route, False, x.start_ps, arrived)
                where = nodes[path[-1]]
                if where.endswith(".pe_dma"):
                    edge(arrived, end, (q.rate(_STORE_GBS), q.port_ps(_STORE_GBS, x.nbytes)))
                    server = self._server((where, "write"), q.rate(_STORE_GBS))
                    server.members.append((x.end_ps, x.arrived_ps, end, q.port_ps(_STORE_GBS, x.nbytes), ()))
                else:
                    kind = "hbm" if ".hbm_ctrl." in where else "sram"
                    edge(arrived, end, (q.ns(f"cube.pe.pe_ipcq.{kind}_setup_ns"), 1.0))
            else:
                arrived = served = start
                end = add(x.end_ps)
                edge(start, end, (q.transit(x.route, x.nbytes), 1.0))
                self._on_links(x, x.route, False, x.start_ps, end)
            self.start.append(start)
            self.arrived.append(arrived)
            self.served.append(served)
            self.end.append(end)

    def _server(self, key: Any, quantity: int) -> _Server:
        if key not in self.servers:
            self.servers[key] = _Server(quantity)
        return self.servers[key]

    def _on_links(self, x: Transfer, route: int, reverse: bool, from_ps: int, event: int) -> None:
        """Enter a transfer at the busiest links of its way."""
        q, nbytes = self.q, x.nbytes
        hops = q.hops(route, reverse)
        key = route, reverse
        if key not in self.chained:
            ranked = sorted(range(len(hops)), key=lambda i: -self.busy.get(q.link_name(hops[i]), 0))
            self.busiest[key] = ranked[0]
            self.chained[key] = sorted(ranked[:_CHAINED])
            slowest = max(range(len(hops)), key=lambda i: (q.link_ps(hops[i], q.flit_bytes), -i))
            if slowest not in self.chained[key] and len(hops) > 2:
                self.chained[key].append(slowest)
        t = self.events.times[event]
        for at in self.chained[key]:
            out = q.transit(route, min(nbytes, q.flit_bytes), reverse=reverse, first=at + 1)
            up = q.transit(route, min(nbytes, q.flit_bytes), reverse=reverse, last=at)
            service = q.link_ps(hops[at], min(nbytes, q.flit_bytes)) * flits(nbytes, q.flit_bytes)
            quantity = q.link_rate(hops[at])
            server = self._server(hops[at], quantity)
            members = t - q.now(out), from_ps + q.now(up), event, service, ((out, 1.0),)
            server.members.append(members)
        self.events.waits.setdefault(event, q.link_rate(hops[self.busiest[key]]))

    # -- commands

    def _enter_commands(self) -> None:
        add, edge, q, r = self.events.add, self.events.edge, self.q, self.r
        starts, ends, commands, tiles = r.start_ps.tolist(), r.end_ps.tolist(), r.command.tolist(), r.tile.tolist()
        self.rows_of: dict[int, list[int]] = defaultdict(list)
        for i, kind in enumerate(self.kinds):
            command = commands[i]
            if kind in COMMAND_KINDS or (kind == "math" and tiles[i] < 0):
                self.rows_of[command].append(i)
        dependencies = r.dependencies
        self.launch_of: dict[int, int] = {}
        self.pe_of: dict[int, tuple[int, int, int]] = {}
        self.after: dict[int, list[int]] = defaultdict(list)
        for command, other in dependencies.after.tolist():
            self.after[command].append(other)
        for command, issued, launch in dependencies.issued.tolist():
            self.issued[command] = add(issued)
            self.launch_of[command] = launch
            info = r.commands[command]
            self.pe_of[command] = info.sip, info.cube, info.pe
            rows = self.rows_of.get(command)
            if rows:
                self.done[command] = add(max(ends[i] for i in rows))
        for command, issued_node in self.issued.items():
            others = [self.done[other] for other in self.after[command] if other in self.done]
            kind = self.kinds[self.rows_of[command][0]] if command in self.rows_of else ""
            if kind == "recv":
                # The arrival of the message has its own edge.
                others = [self.done[o] for o in self.after[command] if o in self.done and self._kind(o) != "send"]
            times = [self.events.times[node] for node in (issued_node, *others)]
            ready = self.ready[command] = add(max(times))
            edge(issued_node, ready)
            for other in others:
                edge(other, ready)
        lookup = q.ns("cube.pe.pe_mmu.lookup_ns"), 1.0
        channels: dict[Any, list[int]] = defaultdict(list)
        self.tile_transfers: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for i, x in enumerate(self.transfers):
            if x.command not in self.issued or x.kind not in (READ, WRITE):
                continue
            channels[self.pe_of[x.command], x.kind].append(i)
            if x.tile < 0:
                edge(self.ready[x.command], self.start[i], lookup)
                if x.command in self.done:  # not if the run was interrupted before
                    edge(self.end[i], self.done[x.command])
            else:
                self.tile_transfers[x.command, x.tile, x.kind].append(i)
        limits = {READ: q.spec("cube.pe.pe_dma.outstanding_reads"), WRITE: q.spec("cube.pe.pe_dma.outstanding_writes")}
        for (_, kind), rows in channels.items():
            rows.sort(key=lambda i: (self.transfers[i].start_ps, self.transfers[i].key))
            by_end = sorted(rows, key=lambda i: self.transfers[i].end_ps)
            limit = int(limits[kind])
            for n, i in enumerate(rows):
                if n:
                    edge(self.start[rows[n - 1]], self.start[i])
                if n >= limit:
                    edge(self.end[by_end[n - limit]], self.start[i])
        self.begin: dict[int, int] = {}  # of rows of engines
        self.finish: dict[int, int] = {}
        self.leave: dict[int, int] = {}
        for i, kind in enumerate(self.kinds):
            if kind in ENGINES:
                self.begin[i], self.finish[i] = add(starts[i]), add(ends[i])
                self.leave[i] = self.finish[i]
                took = ends[i] - starts[i]
                edge(self.begin[i], self.finish[i], (self._engine(kind, commands[i], took), took))
                if kind == "math" and tiles[i] < 0 and commands[i] in self.ready:
                    edge(self.ready[commands[i]], self.begin[i])
                    edge(self.finish[i], self.done[commands[i]])

    def _kind(self, command: int) -> str:
        rows = self.rows_of.get(command)
        return self.kinds[rows[0]] if rows else ""

    def _engine(self, kind: str, command: int, took_ps: int) -> int:
        """Return the slowdown of a stage of a command that took some time."""
        if kind in ("gemm", "math"):
            info = self.r.commands[command]
            known = info.dtype if kind == "gemm" else info.vector
            self.types_known &= bool(known) or not took_ps
            return self.q.matrix(info.dtype) if kind == "gemm" else self.q.vector(info.vector)
        return self.q.rate(_FETCH_GBS if kind == "fetch" else _STORE_GBS)

    # -- tiles

    def _tiles(self) -> None:
        """Join the stages of each PE by the buffers between them."""
        r, add, edge, q = self.r, self.events.add, self.events.edge, self.q
        commands, tiles, component = r.command.tolist(), r.tile.tolist(), r.component.tolist()
        names = {name: i for i, name in enumerate(r.components)}
        by_component: dict[int, list[int]] = defaultdict(list)
        for i in self.begin:
            by_component[component[i]].append(i)
        stage_buffers = int(q.spec("cube.pe.pe_tcm.stage_buffers"))
        operand_buffers = int(q.spec("cube.pe.pe_tcm.buffers_per_operand"))
        starts, ends = r.start_ps.tolist(), r.end_ps.tolist()
        for pe in sorted({name.rpartition(".pe_gemm")[0] for name in names if name.endswith(".pe_gemm")}):
            fetch, gemm, math, store = stages = [
                by_component.get(names.get(f"{pe}.{e}", -1), []) for e in ENGINES.values()
            ]
            if not any(stages):
                continue
            tiled_math = [i for i in math if tiles[i] >= 0]
            n_of, outputs = (Counter(commands[i] for i in rows) for rows in (fetch, store))
            kt = {c: max(1, n // max(1, outputs.get(c, 1))) for c, n in n_of.items()}
            last = [i for i in gemm if (tiles[i] + 1) % kt.get(commands[i], 1) == 0]
            products, vectors = {commands[i] for i in gemm}, {commands[i] for i in tiled_math}
            alone = [i for i in tiled_math if commands[i] not in products]
            joins = (
                ([i for i in fetch if commands[i] in products], gemm),
                ([i for i in fetch if commands[i] not in products], alone),
                ([i for i in last if commands[i] in vectors], [i for i in tiled_math if commands[i] in products]),
                ([i for i in last if commands[i] not in vectors], [i for i in store if commands[i] not in vectors]),
                (tiled_math, [i for i in store if commands[i] in vectors]),
            )
            for puts, takes in joins:
                for n, put in enumerate(puts):
                    free = takes[n - stage_buffers] if n >= stage_buffers and n - stage_buffers < len(takes) else None
                    if free is not None:
                        leave = self.leave[put] = add(max(ends[put], starts[free]))
                        edge(self.finish[put], leave)
                        edge(self.begin[free], leave)
                    if n < len(takes):
                        edge(self.leave[put], self.begin[takes[n]])
            # Output tiles that wait for the DMA.
            leaving = [i for i in store if (commands[i], tiles[i], WRITE) in self.tile_transfers]
            for n, i in enumerate(leaving):
                writes = self.tile_transfers[commands[i], tiles[i], WRITE]
                if n >= stage_buffers:
                    before = leaving[n - stage_buffers]
                    first = self.tile_transfers[commands[before], tiles[before], WRITE][0]
                    leave = self.leave[i] = add(max(ends[i], self.transfers[first].start_ps))
                    edge(self.finish[i], leave)
                    edge(self.start[first], leave)
                for write in writes:
                    edge(self.leave[i], self.start[write])
                    if commands[i] in self.done:
                        edge(self.end[write], self.done[commands[i]])
            for i in store:
                if (commands[i], tiles[i], WRITE) not in self.tile_transfers and commands[i] in self.done:
                    edge(self.leave[i], self.done[commands[i]])
            for rows in stages:
                for a, b in pairwise(rows):
                    edge(self.leave[a], self.begin[b])
            self._plan(pe, fetch, n_of, kt, operand_buffers)

    def _plan(self, pe: str, fetch: list[int], n_of: dict[int, int], kt: dict[int, int], buffers: int) -> None:
        """Join PE_SCHEDULER's plan with reads of operands, and these with the fetch stage."""
        r, add, edge, q = self.r, self.events.add, self.events.edge, self.q
        tile_ns, lookup = q.ns("cube.pe.pe_scheduler.tile_ns"), (q.ns("cube.pe.pe_mmu.lookup_ns"), 1.0)
        commands, tiles = r.command, r.tile
        row = {(int(commands[i]), int(tiles[i])): i for i in fetch}
        free: int | None = None
        planned: dict[int, int] = {}
        t_free = 0
        for command, n in n_of.items():
            if command not in self.ready:
                continue
            ready = self.ready[command]
            base_ps = max(self.events.times[ready], t_free) + q.now(lookup[0])
            base = planned[command] = add(int(base_ps))
            edge(ready, base, lookup)
            if free is not None:
                edge(free, base, lookup)
            t_free = int(base_ps + n * q.now(tile_ns))
            free = add(t_free)
            edge(base, free, (tile_ns, float(n)))
            for i in range(n):
                reads = self.tile_transfers.get((command, i, READ), ())
                taken = row.get((command, i))
                for read in reads:
                    edge(base, self.start[read], (tile_ns, i + 1.0))
                    # The tile whose buffer it takes: the last one that was fetched by then.
                    before = [row.get((command, i - n)) for n in (buffers, buffers * kt.get(command, 1))]
                    left = [x for x in before if x is not None and r.end_ps[x] <= self.transfers[read].start_ps]
                    if left:
                        edge(self.finish[max(left, key=lambda x: r.end_ps[x])], self.start[read])
                    if taken is not None:
                        edge(self.end[read], self.begin[taken])
                if taken is not None and not reads:
                    edge(base, self.begin[taken], (tile_ns, i + 1.0))

    def _tiled_without_tiles(self) -> None:
        """Join the stages of tiled commands as wholes, where the log does not keep their tiles."""
        r, add, edge, q = self.r, self.events.add, self.events.edge, self.q
        seen = set(r.command[(r.tile >= 0) & r.is_kind(*ENGINES)].tolist())
        found: dict[int, list[Stage]] = defaultdict(list)
        for stage in map(Stage._make, r.dependencies.stages.tolist()):
            if stage.command not in seen and stage.command in self.ready:
                found[stage.command].append(stage)
        last: dict[Any, int] = {}
        for command in sorted(found):
            stages = sorted(found[command], key=lambda x: TILE_STAGES.index(r.kinds[x.kind]))
            before: tuple[int, int, Stage, int] | None = None
            for stage in stages:
                kind = r.kinds[stage.kind]
                if kind in ENGINES:
                    quantity, busy = self._engine(kind, command, stage.busy_ps), float(stage.busy_ps)
                else:
                    quantity, busy = q.stream(stage.route, stage.nbytes)
                begin, end = add(stage.start_ps), add(stage.end_ps)
                edge(begin, end, (quantity, busy))
                engine = self.pe_of[command], kind
                if engine in last:
                    edge(last[engine], begin)
                last[engine] = end
                if before is None:
                    plan = (q.ns("cube.pe.pe_scheduler.tile_ns"), 1.0), (q.ns("cube.pe.pe_mmu.lookup_ns"), 1.0)
                    edge(self.ready[command], begin, *plan)
                else:
                    b, e, other, of = before
                    edge(b, begin, (of, float(min(stage.start_ps - other.start_ps, other.busy_ps))))
                    edge(e, end, (quantity, float(min(max(0, stage.end_ps - other.end_ps), stage.busy_ps))))
                before = begin, end, stage, quantity
            assert before is not None
            if command in self.done:
                edge(before[1], self.done[command])

    # -- queues between PEs

    def _queues(self) -> None:
        r, add, edge, q = self.r, self.events.add, self.events.edge, self.q
        parts: dict[tuple[int, int], int] = {}
        by_key = {x.key: i for i, x in enumerate(self.transfers) if x.key >= 0}
        fetches: dict[tuple[int, int], list[int]] = defaultdict(list)
        lanes: dict[int, list[int]] = defaultdict(list)
        for i, x in enumerate(self.transfers):
            if x.kind == PART:
                parts[x.command, x.tile] = i
                lanes[x.route].append(i)
            elif x.kind == FETCH:
                fetches[x.command, x.tile].append(i)
        for (command, tile), i in parts.items():
            x = self.transfers[i]
            reads = fetches.get((command, tile), [])
            firsts = [self.start[read] for read in reads] or [self.start[i]]
            for read in reads:
                edge(self.end[read], self.start[i])
            for first in firsts:
                if command in self.ready:
                    edge(self.ready[command], first)
                if x.opener in by_key:
                    edge(self.end[by_key[x.opener]], first)
            if command in self.done:
                edge(self.end[i], self.done[command])
        # Parts leave in order; a credit frees the slot of the part that many before which the log shows to have waited.
        credits: dict[tuple[int, int], list[int]] = defaultdict(list)
        routes = r.dependencies.routes
        for i, x in enumerate(self.transfers):
            if x.kind == CREDIT:
                credits[routes[x.route][-1], routes[x.route][0]].append(i)
        for route, rows in lanes.items():
            rows.sort(key=lambda i: (self.transfers[i].start_ps, self.transfers[i].key))
            for a, b in pairwise(rows):
                edge(self.start[a], self.start[b])
            back = credits.get((routes[route][0], routes[route][-1]), [])
            back.sort(key=lambda i: self.transfers[i].end_ps)
            place = {i: n for n, i in enumerate(back)}
            gaps = [
                n - place[by_key[self.transfers[i].opener]]
                for n, i in enumerate(rows)
                if by_key.get(self.transfers[i].opener) in place
            ]
            if gaps:
                gap = min(gaps)
                for n, i in enumerate(rows):
                    if 0 <= n - gap < len(back):
                        edge(self.end[back[n - gap]], self.start[i])
        # Receives.
        users: dict[int, list[int]] = defaultdict(list)
        for command, others in self.after.items():
            for other in others:
                users[other].append(command)
        reads_of: dict[Any, list[tuple[int, int, int, int]]] = defaultdict(list)
        starts, ends, nbytes, tiles = r.start_ps.tolist(), r.end_ps.tolist(), r.nbytes.tolist(), r.tile.tolist()
        self.slot_read: dict[tuple[int, int], int] = {}
        for i, kind in enumerate(self.kinds):
            command = int(r.command[i])
            if kind != "recv" or command not in self.ready:
                continue
            begin, end = add(starts[i]), add(ends[i])
            self.slot_read[command, tiles[i]] = end
            sends = [c for c in self.after[command] if self._kind(c) == "send"]
            edge(self.ready[command], begin)
            for send in sends:
                if (send, tiles[i]) in parts:
                    edge(self.end[parts[send, tiles[i]]], begin)
            port = q.port_ps(_FETCH_GBS, nbytes[i])
            took = ends[i] - starts[i]
            edge(begin, end, (q.rate(_FETCH_GBS), float(min(port, took))), (q.one, float(max(0, took - port))))
            edge(end, self.done[command])
            reads_of[self.pe_of[command]].append((starts[i], ends[i], begin, end))
        for own in reads_of.values():
            own.sort()
            for (_, ended, _, before), (start, _, begin, _) in pairwise(own):
                if ended <= start:
                    edge(before, begin)
        at_time: dict[tuple[Any, int], int] = {}
        for command, node in self.issued.items():
            at_time[self.pe_of[command], self.events.times[node]] = node
        for i, x in enumerate(self.transfers):
            if x.kind != CREDIT or x.command not in self.done:
                continue
            key = x.command, x.tile
            sources = [self.slot_read[key]] if key in self.slot_read else [self.done[x.command]]
            sources += [self.done[c] for c in users[x.command] if c in self.done]
            same = at_time.get((self.pe_of[x.command], x.start_ps))
            best = max((self.events.times[s] for s in sources if self.events.times[s] <= x.start_ps), default=-1)
            if same is not None and best < x.start_ps:
                sources.append(same)
            for source in sources:
                edge(source, self.start[i])

    # -- programs, launches, the host

    def _programs(self) -> None:
        edge, q = self.events.edge, self.q
        command_ns = q.ns(_COMMAND), 1.0
        times = self.events.times
        self.programs: dict[tuple[Any, int], list[int]] = defaultdict(list)
        for command in self.issued:
            self.programs[self.pe_of[command], self.launch_of[command]].append(command)
        step = q.now(command_ns[0])
        for commands in self.programs.values():
            ended: dict[int, int] = {}
            for n, command in enumerate(commands):
                node = self.issued[command]
                if n:
                    edge(self.issued[commands[n - 1]], node, command_ns)
                    if times[node] > times[self.issued[commands[n - 1]]] + step:
                        cause = ended.get(int(times[node] - step))
                        if cause is not None:
                            edge(self.done[cause], node, command_ns)
                if command in self.done:
                    ended[times[self.done[command]]] = command

    def _host(self) -> None:
        r, add, edge, q = self.r, self.events.add, self.events.edge, self.q
        times = self.events.times
        nodes, routes = r.dependencies.nodes, r.dependencies.routes
        begin_of = dict(r.dependencies.begin.tolist())
        rows = [i for i, kind in enumerate(self.kinds) if kind in HOST_KINDS]
        starts, ends = r.start_ps.tolist(), r.end_ps.tolist()
        opened: dict[int, int] = {}
        closed: list[tuple[int, int]] = []
        for i in sorted(rows, key=lambda i: (starts[i], ends[i])):
            command, kind = int(r.command[i]), self.kinds[i]
            begin, end = add(starts[i]), add(ends[i])
            opened[command] = begin
            before = [(e, node) for e, node in closed if e <= starts[i]]
            if before:
                latest = max(before)[0]
                for e, node in before:
                    if e == latest:
                        edge(node, begin, (q.one, float(starts[i] - e)))
            closed.append((ends[i], end))
            edge(begin, end)
            self.done[command] = end
            mine = self.by_command.get(command, [])
            if kind in ("h2d", "d2h"):
                for x in mine:
                    edge(begin, self.start[x])
                    edge(self.end[x], end)
                continue
            into: dict[str, list[int]] = defaultdict(list)
            outof: dict[str, list[int]] = defaultdict(list)
            for x in mine:
                path = routes[self.transfers[x].route]
                outof[nodes[path[0]]].append(x)
                into[nodes[path[-1]]].append(x)
            service = {"io_cpu": _IO_CPU, "m_cpu": _M_CPU, "pe_cpu": _COMMAND}
            decoded: dict[str, int] = {}
            common: int | None = None
            for name, arrivals in into.items():
                last = name.rpartition(".")[2]
                if name == "host":
                    for x in arrivals:
                        edge(self.end[x], end)
                    continue
                request = [x for x in arrivals if self._from_above(nodes[routes[self.transfers[x].route][0]], name)]
                answers = [x for x in arrivals if x not in request]
                cost = q.ns(service[last]), 1.0
                for x in outof[name]:
                    target = nodes[routes[self.transfers[x].route][-1]]
                    up = self._from_above(target, name)
                    if last == "pe_cpu":
                        continue
                    for source in answers if up else request:
                        edge(self.end[source], self.start[x], *(() if up else (cost,)))
                if last == "pe_cpu" and request:
                    arrival = self.end[request[0]]
                    node = decoded[name] = add(int(times[arrival] + q.now(cost[0])))
                    edge(arrival, node, cost)
            for x in outof["host"]:
                edge(begin, self.start[x])
            if command in begin_of and decoded:
                common = add(begin_of[command])
                for node in decoded.values():
                    edge(node, common)
            for name, node in decoded.items():
                pe = name.removesuffix(".pe_cpu")
                s, c, p = (int(part.lstrip("sipcube")) for part in pe.split("."))
                commands = self.programs.get(((s, c, p), command), [])
                started = node
                if common is not None:
                    started = add(max(times[node], times[common]))
                    edge(node, started)
                    edge(common, started)
                if commands:
                    edge(started, self.issued[commands[0]], (q.ns(_COMMAND), 1.0))
                for x in outof[name]:
                    edge(started, self.start[x])
                    for c_ in commands:
                        edge(self.issued[c_], self.start[x])
                        if c_ in self.done:
                            edge(self.done[c_], self.start[x])

    @staticmethod
    def _from_above(src: str, dst: str) -> bool:
        """Return whether `src` is nearer to the host than `dst`."""
        rank = {"host": 0, "io_cpu": 1, "m_cpu": 2, "pe_cpu": 3}
        return rank[src.rpartition(".")[2]] < rank[dst.rpartition(".")[2]]


class Timing:
    """A graph as arrays, in an order in which every event comes after those that it depends on."""

    def __init__(self, records: Records) -> None:
        self.quantities = Quantities(records)
        graph = Graph(records, self.quantities)
        self.quantities.freeze()
        events = graph.events
        times = np.array(events.times, float)
        source, target = np.array(events.sources, np.int64), np.array(events.targets, np.int64)
        times[graph.last] += 0.5  # after all else
        place = _order(times, source, target)
        times[graph.last] -= 0.5
        keep = place[source] < place[target]
        number = np.cumsum(keep) - 1
        term = keep[np.array(events.term_edge, np.int64)] if events.term_edge else np.zeros(0, bool)
        edge = number[np.array(events.term_edge, np.int64)[term]]
        quantity = np.array(events.term_quantity, np.int64)[term]
        factor = np.array(events.term_factor, float)[term]
        source, target = place[source[keep]], place[target[keep]]
        by_target = np.argsort(target, kind="stable")
        back = np.empty_like(by_target)
        back[by_target] = np.arange(len(by_target))
        self._source, target = source[by_target], target[by_target]
        self._edge, self._quantity, self._factor = back[edge], quantity, factor
        self._first = np.searchsorted(target, np.arange(len(times) + 1))
        recorded = np.empty(len(times))
        recorded[place] = times
        # What an edge would overstate is taken from it, what none explains is the event's own.
        weight = self._weights(self.quantities._base)
        room = recorded[target] - recorded[self._source]
        self._less = np.where((weight > room) & (weight > 0), room / np.where(weight > 0, weight, 1), 1.0)
        reached = recorded[self._source] + weight * self._less
        latest = np.full(len(times), -np.inf)
        np.maximum.at(latest, target, reached)
        self._own = np.where(np.isfinite(latest), recorded - latest, recorded)
        self._waits = np.full(len(times), self.quantities.one)
        for event, waited in events.waits.items():
            self._waits[place[event]] = waited
        self._recorded = recorded
        self.n_edges = len(self._source)
        self.types_known = graph.types_known
        self.messages = bool((records.dependencies.transfers["kind"] == PART).any())

    def _weights(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self._edge, self._factor * values[self._quantity], len(self._source))

    def predict(self, ratio: dict[str, float], new: dict[str, float], window: tuple[int, int] | None = None) -> float:
        """Return the time of the last event [ps] with some fields changed; with a window, how long that takes then."""
        values = self.quantities.on(ratio, new)
        weight = self._weights(values) * self._less
        own = self._own * values[self._waits]
        if window is None:
            return retime(self._first, self._source, weight, own)
        start, end = (self._until(t, weight, own) for t in window)
        return end - start

    def _until(self, t: int, weight: np.ndarray, own: np.ndarray) -> float:
        """Return when all events that were recorded until t have happened."""
        n = int(np.searchsorted(self._recorded, t, "right"))
        edges = int(self._first[n])
        first = np.append(self._first[: n + 1], edges + n)  # one more event, after all of them
        source = np.append(self._source[:edges], np.arange(n))
        return retime(first, source, np.append(weight[:edges], np.zeros(n)), np.append(own[:n], 0.0))


_timings: WeakKeyDictionary[Records, Timing] = WeakKeyDictionary()


def timing_of(records: Records) -> Timing:
    """Return the dependency graph of a run, made once.

    Raises
    ------
    KernbenchError
        If the run was not logged.
    """
    if records not in _timings:
        check_logged(records)
        _timings[records] = Timing(records)
    return _timings[records]


def _order(times: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the place of each event in an order by time; of one time, those that others depend on come first."""
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
