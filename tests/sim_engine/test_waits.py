"""Where messages wait for links: against every hop of every flit, and what it explains."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.analysis._records import CREDIT, MESSAGE, PART, WAITS
from kernbench.analysis._transfer import RouteBreakdown
from kernbench.analysis.why import why
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._log_table import LogTable
from kernbench.sim_engine._waits import Waits
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.ccl import CclStudy
from kernbench.studies.layers import LayersStudy
from tests.analysis.paths import STEPS, program
from tests.analysis.test_critical_path import overrides
from tests.components.one_pe import engine_of, launch
from tests.sim_engine.waits import waits_of, waits_of_hops
from tests.sim_engine.workloads import ALGORITHMS
from tests.slow import slow_after

kernels = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 0, 5])), min_size=1, max_size=12)
CREDITS = {"cube.noc.router.flow": "credits", "cube.noc.router.overhead_ns": 1}


def all_reduce(algorithm, changes=None, *, trace=False, log="operation", table=LogTable):
    engine = GraphEngine(kb.load("preset:six_sip_torus", overrides=changes or {}), log=log, trace=trace)
    keep_in(engine, table)
    with RuntimeContext(engine) as torch:
        CclStudy().program(torch, algorithm=algorithm, elements=8192, cubes=2, pes=4)
    return engine


def of_hops(engine):
    keys = set(engine.records().dependencies.transfers["key"].tolist())
    return {key: [*waits] for key, waits in waits_of_hops(engine.network.hops, keys).items() if key in keys}


@settings(max_examples=10, deadline=None)
@given(overrides, kernels, st.sampled_from([1, 2, 8]))
def test_waits_are_those_of_the_hops(changes, steps, pes):
    """With and without trains of flits: a trace keeps every hop, so that each flit takes the links by itself."""
    found = []
    for trace in (False, True):
        engine = engine_of(changes, log="tile", trace=trace)
        for _ in range(2):
            launch(engine, program(steps), *((0, pe) for pe in range(pes)))
        found.append(waits_of(engine.records()))
    assert found[0] == found[1] == of_hops(engine)


@pytest.mark.parametrize("algorithm", slow_after(1, ALGORITHMS))
def test_waits_of_collectives_are_those_of_the_hops(algorithm):
    """Hops do not tell how long a message has waited for its turn in front of a PE's first link."""
    engine = all_reduce(algorithm, trace=True)
    found = waits_of(engine.records())
    assert waits_of(all_reduce(algorithm).records()) == found
    turns = [waits[0][0] for waits in found.values() if waits and ".pe_dma->" in waits[0][0]]
    assert turns or not algorithm.endswith("_tcm")
    of_links = {key: [wait for wait in waits if ".pe_dma->" not in wait[0]] for key, waits in found.items()}
    assert of_links == {
        key: [wait for wait in waits if ".pe_dma->" not in wait[0]] for key, waits in of_hops(engine).items()
    }


@pytest.mark.parametrize("algorithm", slow_after(2, ALGORITHMS))
def test_waits_explain_all_that_a_message_takes_longer(algorithm):
    records = all_reduce(algorithm).records()
    routes, d = RouteBreakdown(records), records.dependencies
    waited = 0
    for x in d.at(slice(None)):
        if x.kind not in (MESSAGE, PART, CREDIT) or ".hbm_ctrl." in routes.ends(x.route)[1]:
            continue
        took = (x.arrived_ps if x.kind == PART else x.end_ps) - x.start_ps
        whole = sum(part.ps for _, part in routes.leg(x.route, x.nbytes, waits=d.waits_of(x)))
        alone = sum(part.ps for _, part in routes.leg(x.route, x.nbytes))
        assert whole == took if x.nbytes <= 256 else whole >= took >= alone
        parts = routes.parts(x.route, x.nbytes, took, waits=d.waits_of(x))
        assert sum(part.ps for part in parts) == took
        assert sum(part.ps for part in parts if not part.behind) == alone
        waited += sum(part.ps for part in parts if part.behind)
    assert waited


@pytest.mark.parametrize("algorithm", ALGORITHMS[:3])
def test_a_flit_waits_at_routers_with_credits(algorithm):
    """A message also waits for the next cycle of the network, which is no wait for a link."""
    records = all_reduce(algorithm, CREDITS).records()
    routes, d = RouteBreakdown(records), records.dependencies
    for x in d.at(slice(None)):
        if x.kind in (MESSAGE, CREDIT):
            took = x.end_ps - x.start_ps
            whole = sum(part.ps for _, part in routes.leg(x.route, x.nbytes, waits=d.waits_of(x)))
            assert took - 1000 <= whole <= took + 1000, (x, d.waits_of(x))


@pytest.mark.parametrize("gbs", [256, 300, 100])
def test_a_message_alone_waits_for_no_router(gbs):
    """A cycle need not be the time of a flit on the other links."""
    engine = engine_of({**CREDITS, "cube.noc.link_bw_gbs": gbs}, log="tile")
    launch(engine, program([("load", 0)]), (0, 1))
    records = engine.records()
    routes, d = RouteBreakdown(records), records.dependencies
    cycle = max(cycle for *_, cycle in d.links.values())
    for i, x in enumerate(d.at(slice(None))):
        assert all(wait.front != i for wait in d.waits_of(x))
        if x.kind == MESSAGE:
            took, whole = x.end_ps - x.start_ps, sum(part.ps for _, part in routes.leg(x.route, x.nbytes))
            assert whole <= took < whole + 2 * cycle + sum(wait.ps for wait in d.waits_of(x))


def test_no_message_is_in_front_of_itself_or_long_gone():
    d = all_reduce(ALGORITHMS[0], CREDITS).records().dependencies
    transfers = d.at(slice(None))
    fronts = [(x, transfers[w.front]) for x in transfers for w in d.waits_of(x) if w.front >= 0]
    assert fronts
    assert all(front.key != x.key and front.end_ps > x.start_ps for x, front in fronts)


def test_waits_name_the_message_in_front():
    """Two PEs read from the slice of a third one: each request waits behind the other's data or none."""
    engine = engine_of(log="tile")
    launch(engine, program([("load", 0)] * 3), (0, 1), (0, 2))
    records = engine.records()
    d = records.dependencies
    waits = [(i, wait) for i, x in enumerate(d.at(slice(None))) for wait in d.waits_of(x)]
    assert waits
    assert all(wait.ps > 0 and wait.front != i for i, wait in waits)
    transfers = d.at(slice(None))
    for i, wait in waits:
        assert wait.front >= 0
        assert transfers[wait.front].start_ps < transfers[i].end_ps
        assert transfers[wait.front].end_ps > transfers[i].start_ps


def test_without_a_log_nothing_is_kept():
    assert all_reduce("ring_allreduce_tcm", log="off").env.core.waits is None


class Everything(LogTable):
    """A table that drops nothing."""

    def drop(self, number):
        pass


def product(n, table=LogTable):
    """Return an engine, and how to multiply by rows on it, where all PEs read the same slices."""
    engine = GraphEngine(kb.load("preset:default", overrides={"system.sips.count": 1}))
    keep_in(engine, table)

    def multiply():
        with RuntimeContext(engine) as torch:
            LayersStudy().program(torch, m=8, n=n, k=2048, placement="rows")

    return engine, multiply


def keep_in(engine, table):
    engine.log.waits.table = table(len(WAITS))
    engine.log.waits.add(0, -1, -1, 0)


def assert_those_that_lead_to_ends(engine):
    """Find the waits again from all rows, none of which is dropped."""
    records, moves = engine.records(), engine.log.moves.rows()
    ends, rows = moves[moves[:, 0] >= 0, 12].tolist(), engine.log.waits.table.rows().tolist()
    used = {0}
    for at in ends:
        while at > 0:
            used.add(at)
            at = rows[at][0]
    place = {number: i for i, number in enumerate(sorted(used))}
    d, names = records.dependencies, {link.number: link.name for link in engine.network.links.values()}
    key = d.transfers["key"]
    assert d.transfers["wait"].tolist() == [place.get(at, -1) for at in ends]
    assert d.waits["before"].tolist() == [place[rows[at][0]] for at in sorted(used)]
    assert d.waits["ps"].tolist() == [rows[at][3] for at in sorted(used)]
    logged = set(key.tolist())
    for at in used - {0}:
        i, (_, link, front, _) = place[at], rows[at]
        assert records.links.names[d.waits["link"][i]] == names[link]
        assert d.waits["front"][i] == -1 if front not in logged else key[d.waits["front"][i]] == front
    return len(used)


def test_the_records_have_the_waits_that_lead_to_ends():
    engine = all_reduce(ALGORITHMS[0], table=Everything)
    assert assert_those_that_lead_to_ends(engine) < engine.log.waits.table._rows


def assert_same(records, expected):
    arrays, those = records.dependencies.arrays(), expected.dependencies.arrays()
    assert arrays.keys() == those.keys()
    for name, array in arrays.items():
        assert array.dtype == those[name].dtype
        np.testing.assert_array_equal(array, those[name], name)


def test_waits_that_lead_nowhere_are_dropped():
    """Also in the middle of a run, whose records do not have messages in flight."""
    (whole, multiply), (engine, again), found = product(256, Everything), product(256), []

    def look(looked):
        assert looked.log.waits.last
        found.append(looked.records())

    for each, of in ((whole, assert_those_that_lead_to_ends), (whole, look), (engine, look)):
        each.env.core.call_at(15_000_000, of, each)
    multiply()
    again()
    assert engine.log.waits.table._dropped
    assert assert_those_that_lead_to_ends(whole) < 0.2 * engine.log.waits.table._rows
    dropped, usual = engine.records(), whole.records()
    assert_same(dropped, usual)
    assert_same(*found)
    assert repr(why(dropped)) == repr(why(usual))


def test_a_message_in_flight_keeps_where_it_has_waited():
    """Across several blocks of rows, the rest of which take memory only as long as it is in flight."""
    waits, front = Waits(), 1 << 40

    def others(n):
        for key in range(2, n):
            waits.follow(key)
            waits.add(0, 1, front, 3)  # of an earlier flit
            waits.forget(key)

    waits.follow(1)
    waits.landed(1, waits.add(0, 5, front, 70))
    others(50_000)
    last = waits.add(waits.of(1), 7, front, 90)
    waits.landed(1, last)
    assert waits.table._dropped == 0
    assert waits.forget(1) == last == 50_000
    tracemalloc.start()
    try:
        others(200_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert waits.table._dropped == 250_000 // 16_384
    assert held < 2 * 16_384 * 32
    assert waits.kept.rows().tolist() == [[0, 0, -1, -1, 0], [last, 1, 7, front, 90], [1, 0, 5, front, 70]]
