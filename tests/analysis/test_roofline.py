from __future__ import annotations

from dataclasses import replace

import pytest

import kernbench as kb
from kernbench.analysis._roofline import ideal_gemm, macs_per_ns, placed
from kernbench.topology.builder import resolve_topology

DEFAULT = resolve_topology("preset:default").config


def machine(**changes):
    """The default machine with other values, even such as no machine file may have; `__` separates keys."""
    config = DEFAULT
    for path, value in changes.items():
        config = changed(config, ["cube", *path.split("__")], value)
    return config


def changed(part, keys, value):
    if keys[1:]:
        value = changed(getattr(part, keys[0]), keys[1:], value)
    return replace(part, **{keys[0]: value})


def test_one_full_tile_of_each_stage_takes_16_ns_when_one_operand_is_streamed():
    ideal = ideal_gemm(machine(), (320, 640, 320), streamed=("a",))
    assert ideal.stages_ns["dma_in"] == ideal.stages_ns["fetch"] == ideal.stages_ns["gemm"] == ideal.tile_ns == 16


def test_one_output_tile_with_both_operands_streamed_is_limited_by_the_dma():
    ideal = ideal_gemm(machine(), (32, 3072, 32))
    assert (ideal.limiter, ideal.tile_ns, ideal.tiles) == ("dma_in", 32, 48)
    assert ideal.time_ns == ideal.first_ns + 47 * 32 + ideal.last_ns


@pytest.mark.parametrize(("streamed", "reads"), [(("a", "b"), 16 * 512 * 512 * 2 * 2), (("b",), 16 * 512 * 512 * 2)])
def test_reads_and_write_back_share_the_slice(streamed, reads):
    ideal = ideal_gemm(machine(), (512, 512, 512), streamed=streamed)
    served = (reads + 512 * 512 * 2) / 256
    assert ideal.limiter == "hbm"
    # What is more is the latency of the first read and of the last write.
    assert served < ideal.time_ns == pytest.approx(served + 21, abs=2)


def test_operands_in_tcm_leave_the_slice_to_the_write_back():
    assert ideal_gemm(machine(), (512, 512, 512), streamed=()).limiter == "fetch"


def test_long_k_with_operands_in_tcm_comes_to_about_95_percent():
    # 16 fetch + 16 gemm + 47 x 16 + 4 store + a write of 2 KiB: 1 + 2 + 7 + 8 + (1 + 1/8)
    ideal = ideal_gemm(machine(), (32, 3072, 32), streamed=())
    assert ideal.time_ns == 16 + 16 + 47 * 16 + 4 + 19.125
    assert ideal.utilization == pytest.approx(0.95, abs=0.005)


def test_the_first_dma_in_is_a_read_on_the_idle_machine():
    one = ideal_gemm(machine(), (32, 64, 32), streamed=("a",))
    assert one.first_ns == 27 + 16 + 16  # 4 KiB from the own slice: 27 ns


def test_padding_is_issued_but_not_useful():
    ideal = ideal_gemm(machine(), (16, 16, 16))
    assert ideal.issued_utilization == 16 * ideal.utilization
    full = ideal_gemm(machine(), (32, 64, 32))
    assert full.issued_utilization == full.utilization


@pytest.mark.parametrize(
    ("path", "factor", "limiter"),
    [
        ("pe__pe_dma__bw_gbs", 0.25, "dma_in"),
        ("pe__pe_tcm__read_bw_gbs", 0.25, "fetch"),
        ("pe__pe_gemm__clock_ghz", 0.25, "gemm"),
    ],
)
def test_the_stage_that_is_made_slower_becomes_the_limiter(path, factor, limiter):
    base = {"pe__pe_dma__bw_gbs": 256, "pe__pe_tcm__read_bw_gbs": 512, "pe__pe_gemm__clock_ghz": 1.0}[path]
    before = ideal_gemm(machine(), (512, 512, 512), streamed=("a",))
    after = ideal_gemm(machine(**{path: base * factor}), (512, 512, 512), streamed=("a",))
    assert after.limiter == limiter
    assert after.tile_ns == before.tile_ns / factor


def test_slow_channels_limit_like_a_slow_link():
    ideal = ideal_gemm(machine(hbm__efficiency=0.5), (512, 512, 512), streamed=("a",))
    assert (ideal.limiter, ideal.tile_ns) == ("hbm", 32)


def test_rates_by_type():
    assert (macs_per_ns(machine(), "fp32"), macs_per_ns(machine(), "f16")) == (1024, 4096)
    with pytest.raises(ValueError, match=r"no rate for torch.int64; known: .*float16"):
        macs_per_ns(machine(), "i64")


def test_a_product_of_int8_is_written_as_int32():
    ideal = ideal_gemm(machine(), (32, 64, 32), dtype="i8")
    assert ideal.stages_ns["dma_in"] == 2 * 32 * 64 / 256
    assert (ideal.stages_ns["store_tcm"], ideal.stages_ns["dma_out"]) == (32 * 32 * 4 / 512, 32 * 32 * 4 / 256)


def test_memory_that_pes_share_is_a_roof_of_all_its_controllers():
    run = kb.run("gemm-single-pe", "preset:small", log="tile").result.records
    slice_gbs = DEFAULT.cube.hbm.channels * DEFAULT.cube.hbm.channel_bw_gbs
    assert placed(run, "")[1].levels_gbs["HBM"] == slice_gbs  # one PE, with the slice beside it
    routers = "cube.hbm.controller_routers=[[0, 1], [0, 2], [0, 3], [0, 4]]"
    shared = kb.load("preset:small", overrides=["cube.hbm.controllers=4", routers])
    assert placed(replace(run, spec=shared.spec), "")[1].levels_gbs["HBM"] == 4 * slice_gbs


def test_with_a_cache_bytes_of_pes_come_through_it():
    """A product reads each operand many times: compared with the HBM, it would reach three times what that allows."""
    with kb.session(kb.load("preset:a100_sxm"), log="tile") as torch:
        a, b = (torch.empty(1024, 1024, dtype=torch.float16, device="ahbm") for _ in range(2))
        a @ b
    at, roofs = placed(torch.result.records, "")
    llc = torch.engine.machine.config.cube.llc
    assert roofs.levels_gbs["LLC"] == pytest.approx(10 * llc.bw_gbs)
    bound, limit = roofs.bound(at.intensities)
    assert limit == "peak"  # of the 64 PEs that have a block
    assert 0.5 < at.gflops / bound < 1
