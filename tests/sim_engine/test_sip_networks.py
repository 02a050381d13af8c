"""Networks between SIPs: equal networks take equal times, a switch and fat trees take the closed forms."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kernbench.analysis._consistency import check_records
from kernbench.ccl.algorithm import algorithm, plan
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.install import resolve_algorithm_config
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.config import default_ccl_path
from kernbench.errors import ConfigError, KernelError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.collective import run_collective, tuner_of
from kernbench.runtime_api.context import session
from kernbench.topology.builder import resolve_topology
from tests.runtime_api.ranks import on_ranks
from tests.sim_engine.adapter import Engine

# A cube of four PEs; the SIP link is the slowest of all links, by far.
SMALL = {
    **dict.fromkeys(("sip.cube_mesh.w", "sip.cube_mesh.h", "cube.pe_layout.pe_per_corner"), 1),
    "system.sip_link.bw_gbs": 16,
}
LINK_NS, SWITCH_NS, FLIT_PS = 50, 100, 256 * 1000 // 16
NETWORKS = {
    "torus_3d": {"count": 8, "topology": "torus_3d"},
    "switch": {"count": 5, "topology": "switch"},
    "fat_tree": {"count": 6, "topology": "fat_tree"},
    "hosts": {"count": 6, "per_host": 3, "topology": "switch"},
}


def machine(sips, **changes):
    more = {"system.sip_switch.ports": 4} if sips["topology"] == "fat_tree" else {}
    more |= {f"system.{key.replace('__', '.')}": value for key, value in changes.items()}
    return resolve_topology("preset:default", {**SMALL, "system.sips": sips, **more})


def line(n, topology="ring_1d"):
    return {"count": n, "topology": topology}


def grid(topology, *sides):
    return {"count": int(np.prod(sides)), "topology": topology, **dict(zip("whd", sides, strict=False))}


def ends(there, pairs, nbytes=16384):
    """Return when each message between the first PEs of two SIPs ends, all begun at 0 [ps]."""
    engine, found = Engine(there), dict[tuple[int, int], int]()

    def end(pair):
        found[pair] = engine.now

    for pair in pairs:
        src, dst = (f"sip{sip}.cube0.pe0.pe_dma" for sip in pair)
        engine.send(src, dst, nbytes, lambda pair=pair: end(pair))
    engine.run()
    return [found[pair] for pair in pairs]


def all_reduced_ps(there, nbytes=8192):
    with session(there, log="off") as torch:
        for _ in range(2):  # the first installs queues
            devices = [f"ahbm:{sip}" for sip in range(there.config.n_sips)]
            tensors = [torch.zeros(nbytes // 2, dtype=torch.float16, device=device) for device in devices]
            torch.collective(tensors, "auto")
        return torch.engine.now_ns


@pytest.mark.parametrize("flow", ["unbounded", "credits"])
@pytest.mark.parametrize(
    ("torus", "same"),
    [
        (grid("torus_3d", 1, 1, 2), line(2)),
        (grid("torus_3d", 1, 1, 5), line(5)),
        (grid("torus_3d", 1, 1, 6), line(6)),
        (grid("torus_3d", 6, 1, 1), line(6)),
        (grid("torus_3d", 3, 2, 1), grid("torus_2d", 3, 2)),
        (grid("torus_3d", 4, 3, 1), grid("torus_2d", 4, 3)),
    ],
    ids=str,
)
def test_a_3d_torus_with_sides_of_one_is_the_network_of_fewer_dimensions(torus, same, flow):
    n = same["count"]
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    of_three, of_fewer = (machine(sips, sip_link__router__flow=flow) for sips in (torus, same))
    assert ends(of_three, pairs, 1000) == ends(of_fewer, pairs, 1000)


@pytest.mark.parametrize(
    ("torus", "same"), [(grid("torus_3d", 1, 1, 5), line(5)), (grid("torus_3d", 3, 2, 1), grid("torus_2d", 3, 2))]
)
def test_a_collective_takes_the_same_time_on_both(torus, same):
    assert all_reduced_ps(machine(torus)) == all_reduced_ps(machine(same))


def test_a_third_dimension_shortens_ways():
    # From one corner to the opposite: three links in place of the two of a torus of 4 x 2 and the four of a ring.
    hops = [len(machine(sips).graph.sips.path(0, 7)) - 1 for sips in (NETWORKS["torus_3d"], line(8))]
    assert hops == [3, 1]
    assert len(machine(grid("torus_3d", 4, 4, 4)).graph.sips.path(0, 42)) - 1 == 6  # (2, 2, 2): two along each ring
    assert machine(grid("torus_3d", 4, 4, 4)).graph.sips.path(0, 63) == (0, 3, 15, 63)  # back round each ring


@pytest.mark.parametrize("nbytes", [256, 4096, 100_000])
def test_a_switch_with_one_pair_is_one_link(nbytes):
    """A link of both wires' latency, the switch's, and the time of one flit, which the switch sends again."""
    link_ns = 2 * LINK_NS + SWITCH_NS + FLIT_PS / 1000
    assert ends(machine(line(5, "switch")), [(0, 3)], nbytes) == ends(
        machine(line(2), sip_link__latency_ns=link_ns), [(0, 1)], nbytes
    )


def test_two_senders_to_one_receiver_take_twice_as_long():
    there, flits = machine(line(3, "switch")), 64
    [alone] = ends(there, [(0, 2)])
    both = max(ends(there, [(0, 2), (1, 2)]))
    assert both - alone == flits * FLIT_PS
    assert max(ends(there, [(0, 2), (2, 0)])) == max(*ends(there, [(2, 0)]), alone)  # each way by itself
    assert max(ends(there, [(0, 1), (1, 2), (2, 0)])) < alone + FLIT_PS  # to three receivers: nobody waits


@pytest.mark.parametrize(
    ("ports", "ratio", "levels", "share"), [(8, 1, 2, 1), (6, 2, 2, 2), (4, 1, 3, 1), (8, 3, 2, 3)]
)
def test_a_fat_tree_has_the_bisection_bandwidth_of_its_oversubscription(ports, ratio, levels, share):
    """The first half sends to the second; each port up is shared by as many as the tree is oversubscribed."""
    down = ports * ratio // (1 + ratio)
    half = down if levels == 2 else down * down
    changes = {"sip_switch__ports": ports, "fat_tree__oversubscription": ratio, "fat_tree__levels": levels}
    there = machine(line(2 * half, "fat_tree"), **changes)
    pairs, flits = [(i, i + half) for i in range(half)], 64
    [alone] = ends(there, pairs[:1])
    assert max(ends(there, pairs)) == alone + (share - 1) * flits * FLIT_PS
    assert min(ends(there, pairs)) >= alone


def test_a_fat_tree_takes_the_fewest_links_and_ports_by_the_destination():
    # Four ports, of which two lead up: 0, 1 | 2, 3 | 4, 5 | 6, 7; switches of the levels are 8-11, 12-15, 16-19.
    sips = machine(line(8, "fat_tree"), fat_tree__levels=3).graph.sips
    assert [len(level) for level in sips.levels] == [4, 4, 4]
    assert [sips.path(0, dst) for dst in (1, 2, 3)] == [(0, 8, 1), (0, 8, 12, 9, 2), (0, 8, 13, 9, 3)]
    assert {len(sips.path(a, b)) for a in range(4) for b in range(4, 8)} == {7}
    for a in range(8):
        for b in range(8):
            path = sips.path(a, b)
            assert all(there in sips.neighbours[here] for here, there in pairwise(path))
    # A level above a switch that has all SIPs below is left out.
    assert [len(level) for level in machine(line(2, "fat_tree")).graph.sips.levels] == [1]


@pytest.mark.parametrize("flow", ["unbounded", "credits"])
def test_a_fat_tree_of_one_level_is_a_switch(flow):
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    changes = {"sip_link__router__flow": flow, "sip_switch__ports": 4}
    tree = machine(line(4, "fat_tree"), fat_tree__levels=1, **changes)
    assert ends(tree, pairs) == ends(machine(line(4, "switch"), **changes), pairs)


def hosts(n, per_host, topology="switch", **nic):
    """SIPs with NICs as fast as their other links; a link between NIC and switch takes half of 100 ns."""
    nic = {"nic__bw_gbs": 16, "nic__latency_ns": 50} | {f"nic__{key}": value for key, value in nic.items()}
    return machine({"count": n, "per_host": per_host, "topology": topology}, **nic)


@pytest.mark.parametrize("network", [line(5, "switch"), grid("torus_2d", 3, 2)], ids=str)
def test_one_host_is_the_network_without_hosts(network):
    n = network["count"]
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    one, without = machine({**network, "per_host": n}), machine(network)
    assert ends(one, pairs, 1000) == ends(without, pairs, 1000)
    assert network["topology"] != "switch" or all_reduced_ps(one) == all_reduced_ps(without)


def test_hosts_of_one_sip_are_sips_at_a_switch():
    """A flit is sent twice more, by the NICs, so their links take less by the time of a flit."""
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    nics = hosts(4, 1, latency_ns=LINK_NS - FLIT_PS / 1000)
    assert ends(nics, pairs, 1000) == ends(machine(line(4, "switch")), pairs, 1000)


@pytest.mark.parametrize("wiring", ["by_host", "by_rail"])
@pytest.mark.parametrize("nbytes", [256, 100_000])
def test_a_pair_of_hosts_is_one_link(nbytes, wiring):
    """Two wires, a switch, and the time of a flit at the NICs and the switch."""
    link_ns = 2 * 50 + SWITCH_NS + 3 * FLIT_PS / 1000
    one = machine(line(2), sip_link__latency_ns=link_ns)
    assert ends(hosts(6, 3, wiring=wiring), [(1, 4)], nbytes) == ends(one, [(0, 1)], nbytes)


def test_sips_that_share_a_nic_take_twice_as_long():
    pairs = [(0, 4), (1, 5)]
    [alone] = ends(hosts(8, 4, sips=2), pairs[:1])
    assert max(ends(hosts(8, 4, sips=2), pairs)) == alone + 64 * FLIT_PS
    assert ends(hosts(8, 4), pairs) == [alone, alone]
    assert ends(hosts(8, 4, bw_gbs=8), pairs[:1])[0] > alone + 60 * FLIT_PS  # half the bandwidth, 64 flits


def test_routes_between_rails_first_go_to_the_receivers_place_in_the_host():
    def nodes(there, src, dst):
        return [there.graph.sips.node_id(vertex) for vertex in there.graph.sips.path(src, dst)][1:-1]

    for topology, inside in (("switch", ["net0.sip_switch"]), ("fully_connected", [])):
        rails = hosts(8, 4, topology, wiring="by_rail")
        assert nodes(rails, 1, 5) == ["net1.nic", "net1.nic_switch", "net5.nic"]
        assert nodes(rails, 1, 7) == [*inside, "sip3.io.noc", "net3.nic", "net3.nic_switch", "net7.nic"]
        assert nodes(rails, 1, 3) == inside
        assert nodes(hosts(8, 4, topology), 1, 7) == ["net1.nic", "net0.nic_switch", "net7.nic"]
        of_two = hosts(8, 4, topology, wiring="by_rail", sips=2)  # 2 and 3 of a host share the second of its NICs
        assert nodes(of_two, 2, 7) == ["net1.nic", "net1.nic_switch", "net3.nic"]


def test_an_all_reduce_over_hosts_reduces_in_them_first():
    """NIC links have a bound, are a resource of `why`, and predictions know them."""
    nbytes = 65536

    def run(there):
        with session(there, data=True) as torch:
            x = np.arange(nbytes // 4, dtype=np.float32)
            tensors = [torch.tensor(x + rank, device=f"ahbm:{rank}") for rank in range(6)]
            assert torch.collective(tensors, "auto").algorithm.name == "torus_allreduce"
            assert all(np.array_equal(tensor.numpy(), 6 * x + 15) for tensor in tensors)
        return torch.result

    fast, slow = (hosts(6, 3, bw_gbs=bw, wiring="by_rail") for bw in (8, 4))
    of_fast, of_slow = run(fast), run(slow)
    prediction = of_fast.what_if("system.nic.bw_gbs=4").predicted_ns
    assert prediction == pytest.approx(of_slow.latency_ns, rel=0.01)
    assert of_slow.latency_ns > 1.1 * of_fast.latency_ns  # copies to and from the host included
    assert {reason.what: reason.fields for reason in of_slow.why()}["NIC link"] == ("system.nic.bw_gbs",)
    # Each host sends a vector's worth before, and one after, it is summed, over its three NICs.
    bound = Bounds(slow, [(sip, 0, 0) for sip in range(6)]).of("all_reduce", nbytes)
    assert bound.ns == bound.traffic_ns == nbytes / (3 * 4)
    assert of_slow.latency_ns > bound.ns


def program(torch, rank):
    dist, n = torch.distributed, torch.distributed.get_world_size()
    x = np.arange(n * 60, dtype=np.float32) + 1000 * rank
    there = {"device": "ahbm"}
    summed = torch.tensor(x, **there)
    dist.all_reduce(summed)
    gathered = torch.zeros(n * n * 60, **there)
    dist.all_gather_into_tensor(gathered, torch.tensor(x, **there))
    scattered = torch.zeros(60, **there)
    dist.reduce_scatter_tensor(scattered, torch.tensor(x, **there))
    exchanged = torch.zeros(n * 60, **there)
    dist.all_to_all_single(exchanged, torch.tensor(x, **there))
    brought = torch.tensor(x, **there)
    dist.broadcast(brought, 1)
    reduced = torch.tensor(x, **there)
    dist.reduce(reduced, n - 1)
    return [tensor.numpy() for tensor in (summed, gathered, scattered, exchanged, brought, reduced)]


@pytest.mark.parametrize("name", NETWORKS)
def test_collectives_have_the_values_of_numpy(name):
    n = NETWORKS[name]["count"]
    with session(machine(NETWORKS[name]), data=True) as torch:
        got = on_ranks(program, n, torch=torch)
    x = np.arange(n * 60, dtype=np.float32) + 1000 * np.arange(n, dtype=np.float32)[:, None]
    for rank, (summed, gathered, scattered, exchanged, brought, reduced) in enumerate(got):
        assert np.array_equal(summed, x.sum(axis=0))
        assert np.array_equal(gathered, x.ravel())
        assert np.array_equal(scattered, x.sum(axis=0).reshape(n, 60)[rank])
        assert np.array_equal(exchanged, x.reshape(n, n, 60)[:, rank].ravel())
        assert np.array_equal(brought, x[1])
        assert rank != n - 1 or np.array_equal(reduced, x.sum(axis=0))


# -- a switch that adds


def adding(n, **changes):
    return machine(line(n, "switch"), sip_switch__reduce="sum", **changes)


def summed(there, nbytes, n_slots=32, kernel="switch_allreduce"):
    algorithm = replace(resolve_algorithm_config(kernel, default_ccl_path()), n_slots=n_slots)
    planned = plan(algorithm, there.config, range(there.config.n_sips), [(0, 0)])
    return run_collective(there, planned, nbytes)


def pass_on(t_ptr, n_elem, world_size, *, tl):
    """Send this participant's elements to the next one: what `switch_allreduce` does, without a switch that adds."""
    tl.send("E", t_ptr, shape=n_elem)
    tl.store(t_ptr, tl.recv("W", shape=n_elem))


def test_a_switch_that_adds_takes_as_long_as_a_message_stored_in_it():
    """A part of 16 flits leaves with the sum when its last flit is there; a message passes flit by flit."""
    planned = plan(algorithm(pass_on), (there := adding(5)).config, range(5), [(0, 0)])
    message_ns = run_collective(there, planned, 4096).latency_ns
    assert summed(there, 4096).latency_ns == pytest.approx(message_ns + 15 * FLIT_PS / 1000, abs=0.5)


@pytest.mark.parametrize("n", [2, 7])
def test_an_all_reduce_at_a_switch_moves_the_vector_once_each_way(n):
    """However many SIPs there are; a ring moves it 2 (n - 1) / n times."""
    there, nbytes = adding(n), 1 << 18
    found, first_ns = summed(there, nbytes), summed(there, 4096).latency_ns
    link_ns = nbytes / 16
    assert link_ns < found.latency_ns < 1.03 * (first_ns + link_ns)  # the last message is of 32 KiB
    busy_ns = {link: share * found.latency_ns for link, share in found.links.items()}
    for sip in range(n):
        for way in (f"sip{sip}.io.noc->net0.sip_switch", f"net0.sip_switch->sip{sip}.io.noc"):
            assert link_ns < busy_ns[way] < 1.01 * link_ns  # with 16 B of credit for each 4 KiB
    bound = Bounds(there, [(sip, 0, 0) for sip in range(n)]).of("all_reduce", nbytes)
    assert bound.ns == link_ns
    assert summed(there, nbytes, kernel="ring_allreduce_tcm").latency_ns > 2 * (n - 1) / n * link_ns


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int32])
def test_a_switch_rounds_a_sum_once(dtype):
    """Several PEs of each SIP, messages of several slots, and a last one that is shorter."""
    n, shape = 3, (8, 5000)
    rng = np.random.default_rng(0)
    given = (rng.normal(0, 100, (n, *shape))).astype(dtype)
    with session(adding(n), data=True) as torch:
        kind, policy = getattr(torch, np.dtype(dtype).name), DPPolicy(pe="row_wise")
        tensors = [torch.tensor(given[s], dtype=kind, device=f"ahbm:{s}", dp=policy) for s in range(n)]
        planned = torch.collective(tensors, "switch_allreduce")
        assert (planned.world_size, len(planned.subgroups)) == (n, 4)
        exact = given.astype(np.float32 if dtype == np.float16 else dtype).sum(axis=0).astype(dtype)
        assert all(np.array_equal(tensor.numpy(), exact) for tensor in tensors)


@pytest.mark.slow
def test_auto_adds_at_the_switch_where_it_is_worth_it():
    def program(torch, rank):
        dist, x = torch.distributed, torch.tensor(np.arange(50_000, dtype=np.float32) * (rank + 1), device="ahbm")
        largest = x.clone()
        dist.all_reduce(x)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return x.numpy(), largest.numpy()

    with session(there := adding(4), data=True) as torch:
        for total, largest in on_ranks(program, 4, torch=torch):
            assert np.array_equal(total, np.arange(50_000, dtype=np.float32) * 10)
            assert np.array_equal(largest, np.arange(50_000, dtype=np.float32) * 4)
    used = [c.name for c in torch.engine.log.commands if "all_reduce by" in c.name]
    assert "switch_allreduce" in used[0]
    assert not any("switch_allreduce" in name for name in used[4:])
    chosen = tuner_of(there).choose("all_reduce", 1 << 17)
    assert chosen.algorithm == "switch_allreduce"
    assert chosen.best.estimate_ns == pytest.approx(chosen.best.simulated_ns, rel=0.2)
    refused = tuner_of(machine(line(4, "switch"))).choose("all_reduce", 1 << 17).refused["switch_allreduce"]
    assert refused == (
        "it takes SIPs at one switch that adds; set system.sips.topology to switch and system.sip_switch.reduce to "
        "sum, or use another algorithm"
    )


def test_what_a_switch_cannot_add_is_refused():
    with session(adding(2)) as torch:
        tensors = [torch.zeros(64, dtype=torch.float16, device=f"ahbm:{s}") for s in range(2)]
        with pytest.raises(ConfigError, match="op = 'max': switch only adds; use op = 'sum', or another algorithm"):
            torch.collective(tensors, "switch_allreduce", op="max")
        in_sram = replace(resolve_algorithm_config("switch_allreduce", default_ccl_path()), buffer_kind="sram")
        with pytest.raises(ConfigError, match="buffer_kind = sram, but the sums of a switch arrive in TCM; use tcm"):
            torch.collective(tensors, in_sram)
    with pytest.raises(KernelError, match="no switch adds without a machine"):
        run_kernel_in_mock(plan(in_sram, adding(2).config, range(2), [(0, 0)]), [np.zeros(4, np.float16)] * 2)
    two_hosts = machine({"count": 4, "per_host": 2, "topology": "switch"}, sip_switch__reduce="sum")
    plan(in_sram, two_hosts.config, (2, 3), [(0, 0)])
    with pytest.raises(ConfigError, match="it takes SIPs at one switch that adds"):
        plan(in_sram, two_hosts.config, (1, 2), [(0, 0)])


def unequal(t_ptr, n_elem, world_size, *, tl):
    tl.send("to_switch", t_ptr, shape=n_elem - tl.program_id(2))


def test_members_of_a_sum_send_the_same():
    with session(adding(2)) as torch:
        tensors = [torch.zeros(64, dtype=torch.float16, device=f"ahbm:{s}") for s in range(2)]
        sent = "net0.sip_switch adds messages of one size and type, and got 128 B of .*, 126 B of .*; send the same"
        torch.collective(tensors, algorithm(unequal, topology="through_switch"))
        with pytest.raises(KernelError, match=sent):
            torch.engine.run()


def test_the_log_of_sums_at_a_switch_has_slots_causes_and_predictions():
    found = summed(adding(3), 1 << 16, n_slots=8).result
    check_records(found.records)
    assert found.why()[0].what == "SIP link"
    slots = [each for each in found.occupancy if each.quantity == "slots"]
    assert max(each.value.max() for each in slots) <= 8
    faster = summed(adding(3, sip_link__bw_gbs=32), 1 << 16, n_slots=8).result
    assert found.what_if("system.sip_link.bw_gbs=32").predicted_ns == pytest.approx(faster.latency_ns, rel=0.02)
