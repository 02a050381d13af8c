"""Every shipped bench runs, checks its numbers, and notices wrong ones."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import kernbench as kb
from kernbench.benches.registry import bench, benches
from kernbench.errors import ConfigError, VerificationError
from kernbench.runtime_api import bench_runner
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.sim_engine.engine import GraphEngine
from tests.runtime_api.machines import CUBES, PES, small

with_data = partial(GraphEngine, enable_data=True)
PROGRAMS = [b.name for b in benches() if not b.is_milestone]


def run(name, machine, **more):
    return kb.run(name, machine, **more, **({"d_model": 96} if name == "gpt3-qkv" else {}))


@pytest.mark.parametrize("name", PROGRAMS)
def test_runs_and_checks_itself(name):
    outcome = run(name, small(), data=True)
    assert outcome.error is None
    assert (outcome.completion, outcome.correctness) == ("OK", "PASSED")
    timing = run(name, small())
    assert (timing.completion, timing.correctness) == ("OK", "NOT_CHECKED")
    assert timing.result.records.digest() == outcome.result.records.digest()


@pytest.mark.parametrize("name", PROGRAMS)
def test_notices_one_wrong_bit(name, monkeypatch):
    # Whoever reads the result finds one element changed.
    from kernbench.runtime_api._device_tensor import DeviceTensor

    honest = DeviceTensor.numpy

    def flawed(self):
        values = honest(self)
        values.reshape(-1)[-1] += 1
        return values

    monkeypatch.setattr(DeviceTensor, "numpy", flawed)
    outcome = run(name, small(), data=True)
    assert outcome.correctness == "FAILED"
    assert "1 of " in str(outcome.error)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "ccl-allreduce"])
def test_runs_on_another_device(name):
    outcome = run(name, small(), data=True, device="sip:1")
    assert outcome.correctness == "PASSED"
    assert {sip for sip, _, _ in outcome.result.records.pes()} == {1}


@pytest.mark.parametrize(
    ("chosen", "sips", "pes"),
    [("ring_allreduce_hbm", 2, 1), ("intercube_allreduce", 2, CUBES), ("hierarchical_allreduce", 2, CUBES * PES),
     ("tree_allreduce_7", 8, 1)],
)  # fmt: skip
def test_the_all_reduce_bench_takes_any_algorithm(chosen, sips, pes, monkeypatch, capsys):
    monkeypatch.setenv("CCL_ALGORITHM", chosen)
    monkeypatch.setenv("CCL_N_ELEM", "24")
    outcome = kb.run("ccl-allreduce", small(sips), data=True)
    assert outcome.correctness == "PASSED"
    used = {sip for sip, _, _ in outcome.result.records.pes()}
    assert used == set(range(7 if chosen == "tree_allreduce_7" else sips))
    assert len(outcome.result.records.pes()) == len(used) * pes
    assert f"{chosen}: {len(used) * pes} participants on {len(used)} SIPs, 24 elements" in capsys.readouterr().out


def test_the_all_reduce_bench_refuses_what_the_machine_does_not_have(monkeypatch):
    monkeypatch.setenv("CCL_ALGORITHM", "mesh_allreduce_4")
    assert "world_size = 4 is not available: the machine has 2 SIPs" in str(kb.run("ccl-allreduce", small()).error)
    monkeypatch.setenv("CCL_ALGORITHM", "tree_broadcast")
    assert "'tree_broadcast' does broadcast; this bench checks an all_reduce" in str(kb.run("ccl-allreduce").error)


def pes_of(name):
    return {(cube, pe) for _, cube, pe in run(name, small()).result.records.pes()}


def test_each_uses_the_pes_that_it_says():
    everyone = {(c, p) for c in range(CUBES) for p in range(PES)}
    assert pes_of("gemm-single-pe") == pes_of("qkv-gemm") == pes_of("matmul") == {(0, 0)}
    assert pes_of("qkv-gemm-multi-pe") == {(0, p) for p in range(PES)}
    assert pes_of("gpt3-qkv") == everyone
    assert pes_of("va-offset-verify") == {(c, p) for c in (0, 1) for p in range(PES)}


def test_four_pes_are_faster_than_one():
    def took(name):
        launches = kb.run(name, small()).result.launches
        return sum(x.end_ps - x.start_ps for x in launches)

    assert took("qkv-gemm-multi-pe") < took("qkv-gemm")


@pytest.mark.parametrize(("tokens", "d_model"), [(1, 96), (5, 100), (3, 7)])
def test_gpt3_has_the_sizes_that_it_is_given(tokens, d_model):
    outcome = kb.run("gpt3-qkv", small(), data=True, tokens=tokens, d_model=d_model)
    assert outcome.correctness == "PASSED"
    flops = outcome.result.records.of_kind("composite").flops.sum()
    assert flops == 3 * 2 * tokens * d_model * d_model


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f8e4m3fn", "f8e5m2", "i8"])
@pytest.mark.parametrize("variant", ["ref_ref", "load_ref", "load_load"])
def test_matmul_in_every_type_and_staging(dtype, variant):
    outcome = kb.run("matmul", small(), data=True, m=33, k=100, n=17, dtype=dtype, variant=variant)
    assert outcome.correctness == "PASSED"
    assert dict(outcome.result.manifest.parameters) == {"m": 33, "k": 100, "n": 17, "dtype": dtype, "variant": variant}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("matmul", {"m": 0}, r"bench matmul: m = 0 must be >= 1"),
        ("matmul", {"k": "x"}, r"bench matmul: k = 'x' must be a whole number"),
        ("matmul", {"dtype": "f15"}, r"bench matmul: dtype = 'f15' is unknown; did you mean f16\? known: f16, bf16"),
        ("matmul", {"rows": 3}, r"bench matmul: rows is no parameter of it; known: m, k, n, dtype, variant"),
        ("gpt3-qkv", {"tokens": 1.5}, r"bench gpt3-qkv: tokens = '1.5' must be a whole number"),
        ("qkv-gemm", {"m": 3}, r"bench qkv-gemm: m is no parameter of it; it has none"),
    ],
)
def test_options_are_checked_before_the_run(name, options, message):
    with pytest.raises(ConfigError, match=message):
        kb.run(name, small(), **options)


def test_a_variable_of_the_environment_is_the_default_of_an_option(monkeypatch):
    monkeypatch.setenv("CCL_N_ELEM", "24")
    assert kb.run("ccl-allreduce", small()).result.manifest.parameters["n_elem"] == 24
    assert kb.run("ccl-allreduce", small(), n_elem=8).result.manifest.parameters["n_elem"] == 8
    monkeypatch.setenv("CCL_N_ELEM", "1.5")
    with pytest.raises(ConfigError, match=r"environment: CCL_N_ELEM: n_elem = '1.5' must be a whole number"):
        kb.run("ccl-allreduce", small())


def test_tolerance_is_one_unit_in_the_last_place():
    def program(torch, error):
        expected = np.linspace(1, 2, 8, endpoint=False)
        got = torch.tensor(expected + error, dtype=torch.float16, device="ahbm")
        bench_runner.check(torch, "x", got, expected, rtol=2**-10)

    def correctness(error):
        return run_bench(topology=small(), bench_fn=lambda t: program(t, error), engine_factory=with_data).correctness

    assert correctness(2**-10) == "PASSED"
    assert correctness(2**-8) == "FAILED"


def test_a_mismatch_names_the_worst_element():
    def program(torch):
        got = torch.tensor([[1.0, 2.0], [3.0, 9.0]], device="ahbm")
        bench_runner.check(torch, "y", got, np.array([[1.0, 2.0], [3.5, 4.0]]), rtol=1e-3)

    error = kb.run(program, small(), data=True).error
    assert isinstance(error, VerificationError)
    assert str(error).startswith("y: 2 of 4 elements differ from numpy; the worst is [1, 1] = 9, expected 4 +- 0.004")


def test_values_that_are_no_numbers_are_wrong():
    def program(torch):
        bench_runner.check(torch, "y", torch.full((2,), float("nan"), device="ahbm"), np.array([1.0, np.nan]))

    assert "1 of 2 elements" in str(kb.run(program, small(), data=True).error)


def test_milestones_may_ask_nothing_of_the_machine(monkeypatch):
    from kernbench.benches import registry

    monkeypatch.setattr(registry, "_benches", {})

    @bench("report", "Writes a report", milestone=True)
    def run(torch):
        pass

    assert run_bench(topology=small(), bench_fn=registry._benches["report"]).completion == "OK"
