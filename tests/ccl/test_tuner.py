"""The choice of an algorithm: by the model, by simulation, from the table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import kernbench as kb
from kernbench.ccl.algorithm import algorithm
from kernbench.ccl.algorithms import all_reduce
from kernbench.ccl.alpha_beta import _MESSAGES
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.stages import Ring
from kernbench.ccl.tuner import Tuner
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError, DeadlockError, OutOfMemoryError
from kernbench.runtime_api.collective import simulator, tuner_of

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(scope="module")
def machine():
    return kb.load("preset:default", {"system.sips.count": 8})


def entries(*chosen):
    config = load_ccl_config(default_ccl_path())
    return [resolve_algorithm_config(name, config) for name in chosen or names(config, "all_reduce", "rank")]


def by_model(machine, algorithms, **settings):
    """Return a tuner that simulates no candidate."""
    return Tuner(machine, algorithms, simulate=simulator(machine), refine=0, **settings)


def measured_on(machine, simulate):
    """Return a function that measures messages on a machine, and takes candidates to `simulate`."""

    def either(plan, *of):
        return (simulator(machine) if plan.algorithm.name == _MESSAGES else simulate)(plan, *of)

    return either


def test_short_vectors_take_few_steps_and_long_ones_little_traffic(machine):
    tuner = by_model(machine, entries("ring_allreduce_tcm", "halving_doubling_allreduce"))
    assert tuner.choose("all_reduce", 64).algorithm == "halving_doubling_allreduce"
    assert tuner.choose("all_reduce", 16 * MIB).algorithm == "ring_allreduce_tcm"


@pytest.mark.parametrize(("nbytes", "both_ways"), [(2048, False), (1 << 20, True)])
def test_by_the_model_an_all_reduce_of_large_shards_goes_both_ways_in_large_messages(nbytes, both_ways):
    tuner = tuner_of(kb.load("preset:small", {"system.sips": {"count": 8, "topology": "ring_1d"}}), by_model=True)
    options = tuner.algorithms[tuner.choose("all_reduce", nbytes, itemsize=1).algorithm].options
    assert options.get("both_ways", False) == both_ways
    assert options["chunk_bytes"] == 32 << 10  # no slower by the model, and fewer events


def test_slots_are_taken_where_they_are_worth_it(machine):
    tuner = by_model(machine, entries("ring_allreduce_tcm"))
    assert tuner.choose("all_reduce", 64).n_slots == 2
    long = tuner.choose("all_reduce", 16 * MIB)
    assert long.n_slots == 16  # 8 would fill the round trip, if nothing waited for anything: simulated, 23 % slower


def test_stated_slots_are_kept(machine):
    ring, tree = entries("ring_allreduce_tcm", "tree_allreduce")
    chosen = by_model(machine, [replace(ring, n_slots=3), tree]).choose("all_reduce", 16 * MIB)
    assert (chosen.algorithm, chosen.n_slots) == ("ring_allreduce_tcm", 3)
    assert {c.algorithm: c.n_slots for c in chosen.candidates}["tree_allreduce"] != 3
    asked = []
    Tuner(
        machine, [replace(ring, n_slots=3)], simulate=measured_on(machine, lambda plan, *_: asked.append(plan) or 9.0)
    ).choose("all_reduce", MIB)
    assert [plan.algorithm.n_slots for plan in asked] == [3]


def test_what_the_machine_does_not_admit_is_refused_with_its_reason(machine):
    decision = by_model(machine, entries()).choose("all_reduce", KIB)
    assert "world_size = 4, but 8 take part" in decision.refused["mesh_allreduce_4"]
    assert decision.algorithm not in decision.refused
    assert "mesh_allreduce_4: does not run here" in str(decision)


def test_slots_have_room_in_the_memory_of_the_rings():
    """A participant has two rings, and its cube's SRAM room for 2 x 3 slots; TCM has room for more."""
    sizes = {"cube.pe.pe_ipcq.slot_bytes": 64 * KIB, "cube.sram.size_mib": 6 / 16}
    machine = kb.load("preset:default", {"system.sips.count": 8, **sizes})
    of_two = by_model(machine, entries("ring_allreduce_sram", "ring_allreduce_tcm")).choose("all_reduce", MIB)
    slots = {c.algorithm: c.n_slots for c in of_two.candidates}
    assert slots["ring_allreduce_sram"] == 2 < slots["ring_allreduce_tcm"]
    ring, tree = entries("ring_allreduce_sram", "tree_allreduce")
    stated = by_model(machine, [replace(ring, n_slots=4), tree]).choose("all_reduce", MIB)
    assert stated.algorithm == "tree_allreduce"
    assert "have room for 3 slots of 65536 B each in sram" in stated.refused["ring_allreduce_sram"]


@pytest.mark.parametrize(("error", "why"), [
    (OutOfMemoryError("algorithm 'ring': no room"), "no room"),
    (DeadlockError("deadlock at 9 ns; waiting:\n pe0"), "deadlock at 9 ns, with too little TCM or by its program"),
])  # fmt: skip
def test_an_algorithm_that_runs_out_of_memory_is_refused_and_the_next_one_is_simulated(machine, error, why):
    def simulate(plan, *_):
        if plan.algorithm.name != "tree_allreduce":
            raise error
        return 9.0

    known = entries("ring_allreduce_tcm", "halving_doubling_allreduce", "tree_allreduce")
    decision = Tuner(machine, known, simulate=measured_on(machine, simulate), refine=1).choose("all_reduce", 16 * MIB)
    assert (decision.algorithm, decision.best.simulated_ns) == ("tree_allreduce", 9.0)
    assert decision.refused == dict.fromkeys(("ring_allreduce_tcm", "halving_doubling_allreduce"), why)


def test_an_algorithm_whose_stages_fail_is_refused_with_its_error(machine):
    @all_reduce()
    def four_only(rank, n):
        return [[Ring(rank, n, *[("E", "W")][n // 5])]]

    @all_reduce()
    def another_queue(rank, n):
        return [[Ring(rank, n, "up", "down")]]

    own = [algorithm(four_only), algorithm(another_queue)]
    decision = by_model(machine, [*own, *entries("tree_allreduce")]).choose("all_reduce", KIB)
    assert decision.algorithm == "tree_allreduce"
    assert "stages of participant 0 of 8 fail: IndexError: list index out of range" in decision.refused["four_only"]
    assert "'up'" in decision.refused["another_queue"]


def test_simulation_overrules_estimates_of_the_best_only(machine):
    asked = []

    def simulate(plan, nbytes, itemsize):
        asked.append((plan.algorithm.name, plan.algorithm.n_slots, nbytes, itemsize))
        return 100.0 if plan.algorithm.name == "tree_allreduce" else 200.0

    known = entries("ring_allreduce_tcm", "halving_doubling_allreduce", "tree_allreduce", "ring_flat_allreduce")
    by_estimate = by_model(machine, known).choose("all_reduce", 64)
    second = by_estimate.candidates[1].algorithm
    decision = Tuner(machine, known, simulate=measured_on(machine, simulate), refine=2).choose("all_reduce", 64)
    assert {name for name, *_ in asked} == {by_estimate.algorithm, second}
    assert all(rest == [64, 2] for _, _, *rest in asked)
    simulated = [c.simulated_ns for c in decision.candidates]
    assert simulated[2:] == [None, None]
    assert simulated[:2] == sorted(simulated[:2])


def test_an_algorithm_of_unknown_stages_needs_simulation(machine):
    def mine(t_ptr, n_elem, world_size, *, tl): ...

    own = algorithm(mine, name="mine")
    with pytest.raises(ConfigError, match="mine: its stages are unknown; increase refine, so that it is simulated"):
        by_model(machine, [own]).choose("all_reduce", 64)
    decision = Tuner(machine, [own], simulate=lambda *_: 5.0).choose("all_reduce", 64)
    assert (decision.algorithm, decision.best.ns) == ("mine", 5.0)


def test_nothing_that_runs_is_an_error_with_all_reasons(machine):
    with pytest.raises(ConfigError, match=r"no algorithm does all_reduce by rank here: mesh_allreduce_4: world_size"):
        by_model(machine, entries("mesh_allreduce_4")).choose("all_reduce", 64)


@pytest.mark.slow
def test_the_table_is_kept_by_machine_and_version(machine, tmp_path):
    calls = []

    def simulate(plan, nbytes, itemsize):
        calls.append(plan)
        return 7.0

    def tuner(version="1", of=machine):
        return Tuner(
            of, entries("tree_allreduce"), simulate=measured_on(of, simulate), folder=tmp_path, version=version
        )

    first = tuner().choose("all_reduce", 64)
    assert tuner().choose("all_reduce", 64) == first
    assert len(calls) == 1
    tuner().choose("all_reduce", 128)
    tuner(version="2").choose("all_reduce", 64)
    tuner(of=machine.with_({"system.sip_link.latency_ns": 60})).choose("all_reduce", 64)
    assert len(calls) == 4
    assert len(list(tmp_path.iterdir())) == 3


def test_a_table_knows_what_algorithms_state(machine, tmp_path):
    [ring] = entries("ring_allreduce_tcm")
    found = [
        by_model(machine, [own], folder=tmp_path).choose("all_reduce", MIB)
        for own in (ring, replace(ring, n_slots=3), replace(ring, n_slots=3, slot_size=512), ring)
    ]
    assert [d.n_slots for d in found] == [16, 3, 3, 16]
    assert found[1].best.ns < found[2].best.ns
    assert found[3] == found[0]


def test_a_table_of_another_schema_is_not_read(machine, tmp_path):
    by_model(machine, entries("tree_allreduce"), folder=tmp_path).choose("all_reduce", 64)
    [path] = tmp_path.iterdir()
    path.write_text(json.dumps({"schema_version": 0}))
    assert by_model(machine, entries("tree_allreduce"), folder=tmp_path).table == {}


@pytest.mark.parametrize("text", ["", "[]", '{"schema_version": 2}', "[" * 100_000])
def test_a_damaged_table_is_made_again_with_one_warning(machine, tmp_path, text):
    before = by_model(machine, entries("tree_allreduce"), folder=tmp_path)
    before.choose("all_reduce", 64)
    before.path.write_text(text)
    with pytest.warns(RuntimeWarning, match=r"ccl_.*json: is damaged, or no table of algorithms"):
        assert by_model(machine, entries("tree_allreduce"), folder=tmp_path).table == {}
    assert by_model(machine, entries("tree_allreduce"), folder=tmp_path).table == {}


def test_the_choice_shows_itself(machine):
    decision = by_model(machine, entries("ring_allreduce_tcm", "tree_allreduce")).choose("all_reduce", 64)
    text = str(decision)
    assert text.startswith(
        f"all_reduce of 64 B a shard over 8 SIPs (machine {machine.hash[:12]}): tree_allreduce, 2 slots\n"
    )
    assert "x the lower bound (latency); start-up is " in decision.reason
    assert "next is ring_allreduce_tcm, +" in decision.reason
    assert "<td>ring_allreduce_tcm</td>" in decision._repr_html_()


def test_the_plan_of_a_choice_has_its_slots(machine):
    tuner = by_model(machine, entries("ring_allreduce_tcm"))
    plan = tuner.plan(tuner.choose("all_reduce", 16 * MIB), range(8))
    assert (plan.algorithm.n_slots, plan.world_size) == (16, 8)
