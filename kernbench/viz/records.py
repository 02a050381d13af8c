"""How the op log of a run shows itself in a notebook: totals by kind, and its first rows."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kernbench.analysis.records import Records

_SHOWN = 12
_NUMBER = "text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums"


def records_html(records: Records) -> str:
    """Return the log as two tables; times are in ns."""
    kinds = []
    for i, kind in enumerate(records.kinds):
        rows = records.kind == i
        if rows.any():
            ns = int((records.end_ps - records.start_ps)[rows].sum()) / 1000
            kinds.append([kind, f"{np.count_nonzero(rows):,}", f"{ns:,.2f}", f"{int(records.nbytes[rows].sum()):,}"])
    first = [
        [
            op.component, op.kind, op.command.name, f"{op.start_ps / 1000:,.3f}", f"{op.end_ps / 1000:,.3f}",
            f"{op.nbytes:,}" if op.nbytes else "", str(op.tile) if op.tile >= 0 else "",
        ]
        for op in islice(records, _SHOWN)
    ]  # fmt: skip
    more = len(records) - len(first)
    return (
        f"<div>{escape(repr(records))}</div>"
        + _table(["kind", "rows", "time in all [ns]", "bytes"], kinds, 1)
        + _table(["component", "kind", "command", "start [ns]", "end [ns]", "bytes", "tile"], first, 3)
        + (f"<div>... and {more:,} more</div>" if more > 0 else "")
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], text: int) -> str:
    """Return a table whose first `text` columns are text."""
    styles = ["text-align:left"] * text + [_NUMBER] * (len(head) - text)
    top = "".join(f'<th style="{style}">{escape(x)}</th>' for style, x in zip(styles, head, strict=True))
    lines = [
        "".join(f'<td style="{style}">{escape(x)}</td>' for style, x in zip(styles, row, strict=True)) for row in rows
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
