"""Findings: what the rows of a study say, and the words that reports share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernbench.config._files import read_json
from kernbench.points._keys import Row

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


def fastest(names: Iterable[str]) -> str:
    """Count the winners, in words.

    >>> fastest(["ring", "torus", "torus"])
    'torus is fastest for 2, ring for 1'
    """
    (first, most), *others = Counter(names).most_common()
    return ", ".join([f"{first} is fastest for {most}", *(f"{name} for {n}" for name, n in others)])


def first_upper(text: str) -> str:
    """Capitalize the first letter only.

    >>> first_upper("halving UCIe of a SIP")
    'Halving UCIe of a SIP'
    """
    return text[:1].upper() + text[1:]


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
