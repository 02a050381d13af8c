"""The critical path of a run or a launch, from its end back to its beginning; each event has the cause recorded for it.

The engine records the cause of every event (`sim_engine._causes`); nothing here infers one from times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._units import ACK_BYTES, ns_to_ps
from kernbench.analysis._launches import span
from kernbench.analysis._records import (
    ARRIVED,
    BEGIN,
    CREDIT,
    FETCH,
    HELD,
    MESSAGE,
    MOVE,
    NONE,
    PART,
    PARTS,
    READ,
    ROW,
    SENT,
    STAGES,
    STEP,
    STEP_KINDS,
    TRANSFER_KINDS,
    WRITE,
    Launch,
    Records,
    StageWork,
    Transfer,
    Wait,
)
from kernbench.analysis._stages import COMMAND_KINDS, HOST_KINDS, STAGE_ENGINES, STAGE_LABELS
from kernbench.analysis._transfer import RouteBreakdown, TimePart, cut_to
from kernbench.config._schema import Host
from kernbench.errors import StateError

if TYPE_CHECKING:
    import pandas as pd

_UNKNOWN = "the log does not say"

# The reason why something began, by (what began, what it followed from).
_BECAUSE = {
    ("engine", "own row"): "the engine's previous work",
    ("engine", "stages"): "the engine's previous work",
    ("engine", "row"): "the tile's arrival",
    ("engine", "read"): "an operand's arrival",
    ("engine", "lookup"): "PE_SCHEDULER's plan",
    ("engine", "issue"): "PE_CPU's issue",
    ("engine", "command"): "a command before",
    ("read", "read"): "the limit of outstanding requests",
    ("read", "row"): "a free tile buffer",
    ("read", "stages"): "a tile before",
    ("read", "lookup"): "PE_SCHEDULER's plan",
    ("write", "write"): "the limit of outstanding requests",
    ("write", "row"): "the tile's arrival",
    ("write", "stages"): "a tile before",
    ("fetch", "credit"): "a credit",
    ("fetch", "issue"): "its send",
    ("fetch", "command"): "its send",
    ("fetch", "sent"): "the part before",
    ("part", "fetch"): "what it carries",
    ("part", "credit"): "a credit",
    ("part", "issue"): "its send",
    ("part", "command"): "its send",
    ("part", "sent"): "the part before",
    ("part", "part"): "the part before",
    ("lookup", "issue"): "PE_CPU's issue",
    ("lookup", "command"): "a command before",
    ("lookup", "lookup"): "PE_SCHEDULER's plan",
    ("stages", "stages"): "the engines' previous work",
    ("stages", "lookup"): "PE_SCHEDULER's plan",
    ("slot", "slot"): "the slot before",
    ("slot", "part"): "a message's arrival",
    ("slot", "issue"): "PE_CPU's issue",
    ("slot", "command"): "a command before",
    ("issue", "start"): "the launch",
    ("issue", "command"): "the program waits",
    ("message", "end"): "the program's end",
    ("message", "message"): "the last answer",
    ("cpu", "message"): "its message",
    ("cpu", "cpu"): "the message before",
    ("start", "cpu"): "the launch",
}
_ENGINE_OF = {STAGE_LABELS[stage]: engine for stage, engine in STAGE_ENGINES.items()}


@dataclass(frozen=True, slots=True)
class PathStep:
    """A step of the path: its `parts` sum to its time, `because` says why it began then, `row` is its log row."""

    start_ps: int
    end_ps: int
    what: str
    parts: tuple[TimePart, ...]
    because: str = ""
    host: bool = False  # one of the host's copies and messages
    row: int = -1


@dataclass(frozen=True)
class CriticalPath:
    """A chain of steps; their times sum to `makespan_ps`, the latency of the run or launch."""

    steps: tuple[PathStep, ...]
    makespan_ps: int

    def __iter__(self) -> Iterator[PathStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def to_pandas(self) -> pd.DataFrame:
        """Row for each part of each step: time [ns], resource, kind, and why the step began.

        `behind` names the transfer in front of a wait; `row` is the step's row in the log, -1 for a step without one.
        """
        import pandas as pd

        rows: list[tuple[Any, ...]] = []
        for step in self.steps:
            at = step.start_ps
            for part in step.parts:
                end = at + part.ps
                times = at / 1000, end / 1000
                rows.append((*times, part.resource, part.kind, step.what, step.because, part.behind, step.row))
                at = end
        return pd.DataFrame(
            rows, columns=["start_ns", "end_ns", "resource", "kind", "what", "because", "behind", "row"]
        )

    def parts(self) -> Counter[tuple[str, str]]:
        """Time [ps] of each (kind, resource) on the path; the values sum to the makespan."""
        total: Counter[tuple[str, str]] = Counter()
        for step in self.steps:
            for part in step.parts:
                total[part.kind, part.resource] += part.ps
        return total

    def of_host(self, host: bool) -> CriticalPath:
        """All steps of the host's copies, launches and completions, or all others, with their total time."""
        steps = tuple(step for step in self.steps if step.host is host)
        return CriticalPath(steps, sum(step.end_ps - step.start_ps for step in steps))

    def because(self) -> Counter[str]:
        return Counter(step.because for step in self.steps if step.because)


def critical_path(records: Records, launches: Sequence[Launch] = ()) -> CriticalPath:
    """Walk the critical path of a run, or from the start of the first of some launches to the end of the last.

    A step that was in progress when they started counts from then on. A StateError if the records lack causes.
    """
    check_logged(records)
    walk = _Walk(records)
    if not launches:
        return CriticalPath(walk.steps(), records.makespan_ps)
    start, end = span(launches)
    return CriticalPath(walk.steps(start, max(launches, key=lambda x: x.end_ps)), end - start)


def check_logged(records: Records) -> None:
    """Raise a StateError for a run that was not logged, without causes, or on a machine that is not known."""
    if not len(records) and records.makespan_ps:
        raise StateError('this run was not logged, so nothing says why; run it with log="operation" or log="tile"')
    if records.makespan_ps and not records.spec:
        raise StateError("these records do not hold the machine they were made on; run the bench again")
    if len(records.dependencies.causes) < len(records):
        raise StateError("these records are of a version without causes; run the bench again")


class _Walk:
    """Walks from the end of a run to its beginning; `t` is the current time.

    The method of an event, which ended at `t`, adds its steps and returns the event that they followed from.
    """

    def __init__(self, records: Records) -> None:
        self.r, self.d, self.t = records, records.dependencies, records.makespan_ps
        self.routes = RouteBreakdown(records)
        self._found: list[PathStep] = []
        self._component = -1
        self._methods = {
            ROW: self._row, BEGIN: self._begin, MOVE: self._transfer, SENT: self._sent, ARRIVED: self._arrived,
            STEP: self._step, STAGES: self._stages,
        }  # fmt: skip

    def steps(self, start: int = 0, last: Launch | None = None) -> tuple[PathStep, ...]:
        """Walk back from the end of the run, or of a launch, to `start` [ps]; return the steps in order of time."""
        event = self._run_end() if last is None else self._launch_end(last)
        seen: set[tuple[int, int]] = set()  # a damaged file may contain a cycle
        while event != NONE and self.t > start and (event, self.t) not in seen:
            seen.add((event, self.t))
            event = self._methods[event & 7](event >> 3)
        self._add(start, "the program", TimePart("wait", _UNKNOWN, self.t - start))
        return tuple(_cut(step, start) for step in reversed(self._found) if step.end_ps > start)

    # Where the walk begins.

    def _launch_end(self, launch: Launch) -> int:
        self.t = launch.end_ps
        rows = np.flatnonzero(self.r.is_kind("launch") & (self.r.end_ps == launch.end_ps))
        for row in rows.tolist():
            op = self.r.op(row)
            if (op.command.name, op.command.sip, op.start_ps) == (launch.name, launch.sip, launch.start_ps):
                return ROW | row << 3
        raise StateError(f"launch {launch.name!r} on sip{launch.sip} has not ended: the run stopped before")

    def _run_end(self) -> int:
        """Start at the host's last operation; in an interrupted run without one, at the last row."""
        if not len(self.r):
            return NONE
        host = np.flatnonzero(self.r.is_kind(*HOST_KINDS))
        rows = host if host.size else np.flatnonzero(self.d.causes[:, 0])
        if not rows.size:
            return NONE
        row = int(rows[np.argmax(self.r.end_ps[rows])])
        end = int(self.r.end_ps[row])
        self._add(end, "after the last operation", TimePart("wait", "host", self.t - end), host=True)
        return ROW | row << 3

    # Steps and causes.

    def _add(self, start: int, what: str, *parts: TimePart, host: bool = False, row: int = -1) -> None:
        if start < self.t:
            self._found.append(PathStep(start, self.t, what, parts, host=host, row=row))
            self.t = start

    def _because(self, effect: str, event: int, reason: str = "") -> int:
        """Record why the latest step began: it followed from `event`, which is returned."""
        reason = reason or _BECAUSE.get((effect, self._kind(event)), "")
        if reason and self._found and not self._found[-1].because:
            self._found[-1] = replace(self._found[-1], because=reason)
        return event

    def _kind(self, event: int) -> str:
        tag, i = event & 7, event >> 3
        if tag == ROW:
            if self._kind_of_row(i) in COMMAND_KINDS or self.r.tile[i] < 0:
                return "command"
            return "own row" if self.r.component[i] == self._component else "row"
        if tag == STEP:
            return STEP_KINDS[self.d.steps["kind"][i]]
        if tag == MOVE:
            return TRANSFER_KINDS[int(self.d.transfers["kind"][i])]
        return {BEGIN: "begin", SENT: "sent", ARRIVED: "arrived", STAGES: "stages"}.get(tag, "")

    def _time(self, event: int) -> int:
        tag, i = event & 7, event >> 3
        if tag == ROW:
            return int(self.r.end_ps[i])
        if tag == MOVE:
            return int(self.d.transfers["end_ps"][i])
        return int(self.d.steps["end_ps"][i]) if tag == STEP else 0

    def _first(self, causes: np.ndarray, i: int) -> int:
        return int(causes[i, 0]) & (HELD - 1)

    def _is_host(self, command: int) -> bool:
        return command < 0 or self.r.commands[command].pe < 0

    def _kind_of_row(self, row: int) -> str:
        return self.r.kinds[self.r.kind[row]]

    def _pe(self, command: int) -> str:
        return self.r.commands[command].place

    # Rows of the log.

    def _row(self, row: int) -> int:
        kind = self._kind_of_row(row)
        if kind in (*COMMAND_KINDS, "dma_in", "dma_out"):  # as a whole: its end followed from the end of a part
            return self._because("", self._first(self.d.causes, row), _ENDS.get(kind, ""))
        room = int(self.d.causes[row, 1]) >> 32
        if room & HELD:
            return self._because("", room & (HELD - 1), "a full buffer behind")
        op, part = self.r.op(row), STAGE_LABELS[kind]
        what = f"{part} of {op.command.name}" + (f", tile {op.tile}" if op.tile >= 0 else "")
        self._add(op.start_ps, what, TimePart(part, op.component, self.t - op.start_ps), row=row)
        return self._begin(row)

    def _begin(self, row: int) -> int:
        self._component = int(self.r.component[row])
        return self._planned("engine", self._first(self.d.causes, row), int(self.r.tile[row]))

    def _planned(self, effect: str, event: int, tile: int) -> int:
        """Follow a cause; a tile that follows the planning of its command waits for its turn."""
        self._because(effect, event)
        if tile >= 0 and self._kind(event) == "lookup":
            base, command = (int(self.d.steps[name][event >> 3]) for name in ("end_ps", "command"))
            self._add(base, "planning of tiles", TimePart("plan", f"{self._pe(command)}.pe_scheduler", self.t - base))
        return event

    # Steps that are no operations.

    def _step(self, i: int) -> int:
        steps = self.d.steps
        kind, ps, place, command = (int(steps[name][i]) for name in ("kind", "ps", "place", "command"))
        name, where, cause = STEP_KINDS[kind], self.d.places[place], int(steps["cause"][i]) & (HELD - 1)
        part, what = _STEPS[name]
        of = self.r.commands[command].name if command >= 0 else ""
        host = self._is_host(command)
        self._add(self.t - ps, what.format(of=of, where=where), TimePart(part, where, ps), host=host)
        if name == "lookup":  # after all tiles of the previous command are planned
            return self._planned(name, cause, 0)
        if host and name == "cpu" and cause & 7 != MOVE:  # of a graph: the SIP already has the launch
            return self._host_order(command, cause)
        return self._because(name, cause)

    def _stages(self, i: int) -> int:
        """Add the path through the stages of a PE whose tiles were not logged, as one step."""
        path = {name: int(column[i]) for name, column in self.d.paths.items()}
        command = path["command"]
        pe, parts = self._pe(command), []
        for name in PARTS:
            ps = path[f"{name}_ps"]
            if ps and name in ("read", "memory", "write"):
                parts += self._of_dma(command, name, ps, path["writes" if name == "write" else "reads"])
            elif ps:
                parts.append(TimePart(name, f"{pe}.{_ENGINE_OF.get(name, 'pe_scheduler')}", ps))
        start = self.t - sum(part.ps for part in parts)
        self._add(start, f"{self.r.commands[command].name} of {pe}, all tiles", *parts)
        return self._because("stages", path["before"])

    @cached_property
    def _dma(self) -> dict[tuple[int, str], StageWork]:
        """The DMA's stages, by command and kind."""
        found = map(StageWork._make, self.d.stages.tolist())
        return {(stage.command, self.r.kinds[stage.kind]): stage for stage in found if stage.route >= 0}

    def _of_dma(self, command: int, name: str, ps: int, requests: int) -> list[TimePart]:
        stage = self._dma.get((command, "dma_out" if name == "write" else "dma_in"))
        if stage is None and name == "memory":
            stage = self._dma.get((command, "dma_out"))
        if stage is None:
            return [TimePart("wait", f"{self._pe(command)}.pe_dma", ps)]
        if name == "memory":
            return [TimePart("memory", self.d.memories[stage.route], ps)]
        nbytes = stage.nbytes // max(stage.n, 1)
        return self.routes.parts(stage.route, nbytes, ps, reverse=name == "write", count=requests)

    # Transfers: with memories, of parts of messages, of messages to and from the host.

    def _at(self, i: int) -> Transfer:
        return self.d.at(slice(i, i + 1))[0]

    def _transfer(self, i: int) -> int:
        transfer = self._at(i)
        if transfer.kind in (READ, WRITE, FETCH):
            return self._memory(i, transfer)
        if transfer.kind == PART:
            held = int(self.d.sent[i, 1]) >> 32 & (HELD - 1)
            return self._because("", held) if held else self._arrived(i)
        what = "credit from {} to {}" if transfer.kind == CREDIT else "message {} to {}"
        host = transfer.kind == MESSAGE
        self._add_route(transfer, what, host)
        return self._sent(i)

    def _add_route(self, transfer: Transfer, what: str, host: bool = False) -> None:
        src, dst = self.routes.ends(transfer.route)
        took, waits = self.t - transfer.start_ps, self._waits(transfer)
        if transfer.kind == PART and waits is not None and ".hbm_ctrl." in dst:
            parts = cut_to(took, self.routes.leg(transfer.route, transfer.nbytes, waits=waits), "memory", dst)
        else:
            parts = self.routes.parts(transfer.route, transfer.nbytes, took, waits=waits)
        self._add(transfer.start_ps, what.format(src, dst), *parts, host=host)

    def _waits(self, transfer: Transfer) -> list[Wait] | None:
        return None if transfer.wait < 0 else self.d.waits_of(transfer)

    def _arrived(self, i: int) -> int:
        part = self._at(i)
        self._add_route(part, f"part {part.tile} of a message from {{}} to {{}}")
        return self._sent(i)

    def _memory(self, i: int, transfer: Transfer) -> int:
        """Add a transaction, last part first: the way back, the memory's work without a gap, the way there."""
        routes, (kind, route, nbytes) = self.routes, (transfer.kind, transfer.route, transfer.nbytes)
        memory, read, host = routes.ends(route)[0], kind != WRITE, self._is_host(transfer.command)
        what = f"{nbytes:,} B {'from' if read else 'to'} {memory}"
        start, arrived, served = transfer.start_ps, transfer.arrived_ps, transfer.served_ps
        waits, carried = self._waits(transfer), self._carried(transfer)
        if served < 0:
            leg = partial(routes.leg, route, waits=waits or ())
            legs = [*leg(carried, reverse=True), *leg(nbytes if read else ACK_BYTES)]
            self._add(start, what, *cut_to(self.t - start, legs, "memory", memory), host=host)
            return self._sent(i)
        memory = self.d.memories[route]
        known = transfer.opener in self._by_key  # false for a request of a tile that was not logged
        first, since = (self._by_key[transfer.opener], transfer.since_ps) if known else (i, arrived)
        opener = self._at(first)
        if first == i and read and routes.slowest(route)[1] * (served - arrived) < nbytes * 1000:
            # The links are slower than the memory: the time that they carry data is not the memory's.
            there = routes.parts(route, carried, arrived - start, reverse=True, waits=waits)
            self._add(start, what, *there, *routes.parts(route, nbytes, self.t - arrived, waits=waits), host=host)
            return self._sent(i)
        back = routes.parts(route, nbytes if read else ACK_BYTES, self.t - served, waits=waits)
        self._add(served, f"{what}: way back", *back, host=host)
        self._add(since, f"{memory} at work", TimePart("memory", memory, self.t - since), host=host)
        self._because("", NONE, "its request")
        took, reverse = self.t - opener.start_ps, opener.kind != PART
        parts = routes.parts(opener.route, self._carried(opener), took, reverse=reverse, waits=self._waits(opener))
        self._add(opener.start_ps, f"request to {memory}", *parts, host=self._is_host(opener.command))
        return self._sent(first)

    def _carried(self, transfer: Transfer) -> int:
        """Bytes sent to the memory; a read sends only a command."""
        return transfer.nbytes if transfer.kind in (WRITE, PART) else self.routes.command_bytes

    @cached_property
    def _by_key(self) -> dict[int, int]:
        return {key: i for i, key in enumerate(self.d.transfers["key"].tolist()) if key >= 0}

    def _sent(self, i: int) -> int:
        transfer, event = self._at(i), self._first(self.d.sent, i)
        effect = TRANSFER_KINDS[transfer.kind]
        if transfer.kind == CREDIT:
            return self._because(effect, event, "a slot's release")
        src = self.routes.ends(transfer.route)[0 if transfer.kind == MESSAGE else 1]
        if self._is_host(transfer.command) and src == "host":
            return self._host_order(transfer.command, event)
        if transfer.kind == READ and transfer.tile < 0 and self._kind(event) == "lookup":
            return event
        return self._planned(effect, event, transfer.tile if transfer.kind == READ else -1)

    def _host_order(self, command: int, event: int) -> int:
        """Add the host's time between an order and the operation before it."""
        if not self.t:
            return NONE
        end = self._time(event)
        parts = self._start_of_work(self.t - end, self._launches[command]) if command in self._launches else []
        self._because("", event, "the operation before")
        what = "start of the launch" if parts else "the program"
        self._add(end, what, *(parts or [TimePart("wait", "host", self.t - end)]), host=True)
        return event

    @cached_property
    def _launches(self) -> dict[int, Launch]:
        return dict(zip(self.d.begin[:, 0].tolist(), self.r.launches, strict=False))

    def _start_of_work(self, ps: int, launch: Launch) -> list[TimePart]:
        """Split the time before a launch left the host, last part first; empty if a launch costs nothing."""
        spent = {name: ns_to_ps(ns) for name, ns in self.r.spec["system"].get("host", {}).items()}
        protocol = self.r.spec["cube"]["pe"]["pe_ipcq"].get(launch.protocol, {})
        begins = min(ps, ns_to_ps(protocol.get("start_ns", 0.0)))
        if not any(spent.values()) and not begins:
            return []
        added = Host.start_field(launch.name, bool(launch.queues))
        more = min(ps - begins, spent.get(added, 0))
        fetch = min(ps - begins - more, spent["descriptor_ns"])
        bell = min(ps - begins - more - fetch, spent["doorbell_ns"])
        rest = ps - begins - more - fetch - bell
        busy = spent["launch_ns"] or spent["collective_ns"]
        first = TimePart("cpu", "host.launch", rest) if busy else TimePart("wait", "host", rest)
        starts = (launch.protocol, begins), (added.removesuffix("_ns"), more), ("descriptor", fetch), ("doorbell", bell)
        parts = *(TimePart("start", f"host.{of}", took) for of, took in starts), first
        return [part for part in parts if part.ps]


# Kind and name of the time of a step.
_STEPS = {
    "issue": ("issue", "PE_CPU issues {of}"),
    "lookup": ("lookup", "address look-up"),
    "cpu": ("cpu", "{where} takes the message"),
    "start": ("start", "until the common start"),
    "slot": ("slot", "a slot of {of}"),
    "end": ("wait", "the program's end"),
}
_ENDS = {"launch": "the last completion", "map": "the last completion", "install": "the last completion"}


def _cut(step: PathStep, start: int) -> PathStep:
    if step.start_ps >= start:
        return step
    left, parts = step.end_ps - start, []
    for part in reversed(step.parts):
        parts.append(replace(part, ps=min(part.ps, left)))
        left -= parts[-1].ps
    return replace(step, start_ps=start, parts=tuple(part for part in reversed(parts) if part.ps))
