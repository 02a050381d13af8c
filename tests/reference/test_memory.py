"""The reference's memories against times worked out by hand, on one PE beside its slice (default machine).

On the way there, a command of 0 B takes 1 ns (the router) and a flit 1 + 1 + 1 (two links, a router); on the way
back a flit takes the same 3 ns. A burst takes 8 ns.
"""

from __future__ import annotations

import pytest

from kernbench.topology.builder import resolve_topology
from tests.reference.simulator import Reference

PE, SLICE, SRAM = "sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm_ctrl.pe0", "sip0.cube0.sram"


class Slice:
    def __init__(self, **hbm) -> None:
        machine = resolve_topology("preset:default", {f"cube.hbm.{k}": v for k, v in hbm.items()})
        self.sim = Reference(machine)
        self.done: list[tuple[str, float]] = []

    def ask(self, kind: str, offset: int, nbytes: int, t_ns: float = 0, src: str = PE, memory: str = SLICE):
        def start() -> None:
            ask = self.sim.read if kind == "read" else self.sim.write
            ask(src, memory, offset, nbytes, lambda: self.done.append((kind, self.sim.now / 1000)))

        self.sim.at(round(t_ns * 1000), start)
        return self

    def run(self) -> list[tuple[str, float]]:
        self.sim.run()
        return self.done


@pytest.mark.parametrize(
    ("offset", "nbytes", "ns"),
    [
        (0, 256, 1 + 8 + 3),
        (0, 4096, 27),  # 2 rounds of 8 bursts, 8 flits each: 1 + 16 + 1 + 8 + 1
        (0, 16, 1 + 8 + 1 + 2 * 0.0625),  # 16 B take 62.5 ps on a link, rounded up
        (0, 2048, 1 + 8 + 2 + 8),
        (0, 2304, 1 + 16 + 3),  # burst 9 waits for channel 0; the other flits are through by then
        (255, 2, 1 + 8 + 1 + 2 * 0.0078125),  # two bursts on two channels, one flit of 2 B
        (128, 256, 1 + 8 + 3),  # two bursts, one flit
        (2048, 256, 12),
    ],
)
def test_reads(offset, nbytes, ns):
    [(_, t)] = Slice().ask("read", offset, nbytes).run()
    assert t == pytest.approx(ns, abs=0.002)


def test_bursts_on_one_channel_follow_each_other():
    assert Slice().ask("read", 0, 256).ask("read", 2048, 256).run() == [("read", 12.0), ("read", 20.0)]


def test_bursts_on_two_channels_do_not():
    assert Slice().ask("read", 0, 256).ask("read", 256, 256).run() == [("read", 12.0), ("read", 13.0)]


def test_a_write_is_data_memory_and_acknowledgement():
    # 3 + 8, then 16 B back: 1 + 2 x 63 ps
    assert Slice().ask("write", 0, 256).run() == [("write", 12.126)]


def test_bursts_of_a_write_are_served_as_its_flits_arrive():
    # Flit j arrives at 3 + j; the last of 8 ends at 3 + 7 + 8. Flit 8 (channel 0) arrives at 11 just as it is free.
    assert Slice().ask("write", 0, 2048).run() == [("write", 3 + 7 + 8 + 1.126)]
    assert Slice().ask("write", 0, 2304).run() == [("write", 11 + 8 + 1.126)]


def test_a_burst_needs_all_its_share_of_flits():
    # Offset 128: 3 bursts of 2 flits. Burst 0 needs ceil(2/3) = 1 flit, burst 1 both, burst 2 both.
    assert Slice().ask("write", 128, 512).run() == [("write", 3 + 1 + 8 + 1.126)]


def test_a_change_of_direction_costs_the_turnaround():
    both = Slice(turnaround_ns=5).ask("read", 0, 256).ask("write", 0, 256, t_ns=100).run()
    assert both == [("read", 12.0), ("write", 100 + 12.126 + 5)]
    assert Slice(turnaround_ns=5).ask("read", 0, 256).ask("read", 0, 256, t_ns=100).run()[1] == ("read", 112.0)
    assert Slice(turnaround_ns=5).ask("read", 0, 256).ask("write", 256, 256, t_ns=100).run()[1][1] == 112.126


def test_access_latency_comes_once_and_occupies_nothing():
    two = Slice(access_ns=40).ask("read", 0, 256).ask("read", 2048, 256).run()
    assert two == [("read", 52.0), ("read", 60.0)]


def test_efficiency_makes_bursts_longer():
    [(_, t)] = Slice(efficiency=0.8).ask("read", 0, 256).run()
    assert t == pytest.approx(14.0, abs=0.002)


def test_sram_answers_at_once():
    # pe0 at r0c0, SRAM at r3c0: routers r0c0 to r3c0 (4 ns, 3 x 30 ps), back the same; 128 GB/s on its link.
    [(_, t)] = Slice().ask("read", 0, 256, memory=SRAM).run()
    assert t == pytest.approx(2 * 4.09 + 2 + 4 * 1, abs=1e-9)
