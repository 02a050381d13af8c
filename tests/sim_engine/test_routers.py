"""Routers with credits (M4.14): each rule with the last case in which it bites and the first in which it does not.

One cube of 6 x 6 routers without a hole, cycles of 1 ns. PE 0 is at r0c0 and PE 1 at its east neighbour r0c1. A flit of
PE 0 is in the buffer of its router after 2 cycles and takes 5 more for each router.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kernbench.analysis._transfer import TransferLeg, message_parts
from kernbench.errors import ConfigError
from kernbench.policy._routing import RouteTable
from kernbench.runtime_api.context import session
from kernbench.sim_engine._router_networks import REPLY, REQUEST
from kernbench.topology._mesh import vc_classes
from kernbench.topology._naming import hbm, pe_dma, sram
from kernbench.topology.builder import resolve_topology
from tests.runtime_api.ranks import on_ranks
from tests.sim_engine.adapter import Engine

PE0, PE1, SLICE0, SLICE1 = pe_dma(0, 0, 0), pe_dma(0, 0, 1), hbm(0, 0, 0), hbm(0, 0, 1)
FLIT = 256
SIPS = ("ring_1d", "torus_2d", "mesh_2d_no_wrap", "fully_connected")


def machine(**router):
    at = "cube.noc.router."
    return resolve_topology(
        "preset:default",
        {"cube.noc.removed": [], at + "flow": "credits", **{at + key: value for key, value in router.items()}},
    )


def ends(*messages, **router) -> list[int]:
    """Return when each message (src, dst, flits, start ps) ends [ps]."""
    sim = Engine(machine(**router))
    done = [0] * len(messages)

    def start(i: int, src: str, dst: str, flits: int) -> None:
        sim.send(src, dst, flits * FLIT, lambda: done.__setitem__(i, sim.now))

    for i, (src, dst, flits, t) in enumerate(messages):
        sim.at(t, lambda i=i, src=src, dst=dst, flits=flits: start(i, src, dst, flits))
    sim.run()
    return done


def test_a_flit_alone_takes_the_stages_of_each_router():
    assert ends((PE0, SLICE0, 1, 0)) == [7000]
    assert ends((PE0, SLICE1, 1, 0)) == [12000]
    assert ends((PE0, SLICE1, 1, 0), pipeline=[0, 1, 1, 1]) == [10000]
    for stage in range(4):
        pipeline = [1, 1, 1, 1]
        pipeline[stage] = 3
        assert ends((PE0, SLICE1, 1, 0), pipeline=pipeline) == [16000]


def test_a_flit_waits_for_the_next_cycle():
    assert ends((PE0, SLICE0, 1, 1000)) == [8000]
    assert ends((PE0, SLICE0, 1, 1)) == [8000]
    assert ends((PE0, SLICE0, 1, 1001)) == [9000]


def test_one_flit_a_cycle_crosses_to_an_output():
    # PE 0's flit is ready for the switch of r0c1 in cycle 9, PE 1's 4 cycles after it was sent.
    assert ends((PE0, SLICE1, 1, 0), (PE1, SLICE1, 1, 4000)) == [12000, 11000]
    assert sorted(ends((PE0, SLICE1, 1, 0), (PE1, SLICE1, 1, 5000))) == [12000, 13000]
    assert ends((PE0, SLICE1, 1, 0), (PE1, SLICE1, 1, 6000)) == [12000, 13000]


def test_a_packet_has_its_virtual_channel_for_three_cycles():
    # Of two flits in one VC the second has its route computed when the first has left; in two VCs they follow at once.
    assert ends((PE0, SLICE0, 2, 0), vcs=1) == [10000]
    assert ends((PE0, SLICE0, 2, 0), vcs=2) == [8000]


def test_a_flit_leaves_when_the_next_buffer_has_room():
    # The credit of the first flit is back 2 cycles after it has left the buffer, in cycle 6.
    assert ends((PE0, SLICE0, 2, 0), vcs=1, vc_flits=1) == [13000]
    assert ends((PE0, SLICE0, 2, 0), vcs=1, vc_flits=2) == [10000]


def test_a_slower_link_is_busy_for_whole_cycles():
    # 256 B take 2 ns on the SRAM's link of 128 GB/s: one cycle more for each, and the switch waits for it.
    near, far = ends((pe_dma(0, 0, 4), sram(0, 0), 1, 0))[0], ends((pe_dma(0, 0, 4), sram(0, 0), 2, 0))[0]
    assert far - near == 2000
    alone = len(RouteTable(machine().graph).path(pe_dma(0, 0, 4), sram(0, 0))) - 2
    assert near == (2 + 5 * alone + 1) * 1000


def test_a_cycle_is_the_time_of_a_flit_with_its_header():
    for header, cycle_ps in ((0, 1000), (64, 1250)):
        sim, done = Engine(machine().with_({"cube.noc.header_bytes": header})), []
        sim.send(PE0, SLICE0, FLIT, lambda sim=sim, done=done: done.append(sim.now))
        sim.run()
        assert done == [7 * cycle_ps]


def served(*packets, **router) -> list[tuple[str, int]]:
    """Send packets (src, dst, flits) at once, PE 0's first; return (end of the link, packet) of each flit on a link."""
    sim = Engine(machine(**router), trace=True)
    for src, dst, flits in packets:
        links = sim.network.route(src, dst).links
        links[0].legs[id(links)].packet_flits = flits
        sim.send(src, dst, flits * FLIT, lambda: None)
    sim.run()
    keys = sorted({hop.key for hop in sim.network.hops})
    hops = sorted(sim.network.hops, key=lambda hop: hop.start_ps)
    return [(hop.link.partition("->")[2], keys.index(hop.key)) for hop in hops]


def test_a_vc_of_an_output_serves_the_vcs_of_inputs_in_turn():
    # There is one VC to the slice. Without a cycle for the route, both streams ask for it when it is free.
    flits = [(PE0, SLICE1, 1)] * 8 + [(PE1, SLICE1, 1)] * 8
    at_slice = [number // 8 for end, number in served(*flits, vcs=1, pipeline=[0, 1, 1, 1]) if end == SLICE1]
    # PE 1's third packet asks in cycle 6, as does PE 0's first one.
    assert at_slice == [1, 1, *[0, 1] * 6, 0, 0]


def test_a_packet_takes_the_vcs_of_an_output_in_turn():
    # Flits 0 and 2 are in one VC of r0c0. When flit 2 asks, VCs 0 and 1 of the output are free; flit 0 has had VC 0. In
    # VC 1, flit 2 reaches r0c1 in the cycle in which flit 1 leaves it, and waits for a cycle.
    flits = [(PE0, SLICE1, 1, 1000 * i) for i in range(3)]
    assert ends(*flits, vcs=2) == [12_000, 13_000, 16_000]
    # With a VC for each, flit 2 takes VC 0, and reaches r0c1 in the cycle in which flit 0 leaves it.
    assert ends(*flits, vcs=3) == [12_000, 13_000, 15_000]


def test_an_input_serves_its_vcs_in_turn():
    # The SRAM's link takes two cycles for a flit: of the first packet three are left when the second one may be sent.
    links = served((pe_dma(0, 0, 4), sram(0, 0), 4), (pe_dma(0, 0, 4), sram(0, 0), 4))
    assert [number for end, number in links if end == sram(0, 0)] == [0, 0, 1, 0, 1, 0, 1, 1]


def test_an_input_sends_to_its_outputs_in_turn():
    # Packet 0 has cycles 9, 11, 13 and 15 of the output to the slice, packet 2 those between. In cycle 17, packet 0 is
    # offered this output again, and packet 1 that to the east; the input takes them in turn from then on.
    links = served((PE0, SLICE1, 8), (PE0, hbm(0, 0, 2), 8), (PE1, SLICE1, 16))
    left = [number for end, number in links if end in (SLICE1, "sip0.cube0.r0c2") and number < 2]
    assert left == [0] * 4 + [1, 0] * 4 + [1] * 4


def test_an_output_serves_its_inputs_in_turn():
    # Both streams are at the switch of r0c1 from cycle 9 on, and share its output to the slice.
    first, second = ends((PE0, SLICE1, 16, 0), (PE1, SLICE1, 16, 5000), vcs=8)
    assert abs(first - second) <= 2000
    # One stream alone uses every cycle; so do the two.
    assert max(first, second) == 12_000 + 31 * 1000


def test_an_input_sends_a_flit_a_cycle():
    # PE 0's flits for the slice of PE 1 wait for PE 1's. Flits behind them, for the east, find their output free.
    sim = Engine(machine(vcs=8), trace=True)
    for src, dst, flits in ((PE1, SLICE1, 12), (PE0, SLICE1, 8), (PE0, hbm(0, 0, 2), 8)):
        for _ in range(flits):
            sim.send(src, dst, FLIT, lambda: None)
    sim.run()
    came = {hop.key for hop in sim.network.hops if hop.link == "sip0.cube0.r0c0->sip0.cube0.r0c1"}
    left = [hop.start_ps for hop in sim.network.hops if hop.link.startswith("sip0.cube0.r0c1->") and hop.key in came]
    assert len(left) == len(set(left)) == 16


def test_the_credit_of_a_part_returns_two_cycles_after_its_flit():
    # PEs 0 and 1 share one VC of one flit to the slice: 3 cycles for a flit, and 2 for its credit.
    assert max(ends((PE0, SLICE1, 8, 0), (PE1, SLICE1, 8, 0), vcs=1, vc_flits=1)) == 7000 + 15 * 5000


def test_flits_of_a_route_arrive_in_order():
    # With VCs of one flit, flits behind a stream for another slice are held up in some VCs and overtake in others.
    sim, done = Engine(machine(vcs=4, vc_flits=1)), []
    for i in range(24):
        sim.send(PE0, SLICE1, FLIT, lambda i=i: done.append(i))
        sim.send(PE1, SLICE1, FLIT, lambda: None)
        sim.send(pe_dma(0, 0, 2), SLICE1, FLIT, lambda: None)
    sim.run()
    assert done == list(range(24))


def test_requests_and_replies_have_virtual_channels_of_their_own():
    network = Engine(machine(vcs=3)).network
    routers = network.routers.network("sip0.cube0", "sip0.cube0.r0c0")
    path = ("sip0.cube0.r0c0", "sip0.cube0.r0c1")
    for message_class in (REQUEST, REPLY):
        hops = routers.hops(path, SLICE1, message_class)
        assert {(low, high) for _, low, high in hops} == {(3 * message_class, 3 * message_class + 3)}


def dependencies(walks) -> dict:
    """Return which (link, VC class) packets wait for while they have another one, over all walks between routers."""
    after: dict = {}
    for walk, classes in walks:
        for here, there in pairwise(list(zip(pairwise(walk), classes, strict=True))):
            after.setdefault(here, set()).add(there)
    return after


def has_circle(after: dict) -> bool:
    """Return whether a depth-first search finds a way back to a node that it comes from."""
    state: dict = {}
    for first, following in after.items():
        stack = [(first, iter(following))] if first not in state else []
        state.setdefault(first, "open")
        while stack:
            node, further = stack[-1]
            following = next(further, None)
            if following is None:
                state[node] = "closed"
                stack.pop()
            elif state.get(following) == "open":
                return True
            elif following not in state:
                state[following] = "open"
                stack.append((following, iter(after.get(following, ()))))
    return False


HOLES = ([[2, 2], [2, 3], [3, 2], [3, 3]], [[1, 1], [1, 2], [1, 3], [2, 1], [3, 1]], [])


@pytest.mark.parametrize("removed", HOLES, ids=str)
def test_no_circle_of_waiting_packets_closes_in_a_mesh_with_holes(removed):
    layout = resolve_topology("preset:default", {"cube.noc.removed": removed}).graph.layout
    ends = {*layout.pes, *layout.ports.values(), layout.m_cpu, layout.sram}
    walks = [layout.walk(a, b) for a in ends for b in ends]
    assert has_circle(dependencies([(walk, [0] * (len(walk) - 1)) for walk in walks])) == bool(removed)
    assert not has_circle(dependencies([(walk, vc_classes(walk)) for walk in walks]))
    assert max(max(vc_classes(walk), default=0) for walk in walks) + 1 == layout.vc_classes


def torus(rows: int, cols: int, topology: str = "torus", **router):
    places = [[r, c] for r in range(rows) for c in range(cols)]
    at = {"cube.noc.rows": rows, "cube.noc.cols": cols, "cube.noc.topology": topology}
    ends = {"cube.pe_layout.pe_routers": places, "cube.m_cpu.pos_mm": [0, 0], "cube.sram.pos_mm": [0, 0]}
    return machine(**router).with_({**at, **ends})


@pytest.mark.parametrize("sides", [(4, 4), (5, 3), (2, 6), (4, 3, "rings"), (2, 5, "rings")], ids=str)
def test_no_circle_of_waiting_packets_closes_in_a_torus(sides):
    layout = torus(*sides).graph.layout
    walks = [layout.walk(a, b) for a in layout.routers for b in layout.routers]
    assert has_circle(dependencies([(walk, [0] * (len(walk) - 1)) for walk in walks]))
    assert not has_circle(dependencies([(walk, layout.classes(walk)) for walk in walks]))
    assert max(max(layout.classes(walk), default=0) for walk in walks) + 1 == layout.vc_classes == 2


@pytest.mark.parametrize("topology", ["torus", "rings"])
def test_every_flit_arrives_round_the_rings_of_a_torus(topology):
    rng, sim, ended = np.random.default_rng(7), Engine(torus(4, 5, topology, vcs=2, vc_flits=1)), []
    for a, b, flits in rng.integers([0, 0, 1], [20, 20, 9], (300, 3)).tolist():
        sim.send(pe_dma(0, 0, a), hbm(0, 0, b), flits * FLIT, lambda: ended.append(sim.now))
    sim.run()
    assert len(ended) == 300


@pytest.mark.parametrize("topology", SIPS)
@pytest.mark.parametrize(("w", "h"), [(4, 4), (5, 3), (2, 2), (8, 1)])
@pytest.mark.parametrize("ties", ["parity", "random"])
def test_no_circle_of_waiting_packets_closes_between_sips(topology, w, h, ties):
    flat = topology in ("ring_1d", "fully_connected")
    sips = resolve_topology(
        "preset:small",
        {
            "system.sips.count": w * h,
            "system.sips.topology": topology,
            "system.sips.w": None if flat else w,
            "system.sips.h": None if flat else h,
            "system.sip_link.router.flow": "credits",
            "system.sip_link.router.ties": ties,
        },
    ).graph.sips
    if topology == "fully_connected":
        assert all(len(sips.path(a, b)) == 2 for a in range(w * h) for b in range(w * h) if a != b)
        return
    no_circle(sips, w * h, rings_of_two=(topology, w) == ("ring_1d", 2))


@pytest.mark.parametrize("sides", [(5, 3, 2), (2, 4, 5), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("ties", ["parity", "random"])
def test_no_circle_of_waiting_packets_closes_in_three_dimensions(sides, ties):
    router = {"system.sip_link.router.flow": "credits", "system.sip_link.router.ties": ties}
    n = sides[0] * sides[1] * sides[2]
    sips = {"count": n, "topology": "torus_3d", **dict(zip("whd", sides, strict=True))}
    no_circle(resolve_topology("preset:small", {"system.sips": sips, **router}).graph.sips, n)


def no_circle(sips, n, *, rings_of_two=False):
    walks = [sips.walk(path) for a in range(n) for b in range(n) for path in sips.paths(a, b)]
    with_one_class = has_circle(dependencies([(walk, [0] * (len(walk) - 1)) for walk in walks]))
    assert with_one_class == (sips.vc_classes > 1) or rings_of_two
    assert not has_circle(dependencies([(walk, vc_classes(walk, wrapped=sips.wrapped)) for walk in walks]))


def ring_of_four(ties: str):
    router = {"flow": "credits", "ties": ties}
    sips = {"system.sips.count": 4, **{f"system.sip_link.router.{key}": router[key] for key in router}}
    return resolve_topology("preset:small", sips)


def from_sip_0_to_2(ties: str) -> list[list[int]]:
    """Return which of 64 reads go east, which replies come from there, and the same for the west."""
    sim = Engine(ring_of_four(ties), trace=True)
    for _ in range(64):
        sim.read(PE0, hbm(2, 0, 0), 0, FLIT, lambda: None)
    sim.run()
    crossed: dict[str, set[int]] = {}
    for hop in sim.network.hops:
        crossed.setdefault(hop.link, set()).add(hop.key)
    keys = sorted(crossed[f"{PE0}->sip0.cube0.r0c0"])
    links = [f"sip{a}.io.noc->sip{b}.io.noc" for a, b in ((0, 1), (1, 0), (0, 3), (3, 0))]
    return [[i for i, key in enumerate(keys) if key in crossed.get(link, ())] for link in links]


def test_each_message_draws_one_of_equally_long_ways_and_its_reply_returns_over_it():
    east, from_east, west, from_west = from_sip_0_to_2("random")
    assert (east, west) == (from_east, from_west)
    assert sorted(east + west) == list(range(64))
    assert 20 <= len(east) <= 44
    assert any(b == a + 1 for a, b in pairwise(east))  # not in turn
    assert from_sip_0_to_2("random")[0] == east
    assert from_sip_0_to_2("parity") == [list(range(64)), list(range(64)), [], []]


def test_queues_and_collectives_keep_their_order_over_drawn_ways():
    carried = {}
    for ties in ("parity", "random"):

        def program(torch, rank):
            x = torch.tensor(np.arange(8192, dtype=np.float32) + 10_000 * rank, device="ahbm")
            y = torch.zeros(8192, device="ahbm")
            torch.distributed.all_to_all_single(y, x)
            return y.numpy()

        with session(ring_of_four(ties), data=True) as torch:
            got = on_ranks(program, 4, torch=torch)
            links = torch.engine.records().links
        for rank, values in enumerate(got):
            part = np.arange(2048) + 2048 * rank
            assert np.array_equal(values, np.concatenate([part + 10_000 * sender for sender in range(4)]))
        between = [i for i, name in enumerate(links.names) if name.count("io.noc") == 2]
        carried[ties] = {links.names[i]: int(links.nbytes[i]) for i in between}
    assert sum(carried["random"].values()) == sum(carried["parity"].values())
    assert carried["random"] != carried["parity"]


def test_too_few_virtual_channels_are_refused():
    with pytest.raises(ConfigError, match=r"cube\.noc\.router\.vcs = 1 must be >= 2: .*circle; raise vcs"):
        resolve_topology("preset:default", {"cube.noc.router.flow": "credits", "cube.noc.router.vcs": 1})
    resolve_topology("preset:default", {"cube.noc.router.flow": "credits", "cube.noc.router.vcs": 2})
    ring = {"system.sips.count": 3, "system.sip_link.router.flow": "credits"}
    with pytest.raises(ConfigError, match=r"system\.sip_link\.router\.vcs = 1 must be >= 2: .* the edge of a ring"):
        resolve_topology("preset:default", {**ring, "system.sip_link.router.vcs": 1})
    resolve_topology("preset:default", {**ring, "system.sip_link.router.vcs": 2})
    with pytest.raises(ConfigError, match=r"cube\.noc\.router\.vcs = 1 must be >= 2: routes pass the edge of a ring"):
        torus(3, 3, vcs=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [("cube.noc.router.overhead_ns", 2), ("cube.noc.router.impl", "tests.components.slow_parts:StallingRouter")],
)
def test_what_has_no_effect_with_credits_is_refused(key, value):
    with pytest.raises(ConfigError, match=rf"{key} = .* has no effect with cube\.noc\.router\.flow: credits"):
        resolve_topology("preset:default", {key: value, "cube.noc.router.flow": "credits"})


def bystander_ps(flow: str, flits: int) -> int:
    """Return how long PE 1 takes to send a flit to the south while PEs 0 and 2 send to one slice east of it."""
    sim = Engine(resolve_topology("preset:default", {"cube.noc.removed": [], "cube.noc.router.flow": flow}))
    ended: list[int] = []
    for pe in (0, 1, 4, 5):
        for _ in range(flits):
            sim.send(pe_dma(0, 0, pe), hbm(0, 0, 3), FLIT, lambda: None)
    sim.at(100_000, lambda: sim.send(PE0, SLICE1, FLIT, lambda: ended.append(sim.now)))
    sim.run()
    return ended[0] - 100_000


def test_traffic_next_to_a_hot_spot_waits_with_credits_only():
    assert bystander_ps("credits", 0) == 12_000
    assert bystander_ps("credits", 400) > 3 * bystander_ps("credits", 0)


@pytest.mark.parametrize(("vcs", "vc_flits"), [(1, 1), (2, 3)])
def test_every_flit_arrives_whatever_the_buffers(vcs, vc_flits):
    rng, sim, ended = np.random.default_rng(5), Engine(machine(vcs=vcs, vc_flits=vc_flits)), []
    for a, b, flits in rng.integers([0, 0, 1], [8, 8, 9], (200, 3)).tolist():
        sim.send(pe_dma(0, 0, a), hbm(0, 0, b), flits * FLIT, lambda: ended.append(sim.now))
    sim.run()
    assert len(ended) == 200


def test_a_flit_alone_takes_the_closed_form():
    graph = machine().graph
    path = RouteTable(graph).path(PE0, hbm(0, 0, 7))
    legs = [
        TransferLeg(edge.bw_gbs, edge.latency_ps - graph.node(edge.dst).overhead_ps, graph.node(edge.dst).overhead_ps)
        for edge in (graph.edge(a, b) for a, b in pairwise(path))
    ]
    assert ends((PE0, hbm(0, 0, 7), 1, 0)) == [message_parts(legs, FLIT).total]
    # Flits that follow one another may be allocated one VC, and wait in it.
    assert ends((PE0, hbm(0, 0, 7), 5, 0)) >= [message_parts(legs, 5 * FLIT).total]
