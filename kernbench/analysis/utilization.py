"""How much of the matrix engine's rate did useful work, and how much went into padding."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.analysis.breakdown import PE_KINDS, breakdown
from kernbench.analysis.records import Records


@dataclass(frozen=True, slots=True)
class Utilization:
    """Useful and issued MACs of the matrix engines over one window, and both as a share of their rate."""

    window_ps: int
    useful_macs: int
    issued_macs: float
    useful: float
    issued: float


def pe_window(records: Records, pe: tuple[int, int, int] | None = None) -> tuple[int, int]:
    """Return (start_ps, end_ps) of everything the PE did, loads included; by default of all PEs."""
    return _span((records.of_pe(*pe) if pe else records).of_kind(*PE_KINDS))


def composite_window(records: Records, pe: tuple[int, int, int] | None = None) -> tuple[int, int]:
    """Return (start_ps, end_ps) of the PE's composites, up to the acknowledgement of the last write."""
    return _span((records.of_pe(*pe) if pe else records).of_kind("composite"))


def utilization(
    records: Records,
    macs_per_ns: float,
    *,
    pe: tuple[int, int, int] | None = None,
    window: tuple[int, int] | None = None,
) -> Utilization:
    """Return the utilization of the matrix engine of one PE, or of all PEs that did work.

    Parameters
    ----------
    records : Records
    macs_per_ns : float
        Rate of one matrix engine for the type at hand.
    pe : (sip, cube, pe), optional
    window : (start_ps, end_ps), optional
        By default `pe_window`.

    Notes
    -----
    useful = useful MACs / (rate x window); issued = busy time / window, as a ragged tile occupies the engine like a
    full one. Work counts in the window in which it ends.
    """
    window = window or pe_window(records, pe)
    parts = breakdown(records, pe=pe, window=window)
    gemm = (records.of_pe(*pe) if pe else records).of_kind("gemm")
    inside = (gemm.end_ps > window[0]) & (gemm.end_ps <= window[1])
    useful_macs = int(gemm.flops[inside].sum()) // 2
    span_ns = parts.window_ps * parts.n_pes / 1000
    issued_macs = parts.busy_ps["gemm"] / 1000 * macs_per_ns
    peak = macs_per_ns * span_ns
    return Utilization(
        window_ps=parts.window_ps,
        useful_macs=useful_macs,
        issued_macs=issued_macs,
        useful=useful_macs / peak if peak else 0.0,
        issued=issued_macs / peak if peak else 0.0,
    )


def _span(rows: Records) -> tuple[int, int]:
    if not len(rows):
        return 0, 0
    return int(rows.start_ps.min()), int(rows.end_ps.max())
