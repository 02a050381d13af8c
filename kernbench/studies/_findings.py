"""Findings: what the rows of a study say, and the words that reports share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from re import findall
from string import Formatter
from typing import Any, TypeVar

from kernbench.config._files import read_json
from kernbench.points._keys import Row

R = TypeVar("R", bound=Mapping[str, Any])  # a row
MOST_FINDINGS = 7  # of a page
FINDINGS_FILE = "_findings.json"  # after the name of the study


@dataclass(frozen=True, slots=True)
class Finding:
    """One claim that the numbers support, and what it rests on.

    Parameters
    ----------
    text
        The claim: one short sentence, bold on the page and the title of its chart.
    chart
        Name of the chart that it rests on, empty if a table does.
    weight
        How much it matters: the page shows the seven heaviest, heaviest first.
    values
        The figures and names that it states, by name with unit, for programs: `NAME_findings.json` has them.
    detail
        Further numbers, causes and paths, in plain sentences below the claim.
    """

    text: str
    chart: str = ""
    weight: float = 0.0
    values: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.detail}".rstrip()


def claim(text: str, chart: str, weight: float, detail: str = "", **known: Any) -> Finding:
    """Make a finding whose text and detail are formats of what is `known`; the fields that they name are its values.

    >>> claim("{best[name]} takes {ns:,.0f} ns.", "times", 3, best={"name": "ring", "steps": 7}, ns=12.3).values
    {'best_name': 'ring', 'ns': 12.3}
    """
    fields = (field for _, field, _, _ in Formatter().parse(text + detail) if field)
    values = {"_".join(findall(r"\w+", field)): Formatter().get_field(field, (), known)[0] for field in fields}
    return Finding(text.format(**known), chart, weight, values, detail.format(**known))


def ends(rows: Iterable[R], column: str) -> tuple[R, R]:
    """Return the rows with the most and with the least of a column, of several the first."""
    every = list(rows)
    return max(every, key=lambda row: row[column]), min(every, key=lambda row: row[column])


def fastest(names: Iterable[str]) -> str:
    """Count the winners, in words.

    >>> fastest(["ring", "torus", "torus"])
    'torus is fastest for 2, ring for 1'
    """
    (first, most), *others = Counter(names).most_common()
    return ", ".join([f"{first} is fastest for {most}", *(f"{name} for {n}" for name, n in others)])


def over(
    rows: Iterable[Mapping[str, Any]],
    base: Iterable[Mapping[str, Any]],
    key: Callable[[Any], Any],
    time: str,
    ratio: str,
) -> list[Row]:
    """Rows with the column `ratio`: their time over that of the row of `base` with the same key; others are dropped.

    >>> over([{"n": 2, "ns": 3.0}, {"n": 4, "ns": 1.0}], [{"n": 2, "ns": 2.0}], lambda row: row["n"], "ns", "slowdown")
    [{'n': 2, 'ns': 3.0, 'slowdown': 1.5}]
    """
    times = {key(row): row[time] for row in base}
    return [{**row, ratio: row[time] / times[key(row)]} for row in rows if key(row) in times]


def saved_findings(folder: Path) -> dict[str, list[Row]]:
    return {
        path.name.removesuffix(FINDINGS_FILE): read_json(path, "file of findings", "run the study again")["findings"]
        for path in sorted(folder.glob(f"*{FINDINGS_FILE}"))
    }
