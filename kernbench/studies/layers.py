"""Layers of real networks over a whole SIP: where the operands live, and what that costs.

A (inputs) is cut by rows over all PEs, B (weights) by columns, so that weights exist once; C (outputs) lies as the
placement says. Spreading the inputs and gathering nothing but what a PE computes are inside the makespan, which
runs from the launch leaving the host to the last completion coming back. K is never split.

| placement | C | a PE reads from other PEs |
|---|---|---|
| rows | by rows over PEs | all of B |
| columns | by columns over PEs | all of A |
| 2-D | by columns over cubes, by rows over the PEs of each | its rows of A, and B of its cube |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from kernbench.analysis.ideal import macs_per_ns
from kernbench.analysis.links import hottest, shares
from kernbench.analysis.records import LinkTable
from kernbench.analysis.result import Result
from kernbench.analysis.utilization import pe_window
from kernbench.dtypes import as_dtype
from kernbench.errors import ArgumentError, VerificationError
from kernbench.kernels.partition import chunk
from kernbench.kernels.sharded_gemm import columns_gemm, grid_gemm, rows_gemm
from kernbench.policy.address.allocator import AddressConfig
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.program import run_program
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.verify import operand
from kernbench.sim_engine.report import link_table
from kernbench.studies.layers_lists import Layer
from kernbench.studies.layers_work import PLACEMENTS, Work, parts, spans, work
from kernbench.studies.points import Row, code_version, machine_of, run_points
from kernbench.studies.results import read_results, write_results
from kernbench.topology.builder import Machine, resolve_topology

FILE = "layers.json"
VISIBLE = 0.01  # links busy for less are not drawn
Shape = tuple[int, int, int]  # m, n, k


def sweep(
    machine: Machine | str | None,
    layers: Sequence[Layer],
    *,
    placements: Sequence[str] = tuple(PLACEMENTS),
    dtype: str = "f16",
    workers: int = 1,
    folder: Path | None = None,
) -> list[Row]:
    """Return one row per layer and placement; one that does not fit in HBM says so, and has its lower bound only.

    Parameters
    ----------
    machine
        As for `kb.load`.
    layers
        What to multiply.
    placements
        "rows", "columns", "2-D".
    dtype
        Type of A, B and C.
    workers
        Processes.
    folder
        Where finished points are kept.

    Raises
    ------
    ArgumentError
        If a placement is none of those; nothing has been run then.
    """
    resolved = resolve_topology(machine)
    unknown = [p for p in placements if p not in PLACEMENTS]
    if unknown:
        raise ArgumentError(f"placements: {', '.join(unknown)} unknown; known: {', '.join(PLACEMENTS)}")
    drawn = _largest(resolved, layers, placements, dtype)
    points = [
        {
            "machine": dict(resolved.spec),
            "layer": asdict(layer),
            "placement": placement,
            "dtype": dtype,
            "links": layer == drawn,
        }
        for layer in layers
        for placement in placements
    ]
    return run_points(simulate, points, folder=folder, workers=workers)


def _largest(machine: Machine, layers: Sequence[Layer], placements: Sequence[str], dtype: str) -> Layer | None:
    """Return the layer with most work of those that are simulated in every placement: its links are kept."""

    def simulated(layer: Layer) -> bool:
        shape = layer.m, layer.n, layer.k
        return not any(_obstacle(machine, work(machine.config, p, shape, dtype)) for p in placements)

    return max(filter(simulated, layers), key=lambda layer: layer.m * layer.n * layer.k, default=None)


def simulate(point: Row) -> Row:
    """Run one layer in one placement and return its row."""
    machine = machine_of(point["machine"])
    layer, placement, dtype = Layer(**point["layer"]), point["placement"], point["dtype"]
    shape = layer.m, layer.n, layer.k
    asked = work(machine.config, placement, shape, dtype)
    out: Row = {
        **point["layer"], "layer": layer.label, "shape": f"{layer.m}x{layer.k}x{layer.n}", "placement": placement,
        "dtype": dtype, **asdict(asked), "left_out": _obstacle(machine, asked),
        "machine": machine.hash, "code_version": code_version(),
    }  # fmt: skip
    if out["left_out"]:
        return out
    result, traffic = run(machine, shape, placement, dtype=dtype)
    return out | _measured(machine, result, traffic, shape, dtype, point["links"])


def run(
    machine: Machine,
    shape: Shape,
    placement: str,
    *,
    dtype: str = "f16",
    data: bool = False,
    log: str = "operation",
    tie_seed: int | None = None,
) -> tuple[Result, LinkTable]:
    """Run C[m, n] = A[m, k] B[k, n] over SIP 0, `shape` being (m, n, k); the rest as for `run_program`.

    Returns
    -------
    Result
        What happened.
    LinkTable
        Traffic of the launch alone: mapping the tensors came before.

    Raises
    ------
    VerificationError
        With data, if C is not numpy's product.
    """
    m, n, k = shape
    room = AddressConfig.of(machine.config).heap_bytes // 3  # for A, and two shards of B
    tile_m = machine.config.cube.pe.pe_gemm.tile.m
    before: list[LinkTable] = []

    def program(torch: RuntimeContext) -> None:
        at_a, at_b, at_c = PLACEMENTS[placement]
        a, a_values = operand(torch, "a", (m, k), as_dtype(dtype), at_a)
        b, b_values = operand(torch, "b", (k, n), as_dtype(dtype), at_b)
        c = torch.empty(m, n, dtype=dtype, dp=at_c, device="ahbm", name="c")
        torch.ahbm.synchronize()
        before.append(link_table(torch.engine))
        name = f"{placement} {m}x{k}x{n}"
        if placement == "columns":
            torch.launch(name, columns_gemm, a, b, c, m, k, n, tile_m, room)
        else:
            torch.launch(name, rows_gemm if placement == "rows" else grid_gemm, a, b, c, m, k, n, room)
        torch.ahbm.synchronize()
        before.append(link_table(torch.engine))
        if a_values is not None and b_values is not None:
            _check(machine, name, placement, c, a_values @ b_values)

    result = run_program(machine, program, data=data, log=log, tie_seed=tie_seed)
    return result, _difference(*before)


def _check(machine: Machine, name: str, placement: str, c: Tensor, expected: np.ndarray) -> None:
    got = in_order(machine, placement, c.numpy()).astype(np.float64)
    error = float(np.abs(got - expected).max())
    if error > 0.01 * float(np.abs(expected).max()):
        raise VerificationError(f"{name}: C differs from numpy's product by up to {error:g}")


def in_order(machine: Machine, placement: str, c: np.ndarray) -> np.ndarray:
    """Return C as a matrix, from what its PEs hold: each its part, block of columns after block of columns."""
    if placement == "columns":
        return c
    m, n = c.shape
    config, out = machine.config, np.empty_like(c)
    computed = parts(placement, m, n, config)
    for i, (start, rows) in enumerate(spans(m, config)):
        widths, column = computed[i][1], 0
        if placement == "2-D":
            cube, pe = divmod(i, config.pes_per_cube)
            start, rows = chunk(m, config.pes_per_cube, pe)
            column = chunk(n, config.cubes_per_sip, cube)[0]
        flat, taken = c[start : start + rows, column : column + sum(widths)].reshape(-1), 0
        for width in widths:
            block = flat[taken : taken + rows * width].reshape(rows, width)
            out[start : start + rows, column : column + width] = block
            column, taken = column + width, taken + rows * width
    return out


def _obstacle(machine: Machine, asked: Work) -> str:
    """Return why a point is not simulated, or nothing."""
    config = machine.config
    room = config.cube.hbm.slice_bytes(config.pes_per_cube)
    if asked.slice_bytes > room:
        return f"does not fit: {asked.slice_bytes:,} B in one HBM slice of {room:,} B"
    return ""


def _measured(machine: Machine, result: Result, traffic: LinkTable, shape: Shape, dtype: str, keep: bool) -> Row:
    m, n, k = shape
    launch = result.launches[-1]
    makespan = (launch.end_ps - launch.start_ps) / 1000
    start, end = pe_window(result.records)
    flops = 2 * m * n * k
    peak = 2 * macs_per_ns(machine.config, dtype) * machine.config.pes_per_sip
    moved = _hbm_bytes(traffic)
    share = shares(traffic, launch.end_ps - launch.start_ps)
    first = hottest(share)
    return {
        "makespan_ns": makespan,
        "pe_window_ns": (end - start) / 1000,
        "utilization": flops / (peak * makespan),
        "gflops": flops / makespan,
        "hbm_bytes": moved,
        "intensity": flops / moved,
        "hottest_link": first,
        "hottest_busy": share[first],
        "links": {link: round(value, 4) for link, value in share.items() if value >= VISIBLE} if keep else {},
    }


def _hbm_bytes(traffic: LinkTable) -> int:
    """Return the bytes that HBM slices gave and took."""
    return sum(int(b) for name, b in zip(traffic.names, traffic.nbytes, strict=True) if ".hbm_ctrl." in name)


def _difference(before: LinkTable, after: LinkTable) -> LinkTable:
    """Return the traffic between two readings of the links."""
    seen = {name: i for i, name in enumerate(before.names)}
    old = [seen.get(name, -1) for name in after.names]
    nbytes = np.array([before.nbytes[i] if i >= 0 else 0 for i in old], np.int64)
    busy = np.array([before.busy_ps[i] if i >= 0 else 0 for i in old], np.int64)
    return LinkTable(after.names, after.nbytes - nbytes, after.busy_ps - busy, after.bw_gbs)


def write(rows: Sequence[Row], folder: Path) -> Path:
    """Write `layers.json` and `layers.csv`; return the former."""
    import pandas as pd

    path = write_results(folder / FILE, rows)
    frame = pd.DataFrame(rows).drop(columns="links", errors="ignore")
    frame.to_csv(path.with_suffix(".csv"), index=False, lineterminator="\n")
    return path


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `layers.json` in `folder`."""
    return read_results(folder / FILE)
