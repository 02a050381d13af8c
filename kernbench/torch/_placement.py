"""Which PEs compute which part of a product: by columns, by rows, in two dimensions, or all of it on one PE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from kernbench._dtypes import DType
from kernbench._registry import hint
from kernbench.analysis._roofline import macs_per_ns
from kernbench.config import MachineConfig
from kernbench.errors import ArgumentError, LimitError
from kernbench.kernels.partition import chunk
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api._device_tensor import DeviceTensor
from kernbench.runtime_api.context import session
from kernbench.topology.builder import Machine
from kernbench.torch._kernels import Matrix, Share, matmul
from kernbench.torch._memory import Place
from kernbench.triton_emu._handles import Pointer

Pe = tuple[int, int]
Shares = dict[Pe, list[Share]]
# "2-D": rows over the PEs of a cube and columns over cubes; "2-D turned" is the opposite.
PLACEMENTS = ("rows", "columns", "2-D", "2-D turned", "replicated")
MOST_MACS = 1 << 30  # of a trial; larger products go by the estimate (chosen: a few seconds of host)
WITHIN = 2.5  # candidates are tried whose estimates are less than so many times the lowest (chosen)
# Shares of bandwidths that products reach, fitted to the default machine, at 512^3 to 2048 x 8192 x 3584 in f16: of the
# middle of the mesh, where all read everything, and in 2-D; of a PE's DMA, where all PEs of a cube read from it, and
# where one reads alone.
CROSSED, CROSSED_2D, INSIDE, ALONE = 0.58, 0.25, 0.2, 0.5


@dataclass(frozen=True)
class Operand:
    """Where a matrix is: how its memory is spread, from which byte on, and its type and strides."""

    shape: tuple[int, ...]
    dp: DPPolicy
    offset: int
    dtype: DType
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, place: Place) -> Operand:
        """Return the operand of a kernel."""
        layout, matrix = place.buffer.layout, place.matrix
        assert layout.dp is not None
        strides = matrix.batch, matrix.row, matrix.column
        return cls(tuple(layout.shape), layout.dp, place.va - place.buffer.data_ptr(), place.dtype, strides)


@dataclass(frozen=True)
class Product:
    """alpha a @ b (+ beta bias), and where everything is: all that the time of a product depends on."""

    batch: int
    m: int
    k: int
    n: int
    a: Operand
    b: Operand
    bias: Operand | None
    out: Operand
    alpha: float
    beta: float

    @property
    def macs(self) -> int:
        """How many elements are multiplied."""
        return self.batch * self.m * self.k * self.n


@dataclass(frozen=True)
class Choice:
    """How a product is placed, and why.

    Attributes
    ----------
    name : str
        The placement.
    shares : dict
        The parts of each PE.
    estimates_ns : mapping
        What the closed form says of each placement [ns].
    tried_ns : mapping
        The simulated times of those that were tried [ns]; infinite where a trial was stopped because another placement
        was faster. Empty where the user has chosen, or the product is too large.
    overridden : bool
        Whether the user has chosen.
    """

    name: str
    shares: Shares
    estimates_ns: Mapping[str, float]
    tried_ns: Mapping[str, float] = field(default_factory=dict)
    overridden: bool = False


def choose(machine: Machine, product: Product, wanted: str | None) -> Choice:
    """Return the placement wanted, or the best: those with low estimates are simulated, without values.

    Raises
    ------
    ArgumentError
        If the placement wanted is unknown.
    """
    shares = candidates(machine.config, product)
    estimates = {name: _estimate(machine.config, name, parts, product) for name, parts in shares.items()}
    if wanted is not None:
        if wanted not in shares:
            raise ArgumentError(f"placement = {wanted!r} is unknown; {hint(wanted, PLACEMENTS)}")
        return Choice(wanted, shares[wanted], estimates, overridden=True)
    tried = _trials(machine, product)
    best = tried or estimates
    name = min(best, key=lambda each: best[each])
    return Choice(name, shares[name], estimates, tried)


@lru_cache(maxsize=256)
def _trials(machine: Machine, product: Product) -> Mapping[str, float]:
    """Return the simulated times of the placements with low estimates [ns]; of a large product, none."""
    if product.macs > MOST_MACS:
        return {}
    shares = candidates(machine.config, product)
    estimates = {name: _estimate(machine.config, name, parts, product) for name, parts in shares.items()}
    found: dict[str, float] = {}
    limit_ns = None
    for name in sorted(estimates, key=lambda each: estimates[each]):
        if estimates[name] >= WITHIN * min(estimates.values()) or any(shares[name] == shares[x] for x in found):
            continue
        found[name], end_ns = simulate(machine, product, shares[name], limit_ns)
        limit_ns = min(end_ns, limit_ns or end_ns)
    return found


def simulate(machine: Machine, product: Product, shares: Shares, limit_ns: float | None = None) -> tuple[float, float]:
    """Run a product on an idle machine, without values; return its time from the host's message on, and its end [ns].

    Both are infinite if it has not ended at `limit_ns`.
    """
    try:
        with session(machine, log="off", limits={} if limit_ns is None else {"simulated_ns": limit_ns}) as torch:
            held: list[DeviceTensor] = []
            matrices: list[Matrix | None] = []
            for x in (product.a, product.b, product.bias, product.out):
                if x is None:
                    matrices.append(None)
                    continue
                buffer = torch.empty(*x.shape, dtype="u8", dp=x.dp, device="ahbm:0")
                assert isinstance(buffer, DeviceTensor)
                held.append(buffer)
                matrices.append(Matrix(Pointer(buffer.data_ptr() + x.offset, x.dtype), *x.strides))
            args = (*matrices, product.k, product.alpha, product.beta, shares)
            torch._host.synchronize()
            start = int(torch.engine.env.now)
            torch._host.launch(0, sorted(shares), matmul, args, "product", [x._handle for x in held])
            torch._host.synchronize()
            end = int(torch.engine.env.now)
    except LimitError:
        return float("inf"), float("inf")
    return (end - start) / 1000, end / 1000


def candidates(config: MachineConfig, product: Product) -> dict[str, Shares]:
    """Return the parts of each PE, by placement.

    Weights are in memory by rows (columns of the product), activations by rows.
    """
    return {name: _shares(name, product, config.cubes_per_sip, config.pes_per_cube) for name in PLACEMENTS}


def _shares(name: str, product: Product, cubes: int, pes: int) -> Shares:
    parts: Shares = {}
    total, m, n, batch = cubes * pes, product.m, product.n, product.batch
    if batch > 1:  # matrices are dealt out, each near its memory; few are cut
        each = max(1, total // batch)
        for i in range(batch):
            for j in range(each):
                p = (i * each + j) * total // (batch * each)
                cut = _cut(name, m, n, j, each)
                if cut is not None:
                    parts.setdefault((p // pes, p % pes), []).append(Share((i, 1), *cut))
        return parts
    for p in range(total):
        cube, pe = divmod(p, pes)
        if name == "2-D":
            found = _nonempty(chunk(m, pes, pe), chunk(n, cubes, cube))
        elif name == "2-D turned":
            found = _nonempty(chunk(m, cubes, cube), chunk(n, pes, pe))
        else:
            found = _cut(name, m, n, p, total)
        if found is not None:
            parts[cube, pe] = [Share((0, 1), *found)]
    return parts


Cut = tuple[tuple[int, int], tuple[int, int]]


def _nonempty(rows: tuple[int, int], columns: tuple[int, int]) -> Cut | None:
    return (rows, columns) if rows[1] and columns[1] else None


def _cut(name: str, m: int, n: int, i: int, parts: int) -> Cut | None:
    if name == "replicated":
        return ((0, m), (0, n)) if i == 0 else None
    if name == "rows":
        return _nonempty(chunk(m, parts, i), (0, n))
    if name == "columns":
        return _nonempty((0, m), chunk(n, parts, i))
    one = next(x for x in range(int(parts**0.5), 0, -1) if parts % x == 0)
    across, down = (one, parts // one) if name == "2-D" else (parts // one, one)
    return _nonempty(chunk(m, across, i % across), chunk(n, down, i // across))


def _estimate(config: MachineConfig, name: str, parts: Shares, product: Product) -> float:
    """Return the time of the busiest PE [ns]: its matrix engine, or its own memory and what it reads from others."""
    pe, hbm, mesh, ucie = config.cube.pe, config.cube.hbm, config.sip.cube_mesh, config.cube.ucie
    rate, tile, line = macs_per_ns(config, product.a.dtype), pe.pe_gemm.tile, product.k * product.a.dtype.itemsize
    two = name.startswith("2-D") and product.batch == 1
    engine = own = inside = everywhere = 0.0
    for shares in parts.values():
        macs = a = b = 0
        for share in shares:
            (_, count), (_, rows), (_, columns) = share.batch, share.rows, share.columns
            macs += count * _padded(rows, tile.m) * _padded(columns, tile.n) * _padded(product.k, tile.k)
            a, b = a + count * rows * line, b + count * columns * line
        near, far = (b, a) if name in ("columns", "2-D") else (a, b)
        if name == "replicated" or product.batch > 1:
            near, far = 0, a + b
        engine, everywhere = max(engine, macs / rate), max(everywhere, far)
        own, inside = max(own, 0 if two else near), max(inside, near if two else 0)
    from_cube = from_all = INSIDE * pe.pe_dma.bw_gbs
    if config.cubes_per_sip > 1:
        # Half of what is read from everywhere crosses the middle of the mesh, half of that in each direction.
        middle = min(mesh.w, mesh.h) * ucie.connections * ucie.bw_gbs * ucie.efficiency
        reached = CROSSED_2D if two else CROSSED
        from_all = min(ALONE * pe.pe_dma.bw_gbs, reached * 4 * middle / len(parts))
    slice_bw = hbm.channels * hbm.channel_bw_gbs * hbm.efficiency
    return max(engine, own / slice_bw + inside / from_cube + everywhere / from_all)


def _padded(n: int, size: int) -> int:
    return -(-n // size) * size
