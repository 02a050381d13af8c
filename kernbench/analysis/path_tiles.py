"""The engines' part of the critical path: tiles from stage to stage, and their transactions with memories.

The path is found from the end backwards. A step's start is asked for its cause: the same engine's previous work, an
operand's arrival, a full buffer behind, the DMA channel's limit, PE_CPU, PE_SCHEDULER, a message, the host. A
memory that was busy without a gap is followed to the transaction that found it idle.
"""

from __future__ import annotations

from kernbench.analysis.causes import FETCH, READ, WRITE
from kernbench.analysis.path_queues import QueuePath
from kernbench.analysis.trail import ENGINE_PARTS, Next
from kernbench.analysis.way import Part


class Walk(QueuePath):
    """The whole walk, from the makespan to 0."""

    def left(self, row: int) -> Next:
        """Say what let a tile leave its stage: its service, or the stage behind that took another tile."""
        if self.r.end_ps[row] == self.t:
            return "served", (row,)
        self.because("a full buffer behind")
        pe = self.pe(self.pe_name(int(self.r.command[row])))
        taken = pe.stages.taken.get(row)
        if isinstance(taken, tuple):
            for i in pe.of_tile.get((*taken, WRITE), ()):
                if self.m["start_ps"][i] == self.t:
                    return "sent", (i,)
        elif taken is not None:
            return "taken", (taken,)
        return self.lost()

    def served(self, row: int) -> Next:
        """Take the work of an engine as a step."""
        start, kind = int(self.r.start_ps[row]), self.kind_of(row)
        tile, info = int(self.r.tile[row]), self.r.commands[self.r.command[row]]
        what = f"{ENGINE_PARTS[kind]} of {info.name}" + (f", tile {tile}" if tile >= 0 else "")
        self.add(start, what, [Part(ENGINE_PARTS[kind], self.name_of(row), self.t - start)])
        return "taken", (row,)

    def taken(self, row: int) -> Next:
        """Say why an engine began a piece of work: the work before it, its operands, or its command."""
        command, tile = int(self.r.command[row]), int(self.r.tile[row])
        stages = self.pe(self.pe_name(command)).stages
        before = stages.before.get(row)
        if before is not None and stages.left.get(before, self.r.end_ps[before]) == self.t:
            self.because("the engine's previous work")
            return "left", (before,)
        source = stages.source.get(row)
        if source is not None and stages.left.get(source, self.r.end_ps[source]) == self.t:
            self.because("the tile's arrival")
            return "left", (source,)
        if tile < 0:
            if self.ready_ps(command) == self.t:
                return "ready", (command,)
            return "engines", (command,)
        for i in self.pe(self.pe_name(command)).of_tile.get((command, tile, READ), ()):
            if self.m["end_ps"][i] == self.t:
                self.because("an operand's arrival")
                return "move_end", (i,)
        if source is None and self.planned_ps(command, tile) == self.t:
            return "planned", (command, tile)
        return self.lost()

    def plan_base(self, command: int) -> tuple[int, int | None]:
        """Return when PE_SCHEDULER began to plan a command, and the command planned until then, if it waited."""
        pe = self.pe(self.pe_name(command))
        if not pe.plan:
            tile, lookup = self.spec_ps("cube.pe.pe_scheduler.tile_ns"), self.spec_ps("cube.pe.pe_mmu.lookup_ns")
            free, last = 0, None
            for c in pe.commands:
                if c in pe.stages.tiles:
                    ready = self.ready_ps(c)
                    base = max(ready, free) + lookup
                    pe.plan[c] = base, last if free > ready else None
                    free, last = base + pe.stages.tiles[c] * tile, c
        return pe.plan.get(command, (self.ready_ps(command) + self.spec_ps("cube.pe.pe_mmu.lookup_ns"), None))

    def planned_ps(self, command: int, tile: int) -> int:
        """Return when PE_SCHEDULER had planned a tile."""
        return self.plan_base(command)[0] + (tile + 1) * self.spec_ps("cube.pe.pe_scheduler.tile_ns")

    def planned(self, command: int, tile: int) -> Next:
        """Take the planning of a command's tiles as a step."""
        self.because("PE_SCHEDULER's plan")
        base, before = self.plan_base(command)
        scheduler = f"{self.pe_name(command)}.pe_scheduler"
        self.add(base, f"planning of {tile + 1} tiles", [Part("plan", scheduler, self.t - base)])
        lookup = self.spec_ps("cube.pe.pe_mmu.lookup_ns")
        mmu = Part("lookup", f"{self.pe_name(command)}.pe_mmu", lookup)
        self.add(base - lookup, "address look-up", [mmu])
        if before is not None:
            return "planned", (before, self.pe(self.pe_name(command)).stages.tiles[before] - 1)
        return "ready", (command,)

    def move_end(self, move: int) -> Next:
        """Take a transaction as steps: the way back, the memory as long as it had no gap, and the way there."""
        m, kind = self.m, int(self.m["kind"][move])
        route, nbytes = int(m["route"][move]), int(m["nbytes"][move])
        memory = self.ways.ends(route)[0]
        read = kind in (READ, FETCH)
        what = f"{nbytes:,} B {'from' if read else 'to'} {memory}"
        served, arrived, start = (int(m[x][move]) for x in ("served_ps", "arrived_ps", "start_ps"))
        if served < 0:
            self.add(start, what, self.ways.parts(route, nbytes, self.t - start, reverse=kind == WRITE))
            return "sent", (move,)
        opener = self.by_key.get(int(m["opener"][move]))
        since = int(m["since_ps"][move])
        alone = opener is None or opener == move
        if alone and read and self.ways.rate_gbs(route) * (served - arrived) < nbytes * 1000:
            # The links are slower than the memory: what they carry at the same time is not the memory's.
            parts = self.ways.parts(route, 0, arrived - start, reverse=True)
            self.add(start, what, parts + self.ways.parts(route, nbytes, self.t - arrived))
            return "sent", (move,)
        back = nbytes if read else 16
        self.add(served, f"{what}: way back", self.ways.parts(route, back, self.t - served))
        if opener is None:
            opener, since = move, arrived
        self.add(since, f"{memory} at work", [Part("memory", memory, self.t - since)])
        self.because("its request")
        start, nbytes = int(m["start_ps"][opener]), int(m["nbytes"][opener])
        there = nbytes if m["kind"][opener] == WRITE else 0
        way = self.ways.parts(int(m["route"][opener]), there, self.t - start, reverse=True)
        self.add(start, f"request to {memory}", way)
        return "sent", (opener,)

    def sent(self, move: int) -> Next:
        """Say why a request was sent when it was."""
        m, command, tile = self.m, int(self.m["command"][move]), int(self.m["tile"][move])
        if command not in self.issued:
            return "host_start", (self.op_row[command],)
        pe = self.pe(self.pe_name(command))
        kind = int(m["kind"][move])
        if kind == FETCH:
            return "fetched", (move, command)
        if tile < 0:
            lookup = self.spec_ps("cube.pe.pe_mmu.lookup_ns")
            if self.ready_ps(command) + lookup == self.t:
                self.add(
                    self.t - lookup, "address look-up", [Part("lookup", f"{self.pe_name(command)}.pe_mmu", lookup)]
                )
                return "ready", (command,)
        elif kind == READ:
            if self.planned_ps(command, tile) == self.t:
                return "planned", (command, tile)
            buffers = int(self.spec("cube.pe.pe_tcm.buffers_per_operand"))
            for back in {buffers, buffers * pe.stages.kt.get(command, 1)}:
                row = pe.stages.row.get((command, tile - back, "f"))
                if row is not None and pe.stages.left.get(row, self.r.end_ps[row]) == self.t:
                    self.because("a free tile buffer")
                    return "left", (row,)
        else:
            row = pe.stages.row.get((command, tile, "s"))
            if row is not None and pe.stages.left.get(row, self.r.end_ps[row]) == self.t:
                self.because("the tile's arrival")
                return "left", (row,)
        return self.channel(move, pe.channel[kind], pe.place[move])

    def channel(self, move: int, channel: list[int], at: int) -> Next:
        """Say what a request waited for in its DMA channel: the one before it, or one to complete."""
        if at and self.m["start_ps"][channel[at - 1]] == self.t:
            return "sent", (channel[at - 1],)
        for other in reversed(channel[:at]):
            if self.m["end_ps"][other] == self.t:
                self.because("the limit of outstanding requests")
                return "move_end", (other,)
        return "engines", (int(self.m["command"][move]),)
