"""Costs follow from the machine file by hand, and no time depends on them."""

from __future__ import annotations

import pytest

from kernbench.analysis._records import LinkTable
from kernbench.kernels.gemm import gemm
from kernbench.studies.probe import ProbeStudy
from kernbench.sweeps._energy_area import area_mm2, counters, energy_columns, machine_columns
from kernbench.sweeps._plan import program_row
from kernbench.topology.builder import resolve_topology

SMALL = resolve_topology("preset:small")


def product(torch, *, m: int = 64, k: int = 128, n: int = 32):
    a, b, c = (torch.empty(*size, dtype=torch.float16, device="ahbm") for size in ((m, k), (k, n), (m, n)))
    torch.launch("product", gemm, a, b, c, m, k, n, "ref_ref")


def test_area_by_hand():
    # A PE: 4096 x 250 um2, 1 mm2, 16 MiB of TCM. A die: 8 of them, SRAM, 32 routers, HBM of 8 x 256 GB/s, 16 ports.
    pe = 4096 * 250e-6 + 1 + 16 * 0.45
    die = 8 * pe + 32 * 0.45 + 32 * 256 * 0.0004 + 2048 * 0.02 + 16 * 1.28
    assert area_mm2(SMALL.config) == pytest.approx(4 * die + 20 + 2 * 4 * 1.28)
    two = SMALL.with_({"system.sips.count": 2})
    # Two SIPs on a ring share one link, with an end at each.
    assert area_mm2(two.config) == pytest.approx(2 * area_mm2(SMALL.config) + 2 * 128 * 0.02)


def test_memory_apart_from_pes_counts_once():
    # Data sheet of the A100: 2,039 GB/s over 5 stacks, which the 108 SMs share.
    a100 = resolve_topology("preset:a100_sxm")
    config = a100.config
    assert machine_columns(config)["hbm_gbs"] == pytest.approx(2039 * config.n_sips, rel=1e-3)
    wider = a100.with_({"cube.hbm.channel_bw_gbs": 2 * config.cube.hbm.channel_bw_gbs})
    grown = area_mm2(wider.config) - area_mm2(config)
    assert grown == pytest.approx(config.cost.area.hbm_mm2_per_gbs * 2039 * config.n_sips, rel=1e-3)


def test_bandwidths_by_hand():
    columns = machine_columns(SMALL.with_({"sip.cube_mesh.w": 4, "cube.hbm.efficiency": 0.5}).config)
    # The cut between columns is 2 cubes high, with 4 connections of 128 GB/s each.
    assert columns | {"area_mm2": 0} == {
        "sips": 1, "cubes": 8, "pes": 64, "hbm_gbs": 64 * 128, "bisection_gbs": 1024, "area_mm2": 0,
    }  # fmt: skip
    protocol = SMALL.with_({"sip.cube_mesh.w": 4, "cube.ucie.efficiency": 0.75})
    assert machine_columns(protocol.config)["bisection_gbs"] == 768
    assert machine_columns(SMALL.with_({"sip.cube_mesh": {"w": 1, "h": 1}}).config)["bisection_gbs"] == 0


def test_counts_of_a_product_on_one_pe():
    row = program_row(product, SMALL)
    # 2 x 2 x 1 tiles of 32 x 64 x 32; operands read once for each tile of the result, 2 B an element.
    assert row["macs_f16"] == 4 * 32 * 64 * 32
    fetched, stored = 4 * (32 * 64 + 64 * 32) * 2, 64 * 32 * 2
    assert row["hbm_bytes"] >= fetched + stored
    assert row["tcm_bytes"] >= 2 * (fetched + stored)
    assert row["hbm_bytes"] < 1.2 * (fetched + stored)
    assert row["sip_link_bytes"] == row["sram_bytes"] == 0
    assert row["latency_ns"] < row["run_ns"]


def test_energy_is_counts_times_costs():
    row = {"macs_f16": 10**6, "hbm_bytes": 10**6, "tcm_bytes": 0, "router_bytes": 10**6, "wire_byte_mm": 3 * 10**6}
    energy = energy_columns(SMALL.config, row)
    assert energy["energy_matrix_uj"] == pytest.approx(0.2)
    assert energy["energy_hbm_uj"] == pytest.approx(8 * 3.9)
    assert energy["energy_mesh_uj"] == pytest.approx(8 * 0.1 + 24 * 0.08)
    assert energy["energy_uj"] == pytest.approx(0.2 + 8 * 3.9 + 0.8 + 1.92)
    assert energy_columns(SMALL.config, {"latency_ns": 1.0}) == {}


def test_another_cost_is_the_same_machine():
    dear = SMALL.with_({"cost.energy.hbm_pj_per_bit": 39})
    assert dear.hash == SMALL.hash
    row = {"hbm_bytes": 1000, "wire_byte_mm": 0}
    assert energy_columns(dear.config, row)["energy_uj"] == pytest.approx(
        10 * energy_columns(SMALL.config, row)["energy_uj"]
    )


def test_bytes_between_sips_and_cubes_are_counted_by_what_they_cross():
    machine = resolve_topology("preset:default")
    row = program_row(ProbeStudy().program, machine, case="other-sip-write", nbytes=4096)
    assert row["sip_link_bytes"] >= 4096
    assert row["ucie_bytes"] >= 2 * 4096
    assert row["pcie_bytes"] == 0
    assert counters(machine.config, LinkTable(), {})["hbm_bytes"] == 0
