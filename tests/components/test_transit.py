"""Routers of a user's own: named in the machine file, they cost what they say, and nothing else changes."""

from __future__ import annotations

import pytest

from kernbench.errors import ConfigError
from kernbench.policy._routing import RouteTable
from kernbench.topology._naming import hbm, pe_dma
from kernbench.topology.builder import resolve_topology
from tests.components.slow_parts import CountingRouter, StallingRouter
from tests.sim_engine.adapter import Engine

PE, FAR = pe_dma(0, 0, 0), hbm(0, 0, 7)


def end(nbytes=256, src=PE, dst=FAR, **overrides) -> int:
    machine = resolve_topology("preset:default", {k.replace("__", "."): v for k, v in overrides.items()})
    sim, ends = Engine(machine), []
    sim.send(src, dst, nbytes, lambda: ends.append(sim.now))
    sim.run()
    return ends[0]


def routers(src=PE, dst=FAR) -> int:
    machine = resolve_topology("preset:default")
    return sum(machine.graph.node(n).kind == "router" for n in RouteTable(machine.graph).path(src, dst))


def test_a_slower_router_by_dotted_path():
    slow = "tests.components.slow_parts:SlowRouter"
    assert end(cube__noc__router__impl=slow) - end() == routers() * 5000
    # Latency is pipelined: of a long message each flit is late alike.
    assert end(8192, cube__noc__router__impl=slow) - end(8192) == routers() * 5000


def test_routers_in_the_same_place_of_two_cubes_may_differ():
    machine = resolve_topology("preset:default")
    ends = {"src": pe_dma(0, 4, 0), "dst": hbm(0, 7, 0)}  # over the same routers of cubes 5 and 6
    slower = sum(
        machine.graph.node(n).kind == "router" and ".cube6." in n
        for n in RouteTable(machine.graph).path(*ends.values())
    )
    assert 0 < slower < routers(**ends)
    assert (
        end(**ends, cube__noc__router__impl="tests.components.slow_parts:UnequalRouter") - end(**ends) == slower * 5000
    )


def test_it_is_as_slow_as_the_number_in_the_file():
    assert end(cube__noc__router__impl="tests.components.slow_parts:SlowRouter") == end(
        cube__noc__router__overhead_ns=6
    )


def test_a_router_that_wants_to_see_flits_sees_each_one():
    CountingRouter.seen = 0
    counting = end(1024, cube__noc__router__impl="tests.components.slow_parts:CountingRouter")
    assert CountingRouter.seen == 4 * routers()
    assert counting - end(1024) == 7 * 256 * routers()


@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("delay_ps", [300, 50_000])
def test_no_flit_overtakes_another_in_a_router(monkeypatch, turn, delay_ps):
    # Whichever of its four flits a router holds up: those behind it wait, so the message is late by that.
    monkeypatch.setattr(StallingRouter, "period", 4)
    monkeypatch.setattr(StallingRouter, "turn", turn)
    monkeypatch.setattr(StallingRouter, "delay_ps", delay_ps)
    stalled = end(1024, cube__noc__router__impl="tests.components.slow_parts:StallingRouter")
    assert stalled - end(1024) == delay_ps * routers()


@pytest.mark.parametrize(
    ("key", "per_route"),
    [("system__switch", 1), ("sip__io__pcie_ep", 1), ("sip__io__noc", 1)],
)
def test_other_parts_on_the_way_from_the_host(key, per_route):
    overhead = {f"{key}__overhead_ns": 11}
    machine = resolve_topology("preset:default")
    usual = machine.graph.node(
        {"system__switch": "switch", "sip__io__pcie_ep": "sip0.io.pcie_ep"}.get(key, "sip0.io.noc")
    )
    assert end(src="host", **overhead) - end(src="host") == per_route * (11_000 - usual.overhead_ps)


def test_ucie_ports_cost_twice_a_crossing():
    across = {"src": PE, "dst": hbm(0, 1, 0)}
    assert end(**across, cube__ucie__port_ns=9) - end(**across) == 2000


@pytest.mark.parametrize("impl", ["no.such.module:Router", "tests.components.slow_parts:NoSuchClass"])
def test_a_path_that_leads_nowhere_is_named_with_its_file_and_key(impl):
    with pytest.raises(ConfigError, match=rf"^preset:default: cube\.noc\.router\.impl: component '{impl}': "):
        end(cube__noc__router__impl=impl)


@pytest.mark.parametrize(
    ("key", "name", "missing"),
    [
        ("cube__noc__router__impl", "QuickMCpu", "latency_ps"),
        ("cube__hbm__impl", "SlowRouter", "on_read and no on_write"),
        ("cube__pe__pe_gemm__impl", "SlowRouter", "tile_ps and no peak"),
    ],
)
def test_a_class_for_another_key_is_refused(key, name, missing):
    with pytest.raises(
        ConfigError, match=f"^preset:default: .*{name} has no {missing}; extend the class of kernbench.comp"
    ):
        end(**{key: f"tests.components.slow_parts:{name}"})


def test_an_unknown_name_offers_the_known_ones():
    with pytest.raises(ConfigError, match=r"did you mean router\?"):
        end(cube__noc__router__impl="ruoter")
