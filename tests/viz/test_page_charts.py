"""Charts of the explorer."""

from __future__ import annotations

import pytest

from kernbench.analysis._roofline import Roofs, macs_per_ns, point
from kernbench.analysis.utilization import pe_window
from kernbench.studies import gemm
from kernbench.topology.builder import resolve_topology
from kernbench.viz._page_charts import roofline_chart

MACHINE = resolve_topology("preset:default")


@pytest.mark.parametrize(
    ("staging", "changes", "limit", "share"),
    [
        ("ref_ref", {}, "HBM", 0.9),
        ("load_load", {"cube.pe.pe_tcm.read_bw_gbs": 256}, "TCM", 0.7),
        ("load_load", {"cube.pe.pe_tcm.read_bw_gbs": 4096}, "the peak", 0.6),
    ],
)
def test_a_run_is_compared_with_the_roof_that_binds(staging, changes, limit, share):
    machine = MACHINE.with_(changes)
    config, records = machine.config, gemm.run(machine, (128, 1024, 128), staging).records
    at = point(records, "run", pe_window(records))
    peak, levels = 2 * macs_per_ns(config, "f16"), {"HBM": config.cube.hbm.slice_gbs}
    roofs = Roofs(peak, levels | {"TCM": config.cube.pe.pe_tcm.read_bw_gbs})
    bound = min(peak, *(at.intensities[level] * gbs for level, gbs in roofs.levels_gbs.items()))
    assert share < at.gflops / bound <= 1
    drawn = roofline_chart(at, roofs, "Roofline").to_dict()
    text = drawn["title"]["subtitle"]
    assert text.startswith(f"run: {at.gflops:,.0f} Gflop/s, {at.gflops / bound:.0%} of ")
    assert text.endswith(limit)
    (dots,) = (layer for layer in drawn["layer"] if layer["mark"]["type"] == "point")
    rows = drawn["datasets"][dots.get("data", drawn["data"])["name"]]
    assert {row["intensity"] for row in rows} == set(at.intensities.values())
