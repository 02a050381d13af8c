"""A live frame is what links and components have done since the one before; all frames together are the result."""

from __future__ import annotations

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest

import kernbench as kb
from kernbench.notebook._live import MAKING, FrameObserver, Frames
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._observer import Observer
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies import gemm
from kernbench.studies.ccl import CclStudy

PROGRAMS = {
    "gemm": ("small", lambda torch: gemm.product(torch, 128, 256, 128, "ref_ref", "f16")),
    "all-reduce": ("default", lambda torch: CclStudy().program(torch, elements=16384, cubes=2, pes=2)),
}


class Keep(Observer):
    """Keeps a frame of every pulse."""

    def __init__(self):
        self.made, self.frames = Frames(), []

    def pulse(self, engine):
        self.frames.append(self.made.next(engine.counters(), 0.5))


@pytest.fixture(scope="module", params=PROGRAMS)
def watched(request):
    preset, program = PROGRAMS[request.param]
    keep = Keep()
    engine = GraphEngine(kb.load(f"preset:{preset}"), True, log="tile", observers=[keep], live=True)
    with patch("kernbench.sim_engine.engine._SLICE", 32), RuntimeContext(engine) as torch:
        program(torch)
    keep.pulse(engine)
    return keep.frames, engine.records()


def loads(frame):
    links = zip(frame.links, frame.link_load.tolist(), strict=True)
    return dict(links) | dict(zip(frame.nodes, frame.node_load.tolist(), strict=True))


def test_frames_follow_each_other_up_to_the_end(watched):
    frames, records = watched
    assert len(frames) > 10
    assert frames[0].since_ns == 0
    assert all(before.now_ns == after.since_ns for before, after in pairwise(frames))
    assert frames[-1].now_ns == records.makespan_ps / 1000
    assert (frames[-1].done, frames[-1].events) == (frames[-1].total, max(x.events for x in frames))
    assert frames[1].events_per_s == (frames[1].events - frames[0].events) / 0.5 > 0


def test_a_load_is_a_byte_and_all_loads_together_are_the_busy_times_of_the_result(watched):
    frames, records = watched
    busy = dict(zip(records.links.names, records.links.busy_ps.tolist(), strict=True))
    busy |= {name: ps for name, ps in records.busy_by_component().items() if ".pe_dma" not in name}
    found = dict.fromkeys(loads(frames[-1]), 0.0)
    for frame in frames:
        assert frame.link_load.dtype == frame.node_load.dtype == np.uint8
        for name, load in loads(frame).items():
            found[name] += load / 255 * (frame.now_ns - frame.since_ns) * 1000 * (frame.now_ns > frame.since_ns)
    rounding = records.makespan_ps / 255 / 2 + len(frames)
    assert {name: busy[name] for name in found} == pytest.approx(found, abs=rounding)
    assert {name for name, ps in busy.items() if ps and ("->" in name or ".pe_gemm" in name or "hbm" in name)} <= set(
        found
    )
    assert max(found.values()) > 10 * rounding, "something was busy for longer than a byte can lose"


def test_names_are_the_same_objects_until_more_are_used(watched):
    frames, _ = watched
    changed = 0
    for before, after in pairwise(frames):
        for name in ("links", "nodes"):
            same = getattr(after, name) is getattr(before, name)
            assert same == (getattr(after, name) == getattr(before, name))
            changed += not same
    assert 0 < changed < len(frames)


def test_while_no_time_passes_the_shares_stay():
    engine = GraphEngine(kb.load("preset:small"), True, live=True)
    frames = Frames()
    with RuntimeContext(engine) as torch:
        torch.ones(64, 64, device="ahbm").numpy()
        first = frames.next(engine.counters(), 1.0)
        again = frames.next(engine.counters(), 1.0)
    assert first.link_load.any()
    assert again.link_load.tolist() == first.link_load.tolist()
    assert again.events_per_s == 0


def test_a_phase_has_its_progress():
    watch = FrameObserver(lambda _: None)
    assert watch.phase == MAKING
    engine = watch.engine = GraphEngine(kb.load("preset:small"), live=True)
    assert watch.phase == MAKING
    engine.memory.due_bytes, engine.memory.made_bytes = 200, 50
    assert watch.phase == "making values 25%"
    engine.programs_started, engine.programs_ended = 2000, 500
    assert watch.phase == "simulating 25% of 2,000 programs"
    engine.memory.waits = True
    assert watch.phase == "making values 25%"
    engine.doing = "choosing an algorithm: 1 of 4 simulated"
    assert watch.phase == engine.doing


def test_the_choice_of_an_algorithm_says_how_far_it_is():
    said = []
    engine = GraphEngine(kb.load("preset:small", ["system.sips.count=4"]), True)
    run = GraphEngine.wait

    def heard(self, *args, **more):
        said.append(engine.doing)
        return run(self, *args, **more)

    with patch.object(GraphEngine, "wait", heard), RuntimeContext(engine) as torch:
        CclStudy().program(torch, elements=1000)
    order = [x for x in dict.fromkeys(said) if x]
    total = int(order[-1].split(" of ")[1].split()[0])
    assert order[-total:] == [f"choosing an algorithm: {i} of {total} simulated" for i in range(total)]
    assert said[-1] == engine.doing == ""
