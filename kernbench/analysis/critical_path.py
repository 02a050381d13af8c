"""The critical path of a run or a launch: steps and waits, each beginning where its cause ended, from end to start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernbench.analysis.pipeline import Stages, first_writes
from kernbench.analysis.records import CREDIT, FETCH, MESSAGE, PART, READ, WRITE, Launch, Records
from kernbench.analysis.result import span
from kernbench.analysis.transfer import Part, Ways
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


class HostPath(Trail):
    """What the host waited for, and how its messages came to the PEs and back."""

    def host_end(self, row: int) -> Next:
        """Say how the host came to know that its operation was complete."""
        command, kind = int(self.r.command[row]), self.kind_of(row)
        if kind in ("launch", "map", "install"):
            return "answer", (command, "host")
        for move in self.moves_of(command):
            if self.m["end_ps"][move] == self.t:
                return "move_end", (move,)
        self.add(int(self.r.start_ps[row]), kind, [Part("wait", "host", self.t - int(self.r.start_ps[row]))])
        return "host_start", (row,)

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
        return "host_end", (one,)

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
            return self.lost()
        src = self.ways.ends(int(self.m["route"][move]))[0]
        self.add_message(move)
        if not src.endswith(".pe_cpu"):
            return "answer", (command, src)
        self.because("the program's end")
        if command in self.begin:
            return "program_end", (src, command)
        return "decoded", (src, command)

    def decoded(self, cpu: str, command: int) -> Next:
        """Follow the copy that a PE_CPU has just decoded, back to the host."""
        for key in ("cube.pe.pe_cpu.command_ns", "cube.m_cpu.service_ns", "sip.io.io_cpu.service_ns"):
            move = self.message(command, dst=cpu)
            if move is None:
                return self.lost()
            arrived = int(self.m["end_ps"][move])
            service = min(self.spec_ps(key), self.t - arrived)
            parts = [Part("cpu", cpu, service), Part("queueing", cpu, self.t - arrived - service)]
            self.add(arrived, f"{cpu} takes the message", [p for p in parts if p.ps])
            self.because("its message")
            self.add_message(move)
            cpu = self.ways.ends(int(self.m["route"][move]))[0]
        return "host_start", (self.op_row[command],)

    def program_start(self, cpu: str, command: int) -> Next:
        """Say why a program began: the common start, or its own late message."""
        self.because("the launch")
        service = self.spec_ps("cube.pe.pe_cpu.command_ns")
        if self.t > self.begin[command]:
            return "decoded", (cpu, command)
        for i in self.moves_of(command):
            node = self.ways.ends(int(self.m["route"][i]))[1]
            if self.m["kind"][i] == MESSAGE and node.endswith(".pe_cpu") and self.m["end_ps"][i] + service == self.t:
                return "decoded", (node, command)
        first = self.message(command, src=".io.io_cpu")
        if first is None:
            return self.lost()
        handed = int(self.m["start_ps"][first])
        self.add(handed, "until the common start", [Part("start", "the launch's last PE", self.t - handed)])
        move = self.message(command, src="host")
        if move is None:
            return self.lost()
        arrived = int(self.m["end_ps"][move])
        self.add(arrived, "io_cpu", [Part("cpu", self.ways.ends(int(self.m["route"][move]))[1], self.t - arrived)])
        self.add_message(move)
        return "host_start", (self.op_row[command],)


class ProgramPath(HostPath):
    """Why a command was issued when it was, when it was ready, and when it was complete."""

    def program_end(self, cpu: str, launch: int) -> Next:
        """Say what a program's end waited for: the last of its commands."""
        commands = self.programs.get((cpu.removesuffix(".pe_cpu"), launch), [])
        for command in reversed(commands):
            if self.done.get(command) == self.t:
                return "command_end", (command,)
        if commands and self.issued[commands[-1]] == self.t:
            return "issue", (commands[-1],)
        return "program_start", (cpu, launch)

    def issue(self, command: int) -> Next:
        """Say why PE_CPU issued a command when it did."""
        pe = self.pe_name(command)
        self.because("PE_CPU's issue")
        base = self.t - self.spec_ps("cube.pe.pe_cpu.command_ns")
        self.add(base, f"{pe} issues {self.r.commands[command].name}", [Part("issue", f"{pe}.pe_cpu", self.t - base)])
        launch = self.launch[command]
        if launch < 0:
            return self.lost()
        program = self.programs[pe, launch]
        before = program[: bisect_left(program, command)]
        if before and self.issued[before[-1]] == self.t:
            return "issue", (before[-1],)
        for other in reversed(before):
            if self.done.get(other) == self.t:
                self.because("the program waits")
                return "command_end", (other,)
        if not before:
            return "program_start", (f"{pe}.pe_cpu", launch)
        return self.lost()

    def ready(self, command: int) -> Next:
        """Say what a command waited for: its issue, or a command before."""
        if self.issued.get(command) == self.t:
            return "issue", (command,)
        for other in self.after.get(command, ()):
            if self.done.get(other) == self.t:
                self.because("a command before")
                return "command_end", (other,)
        return self.lost()

    def ready_ps(self, command: int) -> int:
        """Return when a command had all that it depends on."""
        return max([self.issued.get(command, 0), *(self.done.get(c, 0) for c in self.after.get(command, ()))])

    def command_end(self, command: int) -> Next:
        """Say what completed a command."""
        row = self.op_row[command]
        kind = self.kind_of(row)
        if kind == "math":
            return "served", (row,)
        moves = self.moves_of(command)
        for i in moves:
            if self.m["end_ps"][i] == self.t and (kind != "composite" or self.m["kind"][i] == WRITE):
                return "move_end", (i,)
        if kind == "composite":
            stages = self.pe(self.pe_name(command)).stages
            store = stages.row.get((command, stages.tiles.get(command, 0) - 1, "s"))
            if store is not None and stages.left.get(store, self.r.end_ps[store]) == self.t:
                return "left", (store,)
            return "behind", (command, int(self.r.start_ps[row]))
        return self.lost()

    def behind(self, command: int, start: int) -> Next:
        """Take a composite whose tiles were not logged as one step, from `start` to here."""
        pe, info = self.pe_name(command), self.r.commands[command]
        what = f"composite {info.name} of {pe}, tiles not logged"
        self.add(start, what, [Part("composite", f"{pe}.pe_scheduler", self.t - start)])
        ready = self.ready_ps(command)
        if self.t == ready + self.spec_ps("cube.pe.pe_mmu.lookup_ns") + self.spec_ps("cube.pe.pe_scheduler.tile_ns"):
            self.add(ready, "planning", [Part("plan", f"{pe}.pe_scheduler", self.t - ready)])
            return "ready", (command,)
        return "engines", (command,)

    def engines(self, command: int) -> Next:
        """Go on with the composite before, whose tiles, not logged, kept the engines from `command`."""
        self.because("the engines' previous work")
        pe = self.pe(self.pe_name(command))
        for other in reversed(pe.commands):
            row = self.op_row.get(other, -1)
            if other >= command or row < 0 or other in pe.stages.tiles or self.kind_of(row) != "composite":
                continue
            if self.r.start_ps[row] < self.t <= self.r.end_ps[row]:
                return "behind", (other, int(self.r.start_ps[row]))
        ready = self.ready_ps(command)
        if ready < self.t:
            wait = Part("wait", f"{self.pe_name(command)}.pe_scheduler", self.t - ready)
            self.add(ready, f"{self.r.commands[command].name} waits for its engines", [wait])
            return "ready", (command,)
        return self.lost()


class QueuePath(ProgramPath):
    """Why a message was received when it was."""

    def command_end(self, command: int) -> Next:
        """Say what completed a command: of a receive its last part, of a send the arrival of its last one."""
        kind = self.kind_of(self.op_row[command])
        if kind == "recv":
            return "slot_read", (self.op_row[command],)
        if kind == "send":
            return self._arrival(command)
        return super().command_end(command)

    def slot_read(self, row: int) -> Next:
        """Take the way of a part out of its slot as a step."""
        command, start = int(self.r.command[row]), int(self.r.start_ps[row])
        pe, info = self.pe_name(command), self.r.commands[command]
        sends = self._sends(command)
        slots = {self._slot_of(i) for send in sends for i in self.moves_of(send) if self.m["kind"][i] == PART}
        where = slots.pop().replace(".store", ".fetch") if slots else f"{pe}.pe_fetch_store.fetch"
        self.add(start, f"{info.name} from {info.tag}", [Part("slot", where, self.t - start)])
        for send in sends:
            step = self._arrival(send)
            if step is not None:
                self.because("a message's arrival")
                return step
        for other in self._reads_until(pe):
            self.because("the slot read before")
            return "slot_read", (other,)
        return self.ready(command)

    def _slot_of(self, move: int) -> str:
        """Return what writes a part into its slot: a memory, or the port of TCM."""
        return self.ways.ends(int(self.m["route"][move]))[1].replace(".pe_dma", ".pe_fetch_store.store")

    def _sends(self, command: int) -> list[int]:
        return [c for c in self.after.get(command, ()) if self.kind_of(self.op_row[c]) == "send"]

    def _reads_until(self, pe: str) -> Iterator[int]:
        """Yield the rows of slots of a PE that had been read just now."""
        component = self.components.get(f"{pe}.pe_ipcq", -1)
        rows = map(int, np.flatnonzero((self.r.component == component) & (self.r.end_ps == self.t)))
        yield from (i for i in rows if self.kind_of(i) == "recv" and self.r.start_ps[i] < self.t)

    def _arrival(self, send: int) -> Next:
        for i in self.moves_of(send):
            if self.m["kind"][i] == PART and self.m["end_ps"][i] == self.t:
                return "part", (i,)
        return None

    def part(self, move: int) -> Next:
        """Take the way of a part, and into its slot, as a step; go on with why it left when it did."""
        send, start = int(self.m["command"][move]), int(self.m["start_ps"][move])
        arrived, route = int(self.m["arrived_ps"][move]), int(self.m["route"][move])
        src, dst = self.ways.ends(route)
        parts = self.ways.parts(route, int(self.m["nbytes"][move]), arrived - start)
        if self.t > arrived:
            parts.append(Part("slot", self._slot_of(move), self.t - arrived))
        self.add(start, f"part {self.m['tile'][move]} of a message from {src} to {dst}", parts)
        return "left_for", (move, send)

    def left_for(self, move: int, send: int) -> Next:
        """Say why a part left when it did: it had just been read from memory, or it had its slot."""
        for i in self._fetches(send, int(self.m["tile"][move])):
            if self.m["end_ps"][i] == self.t:
                self.because("what it carries")
                return "move_end", (i,)
        return self._given(move, send, self.m["start_ps"])

    def fetched(self, move: int, send: int) -> Next:
        """Say why a part was read from memory when it was: it had its slot."""
        tile = self.m["tile"][move]
        part = next(i for i in self.moves_of(send) if self.m["kind"][i] == PART and self.m["tile"][i] == tile)
        return self._given(part, send, self.m["start_ps"])

    def _fetches(self, send: int, index: int) -> list[int]:
        return [i for i in self.moves_of(send) if self.m["kind"][i] == FETCH and self.m["tile"][i] == index]

    def _given(self, move: int, send: int, starts: np.ndarray) -> Next:
        """Say why a part had its slot now: its credit, its send, or the part before."""
        credit = self.by_key.get(int(self.m["opener"][move]), -1)
        if credit >= 0 and self.m["kind"][credit] == CREDIT and self.m["end_ps"][credit] == self.t:
            self.because("a credit")
            return "credit", (credit,)
        if self.ready_ps(send) == self.t:
            self.because("its send")
            return "ready", (send,)
        pe = self.pe_name(send)
        together = np.isin(self.m["kind"], (PART, FETCH)) & (starts == self.t)
        for i in map(int, np.flatnonzero(together)):
            other = int(self.m["command"][i])
            before = (other, self.m["tile"][i]) < (send, self.m["tile"][move])
            if before and self.pe_name(other) == pe:
                self.because("the part before")
                return ("left_for" if self.m["kind"][i] == PART else "fetched"), (i, other)
        return self.lost()

    def credit(self, move: int) -> Next:
        """Take the way of a credit as a step; go on with what freed its slot."""
        start, route = int(self.m["start_ps"][move]), int(self.m["route"][move])
        src, dst = self.ways.ends(route)
        way = self.ways.parts(route, int(self.m["nbytes"][move]), self.t - start)
        self.add(start, f"credit from {src} to {dst}", way)
        self.because("a slot's release")
        pe = src.removesuffix(".pe_dma")
        for row in self._reads_until(pe):
            return "slot_read", (row,)
        for command in reversed(self.commands.get(pe, [])):
            if self.done.get(command) == self.t:
                return "command_end", (command,)
            if self.issued[command] == self.t:
                return "issue", (command,)
        return self.lost()


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


@dataclass(frozen=True)
class CriticalPath:
    """A chain of steps without gaps; their times sum to `makespan_ps`, the latency of the run or launch."""

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


def critical_path(records: Records, launches: Sequence[Launch] = ()) -> CriticalPath:
    """Return the critical path of a run, or of launches of it: from the first one's start to the last one's end.

    A step that was under way when they started counts from then on.
    """
    if not len(records) and records.makespan_ps:
        raise StateError('this run was not logged, so nothing says why; run it with log="operation" or log="tile"')
    if records.makespan_ps and not records.spec:
        raise StateError("these records do not hold the machine they were made on; run the bench again")
    walk = Walk(records)
    if not launches:
        return CriticalPath(walk.steps(), records.makespan_ps)
    start, end = span(launches)
    return CriticalPath(walk.steps(start, max(launches, key=lambda x: x.end_ps)), end - start)
