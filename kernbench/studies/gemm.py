"""GEMM on one PE: shapes, staging of the operands, layout of the operands in memory.

A and B are in the PE's own HBM slice; C is written back there. `ref_ref` streams both operands tile by tile, `load_ref`
loads A into TCM first, `load_load` both. Every product is compared with numpy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import kernbench.studies.gemm_report as report
from kernbench._dtypes import as_dtype, int8, int32
from kernbench.analysis._records import Records
from kernbench.analysis._roofline import ideal_gemm, macs_per_ns
from kernbench.analysis.breakdown import breakdown
from kernbench.analysis.result import Result
from kernbench.analysis.trace import timeline
from kernbench.analysis.utilization import composite_window, pe_window, utilization
from kernbench.kernels.gemm import STAGINGS, gemm
from kernbench.points._keys import Row
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import check_product, operand, run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.study import MACHINE, Parameter, Study, check_slices, fits_slice
from kernbench.sweeps._measure import path_columns, row_of
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine

SHAPES = (
    (16, 16, 16), (32, 64, 32), (32, 128, 32), (64, 64, 64), (128, 256, 128), (32, 3072, 32), (256, 256, 256),
    (512, 512, 512),
)  # fmt: skip
GATHERS = ("packed", "strided")
GATHER = "cube.hbm.gather"
_PE = (0, 0, 0)
_STREAMED = {"ref_ref": ("a", "b"), "load_ref": ("b",), "load_load": ()}
# Resources of the critical path by column; every other one is part of the launch and its completion.
_PATH = {
    "HBM slice": "hbm", "link of an HBM slice": "dma", "link of PE_DMA": "dma", "fetch from TCM": "fetch",
    "matrix engine": "gemm", "vector engine": "math", "store to TCM": "store_tcm",
}  # fmt: skip

_Sizes = Sequence[int]
_Names = Sequence[str]
Staging = Annotated[Literal["ref_ref", "load_ref", "load_load"], "stream both operands, only B, or load both first"]
_Dtype = Annotated[Literal["f16", "bf16", "f32", "f8e4m3fn", "f8e5m2", "i8"], "type of A and B"]


class GemmStudy(Study):
    """C = A @ B on one PE."""

    name, title = "gemm", "GEMM on one PE"
    parameters: ClassVar = {
        "shapes": Parameter([list(shape) for shape in SHAPES], "M, K, N of each product"),
        "variants": Parameter(list(STAGINGS), "stagings of the operands", known=STAGINGS),
        "gathers": Parameter(
            list(GATHERS), "layouts of the operands in HBM: tile after tile, or row after row", known=GATHERS
        ),
        "dtype": Parameter("f16", "type of A, B and C"),
        "timeline": Parameter([128, 256, 128], "M, K, N of the product whose tiles are kept, if it is one of shapes"),
    }
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings, files = staticmethod(report.tables), staticmethod(report.findings), staticmethod(report.files)
    log, data = "tile", True

    def check(self, machine: Machine, *, shapes: Sequence[_Sizes], **_: Any) -> list[str]:
        check_slices(machine, "gemm")
        return [
            f"shapes: {list(shape)} must be three sizes (M, K, N) >= 1"
            for shape in shapes
            if len(shape) != 3 or any(size < 1 for size in shape)
        ]

    def points(
        self,
        machine: Machine,
        *,
        shapes: Sequence[_Sizes],
        variants: _Names,
        gathers: _Names,
        dtype: str,
        timeline: _Sizes,
    ) -> list[Row]:
        kept = (gathers[0], *timeline, variants[0]) if gathers and variants else ()
        return [
            {MACHINE: {GATHER: gather}, "m": m, "k": k, "n": n, "staging": staging, "dtype": dtype}
            | ({"timeline": True} if (gather, m, k, n, staging) == kept else {})
            for gather in gathers
            for m, k, n in shapes
            for staging in variants
        ]

    def work(self, machine: Machine, *, m: int, k: int, n: int, **_: Any) -> float:
        return 20e6 + float(m * k * n)

    def program(
        self,
        torch: RuntimeContext,
        *,
        m: Annotated[int, "rows of A and C"] = 512,
        k: Annotated[int, "columns of A, rows of B"] = 512,
        n: Annotated[int, "columns of B and C"] = 512,
        staging: Staging = "ref_ref",
        dtype: _Dtype = "f16",
    ) -> None:
        """C = A @ B on one PE."""
        product(torch, m, k, n, staging, dtype)

    def row(
        self,
        machine: Machine,
        result: Result,
        *,
        m: int,
        k: int,
        n: int,
        staging: str,
        dtype: str,
        timeline: bool = False,
    ) -> Row:
        records, config = result.records, machine.config
        ideal = ideal_gemm(config, (m, k, n), dtype=dtype, streamed=_STREAMED[staging])
        tile = ideal.tile
        windows = {"pe": pe_window(records, _PE), "composite": composite_window(records, _PE)}
        out: Row = {
            "shape": f"{m}x{k}x{n}", "m": m, "k": k, "n": n, "variant": staging, "gather": config.cube.hbm.gather,
            "dtype": dtype, **row_of(result, machine, None, dtype),
            "under_tile": m < tile.m or k < tile.k or n < tile.n, "tiles": ideal.tiles, "ideal_ns": ideal.time_ns,
            "ideal_limiter": ideal.limiter, "ideal_utilization": ideal.utilization,
        }  # fmt: skip
        for name, window in windows.items():
            used = utilization(records, macs_per_ns(config, dtype), pe=_PE, window=window)
            out[f"{name}_window_ns"] = (window[1] - window[0]) / 1000
            out[f"{name}_useful"], out[f"{name}_issued"] = used.useful, used.issued
        out |= breakdown(records, pe=_PE, window=windows["pe"]).columns()
        out |= _counts(records) | _occupancy(machine, records, windows["composite"])
        out |= path_columns(records, records.launches[-1:], report.PATH_PARTS, _PATH)
        most = max(float(out[f"occupancy_{engine}"]) for engine in report.ENGINES)
        out["limiter"] = " + ".join(x for x in report.ENGINES if float(out[f"occupancy_{x}"]) >= 0.98 * most)
        return out | ({"timeline": _tiles(records)} if timeline else {})

    def faults(self, machine: Machine, *, m: int, k: int, n: int, staging: str, dtype: str) -> list[str]:
        itemsize = as_dtype(dtype).itemsize
        too_large = fits_slice(machine, "m", m, m * k * itemsize)
        return too_large or fits_slice(machine, "n", n, (m * k + k * n) * itemsize)


def run(machine: Machine, mkn: Sequence[int], staging: str, *, dtype: str = "f16", log: str = "tile") -> Result:
    """Run on PE 0 of cube 0 of SIP 0; the result is compared with numpy's."""
    m, k, n = mkn
    program = partial(product, m=m, k=k, n=n, staging=staging, dtype=dtype)
    return run_program(machine, program, data=True, log=log)


def product(torch: RuntimeContext, m: int, k: int, n: int, staging: str, dtype: str = "f16") -> None:
    """Run on PE 0 of cube 0 of the current SIP; with data, compare with numpy."""
    here = DPPolicy(num_cubes=1, num_pes=1)
    a, a_values = operand(torch, "a", (m, k), as_dtype(dtype), here)
    b, b_values = operand(torch, "b", (k, n), as_dtype(dtype), here)
    kind = int32 if as_dtype(dtype) is int8 else as_dtype(dtype)
    c = torch.empty(m, n, dtype=kind, dp=here, device="ahbm", name="c")
    torch.launch(f"gemm {m}x{k}x{n} {staging}", gemm, a, b, c, m, k, n, staging)
    check_product(torch, f"{m}x{k}x{n} {staging}", c, a_values, b_values)


def _counts(records: Records) -> Row:
    kinds = ("load", "dma_in", "fetch", "gemm", "store_tcm", "dma_out")
    rows = {kind: records.of_kind(kind) for kind in kinds}
    nbytes = {f"{kind}_bytes": int(rows[kind].nbytes.sum()) for kind in ("load", "dma_in", "dma_out")}
    return {f"n_{kind}": len(found) for kind, found in rows.items()} | nbytes


def _occupancy(machine: Machine, records: Records, window: tuple[int, int]) -> Row:
    """Share of the composite's window that each engine was in service; for dma_in, the HBM slice."""
    hbm = machine.config.cube.hbm
    elsewhere = sum(int(records.of_kind(kind).nbytes.sum()) for kind in ("load", "d2h")) / hbm.slice_gbs
    slice_ns = records.busy_by_component()[naming.hbm(*_PE)] / 1000 - elsewhere
    span = max(1, window[1] - window[0])
    busy = breakdown(records, pe=_PE, window=window).busy_ps
    return {"occupancy_dma_in": slice_ns * 1000 / span} | {
        f"occupancy_{stage}": busy[stage] / span for stage in report.ENGINES if stage != "dma_in"
    }


def _tiles(records: Records) -> list[Row]:
    return [{name: piece[name] for name in ("stage", "tile", "start_ns", "end_ns")} for piece in timeline(records, _PE)]
