"""A training step with FSDP as torchtitan runs it, on 8 to 128 devices: the communication that compute does not hide.

Llama 3.1 8B in December 2024: a group of parameters for each layer, and one of embedding and output, which is gathered
first and reduced last. bfloat16 is gathered, float32 is reduced. The next layer is gathered during this one.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import kernbench as kb
from kernbench.ccl.install import load_ccl_config, resolve_algorithm_config
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology.builder import Machine

LAYER, ROOT = 218_103_808, 2 * 128_256 * 4096  # parameters, norms left out
NVLINK, NIC = 450, 50  # GB/s each way
TOKENS = 2 * 8192  # of a device
ONE_PE = DPPolicy(num_cubes=1, num_pes=1)


def machine(devices: int, gbs: float, chunk: int) -> Machine:
    """Return H100s whose collectives run on one PE, with the rates of all; memory of 2.4 TB/s; large flits."""
    here = {
        "system.sips": {"count": devices, "topology": "fat_tree"},
        "system.sip_link.bw_gbs": gbs,
        "system.sip_switch.ports": 64,
        "system.sip_link.latency_ns": 250,
        "system.flit_bytes": 16384,
        "system.host.descriptor_ns": 2000,
        "system.host.collective_start_ns": 0,
        "cube.hbm.efficiency": 1,
        "cube.pe_layout": {"pe_per_corner": 1, "corners": ["NW"]},
        "cube.llc.size_mib": 0,
        "cube.hbm.controllers": 1,
        "cube.hbm.bw_gbs": 2400,
        "cube.hbm.channel_bw_gbs": 150,
        "cube.hbm.burst_bytes": 16384,
        "cube.hbm.interleave_bytes": 2**20,
        "cube.pe.pe_dma.bw_gbs": 2400,
        "cube.pe.pe_math.lanes_32bit": 132 * 128,
        "cube.pe.pe_tcm.size_mb": 200,
        "cube.pe.pe_tcm.kernel_scratch_mb": 64,
        "cube.pe.pe_ipcq.slot_bytes": 2 * chunk,
        "cube.pe.pe_ipcq.channels": 1,
        **{f"cube.pe.pe_ipcq.{name}.up_to_bytes": 0 for name in ("ll", "ll128")},
        **{f"cube.pe.pe_ipcq.simple.{name}": 0 for name in ("start_ns", "n_slots", "slot_bytes", "channels")},
        "cube.pe.pe_ipcq.simple.payload": 1,
    }
    return kb.load("preset:h100_sxm", here)


@cache
def exposed_ms(devices: int, gbs: float, layers: int = 2, forward_ms: float = 18.0, scale: int = 1) -> float:
    """Simulate a step; return its time beyond compute. With `scale`, bytes and compute are a part of the real ones."""
    chunk = LAYER // max(128, scale * devices)  # B; half of the part of a layer that one of 128 devices has, at most
    there = machine(devices, gbs, chunk)
    config = load_ccl_config(machine=there.config)
    rings = {}
    for name, size in (("all_gather", chunk), ("reduce_scatter", 2 * chunk)):
        ring = resolve_algorithm_config(f"ring_{name}", config)
        rings[name] = replace(ring, options={**ring.options, "chunk_bytes": size})
    ends = []

    def step(rank: int, torch) -> None:
        dist, engine = torch.distributed, torch.engine
        dist.init_process_group("ahbm", pg_options=rings)

        def group(size, dtype):
            part = size // scale // devices
            return [torch.empty(n, dtype=dtype, device="ahbm", dp=ONE_PE) for n in (part, part * devices)]

        weights = {size: group(size, torch.bfloat16) for size in (LAYER, ROOT)}
        gradients = {size: group(size, torch.float32) for size in (LAYER, ROOT)}

        def gather(size=LAYER):
            part, whole = weights[size]
            return dist.all_gather_single(whole, part, async_op=True)

        def reduce(size=LAYER):
            part, whole = gradients[size]
            return dist.reduce_scatter_single(part, whole, async_op=True)

        def compute(ms):
            torch.ahbm.current_stream().submit(lambda: engine.env.timeout(round(ms / scale * 1e9)))

        torch.ahbm.synchronize()
        dist.monitored_barrier()
        start = engine.now_ns
        gather(ROOT).block_current_stream()
        ahead, works = gather(), []
        # The last layer is kept for its backward.
        for passed, again in ((forward_ms, 0), (2 * forward_ms, 1)):
            for i in range(layers):
                if i or not again:
                    ahead.block_current_stream()
                if i + 1 < layers:
                    ahead = gather()
                compute(passed)
                if again:
                    works.append(reduce())
        works.append(reduce(ROOT))
        for work in works:
            work.wait()
        ends.append(engine.now_ns - start)

    with kb.session(there, log="off") as torch:
        torch.multiprocessing.spawn(step, (torch,), nprocs=devices)
    return max(ends) * scale / 1e6 - layers * 3 * forward_ms


def closed_form_ms(devices: int, gbs: float) -> float:
    """Both first gathers and both last reductions, over rings: 2 and 4 B of each parameter."""
    return (2 + 4) * (LAYER + ROOT) * (devices - 1) / devices / gbs / 1e6


@pytest.mark.slow
def test_compute_hides_all_but_the_first_gathers_and_the_last_reductions():
    two, three = (exposed_ms(8, NIC, layers, scale=16) for layers in (2, 3))
    assert three == pytest.approx(two, rel=1e-6)
    assert closed_form_ms(8, NIC) <= two < 1.03 * closed_form_ms(8, NIC)
    # Bytes and compute of half the scale take half the time, but for latencies.
    assert exposed_ms(8, NIC, scale=32) == pytest.approx(two, rel=0.01)


def test_the_links_are_the_limit_of_a_step_with_little_compute():
    """Both layers are gathered, the first one twice, and both are reduced."""
    links = (2 * (3 * LAYER + ROOT) + 4 * (2 * LAYER + ROOT)) * 7 / 8 / NIC / 1e6
    compute = 2 * 3 * 1.0
    assert links <= exposed_ms(8, NIC, forward_ms=1.0, scale=16) + compute < 1.05 * (links + compute)


# Tokens/s of a device on 8 and 128 devices: torchtitan, benchmarks/llama3_h100_202412_torchtitan.md.
PUBLISHED = {"eager": (5762, 5605), "compile": (6667, 6514), "compile, float8": (8532, 8380)}


@pytest.mark.slow
def test_the_efficiency_of_128_devices_is_bracketed_by_rings_over_one_and_eight_links():
    """Eight rings that leave a host by a link each are as fast as one ring over links of eight times the bandwidth."""
    eight, slowest, fastest = exposed_ms(8, NVLINK), exposed_ms(128, NIC), exposed_ms(128, 8 * NIC)
    for links, found in ((1, slowest), (8, fastest)):
        assert closed_form_ms(128, links * NIC) <= found < 1.1 * closed_form_ms(128, links * NIC)
    for few, many in PUBLISHED.values():
        compute = TOKENS / few * 1000 - eight
        least, most = ((compute + eight) / (compute + exposed) for exposed in (slowest, fastest))
        assert least < many / few < most < many / few + 0.03
