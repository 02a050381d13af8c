"""The answers of `kb.gemm` and `kb.ccl.choose`: values, tables, text and HTML, of as much as is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from kernbench.ccl.tuner import Candidate, Decision
from kernbench.errors import StateError
from kernbench.points._keys import Row
from kernbench.studies._page import cell, is_numeric
from kernbench.studies.study import Tables, table

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.studies._stages import Explanation
    from kernbench.studies.layers import StoredProduct

_IDLE = 0.5  # a placement that leaves more of the PEs idle is warned about


@dataclass(frozen=True, slots=True)
class PlacementCandidate:
    placement: str
    estimate_ns: float | None  # by closed form; None where it does not fit
    limiter: str  # what takes most of that time, or why it does not fit
    pes: int  # that compute
    remote_bytes: int  # that PEs read from other PEs' memory
    simulated_ns: float | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """A collective with a SIP's tensor on some of its PEs, and the fastest algorithm there."""

    where: str  # which PEs hold it
    pes: int
    nbytes: int  # of the shard of each
    algorithm: str
    n_slots: int
    estimate_ns: float | None
    simulated_ns: float | None  # None where the estimate is far from the fastest

    @property
    def ns(self) -> float:
        known = self.estimate_ns if self.simulated_ns is None else self.simulated_ns
        return float("inf") if known is None else known


# The columns of tables, as readers see them.
_TITLES = {
    "estimate_ns": "closed form [ns]", "simulated_ns": "simulated [ns]", "pes": "PEs", "remote_bytes": "remote [B]",
    "limiter": "limited by", "n_slots": "slots", "where": "held by", "nbytes": "bytes each", "factor": "resource",
    "down_pct": "halved [%]", "up_pct": "doubled [%]",
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class ProductChoice:
    """The placements of C[m, n] = A[m, k] B[k, n], the best simulated; it prints itself and shows itself in a notebook.

    Those that were simulated are first, fastest first; `why` is of the longest launch of the best one. `missing` says
    what is not known yet, in words.
    """

    product: StoredProduct  # in the fastest placement
    machine: str
    all_pes: int
    macs_per_ns: float  # of all matrix engines of the SIP
    candidates: tuple[PlacementCandidate, ...]
    why: Explanation | None = None
    missing: Mapping[str, str] = field(default_factory=dict)  # by section

    @property
    def best(self) -> PlacementCandidate:
        return self.candidates[0]

    @property
    def simulated_ns(self) -> float:
        """Time of the best placement; StateError if none was simulated within the limit."""
        return _simulated_time(self.candidates)

    @property
    def utilization(self) -> float:
        """Share of the SIP's matrix rate."""
        return self.product.m * self.product.n * self.product.k / (self.macs_per_ns * self.simulated_ns)

    @property
    def warnings(self) -> list[str]:
        return [
            f"{x.placement} leaves {self.all_pes - x.pes} of {self.all_pes} PEs idle"
            for x in self.candidates
            if x.estimate_ns is not None and x.pes < (1 - _IDLE) * self.all_pes
        ]

    @property
    def notes(self) -> list[str]:
        return [f"warning: {warning}" for warning in self.warnings]

    @property
    def question(self) -> str:
        asked = self.product
        a, b = "A'" if asked.trans_a else "A", "B'" if asked.trans_b else "B"
        return f"C[{asked.m}, {asked.n}] = {a} {b}, k = {asked.k}, {asked.dtype}, over {self.all_pes} PEs"

    @property
    def title(self) -> str:
        if not self.candidates:
            return self.question
        if self.best.simulated_ns is None:
            return f"{self.question}: {self.best.placement}, {self.best.estimate_ns:,.0f} ns by closed form (estimate)"
        return (
            f"{self.question}: {self.best.placement}, {self.simulated_ns:,.0f} ns, "
            f"{self.utilization:.1%} of the matrix rate"
        )

    def to_dict(self) -> dict[str, Any]:
        known = bool(self.candidates) and self.best.simulated_ns is not None
        return {
            **asdict(self.product), "machine": self.machine, "simulated_ns": self.simulated_ns if known else None,
            "utilization": self.utilization if known else None, "candidates": [asdict(x) for x in self.candidates],
            "warnings": self.warnings, "why": self.why.to_dict() if self.why else None,
            "missing": list(self.missing.values()),
        }  # fmt: skip

    def sections(self) -> dict[str, str]:
        found = {"question": f"{self.question} (machine {self.machine[:12]})"}
        if self.candidates:
            shown = _fields(self.candidates, "placement estimate_ns pes remote_bytes limiter")
            found["estimates"] = _section("Placements by closed form (estimates, not simulated)", shown)
        if any(x.simulated_ns is not None for x in self.candidates):
            found["fastest"] = "\n".join(
                [f"Simulated: {self.title}", *(f"  {note}" for note in self.notes), *_tables_text(self.tables())]
            )
        if self.why is not None:
            found["why"] = repr(self.why)
        return found

    def tables(self) -> Tables:
        return {"Placements": _fields(self.candidates, "placement estimate_ns simulated_ns pes remote_bytes limiter")}

    def __repr__(self) -> str:
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)


@dataclass(frozen=True, eq=False, repr=False)
class CollectiveChoice:
    """The fastest algorithm for a collective; it prints itself and shows itself in a notebook.

    `why` is the critical path of the winner, with its launch by the host. `missing` says what is not known yet, in
    words.
    """

    system: str
    decision: Decision  # lower bound, and candidates, of which the best three by the model are simulated
    nbytes: int  # of a SIP
    pes: int = 1  # of a SIP, that have a shard of the decision's size each
    spreads: tuple[Spread, ...] = ()  # the same bytes on other PEs, fastest first
    changes: pd.DataFrame | None = None  # each resource halved and doubled, as `sensitivity.ranked` has it
    launched_ns: float | None = None  # with its start and launch by the host
    why: Explanation | None = None
    missing: Mapping[str, str] = field(default_factory=dict)  # by section

    @property
    def algorithm(self) -> str:
        return self.decision.algorithm

    @property
    def simulated_ns(self) -> float:
        """Device time of the fastest algorithm; StateError if none was simulated within the limit."""
        return _simulated_time(self.decision.candidates)

    @property
    def machine(self) -> str:
        return self.decision.machine

    @property
    def question(self) -> str:
        return f"{self.decision.collective} of {self.nbytes:,} B over {self.system}"

    @property
    def title(self) -> str:
        d = self.decision
        if not d.candidates:
            return self.question
        how = " by the alpha-beta model (estimate)" if d.best.simulated_ns is None else ""
        over = "no lower bound"
        if d.bound_ns:
            over = f"{d.best.ns / d.bound_ns:.2f}x the lower bound of {d.bound_ns:,.0f} ns ({d.bound_by})"
        return f"{self.question}: {d.algorithm} with {d.n_slots} slots, {d.best.ns:,.0f} ns{how}, {over}"

    @property
    def notes(self) -> list[str]:
        said = []
        if self.launched_ns is not None:
            said.append(f"with its start and launch by the host: {self.launched_ns:,.0f} ns")
        return [*said, *self._spread_notes(), *self._change_notes()]

    def _spread_notes(self) -> list[str]:
        best = self.spreads[0] if self.spreads else None
        if best is None or best.simulated_ns is None or best.simulated_ns >= self.simulated_ns:
            return []
        return [f"on {best.where} it takes {best.simulated_ns:,.0f} ns, by {best.algorithm}"]

    def _change_notes(self) -> list[str]:
        if self.changes is None:
            return []
        first = self.changes.iloc[0]
        if first["gain_pct"] <= 0:
            return ["no resource that is halved or doubled makes it faster"]
        how = "halve" if first["first"] == "down" else "double"
        return [f"change first: {how} {first['factor']}, {-first['gain_pct']:+.1f} % time"]

    def tables(self) -> Tables:
        return self._algorithms() | self._spread_table() | self._change_table()

    def _algorithms(self) -> Tables:
        found: Tables = {}
        if self.decision.candidates:
            known = "algorithm n_slots estimate_ns simulated_ns"
            if self.decision.best.simulated_ns is None:
                known = known.removesuffix(" simulated_ns")
            found["Algorithms"] = _fields(self.decision.candidates, known)
        if self.decision.refused:
            refused = [{"algorithm": name, "because": reason} for name, reason in self.decision.refused.items()]
            found["Algorithms that do not run here"] = table(refused)
        return found

    def _spread_table(self) -> Tables:
        if not self.spreads:
            return {}
        shown = _fields(self.spreads, "where nbytes algorithm n_slots estimate_ns simulated_ns")
        return {f"{self.nbytes:,} B of a SIP on other PEs": shown.rename(columns={"algorithm": "fastest"})}

    def _change_table(self) -> Tables:
        if self.changes is None:
            return {}
        heading = "Change of time, each resource halved and doubled, same algorithm (empty: not a valid machine)"
        return {heading: self.changes[["factor", "down_pct", "up_pct"]].rename(columns=_TITLES).round(1)}

    def to_dict(self) -> dict[str, Any]:
        changes: list[Row] = [] if self.changes is None else json.loads(self.changes.to_json(orient="records"))
        best = self.decision.best if self.decision.candidates else None
        return {
            "system": self.system, **asdict(self.decision), "nbytes": self.nbytes, "pes": self.pes,
            "algorithm": best.algorithm if best else None,
            "simulated_ns": best.simulated_ns if best else None, "launched_ns": self.launched_ns,
            "spreads": [asdict(x) for x in self.spreads], "changes": changes, "notes": self.notes,
            "why": self.why.to_dict() if self.why else None, "missing": list(self.missing.values()),
        }  # fmt: skip

    def sections(self) -> dict[str, str]:
        found = {"question": f"{self.question} (machine {self.machine[:12]})"}
        d = self.decision
        if d.candidates:
            ranking = sorted(d.candidates, key=lambda c: (c.estimate_ns is None, c.estimate_ns or 0.0))
            heading = "Algorithms by the alpha-beta model (estimates, not simulated)"
            found["estimates"] = _section(heading, _fields(ranking, "algorithm n_slots estimate_ns"))
        if any(c.simulated_ns is not None for c in d.candidates):
            host = replace(self, spreads=(), changes=None).notes
            lines = [f"Simulated: {self.title}", *(f"  {note}" for note in host), *_tables_text(self._algorithms())]
            found["fastest"] = "\n".join(lines)
        if self.why is not None:
            found["why"] = repr(self.why)
        for name, shown, notes in (
            ("spreads", self._spread_table(), self._spread_notes()),
            ("changes", self._change_table(), self._change_notes()),
        ):
            if shown:
                found[name] = "\n".join([*_tables_text(shown)[1:], *(f"  {note}" for note in notes)])
        return found

    def __repr__(self) -> str:
        return _text(self)

    def _repr_html_(self) -> str:
        return _html(self)


def _simulated_time(candidates: Sequence[PlacementCandidate | Candidate]) -> float:
    if not candidates or candidates[0].simulated_ns is None:
        raise StateError("no candidate was simulated within the limit; give more than limit_s")
    return candidates[0].simulated_ns


def _fields(rows: Iterable[Any], names: str) -> pd.DataFrame:
    return table([asdict(row) for row in rows], names.split()).rename(columns=_TITLES)


def text_table(shown: pd.DataFrame) -> list[str]:
    """Format a table as lines, numeric columns right-aligned.

    >>> text_table(table([{"name": "a", "bytes": 64}, {"name": "b", "bytes": 1024}]))
    ['name  bytes', 'a        64', 'b     1,024']
    """
    columns = []
    for name in shown:
        texts = [str(name), *map(cell, shown[name])]
        width, pad = max(map(len, texts)), str.rjust if is_numeric(shown[name]) else str.ljust
        columns.append([pad(text, width) for text in texts])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def _section(heading: str, shown: pd.DataFrame) -> str:
    return "\n".join([heading, *(f"  {line}" for line in text_table(shown))])


def _tables_text(tables: Tables) -> list[str]:
    return [line for heading, shown in tables.items() for line in ("", _section(heading, shown))]


def _missing_text(answer: ProductChoice | CollectiveChoice) -> list[str]:
    return [f"not known: {', '.join(answer.missing.values())}"] if answer.missing else []


def _text(answer: ProductChoice | CollectiveChoice) -> str:
    lines = [f"{answer.title} (machine {answer.machine[:12]})"]
    lines += [f"  {note}" for note in (*answer.notes, *_missing_text(answer))]
    lines += _tables_text(answer.tables())
    return "\n".join([*lines, "", repr(answer.why)] if answer.why is not None else lines)


def _html(answer: ProductChoice | CollectiveChoice) -> str:
    head = f"<b>{escape(answer.title)}</b> <span style='opacity:.7'>machine {answer.machine[:12]}</span>"
    parts = [f"<div>{line}</div>" for line in (head, *map(escape, (*answer.notes, *_missing_text(answer))))]
    for heading, shown in answer.tables().items():
        text = shown.map(cell).to_html(index=False, border=0)
        parts.append(f"<div style='margin-top:8px'><b>{escape(heading)}</b></div>{text}")
    return "".join([*parts, answer.why._repr_html_()] if answer.why is not None else parts)
