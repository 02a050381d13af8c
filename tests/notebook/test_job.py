"""A run in its thread is cancelled within a second wherever it is, and leaves no thread behind."""

from __future__ import annotations

import importlib
import sys
import threading
import time

import pytest

from kernbench._engine_selection import PACKAGE
from kernbench.notebook._job import Options, RunJob, _describe
from kernbench.sim_engine._limits import Limits
from kernbench.topology.builder import resolve_topology

LONG_S = 60


def started(loop):
    """Return a program's part that says when it is there, then does `loop` without an end."""
    there = threading.Event()

    def part(*args, **more):
        there.set()
        while True:
            loop(*args)

    return there, part


def reads(torch):
    torch.zeros(4, device="ahbm").numpy()


def catches(*_):
    try:
        time.sleep(0.001)
    except Exception:  # noqa: BLE001
        time.sleep(0)


def job(program, **more):
    ends = []
    made = RunJob(resolve_topology("preset:small"), program, "mine", Options(), lambda _: None, ends.append, **more)
    made.start()
    return made, ends


@pytest.mark.parametrize("phase", ["before", "program", "catching", "reads", "kernel", "rank", "after"])
def test_a_run_is_cancelled_in_each_phase(phase):
    there, part = started({"reads": reads, "catching": catches}.get(phase, lambda *_: None))
    more = {}

    def program(torch):
        if phase in ("program", "catching", "reads"):
            part(torch)
        elif phase == "kernel":
            torch.launch("k", lambda x, *, tl: part(), torch.zeros(4, device="ahbm"))
        elif phase == "rank":
            torch.multiprocessing.spawn(lambda _: part(), nprocs=1)
        elif phase == "after":
            torch.zeros(4, device="ahbm").numpy()
            torch.at_exit = part()

    if phase == "before":
        more["before"] = part
    run, ends = job(program, **more)
    assert there.wait(LONG_S)
    run.cancel()
    run.cancel()
    assert run.wait(LONG_S)
    assert [outcome.cancelled for outcome in ends] == [True]
    deadline = time.monotonic() + LONG_S
    while any(thread.name.startswith("kernbench") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread is left behind"
        time.sleep(0.01)


SLOW = """
import time
from tests.notebook import test_job
test_job.importing.set()
for _ in range(50):
    time.sleep(0.01)
whole = True
"""
importing = threading.Event()


def test_a_cancelled_run_leaves_no_module_half_imported(tmp_path, monkeypatch):
    (tmp_path / "imported_slowly.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)

    def program(torch):
        importlib.import_module("imported_slowly")
        while True:
            pass

    run, ends = job(program)
    assert importing.wait(LONG_S)
    run.cancel()
    assert run.wait(LONG_S)
    assert ends[0].cancelled
    assert sys.modules["imported_slowly"].whole


def test_a_limit_ends_a_run_and_says_where():
    _, ends = job(lambda torch: [reads(torch) for _ in iter(int, 1)], limits=Limits(events=3000))
    deadline = time.monotonic() + LONG_S
    while not ends:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "limit of 3,000 events" in ends[0].error
    assert "test_job.py" in ends[0].error


@pytest.mark.parametrize(
    "file", ["kernbench/sim_engine/_core.pyx", str(PACKAGE / "errors.py")], ids=["compiled", "not"]
)
def test_the_line_of_an_error_is_the_last_one_outside_the_package(file):
    space = {}
    exec(compile("def fail():\n    1 / 0", file, "exec"), space)
    with pytest.raises(ZeroDivisionError) as caught:
        space["fail"]()
    assert _describe(caught.value).endswith(", in test_the_line_of_an_error_is_the_last_one_outside_the_package)")
