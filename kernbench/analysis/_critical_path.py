"""The critical path of a run or a launch: steps and waits, each beginning where its cause ended, from end to start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import pairwise
from operator import attrgetter, getitem
from typing import Any, TypeAlias

import numpy as np

from kernbench._units import decimal_product, ns_to_ps
from kernbench.analysis._records import CREDIT, FETCH, MESSAGE, PART, READ, WRITE, Launch, Records, Stage, Transfer
from kernbench.analysis._transfer import Part, RouteBreakdown
from kernbench.analysis.breakdown import COMMAND_KINDS, ENGINE_PARTS, ENGINES, HOST_KINDS, TILE_STAGES
from kernbench.analysis.result import span
from kernbench.errors import StateError

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
    host: bool = False  # of the host's copies and messages, not of a program


@dataclass(frozen=True)
class CriticalPath:
    """A chain of steps; their times sum to `makespan_ps`, the latency of the run or launch."""

    steps: tuple[Step, ...]
    makespan_ps: int

    def parts(self) -> Counter[tuple[str, str]]:
        """Return the time [ps] of each (kind, resource) on the path; the values sum to the makespan."""
        total: Counter[tuple[str, str]] = Counter()
        for step in self.steps:
            for part in step.parts:
                total[part.kind, part.resource] += part.ps
        return total

    def of_host(self, host: bool) -> CriticalPath:
        """Return the steps of the host's copies, launches and completions, or the others, with their time."""
        steps = tuple(step for step in self.steps if step.host is host)
        return CriticalPath(steps, sum(step.end_ps - step.start_ps for step in steps))

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
        dependencies = records.dependencies
        self.records, self.transfers = records, dependencies.transfers
        self.routes = RouteBreakdown(records)
        self.begin: dict[int, int] = dict(dependencies.begin.tolist())
        self.after: dict[int, list[int]] = {}
        for command, other in dependencies.after.tolist():
            self.after.setdefault(command, []).append(other)
        self.host = np.flatnonzero(records.is_kind(*HOST_KINDS))
        whole = records.is_kind(*COMMAND_KINDS) | (records.is_kind("math") & (records.tile < 0))
        self.row = {int(records.command[i]): i for i in np.flatnonzero(whole).tolist()}
        self.done = {command: int(records.end_ps[i]) for command, i in self.row.items()}
        self.issued: dict[int, int] = {}
        self.launch: dict[int, int] = {}
        self.commands: dict[str, list[int]] = {}
        self.programs: dict[tuple[str, int], list[int]] = {}
        for command, issued, launch in dependencies.issued.tolist():
            self.issued[command], self.launch[command] = issued, launch
            pe = self.pe_name(command)
            self.commands.setdefault(pe, []).append(command)
            self.programs.setdefault((pe, launch), []).append(command)
        self.stages: dict[int, list[Stage]] = {}
        place = [TILE_STAGES.index(kind) if kind in TILE_STAGES else -1 for kind in records.kinds]
        for stage in sorted(map(Stage._make, dependencies.stages.tolist()), key=lambda stage: place[stage.kind]):
            self.stages.setdefault(stage.command, []).append(stage)
        self._by_key = {key: i for i, key in enumerate(self.transfers["key"].tolist()) if key >= 0}
        self._order = np.argsort(self.transfers["command"], kind="stable")
        self._command = self.transfers["command"][self._order]
        self._pes: dict[str, _Pe] = {}

    def spec(self, key: str) -> Any:
        """Return a value of the machine file."""
        return reduce(getitem, key.split("."), self.records.spec)

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

    def transfers_of(self, *commands: int, **values: int) -> list[Transfer]:
        """Return the transfers of commands whose columns have these values."""
        low, high = (np.searchsorted(self._command, np.array(commands) + more).tolist() for more in (0, 1))
        rows = np.concatenate([self._order[:0], *(self._order[a:b] for a, b in zip(low, high, strict=True))])
        for column, value in values.items():
            rows = rows[self.transfers[column][rows] == value]
        return self.records.dependencies.at(rows)

    def opener(self, transfer: Transfer) -> Transfer | None:
        """Return the transfer that a memory's busy time began with, or the credit that a part waited for."""
        row = self._by_key.get(transfer.opener, -1)
        return self.records.dependencies.at(np.array([row]))[0] if row >= 0 else None

    def ends(self, transfer: Transfer) -> tuple[str, str]:
        """Return the nodes at the beginning and the end of a transfer's route."""
        return self.routes.ends(transfer.route)

    def kind(self, row: int) -> str:
        return str(self.records.kinds[self.records.kind[row]])

    def name(self, command: int) -> str:
        return self.records.commands[command].name

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

    def need(self, stage: Stage, pe: str) -> Part:
        """Return what a stage of a PE needed for all tiles of a command at least, and where."""
        kind = self.records.kinds[stage.kind]
        if kind in ENGINE_PARTS:
            return Part(ENGINE_PARTS[kind], f"{pe}.{ENGINES[kind]}", stage.busy_ps)
        memory, (link, bw_gbs) = self.routes.ends(stage.route)[0], self.routes.slowest(stage.route)
        hbm = self.spec("cube.hbm")
        slice_gbs = decimal_product(hbm["channels"], hbm["channel_bw_gbs"], hbm["efficiency"])
        if ".hbm_ctrl." in memory and slice_gbs <= bw_gbs:
            return Part("memory", memory, round(stage.nbytes * 1000 / slice_gbs))
        return Part("serialization", link, round(stage.nbytes * 1000 / bw_gbs))

    def slot_of(self, part: Transfer) -> str:
        """Return what writes a part into its slot: a memory, or the port of TCM."""
        return self.ends(part)[1].replace(".pe_dma", ".pe_fetch_store.store")


class _Pe:
    """One PE: its transfers by DMA channel and by tile, and its engines, joined by the buffers between them.

    A tile leaves a stage when it is served and a buffer behind is free; that is when the next stage takes the tile
    `stage_buffers` before it. `source` has the row that a row's tile came from, `taken` what took the tile whose
    departure made room.
    """

    def __init__(self, log: _Log, name: str) -> None:
        self._records, self._buffers = log.records, int(log.spec("cube.pe.pe_tcm.stage_buffers"))
        self.commands = log.commands.get(name, [])
        self.channel: dict[int, list[Transfer]] = {READ: [], WRITE: []}
        self.of_tile: dict[tuple[int, int, int], list[Transfer]] = {}
        for transfer in sorted(log.transfers_of(*self.commands), key=attrgetter("key")):
            if transfer.kind in self.channel:
                self.channel[transfer.kind].append(transfer)
                self.of_tile.setdefault((transfer.command, transfer.tile, transfer.kind), []).append(transfer)
        self.place = {transfer: i for transfers in self.channel.values() for i, transfer in enumerate(transfers)}
        self.source: dict[int, int] = {}
        self.taken: dict[int, int | tuple[int, int]] = {}
        self._left: dict[int, int] = {}
        self._join_stages(name)
        self._plan_commands(log)

    def _join_stages(self, name: str) -> None:
        components = {name: i for i, name in enumerate(self._records.components)}
        fetch, gemm, math, store = stages = [
            np.flatnonzero(self._records.component == components.get(f"{name}.{engine}", -1)).tolist()
            for engine in ENGINES.values()
        ]
        self.before = {b: a for rows in stages for a, b in pairwise(rows)}
        command, tile = self._records.command, self._records.tile
        self.row = {
            (int(command[r]), int(tile[r]), stage): r for stage, rows in zip("fgms", stages, strict=True) for r in rows
        }
        self.tiles, outputs = (Counter(command[rows].tolist()) for rows in (fetch, store))
        self.kt = {c: max(1, n // max(1, outputs[c])) for c, n in self.tiles.items()}
        math = [r for r in math if tile[r] >= 0]
        last = [r for r in gemm if (tile[r] + 1) % self.kt.get(command[r], 1) == 0]
        products, vectors = set(command[gemm].tolist()), set(command[math].tolist())

        def of(rows: Iterable[int], commands: set[int]) -> list[int]:
            return [r for r in rows if command[r] in commands]

        every = products | vectors | self.tiles.keys() | outputs.keys()
        self._join(of(fetch, products), gemm)
        self._join(of(fetch, every - products), of(math, every - products))
        self._join(of(last, vectors), of(math, products))
        self._join(of(last, every - vectors), of(store, every - vectors))
        self._join(math, of(store, vectors))
        written = {
            (c, t): min(transfer.start_ps for transfer in transfers)
            for (c, t, kind), transfers in self.of_tile.items()
            if kind == WRITE and t >= 0
        }
        leaving = of(store, {c for c, _ in written})
        for before, row in zip(leaving, leaving[self._buffers :], strict=False):
            output = int(command[before]), int(tile[before])
            if written.get(output, 0) > self._records.end_ps[row]:
                self._left[row], self.taken[row] = written[output], output

    def _join(self, puts: Sequence[int], takes: Sequence[int]) -> None:
        start, end = self._records.start_ps, self._records.end_ps
        self.source.update((take, put) for put, take in zip(puts, takes, strict=False))
        for take, put in zip(takes, puts[self._buffers :], strict=False):
            if start[take] > end[put]:
                self._left[put], self.taken[put] = int(start[take]), take

    def _plan_commands(self, log: _Log) -> None:
        """Find when PE_SCHEDULER began to plan each tiled command, and the command planned until then, if it waited."""
        self.plan: dict[int, tuple[int, int | None]] = {}
        free, last = 0, None
        for command in self.commands:
            if command in self.tiles:
                ready = log.ready_ps(command)
                base = max(ready, free) + log.lookup_ps
                self.plan[command] = base, last if free > ready else None
                free, last = base + self.tiles[command] * log.tile_ps, command

    def left_at(self, row: int, t: int) -> bool:
        """Return whether the tile of a row left its stage at `t`."""
        return bool(self._left.get(row, self._records.end_ps[row]) == t)


class _Backtrace:
    """Walks from the end of a run to its beginning; `t` is the current time.

    Each method adds the steps of one event, which ended at `t`, and returns the event to look at next.
    """

    def __init__(self, records: Records) -> None:
        self.r, self.log, self.t = records, _Log(records), records.makespan_ps
        self._host = True
        self._found: list[Step] = []
        order = np.argsort(records.end_ps[self.log.host], kind="stable")
        self._host_rows = self.log.host[order]  # in the order of their ends
        self._host_ends = records.end_ps[self._host_rows]

    def steps(self, start: int = 0, last: Launch | None = None) -> tuple[Step, ...]:
        """Walk from the run's end, or a launch's, to a time; return the steps in order of time."""
        step = self._run_end() if last is None else self._launch_end(last)
        seen = set()
        while step is not None and self.t > start:
            key = (step.func, step.args, self.t)
            step = self._lost() if key in seen else step()
            seen.add(key)
        self._add(start, "the program", Part("wait", UNKNOWN, self.t - start))
        return tuple(_cut(step, start) for step in reversed(self._found) if step.end_ps > start)

    def _add(self, start: int, what: str, *parts: Part) -> None:
        """Put a step from `start` to the current time before those found so far."""
        if start < self.t:
            self._found.append(Step(start, self.t, what, parts, host=self._host))
            self.t = start

    def _because(self, reason: str) -> None:
        """Note why the step found last began when it did."""
        if self._found and not self._found[-1].because:
            self._found[-1] = replace(self._found[-1], because=reason)

    def _lost(self) -> Next:
        """Continue with the command that ended last: the log does not tell the cause."""
        self._because(UNKNOWN)
        ended = [(end, command) for command, end in self.log.done.items() if end < self.t]
        if not ended:
            return None
        end, command = max(ended)
        self._add(end, "wait", Part("wait", UNKNOWN, self.t - end))
        return partial(self._command_end, command)

    # The host and its messages.

    def _launch_end(self, launch: Launch) -> Next:
        self.t = launch.end_ps
        for row in self._ended_at(self.t):
            op = self.r.op(row)
            found = op.kind, op.command.name, op.command.sip, op.start_ps
            if found == ("launch", launch.name, launch.sip, launch.start_ps):
                return partial(self._host_end, row)
        raise StateError(f"launch {launch.name!r} on sip{launch.sip} has not ended: the run stopped before")

    def _run_end(self) -> Next:
        if (end := self._end_before(self.t + 1)) is None:
            return self._lost() if len(self.r) else None
        row = self._ended_at(end)[0]
        self._add(end, "after the last operation", Part("wait", "host", self.t - end))
        return partial(self._host_end, row)

    def _ended_at(self, ps: int) -> list[int]:
        """Return the host's operations that ended at a time."""
        first, last = (np.searchsorted(self._host_ends, ps, side) for side in ("left", "right"))
        found: list[int] = self._host_rows[first:last].tolist()
        return found

    def _end_before(self, ps: int) -> int | None:
        """Return when the last of the host's operations ended that ended before a time."""
        count = int(np.searchsorted(self._host_ends, ps))
        return int(self._host_ends[count - 1]) if count else None

    def _host_end(self, row: int) -> Next:
        self._host = True
        command, kind = int(self.r.command[row]), self.log.kind(row)
        if kind in ("launch", "map", "install"):
            last = self._message(command, end_ps=self.t)  # to the host, or inside of a graph to io_cpu
            return self._lost() if last is None else partial(self._response, command, self.log.ends(last)[1])
        for transfer in self.log.transfers_of(command, end_ps=self.t):
            return partial(self._transfer_end, transfer)
        start = int(self.r.start_ps[row])
        self._add(start, kind, Part("wait", "host", self.t - start))
        return partial(self._host_start, row)

    def _host_start(self, row: int) -> Next:
        """Find the operation that the host waited for before it began this one."""
        self._host = True
        if not self.t:
            return None
        self._because("the operation before")
        commands, end = self.r.commands, self.t
        now = self._ended_at(end)
        before = [i for i in now if i < row] or [i for i in now if i != row and self.r.start_ps[i] < end]
        if not before:
            if (earlier := self._end_before(end)) is None:
                return None
            end, before = earlier, self._ended_at(earlier)
        sip, of = commands[self.r.command[row]].sip, self.r.command
        last = max(before, key=lambda i: (commands[of[i]].sip == sip, i))
        parts = self._start_of_work(self.t - end) if self.log.kind(row) == "launch" else []
        what = "start of the launch" if parts else "the program"
        self._add(end, what, *(parts or [Part("wait", "host", self.t - end)]))
        return partial(self._host_end, last)

    def _start_of_work(self, ps: int) -> list[Part]:
        """Split the time before a launch left the host, the last part first; empty if a launch costs nothing."""
        spent = {name: ns_to_ps(ns) for name, ns in self.r.spec["system"].get("host", {}).items()}
        if not any(spent.values()):
            return []
        fetch = min(ps, spent["descriptor_ns"])
        bell = min(ps - fetch, spent["doorbell_ns"])
        rest = ps - fetch - bell
        busy = spent["launch_ns"] or spent["collective_ns"]
        first = Part("cpu", "host.launch", rest) if busy else Part("wait", "host", rest)
        parts = Part("start", "host.descriptor", fetch), Part("start", "host.doorbell", bell), first
        return [part for part in parts if part.ps]

    def _message(self, command: int, *, src: str = "", dst: str = "", **values: int) -> Transfer | None:
        """Return a message of a launch or a map between nodes."""
        for message in self.log.transfers_of(command, kind=MESSAGE, **values):
            a, b = self.log.ends(message)
            if a.endswith(src) and (b == dst or not dst):
                return message
        return None

    def _add_message(self, message: Transfer, what: str = "message {} to {}") -> None:
        parts = self.log.routes.parts(message.route, message.nbytes, self.t - message.start_ps)
        self._add(message.start_ps, what.format(*self.log.ends(message)), *parts)

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
            took = self.t - message.end_ps
            service = min(self.log.spec_ps(key), took)
            parts = [Part("cpu", cpu, service), Part("queueing", cpu, took - service)]
            self._add(message.end_ps, f"{cpu} takes the message", *(p for p in parts if p.ps))
            self._because("its message")
            self._add_message(message)
            cpu = self.log.ends(message)[0]
        return self._host_order(command)

    def _host_order(self, command: int) -> Next:
        """Find why the host gave an order; the log of an interrupted run does not have those under way."""
        row = self.log.row.get(command)
        return self._lost() if row is None else partial(self._host_start, row)

    def _program_start(self, cpu: str, command: int) -> Next:
        """Add the launch: the common start of its PEs, or the program's late message."""
        self._host = True
        self._because("the launch")
        if self.t > self.log.begin.get(command, self.t):
            return partial(self._decoded, cpu, command)
        for message in self.log.transfers_of(command, kind=MESSAGE, end_ps=self.t - self.log.command_ps):
            node = self.log.ends(message)[1]
            if node.endswith(".pe_cpu"):
                return partial(self._decoded, node, command)
        first, sent = (self._message(command, src=src) for src in (".io.io_cpu", "host"))
        if first is None:
            return self._lost()
        wait = Part("start", "the launch's last PE", self.t - first.start_ps)
        self._add(first.start_ps, "until the common start", wait)
        row = self.log.row.get(command)
        if sent is None and row is None:
            return self._lost()
        taken = int(self.r.start_ps[row]) if sent is None else sent.end_ps
        self._add(taken, "io_cpu", Part("cpu", self.log.ends(first)[0], self.t - taken))
        if sent is not None:
            self._add_message(sent)
        return self._host_order(command)

    # Commands of a program.

    def _program_end(self, cpu: str, launch: int) -> Next:
        self._host = False
        commands = self.log.programs.get((cpu.removesuffix(".pe_cpu"), launch), [])
        return self._ended_or_issued(commands) or partial(self._program_start, cpu, launch)

    def _ended_or_issued(self, commands: Sequence[int]) -> Next:
        """Find the last of these commands that ended now, or whose issue did."""
        for command in reversed(commands):
            if self.log.done.get(command) == self.t:
                return partial(self._command_end, command)
            if self.log.issued[command] == self.t:
                return partial(self._issue, command)
        return None

    def _issue(self, command: int) -> Next:
        pe = self.log.pe_name(command)
        self._because("PE_CPU's issue")
        base = self.t - self.log.command_ps
        self._add(base, f"{pe} issues {self.log.name(command)}", Part("issue", f"{pe}.pe_cpu", self.t - base))
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
        self._host = False
        row = self.log.row[command]
        kind = self.log.kind(row)
        if kind in HOST_KINDS:
            return partial(self._host_end, row)
        if kind == "recv":
            return partial(self._slot_read, row)
        if kind == "send":
            return self._arrival(command)
        if kind == "math":
            return partial(self._served, row)
        only = {"kind": WRITE} if kind == "composite" else {}
        for transfer in self.log.transfers_of(command, end_ps=self.t, **only):
            return partial(self._transfer_end, transfer)
        if kind == "composite":
            pe = self.log.pe(command)
            store = pe.row.get((command, pe.tiles[command] - 1, "s"))
            return self._just_left(store) or partial(self._composite, command)
        return self._lost()

    def _composite(self, command: int) -> Next:
        """Add a composite whose tiles were not logged as one step."""
        pe, start = self.log.pe_name(command), int(self.r.start_ps[self.log.row[command]])
        scheduler = f"{pe}.pe_scheduler"
        what = f"{self.log.name(command)} of {pe}, all tiles"
        self._add(start, what, *self._stages(command, start))
        ready = self.log.ready_ps(command)
        if self.t == ready + self.log.lookup_ps + self.log.tile_ps:
            self._add(ready, "planning", Part("plan", scheduler, self.t - ready))
            return partial(self._ready, command)
        return partial(self._engines, command)

    def _stages(self, command: int, start: int) -> list[Part]:
        """Return the parts of a composite from `start` on: stages before the slowest one, that one, stages after it.

        A stage before has the time until the next one began, a stage after has that since the one before it ended.
        """
        log, pe = self.log, self.log.pe_name(command)
        stages = log.stages.get(command, [])
        if not stages:
            return [Part("composite", f"{pe}.pe_scheduler", self.t - start)]
        needs = [log.need(stage, pe) for stage in stages]
        slowest = max(range(len(stages)), key=lambda i: needs[i].ps)
        cuts = [*(x.start_ps for x in stages[1 : slowest + 1]), *(x.end_ps for x in stages[slowest:-1]), self.t]
        parts, at = [], start
        for need, cut in zip(needs, cuts, strict=True):
            end = min(max(cut, at), self.t)
            parts.append(replace(need, ps=end - at))
            at = end
        return [part for part in parts if part.ps]

    def _engines(self, command: int) -> Next:
        """Find the composite before, whose tiles were not logged, that occupied the engines."""
        self._because("the engines' previous work")
        pe = self.log.pe(command)
        for other in reversed(pe.commands):
            row = self.log.row.get(other, -1)
            if other >= command or row < 0 or other in pe.tiles or self.log.kind(row) != "composite":
                continue
            if self.r.start_ps[row] < self.t <= self.r.end_ps[row]:
                return partial(self._composite, other)
        ready = self.log.ready_ps(command)
        if ready < self.t:
            wait = Part("wait", f"{self.log.pe_name(command)}.pe_scheduler", self.t - ready)
            self._add(ready, f"{self.log.name(command)} waits for its engines", wait)
            return partial(self._ready, command)
        return self._lost()

    # Messages between PEs.

    def _slot_read(self, row: int) -> Next:
        """Add a receive's read of its slot; find the part's arrival, or the slot read before."""
        log, op, command = self.log, self.r.op(row), int(self.r.command[row])
        pe = log.pe_name(command)
        sends = [c for c in log.after.get(command, ()) if c in log.row and log.kind(log.row[c]) == "send"]
        slots = {log.slot_of(part) for send in sends for part in log.transfers_of(send, kind=PART)}
        where = slots.pop().replace(".store", ".fetch") if slots else f"{pe}.pe_fetch_store.fetch"
        self._add(op.start_ps, f"{op.command.name} from {op.command.tag}", Part("slot", where, self.t - op.start_ps))
        for send in sends:
            step = self._arrival(send)
            if step is not None:
                self._because("a message's arrival")
                return step
        step = self._slots_read(pe)
        if step is not None:
            self._because("the slot read before")
            return step
        return self._ready(command)

    def _slots_read(self, pe: str) -> Next:
        """Find a receive of a PE that ends now."""
        for row in np.flatnonzero((self.r.end_ps == self.t) & (self.r.start_ps < self.t)).tolist():
            if self.log.kind(row) == "recv" and self.r.components[self.r.component[row]] == f"{pe}.pe_ipcq":
                return partial(self._slot_read, row)
        return None

    def _arrival(self, send: int) -> Next:
        for part in self.log.transfers_of(send, kind=PART, end_ps=self.t):
            return partial(self._part, part)
        return None

    def _part(self, part: Transfer) -> Next:
        """Add the route of a part of a message, and the way into its slot."""
        src, dst = self.log.ends(part)
        parts = self.log.routes.parts(part.route, part.nbytes, part.arrived_ps - part.start_ps)
        if self.t > part.arrived_ps:
            parts.append(Part("slot", self.log.slot_of(part), self.t - part.arrived_ps))
        self._add(part.start_ps, f"part {part.tile} of a message from {src} to {dst}", *parts)
        return partial(self._part_start, part)

    def _part_start(self, part: Transfer) -> Next:
        """Find the read of a part from memory if it has just ended, else why it had its slot."""
        for fetch in self.log.transfers_of(part.command, kind=FETCH, tile=part.tile, end_ps=self.t):
            self._because("what it carries")
            return partial(self._transfer_end, fetch)
        return self._slot_free(part)

    def _fetch_start(self, fetch: Transfer) -> Next:
        parts = self.log.transfers_of(fetch.command, kind=PART, tile=fetch.tile)
        return self._slot_free(parts[0]) if parts else self._lost()  # under way when the run was interrupted

    def _slot_free(self, part: Transfer) -> Next:
        """Find why a part had its slot now: its credit, its send, or the part before."""
        log, credit = self.log, self.log.opener(part)
        if credit is not None and credit.kind == CREDIT and credit.end_ps == self.t:
            self._because("a credit")
            return partial(self._credit, credit)
        if log.ready_ps(part.command) == self.t:
            self._because("its send")
            return partial(self._ready, part.command)
        pe, columns = log.pe_name(part.command), log.transfers
        together = np.isin(columns["kind"], (PART, FETCH)) & (columns["start_ps"] == self.t)
        for other in self.r.dependencies.at(np.flatnonzero(together)):
            if (other.command, other.tile) < (part.command, part.tile) and log.pe_name(other.command) == pe:
                self._because("the part before")
                return partial(self._part_start if other.kind == PART else self._fetch_start, other)
        return self._lost()

    def _credit(self, credit: Transfer) -> Next:
        """Add the route of a credit; find what freed its slot."""
        self._add_message(credit, "credit from {} to {}")
        self._because("a slot's release")
        pe = self.log.ends(credit)[0].removesuffix(".pe_dma")
        return self._slots_read(pe) or self._ended_or_issued(self.log.commands.get(pe, [])) or self._lost()

    # Tiles in the engines.

    def _just_left(self, row: int | None, reason: str = "") -> Next:
        """Find the stage of a row if its tile has just left it."""
        if row is None or not self.log.pe(int(self.r.command[row])).left_at(row, self.t):
            return None
        self._because(reason)
        return partial(self._left, row)

    def _left(self, row: int) -> Next:
        """Find what let a tile leave its stage: its service, or the next stage, which took another tile."""
        if self.r.end_ps[row] == self.t:
            return partial(self._served, row)
        self._because("a full buffer behind")
        pe = self.log.pe(int(self.r.command[row]))
        taken = pe.taken.get(row)
        if isinstance(taken, tuple):
            for transfer in pe.of_tile.get((*taken, WRITE), ()):
                if transfer.start_ps == self.t:
                    return partial(self._sent, transfer)
        elif taken is not None:
            return partial(self._taken, taken)
        return self._lost()

    def _served(self, row: int) -> Next:
        op = self.r.op(row)
        part = ENGINE_PARTS[op.kind]
        what = f"{part} of {op.command.name}" + (f", tile {op.tile}" if op.tile >= 0 else "")
        self._add(op.start_ps, what, Part(part, op.component, self.t - op.start_ps))
        return partial(self._taken, row)

    def _taken(self, row: int) -> Next:
        """Find why an engine began: the work before, its operands, or its command."""
        command, tile = int(self.r.command[row]), int(self.r.tile[row])
        pe = self.log.pe(command)
        source = pe.source.get(row)
        step = self._just_left(pe.before.get(row), "the engine's previous work")
        step = step or self._just_left(source, "the tile's arrival")
        if step is not None:
            return step
        if tile < 0:
            return partial(self._ready if self.log.ready_ps(command) == self.t else self._engines, command)
        for transfer in pe.of_tile.get((command, tile, READ), ()):
            if transfer.end_ps == self.t:
                self._because("an operand's arrival")
                return partial(self._transfer_end, transfer)
        step = self._just_planned(command, tile) if source is None else None
        return step or self._lost()

    def _plan_of(self, command: int) -> tuple[int, int | None]:
        base = self.log.ready_ps(command) + self.log.lookup_ps
        return self.log.pe(command).plan.get(command, (base, None))

    def _just_planned(self, command: int, tile: int) -> Next:
        """Find the plan of a tile if PE_SCHEDULER has just made it."""
        base, _ = self._plan_of(command)
        return partial(self._planned, command, tile) if base + (tile + 1) * self.log.tile_ps == self.t else None

    def _planned(self, command: int, tile: int) -> Next:
        self._because("PE_SCHEDULER's plan")
        base, before = self._plan_of(command)
        scheduler = f"{self.log.pe_name(command)}.pe_scheduler"
        self._add(base, f"planning of {tile + 1} tiles", Part("plan", scheduler, self.t - base))
        self._add_lookup(command)
        if before is not None:
            return partial(self._planned, before, self.log.pe(command).tiles[before] - 1)
        return partial(self._ready, command)

    def _add_lookup(self, command: int) -> None:
        mmu = Part("lookup", f"{self.log.pe_name(command)}.pe_mmu", self.log.lookup_ps)
        self._add(self.t - mmu.ps, "address look-up", mmu)

    # Transactions with memories.

    def _transfer_end(self, transfer: Transfer) -> Next:
        """Add a transaction: the way back, the memory as long as it had no gap, and the way there."""
        routes, (kind, route, nbytes) = self.log.routes, (transfer.kind, transfer.route, transfer.nbytes)
        memory, read = routes.ends(route)[0], kind in (READ, FETCH)
        what = f"{nbytes:,} B {'from' if read else 'to'} {memory}"
        start, arrived, served = transfer.start_ps, transfer.arrived_ps, transfer.served_ps
        if served < 0:
            self._add(start, what, *routes.parts(route, nbytes, self.t - start, reverse=kind == WRITE))
            return partial(self._sent, transfer)
        opener, since = self.log.opener(transfer), transfer.since_ps
        if opener is None:
            opener, since = transfer, arrived
        if opener == transfer and read and routes.slowest(route)[1] * (served - arrived) < nbytes * 1000:
            # The links are slower than the memory: what they carry at the same time is not the memory's.
            parts = routes.parts(route, 0, arrived - start, reverse=True)
            self._add(start, what, *parts, *routes.parts(route, nbytes, self.t - arrived))
            return partial(self._sent, transfer)
        self._add(served, f"{what}: way back", *routes.parts(route, nbytes if read else 16, self.t - served))
        self._add(since, f"{memory} at work", Part("memory", memory, self.t - since))
        self._because("its request")
        there = opener.nbytes if opener.kind in (WRITE, PART) else 0
        parts = routes.parts(opener.route, there, self.t - opener.start_ps, reverse=opener.kind != PART)
        self._add(opener.start_ps, f"request to {memory}", *parts)
        return partial(self._sent, opener)

    def _sent(self, transfer: Transfer) -> Next:
        """Find why a request was sent: its command, its tile, or the limits of its DMA channel."""
        if transfer.kind == PART:
            return partial(self._part_start, transfer)
        log, command, tile = self.log, transfer.command, transfer.tile
        if command not in log.issued:
            return self._host_order(command)
        if transfer.kind == FETCH:
            return partial(self._fetch_start, transfer)
        pe, step = log.pe(command), None
        if tile < 0:
            if log.ready_ps(command) + log.lookup_ps == self.t:
                self._add_lookup(command)
                return partial(self._ready, command)
        elif transfer.kind == READ:
            step = self._just_planned(command, tile)
            buffers = int(log.spec("cube.pe.pe_tcm.buffers_per_operand"))
            for back in {buffers, buffers * pe.kt.get(command, 1)}:
                step = step or self._just_left(pe.row.get((command, tile - back, "f")), "a free tile buffer")
        else:
            step = self._just_left(pe.row.get((command, tile, "s")), "the tile's arrival")
        if step is not None:
            return step
        before = pe.channel[transfer.kind][: pe.place[transfer]] if transfer in pe.place else []
        if before and before[-1].start_ps == self.t:
            return partial(self._sent, before[-1])
        for other in reversed(before):
            if other.end_ps == self.t:
                self._because("the limit of outstanding requests")
                return partial(self._transfer_end, other)
        return partial(self._engines, command)


def _cut(step: Step, start: int) -> Step:
    """Return a step as it counts from a time on: without its first parts if it was under way then."""
    if step.start_ps >= start:
        return step
    left, parts = step.end_ps - start, []
    for part in reversed(step.parts):
        parts.append(replace(part, ps=min(part.ps, left)))
        left -= parts[-1].ps
    return Step(start, step.end_ps, step.what, tuple(part for part in reversed(parts) if part.ps), host=step.host)
