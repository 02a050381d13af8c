"""Every recorded cause ends when what followed from it began, at each level of the log and with each engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis._critical_path import critical_path
from kernbench.analysis._records import HELD, STEP_KINDS, Records
from kernbench.benches.registry import run as run_bench
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.config import default_ccl_path
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.collective import run_collective
from kernbench.studies import gemm
from kernbench.studies.ccl import PlannedCollective
from tests.analysis.causes import wrong
from tests.analysis.paths import STEPS, program
from tests.analysis.test_critical_path import FOUR, MACHINE, overrides
from tests.components.one_pe import engine_of, launch, pointer

kernels = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 0, 5])), min_size=1, max_size=12)
levels = st.sampled_from(["tile", "operation"])


@settings(max_examples=40, deadline=None)
@given(overrides, kernels, st.sampled_from([1, 2, 8]), levels)
def test_any_program_on_any_pe(changes, steps, pes, log):
    engine = engine_of(changes, log=log)
    for _ in range(2):
        launch(engine, program(steps), *((0, pe) for pe in range(pes)))
    assert not wrong(engine.records())


@settings(max_examples=20, deadline=None)
@given(overrides, kernels, st.sampled_from([1, 8]))
def test_what_is_logged_changes_no_time(changes, steps, pes):
    ends = set()
    for log in ("off", "operation", "tile"):
        engine = engine_of(changes, log=log)
        for _ in range(2):
            launch(engine, program(steps), *((0, pe) for pe in range(pes)))
        ends.add(engine.env.now)
    assert len(ends) == 1


@pytest.mark.parametrize("name", ["ring_allreduce_tcm", "tree_allreduce", "ring_allreduce_hbm"])
def test_what_is_logged_changes_no_time_of_a_collective(name):
    def sums(torch):
        one = DPPolicy(num_cubes=1, num_pes=1)
        vectors = [torch.empty(1 << 15, dtype="f16", device=f"ahbm:{sip}", dp=one) for sip in range(4)]
        torch.collective(vectors, algorithm=name)

    assert len({run_program(FOUR, sums, log=log).latency_ns for log in ("off", "operation", "tile")}) == 1


@pytest.mark.parametrize("log", ["tile", "operation"])
@pytest.mark.parametrize("bench", ["qkv-gemm-multi-pe", "va-offset-verify"])
def test_many_pes_maps_copies_and_launches(bench, log):
    assert not wrong(run_bench(bench, log=log).result.records)


SUMS = "switch_allreduce"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in names(load_ccl_config(default_ccl_path()))
        for kind in (["tcm"] if name == SUMS else ["tcm", "sram", "hbm"])
    ],
)
def test_collectives(name, kind):
    switch = {"system.sips": {"count": 4, "topology": "switch"}, "system.sip_switch.reduce": "sum"}
    machine = FOUR.with_(switch) if name == SUMS else FOUR
    algorithm = replace(resolve_algorithm_config(name, default_ccl_path()), buffer_kind=kind, world_size=None)
    assert not wrong(run_collective(machine, PlannedCollective(machine, algorithm).plan, 65536).result.records)


@pytest.mark.parametrize("variant", ["ref_ref", "load_ref", "load_load"])
@pytest.mark.parametrize("changes", [{}, {"cube.pe.pe_tcm.read_bw_gbs": 64}, {"cube.hbm.channel_bw_gbs": 16}])
def test_a_product_has_the_same_path_without_its_tiles(variant, changes):
    """What the stages summarize as tiles pass is what the path through logged tiles adds up to."""
    machine = MACHINE.with_(changes)
    tiles, whole = (critical_path(gemm.run(machine, (128, 256, 128), variant, log=log).records) for log in LEVELS)
    assert len(whole.steps) < len(tiles.steps)
    for kind in ("memory", "fetch", "matrix", "store", "plan", "issue"):
        own = [sum(ps for (of, _), ps in path.parts().items() if of == kind) for path in (tiles, whole)]
        assert own[0] == own[1], kind


LEVELS = ("tile", "operation")


def test_a_stage_that_is_held_up_names_what_made_room(tmp_path):
    slow = MACHINE.with_({"cube.pe.pe_gemm.clock_ghz": 0.1, "cube.pe.pe_tcm.stage_buffers": 1})
    records = gemm.run(slow, (64, 64, 256), "load_load").records
    path = critical_path(records)
    assert path.because()["the engine's previous work"] > 3
    assert ((records.dependencies.causes[:, 1] >> 32) & HELD).any()
    assert critical_path(Records.load(records.save(tmp_path / "held.npz"))) == path


def test_causes_of_an_interrupted_run_are_events_that_it_has(tmp_path):
    def kernel(tl):
        for i in range(8):
            tl.load(pointer(i << 16), shape=(64, 64))
            tl.composite("gemm", tl.ref(pointer(0), (64, 64)), tl.ref(pointer(0), (64, 64)), pointer(1 << 20))

    whole = engine_of(log="tile")
    launch(whole, kernel)
    engine = engine_of(log="tile")
    engine.launch(0, [(0, 0)], kernel, (), "kernel")
    while engine.env._now < 350_000:  # a core takes fewer steps than the definition
        engine.step()
    part = engine.records()
    assert not part.complete
    assert len(part.dependencies.sent) == len(part.dependencies.transfers["end_ps"])
    assert critical_path(Records.load(part.save(tmp_path / "part.npz"))) == critical_path(part)


def test_a_long_chain_of_paths_is_bounded():
    """Fetch and matrix engine take equally long: the path never passes the fetch stage, whose work is one chain."""

    def kernel(tl):
        a, b = tl.load(pointer(0), shape=(32, 64)), tl.load(pointer(1 << 16), shape=(64, 32))
        for _ in range(1000):
            tl.dot(a, b)

    engine = engine_of(log="operation")
    launch(engine, kernel)
    cause, n = engine.pe(0, 0, 0).pipeline.fetch.free_by, 0
    while cause is not None:
        cause, n = cause.before, n + 1
    assert n <= 70
    records = engine.records()
    assert not wrong(records)
    assert sum(critical_path(records).parts().values()) == records.makespan_ps


def test_steps_are_named_and_take_time():
    steps = gemm.run(MACHINE, (64, 64, 64), "load_ref").records.dependencies.steps
    found = {STEP_KINDS[kind] for kind in np.unique(steps["kind"]).tolist()}
    assert found == {"issue", "lookup", "cpu", "start", "end"}
    assert (steps["ps"] <= steps["end_ps"]).all()
