"""Autotuning: the fastest of all configurations, pruning, and what does not fit."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

import kernbench as kb
from kernbench.errors import KernelError
from kernbench.triton._arguments import TypedPointer
from kernbench.triton._autotune import autotune
from kernbench.triton._module import Autotuner, Config
from kernbench.triton._session import on

M, N, K = 48, 40, 64


def operands():
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((M, K), (K, N)))
    return a, b, np.zeros((M, N), np.float16)


def arguments(a, b, c):
    return (a, b, c, M, N, K, K, 1, N, 1, N, 1)


def grid(meta):
    return (-(-M // meta["BM"]) * -(-N // meta["BN"]),)


def alone(machine, kernel, values):
    """The time of one configuration, by a launch of its own."""
    with kb.session(machine) as torch, on(torch):
        kernel[grid](*arguments(*operands()), **values)
    [launch] = torch.result.launches
    return (launch.end_ps - launch.start_ps) / 1000


def test_the_table_is_that_of_an_exhaustive_search(kernels, machine):
    tuner = kernels.matmul
    expected = [(alone(machine, tuner.fn, config.kwargs), config.kwargs) for config in tuner.configs]
    with kb.session(machine) as torch:
        found = autotune(tuner, grid, *arguments(*operands()), torch=torch)
        assert torch.result.launches == ()
    assert [(trial.ns, trial.values) for trial in found] == sorted(expected, key=lambda pair: pair[0])
    assert len({ns for ns, _ in expected}) == len(expected), "the configurations differ in time"
    assert all(trial.limit for trial in found)


def test_a_launch_takes_the_fastest(kernels, machine):
    a, b, c = operands()
    best = min(alone(machine, kernels.matmul.fn, config.kwargs) for config in kernels.matmul.configs)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.matmul[grid](*arguments(a, b, c))
    [launch] = torch.result.launches
    assert (launch.end_ps - launch.start_ps) / 1000 == best
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.astype(np.float32), rtol=4e-3, atol=4e-3)


def test_what_does_not_fit_is_infinite_and_says_why(kernels, machine):
    configs = [{"BM": 4096, "BN": 2048, "BK": 16}, {"BM": 16, "BN": 16, "BK": 16}]
    with kb.session(machine):
        found = autotune(kernels.matmul.fn, grid, *arguments(*operands()), configs=configs)
        assert [trial.ns == inf for trial in found] == [False, True]
        assert "4096" in found[1].limit
        with pytest.raises(KernelError, match=r"no configuration can run: .*4096"):
            autotune(kernels.matmul.fn, grid, *arguments(*operands()), configs=configs[:1])


def test_a_configuration_that_fails_a_static_assert_is_infinite(kernels, machine):
    x = np.ones((4, 7), np.float32)
    with kb.session(machine):
        found = autotune(kernels.softmax, (4,), x, np.zeros_like(x), 4, 7, 7, configs=[{"BLOCK": 4}, {"BLOCK": 8}])
    assert [(trial.values["BLOCK"], trial.ns == inf) for trial in found] == [(8, False), (4, True)]
    assert "static_assert failed: BLOCK is at least 8" in found[1].limit


def test_pruning_rules_are_asked(kernels, machine):
    seen = []

    def early(configs, named, **kwargs):
        seen.append((named["M"], kwargs))
        return configs[1:]

    def model(BM, **_):
        return BM

    configs = [Config({"BM": n, "BN": 16, "BK": 16}) for n in (8, 64, 16, 32)]
    rules = {"early_config_prune": early, "perf_model": model, "top_k": 2}
    tuner = Autotuner(kernels.matmul.fn, configs, ["M"], rules)
    with kb.session(machine):
        found = autotune(tuner, grid, *arguments(*operands()), ACTIVATION="leaky")
    assert sorted(trial.values["BM"] for trial in found) == [16, 32]
    assert seen == [(M, {"ACTIVATION": "leaky"})]
    nothing = Autotuner(kernels.matmul.fn, configs, ["M"], {"early_config_prune": lambda *_, **__: []})
    with kb.session(machine), pytest.raises(KernelError, match="leaves no configuration"):
        autotune(nothing, grid, *arguments(*operands()))


def test_hooks_of_configurations_are_called(kernels, machine):
    called = []
    configs = [Config({"BM": 16, "BN": 16, "BK": 16}, pre_hook=lambda named: called.append(named["BM"]))]
    tuner = Autotuner(kernels.matmul.fn, [*configs, Config({"BM": 32, "BN": 32, "BK": 16})], ["M"])
    with kb.session(machine) as torch, on(torch):
        tuner[grid](*arguments(*operands()))
    assert called[0] == 16


def test_device_tensors_are_tried_where_they_are(kernels, machine):
    dp = kb.DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)
    with kb.session(machine, data=True) as torch, on(torch):
        a, b, c = (torch.tensor(x, dp=dp) for x in operands())
        kernels.matmul[grid](*arguments(a, b, c))
        assert np.abs(c.numpy() - a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)).max() < 0.05
        [launch] = torch.result.launches
    found = autotune_again(machine, kernels, dp)
    assert (launch.end_ps - launch.start_ps) / 1000 == pytest.approx(found.best.ns, rel=0.05)


def autotune_again(machine, kernels, dp):
    with kb.session(machine) as torch:
        return autotune(kernels.matmul, grid, *arguments(*(torch.tensor(x, dp=dp) for x in operands())))


def test_the_table_shows_itself(kernels, machine):
    with kb.session(machine):
        found = autotune(kernels.matmul, grid, *arguments(*operands()))
    text, html = str(found), found._repr_html_()
    assert text.splitlines()[0] == "matmul: 3 configurations, the fastest first"
    for trial in found:
        assert f"{trial.ns:,.2f}" in text
        assert f"{trial.ns:,.2f}" in html


def test_without_configurations_it_is_refused(kernels, machine):
    with kb.session(machine), pytest.raises(ValueError, match="no configurations"):
        autotune(kernels.add, (1,), np.zeros(4, np.float32))


def test_a_value_of_a_configuration_is_not_given_twice(kernels, machine):
    with kb.session(machine), pytest.raises(ValueError, match="'BM' is set by a configuration, and by the launch"):
        autotune(kernels.matmul, grid, *arguments(*operands()), BM=16)


def test_pointers_into_device_tensors(kernels, machine):
    with kb.session(machine, data=True) as torch:
        spread = kb.DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)
        x, out = torch.ones(64, dp=spread), torch.zeros(64, dp=spread)
        pointer = TypedPointer(out, 128, "f32")
        table = kb.triton.autotune(kernels.add, (4,), x, x, pointer, 32, configs=[{"BLOCK": 8}, {"BLOCK": 16}])
        assert len(table) == 2
        assert out.numpy().tolist() == [0] * 64
        with kb.triton.on(torch):
            kernels.add[(4,)](x, x, pointer, 32, BLOCK=8)
        assert out.numpy().tolist() == [0] * 32 + [2] * 32


def test_the_tuner_knows_its_best_configuration(kernels, machine):
    a, b, c = operands()
    with kb.session(machine) as torch, kb.triton.on(torch):
        kernel = kernels.matmul[grid](a, b, c, M, N, K, K, 1, N, 1, N, 1)
        best = kernels.matmul.best_config
        kernel[grid(best.kwargs)](a, b, c, M, N, K, K, 1, N, 1, N, 1)
    assert best in kernels.matmul.configs
    assert len(torch.result.launches) == 2
