"""The page of a report as Markdown, and how it formats a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.points._keys import Row, code_version
from kernbench.viz.charts import Chart, Column

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.studies.study import Report, Tables

MOST_ROWS = 100  # of a table on the page


def page_of(report: Report, drawn: Mapping[str, Chart], tables: Tables) -> str:
    """Write the page: findings with their charts, the other charts, tables, what was refused, and the method."""
    study, shown = report.study, set()
    lines = [f"# {study.title}", ""]
    for number, finding in enumerate(report.findings, 1):
        lines += [f"**{number}. {finding.text}**", "", *([finding.detail, ""] if finding.detail else [])]
        if finding.chart in drawn and finding.chart not in shown:
            shown.add(finding.chart)
            lines += _figure(drawn[finding.chart], report.rows)
    rest = [chart for name, chart in drawn.items() if name not in shown]
    if rest:
        lines += ["## More figures", ""]
        for chart in rest:
            lines += _figure(chart, report.rows)
    for heading, shown_rows in tables.items():
        file = file_of(heading)
        long = [f"{len(shown_rows)} rows, in [{file}]({file})."] if len(shown_rows) > MOST_ROWS else []
        lines += [f"## {heading}", "", *(long or _markdown(shown_rows, study.columns)), ""]
    refused = study.refused(report.machine, **report.parameters)
    if refused:
        lines += ["## Refused", "", *(f"- {name}: {why}" for name, why in refused.items()), ""]
    used = ", ".join(f"{name} = {json.dumps(value)}" for name, value in report.parameters.items())
    lines += ["## Method", "", study.method or (study.__doc__ or "").strip(), ""]
    lines += [f"Parameters: {used}.", ""] if used else []
    code = report.rows[0]["code_version"] if report.rows else code_version()
    made_by = f"kernbench {version('kernbench')}, code {code}."
    source = Path(report.machine.source).name  # a page is the same wherever its machine's file is
    return "\n".join([*lines, f"{report.head} ({source}), {made_by}"]) + "\n"


def file_of(heading: str) -> str:
    """Name the file of a table that is too long for the page."""
    return f"{heading.lower().replace(' ', '_')}.csv"


def _figure(chart: Chart, rows: Sequence[Row]) -> list[str]:
    heading = chart.heading(rows)
    return [f"![{heading}]({chart.name}.svg)", "", *([chart.caption, ""] if chart.caption else [])]


def _markdown(table: pd.DataFrame, columns: Mapping[str, Column]) -> list[str]:
    names = [columns[name].title if name in columns else str(name) for name in table.columns]
    lines = [f"| {' | '.join(names)} |", f"|{'|'.join(' ---: ' if is_numeric(table[c]) else ' --- ' for c in table)}|"]
    return [*lines, *(f"| {' | '.join(map(cell, values))} |" for values in table.itertuples(index=False))]


def is_numeric(column: pd.Series) -> bool:
    import pandas as pd

    return bool(pd.api.types.is_numeric_dtype(column))


def cell(value: object) -> str:
    """Format a value of a table: four digits, thousands apart; empty if missing."""
    if value is None or (isinstance(value, float) and isnan(value)):
        return ""
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
