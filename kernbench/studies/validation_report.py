"""The validation study's report: table, figures, and findings in words that are computed from the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.studies.points import Row
from kernbench.viz.figure import save
from kernbench.viz.validation import validation_errors, validation_spread

if TYPE_CHECKING:
    import pandas as pd

FIGURES = {"validation_errors.png": validation_errors, "validation_spread.png": validation_spread}

_NO_ROW = (
    "Rules without a row state no number of their own: the machine's layout (M1), addresses and placement (M2) and "
    "routes (M3) are held by the tests that docs/model.md lists in its section 9, as are types (M6.3)."
)


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write the figures; return their paths."""
    machine = rows[0]["machine"]
    wanted = [name for name in FIGURES if name != "validation_spread.png" or any(row["unit"] == "%" for row in rows)]
    return [save(FIGURES[name](rows, machine=machine), folder / name) for name in wanted]


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the columns that a reader looks at first."""
    import pandas as pd

    return pd.DataFrame(
        [
            {
                "rule": row["rule"],
                "name": row["name"],
                "points": row["n"],
                "largest error": _error(row, "error_max"),
                "mean error": _error(row, "error_mean"),
                "verdict": _verdict(row),
            }
            for row in rows
        ]
    )


def findings(rows: Sequence[Row]) -> list[str]:
    """Return what the rows say, one sentence each."""
    exact = [row for row in rows if row["allowed"] == 0 and row["held"]]
    within = [row for row in rows if row["allowed"] and row["held"]]
    broken = [row for row in rows if row["held"] is False]
    said = [f"{len(exact)} of {len(rows)} rows hold exactly, at {sum(row['n'] for row in exact):,} points."]
    said += [
        f"{row['rule']}, {row['what']}: holds within {row['allowed']:g} %; at most {_error(row, 'error_max')} "
        f"({row['worst'] or 'no point differs'})."
        for row in within
    ]
    said += [
        f"{row['rule']}, {row['what']}: DOES NOT HOLD, {_error(row, 'error_max')} at {row['worst']} "
        f"(expected {row['worst_expected']:g}, measured {row['worst_measured']:g})."
        for row in broken
    ] or ["No rule that states a number is broken."]
    said += [
        f"{row['rule']}, {row['what']}: differs by {_error(row, 'error_mean')} on the mean and "
        f"{_error(row, 'error_max')} at most{' (' + row['worst'] + ')' if row['worst'] else ''}; {row['note']}."
        for row in rows
        if row["allowed"] is None
    ]
    return said


def write_report(rows: Sequence[Row], folder: Path) -> Path:
    """Write `README.md`: findings, the table, the figures."""
    lines = ["# Validation", "", "Every rule of docs/model.md that states a number, against the simulation.", ""]
    lines += [f"- {sentence}" for sentence in findings(rows)]
    lines += ["", "| rule | what | points | largest error | mean error | verdict | worst case |"]
    lines += ["| --- | --- | ---: | ---: | ---: | --- | --- |"]
    for row in rows:
        cells = [row["rule"], row["what"], f"{row['n']:,}", _error(row, "error_max"), _error(row, "error_mean")]
        lines.append(f"| {' | '.join([*cells, _verdict(row), row['worst'] or '-'])} |")
    lines.append("")
    lines += [
        f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in FIGURES if (folder / name).is_file()
    ]
    lines += [
        "",
        _NO_ROW,
        "",
        f"Machine {rows[0]['machine'][:12]}, code {rows[0]['code_version']}.",
    ]
    path = folder / "README.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


def _error(row: Row, column: str) -> str:
    value = row[column]
    return "0" if not value else f"{value:.3g} {row['unit']}"


def _verdict(row: Row) -> str:
    if row["allowed"] is None:
        return "reported"
    return ("exact" if not row["allowed"] else f"within {row['allowed']:g} %") if row["held"] else "BROKEN"
