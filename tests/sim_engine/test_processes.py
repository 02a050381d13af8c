"""A user's SimPy processes on the clock of a machine."""

from __future__ import annotations

import pytest
import simpy

from kernbench.errors import ArgumentError, StateError
from kernbench.runtime_api.context import session


def read(x, *, tl):
    tl.load(x, shape=(8,), dtype="f16")


def launched(torch) -> None:
    torch.launch("read", read, torch.zeros(8, dtype=torch.float16, device="ahbm"))


def every(env, period_ps, heard):
    while True:
        yield env.timeout(period_ps)
        heard.append(env.now)


def test_a_process_runs_next_to_the_machine_and_leaves_its_times_alone():
    heard, results = [], []
    for processes in (0, 1):
        with session("preset:small") as torch:
            env = torch.engine.env
            assert isinstance(env, simpy.Environment)
            for _ in range(processes):
                env.process(every(env, 100_000, heard))
            launched(torch)
        results.append(torch.result)
    plain, observed = results
    assert [(x.name, x.start_ps, x.end_ps) for x in observed.launches] == [
        (x.name, x.start_ps, x.end_ps) for x in plain.launches
    ]
    assert heard == list(range(100_000, int(plain.launches[0].end_ps) + 1, 100_000))
    assert observed.complete  # the process never ends, the run does
    assert observed.why()


def test_a_process_waits_for_the_machine_and_asks_it_for_more():
    with session("preset:small") as torch:
        env, ends = torch.engine.env, []

        def follow():
            yield env.timeout(5_000_000)
            yield torch.engine.launch(0, [(0, 0)], lambda *, tl: None, (), "from a process").done
            ends.append(env.now)

        env.process(follow())
        launched(torch)
        torch.engine.run()
        assert [launch.name for launch in torch.result.launches] == ["read", "from a process"]
        assert ends == [torch.result.launches[-1].end_ps]


def test_simultaneous_events_happen_in_the_order_in_which_they_were_asked_for():
    with session("preset:small") as torch:
        env, heard = torch.engine.env, []

        def wait(name, delay):
            yield env.timeout(delay)
            heard.append((name, env.now))

        for name, delay in (("b", 2000), ("a", 2000), ("first", 1000)):
            env.process(wait(name, delay))
        env.timer(2000).callbacks.append(lambda _: heard.append(("timer", env.now)))
        launched(torch)
    assert heard == [("first", 1000), ("timer", 2000), ("b", 2000), ("a", 2000)]


def test_an_error_of_a_process_ends_the_run():
    def fail(env):
        yield env.timeout(1000)
        raise ValueError("the injector has no target")

    opened = session("preset:small")

    def failing() -> None:
        with opened as torch:
            torch.engine.env.process(fail(torch.engine.env))
            launched(torch)
            torch.ahbm.synchronize()

    with pytest.raises(ValueError, match="the injector has no target"):
        failing()
    with pytest.raises(StateError, match="ended with an error"):
        opened.engine.run()


def test_the_clock_counts_whole_picoseconds():
    with session("preset:small") as torch:
        torch.engine.env.timeout(3.9e6)
        with pytest.raises(ArgumentError, match=r"delay of 0\.5: the clock counts whole picoseconds; use round"):
            torch.engine.env.timeout(0.5)
