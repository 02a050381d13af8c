"""Events that depend on each other, and servers that take what is ready first."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis._what_if._retime import retime


class Events:
    """Events of one server, or of none, and edges between them."""

    def __init__(self, n, edges=(), served=(), spread=(), previous=()):
        self.n = n
        edges = sorted(edges)
        source, target = (np.array([edge[i] for edge in edges], np.int64) for i in (0, 1))
        self.edges = np.searchsorted(source, np.arange(n + 1)), target
        self.weight = np.array([edge[2] for edge in edges], float)
        self.before = np.bincount(target, minlength=n)
        self.server, self.service, self.spread = np.full(n, -1), np.zeros(n), np.zeros(n)
        for event, service in served:
            self.server[event], self.service[event], self.spread[event] = 0, service, service
        for event, ps in spread:
            self.spread[event] = ps
        self.at_once = np.zeros(n, np.int64)
        self.previous = np.full(n, -1)
        for event, other in previous:
            self.previous[event] = other
        self.learned = np.ones(n), np.zeros(n), np.zeros(n)

    def times(self, recorded=None):
        servers = self.server, self.service, self.spread, self.at_once, self.previous
        return retime(*self.edges, self.weight, self.before, *servers, *self.learned, recorded).tolist()


def test_what_is_ready_first_is_served_first():
    events = Events(3, [(0, 1, 10.0), (0, 2, 12.0)], [(1, 8.0), (2, 8.0)])
    assert events.times() == [0, 10, 18]
    events.weight[0] = 14
    assert events.times() == [0, 20, 12]


def test_a_server_that_is_free_delays_nothing():
    assert Events(3, [(0, 1, 10.0), (0, 2, 30.0)], [(1, 8.0), (2, 8.0)]).times() == [0, 10, 30]


def test_what_came_before_the_server_was_busy_is_done():
    # Event 2 comes over 40 ps; half of it is served when event 1 comes.
    events = Events(3, [(0, 1, 30.0), (0, 2, 40.0)], [(1, 10.0), (2, 20.0)], [(2, 40.0)])
    assert events.times() == [0, 30, 40]
    events.service[2] = 40
    assert events.times() == [0, 30, 50]


def test_what_another_server_had_for_long_comes_for_as_long():
    # Events 1 and 2 are of another server and take 30 ps there; event 3 was let through slowly before.
    events = Events(4, [(0, 1, 30.0), (1, 2, 1.0), (0, 3, 25.0)], [(1, 30.0), (2, 2.0), (3, 10.0)], (), [(2, 1)])
    events.server[1] = 1
    assert events.times() == [0, 30, 31, 25]
    events.service[2] = 20  # 16 of the 30 ps in which it comes are left when event 3 comes
    assert events.times() == pytest.approx([0, 30, 25 + 20 * 16 / 30, 25])


def test_a_wait_covers_what_came_in_between():
    events = Events(3, [(0, 1, 10.0), (0, 2, 12.0)], [(1, 8.0), (2, 8.0)])
    assert events.times(np.array([0.0, 17.0, 18.0])) == [0, 17, 18]  # each was served in between of the other
    assert events.times() == [0, 17, 18]
    events.weight[0] = 14
    assert events.times() == [0, 21, 12]  # event 1 waits for 6 ps now, which are of the 7 that it took longer


def test_what_comes_all_at_once_is_not_served_before():
    events = Events(3, [(0, 1, 30.0), (0, 2, 40.0)], [(1, 10.0), (2, 20.0)], [(2, 25.0)])
    assert events.times() == [0, 30, 46]
    events.at_once[2] = True
    assert events.times() == [0, 30, 50]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_recorded_times_are_learned_exactly(data):
    n = data.draw(st.integers(2, 12))
    recorded = np.array(sorted(data.draw(st.lists(st.integers(0, 50), min_size=n, max_size=n))), float)
    pairs = data.draw(st.sets(st.tuples(st.integers(0, n - 2), st.integers(1, n - 1)).filter(lambda x: x[0] < x[1])))
    edges = [(a, b, float(data.draw(st.integers(0, int(recorded[b] - recorded[a]))))) for a, b in sorted(pairs)]
    served = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.floats(0, 20)), unique_by=lambda x: x[0]))
    events = Events(n, edges, served)
    events.times(recorded)
    assert events.times() == pytest.approx(recorded.tolist(), abs=1e-6)
