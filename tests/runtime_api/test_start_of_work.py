"""What a launch costs before its message leaves: the host prepares it, the device sees it and fetches it."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import ConfigError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small
from tests.runtime_api.ranks import on_ranks

SHORT, LONG = 64, 1 << 16  # elements: the launch of one takes 0.3 us, of the other 0.8


def read(x, n, *, tl):
    tl.load(x, shape=(n,), dtype="f16")


def costs(**ns):
    return {f"system.host.{name}_ns": value for name, value in ns.items()}


def launches(n=SHORT, count=3, graph=False, name="read", **ns):
    """When the message of each launch left and its completion arrived, after the calls, and what happened [ns]."""
    with session(kb.load("preset:small", overrides=costs(**ns))) as torch:
        x = torch.empty(LONG, dtype=torch.float16, device="ahbm")
        torch.ahbm.synchronize()
        called = torch.engine.now_ns
        if graph:
            with torch.ahbm.graph() as captured:
                for i in range(count):
                    torch.launch(f"{name}{i}", read, x, n)
            captured.replay()
        else:
            for i in range(count):
                torch.launch(f"{name}{i}", read, x, n)
    found = [(x.start_ps / 1000 - called, x.end_ps / 1000 - called) for x in torch.result.launches]
    return found, torch.result


def sent(*args, **ns):
    return [pytest.approx(start) for start, _ in launches(*args, **ns)[0]]


def ends(*args, **ns):
    return [end for _, end in launches(*args, **ns)[0]]


def test_without_costs_a_launch_leaves_when_it_is_called_or_the_one_before_has_ended():
    assert sent() == [0, *ends()[:2]]


def test_the_host_prepares_launches_one_after_another():
    assert sent(launch=5000) == [5000, 10_000, 15_000]
    assert sent(launch=5000, doorbell=300) == [5300, 10_300, 15_300]


def test_earlier_work_hides_the_host_and_the_doorbell():
    alone = ends(LONG, 1)[0]
    assert alone > 700
    # Prepared after 250 and 500, seen after 350 and 600: the first one has not ended.
    assert sent(LONG, 2, launch=250, doorbell=100) == [350, 350 + alone]
    # Seen a nanosecond after the end of the first one.
    late = alone - 100 + 1
    assert sent(LONG, 2, launch=late, doorbell=100) == [late + 100, max(2 * late + 100, late + 100 + alone)]
    assert 2 * late + 100 == late + 100 + alone - 99
    assert sent(LONG, 2, launch=alone + 1, doorbell=100) == [alone + 101, 2 * alone + 102]


def test_nothing_hides_the_fetch():
    alone = ends(LONG, 1)[0]
    assert sent(LONG, 3, descriptor=500) == [500, 1000 + alone, 1500 + 2 * alone]
    assert sent(LONG, 2, launch=5000, descriptor=500) == [5500, 10_500]


def test_the_start_of_attention_is_that_of_its_launches():
    alone = ends(LONG, 1)[0]
    given = {"descriptor": 500, "attention_start": 200, "collective_start": 90}
    assert sent(LONG, 2, name="attention", **given) == [700, 1400 + alone]
    assert sent(LONG, 2, **given) == [500, 1000 + alone]
    _, result = launches(name="attention", **given)
    found = {reason.what: reason for reason in result.why()}
    assert (found["descriptor fetch"].ns, found["start of attention"].ns) == (3 * 500, 3 * 200)
    assert found["start of attention"].fields == ("system.host.attention_start_ns",)


def test_a_graph_pays_once():
    free, paid = (launches(graph=True, **ns)[0] for ns in ({}, {"launch": 5000, "doorbell": 300, "descriptor": 500}))
    assert paid == [pytest.approx((start + 5800, end + 5800)) for start, end in free]


def test_a_later_call_is_prepared_from_its_own_moment():
    with session(kb.load("preset:small", overrides=costs(launch=1000))) as torch:
        x = torch.empty(LONG, dtype=torch.float16, device="ahbm")
        torch.launch("read", read, x, SHORT)
        torch.ahbm.synchronize()
        called = torch.engine.now_ns
        torch.launch("read", read, x, SHORT)
    assert torch.result.launches[1].start_ps / 1000 == pytest.approx(called + 1000)


def test_each_rank_prepares_its_own_collectives():
    def program(torch, rank):
        x = torch.ones(512, 8, dtype=torch.float16, device=rank, dp=DPPolicy(cube="row_wise", pe="row_wise"))
        for _ in range(2):
            torch.distributed.all_reduce(x)

    given = costs(launch=100_000, collective=50_000, descriptor=500, collective_start=700, attention_start=9000)
    machine = kb.load(small(2).config.to_spec(), overrides=given)
    with session(machine) as torch:
        on_ranks(program, 2, torch=torch)
    found = sorted(x.start_ps for x in torch.engine.launches if x.name.startswith("all_reduce"))
    assert len(found) == 4
    # The ranks prepare at the same time; what is more is the message that installs the queues.
    assert 151_200_000 <= found[0] <= found[1] < 152_200_000
    # The second call is made when the first collective has ended.
    assert found[2] - found[1] > 151_200_000
    (start,) = [reason for reason in torch.result.why() if reason.what == "start of a collective"]
    assert (start.ns, start.fields) == (2 * 700, ("system.host.collective_start_ns",))


def test_why_names_what_a_launch_costs_and_adds_up():
    _, result = launches(launch=5000, doorbell=300, descriptor=500)
    found = {reason.what: reason for reason in result.why()}
    assert found["descriptor fetch"].ns == 3 * 500
    assert found["host, start of launches"].fields[0] == "system.host.launch_ns"
    assert sum(reason.ns for reason in result.why()) == pytest.approx(result.latency_ns)


def test_a_prediction_of_such_a_run_is_refused():
    _, result = launches(launch=5000)
    with pytest.raises(ConfigError, match=r"system.host.launch_ns = 5000: a prediction does not know"):
        result.what_if({"cube.hbm.channel_bw_gbs": 64})
    _, free = launches()
    with pytest.raises(ConfigError, match=r"system.host.launch_ns = 1.*run the program on the changed machine"):
        free.what_if({"system.host.launch_ns": 1})
    with pytest.raises(ConfigError, match=r"simple.start_ns = 1.*run the program on the changed machine"):
        free.what_if({"cube.pe.pe_ipcq.simple.start_ns": 1})
