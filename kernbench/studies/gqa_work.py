"""What attention of Llama-3 70B asks of a machine, counted before anything runs: bytes, flops, bounds, what fits.

Source of the sizes: the model's published configuration (80 layers, 64 query heads, 8 kv heads of 128, hidden 8192,
feed-forward 28672, vocabulary 128256).
"""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.analysis.ideal import macs_per_ns
from kernbench.components.tile_plan import cuts
from kernbench.config import MachineConfig
from kernbench.dtypes import as_dtype
from kernbench.kernels.flash import tiles
from kernbench.studies.gqa_run import Setting

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 80, 64, 8, 128
HIDDEN, FFN, VOCABULARY = 8192, 28672, 128256
GROUP = HEADS // KV_HEADS
# Of one layer: QKV, O, gate, up and down.
LAYER_WEIGHTS = HIDDEN * ((HEADS + 2 * KV_HEADS) * HEAD_DIM + HEADS * HEAD_DIM + 3 * FFN)
WEIGHTS = LAYERS * LAYER_WEIGHTS + 2 * VOCABULARY * HIDDEN


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of the whole model on the machine [B].

    Attributes
    ----------
    weights, kv, room : int
        What the weights take, the keys and values of all layers, and the HBM of the SIPs.
    """

    weights: int
    kv: int
    room: int

    @property
    def obstacle(self) -> str:
        """Why it does not fit, or nothing."""
        if self.weights + self.kv <= self.room:
            return ""
        return (
            f"infeasible: {self.weights:,} B of weights and {self.kv:,} B of keys and values, HBM has {self.room:,} B"
        )


def need(config: MachineConfig, sips: int, context: int, batch: int, copies: int, dtype: str) -> Need:
    """Return what a context length and a batch need on `sips` SIPs, each kv head held `copies` times."""
    item = as_dtype(dtype).itemsize
    room = config.cube.hbm.slice_bytes(config.pes_per_cube) * config.pes_per_sip * sips
    return Need(WEIGHTS * item, 2 * LAYERS * KV_HEADS * HEAD_DIM * context * batch * copies * item, room)


def slice_gbs(config: MachineConfig) -> float:
    """Return the bandwidth of one HBM slice."""
    return config.cube.hbm.channels * config.cube.hbm.channel_bw_gbs * config.cube.hbm.efficiency


@dataclass(frozen=True, slots=True)
class Work:
    """Counts of one setting, of all PEs together; bounds of the busiest PE [ns].

    Attributes
    ----------
    flops : int
        Useful ones: scores and weighted sums of the pairs that count.
    kv_bytes : int
        Keys and values, each read once.
    hbm_ns : float
        No run is faster: reading them from the slices.
    matrix_ns : float
        Nor this: the tiles of the matrix engine, padding included, spread evenly.
    vector_ns : float
        Nor this: the vector engine's passes over the scores.
    useful : float
        Useful MACs as a share of those of whole tiles.
    """

    flops: int
    kv_bytes: int
    hbm_ns: float
    matrix_ns: float
    vector_ns: float
    useful: float

    @property
    def bound_ns(self) -> float:
        """The largest of the bounds."""
        return max(self.bounds.values())

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds by name."""
        return {"HBM": self.hbm_ns, "matrix engine": self.matrix_ns, "vector engine": self.vector_ns}

    @property
    def limiter(self) -> str:
        """Which bound is the largest."""
        return max(self.bounds, key=lambda name: self.bounds[name])


def work(config: MachineConfig, setting: Setting) -> Work:
    """Return the counts of a setting.

    Notes
    -----
    Vector passes per score: max, fused multiply-add, exp (slow), sum and cast on 32-bit lanes, a transposition on
    16-bit ones. Under a causal mask half of the pairs count, plus half a diagonal; bounds count the pairs that are
    useful, whatever tiles a diagonal cuts.
    """
    pe, item = config.cube.pe, as_dtype(setting.dtype).itemsize
    lanes, context = setting.n_lanes * setting.items, setting.tokens * setting.ranks
    queries = setting.queries * (setting.ranks if setting.phase == "prefill" else 1)
    pairs = queries * (context + 1) // 2 if setting.causal else queries * context
    macs = 2 * lanes * pairs * setting.group * setting.head_dim
    tile, (q, kv) = pe.pe_gemm.tile, tiles(setting.group, setting.queries)
    rows, kv = q * setting.group, min(kv, setting.tokens)
    whole = (
        cuts(kv, tile.m) * cuts(setting.head_dim, tile.k) * cuts(rows, tile.n)
        + cuts(rows, tile.m) * cuts(kv, tile.k) * cuts(setting.head_dim, tile.n)
    ) * (tile.m * tile.k * tile.n)
    useful = 2 * rows * kv * setting.head_dim / whole
    scores = lanes * pairs * setting.group / setting.programs
    cycles = scores * ((4 + pe.pe_math.slow_op_cycles) / pe.pe_math.lanes_32bit + 1 / pe.pe_math.lanes_16bit)
    kv_bytes = 2 * lanes * context * setting.head_dim * item
    return Work(
        flops=2 * macs,
        kv_bytes=kv_bytes,
        hbm_ns=kv_bytes / (slice_gbs(config) * setting.programs),
        matrix_ns=macs / useful / macs_per_ns(config, setting.dtype) / setting.programs,
        vector_ns=cycles / pe.pe_math.clock_ghz,
        useful=useful,
    )
