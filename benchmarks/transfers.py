"""Transfers: the engine against a process per link, on the same closed-loop traffic, to the same end times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from benchmarks.table import Row, against_definition, best
from kernbench.studies.validation_network import Engine
from kernbench.studies.validation_reference import Reference
from kernbench.topology.builder import resolve_topology
from kernbench.topology.naming import hbm, pe_dma

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

Plan = list[list[tuple[str, str, int, int]]]


def plan(kinds: tuple[str, ...], rounds: int, agents: int = 2) -> Plan:
    """Return for each agent its transactions: (kind, slice, offset, bytes). Agent i belongs to PE i mod 16."""
    rng = Random(1)
    return [
        [
            (rng.choice(kinds), hbm(0, 0, rng.randrange(16)), 256 * rng.randrange(64), rng.choice(SIZES))
            for _ in range(rounds)
        ]
        for _ in range(16 * agents)
    ]


def run(sim: Any, todo: Plan) -> list[int]:
    """Run all agents, each transaction after the one before; return every end [ps]."""
    ends: list[list[int]] = [[] for _ in todo]
    rng = Random(2)
    for i, mine in enumerate(todo):
        sim.at(rng.randrange(1, 100_000), _agent(sim, pe_dma(0, 0, i % 16), mine, ends[i], rng.randrange(1, 1000)))
    sim.run()
    return [end for found in ends for end in found]


def _agent(
    sim: Any, src: str, todo: list[tuple[str, str, int, int]], ends: list[int], pause: int
) -> Callable[[], None]:
    ask = {"send": lambda dst, _, n, done: sim.send(src, dst, n, done)}
    ask["read"] = lambda dst, offset, n, done: sim.read(src, dst, offset, n, done)
    ask["write"] = lambda dst, offset, n, done: sim.write(src, dst, offset, n, done)

    def start() -> None:
        kind, dst, offset, nbytes = todo[len(ends)]
        ask[kind](dst, offset, nbytes, done)

    def done() -> None:
        ends.append(sim.now)
        if len(ends) < len(todo):
            # Two agents of one PE never ask at the same instant: that order would be nobody's to decide.
            sim.at(sim.now + pause, start)

    return start


def measure() -> Iterator[Row]:
    """Yield messages alone, reads and writes, and the rate of link reservations."""
    machine = resolve_topology("preset:default", MESH)
    for name, kinds in (("messages", ("send",)), ("reads and writes", ("read", "write"))):
        todo = plan(kinds, 60)
        slow, expected = best(lambda todo=todo: run(Reference(machine), todo), 1)
        quick, got = best(lambda todo=todo: run(Engine(machine), todo))
        assert got == expected, "the end times must be equal for the ratio to mean anything"
        count = sum(map(len, todo))
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
        run(engine, todo)
        return engine.network.core.reservations

    seconds, count = best(once)
    return Row(
        f"{count:,} link reservations, random messages over a 4x4 mesh", seconds, f"{count / seconds / 1e6:.2f} M/s"
    )
