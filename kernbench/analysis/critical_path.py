"""The critical path of a run or a launch: steps and waits, each beginning where its cause ended, from end to start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from kernbench.analysis.records import CREDIT, FETCH, MESSAGE, PART, READ, WRITE, Launch, Records
from kernbench.analysis.result import span
from kernbench.analysis.transfer import Part, RouteBreakdown
from kernbench.errors import StateError
from kernbench.units import ns_to_ps

HOST_KINDS = ("launch", "h2d", "d2h", "map", "install")
COMMAND_KINDS = ("load", "store", "composite", "send", "recv", *HOST_KINDS)
ENGINE_PARTS = {"fetch": "fetch", "gemm": "matrix", "math": "vector", "store_tcm": "store"}
ENGINES = ("pe_fetch_store.fetch", "pe_gemm", "pe_math", "pe_fetch_store.store")
UNKNOWN = "the log does not say"

Next: TypeAlias = "partial[Next] | None"  # the cause to look at next; None at the beginning of the run


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
    backtrace = _Backtrace(records)
    if not launches:
        return CriticalPath(backtrace.steps(), records.makespan_ps)
    start, end = span(launches)
    return CriticalPath(backtrace.steps(start, max(launches, key=lambda x: x.end_ps)), end - start)


class _Log:
    """Records indexed by command, PE and transfer."""

    def __init__(self, records: Records) -> None:
        self.records, self.transfers = records, records.dependencies.transfers
        self.routes = RouteBreakdown(records.dependencies, records.links)
        self.begin: dict[int, int] = dict(records.dependencies.begin.tolist())
        self.after: dict[int, list[int]] = {}
        for command, other in records.dependencies.after.tolist():
            self.after.setdefault(command, []).append(other)
        self.host = np.flatnonzero(records.is_kind(*HOST_KINDS))
        whole = records.is_kind(*COMMAND_KINDS) | (records.is_kind("math") & (records.tile < 0))
        self.row = {int(records.command[i]): i for i in np.flatnonzero(whole).tolist()}
        self.done = {command: int(records.end_ps[i]) for command, i in self.row.items()}
        self.issued: dict[int, int] = {}
        self.launch: dict[int, int] = {}
        self.commands: dict[str, list[int]] = {}
        self.programs: dict[tuple[str, int], list[int]] = {}
        for command, issued, launch in records.dependencies.issued.tolist():
            self.issued[command], self.launch[command] = issued, launch
            pe = self.pe_name(command)
            self.commands.setdefault(pe, []).append(command)
            self.programs.setdefault((pe, launch), []).append(command)
        self.by_key = {key: i for i, key in enumerate(self.transfers["key"].tolist()) if key >= 0}
        self._order = np.argsort(self.transfers["command"], kind="stable")
        self._command = self.transfers["command"][self._order]
        self._pes: dict[str, _Pe] = {}

    def spec(self, key: str) -> Any:
        """Return a value of the machine file."""
        value: Any = self.records.spec
        for name in key.split("."):
            value = value[name]
        return value

    def spec_ps(self, key: str) -> int:
        return ns_to_ps(float(self.spec(key)))

    @cached_property
    def command_ps(self) -> int:
        return self.spec_ps("cube.pe.pe_cpu.command_ns")

    @cached_property
    def lookup_ps(self) -> int:
        return self.spec_ps("cube.pe.pe_mmu.lookup_ns")

    @cached_property
    def tile_ps(self) -> int:
        return self.spec_ps("cube.pe.pe_scheduler.tile_ns")

    def get(self, transfer: int, column: str) -> int:
        return int(self.transfers[column][transfer])

    def ends(self, transfer: int) -> tuple[str, str]:
        """Return the nodes at the beginning and the end of a transfer's route."""
        return self.routes.ends(self.get(transfer, "route"))

    def transfers_of(self, command: int, **values: int) -> list[int]:
        """Return the transfers of a command whose columns have these values."""
        low, high = np.searchsorted(self._command, [command, command + 1])
        rows = self._order[low:high]
        for column, value in values.items():
            rows = rows[self.transfers[column][rows] == value]
        found: list[int] = rows.tolist()
        return found

    def component(self, row: int) -> str:
        return str(self.records.components[self.records.component[row]])

    def kind(self, row: int) -> str:
        return str(self.records.kinds[self.records.kind[row]])

    def pe_name(self, command: int) -> str:
        c = self.records.commands[command]
        return f"sip{c.sip}.cube{c.cube}.pe{c.pe}"

    def pe(self, command: int) -> _Pe:
        """Return the PE that issued a command."""
        name = self.pe_name(command)
        if name not in self._pes:
            self._pes[name] = _Pe(self, name)
        return self._pes[name]

    def ready_ps(self, command: int) -> int:
        """Return when a command had all that it depends on."""
        return max([self.issued.get(command, 0), *(self.done.get(c, 0) for c in self.after.get(command, ()))])

    def plan_base(self, command: int) -> tuple[int, int | None]:
        """Return when PE_SCHEDULER began to plan a command, and the command planned until then, if it waited."""
        pe = self.pe(command)
        if not pe.plan:
            free, last = 0, None
            for c in pe.commands:
                if c in pe.tiles:
                    ready = self.ready_ps(c)
                    base = max(ready, free) + self.lookup_ps
                    pe.plan[c] = base, last if free > ready else None
                    free, last = base + pe.tiles[c] * self.tile_ps, c
        return pe.plan.get(command, (self.ready_ps(command) + self.lookup_ps, None))

    def planned_ps(self, command: int, tile: int) -> int:
        """Return when PE_SCHEDULER had planned a tile."""
        return self.plan_base(command)[0] + (tile + 1) * self.tile_ps

    def slot_of(self, part: int) -> str:
        """Return what writes a part into its slot: a memory, or the port of TCM."""
        return self.ends(part)[1].replace(".pe_dma", ".pe_fetch_store.store")


class _Pe:
    """One PE: its transfers by DMA channel and by tile, and its engines, joined by the buffers between them.

    A tile leaves a stage when it is served and a buffer behind is free; that is when the next stage takes the tile
    `stage_buffers` before it. `source` has the row that a row's tile came from, `taken` what took the tile whose
    departure made room, `plan` when PE_SCHEDULER began with each tiled command and the command that it waited for.
    """

    def __init__(self, log: _Log, name: str) -> None:
        self._records, self._buffers = log.records, int(log.spec("cube.pe.pe_tcm.stage_buffers"))
        self.commands = log.commands.get(name, [])
        self.plan: dict[int, tuple[int, int | None]] = {}
        self.channel: dict[int, list[int]] = {READ: [], WRITE: []}
        self.place: dict[int, int] = {}
        self.of_tile: dict[tuple[int, int, int], list[int]] = {}
        transfers = [i for c in self.commands for i in log.transfers_of(c)]
        for i in sorted(transfers, key=lambda i: log.get(i, "key")):
            kind = log.get(i, "kind")
            if kind in self.channel:
                self.place[i] = len(self.channel[kind])
                self.channel[kind].append(i)
                self.of_tile.setdefault((log.get(i, "command"), log.get(i, "tile"), kind), []).append(i)
        self.source: dict[int, int] = {}
        self.taken: dict[int, int | tuple[int, int]] = {}
        self._left: dict[int, int] = {}
        self._join_stages(log, name)

    def _join_stages(self, log: _Log, name: str) -> None:
        components = {name: i for i, name in enumerate(self._records.components)}
        fetch, gemm, math, store = (
            np.flatnonzero(self._records.component == components.get(f"{name}.{engine}", -1)).tolist()
            for engine in ENGINES
        )
        self.before = {b: a for rows in (fetch, gemm, math, store) for a, b in pairwise(rows)}
        command, tile = self._records.command.tolist(), self._records.tile.tolist()
        self.row = {
            (command[r], tile[r], stage): r
            for stage, rows in zip("fgms", (fetch, gemm, math, store), strict=True)
            for r in rows
        }
        self.tiles, outputs = (Counter(command[r] for r in rows) for rows in (fetch, store))
        self.kt = {c: max(1, n // max(1, outputs[c])) for c, n in self.tiles.items()}
        math = [r for r in math if tile[r] >= 0]
        products, vectors = {command[r] for r in gemm}, {command[r] for r in math}

        def of(rows: Iterable[int], which: Callable[[int], bool]) -> list[int]:
            return [r for r in rows if which(command[r])]

        last = [r for r in gemm if (tile[r] + 1) % self.kt.get(command[r], 1) == 0]
        self._join(of(fetch, products.__contains__), gemm)
        self._join(of(fetch, lambda c: c not in products), of(math, lambda c: c not in products))
        self._join(of(last, vectors.__contains__), of(math, products.__contains__))
        self._join(of(last, lambda c: c not in vectors), of(store, lambda c: c not in vectors))
        self._join(math, of(store, vectors.__contains__))
        written = {
            (c, t): min(log.get(i, "start_ps") for i in transfers)
            for (c, t, kind), transfers in self.of_tile.items()
            if kind == WRITE and t >= 0
        }
        leaving = of(store, {c for c, _ in written}.__contains__)
        for before, row in zip(leaving, leaving[self._buffers :], strict=False):
            output = command[before], tile[before]
            if written.get(output, 0) > self._records.end_ps[row]:
                self._left[row], self.taken[row] = written[output], output

    def _join(self, puts: Sequence[int], takes: Sequence[int]) -> None:
        start, end = self._records.start_ps, self._records.end_ps
        self.source.update((take, put) for put, take in zip(puts, takes, strict=False))
        for take, put in zip(takes, puts[self._buffers :], strict=False):
            if start[take] > end[put]:
                self._left[put], self.taken[put] = int(start[take]), take

    def left_at(self, row: int, t: int) -> bool:
        """Return whether the tile of a row left its stage at `t`."""
        return bool(self._left.get(row, self._records.end_ps[row]) == t)


class _Backtrace:
    """Walks from the end of a run to its beginning; `t` is the current time.

    Each method adds the steps of one event, which ended at `t`, and returns the event to look at next.
    """

    def __init__(self, records: Records) -> None:
        self.r, self.log = records, _Log(records)
        self.t = records.makespan_ps
        self._found: list[list[Any]] = []

    def steps(self, start: int = 0, last: Launch | None = None) -> tuple[Step, ...]:
        """Walk from the run's end, or a launch's, to a time; return the steps in order of time."""
        step = self._run_end() if last is None else self._launch_end(last)
        seen = set()
        while step is not None and self.t > start:
            key = (step.func, step.args, self.t)
            step = self._lost() if key in seen else step()
            seen.add(key)
        self._add(start, "the program", Part("wait", UNKNOWN, self.t - start))
        self._cut(start)
        return tuple(Step(a, b, what, tuple(parts), because) for a, b, what, parts, because in reversed(self._found))

    def _add(self, start: int, what: str, *parts: Part) -> None:
        """Put a step from `start` to the current time before those found so far."""
        if start < self.t:
            self._found.append([start, self.t, what, parts, ""])
            self.t = start

    def _because(self, reason: str) -> None:
        """Note why the step found last began when it did."""
        if self._found and not self._found[-1][4]:
            self._found[-1][4] = reason

    def _cut(self, start: int) -> None:
        """Remove what was before a time: earlier steps, and the first parts of a step that was under way."""
        while self._found and self._found[-1][1] <= start:
            self._found.pop()
        if self.t >= start:
            return
        first = self._found[-1]
        left, parts = first[1] - start, []
        for part in reversed(first[3]):
            if left:
                parts.append(replace(part, ps=min(part.ps, left)))
                left -= parts[-1].ps
        first[0], first[3], first[4] = start, parts[::-1], ""

    def _lost(self) -> Next:
        """Continue where the log does not tell the cause: with the latest end of anything before."""
        self._because(UNKNOWN)
        starts, ends, host = self.r.start_ps, self.r.end_ps, self.log.host
        open_ops = host[(starts[host] < self.t) & (ends[host] >= self.t)]
        start = int(starts[open_ops].max(initial=0))
        inside = np.flatnonzero((ends < self.t) & (ends > start))
        inside = inside[~np.isin(inside, host)]
        if not len(inside):
            self._add(start, "wait", Part("wait", UNKNOWN, self.t - start))
            return partial(self._host_start, int(open_ops[np.argmax(starts[open_ops])])) if len(open_ops) else None
        row = int(inside[np.argmax(ends[inside])])
        end, command, kind = int(ends[row]), int(self.r.command[row]), self.log.kind(row)
        self._add(end, "wait", Part("wait", UNKNOWN, self.t - end))
        if self.log.done.get(command) == end:
            return partial(self._command_end, command)
        if kind in ENGINE_PARTS:
            return partial(self._served, row)
        start = int(starts[row])
        self._add(start, kind, Part("wait", self.log.component(row), self.t - start))
        return partial(self._lost)

    # The host and its messages.

    def _launch_end(self, launch: Launch) -> Next:
        self.t = launch.end_ps
        for row in self._host_rows():
            info = self.r.commands[self.r.command[row]]
            found = info.name, info.sip, int(self.r.start_ps[row]), int(self.r.end_ps[row])
            if self.log.kind(row) == "launch" and found == (launch.name, launch.sip, launch.start_ps, self.t):
                return partial(self._host_end, row)
        raise StateError(f"launch {launch.name!r} on sip{launch.sip} has not ended: the run stopped before")

    def _run_end(self) -> Next:
        rows = self._host_rows()
        if not rows:
            return self._lost() if len(self.r) else None
        row = max(rows, key=lambda i: int(self.r.end_ps[i]))
        end = int(self.r.end_ps[row])
        self._add(end, "after the last operation", Part("wait", "host", self.t - end))
        return partial(self._host_end, row)

    def _host_rows(self) -> list[int]:
        """Return the host's operations that have ended."""
        found: list[int] = self.log.host[self.r.end_ps[self.log.host] <= self.t].tolist()
        return found

    def _host_end(self, row: int) -> Next:
        command, kind = int(self.r.command[row]), self.log.kind(row)
        if kind in ("launch", "map", "install"):
            return partial(self._response, command, "host")
        for i in self.log.transfers_of(command, end_ps=self.t):
            return partial(self._transfer_end, i)
        start = int(self.r.start_ps[row])
        self._add(start, kind, Part("wait", "host", self.t - start))
        return partial(self._host_start, row)

    def _host_start(self, row: int) -> Next:
        """Find the operation that the host waited for before it began this one."""
        if not self.t:
            return None
        self._because("the operation before")
        ended, commands = self._host_rows(), self.r.commands
        before = [i for i in ended if i < row and self.r.end_ps[i] == self.t]
        before = before or [i for i in ended if i != row and self.r.start_ps[i] < self.t]
        if not before:
            return None
        sip, of = commands[self.r.command[row]].sip, self.r.command
        last = max(before, key=lambda i: (int(self.r.end_ps[i]), commands[of[i]].sip == sip, i))
        end = int(self.r.end_ps[last])
        self._add(end, "the program", Part("wait", "host", self.t - end))
        return partial(self._host_end, last)

    def _message(self, command: int, *, src: str = "", dst: str = "", **values: int) -> int | None:
        """Return a message of a launch or a map between nodes."""
        for i in self.log.transfers_of(command, kind=MESSAGE, **values):
            a, b = self.log.ends(i)
            if a.endswith(src) and (b == dst or not dst):
                return i
        return None

    def _add_message(self, message: int, what: str = "message {} to {}") -> None:
        start, nbytes, route = (self.log.get(message, x) for x in ("start_ps", "nbytes", "route"))
        parts = self.log.routes.parts(route, nbytes, self.t - start)
        self._add(start, what.format(*self.log.ends(message)), *parts)

    def _response(self, command: int, dst: str) -> Next:
        """Add the completion that came last; find its sender."""
        self._because("the last completion" if dst == "host" else "the last answer")
        message = self._message(command, dst=dst, end_ps=self.t)
        if message is None:
            return self._lost()
        src = self.log.ends(message)[0]
        self._add_message(message)
        if not src.endswith(".pe_cpu"):
            return partial(self._response, command, src)
        self._because("the program's end")
        return partial(self._program_end if command in self.log.begin else self._decoded, src, command)

    def _decoded(self, cpu: str, command: int) -> Next:
        """Add the copies of a message that a PE_CPU has just decoded, back to the host."""
        for key in ("cube.pe.pe_cpu.command_ns", "cube.m_cpu.service_ns", "sip.io.io_cpu.service_ns"):
            message = self._message(command, dst=cpu)
            if message is None:
                return self._lost()
            arrived = self.log.get(message, "end_ps")
            service = min(self.log.spec_ps(key), self.t - arrived)
            parts = [Part("cpu", cpu, service), Part("queueing", cpu, self.t - arrived - service)]
            self._add(arrived, f"{cpu} takes the message", *(p for p in parts if p.ps))
            self._because("its message")
            self._add_message(message)
            cpu = self.log.ends(message)[0]
        return partial(self._host_start, self.log.row[command])

    def _program_start(self, cpu: str, command: int) -> Next:
        """Add the launch: the common start of its PEs, or the program's late message."""
        self._because("the launch")
        if self.t > self.log.begin[command]:
            return partial(self._decoded, cpu, command)
        for i in self.log.transfers_of(command, kind=MESSAGE, end_ps=self.t - self.log.command_ps):
            node = self.log.ends(i)[1]
            if node.endswith(".pe_cpu"):
                return partial(self._decoded, node, command)
        first, message = (self._message(command, src=src) for src in (".io.io_cpu", "host"))
        if first is None:
            return self._lost()
        sent = self.log.get(first, "start_ps")
        self._add(sent, "until the common start", Part("start", "the launch's last PE", self.t - sent))
        if message is None:
            return self._lost()
        arrived = self.log.get(message, "end_ps")
        self._add(arrived, "io_cpu", Part("cpu", self.log.ends(message)[1], self.t - arrived))
        self._add_message(message)
        return partial(self._host_start, self.log.row[command])

    # Commands of a program.

    def _program_end(self, cpu: str, launch: int) -> Next:
        commands = self.log.programs.get((cpu.removesuffix(".pe_cpu"), launch), [])
        for command in reversed(commands):
            if self.log.done.get(command) == self.t:
                return partial(self._command_end, command)
        if commands and self.log.issued[commands[-1]] == self.t:
            return partial(self._issue, commands[-1])
        return partial(self._program_start, cpu, launch)

    def _issue(self, command: int) -> Next:
        pe = self.log.pe_name(command)
        self._because("PE_CPU's issue")
        base = self.t - self.log.command_ps
        name = self.r.commands[command].name
        self._add(base, f"{pe} issues {name}", Part("issue", f"{pe}.pe_cpu", self.t - base))
        launch = self.log.launch[command]
        if launch < 0:
            return self._lost()
        program = self.log.programs[pe, launch]
        before = program[: bisect_left(program, command)]
        if not before:
            return partial(self._program_start, f"{pe}.pe_cpu", launch)
        if self.log.issued[before[-1]] == self.t:
            return partial(self._issue, before[-1])
        for other in reversed(before):
            if self.log.done.get(other) == self.t:
                self._because("the program waits")
                return partial(self._command_end, other)
        return self._lost()

    def _ready(self, command: int) -> Next:
        """Find the issue of a command, or the command before that it depends on."""
        if self.log.issued.get(command) == self.t:
            return partial(self._issue, command)
        for other in self.log.after.get(command, ()):
            if self.log.done.get(other) == self.t:
                self._because("a command before")
                return partial(self._command_end, other)
        return self._lost()

    def _command_end(self, command: int) -> Next:
        row = self.log.row[command]
        kind = self.log.kind(row)
        if kind == "recv":
            return partial(self._slot_read, row)
        if kind == "send":
            return self._arrival(command)
        if kind == "math":
            return partial(self._served, row)
        only = {"kind": WRITE} if kind == "composite" else {}
        for i in self.log.transfers_of(command, end_ps=self.t, **only):
            return partial(self._transfer_end, i)
        if kind == "composite":
            pe = self.log.pe(command)
            store = pe.row.get((command, pe.tiles[command] - 1, "s"))
            if store is not None and pe.left_at(store, self.t):
                return partial(self._left, store)
            return partial(self._composite, command, int(self.r.start_ps[row]))
        return self._lost()

    def _composite(self, command: int, start: int) -> Next:
        """Add a composite whose tiles were not logged as one step."""
        pe, name = self.log.pe_name(command), self.r.commands[command].name
        scheduler = f"{pe}.pe_scheduler"
        what = f"composite {name} of {pe}, tiles not logged"
        self._add(start, what, Part("composite", scheduler, self.t - start))
        ready = self.log.ready_ps(command)
        if self.t == ready + self.log.lookup_ps + self.log.tile_ps:
            self._add(ready, "planning", Part("plan", scheduler, self.t - ready))
            return partial(self._ready, command)
        return partial(self._engines, command)

    def _engines(self, command: int) -> Next:
        """Find the composite before, whose tiles were not logged, that occupied the engines."""
        self._because("the engines' previous work")
        pe = self.log.pe(command)
        for other in reversed(pe.commands):
            row = self.log.row.get(other, -1)
            if other >= command or row < 0 or other in pe.tiles or self.log.kind(row) != "composite":
                continue
            if self.r.start_ps[row] < self.t <= self.r.end_ps[row]:
                return partial(self._composite, other, int(self.r.start_ps[row]))
        ready = self.log.ready_ps(command)
        if ready < self.t:
            wait = Part("wait", f"{self.log.pe_name(command)}.pe_scheduler", self.t - ready)
            self._add(ready, f"{self.r.commands[command].name} waits for its engines", wait)
            return partial(self._ready, command)
        return self._lost()

    # Messages between PEs.

    def _slot_read(self, row: int) -> Next:
        """Add a receive's read of its slot; find the part's arrival, or the slot read before."""
        log, command, start = self.log, int(self.r.command[row]), int(self.r.start_ps[row])
        pe, info = log.pe_name(command), self.r.commands[command]
        sends = [c for c in log.after.get(command, ()) if log.kind(log.row[c]) == "send"]
        slots = {log.slot_of(i) for send in sends for i in log.transfers_of(send, kind=PART)}
        where = slots.pop().replace(".store", ".fetch") if slots else f"{pe}.pe_fetch_store.fetch"
        self._add(start, f"{info.name} from {info.tag}", Part("slot", where, self.t - start))
        for send in sends:
            step = self._arrival(send)
            if step is not None:
                self._because("a message's arrival")
                return step
        for other in self._slots_read(pe):
            self._because("the slot read before")
            return partial(self._slot_read, other)
        return self._ready(command)

    def _slots_read(self, pe: str) -> Iterator[int]:
        """Yield the rows of a PE's receives that end now."""
        rows = np.flatnonzero((self.r.end_ps == self.t) & (self.r.start_ps < self.t))
        name = f"{pe}.pe_ipcq"
        yield from (i for i in rows.tolist() if self.log.kind(i) == "recv" and self.log.component(i) == name)

    def _arrival(self, send: int) -> Next:
        for i in self.log.transfers_of(send, kind=PART, end_ps=self.t):
            return partial(self._part, i)
        return None

    def _part(self, part: int) -> Next:
        """Add the route of a part of a message, and the way into its slot."""
        start, arrived, route, nbytes = (self.log.get(part, x) for x in ("start_ps", "arrived_ps", "route", "nbytes"))
        src, dst = self.log.ends(part)
        parts = self.log.routes.parts(route, nbytes, arrived - start)
        if self.t > arrived:
            parts.append(Part("slot", self.log.slot_of(part), self.t - arrived))
        self._add(start, f"part {self.log.get(part, 'tile')} of a message from {src} to {dst}", *parts)
        return partial(self._part_start, part)

    def _part_start(self, part: int) -> Next:
        """Find the read of a part from memory if it has just ended, else why it had its slot."""
        send, tile = self.log.get(part, "command"), self.log.get(part, "tile")
        for i in self.log.transfers_of(send, kind=FETCH, tile=tile, end_ps=self.t):
            self._because("what it carries")
            return partial(self._transfer_end, i)
        return self._slot_free(part)

    def _fetch_start(self, fetch: int) -> Next:
        send, tile = self.log.get(fetch, "command"), self.log.get(fetch, "tile")
        return self._slot_free(self.log.transfers_of(send, kind=PART, tile=tile)[0])

    def _slot_free(self, part: int) -> Next:
        """Find why a part had its slot now: its credit, its send, or the part before."""
        log, send, tile = self.log, self.log.get(part, "command"), self.log.get(part, "tile")
        credit = log.by_key.get(log.get(part, "opener"), -1)
        if credit >= 0 and log.get(credit, "kind") == CREDIT and log.get(credit, "end_ps") == self.t:
            self._because("a credit")
            return partial(self._credit, credit)
        if log.ready_ps(send) == self.t:
            self._because("its send")
            return partial(self._ready, send)
        pe, columns = log.pe_name(send), log.transfers
        together = np.isin(columns["kind"], (PART, FETCH)) & (columns["start_ps"] == self.t)
        for i in np.flatnonzero(together).tolist():
            other = log.get(i, "command")
            if (other, log.get(i, "tile")) < (send, tile) and log.pe_name(other) == pe:
                self._because("the part before")
                return partial(self._part_start if log.get(i, "kind") == PART else self._fetch_start, i)
        return self._lost()

    def _credit(self, credit: int) -> Next:
        """Add the route of a credit; find what freed its slot."""
        self._add_message(credit, "credit from {} to {}")
        self._because("a slot's release")
        pe = self.log.ends(credit)[0].removesuffix(".pe_dma")
        for row in self._slots_read(pe):
            return partial(self._slot_read, row)
        for command in reversed(self.log.commands.get(pe, [])):
            if self.log.done.get(command) == self.t:
                return partial(self._command_end, command)
            if self.log.issued[command] == self.t:
                return partial(self._issue, command)
        return self._lost()

    # Tiles in the engines.

    def _left(self, row: int) -> Next:
        """Find what let a tile leave its stage: its service, or the next stage, which took another tile."""
        if self.r.end_ps[row] == self.t:
            return partial(self._served, row)
        self._because("a full buffer behind")
        pe = self.log.pe(int(self.r.command[row]))
        taken = pe.taken.get(row)
        if isinstance(taken, tuple):
            for i in pe.of_tile.get((*taken, WRITE), ()):
                if self.log.get(i, "start_ps") == self.t:
                    return partial(self._sent, i)
        elif taken is not None:
            return partial(self._taken, taken)
        return self._lost()

    def _served(self, row: int) -> Next:
        start, part = int(self.r.start_ps[row]), ENGINE_PARTS[self.log.kind(row)]
        tile, name = int(self.r.tile[row]), self.r.commands[self.r.command[row]].name
        what = f"{part} of {name}" + (f", tile {tile}" if tile >= 0 else "")
        self._add(start, what, Part(part, self.log.component(row), self.t - start))
        return partial(self._taken, row)

    def _taken(self, row: int) -> Next:
        """Find why an engine began: the work before, its operands, or its command."""
        command, tile = int(self.r.command[row]), int(self.r.tile[row])
        pe = self.log.pe(command)
        before, source = pe.before.get(row), pe.source.get(row)
        for other, why in ((before, "the engine's previous work"), (source, "the tile's arrival")):
            if other is not None and pe.left_at(other, self.t):
                self._because(why)
                return partial(self._left, other)
        if tile < 0:
            return partial(self._ready if self.log.ready_ps(command) == self.t else self._engines, command)
        for i in pe.of_tile.get((command, tile, READ), ()):
            if self.log.get(i, "end_ps") == self.t:
                self._because("an operand's arrival")
                return partial(self._transfer_end, i)
        if source is None and self.log.planned_ps(command, tile) == self.t:
            return partial(self._planned, command, tile)
        return self._lost()

    def _planned(self, command: int, tile: int) -> Next:
        self._because("PE_SCHEDULER's plan")
        base, before = self.log.plan_base(command)
        scheduler = f"{self.log.pe_name(command)}.pe_scheduler"
        self._add(base, f"planning of {tile + 1} tiles", Part("plan", scheduler, self.t - base))
        self._add_lookup(command, base)
        if before is not None:
            return partial(self._planned, before, self.log.pe(command).tiles[before] - 1)
        return partial(self._ready, command)

    def _add_lookup(self, command: int, end: int) -> None:
        mmu = Part("lookup", f"{self.log.pe_name(command)}.pe_mmu", self.log.lookup_ps)
        self._add(end - mmu.ps, "address look-up", mmu)

    # Transactions with memories.

    def _transfer_end(self, transfer: int) -> Next:
        """Add a transaction: the way back, the memory as long as it had no gap, and the way there."""
        log, routes = self.log, self.log.routes
        kind, route, nbytes, served, arrived, start, since = (
            log.get(transfer, x) for x in ("kind", "route", "nbytes", "served_ps", "arrived_ps", "start_ps", "since_ps")
        )
        memory, read = routes.ends(route)[0], kind in (READ, FETCH)
        what = f"{nbytes:,} B {'from' if read else 'to'} {memory}"
        if served < 0:
            self._add(start, what, *routes.parts(route, nbytes, self.t - start, reverse=kind == WRITE))
            return partial(self._sent, transfer)
        opener = log.by_key.get(log.get(transfer, "opener"))
        alone = opener is None or opener == transfer
        if alone and read and routes.rate_gbs(route) * (served - arrived) < nbytes * 1000:
            # The links are slower than the memory: what they carry at the same time is not the memory's.
            parts = routes.parts(route, 0, arrived - start, reverse=True)
            self._add(start, what, *parts, *routes.parts(route, nbytes, self.t - arrived))
            return partial(self._sent, transfer)
        back = nbytes if read else 16
        self._add(served, f"{what}: way back", *routes.parts(route, back, self.t - served))
        if opener is None:
            opener, since = transfer, arrived
        self._add(since, f"{memory} at work", Part("memory", memory, self.t - since))
        self._because("its request")
        kind, route, nbytes, start = (log.get(opener, x) for x in ("kind", "route", "nbytes", "start_ps"))
        there = nbytes if kind == WRITE else 0
        self._add(start, f"request to {memory}", *routes.parts(route, there, self.t - start, reverse=True))
        return partial(self._sent, opener)

    def _sent(self, transfer: int) -> Next:
        """Find why a request was sent: its command, its tile, or the limits of its DMA channel."""
        log = self.log
        command, tile, kind = (log.get(transfer, x) for x in ("command", "tile", "kind"))
        if command not in log.issued:
            return partial(self._host_start, log.row[command])
        if kind == FETCH:
            return partial(self._fetch_start, transfer)
        pe = log.pe(command)
        if tile < 0:
            if log.ready_ps(command) + log.lookup_ps == self.t:
                self._add_lookup(command, self.t)
                return partial(self._ready, command)
        elif kind == READ:
            if log.planned_ps(command, tile) == self.t:
                return partial(self._planned, command, tile)
            buffers = int(log.spec("cube.pe.pe_tcm.buffers_per_operand"))
            for back in {buffers, buffers * pe.kt.get(command, 1)}:
                row = pe.row.get((command, tile - back, "f"))
                if row is not None and pe.left_at(row, self.t):
                    self._because("a free tile buffer")
                    return partial(self._left, row)
        else:
            row = pe.row.get((command, tile, "s"))
            if row is not None and pe.left_at(row, self.t):
                self._because("the tile's arrival")
                return partial(self._left, row)
        channel, at = pe.channel[kind], pe.place[transfer]
        if at and log.get(channel[at - 1], "start_ps") == self.t:
            return partial(self._sent, channel[at - 1])
        for other in reversed(channel[:at]):
            if log.get(other, "end_ps") == self.t:
                self._because("the limit of outstanding requests")
                return partial(self._transfer_end, other)
        return partial(self._engines, command)
