"""Schedules on simulated ranks: bubbles against closed forms, what idle time is due to, and values."""

from __future__ import annotations

import pytest

import kernbench as kb
from kernbench.errors import DeadlockError
from kernbench.pipeline import orders, run
from kernbench.pipeline._report import CAUSES
from tests.pipeline.machines import N, add, machine, message, stage_of

CLOSED = {
    "GPipe": lambda p, m, v: (p - 1) / (m + p - 1),
    "1F1B": lambda p, m, v: (p - 1) / (m + p - 1),
    "Interleaved1F1B": lambda p, m, v: (p - 1) / (v * m + p - 1),
    "ZB-H1": lambda p, m, v: (p - 1) / (3 * m + p - 1),
}


def simulated(name, p, m, v=1, unit=20, overrides=None, **cost):
    return run(orders(name, p, m, v), stage_of(unit, **cost), machine(p, overrides), message=message)


def limit(name, p, m, v):
    """The bubble at actions of infinite length: 1 / (1 - bubble) is linear in 1 / their length."""
    points = []
    for unit in (100, 400):
        found = simulated(name, p, m, v, unit)
        length = sum(x.busy_ps for x in found.spans) / len(found.spans)
        points.append((length, 1 / (1 - found.bubble)))
    (d, y), (e, z) = points
    assert y > z  # longer actions hide more
    return 1 - (e - d) / (z * e - y * d)


SMALL = [("GPipe", 2, 4, 1), ("1F1B", 3, 4, 1), ("Interleaved1F1B", 2, 4, 2), ("ZB-H1", 2, 4, 1)]
LARGE = [(name, p, m, 2 if name == "Interleaved1F1B" else 1) for name in CLOSED for p in (4, 8) for m in (p, 2 * p)]


@pytest.mark.parametrize(
    ("name", "p", "m", "v"), [*SMALL, *(pytest.param(*size, marks=pytest.mark.slow) for size in LARGE)]
)
def test_the_bubble_tends_to_the_closed_form(name, p, m, v):
    assert limit(name, p, m, v) == pytest.approx(CLOSED[name](p, m, v), abs=1e-4)


def test_parts_of_the_bubble_sum_to_it():
    found = simulated("1F1B", 3, 4, overrides={"system.host.launch_ns": 200}, **{"1F": 3})
    assert sum(found.causes.values()) == pytest.approx(found.bubble)
    table = found.table
    assert (table[[f"{cause}_ns" for cause in CAUSES]].sum(axis=1) - table["idle_ns"]).abs().max() < 1e-6
    assert table["idle_ns"].sum() / (3 * found.latency_ns) == pytest.approx(found.bubble)
    assert found.peak_activations == [3, 2, 1] == list(table["peak_activations"])


def test_equal_actions_have_no_imbalance_and_the_closed_form_as_ideal():
    found = simulated("1F1B", 3, 4)
    assert found.ideal_bubble == pytest.approx(2 / 6, abs=1e-4)
    assert found.causes["imbalance"] == pytest.approx(0, abs=1e-3)


def test_a_stage_that_takes_longer_is_an_imbalance():
    found = simulated("GPipe", 2, 4, **{"1F": 3})
    short, long = (next(x.busy_ps for x in found.spans if str(x.action) == name) for name in ("0F0", "1F0"))
    # Forwards of 1 and 3 instead of 2 and 2: the last of m is done after 1 + 3 m instead of 2 + 2 m.
    mean = (short + long) / 2
    added = found.causes["imbalance"] * 1000 * found.latency_ns
    assert added == pytest.approx(short + 4 * long - 5 * mean, rel=1e-3)


def test_a_slower_link_and_a_slower_host_are_told_apart():
    base = simulated("1F1B", 2, 4)
    link = "system.sip_link.latency_ns"
    slow = simulated("1F1B", 2, 4, overrides={link: 2000})
    host = simulated("1F1B", 2, 4, overrides={"system.host.descriptor_ns": 500})

    def ns(found, cause):
        return found.causes[cause] * found.latency_ns

    assert ns(slow, "link") > ns(base, "link") + 2000
    assert ns(slow, "launch") == pytest.approx(ns(base, "launch"), rel=0.2)
    assert ns(host, "launch") > ns(base, "launch") + 500


def test_values_pass_through_all_stages_and_back():
    last = {}

    def stage(torch, action, x, y):
        x = torch.full((N,), 10.0 * action.microbatch, dtype=torch.float16, device="ahbm") if x is None else x
        y = message(torch) if y is None else y
        torch.launch(str(action), add, x, y, action.stage + 1)
        last[str(action)] = y

    values = {}

    def keeps(torch, action, x, y):
        stage(torch, action, x, y)
        if action.kind in "BI":
            values[str(action)] = last[str(action)].tolist()[0]

    run(orders("Interleaved1F1B", 2, 2, 2), keeps, machine(2), message=message, data=True)
    # Stages add 1, 2, 3, 4 on the way to the loss, and 4, 3, 2, 1 on the way back.
    assert {name: value for name, value in values.items() if name.startswith("0B")} == {"0B0": 20.0, "0B1": 30.0}
    assert values["3B1"] == 24.0


def test_collectives_of_stages_are_waited_for():
    table = {
        0: ["0UNSHARD", "0F0", "0SEND_F0", "0WAIT_SEND_F0", "0RECV_B0", "0B0", "0REDUCE_GRAD", "0WAIT_REDUCE_GRAD"],
        1: ["1UNSHARD", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1REDUCE_GRAD"],
    }
    asked = []

    def collective(torch, action):
        asked.append(str(action))
        x = torch.zeros(N, device="ahbm") if action.kind == "UNSHARD" else message(torch)
        return torch.distributed.all_reduce(x, async_op=True)

    found = run(table, stage_of(20), machine(2), message=message, collective=collective)
    assert sorted(asked) == ["0REDUCE_GRAD", "0UNSHARD", "1REDUCE_GRAD", "1UNSHARD"]
    gathered = {x.sip: x.end_ps for x in found.result.launches if x.name.startswith("all_reduce")}
    first = {x.rank: x.start_ps for x in reversed(found.spans)}
    reduces = [x for x in found.result.launches if x.name.startswith("all_reduce")][:2]
    assert all(first[x.sip] > x.end_ps for x in reduces)
    assert len(gathered) == 2


def test_the_device_waits_for_messages_and_the_host_does_not():
    seen = {}

    def stage(torch, action, x, y):
        seen[str(action)] = torch.engine.now_ns
        stage_of(20)(torch, action, x if x is not None else y, y if y is not None else x)

    run(orders("1F1B", 2, 4), stage, machine(2), message=message)
    assert len({ns for name, ns in seen.items() if name[0] == "1"}) == 1  # all actions are queued at the start


def test_a_wrong_order_is_refused_before_anything_runs():
    def stage(torch, action, x, y):
        raise AssertionError("nothing may run")

    table = orders("1F1B", 2, 4)
    table[1][:2] = table[1][1::-1]
    with pytest.raises(
        DeadlockError, match=r"rank 1, at 1B0 \(entry 0 of its order\), waits for 1F0, which rank 1 runs"
    ):
        run(table, stage, machine(2), message=message)


def test_a_run_shows_itself():
    found = simulated("ZB-H1", 2, 2)
    assert repr(found).startswith("2 ranks, 12 actions: ")
    assert "peer" in repr(found)
    assert "peak_activations" in repr(found)
    html = found._repr_html_()
    assert html.count("<rect") == 12
    assert "<title>1W1: " in html
    assert "backward, weights" in html
    assert "backward, input" in html
    timeline = found.timeline
    assert next(iter(timeline["action"])) == "0F0"
    assert (timeline["end_ns"] > timeline["start_ns"]).all()
    assert kb.picture(found)
