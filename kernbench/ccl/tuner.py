"""The choice of an algorithm and its slots for a collective of some size on a machine: by a model, then by simulation.

The alpha-beta model ranks all algorithms that run on the machine; the best few are simulated. Choices are kept in a
table, a small file for each machine and version of the code.
"""

from __future__ import annotations

import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from inspect import signature
from pathlib import Path
from typing import Any

from kernbench.ccl._group import Group
from kernbench.ccl._schedule import LARGEST_CHUNK, Operator
from kernbench.ccl.algorithm import Algorithm, CollectivePlan, plan, plan_group
from kernbench.ccl.alpha_beta import Estimate, Simulate, alpha_beta, room_for_rings
from kernbench.config._files import damaged, read_json, write_text
from kernbench.config._schema import PROTOCOLS
from kernbench.errors import ConfigError, DeadlockError, KernbenchError, OutOfMemoryError
from kernbench.topology._naming import PeId
from kernbench.topology.builder import Machine

_SCHEMA_VERSION = 2
_SLOTS = (2, 4, 8, 16, 32)
# In all rows of the collectives report, one of the four best by the model is within 2 % of the best.
SHORT_LIST = 4
# Those that `kb.ccl.choose` simulates, unless their estimate is far behind the best one.
SIMULATED = 3
_FAR = 1.4  # 95 % of the estimates of algorithms are within this factor of the simulated time
# More slots must gain at least this share: each takes room in TCM, on every PE and for every direction.
_WORTH = 0.1
# Factor of the model's best time within which the all-reduce with the fewest events is used (chosen).
MODEL_TOLERANCE = 1.01
# Where rings and messages of an algorithm do not fit: at once, or once programs wait for memory and each other.
_NO_ROOM = (OutOfMemoryError, DeadlockError)
_COLUMNS = ("algorithm", "slots", "model [ns]", "simulated [ns]")


@dataclass(frozen=True, slots=True)
class Candidate:
    """An algorithm with a number of slots."""

    algorithm: str
    n_slots: int
    estimate_ns: float | None = None  # by the model; None where an algorithm's stages are unknown
    start_up_ns: float | None = None  # the same, of one element
    simulated_ns: float | None = None  # on the simulated machine

    @property
    def ns(self) -> float:
        """Simulated time, else the estimate; infinite if both are unknown."""
        known = self.estimate_ns if self.simulated_ns is None else self.simulated_ns
        return float("inf") if known is None else known


@dataclass(frozen=True, slots=True)
class Decision:
    """The choice for one collective: the best candidate, the other ones, and algorithms that do not run."""

    collective: str
    nbytes: int  # of a shard
    n_sips: int
    machine: str  # its hash
    candidates: tuple[Candidate, ...]  # the best first; those that were simulated before those that were not
    refused: Mapping[str, str]  # algorithm to the reason why it does not run here
    bound_ns: float  # the lower bound
    bound_by: str  # which bound it is
    deadlocked: tuple[str, ...] = ()  # those of `refused` whose simulation ended in a deadlock

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def algorithm(self) -> str:
        return self.best.algorithm

    @property
    def n_slots(self) -> int:
        return self.best.n_slots

    @property
    def reason(self) -> str:
        best, how = self.best, "by the model" if self.best.simulated_ns is None else "simulated"
        said = f"{best.ns:,.0f} ns {how}"
        if self.bound_ns:
            said += f", {best.ns / self.bound_ns:.1f} x the lower bound ({self.bound_by})"
        if best.start_up_ns is not None and best.estimate_ns:
            share = best.start_up_ns / best.estimate_ns
            said += f"; start-up is {share:.0%} of its estimate"
        if len(self.candidates) > 1 and best.ns:
            second = self.candidates[1]
            said += f"; next is {second.algorithm}, {second.ns / best.ns - 1:+.0%}"
            if best.start_up_ns and second.start_up_ns:
                said += f" with {second.start_up_ns / best.start_up_ns:.1f} x the start-up"
        return said

    def __str__(self) -> str:
        rows = [_COLUMNS, *self._rows]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = [
            "  ".join(
                f"{cell:<{w}}" if not i else f"{cell:>{w}}" for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        lines += [f"{name}: does not run here: {why}" for name, why in self.refused.items()]
        return "\n".join([f"{self._title}: {self.algorithm}, {self.n_slots} slots", self.reason, *lines])

    def _repr_html_(self) -> str:
        body = "".join(f"<tr>{''.join(f'<td>{escape(x)}</td>' for x in row)}</tr>" for row in self._rows)
        head = "".join(f"<th>{x}</th>" for x in _COLUMNS)
        refused = "".join(f"<li>{escape(name)}: {escape(why)}</li>" for name, why in self.refused.items())
        return (
            f"<div><b>{escape(self._title)}: {escape(self.algorithm)}, {self.n_slots} slots</b></div>"
            f"<div>{escape(self.reason)}</div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
            + (f"<div>does not run here:<ul>{refused}</ul></div>" if refused else "")
        )

    @property
    def _rows(self) -> list[tuple[str, ...]]:
        return [(c.algorithm, str(c.n_slots), _ns(c.estimate_ns), _ns(c.simulated_ns)) for c in self.candidates]

    @property
    def _title(self) -> str:
        return f"{self.collective} of {self.nbytes:,} B a shard over {self.n_sips} SIPs (machine {self.machine[:12]})"


def decided(
    question: tuple[str, int, int, str],
    candidates: Iterable[Candidate],
    refused: Mapping[str, str],
    bound: tuple[float, str],
    contribution: str = "rank",
) -> Decision:
    """Decide on (collective, bytes of a shard, SIPs, machine); ConfigError with all reasons without a candidate."""
    found = sorted(candidates, key=lambda c: (c.simulated_ns is None, c.ns, c.algorithm))
    if not found:
        why = "\n".join(f"{name}: {reason}" for name, reason in refused.items())
        raise ConfigError(f"no algorithm does {question[0]} by {contribution} here{': ' + why if why else ''}")
    return Decision(*question, tuple(found), refused, *bound)


def worth_simulating(found: Sequence[Candidate], faster_than_ns: float = float("inf")) -> list[Candidate]:
    """Return the best by the model without those far behind it; none if it is far behind a known time."""
    near = found[:SIMULATED] if found[0].ns <= _FAR * faster_than_ns else ()
    return [x for x in near if x.estimate_ns is None or x.ns <= _FAR * found[0].ns]


def with_variants(algorithms: Sequence[Algorithm]) -> list[Algorithm]:
    found = [a for a in algorithms if a.collective == "all_reduce"]
    found += [
        _with(a, "both ways", both_ways=True) for a in found
        if "both_ways" in (known := signature(a.kernel_args).parameters)
        and not a.options.get("both_ways", known["both_ways"].default)
    ]  # fmt: skip
    found += [_with(a, "large messages", chunk_bytes=LARGEST_CHUNK) for a in found if a.cost is not None]
    return [a for a in algorithms if a.collective != "all_reduce"] + found


def _with(algorithm: Algorithm, what: str, **options: Any) -> Algorithm:
    return replace(algorithm, name=f"{algorithm.name}, {what}", options={**algorithm.options, **options})


class Tuner:
    """Chooses algorithms for one machine, and caches its choices.

    Parameters
    ----------
    machine : Machine
    algorithms : iterable of Algorithm
        The choices; those with another contribution than requested are ignored.
    simulate : callable
        (plan, bytes of a shard, bytes of an element) -> ns. The model measures the machine with it, too.
    refine : int
        Number of algorithms that are simulated; 0: the model decides.
    slots : sequence of int
        Numbers of slots to try, with algorithms that state none.
    near : float
        Factor of the best time within which a candidate with larger messages, which has fewer events, is used instead;
        of these the one with the shortest start.
    folder : Path, optional
        Where the table is stored.
    version : str
        Version of the code; tables of other versions are ignored.
    """

    def __init__(
        self,
        machine: Machine,
        algorithms: Iterable[Algorithm],
        *,
        simulate: Simulate,
        refine: int = SHORT_LIST,
        slots: Sequence[int] = _SLOTS,
        near: float = 1.0,
        folder: Path | None = None,
        version: str = "",
    ) -> None:
        self.machine, self.simulate, self.refine, self.slots = machine, simulate, refine, tuple(slots)
        self.near = near
        self.model = alpha_beta(machine, simulate)
        self.algorithms = {algorithm.name: algorithm for algorithm in algorithms}
        self.path = folder / f"ccl_{machine.hash[:12]}_{version}.json" if folder is not None else None
        self.table: dict[str, Decision] = _read(self.path)

    def choose(
        self,
        collective: str,
        nbytes: int,
        *,
        sips: Sequence[int] | None = None,
        places: Sequence[PeId] = ((0, 0),),
        itemsize: int = 2,
        contribution: str = "rank",
        op: str | Operator = "sum",
        call_bytes: int | None = None,
        told: Callable[[int, int], None] = lambda done, total: None,
    ) -> Decision:
        """Return the choice for shards of `nbytes`.

        Parameters
        ----------
        collective : str
        nbytes : int
            Bytes of the largest shard.
        sips : sequence of int, optional
            The devices; all of the machine unless given.
        places : sequence of (cube, pe)
            The PEs of each device that hold a shard.
        itemsize : int
            Bytes of an element.
        contribution : str
            The terms of the sum: each "rank"'s tensor, or each "cube"'s or "pe"'s shard.
        op : str or callable
            The reduction, if any.
        call_bytes : int, optional
            Bytes of the call on a device, which choose the protocol; those of all shards unless given.
        told : callable
            `told(done, total)` is called before each simulation of a candidate.

        Raises
        ------
        ConfigError
            If no algorithm runs there; the message says why not, for each.
        """
        group = tuple(range(self.machine.config.n_sips)) if sips is None else tuple(sips)
        doing = [a for a in self.algorithms.values() if (a.collective, a.contribution) == (collective, contribution)]
        names = [a.name for a in doing]
        key = json.dumps(
            [collective, contribution, nbytes, itemsize, group, sorted(places), _settings(doing), self.refine]
            + ([] if op == "sum" else [op if isinstance(op, str) else "own"])
            + ([call_bytes] if call_bytes else [])
        )
        if key not in self.table:
            self.table[key] = self._decide(
                names, collective, nbytes, group, places, itemsize, contribution, op,
                call_bytes or nbytes * len(places), told,
            )  # fmt: skip
            self._write()
        return self.table[key]

    def plan(
        self, decision: Decision, sips: Sequence[int], places: Sequence[PeId] = ((0, 0),), call_bytes: int | None = None
    ) -> CollectivePlan:
        return self._planned(decision.best, sips, places, call_bytes or decision.nbytes * len(places))

    def _planned(
        self, candidate: Candidate, sips: Sequence[int], places: Sequence[PeId], call_bytes: int
    ) -> CollectivePlan:
        chosen = replace(self.algorithms[candidate.algorithm], n_slots=candidate.n_slots)
        return plan(chosen, self.machine.config, sips, places, call_bytes)

    def _decide(
        self,
        names: Sequence[str],
        collective: str,
        nbytes: int,
        sips: Sequence[int],
        places: Sequence[PeId],
        itemsize: int,
        contribution: str,
        op: str | Operator,
        call_bytes: int,
        told: Callable[[int, int], None],
    ) -> Decision:
        found, deadlocked = list[Candidate](), list[str]()
        ranked, refused = self.ranked(names, nbytes, sips, places, itemsize, op, call_bytes)
        for candidate in ranked:
            if (done := len(found)) < self.refine:
                told(done, min(self.refine, len(ranked)))
                planned = self._planned(candidate, sips, places, call_bytes)
                try:
                    candidate = replace(candidate, simulated_ns=self.simulate(planned, nbytes, itemsize))
                except _NO_ROOM as error:
                    refused[candidate.algorithm] = _reason(error)
                    deadlocked += [candidate.algorithm] * isinstance(error, DeadlockError)
                    continue
            found.append(candidate)
        for candidate in [c for c in found if c.ns == float("inf")]:
            refused[candidate.algorithm] = "its stages are unknown; increase refine, so that it is simulated"
            found.remove(candidate)
        members = [(sip, *place) for sip in sips for place in places]
        bound = self.model.bounds(members, contribution).of(collective, nbytes, itemsize)
        question = (collective, nbytes, len(sips), self.machine.hash)
        decision = decided(question, found, refused, (bound.ns, bound.by), contribution)
        decision = replace(decision, deadlocked=tuple(deadlocked))
        if self.near == 1.0:
            return decision
        first = min(
            (c for c in decision.candidates if c.ns <= self.near * decision.best.ns),
            key=lambda c: (-(self.algorithms[c.algorithm].options.get("chunk_bytes") or 0), c.start_up_ns or 0.0),
        )
        rest = (c for c in decision.candidates if c is not first)
        return replace(decision, candidates=(first, *rest))

    def ranked(
        self, names: Iterable[str], nbytes: int, sips: Sequence[int], places: Sequence[PeId], itemsize: int = 2,
        op: str | Operator = "sum", call_bytes: int | None = None,
    ) -> tuple[list[Candidate], dict[str, str]]:  # fmt: skip
        """Candidates by the model, the best first, and the reasons why other algorithms do not run.

        Algorithms whose stages are unknown are last, without an estimate.
        """
        found: list[Candidate] = []
        refused: dict[str, str] = {}
        group = Group.of(self.machine.config, sips, places)
        for name in names:
            try:
                sized = self.algorithms[name].on(self.machine.config, call_bytes or nbytes * len(places))
                planned = plan_group(sized, group)
                if op != "sum":
                    planned.algorithm.arguments(planned.subgroups[0], nbytes // itemsize, {"op": op})
                found.append(self._estimated(planned, nbytes, itemsize))
            except (ConfigError, *_NO_ROOM) as error:
                refused[name] = _reason(error)
        return sorted(found, key=lambda c: (c.ns, c.algorithm)), refused

    def _estimated(self, planned: CollectivePlan, nbytes: int, itemsize: int) -> Candidate:
        """Use the stated slots, else the fewest that are worth it."""
        name = planned.algorithm.name
        stated = self.algorithms[name].n_slots or planned.algorithm.sends_by.n_slots or None
        estimate = Estimate(planned, self.model, itemsize)
        if not estimate.known:
            return Candidate(name, planned.algorithm.n_slots or self.slots[0])
        most = self._most_slots(planned)
        tried = [
            Candidate(name, slots, estimate.ns(nbytes, slots), estimate.ns(itemsize, slots))
            for slots in (self.slots if stated is None else (stated,))
            if slots <= most
        ]
        if not tried:
            raise ConfigError(
                f"algorithm {name!r}: its rings have room for {most} slots of {planned.algorithm.slot_size} B each in "
                f"{planned.algorithm.buffer_kind}; give it fewer or smaller slots, or another buffer_kind"
            )
        least = min(c.ns for c in tried)
        return next(c for c in tried if c.ns <= (1 + _WORTH) * least)

    def _most_slots(self, planned: CollectivePlan) -> int:
        """Slots of each ring for which a memory without other data has room."""
        a = planned.algorithm
        shared = 2 if a.buffer_kind == "sram" else 3  # parts of a place that have one memory
        rings = Counter[tuple[int, ...]]()
        for place, role in planned.programs.items():
            rings[place[:shared]] += len(role.neighbours)
        nbytes = max(rings.values(), default=0) * (a.slot_size or 0)
        return room_for_rings(self.machine.config, a.buffer_kind) // max(1, nbytes)

    def _write(self) -> None:
        if self.path is None:
            return
        content = {
            "schema_version": _SCHEMA_VERSION,
            "machine": self.machine.hash,
            "decisions": {key: asdict(d) for key, d in self.table.items()},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.path, json.dumps(content, indent=1) + "\n")


def _reason(error: KernbenchError) -> str:
    """Return the message without the name of the algorithm, which its reader knows, and without a list of waiters."""
    text = re.sub(r"^algorithm '[^']*': ", "", str(error))
    if isinstance(error, DeadlockError):
        return text.partition(";")[0] + ", with too little TCM or by its program"
    return text


def _settings(algorithms: Iterable[Algorithm]) -> list[tuple[Any, ...]]:
    """Further inputs of a choice besides the machine and the size, as JSON values."""
    return sorted(
        (
            a.name,
            a.buffer_kind,
            a.n_slots,
            a.slot_size,
            a.credit_bytes,
            a.world_size,
            a.root_cube,
            repr(a.options),
            repr((a.channels, *(getattr(a, name) for name in PROTOCOLS))),
        )
        for a in algorithms
    )


def _read(path: Path | None) -> dict[str, Decision]:
    if path is None or not path.is_file():
        return {}
    what, remedy = "table of algorithms", "its choices are made again"
    try:
        content = read_json(path, what, remedy)
        if content.get("schema_version") != _SCHEMA_VERSION:
            return {}
        with damaged(path, what, remedy):
            return {key: _decision(fields) for key, fields in content["decisions"].items()}
    except ConfigError as error:
        warnings.warn(str(error), RuntimeWarning, stacklevel=4)
        path.unlink(missing_ok=True)
        return {}


def _decision(fields: Mapping[str, Any]) -> Decision:
    candidates = tuple(Candidate(**candidate) for candidate in fields["candidates"])
    return Decision(**{**fields, "candidates": candidates, "deadlocked": tuple(fields["deadlocked"])})


def _ns(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
