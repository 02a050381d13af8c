"""Transfers: the engine against a process per link, on the same closed-loop traffic, to the same end times."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from benchmarks.table import Row, against_definition, best
from kernbench.topology._naming import hbm, pe_dma
from kernbench.topology.builder import resolve_topology
from tests.reference.simulator import Reference
from tests.reference.traffic import Ask, play
from tests.sim_engine.adapter import Engine

MESH = {
    "system.sips.count": 1,
    "sip.cube_mesh.w": 1,
    "sip.cube_mesh.h": 1,
    "cube.noc.rows": 4,
    "cube.noc.cols": 4,
    "cube.noc.removed": [],
    "cube.pe_layout.pe_routers": [[r, c] for r in range(4) for c in range(4)],
}
SIZES = (64, 256, 1024, 4096)
REFERENCE = "a SimPy process and Store per link"


def plan(kinds: tuple[str, ...], rounds: int, agents: int = 32) -> list[Ask]:
    """Return the transactions of agents that ask slices in a closed loop. Agent i belongs to PE i mod 16."""
    rng, starts = Random(1), Random(2)
    asks = []
    for agent in range(agents):
        # Two agents of one PE never ask at the same instant: the model defines no order for that.
        wait, pause = starts.randrange(1, 100_000), starts.randrange(1, 1000)
        for _ in range(rounds):
            kind, dst, offset = rng.choice(kinds), hbm(0, 0, rng.randrange(16)), 256 * rng.randrange(64)
            asks.append(Ask(agent, wait, kind, pe_dma(0, 0, agent % 16), dst, offset, rng.choice(SIZES)))
            wait = pause
    return asks


def measure() -> Iterator[Row]:
    """Yield messages alone, reads and writes, and the rate of link reservations."""
    machine = resolve_topology("preset:default", MESH)
    for name, kinds in (("messages", ("send",)), ("reads and writes", ("read", "write"))):
        todo = plan(kinds, 60)
        slow, expected = best(lambda todo=todo: play(Reference(machine), todo), 1)
        quick, got = best(lambda todo=todo: play(Engine(machine), todo))
        assert got == expected, "the end times must be equal for the ratio to mean anything"
        count = len(todo)
        yield Row(
            f"{count:,} {name} over a 4x4 mesh",
            quick,
            f"{count / quick / 1000:.1f} k/s",
            REFERENCE,
            slow / quick,
            "0.02 s" if name != "messages" else "",
        )
    yield against_definition(reservations, target="6 M/s")


def reservations() -> Row:
    """Return how many flits on links the engine reserves in a second."""
    machine, todo = resolve_topology("preset:default", MESH), plan(("send",), 500)

    def once() -> int:
        engine = Engine(machine)
        play(engine, todo)
        return engine.network.core.reservations

    seconds, count = best(once)
    return Row(
        f"{count:,} link reservations, random messages over a 4x4 mesh", seconds, f"{count / seconds / 1e6:.2f} M/s"
    )
