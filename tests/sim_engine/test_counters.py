"""Counters tell what has happened by now, whatever is reserved or planned, and in the end what the result tells."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._stages import STAGE_ENGINES
from kernbench.errors import KernbenchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._observer import Observer
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies import gemm
from kernbench.studies.ccl import CclStudy
from tests.reference.traffic import play, random_machine, random_traffic
from tests.sim_engine.adapter import Engine


class Reader(Observer):
    """Reads the counters at every pulse."""

    def __init__(self):
        self.seen = []

    def pulse(self, engine):
        self.seen.append(engine.counters())


def transfers(torch):
    """Copies long enough to reserve links far ahead, to PEs that share some of them."""
    spread = DPPolicy(cube="row_wise", pe="row_wise")
    for sip in range(torch.engine.machine.config.n_sips):
        torch.zeros(512, 128, dtype=torch.float32, device=f"ahbm:{sip}", dp=spread)
    torch.ahbm.synchronize()


PROGRAMS = {
    "gemm from memory": ("small", lambda torch: gemm.product(torch, 128, 256, 128, "ref_ref", "f16")),
    "gemm from TCM": ("small", lambda torch: gemm.product(torch, 128, 256, 128, "load_load", "f16")),
    "transfers": ("default", transfers),
    "all-reduce": ("default", lambda torch: CclStudy().program(torch, elements=16384, cubes=2, pes=2)),
}


def run(program, preset, slices=64, **options):
    """Run in slices of a few events, with a snapshot after each; return the engine and the snapshots."""
    reader = Reader()
    engine = GraphEngine(kb.load(f"preset:{preset}"), True, log="tile", observers=[reader], live=True, **options)
    with patch("kernbench.sim_engine.engine._SLICE", slices), RuntimeContext(engine) as torch:
        program(torch)
    return engine, [*reader.seen, engine.counters()]


@pytest.fixture(scope="module", params=PROGRAMS)
def ran(request):
    preset, program = PROGRAMS[request.param]
    return run(program, preset)


def by_link(counters):
    return dict(zip(counters.links, counters.busy_ps.tolist(), strict=True))


def test_no_server_is_busy_for_longer_than_the_run(ran):
    _, seen = ran
    assert len(seen) > 10
    for counters in seen:
        assert np.all(counters.busy_ps <= counters.now_ps)
        assert np.all(counters.engine_busy_ps <= counters.now_ps)
        assert np.all(counters.slice_busy_ps <= counters.now_ps)


def test_what_has_happened_stays(ran):
    _, seen = ran
    for before, after in pairwise(seen):
        assert before.now_ps <= after.now_ps
        later = by_link(after)
        assert all(busy <= later[link] for link, busy in by_link(before).items())
        later = dict(zip(after.pes, after.engine_busy_ps, strict=True))
        for pe, values in zip(before.pes, before.engine_busy_ps, strict=True):
            assert np.all(values <= later[pe])
        later = dict(zip(after.slices, after.slice_busy_ps.tolist(), strict=True))
        elapsed = after.now_ps - before.now_ps
        for name, busy in zip(before.slices, before.slice_busy_ps.tolist(), strict=True):
            assert 0 <= later[name] - busy <= elapsed + 1, "rounded to a picosecond"


def test_in_the_end_they_are_those_of_the_result(ran):
    engine, seen = ran
    records, last = engine.records(), seen[-1]
    links = records.links
    assert by_link(last) == dict(zip(links.names, links.busy_ps.tolist(), strict=True))
    assert last.done == last.total
    busy = dict(zip(records.components, records.component_busy_ps.tolist(), strict=True))
    for place, values in zip(last.pes, last.engine_busy_ps.tolist(), strict=True):
        pe = "sip{}.cube{}.pe{}".format(*place)
        names = ("pe_fetch_store.fetch", "pe_gemm", "pe_math", "pe_fetch_store.store")
        assert values == [busy[f"{pe}.{name}"] for name in names]
    slices = dict(zip(last.slices, last.slice_busy_ps.tolist(), strict=True))
    assert slices == {name: ps for name, ps in busy.items() if ".hbm_ctrl." in name}


@pytest.mark.parametrize("name", ["gemm from memory", "gemm from TCM"])
def test_engines_have_done_what_the_log_says_they_had_done_by_then(name):
    preset, program = PROGRAMS[name]
    engine, seen = run(program, preset, slices=4)
    kinds = {name: i for i, name in enumerate(engine.records().kinds)}
    records = engine.records()
    partial = 0
    for counters in seen:
        for i, stage in enumerate(STAGE_ENGINES):
            rows = records.kind == kinds[stage]
            start, end = records.start_ps[rows], records.end_ps[rows]
            done = np.clip(counters.now_ps, start, end) - start
            assert counters.engine_busy_ps[:, i].sum() == done.sum()
            partial += int(((start < counters.now_ps) & (counters.now_ps < end)).any())
    assert partial, "snapshots in the middle of a service"


def assert_links_have_done(hops, snapshots):
    """Compare each snapshot with how long each link was busy by then, from the hops of flits."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(hop.link for hop in hops))}
    link = np.array([numbers[hop.link] for hop in hops])
    arrival, start, end = (np.array([getattr(hop, x) for hop in hops]) for x in ("arrival_ps", "start_ps", "end_ps"))
    for counters in snapshots:
        now = counters.now_ps
        come = arrival < now  # of those that come now, some may not have come yet
        done = np.bincount(link[come], (np.clip(now, start, end) - start)[come], len(numbers))
        known = {name: done[i] for name, i in numbers.items()}
        assert by_link(counters) == {name: known.get(name, 0) for name in counters.links}


@pytest.mark.parametrize("name", ["gemm from memory", "transfers", "all-reduce"])
def test_links_have_done_what_their_hops_say_they_had_done_by_then(name):
    """Without a trace, flits move as trains, which reserve links far ahead."""
    preset, program = PROGRAMS[name]
    engine, traced = run(program, preset, slices=16, trace=True)
    _, seen = run(program, preset)
    assert_links_have_done(engine.network.hops, traced[:: max(1, len(traced) // 50)] + seen[:: max(1, len(seen) // 50)])


def test_a_gap_between_flits_that_interleave_ahead_of_the_clock_is_no_service():
    """Of this traffic, one flit lets a link serve two trains ahead of the clock, with a gap before them."""

    class Close(Reader):
        def pulse(self, engine):
            if 900_000 < engine.env.now < 920_000:
                super().pulse(engine)

    machine, reader = random_machine("counters 24"), Close()
    asks = random_traffic(machine, 24, ("send", "read", "write"), 8)
    traced = Engine(machine, trace=True)
    play(traced, asks)
    with patch("kernbench.sim_engine.engine._SLICE", 1):
        play(Engine(machine, live=True, observers=[reader]), asks)
    assert len(reader.seen) > 10
    assert_links_have_done(traced.network.hops, reader.seen)


def test_a_snapshot_takes_as_long_however_much_has_happened():
    """Counted in the stages that are asked, and in the services that they keep because they may be ahead."""
    stages, kept = [], []

    class Counting(Reader):
        def pulse(self, engine):
            super().pulse(engine)
            found = [stage for name, part in engine.parts.items() for stage in getattr(part, "stages", ())]
            stages.append(len(found))
            kept.append(sum(stage.recent for stage in found))

    engine = GraphEngine(kb.load("preset:small"), log="tile", observers=[Counting()], live=True)
    with patch("kernbench.sim_engine.engine._SLICE", 16), RuntimeContext(engine) as torch:
        for _ in range(4):
            gemm.product(torch, 128, 256, 128, "ref_ref", "f16")
    assert len(engine.records()) > 1000
    assert set(stages) <= {0, len(STAGE_ENGINES)}, "one PE works"
    assert 0 < max(kept) < 50


def test_a_run_that_keeps_no_account_says_so():
    with pytest.raises(KernbenchError, match="live=True"):
        GraphEngine(kb.load("preset:small")).counters()
