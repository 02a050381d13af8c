"""Why one launch took as long as it did: from its start to its end, whatever else the run did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.analysis.result import Result
from kernbench.errors import KernbenchError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from kernbench.topology.builder import resolve_topology
from tests.analysis.paths import chain, checked
from tests.analysis.test_why import twice_as_good
from tests.components.one_pe import engine_of, pointer

SIX = resolve_topology("preset:six_sip_torus")
ONE = DPPolicy(num_cubes=1, num_pes=1)
N = 30_720


def summed(machine=SIX, *, copied=N, algorithm="ring_allreduce_tcm", times=1, log="operation"):
    """Tensors to six SIPs, their sum, and back."""
    with session(machine, log=log) as torch:
        tensors = [torch.empty(N, dtype="f16", dp=ONE, device=f"ahbm:{sip}") for sip in range(6)]
        others = [torch.empty(copied, dtype="f16", dp=ONE, device=f"ahbm:{sip}") for sip in range(6) if copied]
        for other in others:
            other.copy_(torch.empty(copied, dtype="f16"))
        torch.ahbm.synchronize()
        for _ in range(times):
            torch.collective(tensors, algorithm=algorithm, name="sum")
        torch.ahbm.synchronize()
        _ = [other.numpy() for other in others]
    return torch.result


def latency_ps(launches):
    return max(x.end_ps for x in launches) - min(x.start_ps for x in launches)


def test_parts_sum_to_the_latency_of_the_collective_to_the_picosecond():
    result = summed()
    why = result.why("sum")
    assert sum(why.path.parts().values()) == latency_ps(result.launches) < result.records.makespan_ps / 2
    assert sum(x.share for x in why) == pytest.approx(2)  # of the device and of the host
    assert sum(x.ns for x in why) == pytest.approx(why.path.makespan_ps / 1000, abs=1e-6)
    for text in (repr(why), why._repr_html_()):
        for part in (
            "sum, ",
            f"{why.path.steps[0].start_ps / 1000:,.2f} to ",
            f"{latency_ps(result.launches) / 1000:,.2f}",
        ):
            assert part in text
    checked(result.records)


def test_each_launch_of_a_collective_has_its_own_path():
    result = summed(algorithm="tree_allreduce")
    paths = [result.why(x).path for x in result.launches]
    assert [path.makespan_ps for path in paths] == [x.end_ps - x.start_ps for x in result.launches]
    assert len({path.makespan_ps for path in paths}) > 1
    assert max(path.makespan_ps for path in paths) == result.why("sum").path.makespan_ps


@pytest.mark.slow
def test_copies_that_take_longest_do_not_hide_the_limit_of_the_collective():
    before = summed(copied=1 << 18)
    longest = max(before.why(), key=lambda x: x.ns)
    assert longest.host
    assert longest.what == "PCIe link"
    assert before.why()[0].what == before.why("sum")[0].what
    first = before.why("sum")[0]
    assert first.what == "wire of the SIP link"

    after = summed(twice_as_good(SIX, first.fields + first.together), copied=1 << 18)
    saved = latency_ps(before.launches) - latency_ps(after.launches)
    assert saved / 1000 == pytest.approx(first.ns / 2, rel=0.1)

    other = summed(twice_as_good(SIX, longest.fields), copied=1 << 18)
    assert other.latency_ns < 0.7 * before.latency_ns
    assert latency_ps(other.launches) == pytest.approx(latency_ps(before.launches), rel=0.01)


def test_what_went_before_and_after_changes_nothing():
    alone, among = (summed(copied=copied) for copied in (0, 1 << 20))
    a, b = alone.why("sum"), among.why("sum")
    shift = b.path.steps[0].start_ps - a.path.steps[0].start_ps
    assert shift > 0
    assert [replace(x, start_ps=x.start_ps + shift, end_ps=x.end_ps + shift) for x in a.path.steps] == list(
        b.path.steps
    )
    assert b.reasons == a.reasons


def test_inside_the_whole_path_the_steps_are_the_same():
    result = summed()
    start, end = result.launches[0].start_ps, max(x.end_ps for x in result.launches)
    whole = [step for step in result.why().path.steps if start <= step.start_ps and step.end_ps <= end]
    assert [(x.start_ps, x.what) for x in result.why("sum").path.steps] == [(x.start_ps, x.what) for x in whole]


def beside(n):
    """Return why a load of 8 KiB took as long, sent 600 ns after another PE was sent to load `n` from its slice."""

    def load(n, offset):
        return lambda tl: tl.wait(tl.load(pointer(offset), shape=(n,)))

    engine = engine_of()
    other = engine.launch(0, [(0, 1)], load(n, 1 << 20), (), "other")
    engine.wait(engine.env.timer(600_000))
    mine = engine.launch(0, [(0, 0)], load(1 << 12, 0), (), "mine")
    engine.wait(mine.done)
    engine.wait(other.done)
    result = Result(engine.records())
    for launch in result.launches:
        chain(result.records, [launch], launch.start_ps, launch.end_ps)
    return result.why("mine")


def test_a_launch_that_another_delays_differs_from_itself_alone_and_one_beside_it_that_does_not_delay_it_no():
    alone, unharmed, delayed = beside(16), beside(1 << 16), beside(1 << 18)
    assert unharmed.path == alone.path
    longer = (delayed.path.makespan_ps - alone.path.makespan_ps) / 1000
    assert longer > 500
    assert max(alone, key=lambda x: x.ns).what == "wire of the PCIe link"
    assert delayed[0].what == "HBM slice"
    memory = [sum(x.ns for x in why if x.what == "HBM slice") for why in (alone, delayed)]
    assert memory[1] - memory[0] > longer


def test_a_step_that_was_under_way_at_the_start_counts_from_then_on():
    def load(n):
        return lambda tl: tl.wait(tl.load(pointer(0), shape=(n,)))

    engine = engine_of()
    engine.launch(0, [(0, 0)], load(1 << 18), (), "long")
    engine.wait(engine.env.timer(700_000))
    sent = engine.launch(0, [(0, 0)], load(16), (), "short")
    engine.wait(sent.done)
    result = Result(engine.records())
    checked(result.records)
    path = result.why("short").path
    whole = result.why().path
    cut = next(step for step in whole.steps if step.start_ps < path.steps[0].start_ps < step.end_ps)
    assert path.steps[0].what == cut.what
    assert path.steps[0].end_ps == cut.end_ps
    assert path.steps[1:] == whole.steps[whole.steps.index(cut) + 1 :]


def test_the_second_of_a_name_and_a_saved_run(tmp_path):
    result = summed(times=2)
    first, second = result.why("sum"), result.why("sum #2")
    assert second.path.steps[0].start_ps > first.path.steps[0].start_ps
    assert second.path.steps[-1].end_ps > first.path.steps[-1].end_ps
    again = Result.load(result.save(tmp_path / "run.npz"))
    assert again.launches == result.launches
    assert again.why("sum #2").path == second.path


def test_without_a_log_or_an_end_it_says_so():
    with pytest.raises(KernbenchError, match=r'not logged.*log="operation"'):
        summed(log="off").why("sum")
    with session(SIX) as torch:
        torch.launch("long", lambda x, *, tl: tl.load(x, shape=(4096,)), torch.empty(4096, dtype="f16", device="ahbm"))
        torch.engine.wait(torch.engine.env.timer(600_000))
        stopped = torch.result
    assert torch.result.why("long")
    assert stopped.launches[0].end_ps == stopped.records.makespan_ps == 600_000
    with pytest.raises(KernbenchError, match=r"launch 'long' on sip0 has not ended"):
        stopped.why("long")
    with pytest.raises(KernbenchError, match=r"did you mean long\? known: long"):
        stopped.why("lang")
