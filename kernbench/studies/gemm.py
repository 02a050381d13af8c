"""GEMM on one PE: shapes x staging of the operands x layout of the tiles in memory.

A and B (f16) lie in the PE's own HBM slice; C is written back there. `ref_ref` streams both operands tile by
tile, `load_ref` loads A into TCM first, `load_load` both. Every product is compared with numpy's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from kernbench.analysis.breakdown import breakdown
from kernbench.analysis.ideal import ideal_gemm, macs_per_ns
from kernbench.analysis.records import Records
from kernbench.analysis.result import Result
from kernbench.analysis.utilization import composite_window, pe_window, utilization
from kernbench.dtypes import as_dtype, int8, int32
from kernbench.errors import ArgumentError, ConfigError
from kernbench.kernels.gemm import STAGINGS, gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.program import run_program
from kernbench.runtime_api.verify import check_product, operand
from kernbench.studies.explore import SESSION_US, fits_slice
from kernbench.studies.points import Row, code_version, machine_of, run_points
from kernbench.studies.results import read_results, write_results
from kernbench.topology import naming
from kernbench.topology.builder import Machine, resolve_topology

FILE = "gemm_sweep.json"
SHAPES = (
    (16, 16, 16), (32, 64, 32), (32, 128, 32), (64, 64, 64), (128, 256, 128), (32, 3072, 32), (256, 256, 256),
    (512, 512, 512),
)  # fmt: skip
GATHERS = ("packed", "strided")
ENGINES = ("dma_in", "fetch", "gemm", "math", "store_tcm")
_PE = (0, 0, 0)
_STREAMED = {"ref_ref": ("a", "b"), "load_ref": ("b",), "load_load": ()}


def sweep(
    machine: Machine | str | None = None,
    *,
    shapes: Sequence[Sequence[int]] = SHAPES,
    variants: Sequence[str] = STAGINGS,
    gathers: Sequence[str] = GATHERS,
    dtype: str = "f16",
    workers: int = 1,
    folder: Path | None = None,
) -> list[Row]:
    """Return one row per shape (M, K, N), variant and gather.

    Parameters
    ----------
    machine
        As for `kb.load`.
    shapes
        (M, K, N) of each product.
    variants
        Which operands are streamed and which are loaded first.
    gathers
        Layout of the tiles in memory: "packed" (tile after tile) or "strided" (row by row).
    dtype
        Type of A, B and C.
    workers
        Processes.
    folder
        Where finished points are kept.

    Raises
    ------
    ArgumentError
        If a parameter is none of those; nothing has been run then.
    """
    resolved = resolve_topology(machine)
    faults = [f"variants: {v!r} is unknown; known: {', '.join(STAGINGS)}" for v in variants if v not in STAGINGS]
    faults += [f"gathers: {g!r} is unknown; known: {', '.join(GATHERS)}" for g in gathers if g not in GATHERS]
    faults += [
        f"shapes: {list(shape)} must be three sizes (M, K, N) >= 1"
        for shape in shapes
        if len(shape) != 3 or any(size < 1 for size in shape)
    ]
    if faults:
        raise ArgumentError("\n".join(faults))
    points = [
        {
            "machine": dict(resolved.with_({"cube.hbm.gather": gather}).spec),
            "shape": list(shape),
            "variant": variant,
            "gather": gather,
            "dtype": dtype,
        }
        for gather in gathers
        for shape in shapes
        for variant in variants
    ]
    return run_points(simulate, points, folder=folder, workers=workers)


def simulate(point: Row) -> Row:
    """Run one product and return its row."""
    machine = machine_of(point["machine"])
    result = run(machine, point["shape"], point["variant"], dtype=point["dtype"])
    return row(machine, result, point["shape"], point["variant"], point["dtype"])


def run(machine: Machine, shape: Sequence[int], variant: str, *, dtype: str = "f16", log: str = "tile") -> Result:
    """Run one product on PE 0 of cube 0 of SIP 0, checked against numpy; return what happened."""
    m, k, n = shape

    def program(torch: RuntimeContext) -> None:
        product(torch, m, k, n, variant, dtype)

    return run_program(machine, program, data=True, log=log)


def product(torch: RuntimeContext, m: int, k: int, n: int, variant: str, dtype: str) -> None:
    """Run one product on PE 0 of cube 0 of the current SIP; with data, check it against numpy."""
    here = DPPolicy(num_cubes=1, num_pes=1)
    a, a_values = operand(torch, "a", (m, k), as_dtype(dtype), here)
    b, b_values = operand(torch, "b", (k, n), as_dtype(dtype), here)
    kind = int32 if as_dtype(dtype) is int8 else as_dtype(dtype)
    c = torch.empty(m, n, dtype=kind, dp=here, device="ahbm", name="c")
    torch.launch(f"gemm {m}x{k}x{n} {variant}", gemm, a, b, c, m, k, n, variant)
    check_product(torch, f"{m}x{k}x{n} {variant}", c, a_values, b_values)


def explore(
    torch: RuntimeContext,
    *,
    m: Annotated[int, "rows of A and C"] = 512,
    k: Annotated[int, "columns of A, rows of B"] = 512,
    n: Annotated[int, "columns of B and C"] = 512,
    staging: Annotated[
        Literal["ref_ref", "load_ref", "load_load"], "stream both operands, only B, or load both first"
    ] = "ref_ref",
    dtype: Annotated[Literal["f16", "bf16", "f32", "f8e4m3fn", "f8e5m2", "i8"], "type of A and B"] = "f16",
) -> None:
    """C = A @ B on one PE."""
    product(torch, m, k, n, staging, dtype)


def explore_cost(machine: Machine, data: bool, *, m: int, k: int, n: int, staging: str, dtype: str) -> float:
    """Return the host time of `explore` [us]: tiles, and with data the reference product."""
    itemsize = as_dtype(dtype).itemsize
    faults = fits_slice(machine, "m", m, m * k * itemsize) or fits_slice(machine, "n", n, (m * k + k * n) * itemsize)
    if faults:
        raise ConfigError(faults)
    tile = machine.config.cube.pe.pe_gemm.tile
    tiles = -(-m // tile.m) * -(-k // tile.k) * -(-n // tile.n)
    values = 0.35 * (m * k + k * n + m * n) + 5e-5 * m * k * n if data else 0.0
    return SESSION_US + 75 * tiles + values


def row(machine: Machine, result: Result, shape: Sequence[int], variant: str, dtype: str) -> Row:
    """Return what the study keeps of one run."""
    records, config = result.records, machine.config
    m, k, n = shape
    tile = config.cube.pe.pe_gemm.tile
    ideal = ideal_gemm(config, (m, k, n), dtype=dtype, streamed=_STREAMED[variant])
    rate = macs_per_ns(config, dtype)
    windows = {"pe": pe_window(records, _PE), "composite": composite_window(records, _PE)}
    out: Row = {
        "shape": f"{m}x{k}x{n}",
        "m": m,
        "k": k,
        "n": n,
        "variant": variant,
        "gather": config.cube.hbm.gather,
        "dtype": dtype,
        "under_tile": m < tile.m or k < tile.k or n < tile.n,
        "tiles": ideal.tiles,
        "ideal_ns": ideal.time_ns,
        "ideal_limiter": ideal.limiter,
        "ideal_utilization": ideal.utilization,
        "machine": records.machine,
        "code_version": code_version(),
    }
    for name, window in windows.items():
        used = utilization(records, rate, pe=_PE, window=window)
        out[f"{name}_window_ns"] = (window[1] - window[0]) / 1000
        out[f"{name}_useful"], out[f"{name}_issued"] = used.useful, used.issued
    out |= breakdown(records, pe=_PE, window=windows["pe"]).columns()
    out |= _counts(records) | _occupancy(machine, records, windows["composite"])
    out["limiter"] = " + ".join(limiters(out))
    return out


def _occupancy(machine: Machine, records: Records, window: tuple[int, int]) -> Row:
    """Return the share of the composite's window that each engine was in service; for dma_in, the HBM slice.

    A transfer under way is no work: what the slice served for loads before the composite and for the host's
    read after it is taken off its busy time.
    """
    hbm = machine.config.cube.hbm
    rate = hbm.channels * hbm.channel_bw_gbs * hbm.efficiency
    elsewhere = sum(int(records.of_kind(kind).nbytes.sum()) for kind in ("load", "d2h")) / rate
    slice_ns = records.busy_by_component()[naming.hbm(*_PE)] / 1000 - elsewhere
    span = max(1, window[1] - window[0])
    busy = breakdown(records, pe=_PE, window=window).busy_ps
    return {"occupancy_dma_in": slice_ns * 1000 / span} | {
        f"occupancy_{stage}": busy[stage] / span for stage in ENGINES if stage != "dma_in"
    }


def _counts(records: Records) -> Row:
    kinds = ("load", "dma_in", "fetch", "gemm", "store_tcm", "dma_out")
    counted = {f"n_{kind}": len(records.of_kind(kind)) for kind in kinds}
    return counted | {
        f"{kind}_bytes": int(records.of_kind(kind).nbytes.sum()) for kind in ("load", "dma_in", "dma_out")
    }


def limiters(row: Mapping[str, Any]) -> list[str]:
    """Return the engines that were busy longest while the composite ran, all within 2 % of the busiest."""
    most = max(float(row[f"occupancy_{engine}"]) for engine in ENGINES)
    return [engine for engine in ENGINES if float(row[f"occupancy_{engine}"]) >= 0.98 * most]


def write(rows: Sequence[Row], machine: Machine, folder: Path) -> Path:
    """Write `gemm_sweep.json` and `gemm_sweep.csv`; return the former."""
    import pandas as pd

    tile = machine.config.cube.pe.pe_gemm.tile
    path = write_results(folder / FILE, rows, tile_sizes={"m": tile.m, "k": tile.k, "n": tile.n})
    pd.DataFrame(rows).to_csv(path.with_suffix(".csv"), index=False, lineterminator="\n")
    return path


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `gemm_sweep.json` in `folder`."""
    return read_results(folder / FILE)
