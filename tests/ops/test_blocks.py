"""Blocks of a product on a device whose PEs share memory: the choice fits the shape, and split K pays."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import kernbench as kb
from kernbench.errors import ArgumentError
from kernbench.ops._routes import routes_of
from kernbench.ops._stored import Stored
from kernbench.ops.matmul import BY_BLOCKS, BY_ROWS, Product, _placements, choose_blocks, choose_placement, tasks
from kernbench.policy._routing import router_of
from kernbench.studies.fidelity import WORKLOADS
from kernbench.topology._naming import pe_dma
from tests.slow import slow_after


def device(**changes):
    """A die of 12 PEs with a cache in front of five controllers."""
    return kb.load(
        {
            "base": "default",
            "system": {"sips": {"count": 1, "topology": "ring_1d"}, "host": {"descriptor_ns": 2000}},
            "sip": {"cube_mesh": {"w": 1, "h": 1}},
            "cube": {
                "pe_layout": {"pe_per_corner": 3, "corners": ["NW", "NE", "SW", "SE"]},
                "noc": {"topology": "crossbar", "rows": 1, "cols": 1, "pitch_mm": 20.0, "removed": []},
                "hbm": {"controllers": 5, "channels": 4, "access_ns": 200},
                "llc": {"size_mib": 8, "line_bytes": 1024, "hit_ns": 30},
            },
        },
        overrides=changes,
    )


def test_blocks_follow_the_shape():
    config = device().config
    large, small, deep = (choose_blocks(config, *mkn) for mkn in ((4096, 512, 4096), (48, 256, 256), (16, 65536, 32)))
    assert (large.rows, large.columns, large.split_k) == (128, 128, 1)
    assert 6 <= -(-48 // small.rows) * -(-256 // small.columns) <= 12  # most PEs, in one wave
    assert deep.split_k > 1
    assert choose_blocks(config, 16, 256, 64).split_k == 1  # another launch costs more


def test_blocks_take_the_tile_that_suits_them():
    """Of 16 rows, a tile of 128 wastes seven eighths of the engine; blocks are as large as the largest tile."""
    gemm = "cube.pe.pe_gemm."
    wide = {f"{gemm}tile": {"m": 128, "k": 64, "n": 128}, f"{gemm}macs_per_cycle.f16": 256}
    both = wide | {f"{gemm}other_tiles": [[16, 64, 128], [256, 64, 128]]}
    flat, flat_of_both = (choose_blocks(device(**x).config, 16, 4096, 4096) for x in (wide, both))
    assert flat.limiter == "matrix engine"
    assert flat_of_both.estimate_ns < flat.estimate_ns / 4
    assert [choose_blocks(device(**x).config, 8192, 512, 4096).rows for x in (wide, both)] == [128, 256]


def test_parts_of_k_fill_waves_of_pes():
    """36 and 72 blocks of 128 x 128 leave many of 108 PEs idle; three parts of each fill them once, and twice."""
    config = kb.load("preset:a100_sxm_calibrated").config
    for m in (384, 768):
        found = choose_blocks(config, m, 16384, 1536, "bf16")
        assert (found.rows, found.columns, found.split_k) == (128, 128, 3)


@pytest.mark.parametrize(
    ("m", "k", "n"), slow_after(2, [(16, 65536, 32), (32, 8192, 64), (48, 2048, 256), (128, 4096, 64)])
)
def test_split_k_never_makes_a_product_slower(m, k, n, monkeypatch):
    machine, given = device(), {"m": m, "k": k, "n": n}
    with_split = WORKLOADS["gemm"].run(machine, **given, l2="cold")
    whole = choose_blocks(machine.config, m, k, n)._replace(split_k=1)
    monkeypatch.setattr(_placements, "choose_blocks", lambda *_: whole)
    for cached in (tasks, choose_placement):
        cached.cache_clear()
    assert with_split <= WORKLOADS["gemm"].run(machine, **given, l2="cold")
    for cached in (tasks, choose_placement):
        cached.cache_clear()


@pytest.mark.parametrize("buffers", [1, 4])
def test_steps_of_k_that_wait_for_reads_limit_a_narrow_block(buffers):
    """A read takes 5 us here: 8 steps of K more take so long each, `buffers` of them at a time."""
    slow = {"cube.hbm.access_ns": 5000, "cube.pe.pe_tcm.buffers_per_operand": buffers}
    machine = device(**slow, **{"cube.pe.pe_dma.outstanding_reads": 64})
    estimates, times = [], []
    for steps in (4, 12):  # parts of K would begin at 16
        mkn = 16, steps * machine.config.cube.pe.pe_gemm.tile.k, 16
        estimates.append(choose_blocks(machine.config, *mkn, split=False).estimate_ns)
        times.append(WORKLOADS["gemm"].run(machine, **dict(zip("mkn", mkn, strict=True)), l2="cold"))
    assert estimates[1] - estimates[0] == pytest.approx(8 * 5000 / buffers, rel=0.03)
    assert times[1] - times[0] == pytest.approx(8 * 5000 / buffers, rel=0.03)


def test_routes_to_shared_memory_are_those_of_every_pe_and_controller():
    machine = device(**{"cube.pe_layout": {"pe_per_corner": 256, "corners": ["NW", "NE", "SW", "SE"]}})
    routes = routes_of(machine)
    one = np.zeros((1024, 1024))
    one[7, 5] = 256  # number 5 of the PEs is on controller 0, too
    latency_ns = routes.latency_ns(one) * routes.outstanding_reads
    path = router_of(machine.graph).path(pe_dma(0, 0, 7), machine.graph.memory(0, 0, 0))
    one_way = sum(machine.graph.edge(*link).latency_ps for link in pairwise(path)) / 1000
    assert latency_ns == pytest.approx(2 * one_way + machine.config.cube.hbm.access_ns)


def test_reads_of_interleaved_memory_share_all_of_it():
    machine = device()
    hbm, one = machine.config.cube.hbm, np.zeros((12, 12))
    one[0, 3] = all_of_them = 1e6
    ns, limit = routes_of(machine).busiest(one, one)
    assert (ns, limit) == (pytest.approx(all_of_them / machine.config.cube.pe.pe_dma.bw_gbs), "link of PE_DMA")
    one[:, 3] = all_of_them
    ns, limit = routes_of(machine).busiest(one, one)
    assert (ns, limit) == (pytest.approx(12 * all_of_them / (5 * hbm.channels * hbm.channel_bw_gbs)), "HBM slice")


def test_efficiency_of_the_memory_counts_once():
    """A product of 16 rows reads its weights once, so that the memory limits it."""
    whole, half = (choose_blocks(device(**{"cube.hbm.efficiency": x}).config, 16, 8192, 8192) for x in (1, 0.5))
    assert 1.5 < half.estimate_ns / whole.estimate_ns <= 2


rng = np.random.default_rng(0)


def f16(*shape):
    return rng.normal(size=shape).astype(np.float16)


@pytest.mark.parametrize(
    ("a", "b", "turned"),
    [
        ((70, 100), (100, 45), ""), ((70, 100), (100, 45), "a"), ((70, 100), (100, 45), "b"),
        ((3, 20, 64), (3, 64, 40), ""), ((8, 16384), (16384, 16), ""), ((100,), (100, 45), ""),
    ],
)  # fmt: skip
def test_a_product_is_computed_in_blocks_with_the_values_of_numpy(a, b, turned):
    """Also of transposed operands, of a batch, of parts of K and of a vector."""
    x, y = f16(*a), f16(*b)
    with kb.session(device(), data=True) as torch:
        left, right = (
            torch.from_numpy(value.T.copy()).to("ahbm").T if name in turned else torch.from_numpy(value).to("ahbm")
            for name, value in (("a", x), ("b", y))
        )
        found = left @ right
        assert found.choice.placement == BY_BLOCKS
        expected = x.astype(np.float64) @ y.astype(np.float64)
        np.testing.assert_allclose(found.numpy(), expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


def test_a_bias_is_added_in_each_block():
    x, y, z = f16(48, 96), f16(40, 96), f16(40)
    with kb.session(device(), data=True) as torch:
        found = torch.nn.functional.linear(*(torch.from_numpy(value).to("ahbm") for value in (x, y, z)))
        expected = x.astype(np.float64) @ y.T.astype(np.float64) + z
        np.testing.assert_allclose(found.numpy(), expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


def test_blocks_cover_each_matrix_once():
    """The blocks of A in a column of C, those of B in a row of it, and all of C, of both products, without overlap."""
    config, (m, k, n) = device().config, (300, 200, 400)
    a, b, c = (Stored.of(config, shape, BY_ROWS) for shape in ((2 * m, k), (2 * k, n), (2 * m, n)))
    product = Product(m, n, k, "f16", a, b, c, batch=2)
    found = [x for own in tasks(config, product, BY_BLOCKS).values() for x in own]
    sizes = [(x.rows[0][1] * k, x.columns[0][1] * k, x.rows[0][1] * x.columns[0][1]) for x in found]
    for i, elements in enumerate((m * k, k * n, m * n)):
        spans = sorted({(x.packed[i], size[i]) for x, size in zip(found, sizes, strict=True)})
        assert [at for at, _ in spans] == [sum(size for _, size in spans[:i]) for i in range(len(spans))]
        assert sum(size for _, size in spans) == 2 * elements


def test_gemm_and_the_operator_take_blocks_and_as_long():
    """`kb.gemm` answers for the product of a program, and a machine with strided tiles has no blocks."""
    machine = device()
    chosen = kb.gemm(96, 128, 256, machine=machine, progress=False)
    assert [x.placement for x in chosen.candidates] == [BY_BLOCKS]
    with kb.session(machine) as torch:
        a, b = (torch.empty(x, dtype=torch.float16, device="ahbm", dp=BY_ROWS) for x in ((96, 256), (256, 128)))
        torch.matmul(a, b, out=torch.empty(96, 128, dtype=torch.float16, device="ahbm", dp=BY_ROWS))
        torch.ahbm.synchronize()
    [launch] = torch.result.launches
    assert (launch.end_ps - launch.start_ps) / 1000 == pytest.approx(chosen.simulated_ns)
    strided = kb.gemm(96, 128, 256, machine=device(**{"cube.hbm.gather": "strided"}), progress=False)
    assert BY_BLOCKS not in [x.placement for x in strided.candidates]
    with pytest.raises(ArgumentError, match=r"placement 'blocks' is unknown"):
        kb.gemm(96, 128, 256, machine="preset:small", placements=[BY_BLOCKS])
    with kb.session(device(**{"cube.hbm.gather": "strided"})) as torch:
        x = torch.ones(8, 8, dtype=torch.float16, device="ahbm")
        with pytest.raises(
            ArgumentError, match=r"'blocks' is for plain products on PEs that share memory .* leave it out"
        ):
            torch.matmul(x, x, placement=BY_BLOCKS)
