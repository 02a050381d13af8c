"""What only the compiled core can get wrong: integers of 64 bits, objects in C arrays, long slices of host time."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from kernbench.sim_engine._network import ENGINE, Core
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology._naming import HOST, hbm, pe_dma
from kernbench.topology.builder import resolve_topology
from tests.sim_engine.adapter import Engine

pytestmark = pytest.mark.skipif(ENGINE != "core", reason="needs the compiled core: run `make core`")
MACHINE = resolve_topology("preset:small")
SRC, DST = pe_dma(0, 0, 0), hbm(0, 0, 1)


def test_a_time_past_the_range_is_an_error():
    core = Core()
    core.call_at((1 << 62) - 1, print)
    for t in (1 << 62, 1 << 80):
        with pytest.raises(OverflowError):
            core.call_at(t, print)


def test_a_message_that_ends_past_the_range_is_an_error():
    engine = Engine(resolve_topology("preset:small", {"system.pcie.bw_gbs": 1e-9}))
    with pytest.raises(OverflowError, match="past"):
        engine.send(HOST, DST, 1 << 50, lambda: None)


def test_the_past_and_no_flits_are_refused():
    engine = Engine(MACHINE)
    core = engine.network.core
    core.call_at(5, lambda _: None)
    core.drain(10)
    with pytest.raises(ValueError, match="4 ps has passed"):
        core.call_at(4, print)
    links = engine.network.route(SRC, DST).links
    with pytest.raises(ValueError, match="0 flits"):
        core.put(links, 0, 256, 0, None, None)


def test_an_abandoned_run_is_collected():
    def run() -> Any:
        engine = Engine(MACHINE)
        for i in range(20):
            engine.read(SRC, DST, 4096 * i, 4096, lambda engine=engine: None)
            engine.write(SRC, DST, 4096 * i, 4096, lambda engine=engine: None)
        engine.network.core.drain(7)
        assert len(engine.network.core)
        return weakref.ref(engine.engine)

    left = run()
    gc.collect()
    assert left() is None


def test_what_was_called_is_released():
    class Marked:
        pass

    core = Core()
    mark = Marked()
    seen = weakref.ref(mark)
    core.call_at(1, lambda _: None, mark)
    core.call_at(2, lambda _: None, mark)
    del mark
    core.drain(1)
    assert seen() is not None
    core.drain(1)
    assert seen() is None


def test_a_slice_ends_in_time_and_changes_no_time():
    core = Core()
    ticks = []

    def again(_: object) -> None:
        ticks.append(core.now)
        if len(ticks) < 300_000:
            core.call_at(core.now + 1, again)

    core.call_at(0, again)
    slices = 1
    while core.drain(1 << 40):
        slices += 1
    assert ticks == list(range(300_000))
    assert slices > 1


def test_an_error_in_a_call_leaves_the_calendar_whole():
    core = Core()
    found = []
    core.call_at(1, lambda _: 1 // 0)
    core.call_at(2, found.append, "later")
    with pytest.raises(ZeroDivisionError):
        core.drain(10)
    assert not core.drain(10)
    assert found == ["later"]
    assert core.events == 2


def test_clear_forgets_everything():
    engine = GraphEngine(MACHINE)
    core = engine.env.core
    found = []
    core.call_at(1, found.append, 1)
    core.clear()
    assert not len(core)
    assert core.peek() == float("inf")
    core.call_at(2, found.append, 2)
    core.drain(10)
    assert found == [2]
