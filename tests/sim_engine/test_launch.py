"""Launches and maps on their way through the CPUs: by hand on the default machine, and against plain SimPy."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from kernbench.runtime_api.context import session
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology._naming import hbm, m_cpu
from kernbench.topology.builder import resolve_topology
from tests.components.one_pe import slice_pa
from tests.reference.launch import Launch
from tests.reference.simulator import Reference
from tests.reference.traffic import random_machine
from tests.slow import slow_after

DEFAULT = resolve_topology("preset:default")


def nothing(*_args, tl) -> None:
    """Do nothing: the program ends when it starts."""


def started(targets, n_args=0, machine=DEFAULT, sip=0):
    engine = GraphEngine(machine)
    sent = engine.launch(sip, targets, nothing, (0,) * n_args, "nothing")
    engine.wait(sent.done)
    return engine, sent


def test_one_pe_by_hand():
    # host - switch 0.5 + 5, PCIe 1 + 100 + 5, io.noc 0.25, io_cpu 0.25: at 112.00, and 10 of service.
    # UCIe port 0.25 + 8, crossing 0.5 + 8, r1c0 0.25 + 1, r1c1, r1c2, r0c2 0.25 + 1.03 each, m_cpu 0.25: 144.34, and 5.
    # r0c2 0.25 + 1, r0c1, r0c0 0.25 + 1.03 each, pe_cpu 0.25: 153.40, and 2 until PE_CPU has taken it.
    engine, sent = started([(0, 0)])
    assert sent.target_start_ps == sent.start_ps == 155_400
    # 16 B: 63 ps on 256 GB/s, 125 on 128, 250 on 64. Latencies: 1 + 2 x 1.03 to M_CPU, which passes it on at once;
    # 1 + 3 x 1.03 + 16 to the io_cpu; 5 + 105 to the host.
    to_m_cpu = 4 * 63 + 1000 + 2060
    to_io_cpu = 7 * 63 + 125 + 1000 + 3090 + 16_000
    to_host = 2 * 63 + 250 + 125 + 5000 + 105_000
    assert engine.env.now == 155_400 + to_m_cpu + to_io_cpu + to_host


def test_the_last_sip_of_the_largest_machine_is_as_the_first():
    machine = resolve_topology("preset:default", {"system.sips": {"count": 1024, "topology": "ring_1d"}})
    _, first = started([(15, 7)], machine=machine, sip=0)
    _, last = started([(15, 7)], machine=machine, sip=1023)
    assert (last.start_ps, last.end_ps) == (first.start_ps, first.end_ps)


def test_an_argument_is_eight_bytes():
    # Four of them are 32 B: 125 ps on each of 13 links of 256 GB/s, 250 on 2 of 128, 500 on the PCIe link.
    _, none = started([(0, 0)])
    _, four = started([(0, 0)], n_args=4)
    assert four.target_start_ps - none.target_start_ps == 13 * 125 + 2 * 250 + 500


@pytest.mark.parametrize("seed", slow_after(2, range(8)))
@pytest.mark.parametrize("n_args", [0, 5])
def test_copies_and_answers_on_random_machines(seed, n_args):
    machine = random_machine(f"launch {seed}")
    config = machine.config
    targets = [(cube, pe) for cube in range(config.cubes_per_sip) for pe in range(config.pes_per_cube)]
    targets = targets[:: 1 + seed % 2]
    engine, sent = started(targets, n_args, machine, sip=config.n_sips - 1)
    reference = Reference(machine)
    expected = Launch(reference, config.n_sips - 1, targets, 64 + 8 * n_args)
    reference.run()
    assert sent.target_start_ps == expected.target_start == max(expected.taken.values())
    assert set(expected.started.values()) == {sent.start_ps}
    assert engine.env.now == expected.done
    assert "skew" not in {row.kind for row in engine.records()}


@pytest.mark.parametrize(
    ("slow", "apart_ns"),
    [
        ({}, 10),  # the io_cpu's service, the longest
        ({"sip.io.io_cpu.service_ns": 40}, 40),
        ({"cube.m_cpu.service_ns": 40}, 40),
        ({"cube.pe.pe_cpu.command_ns": 40}, 40),
    ],
)
def test_cpus_serve_one_launch_after_another(slow, apart_ns):
    machine = resolve_topology("preset:default", slow)
    engine = GraphEngine(machine)
    sent = [engine.launch(0, [(0, 0), (0, 1)], nothing, (), name) for name in "abc"]
    engine.run()
    reference = Reference(machine)
    expected = [Launch(reference, 0, [(0, 0), (0, 1)], 64) for _ in "abc"]
    reference.run()
    assert [x.start_ps for x in sent] == [min(x.started.values()) for x in expected]
    assert engine.env.now == max(x.done for x in expected)
    # The slowest CPU on the way sets the pace.
    assert sent[2].start_ps - sent[1].start_ps == apart_ns * 1000


def test_a_pe_that_is_reached_late_starts_late_and_says_so():
    # Host data for PE 0's slice go before the launch over the same links, which makes its copies late.
    machine = resolve_topology("preset:default", {"system.sips.count": 1, "cube.ucie.bw_gbs": 16})
    engine = GraphEngine(machine)
    engine.write([(slice_pa(engine, 0), 20_000)], None)
    sent = engine.launch(0, [(0, 0)], nothing, (), "late")
    engine.run()
    reference = Reference(machine)
    reference.write("host", hbm(0, 0, 0), 0, 20_000, lambda: None)
    expected = Launch(reference, 0, [(0, 0)], 64)
    reference.run()
    assert sent.target_start_ps == expected.target_start < expected.taken[0, 0] == sent.start_ps
    [skew] = [row for row in engine.records() if row.kind == "skew"]
    assert (skew.start_ps, skew.end_ps) == (sent.target_start_ps, sent.start_ps)


def test_programs_know_their_place():
    seen = set()

    def kernel(tl) -> None:
        seen.add((tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)))

    engine = GraphEngine(DEFAULT)
    engine.wait(engine.launch(0, [(2, 3), (2, 5), (7, 3), (7, 5)], kernel, (), "who").done)
    assert {place[:2] for place in seen} == {(3, 2), (5, 2), (3, 7), (5, 7)}


def test_a_map_costs_32_bytes_a_range():
    def mapped(ranges) -> int:
        engine = GraphEngine(DEFAULT)
        engine.wait(engine.map(0, ranges, "tensor"))
        return engine.env.now

    def expected(targets, nbytes: int) -> int:
        reference = Reference(DEFAULT)
        launch = Launch(reference, 0, targets, nbytes, at_once=True)
        reference.run()
        return launch.done

    one, two = (1 << 40, 4096, 0), (1 << 41, 4096, 0)
    assert mapped({(0, 0): [one]}) == expected([(0, 0)], 32)
    assert mapped({(0, 0): [one, two]}) == expected([(0, 0)], 64)
    # What both get is sent once to the cube, and to each of them.
    assert mapped({(0, 0): [one], (0, 1): [one]}) == expected([(0, 0), (0, 1)], 32)


def test_a_map_goes_only_where_it_is_needed():
    engine = GraphEngine(DEFAULT)
    engine.wait(engine.map(0, {(3, 1): [(1 << 40, 256, 0)]}, "tensor"))
    touched = {link.dst for route in engine.network.routes for link in route.links if "m_cpu" in link.dst}
    assert touched == {m_cpu(0, 3)}


@pytest.mark.parametrize("late_ps", [0, 1, 500])
def test_a_launch_that_finds_a_link_busy_starts_late_by_so_much(late_ps):
    # io_cpu knows what came before it, and nothing of what waits at the UCIe link behind it. Eight flits of data hold
    # that link, 16 ns each, from 9 + 109 + 1 + 9 = 128 ns on. A launch reaches it 112.5 + 10 + 0.25 + 8.25 = 131 ns
    # after it was sent: 125 ns after the data it waits for none.
    machine = resolve_topology("preset:default", {"system.sips.count": 1, "cube.ucie.bw_gbs": 16})
    engine, sent = GraphEngine(machine), []
    engine.write([(slice_pa(engine, 0), 8 * 256)], None)
    engine.env.call_at(125_000 - late_ps, lambda _: sent.append(engine.launch(0, [(0, 0)], nothing, (), "late")), None)
    engine.run()
    [launch] = sent
    assert launch.start_ps - launch.target_start_ps == late_ps
    skews = [row.end_ps - row.start_ps for row in engine.records() if row.kind == "skew"]
    assert skews == [late_ps] * (late_ps > 0)


@pytest.mark.slow
@pytest.mark.parametrize("data", [False, True])
def test_memory_is_flat_over_launches(data):
    n = 300

    def read(x, *, tl):
        tl.load(x, shape=(8,), dtype="f16")

    with session("preset:small", log="off", data=data) as torch:
        x = torch.zeros((8,), dtype=torch.float16, device="ahbm")

        def held() -> tuple[int, int]:
            for _ in range(n):
                torch.launch("read", read, x)
                torch.ahbm.synchronize()
            gc.collect()
            return len(gc.get_objects()), tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            held()
            objects, nbytes = held()
            more_objects, more_bytes = held()
        finally:
            tracemalloc.stop()
        assert more_objects - objects < n // 10
        assert more_bytes - nbytes < 300 * n // 2  # a row of eight numbers, in an array that grows by an eighth
        assert [launch.name for launch in torch.engine.launches] == ["read"] * 3 * n
        assert all(x.sent_ps < x.target_start_ps <= x.start_ps < x.end_ps for x in torch.engine.launches)
