"""The reference against times worked out by hand, on links of round numbers."""

from __future__ import annotations

import pytest
import simpy

from kernbench._units import flits, serialization_ps
from kernbench.topology._graph import Edge
from tests.reference.simulator import Network


class Line:
    """A network of given links: (src, dst) -> (GB/s, latency ps, rank)."""

    def __init__(self, **links) -> None:
        self.env = simpy.Environment(0)
        edges = {}
        for name, (bw, latency, *rank) in links.items():
            src, dst = name.split("_")
            edges[src, dst] = Edge(src, dst, bw, latency, 0.0, *(rank or (0,)))
        self.network = Network(self.env, lambda *pair: edges[pair])
        self.done: dict[str, int] = {}

    def send(self, t: int, name: str, path: str, nbytes: int, key: tuple[int, int] = (0, 0)) -> None:
        def start(_: object) -> None:
            self.network.send(tuple(path), nbytes, key, lambda: self.done.setdefault(name, self.env.now))

        self.env.timeout(t).callbacks.append(start)

    def run(self) -> dict[str, int]:
        self.env.run()
        return self.done


def test_a_flit_takes_service_then_latency():
    line = Line(a_b=(256.0, 70), b_c=(128.0, 5))
    line.send(10, "m", "abc", 256)
    assert line.run() == {"m": 10 + 1000 + 70 + 2000 + 5}


def test_service_is_rounded_up_to_a_picosecond():
    assert serialization_ps(1, 300.0) == 4  # 3.33
    assert serialization_ps(256, 256.0) == 1000
    assert serialization_ps(0, 77.7) == 0
    assert serialization_ps(256, 25.6) == 10000  # a decimal, though no binary fraction


def test_sizes_become_flits():
    assert [flits(n) for n in (0, 1, 256, 257, 512, 513)] == [1, 1, 1, 2, 2, 3]


def test_a_message_of_nothing_waits_its_turn_and_takes_no_time():
    line = Line(a_b=(256.0, 70))
    line.send(0, "data", "ab", 256, (0, 0))
    line.send(1, "nothing", "ab", 0, (0, 1))
    assert line.run() == {"data": 1070, "nothing": 1070}


def test_a_size_above_one_flit_moves_whole_flits():
    line = Line(a_b=(256.0, 0))
    line.send(0, "m", "ab", 257)
    assert line.run() == {"m": 2000}


def test_a_size_below_one_flit_moves_its_bytes():
    line = Line(a_b=(256.0, 0))
    line.send(0, "m", "ab", 64)
    assert line.run() == {"m": 250}


def test_flits_follow_without_waiting_for_the_message():
    # Cut-through: the second link works on flit 0 while the first one works on flit 1.
    line = Line(a_b=(256.0, 0), b_c=(128.0, 0))
    line.send(0, "m", "abc", 1024)
    assert line.run() == {"m": 1000 + 4 * 2000}


def test_a_latency_occupies_nothing():
    line = Line(a_b=(256.0, 50_000))
    line.send(0, "m", "ab", 512)
    assert line.run() == {"m": 52_000}


def test_messages_of_one_source_follow_each_other():
    line = Line(a_b=(256.0, 0))
    line.send(0, "first", "ab", 512, (0, 0))
    line.send(0, "second", "ab", 256, (0, 1))
    assert line.run() == {"first": 2000, "second": 3000}


def test_streams_that_meet_interleave():
    # Flits of both reach r at 1000, 2000, ...; the lower rank goes first each time.
    line = Line(a_r=(256.0, 0, 1), b_r=(256.0, 0, 0), r_c=(256.0, 0))
    line.send(0, "a", "arc", 768, (0, 0))
    line.send(0, "b", "brc", 768, (1, 0))
    assert line.run() == {"b": 6000, "a": 7000}
    order = [hop.key[0] for hop in line.network.hops if hop.link == "r->c"]
    assert order == [1, 0, 1, 0, 1, 0]


def test_an_earlier_arrival_goes_before_a_lower_rank():
    line = Line(a_r=(256.0, 0, 1), b_r=(256.0, 1, 0), r_c=(256.0, 0))
    line.send(0, "a", "arc", 256, (0, 0))
    line.send(0, "b", "brc", 256, (1, 0))
    assert line.run() == {"a": 2000, "b": 3000}


@pytest.mark.parametrize("keys", [(9, 3), (3, 9)])
def test_what_arrives_over_one_link_at_once_goes_in_the_order_in_which_it_left(keys):
    # A flit of nothing leaves with the flit before it: both reach r at 1005.
    line = Line(a_r=(256.0, 5), r_c=(256.0, 0))
    line.send(0, "first", "arc", 256, (0, keys[0]))
    line.send(1, "second", "arc", 0, (0, keys[1]))
    assert line.run() == {"first": 2005, "second": 2005}


def test_head_of_line():
    # y's link is idle, but y stands behind x in the queue of a -> r, and x's flits hold that.
    line = Line(a_r=(64.0, 0), r_x=(64.0, 0), r_y=(64.0, 0))
    line.send(0, "x", "arx", 1024, (0, 0))
    line.send(0, "y", "ary", 64, (0, 1))
    assert line.run() == {"x": 20_000, "y": 16_000 + 2 * 1000}


def test_hops_say_who_waited_and_who_was_served():
    line = Line(a_b=(256.0, 7))
    line.send(3, "m", "ab", 512, (4, 5))
    line.run()
    assert [tuple(hop) for hop in line.network.hops] == [
        ((4, 5), "a->b", 256, 3, 3, 1003),
        ((4, 5), "a->b", 256, 3, 1003, 2003),
    ]
