"""The chain is whole, to the picosecond, and no cause is left to guess, whatever ran on whichever machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis._critical_path import critical_path
from kernbench.analysis._records import Dependencies, Records
from kernbench.benches.registry import run as run_bench
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.config import default_ccl_path
from kernbench.errors import KernbenchError
from kernbench.kernels.gemm import STAGINGS
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.collective import run_collective
from kernbench.studies import gemm
from kernbench.studies.ccl import PlannedCollective
from kernbench.topology.builder import resolve_topology
from tests.analysis.paths import STEPS, checked, program
from tests.components.one_pe import engine_of, launch, pointer
from tests.components.queues_under_test import run as run_queues
from tests.slow import slow_after

MACHINE = resolve_topology("preset:default")
FOUR = MACHINE.with_(
    {
        "system.sips": {"count": 4, "topology": "torus_2d", "w": 2, "h": 2},
        "sip.cube_mesh": {"w": 2, "h": 1},
        "cube.pe_layout.pe_per_corner": 1,
    }
)


@pytest.mark.parametrize("gather", gemm.GATHERS)
@pytest.mark.parametrize("variant", STAGINGS)
@pytest.mark.parametrize("shape", slow_after(4, zip(gemm.SHAPES[:-1])))
def test_products_of_the_study(shape, variant, gather):
    machine = MACHINE.with_({"cube.hbm.gather": gather})
    tiles = checked(gemm.run(machine, shape, variant).records)
    whole = checked(gemm.run(machine, shape, variant, log="operation").records)
    assert tiles.makespan_ps == whole.makespan_ps


overrides = st.fixed_dictionaries(
    {
        "cube.pe.pe_tcm.stage_buffers": st.sampled_from([1, 2, 3]),
        "cube.pe.pe_tcm.buffers_per_operand": st.sampled_from([1, 2, 4]),
        "cube.pe.pe_dma.outstanding_reads": st.sampled_from([1, 2, 4]),
        "cube.pe.pe_dma.outstanding_writes": st.sampled_from([1, 4]),
        "cube.pe.pe_mmu.lookup_ns": st.sampled_from([0, 3]),
        "cube.pe.pe_scheduler.tile_ns": st.sampled_from([0, 1, 30]),
        "cube.pe.pe_cpu.command_ns": st.sampled_from([0, 2, 50]),
        "cube.pe.pe_gemm.clock_ghz": st.sampled_from([0.5, 1, 3]),
        "cube.pe.pe_tcm.write_bw_gbs": st.sampled_from([16, 512]),
        "cube.hbm.gather": st.sampled_from(["packed", "strided"]),
        "cube.hbm.access_ns": st.sampled_from([0, 40]),
        "cube.hbm.turnaround_ns": st.sampled_from([0, 7]),
    }
)


@settings(max_examples=20, deadline=None)
@given(
    overrides,
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 0, 5])), min_size=1, max_size=12),
    st.sampled_from([1, 2, 8]),
    st.sampled_from(["tile", "operation"]),
)
def test_any_program_on_any_pe(changes, steps, pes, log):
    engine = engine_of(changes, log=log)
    for _ in range(2):
        launch(engine, program(steps), *((0, pe) for pe in range(pes)))
    checked(engine.records())


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 0, 5])), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 0, 5])), min_size=1, max_size=8),
    st.sampled_from([0, 0, 1]),
    st.sampled_from(["tile", "operation"]),
)
def test_two_launches_at_once_on_one_pe_or_two(steps, others, pe, log):
    engine = engine_of(log=log)
    sent = [engine.launch(0, [(0, at)], program(x), (), "kernel") for x, at in ((steps, 0), (others, pe))]
    for one in sent:
        engine.wait(one.done)
    checked(engine.records())


def test_a_program_that_waits_for_room_in_tcm():
    def kernel(tl):
        for i in range(6):
            tile = tl.load(pointer(i << 20), shape=(512, 1024))
            power = tl.exp(tile)
            del tile, power

    engine = engine_of({"cube.pe.pe_tcm.size_mb": 7})
    launch(engine, kernel)
    path = checked(engine.records())
    assert path.because()["the program waits"] >= 4


@pytest.mark.parametrize("log", ["tile", "operation"])
@pytest.mark.parametrize("bench", ["qkv-gemm-multi-pe", "va-offset-verify"])
def test_many_pes_maps_copies_and_launches(bench, log):
    checked(run_bench(bench, log=log).result.records)


def test_a_cpu_that_is_quicker_than_the_machine_file_says():
    machine = MACHINE.with_({"cube.m_cpu.impl": "tests.components.slow_parts:QuickMCpu", "cube.m_cpu.service_ns": 50})
    path = checked(gemm.run(machine, (32, 64, 32), "ref_ref").records)
    service = [part.ps for step in path.steps for part in step.parts if part.resource.endswith(".m_cpu")]
    assert 1000 in service
    assert max(service) == 1000


def test_every_pe_of_a_sip_reads_one_slice():
    def kernel(x, *, tl):
        tl.load(x, shape=(4096,))

    def program_(torch):
        everywhere = DPPolicy(cube="row_wise", pe="row_wise")
        x = torch.empty(256, 4096, dtype="f16", device="ahbm", dp=everywhere)
        torch.launch("one slice", kernel, x)

    path = checked(run_program(MACHINE, program_).records)
    assert path.parts()["memory", "sip0.cube0.hbm_ctrl.pe0"] >= 128 * 4096 * 2 / 256 * 1000


def test_a_saved_run_has_the_same_path(tmp_path):
    records = gemm.run(MACHINE, (64, 64, 64), "load_ref").records
    assert critical_path(Records.load(records.save(tmp_path / "run.npz"))) == critical_path(records)


def test_a_run_without_a_log_says_so():
    with pytest.raises(KernbenchError, match=r'run it with log="operation"'):
        critical_path(gemm.run(MACHINE, (16, 16, 16), "ref_ref", log="off").records)
    records = gemm.run(MACHINE, (16, 16, 16), "ref_ref").records
    with pytest.raises(KernbenchError, match="do not hold the machine"):
        critical_path(replace(records, spec={}))
    with pytest.raises(KernbenchError, match="a version without causes; run the bench again"):
        critical_path(replace(records, dependencies=Dependencies()))


def test_nothing_ran():
    empty = Records.empty(spec={"system": {}})
    assert critical_path(empty).steps == ()
    assert not critical_path(empty).parts()


PLACES = ((0, 0, 0), (0, 1, 0), (0, 0, 5), (0, 5, 3))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5000)).filter(lambda x: x[0] != x[1]),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 3),
    st.sampled_from(["tcm", "sram", "hbm"]),
)
def test_messages_between_pes(exchange, n_slots, kind):
    pairs = [((PLACES[i], f"to{j}"), (PLACES[j], f"to{i}")) for i in range(4) for j in range(i + 1, 4)]

    def program_of(me):
        def run_it(tl):
            for src, dst, n in exchange:
                if src == me and n % 2:
                    tl.send(f"to{dst}", tl.full((n,), 1.0, dtype=tl.float16) + 0)
                elif src == me:
                    tl.send(f"to{dst}", pointer(n, dtype=tl.float16), shape=(n,))
                if dst == me:
                    tl.exp(tl.recv(f"to{src}", shape=(n,)))

        return run_it

    programs = {place: program_of(i) for i, place in enumerate(PLACES)}
    engine = run_queues(programs, pairs, n_slots=n_slots, kind=kind, slot_bytes=1024)
    checked(engine.records())


@pytest.mark.parametrize("kind", ["sram", "hbm"])
# The queues of switch_allreduce are in TCM.
@pytest.mark.parametrize(
    "name", slow_after(6, sorted({*names(load_ccl_config(default_ccl_path()))} - {"switch_allreduce"}))
)
def test_collectives_with_queues_in_memory(name, kind):
    """A memory's busy time may begin with a part of a message, which is sent as parts are."""
    algorithm = replace(resolve_algorithm_config(name, default_ccl_path()), buffer_kind=kind, world_size=None)
    checked(run_collective(FOUR, PlannedCollective(FOUR, algorithm).plan, 65536).result.records)
