from __future__ import annotations

import math
import os
import subprocess
import sys
from functools import cache

import pytest
from click.testing import CliRunner

from kernbench.policy._routing import router_of
from kernbench.sim_engine._network import ENGINE
from kernbench.topology import _naming as naming
from kernbench.topology.builder import resolve_topology
from tests.oracle import compare
from tests.oracle.__main__ import main, read_case
from tests.oracle.cases import Case, Transaction, random_case
from tests.oracle.compare import Difference, difference, differences, minimized, play
from tests.oracle.routes import Routes
from tests.oracle.simulator import READ, Link, Message, Oracle, Slice, Turns
from tests.repo import ROOT
from tests.slow import slow_after

MACHINES, TRANSACTIONS, GROUPS = 200, 50, 10
PE0 = "sip0.cube0.pe0.pe_dma"


@pytest.mark.parametrize("group", slow_after(1, range(GROUPS)))
def test_random_transactions_end_when_the_page_says(group):
    for seed, found in differences(range(group, MACHINES, GROUPS), TRANSACTIONS):
        assert found is None, f"python -m tests.oracle --machines 1 --seed {seed}\n{found}"


@pytest.mark.slow
@pytest.mark.skipif(ENGINE == "definition", reason="the test above ran on the definition")
def test_the_definition_ends_them_then_too():
    command = [sys.executable, "-m", "tests.oracle", "--machines", str(MACHINES), "--transactions", str(TRANSACTIONS)]
    environment = {**os.environ, "KERNBENCH_ENGINE": "definition"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("start_ps", [2**31 - 5000, 2**32 - 5000, 2**53 + 1, 2**61])
def test_a_late_start_shifts_every_end_and_nothing_else(start_ps):
    for seed in range(5):
        case = random_case(seed, TRANSACTIONS)
        late = [t if t.after is not None else t._replace(wait_ps=t.wait_ps + start_ps) for t in case.transactions]
        ends = play(compare.Engine(case.machine(), case.turn_bytes), case.transactions)
        assert play(compare.Engine(case.machine(), case.turn_bytes), late) == [end + start_ps for end in ends]


@pytest.mark.parametrize(
    "slow",
    [
        {"system.sip_link.latency_ns": 1e12, "cube.ucie.port_ns": 1e11},
        {"system.pcie.bw_gbs": 1e-6, "cube.ucie.bw_gbs": 1e-7},
        {"cube.hbm.channel_bw_gbs": 1e-6, "cube.hbm.access_ns": 1e12, "cube.hbm.turnaround_ns": 1e12},
    ],
)
def test_times_of_hours_are_exact(slow):
    case = random_case(3, 100)
    found = difference(Case({**case.overrides, **slow}, case.transactions))
    assert found is None, str(found)


def test_a_turn_of_no_time_overtakes_nothing_of_its_picosecond():
    # At 4 ps a flit of PE 0's queue is on its way towards PE 1. A message of 0 B whose turn begins then goes behind it.
    instant = {
        **dict.fromkeys(("cube.propagation_ns_per_mm", "cube.noc.router.overhead_ns"), 0),
        "cube.noc.rows": 3,
        "cube.noc.cols": 4,
        "cube.noc.removed": [[1, 2], [1, 1]],
        "cube.ucie.connections": 1,
        "cube.pe_layout.pe_routers": [[2, 3], [0, 0], [0, 1], [2, 1]],
        "system.sips.count": 4,
        "system.sips.topology": "mesh_2d_no_wrap",
        "system.sips.w": 2,
        "system.sips.h": 2,
    }
    pe = [f"sip0.cube0.pe{i}.pe_dma" for i in range(4)]
    transactions = [
        Transaction("send", pe[0], pe[1], 0, 0, 1),
        Transaction("send", pe[3], pe[2], 0, 1, 0),
        Transaction("queue", pe[0], pe[2], 0, 1, 0),
    ]
    found = difference(Case(instant, transactions, 512))
    assert found is None, str(found)


@pytest.mark.parametrize(("wait_ps", "ends"), [(0, [4, 50_076, 46, 50_060]), (1, [4, 50_085, 39, 50_061])])
def test_a_message_begins_a_turn_in_the_picosecond_in_which_one_has_ended(wait_ps, ends):
    # PE 0's last turn, of its queue, ends at 4 ps + wait_ps. At 4 ps its queue and then its DMA send. If the turn has
    # just ended, the queue's message begins one. If not, both wait, and the DMA is next.
    machine = {
        **dict.fromkeys(("cube.propagation_ns_per_mm", "cube.noc.router.overhead_ns"), 0),
        "cube.noc.removed": [[1, 1]],
        "cube.ucie.port_ns": 0.001,
    }
    transactions = [
        Transaction("queue", "sip0.cube2.pe0.pe_dma", "sip0.cube0.sram", 0, 0, 0),
        Transaction("queue", PE0, "sip1.cube0.sram", 0, 1, 0, after=0),
        Transaction("send", PE0, "sip0.io.io_cpu", 0, 1, 0, after=0),
        Transaction("queue", PE0, "sip1.cube0.hbm_ctrl.pe0", 0, 1, wait_ps),
    ]
    case = Case(machine, transactions, 256)
    assert play(Oracle(case.machine(), case.turn_bytes), transactions) == ends
    assert difference(case) is None


# M4.8, copied from the page: the oracle is judged without the engine.
CHECK_VALUES = {
    (PE0, "sip0.cube0.hbm_ctrl.pe0"): (12_000, 27_000),
    (PE0, "sip0.cube0.hbm_ctrl.pe1"): (15_060, 30_060),
    (PE0, "sip0.cube0.hbm_ctrl.pe7"): (42_600, 57_600),
    (PE0, "sip0.cube1.hbm_ctrl.pe0"): (71_420, 101_420),
    (PE0, "sip1.cube0.hbm_ctrl.pe0"): (194_120, 224_120),
    ("host", "sip0.cube0.hbm_ctrl.pe0"): (277_060, 337_060),
}


@pytest.mark.parametrize(("src", "memory"), CHECK_VALUES)
def test_oracle_has_the_check_values(src, memory):
    for nbytes, expected in zip((256, 4096), CHECK_VALUES[src, memory], strict=True):
        oracle = Oracle(resolve_topology("preset:default"))
        assert play(oracle, [Transaction("read", src, memory, 0, nbytes, 0)]) == [expected]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, MACHINES, 10))
def test_routes_are_those_of_the_page(seed):
    machine = random_case(seed, 0).machine()
    routes, router = Routes(machine), router_of(machine.graph)
    passed = ("switch", "sip_switch", "pcie_ep", "io_noc", "ucie", "router")
    ends = [node.id for node in machine.graph.nodes() if node.kind not in passed]
    pairs = [(src, dst) for src in ends[::3] for dst in ends if src != dst]
    for src, dst in pairs[:: 1 + len(pairs) // 2000]:
        assert routes.path(src, dst) == list(router.path(src, dst)), (src, dst)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, MACHINES, 10))
def test_ranks_and_numbers_are_those_of_the_page(seed):
    graph = random_case(seed, 0).machine().graph
    nodes = list(graph.nodes())
    assert [node.id for node in nodes] == sorted((node.id for node in nodes), key=_number)
    into = {node.id: [] for node in nodes}
    for edge in graph.edges():
        into[edge.dst].append(edge)
    for dst, edges in into.items():
        ranked = [edge.src for edge in sorted(edges, key=lambda edge: edge.rank)]
        assert ranked == sorted(ranked, key=lambda src: (_side(graph, src, dst), naming.natural_key(src))), dst


def _number(node_id):
    """The key that M4.4 sorts nodes by."""
    place = naming.parse(node_id)
    if place.kind == "sip_switch":
        return (math.inf, naming.natural_key(node_id))
    if place.sip is None:
        return (-1, ["host", "switch"].index(place.kind))
    if place.cube is None:
        port = (place.row, place.conn) if place.kind == "ucie" else ()
        return (place.sip, -1, ["pcie_ep", "io_cpu", "io_noc", "ucie"].index(place.kind), port)
    if place.kind == "router":
        return (place.sip, place.cube, 0, (place.row, place.col))
    if place.kind == "ucie":
        return (place.sip, place.cube, 1, (place.conn, "ewns".index(place.side)))
    if place.pe is None:
        return (place.sip, place.cube, 2, (["m_cpu", "sram"].index(place.kind),))
    return (place.sip, place.cube, 3, (place.pe, ["hbm_ctrl", "pe_cpu", "pe_dma"].index(place.kind)))


def _side(graph, src, dst):
    """The side that `src` lies on, as seen from `dst`: 0 to 5 for E, W, N, S, up, down; 6 for local."""
    a, b = naming.parse(src), naming.parse(dst)
    if (a.kind, b.kind) == ("ucie", "router"):
        return "ewns".index(a.side)
    if (a.kind, b.kind) == ("ucie", "ucie"):
        return 0
    if (a.kind, b.kind) == ("io_noc", "io_noc"):
        side = graph.sips.neighbours[b.sip][a.sip]
        return "ewnsud".index(side) if side else 6
    if (a.kind, b.kind) == ("router", "router"):
        return [(0, 1), (0, -1), (-1, 0), (1, 0)].index((a.row - b.row, a.col - b.col))
    return 6


# What else a rule could say. Each must change a time, or the random cases would hold nothing of that rule.
def _rounded_down(serve):
    return lambda link, nbytes, now: serve(link, nbytes, now) - (nbytes > 0)


def _with_key(change):
    return lambda key: staticmethod(lambda *flit: change(*key(*flit)))


def _first_write_turns(init):
    def changed(part, machine):
        init(part, machine)
        part.direction = [READ] * part.channels

    return changed


def _access_occupies(serve):
    def changed(part, burst, direction, now):
        part.free_ps[burst % part.channels] = done = serve(part, burst, direction, now)
        return done

    return changed


def _longer_acknowledgement(init):
    return lambda message, links, flits, *rest: init(message, links, [17] if flits == [16] else flits, *rest)


VARIATIONS = {
    "M4.1 time rounded down": (Link, "serve", _rounded_down),
    "M4.4 arrivals first": (Oracle, "entry_key", _with_key(lambda _, *key: (3, *key))),
    "M4.4 request before node": (Oracle, "entry_key", _with_key(lambda _, node, n, flit: (1, n, node, flit))),
    "M4.4 higher node asks first": (Oracle, "entry_key", _with_key(lambda _, node, n, flit: (1, -node, n, flit))),
    "M4.4 later request first": (Oracle, "entry_key", _with_key(lambda _, node, n, flit: (1, node, -n, flit))),
    "M4.4 node before rank": (Oracle, "arrival_key", _with_key(lambda _, rank, node, n: (2, node, rank, n))),
    "M4.4 second rank first": (
        Oracle,
        "arrival_key",
        _with_key(lambda _, rank, node, n: (2, (rank != 1) * (rank + 1), node, n)),
    ),
    "M4.4 local first": (Oracle, "arrival_key", _with_key(lambda _, rank, node, n: (2, -rank, node, n))),
    "M4.4 higher node first": (Oracle, "arrival_key", _with_key(lambda _, rank, node, n: (2, rank, -node, n))),
    "M4.4 last off a link first": (Oracle, "arrival_key", _with_key(lambda _, rank, node, n: (2, rank, node, -n))),
    "M4.5 first write turns": (Slice, "__init__", _first_write_turns),
    "M4.5 access occupies": (Slice, "serve", _access_occupies),
    "M4.7 acknowledgement of 17 B": (Message, "__init__", _longer_acknowledgement),
    "M8.6 turns of one flit more": (Turns, "__init__", lambda init: lambda turns, flits: init(turns, flits + 1)),
    "M8.6 turn before what asks": (Oracle, "turn_key", _with_key(lambda _, *key: (-1, *key))),
    "M8.6 turn before what arrivals ask": (Oracle, "turn_key", _with_key(lambda _, *key: (1, *key, 0))),
}


@cache
def _case_and_ends(seed):
    case = random_case(seed, TRANSACTIONS)
    return case, play(Oracle(case.machine(), case.turn_bytes), case.transactions)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIATIONS)
def test_random_cases_tell_rules_apart(name, monkeypatch):
    owner, method, change = VARIATIONS[name]
    for seed in range(MACHINES):
        case, expected = _case_and_ends(seed)
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, change(getattr(owner, method)))
            if play(Oracle(case.machine(), case.turn_bytes), case.transactions) != expected:
                return
    pytest.fail("no time changes")


class Broken(Oracle):
    """An engine with a fault: from the third write on, an acknowledgement comes a picosecond late."""

    writes = 0

    def write(self, src, memory, offset, nbytes, done):
        self.writes += 1
        late = self.writes >= 3
        super().write(src, memory, offset, nbytes, lambda: self.at(self.now + late, done))


@pytest.mark.slow
def test_a_difference_is_found_and_made_small():
    found = next(found for _, found in differences(range(50), 8, Broken) if found)
    small = minimized(found, Broken)
    assert [transaction.kind for transaction in small.case.transactions] == ["write"] * 3
    assert sum(a != b for a, b in zip(small.oracle, small.engine, strict=True)) == 1
    assert set(small.case.overrides) < set(found.case.overrides)


def test_a_crash_is_a_difference():
    def crashing(*_):
        raise ZeroDivisionError

    assert "ZeroDivisionError" in str(difference(Case({}, [Transaction("send", PE0, "host", 0, 1, 0)]), crashing))


def test_the_command_prints_its_seeds_and_reads_what_it_prints(tmp_path):
    done = CliRunner().invoke(main, ["--machines", "2", "--seed", "7", "--transactions", "5"])
    assert (done.exit_code, done.output) == (0, "10 transactions on 2 machines, seeds from 7 on: equal\n")
    case = random_case(7, 5)
    path = tmp_path / "case.yaml"
    path.write_text(str(Difference(case, [0] * 5, [0] * 5)), encoding="utf-8")
    assert read_case(path) == case
    assert CliRunner().invoke(main, ["--case", str(path)]).output == "equal\n"
