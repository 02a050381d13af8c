"""Records: the columns of a run's log and the cause of each row. Every number of a report is computed from them."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernbench._registry import html_of
from kernbench.analysis._manifest import UNKNOWN_MANIFEST, Manifest, digest_of, read_manifest
from kernbench.config import read_machine
from kernbench.config._files import damaged, read_arrays, replacing
from kernbench.errors import ConfigError

READ, WRITE, MESSAGE, PART, CREDIT, FETCH = range(6)
TRANSFER_KINDS = ("read", "write", "message", "part", "credit", "fetch")

# The number of an event: its type (lowest three bits) and its index in the table of that type. ROW is when a row left
# its stage, BEGIN the beginning of a row; MOVE, SENT and ARRIVED are the end of a transfer, its start, and its arrival
# at the end of its route; STEP is a step; STAGES is the end of a path through the stages of a PE.
NONE, ROW, BEGIN, MOVE, SENT, ARRIVED, STEP, STAGES = range(8)
MATRIX_TILE = ", tile "
HELD = 1 << 30  # flag of the event that kept a row in its stage until there was room behind it

# A transaction with a memory, or a message. `served_ps` is when the memory finished it, after working without a gap
# since `since_ps`, when transaction `opener` arrived; -1 for messages and for memories that do not record it. With a
# last-level cache, these are of the last line that a read has waited for in HBM; -1 if for none. `tile` is
# the number of a part of a message between PEs, which is in its slot at `end_ps`. A credit belongs to the receive that
# freed the slot; a fetch reads a part that is sent from memory. `wait` is the last wait of the last flit: 0 for none,
# -1 for unknown.
TRANSFERS = {
    "start_ps": np.int64, "end_ps": np.int64, "route": np.int32, "nbytes": np.int64, "command": np.int32,
    "tile": np.int32, "kind": np.int8, "key": np.int64, "arrived_ps": np.int64, "since_ps": np.int64,
    "opener": np.int64, "served_ps": np.int64, "wait": np.int32,
}  # fmt: skip
# Waits of transfers on their routes: the previous wait (0 for none), the link, the transfer in front (-1 if the log
# does not contain it), and the duration. Row 0 stands for no wait.
WAITS = {"before": np.int32, "link": np.int32, "front": np.int32, "ps": np.int64}
# Bytes of a memory that were allocated at `t_ps`, with those for their alignment; negative when they were freed.
ALLOCATIONS = {"t_ps": np.int64, "place": np.int32, "nbytes": np.int64}


class Transfer(NamedTuple):
    start_ps: int
    end_ps: int
    route: int
    nbytes: int
    command: int
    tile: int
    kind: int
    key: int
    arrived_ps: int
    since_ps: int
    opener: int
    served_ps: int
    wait: int


class Wait(NamedTuple):
    """A wait of a transfer for a link (an index), behind transfer `front` (-1 if the log does not contain it)."""

    link: int
    front: int
    ps: int


class StageWork(NamedTuple):
    """The work of one stage of a PE on all tiles of a command; `kind` as in the log. A row of `Dependencies.stages`.

    `busy_ps` is the busy time from the first of `n` tiles to the end of the last. For DMA, `n` counts requests,
    `busy_ps` sums their times, and `route` is that of the last request's data.
    """

    command: int
    kind: int
    start_ps: int
    end_ps: int
    busy_ps: int
    n: int
    nbytes: int
    route: int


# Steps take time or decide when something starts, but are not operations; a step took `ps` until its end. `of` is the
# launch of an issued command, else -1.
STEP_KINDS = ("issue", "lookup", "cpu", "start", "slot", "end")
STEPS = {
    "end_ps": np.int64, "ps": np.int64, "place": np.int32, "kind": np.int8, "command": np.int32, "of": np.int32,
    "cause": np.int64, "more": np.int64,
}  # fmt: skip
# A path through the stages of a PE whose tiles were not logged: its cause, the time of each part, and the numbers of
# its reads and writes.
PARTS = ("plan", "read", "memory", "fetch", "matrix", "vector", "store", "write")
STAGE_PATHS = {
    "command": np.int32, "before": np.int64, **{f"{part}_ps": np.int64 for part in PARTS},
    "reads": np.int32, "writes": np.int32,
}  # fmt: skip

# Columns of the links of routes. `cycle_ps` is 0 except at routers with credits, where a flit takes whole cycles.
_LINKS = {
    "wire_ps": np.int64, "node_ps": np.int64, "bw_gbs": np.float64, "header_bytes": np.int64, "cycle_ps": np.int64,
}  # fmt: skip
_ORDER = ("after", "begin")


def _none(columns: Mapping[str, type]) -> dict[str, np.ndarray]:
    return {name: np.zeros(0, dtype) for name, dtype in columns.items()}


def _no_rows(n: int) -> np.ndarray:
    return np.zeros((0, n), np.int64)


@dataclass(frozen=True, eq=False)
class Dependencies:
    """Transfers over the network, the order of commands, and the causes of all events, for one run.

    Every row, transfer and step has four candidates for its cause, two to a number, the decisive one first: `causes`
    are those of rows, `sent` those of transfers. A candidate is the number of an event; the last one of a row is the
    event that made room behind its stage.
    """

    transfers: dict[str, np.ndarray] = field(default_factory=lambda: _none(TRANSFERS))
    nodes: tuple[str, ...] = ()
    routes: tuple[tuple[int, ...], ...] = ()
    links: dict[tuple[int, int], tuple[int, int, float, int, int]] = field(default_factory=dict)
    after: np.ndarray = field(default_factory=partial(_no_rows, 2))
    begin: np.ndarray = field(default_factory=partial(_no_rows, 2))
    stages: np.ndarray = field(default_factory=partial(_no_rows, len(StageWork._fields)))
    steps: dict[str, np.ndarray] = field(default_factory=lambda: _none(STEPS))
    places: tuple[str, ...] = ()
    paths: dict[str, np.ndarray] = field(default_factory=lambda: _none(STAGE_PATHS))
    causes: np.ndarray = field(default_factory=partial(_no_rows, 2))
    sent: np.ndarray = field(default_factory=partial(_no_rows, 2))
    waits: dict[str, np.ndarray] = field(default_factory=lambda: _none(WAITS))
    allocations: dict[str, np.ndarray] = field(default_factory=lambda: _none(ALLOCATIONS))

    @cached_property
    def memories(self) -> tuple[str, ...]:
        """The memory at the start of each route; of a slice of a last-level cache, the HBM slice behind it."""
        return tuple([self.nodes[route[0]].replace(".llc.", ".hbm_ctrl.") for route in self.routes])

    @property
    def issued(self) -> np.ndarray:
        """(command, time [ps], launch) of every command that a PE_CPU issued."""
        steps = self.steps
        rows = steps["kind"] == STEP_KINDS.index("issue")
        return np.stack([steps[name][rows].astype(np.int64) for name in ("command", "end_ps", "of")], axis=1)

    def at(self, rows: np.ndarray | slice) -> list[Transfer]:
        columns = (self.transfers[name][rows].tolist() for name in TRANSFERS)
        return [Transfer(*values) for values in zip(*columns, strict=True)]

    def waits_of(self, transfer: Transfer) -> list[Wait]:
        found, at = [], transfer.wait
        while at > 0:
            before, *wait = (int(self.waits[name][at]) for name in WAITS)
            found.append(Wait(*wait))
            at = before
        return found[::-1]

    def waiting(self) -> np.ndarray:
        """Transfer of each wait; -1 for row 0."""
        found, at = np.full(len(self.waits["ps"]), -1), self.transfers["wait"]
        transfer = np.flatnonzero(at > 0)
        at = at[transfer]
        while at.size:
            found[at] = transfer
            at = self.waits["before"][at]
            at, transfer = at[at > 0], transfer[at > 0]
        return found

    def arrays(self) -> dict[str, np.ndarray]:
        links = list(self.links.values())
        return {
            **{f"move_{name}": column for name, column in self.transfers.items()},
            "route_nodes": np.array([n for route in self.routes for n in route], np.int32),
            "route_lengths": np.array([len(route) for route in self.routes], np.int32),
            "hop_ends": np.array(list(self.links), np.int32).reshape(-1, 2),
            **{f"hop_{name}": np.array([x[i] for x in links], dt) for i, (name, dt) in enumerate(_LINKS.items())},
            **{f"command_{name}": getattr(self, name) for name in _ORDER},
            "stages": self.stages,
            **{f"step_{name}": column for name, column in self.steps.items()},
            **{f"path_{name}": column for name, column in self.paths.items()},
            **{f"wait_{name}": column for name, column in self.waits.items()},
            **{f"allocation_{name}": column for name, column in self.allocations.items()},
            "causes": self.causes,
            "sent": self.sent,
        }

    @classmethod
    def take(cls, arrays: dict[str, Any], nodes: tuple[str, ...], places: tuple[str, ...]) -> Dependencies:
        """Remove from `arrays` what the method `arrays` made, and return it."""
        transfers = {name: arrays.pop(f"move_{name}") for name in TRANSFERS}
        flat, lengths = arrays.pop("route_nodes").tolist(), arrays.pop("route_lengths").tolist()
        if min(lengths, default=2) < 2 or sum(lengths) != len(flat):
            raise ValueError(f"{len(lengths)} routes do not have {len(flat)} nodes")
        nodes_of = iter(flat)
        routes = tuple(tuple(islice(nodes_of, n)) for n in lengths)
        ends = arrays.pop("hop_ends").tolist()
        values = zip(*(arrays.pop(f"hop_{name}").tolist() for name in _LINKS), strict=True)
        links = {(a, b): value for (a, b), value in zip(ends, values, strict=True)}
        order = {name: arrays.pop(f"command_{name}") for name in _ORDER}
        tables = {name: arrays.pop(name) for name in ("stages", "causes", "sent")}
        steps, paths, waits, allocations = (
            {name: arrays.pop(f"{table}_{name}") for name in columns}
            for table, columns in (("step", STEPS), ("path", STAGE_PATHS), ("wait", WAITS), ("allocation", ALLOCATIONS))
        )
        return cls(
            transfers, nodes, routes, links, **order, **tables, steps=steps, places=places, paths=paths, waits=waits,
            allocations=allocations,
        )  # fmt: skip


_SCHEMA_VERSION = 13
LOG_COLUMNS = {
    "start_ps": np.int64, "end_ps": np.int64, "component": np.int32, "kind": np.int16,
    "command": np.int32, "nbytes": np.int64, "flops": np.int64, "tile": np.int32,
}  # fmt: skip
FILE, REMEDY = "result of kernbench", "save the result again, with result.save() or kernbench run --out"
_LINK_COLUMNS = {"nbytes": np.int64, "busy_ps": np.int64, "bw_gbs": np.float64}
_TYPES = {
    **LOG_COLUMNS,
    **{f"link_{name}": dtype for name, dtype in _LINK_COLUMNS.items()},
    **{f"move_{name}": dtype for name, dtype in TRANSFERS.items()},
    **{f"hop_{name}": dtype for name, dtype in _LINKS.items()},
    **{f"command_{name}": np.int64 for name in _ORDER},
    **{f"step_{name}": dtype for name, dtype in STEPS.items()},
    **{f"path_{name}": dtype for name, dtype in STAGE_PATHS.items()},
    **{f"wait_{name}": dtype for name, dtype in WAITS.items()},
    **{f"allocation_{name}": dtype for name, dtype in ALLOCATIONS.items()},
    **dict.fromkeys(("route_nodes", "route_lengths", "hop_ends"), np.int32),
    **dict.fromkeys(("component_busy_ps", "stages", "causes", "sent"), np.int64), "meta": np.uint8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CommandInfo:
    """A command of a program, or a host operation (then cube and pe are -1).

    `dtype` is the type of the matrix engine's operands. `tag` says which of several matrix tiles it takes, after
    `MATRIX_TILE`. `vector` lists the operations of the vector engine: kind,
    elements (of the whole command; each tile of a composite has its own) and bytes per element.
    """

    name: str
    sip: int = -1
    cube: int = -1
    pe: int = -1
    shape: tuple[int, ...] = ()
    tag: str = ""
    dtype: str = ""
    vector: tuple[tuple[str, int, int], ...] = ()

    @property
    def place(self) -> str:
        return f"sip{self.sip}.cube{self.cube}.pe{self.pe}"


@dataclass(frozen=True, slots=True)
class Communication:
    """One rank's part of a collective or message.

    `name` is torch's: "all_reduce", "send". `group` has the SIPs of the group, of a message its source and target.
    `nbytes` are those of the rank's input. Each of `tensors` is (name, shape, type, placement), a placement the
    arguments of its DPPolicy that are not the defaults. `options` are a reduction, the root's number in
    the group, a tag, or rows by number in the group.
    """

    name: str
    group: tuple[int, ...]
    nbytes: int
    tensors: tuple[tuple[str, tuple[int, ...], str, tuple[tuple[str, Any], ...]], ...] = ()
    options: tuple[tuple[str, Any], ...] = ()


class Operation(NamedTuple):
    """An operation queued on a SIP: a kernel's launch, or part of a collective (it may launch several kernels).

    `after` are the operations that precede it in its streams, `waited` those that the host had waited for: the latest,
    as numbers in the order of queueing.
    """

    sip: int
    after: tuple[int, ...]
    waited: tuple[int, ...]
    communication: Communication | None


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch on one SIP, from the host's message to the last completion.

    `queues` names the installation of the queues that its programs use, "" if they use none. `operation` is the number
    of the operation that it is part of, -1 if it was not queued on a device. Its programs run from `begin_ps` to
    `done_ps`, -1 if unknown. `protocol` is that of a collective.
    """

    name: str
    start_ps: int
    end_ps: int
    sip: int = -1
    queues: str = ""
    operation: int = -1
    begin_ps: int = -1
    done_ps: int = -1
    protocol: str = ""


class DramActivity(NamedTuple):
    """Activity of the channels of an HBM slice with the timing of a DRAM standard, during a run.

    They became busy `begun` times, opened `rows` and served `bursts`. Summed over channels, their data buses were busy
    for `bus_ps` of the `worked_ps` in which requests were pending.
    """

    begun: int
    rows: int
    bursts: int
    bus_ps: int
    worked_ps: int


@dataclass(frozen=True, eq=False)
class LinkTable:
    """Traffic of every directed link that carried any: true bytes (without padding), busy ps, capacity in GB/s."""

    names: tuple[str, ...] = ()
    nbytes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    busy_ps: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    bw_gbs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float64))


@dataclass(frozen=True, slots=True)
class Op:
    kind: str
    component: str
    command: CommandInfo
    start_ps: int
    end_ps: int
    nbytes: int
    flops: int
    tile: int


_NO_COMMAND = CommandInfo("")


@dataclass(frozen=True, eq=False)
class Records:
    """The log of one run: columns of equal length, and the tables that they refer to."""

    start_ps: np.ndarray  # start and end of the row's occupation of its component
    end_ps: np.ndarray
    component: np.ndarray  # indices into `components`, `kinds` and `commands`; -1 for a row without a command
    kind: np.ndarray
    command: np.ndarray
    nbytes: np.ndarray  # true bytes moved, and useful operations: without padding
    flops: np.ndarray
    tile: np.ndarray  # index of the tile in its command, -1 for a row that is not a tile
    components: tuple[str, ...]
    kinds: tuple[str, ...]
    commands: tuple[CommandInfo, ...]
    links: LinkTable = field(default_factory=LinkTable)
    component_busy_ps: np.ndarray | None = None  # the engine's count, at any log level; None: compute it
    drams: Mapping[str, DramActivity] = field(default_factory=dict)  # by component
    makespan_ps: int = 0  # time of the last completion; the clock of a run starts at 0
    launches: tuple[Launch, ...] = ()
    operations: tuple[Operation, ...] = ()
    machine: str = ""  # hash of the machine
    spec: Mapping[str, Any] = field(default_factory=dict)  # the machine as in its file; empty if unknown
    dependencies: Dependencies = field(default_factory=Dependencies, repr=False)
    complete: bool = True  # False for an interrupted run
    engine: str = ""  # "core" or "definition"; both give the same records, so no digest contains it

    def __post_init__(self) -> None:
        for name, dtype in LOG_COLUMNS.items():
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype))
        lengths = {name: len(getattr(self, name)) for name in LOG_COLUMNS}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of records differ in length: {lengths}")

    def __len__(self) -> int:
        return len(self.start_ps)

    def __iter__(self) -> Iterator[Op]:
        return (self.op(i) for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Records({len(self)} rows, {self.makespan_ps / 1000:,.2f} ns, machine {self.machine[:12] or '?'})"

    def _repr_html_(self) -> str:
        return html_of("records", self)

    @classmethod
    def empty(cls, **meta: Any) -> Records:
        columns: dict[str, Any] = {name: np.zeros(0, dtype) for name, dtype in LOG_COLUMNS.items()}
        return cls(**columns, **{"components": (), "kinds": (), "commands": (), **meta})

    def op(self, i: int) -> Op:
        command = int(self.command[i])
        return Op(
            kind=self.kinds[self.kind[i]],
            component=self.components[self.component[i]],
            command=self.commands[command] if command >= 0 else _NO_COMMAND,
            start_ps=int(self.start_ps[i]),
            end_ps=int(self.end_ps[i]),
            nbytes=int(self.nbytes[i]),
            flops=int(self.flops[i]),
            tile=int(self.tile[i]),
        )

    @cached_property
    def location(self) -> np.ndarray:
        """(sip, cube, pe) of every row's command, int32 of shape (rows, 3); -1 where there is none."""
        return self.per_row(lambda c: (c.sip, c.cube, c.pe), (-1, -1, -1)).astype(np.int32)

    @cached_property
    def _distinct_commands(self) -> tuple[list[CommandInfo], np.ndarray]:
        """The commands, each object once (equal ones of a PE share one), and the index among them of each row's."""
        numbers: dict[int, int] = {}
        index = [numbers.setdefault(id(command), len(numbers)) for command in self.commands]
        distinct = {id(command): command for command in self.commands}
        rows = np.array([*index, len(numbers)])[self.command]  # command -1 is the last entry
        return list(distinct.values()), rows

    def per_row(self, of_command: Callable[[CommandInfo], Any], none: Any) -> np.ndarray:
        """Value of each row's command; `none` for rows without a command."""
        distinct, rows = self._distinct_commands
        found: np.ndarray = np.array([*map(of_command, distinct), none])[rows]
        return found

    def pes(self) -> list[tuple[int, int, int]]:
        """PEs that did work, as sorted (sip, cube, pe)."""
        distinct, rows = self._distinct_commands
        used = np.bincount(rows, minlength=len(distinct)).tolist()
        found = {(c.sip, c.cube, c.pe) for c, n in zip(distinct, used, strict=False) if n and c.pe >= 0}
        return sorted(found)

    def where(self, mask: np.ndarray) -> Records:
        """Select rows by a mask (bool, or indices); tables and totals remain those of the run."""
        return replace(self, **{name: getattr(self, name)[mask] for name in LOG_COLUMNS})

    def of_kind(self, *kinds: str) -> Records:
        return self.where(self.is_kind(*kinds))

    def is_kind(self, *kinds: str) -> np.ndarray:
        return np.isin(self.kind, [i for i, kind in enumerate(self.kinds) if kind in kinds])

    def of_pe(self, sip: int, cube: int, pe: int) -> Records:
        return self.where((self.location == (sip, cube, pe)).all(axis=1))

    def within(self, start_ps: int, end_ps: int) -> Records:
        """Rows that overlap [start_ps, end_ps), uncut."""
        return self.where((self.start_ps < end_ps) & (self.end_ps > start_ps))

    def busy_by_component(self) -> dict[str, int]:
        """Busy ps of every component: the engine's count if there is one, else the time covered by its rows."""
        busy = self.component_busy_ps
        if busy is None:
            busy = np.zeros(len(self.components), np.int64)
            # Components are concatenated on one time axis, so that one pass serves all.
            shift = self.component.astype(np.int64) * (int(self.end_ps.max(initial=0)) + 1)
            order, added = _added(self.start_ps + shift, self.end_ps + shift)
            np.add.at(busy, self.component[order], added)
        return dict(zip(self.components, busy.tolist(), strict=True))

    def digest(self) -> str:
        """sha256 of all times and totals: equal for equal runs, whatever the order of rows and of ids."""
        names, component = _by_name(self.components, self.component)
        kinds, kind = _by_name(self.kinds, self.kind)
        texts = (*(json.dumps(_fields(c)) for c in self.commands), "")
        commands, command = _by_name(texts, np.where(self.command < 0, len(texts) - 1, self.command))
        rows = np.stack([self.start_ps, self.end_ps, component, kind, command, self.nbytes, self.flops, self.tile])
        rows = rows[:, np.lexsort(rows[::-1])]
        used = [i for i in range(len(self.links.names)) if self.links.busy_ps[i] or self.links.nbytes[i]]
        links = sorted((self.links.names[i], int(self.links.nbytes[i]), int(self.links.busy_ps[i])) for i in used)
        launches = [[x.name, x.start_ps, x.end_ps] for x in self.launches]
        tables = [names, kinds, commands, links, launches, int(self.makespan_ps)]
        digest = hashlib.sha256(json.dumps(tables).encode())
        digest.update(np.ascontiguousarray(rows, "<i8").tobytes())
        return digest.hexdigest()

    def save(self, path: str | Path, manifest: Manifest = UNKNOWN_MANIFEST) -> Path:
        """Write everything to one file; an existing file is replaced only when the new one is complete."""
        path = Path(path)
        meta = {
            "schema_version": _SCHEMA_VERSION, "components": self.components, "kinds": self.kinds,
            "commands": [[*_fields(c), c.dtype, c.vector] for c in self.commands], "links": self.links.names,
            "makespan_ps": int(self.makespan_ps), "launches": [astuple(x) for x in self.launches],
            "operations": [[*x[:3], None if x[3] is None else astuple(x[3])] for x in self.operations],
            "machine": self.machine, "complete": self.complete, "engine": self.engine, "spec": dict(self.spec),
            "nodes": self.dependencies.nodes, "places": self.dependencies.places, "drams": self.drams,
        }  # fmt: skip
        arrays = {name: getattr(self, name) for name in LOG_COLUMNS}
        arrays |= {f"link_{name}": np.asarray(getattr(self.links, name), dt) for name, dt in _LINK_COLUMNS.items()}
        if self.component_busy_ps is not None:
            arrays["component_busy_ps"] = np.asarray(self.component_busy_ps, np.int64)
        arrays |= self.dependencies.arrays()
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        comment = manifest.comment(digest_of(arrays))
        with replacing(path) as part:
            with part.open("wb") as file:
                np.savez_compressed(file, **arrays)
            with zipfile.ZipFile(part, "a") as archive:
                archive.comment = comment
        return path

    @classmethod
    def load(cls, path: str | Path) -> Records:
        """Read a file that `save` wrote.

        A ConfigError if it cannot be read or is damaged, was written with a schema version before 3, or holds the
        estimate of a mode that no longer exists.
        """
        from kernbench.analysis._consistency import check_records

        path = Path(path)
        arrays = read_arrays(path, FILE, REMEDY)
        with damaged(path, FILE, REMEDY):
            _, digest = read_manifest(path)
            found = cls._of(path, arrays, digest)
            check_records(found)
        if found.spec:
            try:
                read_machine(found.spec)
            except ConfigError as error:
                raise ConfigError([f"{path}: {fault}; {REMEDY}" for fault in error.faults]) from error
        return found

    @classmethod
    def _of(cls, path: Path, arrays: dict[str, Any], digest: str) -> Records:
        changed = digest != digest_of(arrays)
        for name, array in arrays.items():
            if name in _TYPES and array.dtype != _TYPES[name]:
                raise TypeError(f"array {name} is of type {array.dtype}")
        meta = json.loads(arrays.pop("meta").tobytes())
        version = meta.pop("schema_version")
        if changed and (digest or version == _SCHEMA_VERSION):
            raise ValueError("its arrays are not those that were saved: their digest differs")
        if version == 3:  # the only difference: engines had modes, and mode "fast" could be an estimate
            mode, certified = meta.pop("mode"), meta.pop("certified")
            if mode == "fast" and not certified:
                raise ConfigError(f'{path}: mode = "fast": an estimate, not a simulation; run the bench again')
        elif version not in range(4, _SCHEMA_VERSION + 1):
            raise ConfigError(f"{path}: schema_version = {version} must be {_SCHEMA_VERSION}; run the bench again")
        if version < 5:
            arrays["stages"] = _no_rows(len(StageWork._fields))
        if version < 7:
            arrays["hop_header_bytes"] = np.zeros(len(arrays["hop_ends"]), np.int64)
        if version < 10:  # without causes
            command, end_ps, launch = arrays.pop("command_issued").T
            known = {"command": command, "end_ps": end_ps, "of": launch}
            steps = {name: known.get(name, np.zeros_like(command)) for name in STEPS}
            arrays |= {f"step_{name}": column.astype(STEPS[name]) for name, column in steps.items()}
            arrays |= {f"path_{name}": column for name, column in _none(STAGE_PATHS).items()}
            arrays["causes"] = arrays["sent"] = _no_rows(2)
        if version < 11:  # without waits
            arrays["hop_cycle_ps"] = np.zeros(len(arrays["hop_ends"]), np.int64)
            arrays["move_wait"] = np.full(len(arrays["move_key"]), -1, np.int32)
            arrays |= {f"wait_{name}": column for name, column in _none(WAITS).items()}
        if version < 12:
            arrays |= {f"allocation_{name}": column for name, column in _none(ALLOCATIONS).items()}
        meta["drams"] = {name: DramActivity(*values) for name, values in meta.get("drams", {}).items()}
        link_columns = {name: arrays.pop(f"link_{name}") for name in _LINK_COLUMNS}
        meta["dependencies"] = Dependencies.take(arrays, tuple(meta.pop("nodes")), tuple(meta.pop("places", ("",))))
        meta["links"] = LinkTable(tuple(meta["links"]), **link_columns)
        meta["commands"] = tuple(_command(*fields) for fields in meta["commands"])
        meta["launches"] = tuple(Launch(*x) for x in meta["launches"])
        meta["operations"] = tuple(_operation(*_tuples(x)) for x in meta.get("operations", ()))
        meta |= {"components": tuple(meta["components"]), "kinds": tuple(meta["kinds"])}
        return cls(**arrays, **meta)


def candidates(causes: np.ndarray) -> np.ndarray:
    """Events in columns of causes, shape (rows, 2 x columns): two for each column, the decisive one first."""
    pairs = np.ascontiguousarray(causes, np.int64).view(np.uint32).reshape(len(causes), 2 * causes.shape[1])
    return (pairs & np.uint32(HELD - 1)).astype(np.int64)


def covered_ps(start: np.ndarray, end: np.ndarray) -> int:
    """Length of the union of the intervals [start, end); times are not negative."""
    return int(_added(start, end)[1].sum())


def _added(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Order of intervals by start, and the time that each adds to the union of those before it."""
    order = np.argsort(start, kind="stable")
    low, high = start[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[0], high[:-1]])
    return order, np.maximum(0, high - np.maximum(low, before))


def _command(
    name: str, sip: int, cube: int, pe: int, shape: list[int], tag: str, dtype: str = "", vector: Iterable[Any] = ()
) -> CommandInfo:
    return CommandInfo(name, sip, cube, pe, tuple(shape), tag, dtype, tuple((k, n, size) for k, n, size in vector))


def _operation(sip: int, after: Any, waited: Any, communication: Any) -> Operation:
    return Operation(sip, after, waited, None if communication is None else Communication(*communication))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _fields(command: CommandInfo) -> list[Any]:
    return [command.name, command.sip, command.cube, command.pe, command.shape, command.tag]


def _by_name(names: tuple[str, ...], ids: np.ndarray) -> tuple[list[str], np.ndarray]:
    """Sorted distinct names in use, and `ids` as ranks in that list."""
    used = sorted({names[i] for i in np.unique(ids)})
    rank = {name: i for i, name in enumerate(used)}
    table = np.array([rank.get(name, -1) for name in names] or [-1], np.int64)
    return used, table[np.asarray(ids, np.int64)]
