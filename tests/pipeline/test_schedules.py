"""Tables of actions by themselves: published bubbles and activations, messages, deadlocks, and what is refused."""

from __future__ import annotations

import pytest

from kernbench.errors import ConfigError, DeadlockError
from kernbench.pipeline import Action, orders
from kernbench.pipeline._actions import Table
from kernbench.pipeline._timing import lowered, peak_activations, times

COST = {"F": 1, "I": 1, "W": 1, "B": 2}
SIZES = [(p, m) for p in (1, 2, 3, 4, 8) for m in (p, 2 * p, 4 * p)]


def bubble(name, p, m, v=1):
    table = Table.of(orders(name, p, m, v))
    found = times(table, lambda action: COST[action.kind], lambda _: 0.0)
    assert len(found.spans) == m * v * p * (3 if name == "ZB-H1" else 2)
    return 1 - 3 * m * v / found.makespan


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_bubbles_are_the_published_ones(p, m):
    assert bubble("GPipe", p, m) == pytest.approx((p - 1) / (m + p - 1))
    assert bubble("1F1B", p, m) == pytest.approx((p - 1) / (m + p - 1))
    for v in (1, 2, 4):
        assert bubble("Interleaved1F1B", p, m, v) == pytest.approx((p - 1) / (v * m + p - 1))
    assert bubble("ZB-H1", p, m) == pytest.approx((p - 1) / (3 * m + p - 1))  # (p - 1) (F + I - W), Qi et al.


@pytest.mark.parametrize(("p", "m"), SIZES)
def test_peak_activations_are_the_published_ones(p, m):
    def peaks(name, v=1):
        return peak_activations(Table.of(orders(name, p, m, v)))

    assert peaks("GPipe") == [m] * p
    assert peaks("1F1B") == [p - r for r in range(p)]
    assert peaks("ZB-H1") == [p] * p
    for v in (2, 3):  # Megatron's warm-up, and one forward more before the first backward
        assert peaks("Interleaved1F1B", v) == [min(m * v, (v - 1) * p + 2 * (p - 1 - r) + 1) for r in range(p)]


def test_messages_follow_their_results():
    found = lowered(Table.of({0: ["0F0", "0F1", "0B0", "0B1"], 1: ["1F0", "1B0", "1F1", "1B1"]}))
    assert [" ".join(map(str, actions)) for actions in found.ranks] == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1RECV_F1 1B0 1SEND_B0 1F1 1B1 1SEND_B1",
    ]
    assert lowered(found) is found


def test_stages_of_one_rank_pass_on_without_messages():
    found = lowered(Table.of({0: ["0F0", "1F0", "1B0", "0B0"]}))
    assert not found.with_messages


def test_a_message_starts_when_both_sides_have_reached_it():
    given = {0: ["0F0", "0SEND_F0", "0F1", "0SEND_F1"], 1: ["1RECV_F0", "1F0", "1RECV_F1", "1F1"]}
    table = Table.of(given)
    found = times(table, lambda action: 5.0 if action.stage else 1.0, lambda _: 10.0)
    # F0 arrives at 1 + 10; F1 is sent at 2, received from 16 on.
    assert found.spans[Action(1, "F", 0)] == (11.0, 16.0)
    assert found.spans[Action(1, "F", 1)] == (26.0, 31.0)


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        (  # torch 2.15's own 1F1B on its last rank
            {0: ["0F0", "0B0"], 1: ["1F1", "1B0"]},
            ["rank 0, at 0B0 (entry 1 of its order), waits for 1B0, which rank 1 runs later",
             "rank 1, at 1F1 (entry 0 of its order), waits for 0F1, which no rank runs"],
        ),
        ({0: ["0B0", "0F0"]}, ["rank 0, at 0B0 (entry 0 of its order), waits for 0F0, which rank 0 runs later"]),
        ({0: ["0F0", "0W0", "0I0"]}, ["rank 0, at 0W0 (entry 1 of its order), waits for 0I0, which rank 0 runs later"]),
        (
            {0: ["0F0", "0SEND_F0"], 1: ["1F0", "1RECV_F0"]},
            ["rank 1, at 1F0 (entry 0 of its order), waits for 1RECV_F0, which rank 1 runs later"],
        ),
        (
            {0: ["0F0"], 1: ["1RECV_F0", "1F0"]},
            ["rank 1, at 1F0 (entry 1 of its order), waits for 0SEND_F0, which no rank runs"],
        ),
        (
            {0: ["0SEND_F0", "0F0"], 1: ["1RECV_F0", "1F0"]},
            ["rank 0, at 0SEND_F0 (entry 0 of its order), waits for 0F0, which rank 0 runs later",
             "rank 1, at 1F0 (entry 1 of its order), waits for 0SEND_F0, which rank 0 runs later"],
        ),
        (
            {0: ["0F0", "0SEND_F0", "0WAIT_SEND_F0"], 1: ["1F1"]},
            ["rank 0, at 0WAIT_SEND_F0 (entry 2 of its order), waits for 1RECV_F0, which no rank runs",
             "rank 1, at 1F1 (entry 0 of its order), waits for 1RECV_F1, which no rank runs"],
        ),
    ],
)  # fmt: skip
def test_a_deadlock_names_each_rank_its_action_and_what_is_missing(table, lines):
    with pytest.raises(DeadlockError) as caught:
        times(lowered(Table.of(table)), lambda _: 1.0, lambda _: 0.0)
    assert str(caught.value).splitlines()[1:] == [f"  {line}" for line in lines]


def test_tables_are_read_from_files_and_torch_s_words(tmp_path):
    path = tmp_path / "order.csv"
    path.write_text("0F0,,0UNSHARD,(0F1;0B0)OVERLAP_F_B\n1FORWARD0,1FULL_BACKWARD0,1REDUCE_GRAD\n")
    assert [" ".join(map(str, actions)) for actions in Table.of(path).ranks] == [
        "0F0 0UNSHARD 0F1 0B0",
        "1F0 1B0 1REDUCE_GRAD",
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({0: ["0F0", "0X1"]}, r"orders: rank 0, 1 = '0X1': expected stage, kind and microbatch, .* known: F, B, I, W"),
        ({0: ["0UNSHARD3"]}, "rank 0, 0 = '0UNSHARD3': expected"),
        ({0: ["0F"]}, "rank 0, 0 = '0F': expected"),
        ({0: ["0F0", "0F0"]}, "rank 0: 0F0 is there twice"),
        ({0: ["0F0"], 1: ["0B0"]}, "stage 0 is on rank 0 and on rank 1"),
        ({0: ["0F0"], 1: ["2F0"]}, "stage 1 of 0 to 2 is on no rank"),
        ({0: []}, "no rank has an action"),
        ({0: ["0F0"], 2: ["1F0"]}, r"ranks are \[0, 2\]; expected 0 to 1"),
        (7, "orders = 7: expected a mapping"),
    ],
)
def test_a_bad_table_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        Table.of(given)


def test_a_bad_entry_of_a_file_is_named(tmp_path):
    path = tmp_path / "order.csv"
    path.write_text("0F0,0Q1\n")
    with pytest.raises(ConfigError, match=r"order\.csv: rank 0, 1 = '0Q1'"):
        Table.of(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("GPIPE", 2, 4), "schedule = 'GPIPE' is unknown; known: GPipe, 1F1B, Interleaved1F1B, ZB-H1"),
        (("GPipe", 0, 4), "ranks = 0 must be at least 1"),
        (("Interleaved1F1B", 4, 6, 2), "microbatches = 6 must be a multiple of ranks = 4"),
        (("1F1B", 4, 8, 2), "stages_per_rank = 2: 1F1B has one stage a rank"),
    ],
)
def test_a_schedule_that_is_not_defined_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        orders(*arguments)
