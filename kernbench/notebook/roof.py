"""Where a run stands under the roofs of its machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.analysis.ideal import macs_per_ns
from kernbench.analysis.roofline import Roofs, point
from kernbench.analysis.utilization import pe_window, utilization

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from kernbench.analysis.result import Result
    from kernbench.notebook.state import Entry


def roofs_of(entry: Entry, n_pes: int) -> Roofs:
    """Return the peak of `n_pes` matrix engines for the type at hand, and the bandwidths of their memories."""
    config = entry.machine.config
    hbm = config.cube.hbm
    levels = {
        "HBM": hbm.channels * hbm.channel_bw_gbs * hbm.efficiency * n_pes,
        "TCM": config.cube.pe.pe_tcm.read_bw_gbs * n_pes,
    }
    return Roofs(2 * macs_per_ns(config, dtype_of(entry)) * n_pes, levels)


def dtype_of(entry: Entry) -> str:
    """Return the type that the work's parameters name, f16 where they name none."""
    return str(entry.values.get("dtype", "f16"))


def roofline_figure(entry: Entry, result: Result) -> Figure:
    """Draw the run under the roofs of the PEs that did work."""
    from kernbench.viz.roofline import roofline  # matplotlib, which takes a while to import

    pes = max(1, len(result.records.pes()))
    at = point(result.records, entry.work.name, pe_window(result.records))
    row = {"name": f"run {entry.number}", "series": entry.work.name, "intensity": at.intensity, "gflops": at.gflops}
    return roofline([row], roofs_of(entry, pes), machine=entry.machine.hash, title=f"Roofline of {pes} PEs")


def utilization_line(entry: Entry, result: Result) -> str:
    """Return in a line how much of the matrix engines' rate did useful work."""
    used = utilization(result.records, macs_per_ns(entry.machine.config, dtype_of(entry)))
    if not used.useful_macs:
        return "The matrix engines did nothing."
    return (
        f"The matrix engines did useful work for {used.useful:.1%} of their rate, {used.issued:.1%} with padding, "
        f"over the {used.window_ps / 1000:,.1f} ns in which the PEs worked."
    )
