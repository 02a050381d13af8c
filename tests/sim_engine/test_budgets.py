"""Speed as counts: what an engine does for a tile, a flit and a message, exactly or at most.

Seconds are measured by `python -m benchmarks`; these numbers are the same on every host. A change that raises one
makes every run slower, and needs a reason.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from kernbench._units import flits
from kernbench.sim_engine._network import ENGINE, Clock
from kernbench.sim_engine._transaction import Transaction
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology._naming import pe_dma
from kernbench.topology.builder import resolve_topology
from tests.components import queues_under_test
from tests.components.one_pe import gemm, pointer, run
from tests.reference.traffic import play, random_machine, random_traffic
from tests.sim_engine.adapter import Engine
from tests.sim_engine.test_shared_memory import LLC, cached

SIZE, TILES, OUTPUTS = 512, 2048, 256
# Two links lie between a PE and its slice. A tile of 4 KiB is 16 flits, with a command of 1 before it; an output
# tile of 2 KiB is 8, with an acknowledgement of 1 behind it; an operand of 512 KiB is 2048.
READ, WRITE, OPERAND = 2 * (1 + 16), 2 * (8 + 1), 2 * (1 + 2048)


def product(variant: str):
    return run(gemm(SIZE, SIZE, SIZE, variant), log="tile")


def nothing(tl) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("variant", "flits", "events_per_tile"),
    [
        ("ref_ref", 2 * READ * TILES + WRITE * OUTPUTS, {"core": 8.6, "definition": 78}),
        ("load_ref", READ * TILES + WRITE * OUTPUTS + OPERAND, {"core": 5.6, "definition": 42}),
        ("load_load", WRITE * OUTPUTS + 2 * OPERAND, {"core": 0.6, "definition": 7}),
    ],
)
def test_every_flit_is_reserved_and_tiles_take_few_events(variant, flits, events_per_tile):
    engine = product(variant)
    assert engine.network.core.reservations - run(nothing).network.core.reservations == flits
    assert engine.env.events <= events_per_tile[ENGINE] * TILES


@pytest.mark.parametrize("nbytes", [256, 4096])
def test_a_message_alone_takes_one_event_in_the_core(nbytes):
    # Nothing else is under way to any of its twelve links. The definition takes an event for each link and flit.
    engine, ends = Engine(resolve_topology("preset:default")), []
    engine.send("sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm_ctrl.pe7", nbytes, lambda: ends.append(engine.now))
    engine.run()
    assert engine.network.core.reservations == 12 * flits(nbytes)
    assert engine.engine.env.events == {"core": 1, "definition": 12 * flits(nbytes)}[ENGINE]


@pytest.mark.parametrize("seed", range(4))
def test_most_flits_need_no_event_on_most_links_in_the_core(seed):
    machine = random_machine(f"budget {seed}")
    engine = Engine(machine)
    play(engine, random_traffic(machine, seed, ("send",), 10))
    share = {"core": 0.4, "definition": 1.01}[ENGINE]
    assert engine.engine.env.events <= share * engine.network.core.reservations


def test_flits_that_take_links_one_by_one_share_their_trains():
    # Three streams of 1,024 flits meet; most wait for the last link, or are on their way over it.
    engine, seen = Engine(resolve_topology("preset:default")), []
    core = engine.engine.env.core
    for pe in (1, 4, 7):
        engine.send(pe_dma(0, 0, pe), pe_dma(0, 0, 0), 256 * 1024, lambda: None)

    def trains() -> int:
        return sum(type(x).__name__ == "Train" for x in gc.get_objects())

    before = trains()
    engine.engine.env.call_at(1_000_000, lambda _: seen.append((len(core), trains() - before)))
    engine.run()
    ((entries, more),) = seen
    assert entries > 900
    assert more < 20


def test_a_log_of_tiles_has_a_row_a_stage():
    rows = product("ref_ref").records()
    # Per tile two reads, a fetch, a product; per output tile a store and a write; the composite and the launch.
    assert len(rows) == 4 * TILES + 2 * OUTPUTS + 2


def requests_of(n: int) -> tuple[float, float, float]:
    """Blocks of memory of each of `n` reads of two cached lines, on the way and while looked up; its events."""
    engine = Engine(cached())
    core, clock, memory = engine.network.core, engine.engine.env, engine.engine.memory_at(LLC)
    route = engine.network.route(pe_dma(0, 0, 0), LLC)

    def ask() -> None:
        for _ in range(n):
            engine.network.read(Transaction(2048, 0, ended), route, memory)

    def ended(_: Transaction) -> None:
        pass

    ask()
    engine.run()  # the lines are there, and what is made once
    gc.collect()
    gc.disable()
    try:
        before, events = sys.getallocatedblocks(), clock.events
        ask()
        on_the_way = sys.getallocatedblocks() - before
        while clock.events < events + n:
            core.drain(1)
        looked_up = sys.getallocatedblocks() - before
        engine.run()
    finally:
        gc.enable()
    return round(on_the_way / n, 2), round(looked_up / n, 2), (clock.events - events) / n  # lists grow now and then


def test_a_request_at_a_cache_takes_few_objects_and_four_events():
    on_the_way, looked_up, events = requests_of(1000)
    assert on_the_way <= {"core": 6, "definition": 9.5}[ENGINE]
    assert looked_up <= {"core": 5, "definition": 11.5}[ENGINE]
    assert events == {"core": 4, "definition": 19}[ENGINE]


def copies(n: int) -> GraphEngine:
    def kernel(tl) -> None:
        for i in range(n):
            tl.store(pointer(8192 * i), tl.load(pointer(8192 * i + 4096), shape=(2048,)))

    return run(kernel)


def messages(n: int) -> GraphEngine:
    """Send `n` messages of a slot from each of two PEs to the other, one by one."""

    def swap(direction: str):
        def kernel(tl) -> None:
            mine = tl.full((2048,), 1.0, dtype=tl.float16) + 0
            for _ in range(n):
                tl.send(direction, mine)
                tl.recv(direction, shape=(2048,))

        return kernel

    return queues_under_test.run({(0, 0, 0): swap("E"), (1, 0, 0): swap("W")}, (queues_under_test.FAR,))


def cycles_of(work: Callable[[int], GraphEngine], n: int) -> int:
    """Return how many objects only the cycle collector frees after some work."""
    gc.collect()
    gc.disable()
    try:
        engine = work(n)
        found = gc.collect()
    finally:
        gc.enable()
    assert engine.complete
    return found


@pytest.mark.parametrize("work", [copies, messages])
def test_commands_leave_no_reference_cycles(work):
    cycles_of(work, 1)  # what is made once, on first use
    assert cycles_of(work, 40) == cycles_of(work, 4)


def test_a_message_between_pes_takes_six_events_in_the_core():
    # It leaves, arrives, is in its slot, is looked for and is received; its credit arrives. The definition has one a
    # flit and link.
    events = (messages(60).env.events - messages(20).env.events) / 80
    assert events == {"core": 6, "definition": 206}[ENGINE]


def test_an_idle_clock_does_nothing():
    clock = Clock()
    assert clock.core.drain(10) is False
    assert clock.events == 0


def test_parts_are_made_when_they_are_used():
    engine = run(gemm(32, 64, 32))
    small = {name.split(".")[1] for name in engine.parts if name.startswith("sip0.cube")}
    assert small == {"cube0"}
    # The host's way in and out, and the two links each way between PE 0 and its slice.
    assert len(engine.network.links) < 40


def test_records_take_the_memory_of_their_rows():
    engine = messages(1)
    rows = len(engine.records())
    tracemalloc.start()
    try:
        assert len(engine.records()) == rows > 0
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 18  # a block of one table has 0.4 to 1.7 MB
