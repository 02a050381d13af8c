"""Which PEs compute which part of a product: by columns, by rows, in two dimensions, or all of it on one PE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernbench._dtypes import DType
from kernbench._registry import hint
from kernbench.analysis._roofline import macs_per_ns
from kernbench.errors import ArgumentError
from kernbench.kernels.partition import chunk
from kernbench.runtime_api.context import RuntimeContext
from kernbench.torch._kernels import Share

Pe = tuple[int, int]
PLACEMENTS = ("rows", "columns", "2-D", "replicated")


@dataclass(frozen=True)
class Choice:
    """How a product is placed, and what the closed form says of each placement [ns].

    `overridden` tells whether the user chose.
    """

    name: str
    estimates_ns: dict[str, float]
    shares: dict[Pe, list[Share]]
    overridden: bool


def choose(session: RuntimeContext, batch: int, m: int, k: int, n: int, dtype: DType, wanted: str | None) -> Choice:
    """Return the placement of a product with the lowest estimate, or the one wanted.

    Weights are in memory by rows (columns of the product), activations by rows.
    """
    config = session.engine.machine.config
    cubes, pes = config.cubes_per_sip, config.pes_per_cube
    made = {name: _shares(name, batch, m, n, cubes, pes) for name in PLACEMENTS}
    costs = {name: _estimate(session, name, shares, k, dtype) for name, shares in made.items()}
    if wanted is not None and wanted not in made:
        raise ArgumentError(f"placement = {wanted!r} is unknown; {hint(wanted, PLACEMENTS)}")
    name = wanted or min(costs, key=lambda each: costs[each])
    return Choice(name, costs, made[name], wanted is not None)


def _shares(name: str, batch: int, m: int, n: int, cubes: int, pes: int) -> dict[Pe, list[Share]]:
    parts: dict[Pe, list[Share]] = {}
    total = cubes * pes
    if batch > 1:  # matrices are dealt out; those that are left over, or few, are cut
        each = max(1, total // batch)
        for i in range(batch):
            for j in range(each):
                p = (i * each + j) % total
                cut = _cut(name, m, n, j, each)
                if cut is not None:
                    parts.setdefault((p // pes, p % pes), []).append(Share((i, 1), *cut))
        return parts
    for p in range(total):
        cube, pe = divmod(p, pes)
        if name == "2-D":
            rows, columns = chunk(m, pes, pe), chunk(n, cubes, cube)
            found = (rows, columns) if rows[1] and columns[1] else None
        else:
            found = _cut(name, m, n, p, total)
        if found is not None:
            parts[cube, pe] = [Share((0, 1), *found)]
    return parts


def _cut(name: str, m: int, n: int, i: int, parts: int) -> tuple[tuple[int, int], tuple[int, int]] | None:
    if name == "replicated":
        return ((0, m), (0, n)) if i == 0 else None
    rows, columns = (0, m), (0, n)
    if name == "rows":
        rows = chunk(m, parts, i)
    elif name == "columns":
        columns = chunk(n, parts, i)
    else:
        across = max(1, int(parts**0.5))
        across = next(x for x in range(across, 0, -1) if parts % x == 0)
        rows, columns = chunk(m, across, i % across), chunk(n, parts // across, i // across)
    return (rows, columns) if rows[1] and columns[1] else None


def _estimate(session: RuntimeContext, name: str, parts: dict[Pe, list[Share]], k: int, dtype: DType) -> float:
    """Return the time of the busiest PE [ns]: its matrix engine, its own memory, or what it reads from others."""
    config = session.engine.machine.config
    pe, hbm = config.cube.pe, config.cube.hbm
    rate = macs_per_ns(config, dtype)
    tile, item = pe.pe_gemm.tile, dtype.itemsize
    pad: Callable[[int, int], int] = lambda x, size: -(-x // size) * size  # noqa: E731
    engine = own = others = 0.0
    for shares in parts.values():
        macs = sum(s.batch[1] * pad(s.rows[1], tile.m) * pad(s.columns[1], tile.n) * pad(k, tile.k) for s in shares)
        a, b = (sum(s.batch[1] * side(s)[1] * k * item for s in shares) for side in (_rows, _columns))
        local, remote = (b, a) if name == "columns" else (a, b) if name == "rows" else (0, a + b)
        engine, own, others = max(engine, macs / rate), max(own, local), max(others, remote)
    slice_bw = hbm.channels * hbm.channel_bw_gbs * hbm.efficiency
    # What all PEs of a cube read from other cubes passes its UCIe connections; inside of a cube, its own DMA.
    ucie = config.cube.ucie.connections * config.cube.ucie.bw_gbs * 2 / config.pes_per_cube
    share = 1 / config.cubes_per_sip if name == "2-D" and config.cubes_per_sip > 1 else 1.0
    dma = pe.pe_dma.bw_gbs
    return max(engine, own / slice_bw + others * share / min(dma, ucie) + others * (1 - share) / dma)


def _rows(share: Share) -> tuple[int, int]:
    return share.rows


def _columns(share: Share) -> tuple[int, int]:
    return share.columns
