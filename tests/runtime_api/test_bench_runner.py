from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import kernbench as kb
from kernbench._dtypes import as_dtype
from kernbench.errors import KernelError, LimitError, VerificationError
from kernbench.runtime_api import _parts, bench_runner
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.sim_engine._limits import Expired, Watchdog
from kernbench.sim_engine.engine import GraphEngine
from tests.runtime_api.machines import small

with_data = partial(GraphEngine, enable_data=True)


def work(torch):
    torch.zeros(4, device="ahbm").fill_(1)


def test_a_bench_that_works():
    outcome = run_bench(topology=small(), bench_fn=work)
    assert (outcome.name, outcome.completion, outcome.correctness, outcome.error) == ("work", "OK", "NOT_CHECKED", None)
    assert outcome.ok
    assert outcome.result.name == "work"
    assert len(outcome.result.launches) == 1
    assert repr(outcome) == f"work: OK, numbers NOT_CHECKED\n{outcome.result!r}"
    assert "<b>work: OK, numbers NOT_CHECKED</b>" in outcome._repr_html_()


@pytest.mark.parametrize("program", [lambda torch: None, lambda torch: torch.zeros(4, device="ahbm")])
def test_a_bench_that_asks_for_nothing_fails(program):
    outcome = run_bench(topology=small(), bench_fn=program)
    assert outcome.completion == "NO_REQUESTS"
    assert not outcome.ok
    assert "NO_REQUESTS" in str(outcome.error)


def test_a_bench_whose_result_is_incomplete_fails():
    def leaves_work(torch):
        work(torch)
        torch.checks += 1
        torch.engine.env.call_at(10**9, str)

    outcome = run_bench(topology=small(), bench_fn=leaves_work, engine_factory=with_data)
    assert not outcome.result.complete
    assert (outcome.completion, outcome.correctness, outcome.ok) == ("FAILED", "NOT_CHECKED", False)
    assert "INCOMPLETE" in str(outcome.error)


@pytest.mark.parametrize(
    "program",
    [
        lambda torch: torch.zeros(4).to("ahbm"),
        lambda torch: torch.zeros(4, device="ahbm").numpy(),
        lambda torch: torch.zeros(4, device="ahbm").copy_(torch.zeros(4)),
    ],
)
def test_a_copy_is_a_request(program):
    assert run_bench(topology=small(), bench_fn=program).completion == "OK"


def test_checks_are_reported():
    def checks(torch, wrong):
        work(torch)
        torch.checks += 1
        if wrong:
            raise VerificationError("x[0] = 1, expected 2")

    right = run_bench(topology=small(), bench_fn=lambda torch: checks(torch, False), engine_factory=with_data)
    assert (right.completion, right.correctness, right.ok) == ("OK", "PASSED", True)
    wrong = run_bench(topology=small(), bench_fn=lambda torch: checks(torch, True), engine_factory=with_data)
    assert (wrong.completion, wrong.correctness, wrong.ok) == ("FAILED", "FAILED", False)
    assert repr(wrong).startswith("<lambda>: FAILED, numbers FAILED: x[0] = 1, expected 2\n")
    assert str(wrong.error) == "x[0] = 1, expected 2"
    assert not wrong.result.records.complete


def test_a_kernel_that_fails_is_an_outcome():
    def bad(x, *, tl):
        tl.load(x, shape=(1 << 20,))

    def program(torch):
        torch.launch("bad", bad, torch.zeros(4, device="ahbm"))

    outcome = run_bench(topology=small(), bench_fn=program)
    assert (outcome.completion, outcome.ok) == ("FAILED", False)
    assert isinstance(outcome.error, KernelError)


def test_a_bench_is_called_once_and_prints_as_it_goes(capsys):
    said = []

    def program(torch):
        print("begun")
        said.append(capsys.readouterr().out)
        work(torch)

    run_bench(topology=small(), bench_fn=program)
    assert said == ["begun\n"]


def test_a_bug_in_the_bench_is_raised():
    with pytest.raises(ZeroDivisionError):
        run_bench(topology=small(), bench_fn=lambda torch: 1 / 0)


def test_device():
    seen = []

    def program(torch):
        seen.append(torch.ahbm.current_device())
        work(torch)

    for device in ("all", "sip:1", None):
        run_bench(topology=small(), bench_fn=program, device=device)
    assert seen == [0, 1, 0]
    with pytest.raises(ValueError, match="sip:0 to sip:1"):
        run_bench(topology=small(), bench_fn=program, device="sip:2")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i8"])
def test_operands_and_products_are_those_of_one_part(monkeypatch, dtype):
    def made():
        with kb.session(small(), data=True) as torch:
            tensor, values = bench_runner.operand(torch, "a", (70, 30), as_dtype(dtype))
            assert values is not None
            return tensor.numpy(), values()

    whole, values = made()
    monkeypatch.setattr(_parts, "_PART", 256)
    in_parts, again = made()
    np.testing.assert_array_equal(in_parts, whole)
    np.testing.assert_array_equal(again, values)


def test_the_worst_of_all_parts_is_named(monkeypatch):
    monkeypatch.setattr(_parts, "_PART", 64)
    expected = np.zeros((30, 20))
    expected[3, 4], expected[17, 11], expected[29, 19] = 1.0, -5.0, 2.0
    with (
        kb.session(small(), data=True) as torch,
        pytest.raises(VerificationError, match=r"x: 3 of 600 .* the worst is \[17, 11\] = 0, expected -5 \+- 0"),
    ):
        bench_runner.check(torch, "x", torch.zeros(30, 20, device="ahbm"), expected)


def test_the_result_of_a_cancelled_run_is_made_only_if_it_is_asked_for():
    watchdog = Watchdog(lambda _: LimitError("cancelled"))
    torch = kb.session(small())

    def run():
        with torch:
            work(torch)
            torch.ahbm.synchronize()
            watchdog.start(0)
            while True:
                pass

    with pytest.raises(Expired):
        run()
    watchdog.close()
    assert torch._final is None
    assert not torch.result.complete
    assert len(torch.result.launches) == 1
