"""How much of the communication between PEs is hidden behind work, and how much is exposed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.analysis.breakdown import PE_KINDS
from kernbench.analysis.records import Records

COMMUNICATION = ("send", "recv")
WORK = tuple(kind for kind in PE_KINDS if kind not in COMMUNICATION)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Mean time over PEs [ns]; the four sum to the window.

    Attributes
    ----------
    work_ns : float
        Engines or DMA are busy, no message is under way.
    hidden_ns : float
        Both.
    exposed_ns : float
        A message is under way, or waited for, and nothing else happens.
    idle_ns : float
        Neither.
    """

    work_ns: float
    hidden_ns: float
    exposed_ns: float
    idle_ns: float

    @property
    def exposed_share(self) -> float:
        """Exposed communication as a share of all communication; 0 where there is none."""
        both = self.hidden_ns + self.exposed_ns
        return self.exposed_ns / both if both else 0.0


def overlap(records: Records, window: tuple[int, int] | None = None) -> Overlap:
    """Return how work and messages overlap on the PEs that did work.

    Parameters
    ----------
    records : Records
        With rows of operations.
    window : (start_ps, end_ps), optional
        By default the whole run.
    """
    start, end = window or (0, records.makespan_ps)
    pes = {pe: i for i, pe in enumerate(records.pes())}
    table = np.array([pes.get((c.sip, c.cube, c.pe), -1) for c in records.commands] + [-1], np.int64)
    span, n = max(1, end - start), max(1, len(pes))
    spans = {}
    for name, kinds in (("work", WORK), ("messages", COMMUNICATION)):
        rows = records.of_kind(*kinds)
        lane = table[rows.command]
        low, high = (np.clip(x, start, end) - start + lane * span for x in (rows.start_ps, rows.end_ps))
        spans[name] = np.stack([low, high])[:, (lane >= 0) & (high > low)]
    work, messages, both = (_covered(x) for x in (*spans.values(), np.concatenate([*spans.values()], axis=1)))
    hidden = work + messages - both
    scale = 1 / (1000 * n)
    parts = work - hidden, hidden, messages - hidden, span * n - both
    return Overlap(*(float(part * scale) for part in parts))


def _covered(spans: np.ndarray) -> int:
    """Return how much of the axis the intervals (start, end) cover together."""
    low, high = spans[:, np.argsort(spans[0], kind="stable")]
    highest = np.maximum.accumulate(high) if len(high) else high
    before = np.concatenate([[0], highest[:-1]]) if len(high) else high
    return int(np.maximum(0, highest - np.maximum(low, before)).sum())
