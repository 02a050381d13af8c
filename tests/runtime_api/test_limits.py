"""Limits on events, simulated time and host time end a run, and the error names what was running."""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import kernbench as kb
from kernbench.errors import ConfigError, KernbenchError, KernelError, LimitError
from kernbench.runtime_api.context import session
from kernbench.sim_engine._limits import limited
from tests.runtime_api.machines import small

LINES = Path(__file__).read_text(encoding="utf-8").splitlines()


def line_of(mark: str) -> str:
    """Return "file:line" of the line with a comment."""
    (number,) = (i for i, line in enumerate(LINES, 1) if line.endswith(f"# {mark}"))
    return f"{__file__}:{number}"


def loop_of(mark: str) -> re.Pattern[str]:
    """Return what names the line with a comment or one next to it: the clock may end a loop at any of its lines."""
    file, _, number = line_of(mark).rpartition(":")
    return re.compile(rf"{re.escape(file)}:({int(number) - 1}|{number}|{int(number) + 1})\b")


# A busy host may take longer than a limit to get to what the limit is to end: then it is tried with a longer one.
begun = threading.Event()


def spins(x, *, tl):
    begun.set()
    while True:  # spins
        pass


def folds(x, *, tl):
    n = tl.arange(0, 4)
    begun.set()
    while True:
        n = n + 1  # folds


def issues(x, *, tl):
    begun.set()
    while True:
        tl.store(x, tl.load(x, shape=(4,)) + 1)  # issues


def catches(x, *, tl):
    begun.set()
    while True:
        with contextlib.suppress(Exception):
            sum(range(50))


def waits(x, *, tl):
    while True:
        tl.wait(tl.load(x, shape=(4,)))  # waits


def launched(kernel):
    def program(torch):
        x = torch.zeros(64, device="ahbm")
        torch.launch("k", kernel, x)
        x.numpy()

    return program


def error_of(program, limits) -> str:
    begin = time.process_time()
    with pytest.raises(LimitError) as caught, session(small(), data=True, limits=limits) as torch:
        program(torch)
    assert time.process_time() - begin < 20
    assert not torch.result.records.complete
    return str(caught.value)


def at_last(run):
    """Return what `run(limits)` returns, with a limit on host time within which `begun` is set."""
    host_s = 0.2
    while True:
        begun.clear()
        found = None
        try:
            found = run({"host_s": host_s})
        except BaseException:
            if begun.is_set():
                raise
        if begun.is_set():
            return found
        host_s *= 2
        assert host_s < 30, "it never begins"


@pytest.mark.parametrize("kernel", [spins, folds, issues])
def test_host_time_ends_a_kernel_that_never_returns_to_the_engine(kernel):
    told = at_last(lambda limits: error_of(launched(kernel), limits))
    assert re.search(r"over its limit of [\d.]+ s of host time \(limits\.host_s\)", told)
    assert loop_of(kernel.__name__).search(told)
    assert "sip0.cube0.pe0" in told


def test_an_except_clause_in_a_loop_does_not_save_it():
    assert "kernel catches" in at_last(lambda limits: error_of(launched(catches), limits))


@pytest.mark.parametrize("kernel", [issues, waits])
@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"events": 500}, "limit of 500 events (limits.events)"),
        ({"simulated_ns": 1500}, "limit of 1,500 ns of simulated time (limits.simulated_ns)"),
    ],
)
def test_events_and_simulated_time_end_a_kernel(kernel, limits, told):
    error = error_of(launched(kernel), limits)
    assert told in error
    assert line_of(kernel.__name__) in error


def test_a_run_within_its_limits_is_not_touched():
    def times(limits):
        with session(small(), limits=limits) as torch:
            for _ in range(10):
                torch.zeros(64, device="ahbm").numpy()
        return torch.engine.now_ns, torch.engine.env.events

    assert times(None) == times({"events": 10**9, "simulated_ns": 1e12, "host_s": 600})


def test_the_host_program_is_named_by_its_line():
    def reads(torch):
        x = torch.zeros(4, device="ahbm")
        begun.set()
        while True:
            x.numpy()  # reads

    def hangs(torch):
        begun.set()
        while True:  # hangs
            pass

    assert f"{line_of('reads')}, in reads" in error_of(reads, {"events": 3000})
    for program in (reads, hangs):
        told = at_last(lambda limits, program=program: error_of(program, limits))
        assert loop_of(program.__name__).search(told)
        assert f", in {program.__name__}" in told


def rank_error(body, limits) -> str:
    with pytest.raises(LimitError) as caught, session(small(), data=True, limits=limits) as torch:
        torch.multiprocessing.spawn(body, (torch,), nprocs=2)
    return str(caught.value)


def test_a_rank_that_never_waits_is_named_by_number_and_line():
    def body(rank, torch):
        torch.zeros(4, device="ahbm").numpy()
        if rank == 1:
            begun.set()
        while rank == 1:  # rank spins
            pass

    told = at_last(lambda limits: rank_error(body, limits))
    assert re.search(f"rank 1 at {loop_of('rank spins').pattern}, in body", told)


@pytest.mark.parametrize("limits", [None, {"events": 3000}, {"simulated_ns": 20_000}])
def test_ranks_that_wait_for_ever_are_named_by_number_and_line(limits):
    def body(rank, torch):
        x = torch.zeros(4, device="ahbm")
        for i in itertools.count():
            begun.set() if i == 3 else None  # by then the other one reads, too
            x.numpy()  # rank reads

    told = at_last(lambda host: rank_error(body, limits or host))
    for rank in (0, 1):
        assert re.search(f"rank {rank} at {loop_of('rank reads').pattern}, in body", told)


def test_it_works_in_a_thread_and_leaves_other_threads_alone():
    found = []

    def work():
        try:
            at_last(lambda limits: error_of(launched(spins), limits))
        except BaseException as error:  # noqa: BLE001
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with session(small(), data=True) as torch:
        while thread.is_alive():
            assert torch.ones(4, device="ahbm").tolist() == [1, 1, 1, 1]
    assert found == []


DEBUGGED = """
import sys
import kernbench as kb
from kernbench.errors import LimitError

def endless(x, *, tl):
    while True:
        pass

try:
    with kb.session("preset:small", limits=kb.Limits(host_s=0.05)) as torch:
        torch.launch("k", endless, torch.empty(4, device="ahbm"))
        torch.ahbm.synchronize()
except LimitError:
    sys.settrace(lambda *_: None)
    (lambda: 0)()
    print("traced")
"""


def test_a_debugger_can_trace_after_a_limit():
    ran = subprocess.run([sys.executable, "-c", DEBUGGED], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "traced\n"


def test_nothing_is_raised_after_the_session():
    for _ in range(30):
        with contextlib.suppress(LimitError), session(small(), limits={"host_s": 0.05}):
            pass
    time.sleep(0.5)  # the watchdogs of sessions that went on would bark by now
    assert not [thread for thread in threading.enumerate() if thread.name == "kernbench watchdog"]


def test_sessions_inside_a_limit_are_held_to_the_smaller_one():
    with limited(kb.Limits(events=3000)):
        assert "3,000 events" in error_of(launched(waits), None)
        assert "2,000 events" in error_of(launched(waits), {"events": 2000})
        assert "3,000 events" in error_of(launched(waits), {"events": 9000})
    with session(small(), data=True) as torch:
        for _ in range(500):
            torch.ones(4, device="ahbm").numpy()
    assert torch.engine.env.events > 3000


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"events": 0}, "limits.events = 0 must be a number > 0"),
        ({"host_s": float("nan")}, "limits.host_s = nan must be a number > 0"),
        ({"simulated_ns": "1"}, "limits.simulated_ns = '1' must be a number > 0"),
        ({"event": 1}, "limits.event is unknown; did you mean events"),
        (5, "limits = 5 must be kb.Limits"),
    ],
)
def test_limits_that_mean_nothing_are_refused(limits, told):
    with pytest.raises(ConfigError) as caught:
        session(small(), limits=limits)
    assert told in str(caught.value)


def test_a_bench_and_the_sessions_it_opens_are_limited():
    def opens(torch):
        with session(small(), data=True) as inner:
            launched(waits)(inner)

    for bench in (launched(waits), opens):
        done = kb.run(bench, small(), limits=kb.Limits(events=3000))
        assert not done.ok
        assert isinstance(done.error, KernbenchError)
        assert "limit of 3,000 events" in str(done.error)


def test_a_run_leaves_the_collector_as_it_was():
    before = gc.get_threshold()
    try:
        gc.set_threshold(777, 11, 12)
        with session(small(), data=True) as torch:
            torch.zeros(64, device="ahbm").numpy()
            assert gc.get_threshold() == (777, 11, 12)
            torch.launch("k", lambda x, *, tl: 1 // 0, torch.zeros(4, device="ahbm"))
            with pytest.raises(KernelError, match="ZeroDivisionError"):
                torch.ahbm.synchronize()
        assert gc.get_threshold() == (777, 11, 12)
    finally:
        gc.set_threshold(*before)


def test_a_limit_on_simulated_time_is_exact_to_a_picosecond():
    def run(limits):
        with session(small(), limits=limits) as torch:
            x = torch.empty(64, dtype=torch.float16, device="ahbm")
            torch.launch("load", lambda x, *, tl: tl.load(x, shape=(64,)), x)
        return torch.engine.env.now

    end = run(None)
    assert run({"simulated_ns": end / 1000}) == end
    with pytest.raises(LimitError, match=r"limits\.simulated_ns"):
        run({"simulated_ns": (end - 1) / 1000})
