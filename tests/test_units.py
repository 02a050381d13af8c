"""Times of amounts at rates: decimals, exact, on every path that computes one."""

from decimal import Decimal
from fractions import Fraction
from math import ceil, prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench._dtypes import as_dtype
from kernbench._units import decimal_product, ps_per_unit, serialization_ps
from kernbench.components._command import VectorOp
from kernbench.components.builtin.pe_gemm import PeGemm
from kernbench.components.builtin.pe_math import PeMath
from kernbench.components.builtin.pe_tcm import PeFetchStore
from kernbench.topology.builder import resolve_topology

DECIMALS = st.decimals("0.001", "9999", places=3).filter(lambda value: value > 0)


@given(st.integers(0, 1 << 40), DECIMALS)
def test_a_time_is_the_quotient_of_the_decimals_rounded_up(nbytes, bandwidth):
    assert serialization_ps(nbytes, float(bandwidth)) == ceil(nbytes * 1000 / Fraction(bandwidth))


@given(DECIMALS, st.decimals("0.0001", "1", places=4), st.integers(1, 64))
def test_a_product_of_decimals_is_exact(bandwidth, share, count):
    product = decimal_product(float(bandwidth), float(share), count)
    assert Decimal(repr(product)) == bandwidth * share * count
    assert Fraction(*ps_per_unit(product)) == 1000 / prod(map(Fraction, (bandwidth, share, count)))


def test_511_bytes_at_7_3_gb_per_s_take_70_ns():
    assert serialization_ps(511, 7.3) == 70_000


@pytest.fixture(scope="module")
def machine():
    return resolve_topology("preset:small").with_(
        {
            "system.pcie.bw_gbs": 8.1,
            "system.pcie.efficiency": 0.7,
            "system.host_link.bw_gbs_per_sip": 0.1,
            "system.sips": {"count": 3, "topology": "ring_1d"},
            "cube.ucie.bw_gbs": 1.1,
            "cube.ucie.efficiency": 0.3,
            "cube.noc.link_bw_gbs": 7.3,
            "cube.hbm.channel_bw_gbs": 1.1,
            "cube.hbm.efficiency": 0.7,
            "cube.pe.pe_tcm.read_bw_gbs": 7.3,
            "cube.pe.pe_tcm.write_bw_gbs": 5.67,
            "cube.pe.pe_gemm.clock_ghz": 0.07,
            "cube.pe.pe_math.clock_ghz": 2.3,
        }
    )


def test_links_take_the_product_with_their_efficiency(machine):
    bandwidths = {edge.bw_gbs for edge in machine.graph.edges()}
    assert {5.67, 0.33, 7.3, 0.3} <= bandwidths  # PCIe, UCIe, mesh, and the host's link of three SIPs


def test_a_burst_takes_the_product_with_the_efficiency_of_the_memory(machine):
    hbm = machine.config.cube.hbm
    assert hbm.burst_ps == ceil(hbm.burst_bytes * 1000 / Fraction("0.77"))
    assert Decimal(repr(hbm.slice_gbs)) == hbm.channels * Decimal("0.77")


def test_the_engines_of_a_pe_count_cycles_of_decimal_clocks(machine):
    pe = machine.config.cube.pe
    tile, peak = pe.pe_gemm.tile, pe.pe_gemm.macs_per_cycle.f16 * Fraction("0.07")
    took_ps = PeGemm(pe.pe_gemm).tile_ps(tile.m, tile.k, tile.n, as_dtype("f16"))
    assert took_ps == ceil(tile.m * tile.k * tile.n * 1000 / peak)
    assert PeFetchStore(pe.pe_tcm).fetch_ps(511) == 70_000
    assert PeFetchStore(pe.pe_tcm).store_ps(567) == 100_000
    vector = PeMath(pe.pe_math)
    assert vector.ps([VectorOp("simple", 23 * vector.lanes(2), 2)]) == 10_000
    assert vector.ps([VectorOp("simple", vector.lanes(2), 2)]) == ceil(1000 / Fraction("2.3"))
