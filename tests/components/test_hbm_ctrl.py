"""HBM channels in the engine: conflicts, directions, latencies, odd requests; PE 0 beside its slice.

A command takes 1 ns to the slice and a flit 3 ns either way; a burst takes 8.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench._units import serialization_ps
from kernbench.sim_engine._transaction import Transaction
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology._naming import hbm, pe_dma
from kernbench.topology.builder import resolve_topology
from tests.components.one_pe import slice_pa
from tests.reference.simulator import Reference
from tests.sim_engine.adapter import Engine

PE, SLICE = pe_dma(0, 0, 0), hbm(0, 0, 0)
ACK_NS = 1.126


def machine(**overrides):
    return resolve_topology("preset:default", {f"cube.hbm.{k}": v for k, v in overrides.items()})


def ends(*requests, simulator=Engine, **overrides) -> list[float]:
    """Return when each (kind, offset, nbytes, start ns, source) ends [ns]."""
    sim = simulator(machine(**overrides))
    done = [0.0] * len(requests)

    def ask(i: int, kind: str, offset: int, nbytes: int, src: str) -> None:
        getattr(sim, kind)(src, SLICE, offset, nbytes, lambda: done.__setitem__(i, sim.now / 1000))

    for i, (kind, offset, nbytes, t, *src) in enumerate(requests):
        sim.at(round(t * 1000), lambda i=i, a=(kind, offset, nbytes, src[0] if src else PE): ask(i, *a))
    sim.run()
    return done


def test_a_channel_serves_one_burst_at_a_time():
    # Offset 2048 is channel 0 again. The first burst is served from 1 to 9.
    assert ends(("read", 0, 256, 0), ("read", 2048, 256, 0)) == [12, 20]
    assert ends(("read", 0, 256, 0), ("read", 2048, 256, 7.999)) == [12, 20]
    assert ends(("read", 0, 256, 0), ("read", 2048, 256, 8)) == [12, 20]
    assert ends(("read", 0, 256, 0), ("read", 2048, 256, 8.001)) == [12, 20.001]


def test_other_channels_do_not_wait():
    # Both bursts are ready at 9; their flits share the links back, the first request's first.
    assert ends(("read", 0, 256, 0), ("read", 256, 256, 0)) == [12, 13]
    assert ends(("read", 0, 256, 0), ("read", 256, 256, 1)) == [12, 13]
    assert ends(("read", 0, 256, 0), ("read", 256, 256, 1.001)) == [12, 13.001]


def test_eight_bursts_take_no_longer_in_memory_than_one():
    assert ends(("read", 0, 2048, 0)) == [1 + 8 + 2 + 8]
    assert ends(("read", 0, 2304, 0)) == [1 + 16 + 3]


def test_any_part_of_a_burst_costs_all_of_it():
    assert ends(("read", 0, 1, 0), ("read", 2048, 256, 0))[1] == 20
    assert ends(("read", 255, 2, 0), ("read", 2048, 256, 0), ("read", 2304, 256, 0))[1:] == [20, 21]


def test_the_head_of_a_read_leaves_with_its_first_burst():
    # Channel 0 is busy with another read until 9. The other seven bursts are ready then, too, and one at 17.
    assert ends(("read", 2048, 256, 0), ("read", 0, 2048, 0)) == [12, 20]
    # What was seven flits behind the head does not wait for the burst that comes last.
    assert ends(("read", 2048, 256, 0), ("read", 0, 2048, 0), ("read", 256, 256, 9))[2] == 21


def test_a_write_is_acknowledged_when_its_last_burst_is_done():
    assert ends(("write", 0, 256, 0)) == [3 + 8 + ACK_NS]
    assert ends(("write", 0, 2048, 0)) == [3 + 7 + 8 + ACK_NS]
    assert ends(("write", 0, 2304, 0)) == [3 + 8 + 8 + ACK_NS]


def test_a_read_waits_for_a_write_on_its_channel():
    # The write's flit is there at 3 and its burst done at 11.
    assert ends(("write", 0, 256, 0), ("read", 0, 256, 10))[1] == 22
    assert ends(("write", 0, 256, 0), ("read", 0, 256, 9.5))[1] == 22
    assert ends(("write", 0, 256, 0), ("read", 0, 256, 10.001))[1] == 22.001


def test_a_change_of_direction_costs_the_turnaround_on_its_channel():
    requests = (
        ("write", 0, 256, 0), ("read", 0, 256, 100), ("read", 256, 256, 200), ("read", 0, 256, 300),
        ("write", 256, 256, 400), ("write", 0, 256, 500),
    )  # fmt: skip
    still, turning = ends(*requests), ends(*requests, turnaround_ns=5)
    # The first burst of a channel turns nothing round, whatever its direction.
    assert [round(b - a, 3) for a, b in zip(still, turning, strict=True)] == [0, 5, 0, 0, 5, 5]


def test_turning_occupies_the_channel():
    requests = ("read", 0, 256, 0), ("write", 0, 256, 20), ("read", 2048, 256, 24)
    # The write turns from 23 to 28 and is done at 36; the read turns until 41 and is done at 49.
    assert ends(*requests, turnaround_ns=5)[2] == 49 + 3


def test_access_latency_delays_and_does_not_occupy():
    assert ends(("read", 0, 256, 0), ("read", 2048, 256, 0), access_ns=40) == [52, 60]
    assert ends(("read", 0, 4096, 0), access_ns=40) == [67]
    assert ends(("write", 0, 256, 0), access_ns=40) == [3 + 8 + ACK_NS]


@pytest.mark.parametrize(("efficiency", "burst_ns"), [(1.0, 8), (0.8, 10), (0.5, 16)])
def test_efficiency_stretches_bursts(efficiency, burst_ns):
    assert ends(("read", 0, 256, 0), ("read", 2048, 256, 0), efficiency=efficiency) == pytest.approx(
        [1 + burst_ns + 3, 1 + 2 * burst_ns + 3], abs=0.003
    )


def test_neighbours_share_a_slice_first_come_first_served():
    # A command of PE 1 arrives 2.03 after it is sent, and its flit takes 5.03 on the way back; PE 0's 1 and 3.
    far = pe_dma(0, 0, 1)
    assert ends(("read", 0, 256, 1.029), ("read", 2048, 256, 0, far)) == [13.029, 23.059]
    assert ends(("read", 0, 256, 1.031), ("read", 2048, 256, 0, far)) == [21.03, 15.06]


def test_flits_that_are_ready_together_leave_in_the_order_of_those_who_asked():
    # Two channels, 2 ns a burst. The last of five bursts for PE 1 is done at 8.03, as is one for PE 0.
    requests = ("read", 0, 1280, 0, pe_dma(0, 0, 1)), ("read", 256, 256, 3)
    assert ends(*requests, channels=2, channel_bw_gbs=128) == [14.06, 11.03]


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["read", "write"]), st.integers(0, 9000), st.integers(1, 6000), st.integers(0, 40)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([64, 256, 512, 1024]),
    st.sampled_from([0, 3]),
)
def test_requests_end_when_the_reference_says(requests, channels, burst, turnaround):
    odd = {"channels": channels, "burst_bytes": burst, "turnaround_ns": turnaround, "channel_bw_gbs": 256 / channels}
    # Starts of their own keep it the machine's business who comes first.
    asked = [(*request[:3], request[3] + 50 * i) for i, request in enumerate(requests)]
    assert ends(*asked, **odd) == ends(*asked, simulator=Reference, **odd)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["whole", "part", "strided", "write"]),
            st.integers(1, 16),  # KiB, about
            st.integers(0, 31),  # the first line
            st.sampled_from([1, 2, 4, 8]),  # lines of a strided read that follow each other
            st.integers(0, 400),  # ns
            st.sampled_from([(0, 0), (0, 1), (0, 2), (1, 0)]),  # cube and PE
        ),
        min_size=2,
        max_size=10,
    ),
    st.sampled_from([2, 8]),
    st.sampled_from([0, 2, 20]),
    st.sampled_from([256, 128]),
)
def test_reads_of_many_bursts_share_a_slice_as_the_reference_says(requests, channels, access, bw_gbs):
    shape = {"channels": channels, "access_ns": access, "channel_bw_gbs": bw_gbs / channels}

    def end_ps(simulator) -> list[int]:
        sim, done = simulator(machine(**shape)), [0] * len(requests)

        def ask(i: int, kind: str, kib: int, line: int, run: int, place: tuple[int, int]) -> None:
            def end() -> None:
                done[i] = sim.now

            src, nbytes = pe_dma(0, *place), kib * 1024 - (300 if kind == "part" else 0)
            if kind == "write":
                sim.write(src, SLICE, line * 256, nbytes, end)
            elif kind == "strided":
                lines = [line + 2 * run * (j // run) + j % run for j in range(nbytes // 256)]
                sim.read(src, SLICE, 0, nbytes, end, lines)
            else:
                sim.read(src, SLICE, line * 256, nbytes, end)

        for i, (*what, ns, place) in enumerate(requests):
            # Starts of their own keep it the machine's business who comes first.
            sim.at(ns * 1000 + i, lambda i=i, what=what, place=place: ask(i, *what, place))
        sim.run()
        return done

    assert end_ps(Engine) == end_ps(Reference)


def alone(kind: str, lines: list[int]) -> float:
    """Return when a transfer of 1 KiB with explicit lines ends [ns]."""
    engine = GraphEngine(machine())
    done: list[float] = []
    txn = Transaction(1024, 0, lambda _: done.append(engine.now_ns), lines=lines)
    ask = {"read": engine.network.read, "write": engine.network.write}[kind]
    ask(txn, engine.network.route(PE, SLICE), engine.memory_at(SLICE))
    engine.run()
    return done[0]


def test_lines_given_are_what_is_served():
    # A strided tile: four lines on one channel, 1 KiB of bytes. Four rounds of 8 ns instead of one.
    assert alone("read", [0, 1, 2, 3]) == 1 + 8 + 2 + 4
    assert alone("read", [0, 8, 16, 24]) == 1 + 32 + 3
    # Eight lines for four flits: a flit leaves for every second line.
    assert alone("read", [0, 8, 1, 9, 2, 10, 3, 11]) == 1 + 16 + 2 + 2


def test_lines_given_are_what_is_written():
    # Four flits reach the slice from 3 ns on, 1 ns apart; the acknowledgement leaves when the last burst is complete.
    assert alone("write", [0, 1, 2, 3]) == 3 + 3 + 8 + ACK_NS
    assert alone("write", [0, 8, 16, 24]) == 3 + 4 * 8 + ACK_NS


def test_busy_time_is_the_channels_mean():
    engine = GraphEngine(machine())
    engine.network.read(Transaction(512, 0, lambda _: None), engine.network.route(PE, SLICE), engine.memory_at(SLICE))
    engine.run()
    assert engine.memory_at(SLICE).busy_ps == 2 * 8000 // 8


def test_busy_time_by_now_counts_no_service_ahead_and_no_turnaround():
    # On channel 0: a read from 1 to 9 ns, a turnaround to 12, a write to 20. On channel 1: a read from 1 to 9.
    engine = GraphEngine(machine(turnaround_ns=3), live=True)
    where, route = engine.memory_at(SLICE), engine.network.route(PE, SLICE)
    engine.network.read(Transaction(512, 0, lambda _: None), route, where)
    engine.network.write(Transaction(256, 2048, lambda _: None), route, where)
    seen = {}
    for t in (1, 5, 9, 10, 12, 14, 20, 30):
        engine.env.call_at(t * 1000, lambda t: seen.__setitem__(t, where.busy_by(engine.env.now) * 8 / 1000), t)
    engine.run()
    assert seen == {1: 0, 5: 8, 9: 16, 10: 16, 12: 16, 14: 18, 20: 24, 30: 24}
    assert where.busy_ps == 24_000 // 8


def test_bytes_arrive_when_the_transfer_does():
    engine = GraphEngine(machine(), enable_data=True)
    pa = slice_pa(engine, 0)
    piece = [(pa, 256)]
    new, seen = np.full(256, 7, np.uint8), {}

    def write(_: object) -> None:
        txn = Transaction(256, 0, lambda _: None, pieces=piece, data=new)
        engine.network.write(txn, engine.network.route(PE, SLICE), engine.memory_at(SLICE))

    def read(name: str) -> None:
        txn = Transaction(256, 0, lambda t: seen.__setitem__(name, int(t.data[0])), pieces=piece)
        engine.network.read(txn, engine.network.route(PE, SLICE), engine.memory_at(SLICE))

    # The write's flit reaches the memory at 103; a read whose flit leaves before has the old bytes.
    engine.env.call_at(100_000, write)
    engine.env.call_at(93_000, read, "before")
    engine.env.call_at(120_000, read, "after")
    engine.run()
    assert seen == {"before": 0, "after": 7}


@pytest.mark.parametrize(("sent_ns", "byte"), [(253, 7), (255, 0)])
def test_a_read_has_the_bytes_of_when_its_last_flits_are_ready(sent_ns, byte):
    # Of 64 KiB: the last bursts are done at 1 + 32 * 8 = 257. A write's flit reaches the memory 3 after it is sent.
    engine, seen = GraphEngine(machine(), enable_data=True), []
    where, route, piece = engine.memory_at(SLICE), engine.network.route(PE, SLICE), [(slice_pa(engine, 0), 256)]
    read = Transaction(65536, 0, lambda txn: seen.append(int(txn.data[0])), pieces=piece)
    write = Transaction(256, 0, lambda _: None, pieces=piece, data=np.full(256, 7, np.uint8))
    engine.network.read(read, route, where)
    engine.env.call_at(sent_ns * 1000, lambda _: engine.network.write(write, route, where))
    engine.run()
    assert seen == [byte]


def test_zero_channels_are_refused_where_the_file_is_read():
    with pytest.raises(Exception, match="channels"):
        machine(channels=3)


def test_a_burst_ends_at_its_last_byte():
    # One channel: each burst takes 8. The last byte of a burst is in it, the next byte is in another.
    def memory(offset: int, nbytes: int) -> float:
        links = 2 * serialization_ps(nbytes, 256) / 1000
        return round(ends(("read", offset, nbytes, 0), channels=1)[0] - 2 - links, 3)

    assert memory(255, 1) == memory(0, 256) == 8
    assert memory(255, 2) == memory(1, 256) == 16


def test_each_flit_of_a_read_waits_for_its_share_of_the_bursts():
    # One channel. Aligned, a flit leaves with each burst: at 9 and 17. Unaligned, two flits leave with bursts 2 and 3
    # of three, at 17 and 25. A message that enters the link back at 9 or 17 tells when the first has left.
    def arrivals(offset: int) -> list[float]:
        sim = Engine(machine(channels=1), trace=True)
        sim.read(PE, SLICE, offset, 512, lambda: None)
        sim.run()
        return sorted(hop.arrival_ps / 1000 for hop in sim.network.hops if hop.link.startswith(SLICE))

    assert arrivals(0) == [9, 17]
    assert arrivals(1) == [17, 25]
    assert arrivals(256) == [9, 17]


def test_each_flit_of_a_trace_comes_to_the_link_when_it_is_ready():
    sim = Engine(machine(), trace=True)
    sim.read(PE, SLICE, 0, 4096, lambda: None)
    sim.run()
    came = [hop.arrival_ps / 1000 for hop in sim.network.hops if hop.link.startswith(SLICE)]
    assert came == [9] * 8 + [17] * 8


@pytest.mark.parametrize(
    ("burst_bytes", "nbytes", "end"),
    [
        # Flits reach the slice at 3, 4, 5, ... Two bursts of 128 B, 4 ns each, for each flit: the last begins at 7.
        (128, 256, 3 + 8), (128, 512, 3 + 16), (128, 640, 3 + 20),
        # A burst of 512 B takes 16 and comes with its second flit: at 4. Of three flits two bursts, with 2 and 3.
        (512, 256, 3 + 16), (512, 257, 4 + 16), (512, 512, 4 + 16), (512, 513, 4 + 32), (512, 768, 4 + 32),
        # Five flits, three bursts: with flits 2, 4 and 5, on one channel.
        (512, 1280, 4 + 48),
    ],
)  # fmt: skip
def test_a_burst_of_a_write_arrives_with_its_share_of_the_flits(burst_bytes, nbytes, end):
    assert ends(("write", 0, nbytes, 0), channels=1, burst_bytes=burst_bytes) == [end + ACK_NS]


def test_bursts_of_a_write_do_not_begin_before_their_flits():
    # Fast channels: 1 ns a burst of 256 B. Each begins when its flit has come, at 3, 4, 5, 6.
    assert ends(("write", 0, 1024, 0), channels=1, channel_bw_gbs=256) == [6 + 1 + ACK_NS]
    # Of 512 B, 2 ns each: they come with flits 2 and 4.
    assert ends(("write", 0, 1024, 0), channels=1, channel_bw_gbs=256, burst_bytes=512) == [6 + 2 + ACK_NS]


def test_flits_ready_together_enter_the_link_by_node_then_by_request():
    # Commands of PE 1 and PE 0 reach the slice together, and their bursts, on two channels, are done together at 10.03.
    def both(near_at: float) -> list[float]:
        near, far = ("read", 0, 256, near_at), ("read", 256, 256, 0, pe_dma(0, 0, 1))
        found = ends(near, far)
        assert ends(far, near) == found[::-1], "the order in which they are asked for at other times does not matter"
        return found

    assert both(1.03) == [13.03, 16.06]
    assert both(1.029) == [13.029, 16.059]
    assert both(1.031) == [14.03, 15.06]
    # Of one node the first request goes first, whatever its channel.
    assert ends(("read", 256, 256, 0), ("read", 0, 256, 0)) == [12, 13]


def test_a_direction_is_a_channel_s_own():
    # Channel 0 reads, channel 1 writes: neither turns. Then each does.
    turning = {"turnaround_ns": 5}
    assert ends(("read", 0, 256, 0), ("write", 256, 256, 100), **turning)[1] == 100 + 3 + 8 + ACK_NS
    assert ends(("read", 0, 256, 0), ("write", 0, 256, 100), **turning)[1] == 100 + 3 + 5 + 8 + ACK_NS


@pytest.mark.parametrize(("at", "value"), [(93_999, 0), (94_001, 7)])
def test_a_read_has_the_bytes_of_the_moment_its_part_leaves(at, value):
    # The write's flit arrives at 103; a read's part leaves 9 after its start.
    engine = GraphEngine(machine(), enable_data=True)
    piece, seen = [(slice_pa(engine, 0), 256)], []

    def write(_: object) -> None:
        txn = Transaction(256, 0, lambda _: None, pieces=piece, data=np.full(256, 7, np.uint8))
        engine.network.write(txn, engine.network.route(PE, SLICE), engine.memory_at(SLICE))

    def read(_: object) -> None:
        txn = Transaction(256, 0, lambda t: seen.append(int(t.data[0])), pieces=piece)
        engine.network.read(txn, engine.network.route(PE, SLICE), engine.memory_at(SLICE))

    engine.env.call_at(100_000, write)
    engine.env.call_at(at, read)
    engine.run()
    assert seen == [value]


def test_a_read_and_a_write_with_the_commands_of_hbm3():
    # Clocks of 0.5 ns. ACT of four groups, tRRD_S = 2.5 apart; two columns of each. The last row is open at
    # 7.5 + tRCDRD = 27, its second column is at 29, tCCD_L later. Data after CL + BL.
    assert ends(("read", 0, 256, 0), timing="hbm3") == [1 + 29 + 12.5 + 1 + 3]
    # The channels of 2 KiB work side by side, and the flits leave together.
    assert ends(("read", 0, 2048, 0), timing="hbm3") == [1 + 29 + 12.5 + 1 + 2 + 8]
    # A write is acknowledged when its last flit is there.
    assert ends(("write", 0, 2048, 0), timing="hbm3") == [3 + 7 + ACK_NS]


def test_a_read_finds_what_was_written_with_the_commands_of_hbm3():
    engine = GraphEngine(machine(timing="hbm3"), enable_data=True, live=True)
    piece, seen = [(slice_pa(engine, 0), 256)], []
    where, route = engine.memory_at(SLICE), engine.network.route(PE, SLICE)
    write = Transaction(256, 0, lambda _: None, pieces=piece, data=np.full(256, 7, np.uint8))
    engine.network.write(write, route, where)
    read = Transaction(256, 0, lambda t: seen.append(int(t.data[0])), pieces=piece)
    engine.env.call_at(10_000, lambda _: engine.network.read(read, route, where))
    busy = []
    for t in (10, 40, 200):
        engine.env.call_at(t * 1000, lambda t: busy.append(where.busy_by(engine.env.now) * 8), None)
    engine.run()
    assert seen == [7]
    # Two times eight accesses of 1 ns on one channel of eight.
    assert busy[0] == 0 < busy[1] < busy[2] == where.busy_ps * 8 == 16_000
