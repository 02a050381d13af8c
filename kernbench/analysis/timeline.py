"""One PE's engines over time, as the rows of a Gantt chart."""

from __future__ import annotations

from typing import Any

from kernbench.analysis.breakdown import ENGINE_KINDS, STAGES
from kernbench.analysis.records import Records

LANES = ("dma_in", "fetch", "gemm", "math", "store_tcm", "dma_out", "recv", "send")  # the way of a tile, then messages

_STAGE_OF = {kind: stage for stage, kinds in STAGES.items() for kind in kinds}


def timeline(records: Records, pe: tuple[int, int, int], window: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """Return a row for each piece of work of one PE, in order of start.

    Parameters
    ----------
    records : Records
        Logged at tile level, to see each tile.
    pe : (sip, cube, pe)
    window : (start_ps, end_ps), optional
        Only work that overlaps it.
    """
    rows = records.of_pe(*pe).of_kind(*ENGINE_KINDS)
    if window:
        rows = rows.within(*window)
    table = [
        {
            "stage": _STAGE_OF[op.kind],
            "start_ns": op.start_ps / 1000,
            "end_ns": op.end_ps / 1000,
            "tile": op.tile,
            "command": op.command.name,
        }
        for op in rows
    ]
    return sorted(table, key=lambda row: (row["start_ns"], row["end_ns"], row["stage"]))
