"""Where messages wait for links: against every hop of every flit, and what it explains."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.analysis._records import CREDIT, MESSAGE, PART
from kernbench.analysis._transfer import RouteBreakdown
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.ccl import CclStudy
from tests.analysis.paths import STEPS, program
from tests.analysis.test_critical_path import overrides
from tests.components.one_pe import engine_of, launch
from tests.sim_engine.waits import waits_of, waits_of_hops
from tests.sim_engine.workloads import ALGORITHMS
from tests.slow import slow_after

kernels = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 0, 5])), min_size=1, max_size=12)
CREDITS = {"cube.noc.router.flow": "credits", "cube.noc.router.overhead_ns": 1}


def all_reduce(algorithm, changes=None, *, trace=False, log="operation"):
    engine = GraphEngine(kb.load("preset:six_sip_torus", overrides=changes or {}), log=log, trace=trace)
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
