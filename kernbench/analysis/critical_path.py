"""The critical path of a run: steps and waits, each beginning where its cause ended, from 0 to the makespan.

It is found from the end backwards. A step's start is asked for its cause: the same engine's previous work, an
operand's arrival, a full buffer behind, the DMA channel's limit, PE_CPU, PE_SCHEDULER, a message, the host. A
memory that was busy without a gap is followed to the transaction that found it idle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernbench.analysis.causes import MESSAGE, READ, WRITE
from kernbench.analysis.records import Records
from kernbench.analysis.stages import Stages, first_writes
from kernbench.analysis.way import Part, Ways
from kernbench.errors import KernbenchError
from kernbench.units import ns_to_ps

HOST_KINDS = ("launch", "h2d", "d2h", "map")
_ENGINE_PARTS = {"fetch": "fetch", "gemm": "matrix", "math": "vector", "store_tcm": "store"}
UNKNOWN = "the log does not say"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the path: when, what, why it began then, and the parts that its time went to."""

    start_ps: int
    end_ps: int
    what: str
    parts: tuple[Part, ...]
    because: str = ""


@dataclass(frozen=True)
class CriticalPath:
    """A chain of steps from 0 to the makespan without gaps; their times sum to it."""

    steps: tuple[Step, ...]
    makespan_ps: int

    def parts(self) -> Counter[tuple[str, str]]:
        """Return the time [ps] of each (kind, resource) on the path; the values sum to the makespan."""
        total: Counter[tuple[str, str]] = Counter()
        for step in self.steps:
            for part in step.parts:
                total[part.kind, part.resource] += part.ps
        return total

    def because(self) -> Counter[str]:
        """Return how many steps began for each reason."""
        return Counter(step.because for step in self.steps if step.because)


Next = tuple[Callable[..., Any], tuple[Any, ...]] | None


def critical_path(records: Records) -> CriticalPath:
    """Return the critical path of a run.

    Raises
    ------
    KernbenchError
        If the run was not logged.
    """
    if not len(records) and records.makespan_ps:
        raise KernbenchError('this run was not logged, so nothing says why; run it with log="operation" or log="tile"')
    if records.makespan_ps and not records.spec:
        raise KernbenchError("these records do not hold the machine they were made on; run the bench again")
    return _Walk(records).path()


@dataclass
class _Pe:
    """What the walk needs of one PE, made when it first comes there."""

    stages: Stages
    moves: list[int]
    commands: list[int]
    channel: dict[int, list[int]] = field(default_factory=dict)


class _Walk:
    """From the end of a run to its beginning. `t` is where it stands; what returns a `Next` says where to go on."""

    def __init__(self, records: Records) -> None:
        self.r, self.causes = records, records.causes
        self.m = records.causes.moves
        self.ways = Ways(records.causes, records.links)
        self.t = records.makespan_ps
        self.found: list[list[Any]] = []
        self.kinds = {name: i for i, name in enumerate(records.kinds)}
        self.issued = dict(records.causes.issued.tolist())
        self.begin = dict(records.causes.begin.tolist())
        self.after: dict[int, list[int]] = {}
        for command, other in records.causes.after.tolist():
            self.after.setdefault(command, []).append(other)
        self.done, self.op_row = self._completions()
        self.by_key = {key: i for i, key in enumerate(self.m["key"].tolist()) if key >= 0}
        order = np.argsort(self.m["command"], kind="stable")
        self.moves_order, self.moves_command = order, self.m["command"][order]
        self.pes: dict[str, _Pe] = {}
        self.seen: set[tuple[Any, ...]] = set()

    # -- the machine's numbers

    def spec_ps(self, key: str) -> int:
        """Return a time of the machine file [ps]."""
        return ns_to_ps(float(self.spec(key)))

    def spec(self, key: str) -> Any:
        """Return a value of the machine file."""
        value: Any = self.r.spec
        for name in key.split("."):
            value = value[name]
        return value

    # -- look-ups

    def _completions(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return when each command was complete, and the row that says so."""
        r = self.r
        whole = np.isin(r.kind, [self.kinds[k] for k in ("load", "store", "composite", *HOST_KINDS) if k in self.kinds])
        whole |= (r.kind == self.kinds.get("math", -1)) & (r.tile < 0)
        rows = np.flatnonzero(whole).tolist()
        return (
            {int(r.command[i]): int(r.end_ps[i]) for i in rows},
            {int(r.command[i]): i for i in rows},
        )

    def moves_of(self, command: int) -> list[int]:
        """Return the moves of a command."""
        low, high = np.searchsorted(self.moves_command, [command, command + 1])
        found: list[int] = self.moves_order[low:high].tolist()
        return found

    def pe_name(self, command: int) -> str:
        """Return the PE that a command belongs to."""
        c = self.r.commands[command]
        return f"sip{c.sip}.cube{c.cube}.pe{c.pe}"

    def pe(self, name: str) -> _Pe:
        """Return what is known of a PE."""
        found = self.pes.get(name)
        if found is None:
            commands = [c for c in self.issued if self.pe_name(c) == name]
            moves = [i for c in commands for i in self.moves_of(c)]
            writes = first_writes(self.m, moves)
            stages = Stages(self.r, name, writes, int(self.spec("cube.pe.pe_tcm.stage_buffers")))
            channel = {
                kind: sorted((i for i in moves if self.m["kind"][i] == kind), key=lambda i: int(self.m["key"][i]))
                for kind in (READ, WRITE)
            }
            found = self.pes[name] = _Pe(stages, moves, commands, channel)
        return found

    def name_of(self, row: int) -> str:
        """Return the component of a row."""
        return self.r.components[self.r.component[row]]

    # -- the chain

    def path(self) -> CriticalPath:
        """Walk, and return the steps in order of time."""
        step: Next = self.run_end()
        while step is not None:
            key = (step[0].__name__, step[1], self.t)
            step = self.lost(step[1]) if key in self.seen else step[0](*step[1])
            self.seen.add(key)
        self.add(0, "the program", [Part("wait", UNKNOWN, self.t)])
        steps = tuple(Step(a, b, what, tuple(parts), because) for a, b, what, parts, because in reversed(self.found))
        return CriticalPath(steps, self.r.makespan_ps)

    def add(self, start: int, what: str, parts: list[Part]) -> None:
        """Put a step in front of what has been found; it begins at `start` and ends where the walk stands."""
        if start < self.t:
            self.found.append([start, self.t, what, parts, ""])
            self.t = start

    def because(self, reason: str) -> None:
        """Note why the step found last began when it did."""
        if self.found and not self.found[-1][4]:
            self.found[-1][4] = reason

    def lost(self, args: tuple[Any, ...] = ()) -> Next:
        """Go on where the log does not tell the cause: with the latest end before of anything."""
        self.because(UNKNOWN)
        ends = self.r.end_ps
        inside = np.flatnonzero(ends < self.t)
        host = np.isin(self.r.kind, [self.kinds[k] for k in HOST_KINDS if k in self.kinds])
        inside = inside[~host[inside]]
        open_ops = np.flatnonzero(host & (self.r.start_ps < self.t) & (ends >= self.t))
        start = int(self.r.start_ps[open_ops].max(initial=0))
        inside = inside[ends[inside] > start]
        if not len(inside):
            self.add(start, "wait", [Part("wait", UNKNOWN, self.t - start)])
            return (self.host_start, (int(open_ops[np.argmax(self.r.start_ps[open_ops])]),)) if len(open_ops) else None
        row = int(inside[np.argmax(ends[inside])])
        end = int(ends[row])
        self.add(end, "wait", [Part("wait", UNKNOWN, self.t - end)])
        command = int(self.r.command[row])
        if self.done.get(command) == end:
            return self.command_end, (command,)
        if self.r.kinds[self.r.kind[row]] in _ENGINE_PARTS:
            return self.served, (row,)
        start = int(self.r.start_ps[row])
        self.add(start, self.r.kinds[self.r.kind[row]], [Part("wait", self.name_of(row), self.t - start)])
        return self.lost, ()

    # -- the host

    def run_end(self) -> Next:
        """Begin with the host's operation that ended last."""
        rows = self.host_rows(self.t)
        if not rows:
            return self.lost() if len(self.r) else None
        row = max(rows, key=lambda i: int(self.r.end_ps[i]))
        end = int(self.r.end_ps[row])
        self.add(end, "after the last operation", [Part("wait", "host", self.t - end)])
        return self.host_end, (row,)

    def host_rows(self, until: int) -> list[int]:
        """Return the host's operations that ended by `until`."""
        host = np.isin(self.r.kind, [self.kinds[k] for k in HOST_KINDS if k in self.kinds])
        found: list[int] = np.flatnonzero(host & (self.r.end_ps <= until)).tolist()
        return found

    def host_end(self, row: int) -> Next:
        """Say how the host came to know that its operation was complete."""
        command, kind = int(self.r.command[row]), self.r.kinds[self.r.kind[row]]
        if kind in ("launch", "map"):
            return self.answer, (command, "host")
        for move in self.moves_of(command):
            if self.m["end_ps"][move] == self.t:
                return self.move_end, (move,)
        self.add(int(self.r.start_ps[row]), kind, [Part("wait", "host", self.t - int(self.r.start_ps[row]))])
        return self.host_start, (row,)

    def host_start(self, row: int) -> Next:
        """Say what the host waited for before it asked: an operation before, or nothing."""
        if not self.t:
            return None
        self.because("the operation before")
        sip = self.r.commands[self.r.command[row]].sip
        before = [i for i in self.host_rows(self.t) if i < row and self.r.end_ps[i] == self.t]
        if not before:
            before = [i for i in self.host_rows(self.t) if i != row and self.r.start_ps[i] < self.t]
        if not before:
            return None
        one = max(before, key=lambda i: (int(self.r.end_ps[i]), self.r.commands[self.r.command[i]].sip == sip, i))
        end = int(self.r.end_ps[one])
        self.add(end, "the program", [Part("wait", "host", self.t - end)])
        return self.host_end, (one,)

    # -- messages

    def message(self, command: int, *, src: str = "", dst: str = "", end: int | None = None) -> int | None:
        """Return a message of a launch or a map between nodes; `end` is when it arrived."""
        for i in self.moves_of(command):
            if self.m["kind"][i] != MESSAGE or (end is not None and self.m["end_ps"][i] != end):
                continue
            a, b = self.ways.ends(int(self.m["route"][i]))
            if a.endswith(src) and b.endswith(dst) and (not dst or b == dst or dst.startswith(".")):
                return i
        return None

    def add_message(self, move: int) -> None:
        """Add the way of a message."""
        start, nbytes = int(self.m["start_ps"][move]), int(self.m["nbytes"][move])
        route = int(self.m["route"][move])
        src, dst = self.ways.ends(route)
        self.add(start, f"message {src} to {dst}", self.ways.parts(route, nbytes, self.t - start))

    def answer(self, command: int, dst: str) -> Next:
        """Follow the completion that came last, back to the PE that sent it."""
        self.because("the last completion" if dst == "host" else "the last answer")
        move = self.message(command, dst=dst, end=self.t)
        if move is None:
            return self.lost, (command,)
        src = self.ways.ends(int(self.m["route"][move]))[0]
        self.add_message(move)
        if not src.endswith(".pe_cpu"):
            return self.answer, (command, src)
        self.because("the program's end")
        if command in self.begin:
            return self.program_end, (src, command)
        return self.decoded, (src, command)

    def decoded(self, cpu: str, command: int) -> Next:
        """Follow the copy that a PE_CPU has just decoded, back to the host."""
        for key in ("cube.pe.pe_cpu.command_ns", "cube.m_cpu.service_ns", "sip.io.io_cpu.service_ns"):
            move = self.message(command, dst=cpu)
            if move is None:
                return self.lost, (command,)
            arrived = int(self.m["end_ps"][move])
            service = min(self.spec_ps(key), self.t - arrived)
            parts = [Part("cpu", cpu, service), Part("queueing", cpu, self.t - arrived - service)]
            self.add(arrived, f"{cpu} takes the message", [p for p in parts if p.ps])
            self.because("its message")
            self.add_message(move)
            cpu = self.ways.ends(int(self.m["route"][move]))[0]
        return self.host_start, (self.op_row[command],)

    def program_start(self, cpu: str, command: int) -> Next:
        """Say why a program began: the common start, or its own late message."""
        self.because("the launch")
        service = self.spec_ps("cube.pe.pe_cpu.command_ns")
        if self.t > self.begin[command]:
            return self.decoded, (cpu, command)
        for i in self.moves_of(command):
            node = self.ways.ends(int(self.m["route"][i]))[1]
            if self.m["kind"][i] == MESSAGE and node.endswith(".pe_cpu") and self.m["end_ps"][i] + service == self.t:
                return self.decoded, (node, command)
        first = self.message(command, src=".io.io_cpu")
        if first is None:
            return self.lost, (command,)
        handed = int(self.m["start_ps"][first])
        self.add(handed, "until the common start", [Part("start", "the launch's last PE", self.t - handed)])
        move = self.message(command, src="host")
        if move is None:
            return self.lost, (command,)
        arrived = int(self.m["end_ps"][move])
        self.add(arrived, "io_cpu", [Part("cpu", self.ways.ends(int(self.m["route"][move]))[1], self.t - arrived)])
        self.add_message(move)
        return self.host_start, (self.op_row[command],)

    # -- programs

    def program_end(self, cpu: str, launch: int) -> Next:
        """Say what a program's end waited for: the last of its commands."""
        commands = self.in_launch(cpu.removesuffix(".pe_cpu"), launch)
        for command in reversed(commands):
            if self.done.get(command) == self.t:
                return self.command_end, (command,)
        if commands and self.issued[commands[-1]] == self.t:
            return self.issue, (commands[-1],)
        return self.program_start, (cpu, launch)

    def in_launch(self, pe: str, launch: int) -> list[int]:
        """Return the commands of a PE's program, in order."""
        start, end = self.r.start_ps[self.op_row[launch]], self.r.end_ps[self.op_row[launch]]
        return [c for c in self.pe(pe).commands if start < self.issued[c] <= end]

    def launch_of(self, command: int) -> int:
        """Return the launch that a command belongs to."""
        sip = self.r.commands[command].sip
        for launch in self.begin:
            row = self.op_row.get(launch, -1)
            if row >= 0 and self.r.commands[launch].sip == sip:
                if self.r.start_ps[row] < self.issued[command] <= self.r.end_ps[row]:
                    return launch
        return -1

    def issue(self, command: int) -> Next:
        """Say why PE_CPU issued a command when it did."""
        pe = self.pe_name(command)
        self.because("PE_CPU's issue")
        base = self.t - self.spec_ps("cube.pe.pe_cpu.command_ns")
        self.add(base, f"{pe} issues {self.r.commands[command].name}", [Part("issue", f"{pe}.pe_cpu", self.t - base)])
        launch = self.launch_of(command)
        if launch < 0:
            return self.lost, (command,)
        mine = self.in_launch(pe, launch)
        before = mine[: mine.index(command)]
        if before and self.issued[before[-1]] == self.t:
            return self.issue, (before[-1],)
        for other in reversed(before):
            if self.done.get(other) == self.t:
                self.because("the program waits")
                return self.command_end, (other,)
        if not before:
            return self.program_start, (f"{pe}.pe_cpu", launch)
        return self.lost, (command,)

    def ready(self, command: int) -> Next:
        """Say what a command waited for: its issue, or a command before."""
        if self.issued.get(command) == self.t:
            return self.issue, (command,)
        for other in self.after.get(command, ()):
            if self.done.get(other) == self.t:
                self.because("a command before")
                return self.command_end, (other,)
        return self.lost, (command,)

    def ready_ps(self, command: int) -> int:
        """Return when a command had all that it depends on."""
        return max([self.issued.get(command, 0), *(self.done.get(c, 0) for c in self.after.get(command, ()))])

    def command_end(self, command: int) -> Next:
        """Say what completed a command."""
        row = self.op_row[command]
        kind = self.r.kinds[self.r.kind[row]]
        if kind == "math":
            return self.served, (row,)
        moves = self.moves_of(command)
        for i in moves:
            if self.m["end_ps"][i] == self.t and (kind != "composite" or self.m["kind"][i] == WRITE):
                return self.move_end, (i,)
        if kind == "composite":
            stages = self.pe(self.pe_name(command)).stages
            store = stages.row.get((command, stages.tiles.get(command, 0) - 1, "s"))
            if store is not None and stages.left.get(store, self.r.end_ps[store]) == self.t:
                return self.left, (store,)
            return self.behind, (command, int(self.r.start_ps[row]))
        return self.lost, (command,)

    def behind(self, command: int, start: int) -> Next:
        """Take a composite whose tiles were not logged as one step, from `start` to here."""
        pe, info = self.pe_name(command), self.r.commands[command]
        what = f"composite {info.name} of {pe}, tiles not logged"
        self.add(start, what, [Part("composite", f"{pe}.pe_scheduler", self.t - start)])
        ready = self.ready_ps(command)
        if self.t == ready + self.spec_ps("cube.pe.pe_mmu.lookup_ns") + self.spec_ps("cube.pe.pe_scheduler.tile_ns"):
            self.add(ready, "planning", [Part("plan", f"{pe}.pe_scheduler", self.t - ready)])
            return self.ready, (command,)
        return self.engines, (command,)

    def engines(self, command: int) -> Next:
        """Go on with the composite before, whose tiles, not logged, kept the engines from `command`."""
        self.because("the engines' previous work")
        before = [c for c in self.pe(self.pe_name(command)).commands if c < command and c in self.op_row]
        for other in reversed(before):
            row = self.op_row[other]
            if self.r.kinds[self.r.kind[row]] == "composite" and self.r.start_ps[row] < self.t:
                if self.r.end_ps[row] >= self.t and not self.pe(self.pe_name(command)).stages.tiles.get(other):
                    return self.behind, (other, int(self.r.start_ps[row]))
        ready = self.ready_ps(command)
        if ready < self.t:
            wait = Part("wait", f"{self.pe_name(command)}.pe_scheduler", self.t - ready)
            self.add(ready, f"{self.r.commands[command].name} waits for its engines", [wait])
            return self.ready, (command,)
        return self.lost, (command,)

    # -- tiles

    def left(self, row: int) -> Next:
        """Say what let a tile leave its stage: its service, or the stage behind that took another tile."""
        if self.r.end_ps[row] == self.t:
            return self.served, (row,)
        self.because("a full buffer behind")
        taken = self.pe(self.pe_name(int(self.r.command[row]))).stages.taken.get(row)
        if isinstance(taken, tuple):
            for i in self.moves_of(taken[0]):
                if self.m["tile"][i] == taken[1] and self.m["kind"][i] == WRITE and self.m["start_ps"][i] == self.t:
                    return self.sent, (i,)
        elif taken is not None:
            return self.taken, (taken,)
        return self.lost, (row,)

    def served(self, row: int) -> Next:
        """Take the work of an engine as a step."""
        start, kind = int(self.r.start_ps[row]), self.r.kinds[self.r.kind[row]]
        tile, info = int(self.r.tile[row]), self.r.commands[self.r.command[row]]
        what = f"{_ENGINE_PARTS[kind]} of {info.name}" + (f", tile {tile}" if tile >= 0 else "")
        self.add(start, what, [Part(_ENGINE_PARTS[kind], self.name_of(row), self.t - start)])
        return self.taken, (row,)

    def taken(self, row: int) -> Next:
        """Say why an engine began a piece of work: the work before it, its operands, or its command."""
        command, tile = int(self.r.command[row]), int(self.r.tile[row])
        stages = self.pe(self.pe_name(command)).stages
        before = stages.before.get(row)
        if before is not None and stages.left.get(before, self.r.end_ps[before]) == self.t:
            self.because("the engine's previous work")
            return self.left, (before,)
        source = stages.source.get(row)
        if source is not None and stages.left.get(source, self.r.end_ps[source]) == self.t:
            self.because("the tile's arrival")
            return self.left, (source,)
        if tile < 0:
            if self.ready_ps(command) == self.t:
                return self.ready, (command,)
            return self.engines, (command,)
        for i in self.moves_of(command):
            if self.m["tile"][i] == tile and self.m["kind"][i] == READ and self.m["end_ps"][i] == self.t:
                self.because("an operand's arrival")
                return self.move_end, (i,)
        if source is None and self.planned_ps(command, tile) == self.t:
            return self.planned, (command, tile)
        return self.lost, (row,)

    def plan_base(self, command: int) -> tuple[int, int | None]:
        """Return when PE_SCHEDULER began to plan a command, and the command planned until then, if it waited."""
        pe = self.pe(self.pe_name(command))
        tile, lookup = self.spec_ps("cube.pe.pe_scheduler.tile_ns"), self.spec_ps("cube.pe.pe_mmu.lookup_ns")
        free, last = 0, None
        for c in pe.commands:
            if c not in pe.stages.tiles:
                continue
            ready = self.ready_ps(c)
            waits = last if free > ready else None
            base = max(ready, free) + lookup
            if c == command:
                return base, waits
            free, last = base + pe.stages.tiles[c] * tile, c
        return self.ready_ps(command) + lookup, None

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
            return self.planned, (before, self.pe(self.pe_name(command)).stages.tiles[before] - 1)
        return self.ready, (command,)

    # -- transactions

    def move_end(self, move: int) -> Next:
        """Take a transaction as steps: the way back, the memory as long as it had no gap, and the way there."""
        m, kind = self.m, int(self.m["kind"][move])
        route, nbytes = int(m["route"][move]), int(m["nbytes"][move])
        memory = self.ways.ends(route)[0]
        what = f"{nbytes:,} B {'from' if kind == READ else 'to'} {memory}"
        served, arrived, start = (int(m[x][move]) for x in ("served_ps", "arrived_ps", "start_ps"))
        if served < 0:
            self.add(start, what, self.ways.parts(route, nbytes, self.t - start, reverse=kind == WRITE))
            return self.sent, (move,)
        opener = self.by_key.get(int(m["opener"][move]))
        since = int(m["since_ps"][move])
        alone = opener is None or opener == move
        if alone and kind == READ and self.ways.rate_gbs(route) * (served - arrived) < nbytes * 1000:
            # The links are slower than the memory: what they carry at the same time is not the memory's.
            parts = self.ways.parts(route, 0, arrived - start, reverse=True)
            self.add(start, what, parts + self.ways.parts(route, nbytes, self.t - arrived))
            return self.sent, (move,)
        back = nbytes if kind == READ else 16
        self.add(served, f"{what}: way back", self.ways.parts(route, back, self.t - served))
        if opener is None:
            opener, since = move, arrived
        self.add(since, f"{memory} at work", [Part("memory", memory, self.t - since)])
        self.because("its request")
        start, nbytes = int(m["start_ps"][opener]), int(m["nbytes"][opener])
        there = nbytes if m["kind"][opener] == WRITE else 0
        way = self.ways.parts(int(m["route"][opener]), there, self.t - start, reverse=True)
        self.add(start, f"request to {memory}", way)
        return self.sent, (opener,)

    def sent(self, move: int) -> Next:
        """Say why a request was sent when it was."""
        m, command, tile = self.m, int(self.m["command"][move]), int(self.m["tile"][move])
        if command not in self.issued:
            return self.host_start, (self.op_row[command],)
        pe = self.pe(self.pe_name(command))
        kind = int(m["kind"][move])
        if tile < 0:
            lookup = self.spec_ps("cube.pe.pe_mmu.lookup_ns")
            if self.ready_ps(command) + lookup == self.t:
                self.add(
                    self.t - lookup, "address look-up", [Part("lookup", f"{self.pe_name(command)}.pe_mmu", lookup)]
                )
                return self.ready, (command,)
        elif kind == READ:
            if self.planned_ps(command, tile) == self.t:
                return self.planned, (command, tile)
            buffers = int(self.spec("cube.pe.pe_tcm.buffers_per_operand"))
            for back in {buffers, buffers * pe.stages.kt.get(command, 1)}:
                row = pe.stages.row.get((command, tile - back, "f"))
                if row is not None and pe.stages.left.get(row, self.r.end_ps[row]) == self.t:
                    self.because("a free tile buffer")
                    return self.left, (row,)
        else:
            row = pe.stages.row.get((command, tile, "s"))
            if row is not None and pe.stages.left.get(row, self.r.end_ps[row]) == self.t:
                self.because("the tile's arrival")
                return self.left, (row,)
        return self.channel(move, pe.channel[kind])

    def channel(self, move: int, channel: list[int]) -> Next:
        """Say what a request waited for in its DMA channel: the one before it, or one to complete."""
        at = channel.index(move)
        if at and self.m["start_ps"][channel[at - 1]] == self.t:
            return self.sent, (channel[at - 1],)
        for other in reversed(channel[:at]):
            if self.m["end_ps"][other] == self.t:
                self.because("the limit of outstanding requests")
                return self.move_end, (other,)
        return self.engines, (int(self.m["command"][move]),)
