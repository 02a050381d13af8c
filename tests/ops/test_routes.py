"""The links between the PEs of a SIP and its memories, against the path of each pair."""

from itertools import pairwise

import numpy as np
import pytest

from kernbench.analysis._resources import attribution
from kernbench.ops._routes import routes_of
from kernbench.policy._routing import reverse, router_of
from kernbench.topology import _naming as naming
from kernbench.topology.builder import resolve_topology

MACHINES = {
    "two columns of cubes": ("preset:default", {"sip.cube_mesh": {"w": 2, "h": 3}}),
    "one cube": ("preset:default", {"sip.cube_mesh": {"w": 1, "h": 1}}),
    "a torus on the die, memory apart": ("preset:wormhole_n150", {}),
}


@pytest.mark.parametrize("name", MACHINES)
def test_the_busiest_link_carries_the_bytes_of_every_pair_that_takes_it(name):
    machine = resolve_topology(*MACHINES[name])
    config, graph, router = machine.config, machine.graph, router_of(machine.graph)
    places = [divmod(i, config.pes_per_cube) for i in range(config.pes_per_sip)]
    rng = np.random.default_rng(0)
    nbytes = rng.integers(0, 1000, (len(places), len(places))) * (rng.random((len(places), len(places))) < 0.2)
    memories = [graph.memory(0, *place) for place in places]
    carried: dict[tuple[str, str], float] = {}
    latency_ps = np.zeros(nbytes.shape)
    for i, reader in enumerate(places):
        for j, memory in enumerate(memories):
            path = router.path(naming.pe_dma(0, *reader), memory)
            latency_ps[i, j] = sum(graph.edge(*link).latency_ps for link in pairwise(path))
            # Interleaved memories hold a part of everything each.
            own = nbytes[i].sum() / len(places) if config.memory_apart else nbytes[i, j]
            for link in pairwise(reverse(path)):
                carried[link] = carried.get(link, 0) + own
    ns = {link: n / graph.edge(*link).bw_gbs for link, n in carried.items()}
    routes = routes_of(machine)
    busiest, kind = routes.busiest(nbytes, np.zeros_like(nbytes))
    assert busiest == pytest.approx(max(ns.values()), rel=1e-12)
    of = {attribution("serialization", f"{a}->{b}").group for (a, b), x in ns.items() if x == pytest.approx(busiest)}
    assert kind in of
    each_ns = (2 * latency_ps / 1000 + config.cube.hbm.access_ns) / router.outstanding_reads
    assert routes.latency_ns(nbytes) == pytest.approx(((nbytes > 0) * each_ns).sum(axis=1).max(), rel=1e-12)


def test_equal_machines_share_a_graph_and_its_links():
    one, other, else_ = (resolve_topology("preset:default", {"sip.cube_mesh": {"w": w, "h": 1}}) for w in (1, 1, 2))
    assert one.graph is other.graph is not else_.graph
    assert routes_of(one) is routes_of(other) is not routes_of(else_)
