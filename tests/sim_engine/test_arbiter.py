"""Two request queues at one link, compared with a server that decides chunk by chunk."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.sim_engine._network import Arbiter
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology

SRC, DST, ELSEWHERE = "sip0.cube0.pe0.pe_dma", "sip0.cube0.pe1.pe_dma", "sip0.cube0.hbm_ctrl.pe0"
FLIT_PS = 1000
MACHINE = resolve_topology("preset:small")

Put = tuple[int, int, int]


def decided_chunk_by_chunk(puts: list[Put], chunk: int) -> list[int]:
    """Return when the last flit of each (time, queue, flits) has left a link of one flit per ns."""
    waiting: tuple[deque, deque] = deque(), deque()
    order = deque(sorted(range(len(puts)), key=lambda i: puts[i][0]))
    ends = [0] * len(puts)
    left = [count for _, _, count in puts]
    now, last = 0, 1
    while order or any(waiting):
        if not any(waiting):
            now = max(now, puts[order[0]][0])
        while order and puts[order[0]][0] <= now:
            i = order.popleft()
            waiting[puts[i][1]].append(i)
        kind = 1 - last if all(waiting) else (1 if waiting[1] else 0)
        i = waiting[kind][0]
        served = min(chunk, left[i])
        left[i] -= served
        now += served * FLIT_PS
        last = kind
        if not left[i]:
            waiting[kind].popleft()
            ends[i] = now
    return ends


def simulated(
    puts: list[Put], chunk: int, to: tuple[str, str] = (DST, DST), **options: Any
) -> tuple[list[int], GraphEngine]:
    engine = GraphEngine(MACHINE, log="off", **options)
    routes = [engine.network.route(SRC, dst) for dst in to]
    arbiter = Arbiter(engine.network.core, routes[0].links[0], chunk * 256)
    ends = [0] * len(puts)

    def put(i: int) -> None:
        _, kind, count = puts[i]
        arbiter.send(kind, routes[kind], count * 256, routes[kind].key(), arrived, i)

    def arrived(i: int) -> None:
        links = routes[puts[i][1]].links
        ends[i] = engine.env.now - sum(link.lat for link in links) - FLIT_PS * (len(links) - 1)

    for i, (t, _, _) in enumerate(puts):
        engine.env.call_at(t, put, i)
    engine.run()
    return ends, engine


# Times between flits' ends, so that no request ties with the end of a chunk.
Puts = st.lists(
    st.tuples(st.integers(0, 60).map(lambda t: 700 * t + 1), st.integers(0, 1), st.integers(1, 20)),
    min_size=1, max_size=9, unique_by=lambda put: put[0],
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(Puts, st.sampled_from([1, 2, 4]))
def test_turns_are_taken_chunk_by_chunk(puts, chunk):
    assert simulated(puts, chunk)[0] == decided_chunk_by_chunk(puts, chunk)


@settings(max_examples=60, deadline=None)
@given(Puts, st.sampled_from([1, 2]))
def test_turns_of_messages_that_part_behind_the_link(puts, chunk):
    assert simulated(puts, chunk, to=(ELSEWHERE, DST))[0] == decided_chunk_by_chunk(puts, chunk)


@settings(max_examples=30, deadline=None)
@given(Puts)
def test_hop_records_tell_the_same(puts):
    assert simulated(puts, 1, trace=True)[0] == decided_chunk_by_chunk(puts, 1)
