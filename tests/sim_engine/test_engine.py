"""Running an engine: to the end, step by step, in ticks, into a deadlock, an error, an interrupt."""

from __future__ import annotations

import gc
import weakref

import pytest
import simpy

from kernbench._dtypes import float16
from kernbench.components._command import Value
from kernbench.errors import DeadlockError, KernbenchError, KernelError
from kernbench.sim_engine._observer import Observer
from kernbench.sim_engine.engine import GraphEngine
from tests.components.one_pe import engine_of, gemm, launch, pointer, run

PRODUCT = gemm(64, 128, 64, "ref_ref")


def digest_of(engine: GraphEngine) -> str:
    return engine.records().digest()


def queued(**options):
    """Return an engine with a product sent and nothing run, and the launch."""
    engine = engine_of(log="tile", **options)
    return engine, engine.launch(0, [(0, 0)], PRODUCT, (), "kernel")


def test_run_step_wait_and_ticks_lead_to_the_same_end():
    ways = []
    engine, sent = queued()
    engine.wait(sent.done)
    ways.append(digest_of(engine))
    engine, _ = queued()
    engine.run()
    ways.append(digest_of(engine))
    engine, sent = queued()
    while not sent.done.processed:
        engine.step()
    ways.append(digest_of(engine))
    engine, sent = queued()
    assert list(engine.ticks(every_ms=0, until=sent.done))
    ways.append(digest_of(engine))
    assert len(set(ways)) == 1


def test_wait_stops_at_its_event_and_gives_its_value():
    engine, sent = queued()
    timer = engine.env.timer(1000, "now")
    assert engine.wait(timer) == "now"
    assert engine.env.now == 1000
    assert not sent.done.triggered
    assert engine.wait(timer) == "now", "what has happened is not waited for"
    engine.wait(sent.done)


def test_a_stock_simpy_process_runs_beside_it():
    engine, sent = queued()
    seen = []

    def process():
        for _ in range(3):
            yield engine.env.timeout(100)
            seen.append(engine.env.now)
        yield sent.done
        seen.append(engine.env.now)

    ended = engine.env.process(process())
    engine.wait(ended)
    assert seen == [100, 200, 300, engine.env.now]
    alone, other = queued()
    alone.wait(other.done)
    assert engine.env.now == alone.env.now
    engine.run()


def test_ticks_tell_how_far_it_is():
    engine, sent = queued()
    ticks = list(engine.ticks(every_ms=0, until=sent.done))
    assert [tick.now_ns for tick in ticks] == sorted(tick.now_ns for tick in ticks)
    assert [tick.finished for tick in ticks] == [False] * (len(ticks) - 1) + [True]
    last = ticks[-1]
    assert (last.done, last.total, last.now_ns, last.events) == (1, 1, engine.now_ns, engine.env.events)
    assert last.busy_ns["pe_gemm"] == 8 * 16


def test_a_tick_in_the_middle_sees_a_part():
    engine, _ = queued()
    engine.wait(engine.env.timer(next(iter(engine.launches)).sent_ps + 250_000))
    [tick] = engine.ticks(every_ms=10_000, until=engine.env.timer(engine.env.now))
    assert 0 < tick.busy_ns["pe_gemm"] < 8 * 16
    assert (tick.done, tick.total) == (0, 1)


class Ear(Observer):
    def __init__(self) -> None:
        self.heard = []

    def launch_sent(self, launch) -> None:
        self.heard.append(("sent", launch.name))

    def launch_done(self, launch) -> None:
        self.heard.append(("done", launch.name, launch.end_ps))

    def tick(self, tick) -> None:
        self.heard.append(("tick", tick.finished))


def test_observers_hear_and_change_nothing():
    ear = Ear()
    engine, sent = queued(observers=[ear])
    list(engine.ticks(every_ms=10_000, until=sent.done))
    assert ear.heard == [("sent", "kernel"), ("done", "kernel", engine.env.now), ("tick", True)]
    quiet, other = queued()
    quiet.wait(other.done)
    assert digest_of(quiet) == digest_of(engine)


def stuck(tl) -> None:
    """Wait for something that nobody will complete."""
    tl.load(pointer(), shape=128)
    tl._block(Value((3, 5), float16))


def test_a_deadlock_names_who_waits_for_what_and_since_when():
    engine = engine_of()
    sent = engine.launch(0, [(0, 0), (0, 5)], stuck, (), "stuck")
    with pytest.raises(DeadlockError) as caught:
        engine.wait(sent.done)
    text = str(caught.value)
    assert "sip0.cube0.pe0" in text
    assert "sip0.cube0.pe5" in text
    assert "'stuck'" in text
    assert "(3, 5)" in text
    assert f"since {sent.start_ps / 1000:,.2f} ns" in text


def test_run_finds_the_deadlock_too():
    engine = engine_of()
    engine.launch(0, [(0, 0)], stuck, (), "stuck")
    with pytest.raises(DeadlockError):
        engine.run()


def test_an_event_that_never_comes_is_a_deadlock_of_the_host():
    engine = engine_of()
    with pytest.raises(DeadlockError, match="host"):
        engine.wait(simpy.Event(engine.env))


def test_after_a_deadlock_nothing_runs_and_no_program_is_left():
    engine = engine_of()
    ended = []

    def kernel(tl) -> None:
        try:
            stuck(tl)
        finally:
            ended.append(True)

    with pytest.raises(DeadlockError):
        launch(engine, kernel)
    assert ended == [True], "a kernel's own clean-up runs"
    assert not engine.programs
    assert not engine.records().complete
    with pytest.raises(KernbenchError, match="open a new session"):
        engine.launch(0, [(0, 0)], PRODUCT, (), "more")


def broken(tl) -> None:
    """Fail after a first command."""
    tl.load(pointer(), shape=128)
    raise ValueError("no such luck")


def test_a_kernels_exception_names_file_line_and_pe():
    engine = engine_of()
    with pytest.raises(KernelError, match="no such luck") as caught:
        launch(engine, broken, (0, 3))
    line = broken.__code__.co_firstlineno + 3
    assert f"{__file__}:{line}" in str(caught.value)
    assert "sip0.cube0.pe3" in str(caught.value)
    cause = caught.value
    while cause.__cause__ is not None:
        cause = cause.__cause__
    assert isinstance(cause, ValueError)


def test_after_an_exception_the_part_done_is_there_and_marked():
    engine = engine_of(log="tile")
    launch(engine, PRODUCT)
    before = len(engine.records())
    with pytest.raises(KernelError):
        launch(engine, broken)
    records = engine.records()
    assert len(records) >= before
    assert not records.complete
    with pytest.raises(KernbenchError, match="no such luck"):
        engine.run()


def interrupted_at(t: int):
    engine, sent = queued()

    def press(_: object) -> None:
        raise KeyboardInterrupt

    engine.env.call_at(t, press)
    with pytest.raises(KeyboardInterrupt):
        engine.wait(sent.done)
    return engine, sent


def test_an_interrupt_leaves_the_part_done():
    whole, sent = queued()
    whole.wait(sent.done)
    engine, _ = interrupted_at(whole.env.now // 2 + 100_000)
    records = engine.records()
    assert not records.complete
    assert 0 < len(records) < len(whole.records())
    assert engine.env.now == whole.env.now // 2 + 100_000


def test_an_interrupted_run_can_go_on_to_the_same_end():
    whole, sent = queued()
    whole.wait(sent.done)
    engine, sent = interrupted_at(300_000)
    engine.wait(sent.done)
    assert engine.env.now == whole.env.now
    assert digest_of(engine) == digest_of(whole)


def test_an_engine_that_nobody_needs_is_freed():
    engine = run(PRODUCT)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
