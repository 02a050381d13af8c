"""The order of a calendar's entries, however many there are and however far ahead."""

import random

import pytest

from kernbench.sim_engine import _python_core
from kernbench.sim_engine._network import Core

AHEAD_PS = (0, 3, 60, 2_000, 8_191, 8_192, 50_000, 10**9)  # within a slot, among the lists, just past them, far


def random_run(core, seed, entries):
    """Process `entries` at random times, half of which are added by others; return (time, key) in order."""
    drawn, seen, left = random.Random(seed), [], iter(range(entries))

    def add():
        for key in left:
            t = core.now + drawn.randint(0, drawn.choice(AHEAD_PS))
            core.call_ordered(t, drawn.randint(0, 9) * entries + key, called, (t, key))
            break

    def called(entry):
        assert core.now == entry[0]
        seen.append(entry)
        for _ in range(drawn.choice((0, 1, 1, 1, 2))):
            add()

    for _ in range(entries // 2):
        add()
    while core.drain(97):
        pass
    return seen


@pytest.mark.parametrize("entries", [40, 600, 6_000])
def test_entries_are_processed_as_in_the_definition(entries):
    """A calendar is a heap while it has few entries; others are in lists by time."""
    for seed in range(5):
        seen = random_run(Core(), seed, entries)
        assert seen == random_run(_python_core.Core(), seed, entries)
        assert len(seen) > entries / 2 - 1


def test_a_calendar_knows_how_much_is_left():
    core, drawn = Core(), random.Random(7)
    times = [drawn.randint(0, drawn.choice(AHEAD_PS)) for _ in range(3_000)]
    for i, t in enumerate(times):
        core.call_ordered(t, i, lambda _: None, None)
    assert (len(core), core.peek()) == (3_000, min(times))
    core.drain(1_000)
    assert (len(core), core.peek()) == (2_000, sorted(times)[1_000])
    core.clear()
    assert (len(core), core.peek()) == (0, float("inf"))
    core.call_ordered(core.now + 5, 0, lambda _: None, None)
    assert len(core) == 1
    assert not core.drain(10)


def test_entries_move_between_lanes_in_order():
    """SIPs are simulated apart and together in turn; what is left moves to other calendars."""
    core, drawn, seen = Core(), random.Random(3), []
    core.split(3, 50_000)
    times = [drawn.randint(0, 10**6) for _ in range(2_000)]
    for i, t in enumerate(times):
        core.call_ordered(t, i, lambda key: seen.append((core.now, key)), i)
    turns = 0
    while core.drain(150):
        turns += 1
        core.couple(1 if turns % 2 else -1)
    assert seen == sorted(zip(times, range(2_000), strict=True))
