"""Hand-made records: rows as (kind, start ns, end ns, pe or None for the host, more columns)."""

from __future__ import annotations

import numpy as np

from kernbench.analysis._records import CommandInfo, Records

ENGINE = {
    "load": "pe_dma", "dma_in": "pe_dma", "store": "pe_dma", "dma_out": "pe_dma", "fetch": "pe_fetch_store",
    "store_tcm": "pe_fetch_store", "gemm": "pe_gemm", "math": "pe_math", "composite": "pe_scheduler",
    "recv": "pe_ipcq", "send": "pe_ipcq",
}  # fmt: skip


def records_of(rows, **fields):
    components = sorted({_component(kind, pe) for kind, _, _, pe, _ in rows})
    kinds = sorted({row[0] for row in rows})
    commands = tuple(
        CommandInfo(f"c{pe}", 0, 0, pe)
        for pe in range(1 + max((row[3] for row in rows if row[3] is not None), default=-1))
    )
    ends = [row[2] for row in rows] or [0]
    return Records(
        start_ps=np.array([row[1] * 1000 for row in rows], np.int64),
        end_ps=np.array([row[2] * 1000 for row in rows], np.int64),
        component=np.array([components.index(_component(row[0], row[3])) for row in rows], np.int32),
        kind=np.array([kinds.index(row[0]) for row in rows], np.int16),
        command=np.array([-1 if row[3] is None else row[3] for row in rows], np.int32),
        nbytes=np.array([row[4].get("nbytes", 0) for row in rows], np.int64),
        flops=np.array([row[4].get("flops", 0) for row in rows], np.int64),
        tile=np.array([row[4].get("tile", -1) for row in rows], np.int32),
        components=tuple(components),
        kinds=tuple(kinds),
        commands=commands,
        **{"makespan_ps": max(ends) * 1000, "machine": "0123456789abcdef", **fields},
    )


def _component(kind, pe):
    return "host" if pe is None else f"sip0.cube0.pe{pe}.{ENGINE[kind]}"
