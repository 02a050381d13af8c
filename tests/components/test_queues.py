"""Queues between PEs: times against closed forms, values, order, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis._records import CREDIT, HELD, MOVE, PART
from kernbench.ccl.diagnostics import pointer_dump, rings
from kernbench.components._command import Recv, Send
from kernbench.components.builtin.queues import Inbox, Queue
from kernbench.errors import AllocationError, IpcqDeadlock, IpcqInvalidDirection, KernbenchError, KernelError
from kernbench.sim_engine._observer import Observer
from kernbench.sim_engine._transaction import Transaction
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming
from tests.components.one_pe import pointer
from tests.components.queues_under_test import (
    FAR,
    NEAR,
    credits_of,
    install,
    launch,
    machine_of,
    parts,
    run,
    specs,
    way_ps,
)  # fmt: skip
from tests.reference.launch import Launch
from tests.reference.simulator import Reference

A, B = (0, 0, 0), (0, 1, 0)
FAR_B = (1, 0, 0)
PORT_GBS = 512


def value_of(tl: Any, n: int, x: float = 3.0) -> Any:
    """Return a tile that is a value in TCM, not a constant."""
    return tl.full((n,), x, dtype=tl.float16) + 0


def send(n: int, times: int = 1):
    def program(tl: Any) -> None:
        x = value_of(tl, n)
        for _ in range(times):
            tl.send("E", x)

    return program


def recv(n: int, times: int = 1):
    def program(tl: Any) -> None:
        for _ in range(times):
            tl.recv("W", shape=(n,))

    return program


@pytest.mark.parametrize("nbytes", [2, 256, 258, 2048, 4096])
@pytest.mark.parametrize(("pair", "to"), [(NEAR, B), (FAR, FAR_B)])
def test_a_part_takes_its_way_and_the_write_port(nbytes, pair, to):
    engine = run({A: send(nbytes // 2), to: recv(nbytes // 2)}, [pair])
    (part,) = parts(engine)
    assert part["arrived_ps"] - part["start_ps"] == way_ps(engine, A, to, nbytes)
    assert part["end_ps"] - part["arrived_ps"] == -(-nbytes * 1000 // PORT_GBS)


def test_a_protocol_costs_its_chunks_and_its_flags():
    programs = {A: send(1024), B: recv(1024)}
    (part,) = parts(run(programs, chunk_ns=120))
    assert part["end_ps"] - part["arrived_ps"] == 2048 * 1000 // PORT_GBS + 120_000
    engine = run(programs, payload=0.5)
    (part,) = parts(engine)
    assert part["arrived_ps"] - part["start_ps"] == way_ps(engine, A, B, 4096)
    assert part["end_ps"] - part["arrived_ps"] == 2048 * 1000 // PORT_GBS  # the flags are not stored
    (part,) = parts(engine := run(programs, payload=0.9))
    assert part["arrived_ps"] - part["start_ps"] == way_ps(engine, A, B, 2276)
    # In SRAM the cost comes on top of the set-up; two parts follow one another at TCM's port.
    (plain,), (costly,) = (parts(run(programs, kind="sram", chunk_ns=ns)) for ns in (0, 120))
    assert costly["end_ps"] - plain["end_ps"] == 120_000
    first, second = parts(run({A: send(2048), B: recv(2048)}, slot_bytes=2048, chunk_ns=1000))
    assert second["end_ps"] - first["end_ps"] == 2048 * 1000 // PORT_GBS + 1_000_000


def test_a_receive_takes_the_read_port_and_its_credit_leaves_when_the_tile_is_dropped():
    ended = []

    def receiver(tl: Any) -> None:
        x = tl.recv("W", shape=(2048,))
        y = x + 1
        tl.wait(y)
        del x
        ended.append(engine.env.now)

    seen: list[str] = []

    class Watch(Observer):
        def queue(self, event):
            seen.append(event.what)

    engine = GraphEngine(machine_of(), observers=[Watch()])
    install(engine, specs(engine, [NEAR]))
    launch(engine, {A: send(2048), B: receiver})
    engine.run()
    (part,), (credit,) = parts(engine), credits_of(engine)
    row = engine.records().of_kind("recv")
    assert int(row.start_ps[0]) == part["end_ps"]
    assert int(row.end_ps[0]) - part["end_ps"] == 8000
    assert credit["start_ps"] == ended[0]
    assert credit["end_ps"] - credit["start_ps"] == way_ps(engine, B, A, 16)
    assert seen == ["send", "arrive", "recv", "credit"]


def credits_waited_for(engine):
    """When the credit came that each part waited for, None for one that waited for none."""
    records = engine.records()
    moves, found = records.dependencies.at(slice(None)), []
    for part, causes in zip(moves, records.dependencies.sent[:, 0].tolist(), strict=True):
        if part.kind == PART:
            event = causes & (HELD - 1)
            credit = moves[event >> 3] if event & 7 == MOVE else None
            found.append((part.start_ps, credit.end_ps if credit is not None and credit.kind == CREDIT else None))
    return [credit for _, credit in sorted(found)]


def test_a_full_ring_holds_the_next_part_until_its_credit_arrives():
    def receiver(tl: Any) -> None:
        for _ in range(3):
            tl.recv("W", shape=(2048,))

    engine = run({A: send(2048, 3), B: receiver}, n_slots=1)
    leaves, given = [p["start_ps"] for p in parts(engine)], [c["end_ps"] for c in credits_of(engine)]
    assert leaves[1:] == given[:2]
    assert credits_waited_for(engine) == [None, *given[:2]]


@pytest.mark.parametrize("n_slots", [1, 2, 4, 8])
def test_the_rate_of_a_long_message_is_the_link_s_or_the_window_s(n_slots):
    slot, n = 4096, 64
    engine = run({A: send(slot // 2 * n), FAR_B: recv(slot // 2 * n)}, [FAR], n_slots=n_slots)
    starts = [p["start_ps"] for p in parts(engine)]
    round_trip = way_ps(engine, A, FAR_B, slot) + way_ps(engine, FAR_B, A, 16) + 2 * 8000
    step = starts[-1] - starts[-1 - n_slots]
    slowest = slot // 256 * 2000
    if round_trip > n_slots * slowest:
        assert step == round_trip
    else:
        assert round_trip < step
        ends = [p["arrived_ps"] for p in parts(engine)]
        assert {b - a for a, b in pairwise(ends[8:])} == {slowest}


@pytest.mark.parametrize(("kind", "setup"), [("sram", 2000), ("hbm", 6000)])
def test_slots_in_other_memories_cost_an_access_and_its_set_up(kind, setup):
    engine = run({A: send(2048), B: recv(2048)}, kind=kind)
    (part,) = parts(engine)
    assert part["end_ps"] - part["arrived_ps"] == setup
    row = engine.records().of_kind("recv")
    reads = int(row.end_ps[0] - row.start_ps[0]) - setup
    alone = GraphEngine(machine_of())
    dma = alone.pe(0, 1, 0).dma
    done: list[int] = []
    memory = "sip0.cube1.sram" if kind == "sram" else "sip0.cube1.hbm_ctrl.pe0"
    dma.port(memory).read(Transaction(4096, 0, lambda _: done.append(alone.env.now)))
    alone.run()
    assert reads == done[0]


@pytest.mark.parametrize("kind", ["tcm", "sram", "hbm"])
@pytest.mark.parametrize("n", [1, 127, 2048, 2049, 8192, 30001])
def test_any_size_arrives_as_it_was_sent(kind, n):
    got: list[Any] = []

    def sender(tl: Any) -> None:
        tl.send("E", value_of(tl, n, 2.5))
        tl.send("E", value_of(tl, 3, 7.0))

    def receiver(tl: Any) -> None:
        got.append(tl.recv("W", shape=(n,)).numpy())
        got.append(tl.recv("W", shape=(3,)).numpy())

    run({A: sender, B: receiver}, data=True, kind=kind)
    assert np.array_equal(got[0], np.full(n, 2.5, np.float16))
    assert np.array_equal(got[1], np.full(3, 7.0, np.float16))


def test_a_ring_of_two_names_its_peer_by_two_directions():
    east_west = [((A, "E"), (B, "W")), ((A, "W"), (B, "E"))]
    got: dict[str, list[float]] = {}

    def program(name: str, base: float):
        def run_it(tl: Any) -> None:
            tl.send("E", value_of(tl, 4, base))
            tl.send("W", value_of(tl, 4, base + 1))
            got[name] = [float(tl.recv("E", shape=(4,)).numpy()[0]), float(tl.recv("W", shape=(4,)).numpy()[0])]

        return run_it

    run({A: program("a", 10), B: program("b", 20)}, east_west, data=True)
    assert got == {"a": [21.0, 20.0], "b": [11.0, 10.0]}


def test_any_direction_takes_the_earliest_and_ties_in_turn():
    c, d = (0, 4, 0), (0, 0, 1)
    pairs = [((A, "first"), (B, "x")), ((A, "second"), (c, "x")), ((A, "third"), (d, "x"))]
    came: list[str] = []

    def receiver(tl: Any) -> None:
        tl.recv("third", shape=(2,))
        came.extend(tl.recv(shape=(2,)).came_from for _ in range(5))

    def sender(times: int):
        def program(tl: Any) -> None:
            x = value_of(tl, 2)
            for _ in range(times):
                tl.send("x", x)

        return program

    run({A: receiver, B: sender(2), c: sender(2), d: sender(2)}, pairs)
    # `d` is in the same cube: its second message is there first. `b` and `c` are equally far, and take turns.
    assert came[0] == "third"
    assert sorted(came[1:]) == ["first", "first", "second", "second"]
    assert came[1] == "first"
    assert came[2] == "second"


def test_messages_of_one_instant_are_taken_in_turn():
    inbox = Inbox()
    queues = {name: Queue(name, name, 4, 64) for name in ("W", "E", "N")}
    for queue in (*queues.values(), *queues.values()):
        message = inbox.message(None, Send("send", nbytes=4, direction=queue.name), None, queues)
        inbox.arrive(queue, queue.fill(message), 7)
    for _ in range(6):
        inbox.waiting.append(inbox.receive(None, Recv("recv", nbytes=4), None, queues))
    matched = iter(lambda: inbox.match(0, settled=True), None)
    assert [receive.queue.name for receive in matched] == ["W", "E", "N"] * 2


def test_a_look_leaves_the_message():
    got: list[float] = []

    def receiver(tl: Any) -> None:
        got.append(float(tl.recv_no_consume("W", shape=(4,)).numpy()[0]))
        got.append(float(tl.recv("W", shape=(4,)).numpy()[0]))

    run({A: send(4), B: receiver}, data=True)
    assert got == [3.0, 3.0]


def test_posted_receives_let_the_program_go_on():
    def receiver(tl: Any) -> None:
        first, second = (tl.recv_async("W", shape=(2048,)) for _ in range(2))
        tl.wait(second)
        tl.wait(first)

    engine = run({A: send(2048, 2), B: receiver})
    row = engine.records().of_kind("recv")
    assert [int(t) for t in row.start_ps] == [p["end_ps"] for p in parts(engine)]


Exchange = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 9000)).filter(lambda x: x[0] != x[1]),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(Exchange, st.integers(1, 3), st.sampled_from(["tcm", "sram", "hbm"]))
def test_every_acyclic_exchange_completes_in_order_and_loses_nothing(exchange, n_slots, kind):
    places = [(0, 0, 0), (0, 1, 0), (0, 0, 5), (0, 5, 3)]
    pairs = [
        ((places[i], f"to{j}"), (places[j], f"to{i}")) for i in range(4) for j in range(i + 1, 4)
    ]  # fmt: skip
    got: dict[tuple[int, int], list[tuple[int, float]]] = {}

    def program(me: int):
        def run_it(tl: Any) -> None:
            for number, (src, dst, n) in enumerate(exchange):
                if src == me:
                    tl.send(f"to{dst}", value_of(tl, n, number))
                if dst == me:
                    value = float(tl.recv(f"to{src}", shape=(n,)).numpy()[-1])
                    got.setdefault((src, dst), []).append((number, value))

        return run_it

    engine = run(
        {place: program(i) for i, place in enumerate(places)}, pairs, data=True, n_slots=n_slots, kind=kind,
        slot_bytes=1024,
    )  # fmt: skip
    assert all(number == value for ones in got.values() for number, value in ones)
    assert sum(map(len, got.values())) == len(exchange)
    assert sum(p["nbytes"] for p in parts(engine)) == sum(2 * n for _, _, n in exchange)
    assert len(credits_of(engine)) == len(parts(engine))


def test_a_receive_that_nobody_serves_says_who_waits_for_whom():
    with pytest.raises(IpcqDeadlock) as caught:
        run({A: send(4), B: recv(4, 2)})
    text = str(caught.value)
    assert re.search(r"sip0\.cube1\.pe0, kernel 'test' at .*test_queues\.py:\d+, waits for 'recv' since", text)
    assert "recv of 8 B from W (sip0.cube0.pe0) since" in text
    assert "W: 0 of 4 slots hold data (head 1, tail 1)" in text


def test_a_send_that_nobody_takes_is_a_deadlock_too():
    with pytest.raises(KernbenchError, match=r"0 of 4 credits \(head 0, tail 4\), 1 parts wait"):
        run({A: send(2048, 5), B: lambda tl: None})


def test_what_is_refused():
    with pytest.raises(IpcqInvalidDirection, match=r"no queue 'N'"):
        run({A: lambda tl: tl.send("N", value_of(tl, 4)), B: lambda tl: None})
    with pytest.raises(KernelError, match=r"test_queues.py:\d+: recv of 16 B from 'W', where a message of 8 B is next"):
        run({A: send(4), B: recv(8)})
    engine = GraphEngine(machine_of())
    wiring = specs(engine, [NEAR])
    install(engine, wiring)
    with pytest.raises(AllocationError, match="installed already"):
        install(engine, wiring)
    engine = GraphEngine(machine_of())
    wiring = specs(engine, [NEAR, ((A, "N"), (B, "S"))])
    first, second = wiring[A]
    with pytest.raises(AllocationError, match="overlaps that of 'E'"):
        install(engine, {A: [first, replace(second, ring_pa=first.ring_pa + 4096)]})
    engine = GraphEngine(machine_of())
    wiring = specs(engine, [NEAR])
    (one,) = wiring[A]
    install(engine, {A: [replace(one, peer_pa=one.peer_pa + (1 << 20))], B: wiring[B]})
    launch(engine, {A: send(4), B: recv(4)})
    with pytest.raises(KernbenchError, match="is in none of its rings"):
        engine.run()


def test_installations_in_any_order_give_one_state():
    times = []
    for order in ([A, B], [B, A]):
        engine = GraphEngine(machine_of())
        wiring = specs(engine, [NEAR])
        for place in order:
            install(engine, {place: wiring[place]})
        begin = engine.env.now
        launch(engine, {A: send(4096), B: recv(4096)})
        engine.run()
        times.append(engine.env.now - begin)
    assert times[0] == times[1]


def test_the_state_of_every_queue_can_be_seen_at_any_time():
    engine = GraphEngine(machine_of())
    install(engine, specs(engine, [NEAR]))
    launch(engine, {A: send(2048, 6), B: recv(2048, 1)})
    with pytest.raises(KernbenchError):
        engine.run()
    at_a, at_b = rings(engine)
    assert (at_a.pe, at_a.direction, at_a.peer) == ("sip0.cube0.pe0", "E", "sip0.cube1.pe0")
    assert (at_a.sent_head, at_a.sent_tail, at_a.waiting) == (1, 5, 1)
    assert (at_b.head, at_b.tail, at_b.kind) == (1, 5, "tcm")
    assert at_b.address.locate().component == "pe_tcm"
    assert "head 1, tail 5" in str(at_b)
    assert pointer_dump(engine).splitlines() == [str(at_a), str(at_b)]


def test_the_environment_asks_for_a_trace_of_messages(monkeypatch, capsys):
    monkeypatch.setenv("KERNBENCH_CCL_TRACE", "1")
    run({A: send(4), B: recv(4)})
    steps = [line.split()[2:5] for line in capsys.readouterr().err.splitlines()]
    assert steps == [
        ["send", "sip0.cube0.pe0", "E"],
        ["arrive", "sip0.cube1.pe0", "W"],
        ["recv", "sip0.cube1.pe0", "W"],
        ["credit", "sip0.cube1.pe0", "W"],
    ]


def test_a_tile_that_is_held_keeps_its_slot():
    def holder(tl: Any) -> None:
        first = tl.recv("W", shape=(4,))
        tl.recv("W", shape=(4,))
        del first

    run({A: send(4, 2), B: recv(4, 2)}, n_slots=1)
    with pytest.raises(IpcqDeadlock, match="1 of 1 slots hold data"):
        run({A: send(4, 2), B: holder}, n_slots=1)


def test_receives_of_one_direction_take_its_messages_in_their_order():
    from_memory: list[float] = []
    tiles: list[float] = []

    def sender(tl: Any) -> None:
        for x in (1.0, 2.0):
            tl.send("E", value_of(tl, 8, x))

    def receiver(tl: Any) -> None:
        p = pointer()
        tl.store(p, value_of(tl, 8, 9.0))
        first = tl.recv_async("W", shape=(8,), dst=p)  # comes after the store to the same bytes
        tiles.append(float(tl.recv("W", shape=(8,)).numpy()[0]))
        tl.wait(first)
        from_memory.append(float(tl.load(p, shape=(8,)).numpy()[0]))

    run({A: sender, B: receiver}, data=True)
    assert (from_memory, tiles) == ([1.0], [2.0])


def test_a_receive_from_any_direction_keeps_its_turn():
    got: list[float] = []

    def sender(tl: Any) -> None:
        for x in (1.0, 2.0):
            tl.send("E", value_of(tl, 8, x))

    def receiver(tl: Any) -> None:
        first = tl.recv_async(shape=(8,))
        second = tl.recv_async("W", shape=(8,))
        got.extend(float(tl.wait(x).numpy()[0]) for x in (first, second))

    run({A: sender, B: receiver}, [NEAR, ((B, "N"), ((0, 5, 0), "S"))], data=True)
    assert got == [1.0, 2.0]


def test_a_pe_s_turns_have_one_chunk():
    engine = GraphEngine(machine_of())
    install(engine, specs(engine, [NEAR], chunk_bytes=256), "one")
    with pytest.raises(AllocationError, match="takes turns of 256 B already"):
        install(engine, specs(engine, [NEAR], chunk_bytes=4096), "two")


@pytest.mark.parametrize(("n", "sizes"), [(2047, [4094]), (2048, [4096]), (2049, [4096, 2]), (4097, [4096, 4096, 2])])
def test_a_message_travels_in_parts_of_a_slot(n, sizes):
    assert [part["nbytes"] for part in parts(run({A: send(n), B: recv(n)}))] == sizes


@pytest.mark.parametrize("n_slots", [1, 2, 3, 4])
def test_as_many_parts_leave_without_a_credit_as_the_ring_has_slots(n_slots):
    engine = run({A: send(2048, n_slots + 1), B: recv(2048, n_slots + 1)}, n_slots=n_slots)
    first, *_ = credits_of(engine)
    assert credits_waited_for(engine) == [None] * n_slots + [first["end_ps"]]
    assert parts(engine)[n_slots]["start_ps"] == first["end_ps"]
    assert all(part["start_ps"] < first["start_ps"] for part in parts(engine)[:n_slots])


@pytest.mark.parametrize(("n", "held"), [(2048, True), (2049, False)])
def test_a_message_of_one_slot_stays_there_and_a_longer_one_is_copied(n, held):
    def holder(tl: Any) -> None:
        tile = tl.recv("W", shape=(n,))
        tl.wait(tile + 1)
        dropped.append(engine.env.now)
        del tile

    dropped: list[int] = []
    engine = GraphEngine(machine_of())
    install(engine, specs(engine, [NEAR]))
    launch(engine, {A: send(n), B: holder})
    engine.run()
    starts = [credit["start_ps"] for credit in credits_of(engine)]
    if held:
        assert starts == dropped
    else:
        assert len(starts) == 2
        assert max(starts) < dropped[0]


@pytest.mark.parametrize(("n_slots", "fits"), [(1, False), (2, True), (3, True)])
def test_a_held_tile_takes_one_slot_and_no_more(n_slots, fits):
    def holder(tl: Any) -> None:
        first = tl.recv("W", shape=(4,))
        tl.recv("W", shape=(4,))
        del first

    if fits:
        run({A: send(4, 2), B: holder}, n_slots=n_slots)
    else:
        with pytest.raises(IpcqDeadlock, match="1 of 1 slots hold data"):
            run({A: send(4, 2), B: holder}, n_slots=n_slots)


@pytest.mark.parametrize("directions", [1, 2, 3])
def test_an_installation_costs_64_bytes_a_direction(directions):
    names = "ESN"[:directions]
    engine = GraphEngine(machine_of())
    wiring = specs(engine, [((A, name), (B, name.lower())) for name in names])
    install(engine, {A: wiring[A]})
    reference = Reference(machine_of())
    expected = Launch(reference, 0, [A[1:]], 64 * directions, at_once=True)
    reference.run()
    assert engine.env.now == expected.done


@pytest.mark.parametrize(
    ("later", "came"), [((0, 0), "first"), ((1, 0), "second"), ((0, 1), "first"), ((2, 1), "second")]
)
def test_the_earliest_of_any_direction_is_earlier_by_a_picosecond(later, came):
    # `B` and `c` are equally far and meet on the way; at a tie the one from the east goes first. PE_CPU issues commands
    # a picosecond apart, so a load before the send delays it by one.
    c, seen = (0, 4, 0), []

    def receiver(tl: Any) -> None:
        seen.append(tl.recv(shape=(2,)).came_from)

    def sender(more: int):
        def program(tl: Any) -> None:
            kept = [tl.load(pointer(), shape=2) for _ in range(more)]
            tl.send("x", value_of(tl, 2))
            assert len(kept) == more

        return program

    machine = machine_of({"cube.pe.pe_cpu.command_ns": 0.001})
    pairs = [((A, "first"), (B, "x")), ((A, "second"), (c, "x"))]
    run({A: receiver, B: sender(later[0]), c: sender(later[1])}, pairs, machine=machine)
    assert seen == [came]


def test_parts_from_two_peers_are_written_to_tcm_one_after_another():
    # Both messages of 4 KiB arrive within less than the 8 ns that the write port takes for one.
    c = (0, 0, 1)
    pairs = [((A, "first"), (B, "x")), ((A, "second"), (c, "x"))]

    def sender(tl: Any) -> None:
        tl.send("x", value_of(tl, 2048))

    def receiver(tl: Any) -> None:
        tl.recv("first", shape=(2048,))
        tl.recv("second", shape=(2048,))

    slow_port = machine_of({"cube.pe.pe_tcm.write_bw_gbs": 8})
    one, two = sorted(
        parts(run({A: receiver, B: sender, c: sender}, pairs, machine=slow_port)), key=lambda p: p["end_ps"]
    )
    assert two["arrived_ps"] < one["end_ps"]
    assert two["end_ps"] == one["end_ps"] + 4096 * 1000 // 8


def test_a_receive_takes_the_earliest_of_what_is_there_and_not_the_next_in_turn():
    # "second" is served last, so "first" is next in turn; but of the messages that wait, that of "second" came earlier.
    c, seen = (0, 0, 1), []
    pairs = [((A, "first"), (B, "x")), ((A, "second"), (c, "x"))]

    def receiver(tl: Any) -> None:
        tl.recv("second", shape=(2,))
        kept = [tl.load(pointer(i * 65536), shape=32768) for i in range(8)]
        tl.wait(kept[-1])
        seen.extend(tl.recv(shape=(2,)).came_from for _ in range(2))

    def sender(times: int):
        def program(tl: Any) -> None:
            for _ in range(times):
                tl.send("x", value_of(tl, 2))

        return program

    run({A: receiver, B: sender(1), c: sender(2)}, pairs)
    assert seen == ["second", "first"]


def test_a_credit_takes_the_reverse_links_of_its_part():
    # From PE 0 of cube 0 to PE 7 of cube 1 and back, a route of PE 7's own would take another connection.
    far = (0, 1, 7)

    def receiver(tl: Any) -> None:
        tl.wait(tl.recv("W", shape=(4,)))
        tl.wait(tl.load(pointer(0), shape=4096))  # the program's end, whose message would meet the credit, comes later

    engine = run({A: send(4), far: receiver}, [((A, "E"), (far, "W"))])
    there, own = (
        [link.src for link in engine.network.route(naming.pe_dma(*a), naming.pe_dma(*b)).links] + [naming.pe_dma(*b)]
        for a, b in ((A, far), (far, A))
    )
    (credit,) = credits_of(engine)
    dependencies = engine.records().dependencies
    taken = [dependencies.nodes[i] for i in dependencies.routes[credit["route"]]]
    assert taken == there[::-1] != own


def test_a_deadlock_tells_heads_from_tails():
    def holder(tl: Any) -> None:
        held = tl.recv("W", shape=(4,))
        tl.recv("W", shape=(4,))
        tl.recv("W", shape=(4,))
        del held

    with pytest.raises(IpcqDeadlock, match=r"W: 2 of 4 slots hold data \(head 0, tail 2\)"):
        run({A: send(4, 2), B: holder})
