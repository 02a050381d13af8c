"""GEMM on one PE: shapes x staging of the operands x layout of the tiles in memory.

A and B (f16) lie in the PE's own HBM slice; C is written back there. `ref_ref` streams both operands tile by
tile, `load_ref` loads A into TCM first, `load_load` both. Every product is compared with numpy's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.analysis.ideal import ideal_gemm, macs_per_ns
from kernbench.analysis.records import Records
from kernbench.analysis.breakdown import STAGES, breakdown
from kernbench.analysis.result import Result
from kernbench.analysis.utilization import composite_window, pe_window, utilization
from kernbench.dtypes import as_dtype
from kernbench.errors import KernbenchError
from kernbench.kernels.gemm import STAGINGS, gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.auto import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.points import Row, code_version, run_points
from kernbench.topology.builder import Machine, resolve_topology

SCHEMA_VERSION = 1
SHAPES = (
    (16, 16, 16), (32, 64, 32), (32, 128, 32), (64, 64, 64), (128, 256, 128), (32, 3072, 32), (256, 256, 256),
    (512, 512, 512),
)  # fmt: skip
GATHERS = ("packed", "strided")
_PE = (0, 0, 0)
_STREAMED = {"ref_ref": ("a", "b"), "load_ref": ("b",), "load_load": ()}


def sweep(
    machine: Machine | str | None = None,
    *,
    shapes: Sequence[Sequence[int]] = SHAPES,
    variants: Sequence[str] = STAGINGS,
    gathers: Sequence[str] = GATHERS,
    dtype: str = "f16",
    mode: str = "auto",
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
    mode
        The engine's mode.
    workers
        Processes.
    folder
        Where finished points are kept.

    Raises
    ------
    KernbenchError
        If a parameter is none of those; nothing has been run then.
    """
    resolved = resolve_topology(machine)
    faults = [f"variants: {v!r} is unknown; known: {', '.join(STAGINGS)}" for v in variants if v not in STAGINGS]
    faults += [f"gathers: {g!r} is unknown; known: {', '.join(GATHERS)}" for g in gathers if g not in GATHERS]
    faults += [
        f"shapes: {list(shape)} must be three sizes (M, K, N) >= 1"
        for shape in shapes
        if len(shape) != 3 or any(not isinstance(size, int) or size < 1 for size in shape)
    ]
    if faults:
        raise KernbenchError("\n".join(faults))
    points = [
        {
            "machine": dict(resolved.with_({"cube.hbm.gather": gather}).spec),
            "shape": list(shape),
            "variant": variant,
            "gather": gather,
            "dtype": dtype,
            "mode": mode,
        }
        for gather in gathers
        for shape in shapes
        for variant in variants
    ]
    return run_points(simulate, points, folder=folder, workers=workers)


def simulate(point: Row) -> Row:
    """Run one product and return its row."""
    machine = resolve_topology(point["machine"])
    result = run(machine, point["shape"], point["variant"], dtype=point["dtype"], mode=point["mode"])
    return row(machine, result, point["shape"], point["variant"], point["dtype"])


def run(
    machine: Machine, shape: Sequence[int], variant: str, *, dtype: str = "f16", mode: str = "auto", log: str = "tile"
) -> Result:
    """Run one product on PE 0 of cube 0 of SIP 0, checked against numpy; return what happened."""
    m, k, n = shape

    def program(torch: RuntimeContext) -> None:
        torch.manual_seed(0)
        here = DPPolicy(num_cubes=1, num_pes=1)
        a = torch.randn(m, k, dtype=dtype, dp=here, device="ahbm", name="A")
        b = torch.randn(k, n, dtype=dtype, dp=here, device="ahbm", name="B")
        c = torch.empty(m, n, dtype=dtype, dp=here, device="ahbm", name="C")
        torch.launch(f"gemm {m}x{k}x{n} {variant}", gemm, a, b, c, m, k, n, variant)
        torch.synchronize()
        _check(a.peek(), b.peek(), c.peek(), dtype)

    return run_program(machine, program, data=True, mode=mode, log=log)


def _check(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: str) -> None:
    """Compare with numpy: products in f32, rounded once; the order of a sum may move the last bit."""
    want = a.astype(np.float32) @ b.astype(np.float32)
    got = c.astype(np.float32)
    eps = {2: 2.0**-10, 1: 2.0**-2}.get(as_dtype(dtype).itemsize, 2.0**-20)
    bound = eps * (np.abs(a).astype(np.float32) @ np.abs(b).astype(np.float32)) + 1e-6
    worst = float((np.abs(got - want) / bound).max())
    if not worst <= 1:
        raise KernbenchError(f"product differs from numpy's by {worst:.3g} x the rounding bound")


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
        "certificate": result.certificate,
        "machine": records.machine,
        "code_version": code_version(),
    }
    for name, window in windows.items():
        used = utilization(records, rate, pe=_PE, window=window)
        out[f"{name}_window_ns"] = (window[1] - window[0]) / 1000
        out[f"{name}_useful"], out[f"{name}_issued"] = used.useful, used.issued
    out |= breakdown(records, pe=_PE, window=windows["pe"]).columns()
    inside = breakdown(records, pe=_PE, window=windows["composite"])
    span = max(1, inside.window_ps)
    out |= {f"occupancy_{stage}": inside.busy_ps[stage] / span for stage in STAGES if stage != "host"}
    out |= _counts(records)
    out["limiter"] = limiter(out)
    return out


def _counts(records: Records) -> Row:
    kinds = ("load", "dma_in", "fetch", "gemm", "store_tcm", "dma_out")
    counted = {f"n_{kind}": len(records.of_kind(kind)) for kind in kinds}
    return counted | {f"{kind}_bytes": int(records.of_kind(kind).nbytes.sum()) for kind in ("load", "dma_in", "dma_out")}


def limiter(row: Mapping[str, Any]) -> str:
    """Return the stage that was busy longest while the composite ran."""
    stages = [stage for stage in STAGES if stage != "host"]
    return max(stages, key=lambda stage: float(row[f"occupancy_{stage}"]))


def write(rows: Sequence[Row], machine: Machine, folder: Path) -> Path:
    """Write `gemm_sweep.json` and `gemm_sweep.csv`; return the former."""
    import pandas as pd

    tile = machine.config.cube.pe.pe_gemm.tile
    content = {
        "schema_version": SCHEMA_VERSION,
        "machine": machine.hash,
        "code_version": code_version(),
        "tile_sizes": {"m": tile.m, "k": tile.k, "n": tile.n},
        "rows": list(rows),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "gemm_sweep.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8", newline="\n")
    pd.DataFrame(rows).to_csv(folder / "gemm_sweep.csv", index=False, lineterminator="\n")
    return path


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `gemm_sweep.json` in `folder`.

    Raises
    ------
    KernbenchError
        If there is none, or it has another schema version.
    """
    path = folder / "gemm_sweep.json"
    if not path.is_file():
        raise KernbenchError(f"{path}: no results to draw; run the study first (without rerender)")
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema_version") != SCHEMA_VERSION:
        raise KernbenchError(f"{path}: schema_version = {content.get('schema_version')} must be {SCHEMA_VERSION}; run the study again")
    return content
