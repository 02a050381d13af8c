"""Blocks of a product on a device whose PEs share memory: the choice fits the shape, and split K pays."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench.ops._routes import routes_of
from kernbench.ops.matmul import choose_blocks
from kernbench.studies.fidelity import WORKLOADS
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
    assert choose_blocks(config, 16, 65536, 32, split=False).split_k == 1
    assert choose_blocks(config, 16, 256, 64).split_k == 1  # another launch costs more


@pytest.mark.parametrize(
    ("m", "k", "n"), slow_after(2, [(16, 65536, 32), (32, 8192, 64), (48, 2048, 256), (128, 4096, 64)])
)
def test_split_k_never_makes_a_product_slower(m, k, n, monkeypatch):
    machine, given = device(), {"m": m, "k": k, "n": n}
    with_split = WORKLOADS["gemm"].run(machine, **given, l2="cold")
    found = choose_blocks(machine.config, m, k, n, split=False)
    monkeypatch.setattr("kernbench.studies._fidelity_device.choose_blocks", lambda *_: found)
    assert with_split <= WORKLOADS["gemm"].run(machine, **given, l2="cold")


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
