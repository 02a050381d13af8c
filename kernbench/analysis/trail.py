"""A way back through a run: what the log says about any step, and the steps found so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernbench.analysis.causes import READ, WRITE
from kernbench.analysis.records import Launch, Records
from kernbench.analysis.stages import Stages, first_writes
from kernbench.analysis.way import Part, Ways
from kernbench.errors import StateError
from kernbench.units import ns_to_ps

HOST_KINDS = ("launch", "h2d", "d2h", "map", "install")
ENGINE_PARTS = {"fetch": "fetch", "gemm": "matrix", "math": "vector", "store_tcm": "store"}
UNKNOWN = "the log does not say"

Next = tuple[str, tuple[Any, ...]] | None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the path: when, what, why it began then, and the parts that its time went to."""

    start_ps: int
    end_ps: int
    what: str
    parts: tuple[Part, ...]
    because: str = ""


@dataclass(slots=True)
class Pe:
    """What the walk needs of one PE: `channel` has its reads and writes in order, `place` where each stands in it.

    `of_tile` has the transactions by (command, tile, kind), `plan` when PE_SCHEDULER began with each tiled command,
    and the command that it waited for.
    """

    stages: Stages
    commands: list[int]
    channel: dict[int, list[int]]
    place: dict[int, int]
    of_tile: dict[tuple[int, int, int], list[int]]
    plan: dict[int, tuple[int, int | None]] = field(default_factory=dict)


class Trail:
    """The steps found so far, from the end backwards; `t` is where it stands.

    A method that returns a `Next` names the method to go on with, and its arguments.
    """

    def __init__(self, records: Records) -> None:
        self.r, self.causes = records, records.causes
        self.m = records.causes.moves
        self.ways = Ways(records.causes, records.links)
        self.t = records.makespan_ps
        self.found: list[list[Any]] = []
        self.kinds = {name: i for i, name in enumerate(records.kinds)}
        self.components = {name: i for i, name in enumerate(records.components)}
        self.issued: dict[int, int] = {}
        self.launch: dict[int, int] = {}
        self.programs: dict[tuple[str, int], list[int]] = {}
        self.begin: dict[int, int] = dict(records.causes.begin.tolist())
        self.after: dict[int, list[int]] = {}
        for command, other in records.causes.after.tolist():
            self.after.setdefault(command, []).append(other)
        self.host = np.flatnonzero(np.isin(records.kind, [self.kinds[k] for k in HOST_KINDS if k in self.kinds]))
        self.done, self.op_row = self._completions()
        self.commands: dict[str, list[int]] = {}
        for command, issued, launch in records.causes.issued.tolist():
            self.issued[command], self.launch[command] = issued, launch
            pe = self.pe_name(command)
            self.commands.setdefault(pe, []).append(command)
            self.programs.setdefault((pe, launch), []).append(command)
        self.by_key = {key: i for i, key in enumerate(self.m["key"].tolist()) if key >= 0}
        order = np.argsort(self.m["command"], kind="stable")
        self.moves_order, self.moves_command = order, self.m["command"][order]
        self.pes: dict[str, Pe] = {}
        self.seen: set[tuple[Any, ...]] = set()

    def spec_ps(self, key: str) -> int:
        """Return a time of the machine file [ps]."""
        return ns_to_ps(float(self.spec(key)))

    def spec(self, key: str) -> Any:
        """Return a value of the machine file."""
        value: Any = self.r.spec
        for name in key.split("."):
            value = value[name]
        return value

    def _completions(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return when each command was complete, and the row that says so."""
        r = self.r
        whole = np.isin(
            r.kind,
            [self.kinds[k] for k in ("load", "store", "composite", "send", "recv", *HOST_KINDS) if k in self.kinds],
        )
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

    def pe(self, name: str) -> Pe:
        """Return what is known of a PE."""
        found = self.pes.get(name)
        if found is None:
            commands = self.commands.get(name, [])
            moves = [i for c in commands for i in self.moves_of(c)]
            writes = first_writes(self.m, moves)
            stages = Stages(self.r, name, writes, int(self.spec("cube.pe.pe_tcm.stage_buffers")))
            found = self.pes[name] = Pe(stages, commands, {READ: [], WRITE: []}, {}, {})
            for i in sorted(moves, key=lambda i: int(self.m["key"][i])):
                kind = int(self.m["kind"][i])
                if kind not in found.channel:
                    continue
                found.place[i] = len(found.channel[kind])
                found.channel[kind].append(i)
                found.of_tile.setdefault((int(self.m["command"][i]), int(self.m["tile"][i]), kind), []).append(i)
        return found

    def name_of(self, row: int) -> str:
        """Return the component of a row."""
        name: str = self.r.components[self.r.component[row]]
        return name

    def kind_of(self, row: int) -> str:
        """Return the kind of a row."""
        kind: str = self.r.kinds[self.r.kind[row]]
        return kind

    def host_rows(self, until: int) -> list[int]:
        """Return the host's operations that ended by `until`."""
        found: list[int] = self.host[self.r.end_ps[self.host] <= until].tolist()
        return found

    def steps(self, start: int = 0, last: Launch | None = None) -> tuple[Step, ...]:
        """Walk from the run's end, or a launch's, to a time; return the steps in order of time."""
        step: Next = self.run_end() if last is None else self.launch_end(last)
        while step is not None and self.t > start:
            key = (*step, self.t)
            step = self.lost() if key in self.seen else getattr(self, step[0])(*step[1])
            self.seen.add(key)
        self.add(start, "the program", [Part("wait", UNKNOWN, self.t - start)])
        self._cut(start)
        return tuple(Step(a, b, what, tuple(parts), because) for a, b, what, parts, because in reversed(self.found))

    def add(self, start: int, what: str, parts: list[Part]) -> None:
        """Put a step in front of what has been found; it begins at `start` and ends where the walk stands."""
        if start < self.t:
            self.found.append([start, self.t, what, parts, ""])
            self.t = start

    def because(self, reason: str) -> None:
        """Note why the step found last began when it did."""
        if self.found and not self.found[-1][4]:
            self.found[-1][4] = reason

    def lost(self) -> Next:
        """Go on where the log does not tell the cause: with the latest end before of anything."""
        self.because(UNKNOWN)
        ends = self.r.end_ps
        inside = np.flatnonzero(ends < self.t)
        host = self.host
        inside = inside[~np.isin(inside, host)]
        open_ops = host[(self.r.start_ps[host] < self.t) & (ends[host] >= self.t)]
        start = int(self.r.start_ps[open_ops].max(initial=0))
        inside = inside[ends[inside] > start]
        if not len(inside):
            self.add(start, "wait", [Part("wait", UNKNOWN, self.t - start)])
            return ("host_start", (int(open_ops[np.argmax(self.r.start_ps[open_ops])]),)) if len(open_ops) else None
        row = int(inside[np.argmax(ends[inside])])
        end = int(ends[row])
        self.add(end, "wait", [Part("wait", UNKNOWN, self.t - end)])
        command = int(self.r.command[row])
        if self.done.get(command) == end:
            return "command_end", (command,)
        if self.kind_of(row) in ENGINE_PARTS:
            return "served", (row,)
        start = int(self.r.start_ps[row])
        self.add(start, self.kind_of(row), [Part("wait", self.name_of(row), self.t - start)])
        return "lost", ()

    def _cut(self, start: int) -> None:
        """Leave out what was before a time: earlier steps, and what a step under way then had done first."""
        while self.found and self.found[-1][1] <= start:
            self.found.pop()
        if self.t >= start:
            return
        first = self.found[-1]
        left, parts = first[1] - start, []
        for part in reversed(first[3]):
            if left:
                parts.append(replace(part, ps=min(part.ps, left)))
                left -= parts[-1].ps
        first[0], first[3], first[4] = start, parts[::-1], ""

    def launch_end(self, launch: Launch) -> Next:
        """Begin with the completion of a launch."""
        self.t = launch.end_ps
        for row in map(int, self.host[self.r.end_ps[self.host] == self.t]):
            info = self.r.commands[self.r.command[row]]
            found = info.name, info.sip, int(self.r.start_ps[row])
            if self.kind_of(row) == "launch" and found == (launch.name, launch.sip, launch.start_ps):
                return "host_end", (row,)
        raise StateError(f"launch {launch.name!r} on sip{launch.sip} has not ended: the run stopped before")

    def run_end(self) -> Next:
        """Begin with the host's operation that ended last."""
        rows = self.host_rows(self.t)
        if not rows:
            return self.lost() if len(self.r) else None
        row = max(rows, key=lambda i: int(self.r.end_ps[i]))
        end = int(self.r.end_ps[row])
        self.add(end, "after the last operation", [Part("wait", "host", self.t - end)])
        return "host_end", (row,)
