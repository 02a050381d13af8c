"""Queues between PEs, wired by hand: what the tests of queues run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernbench.analysis._records import CREDIT, PART
from kernbench.analysis._transfer import TransferLeg, message_parts
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine._host_requests import QueueSpec
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine, resolve_topology
from tests.components.one_pe import SPACE, VA

Place = tuple[int, int, int]
End = tuple[Place, str]
NEAR = (((0, 0, 0), "E"), ((0, 1, 0), "W"))
FAR = (((0, 0, 0), "E"), ((1, 0, 0), "W"))


def machine_of(overrides: Mapping[str, Any] | None = None) -> Machine:
    return resolve_topology("preset:default", dict(overrides or {}))


def specs(
    engine: GraphEngine, pairs: Sequence[tuple[End, End]], kind: str = "tcm", n_slots: int = 4,
    slot_bytes: int = 4096, chunk_bytes: int = 256, chunk_ns: float = 0, payload: float = 1,
) -> dict[Place, list[QueueSpec]]:  # fmt: skip
    """Return what each PE is told, rings reserved: `pairs` name both ends of every queue pair."""
    found: dict[Place, list[QueueSpec]] = {}
    for (a, to_b), (b, to_a) in pairs:
        at_a, at_b = (engine.allocators.ring(kind, place, n_slots * slot_bytes) for place in (a, b))
        rest = (kind, n_slots, slot_bytes, 16, chunk_bytes, (), chunk_ns, payload)
        found.setdefault(a, []).append(QueueSpec(to_b, b, at_a, at_b, *rest))
        found.setdefault(b, []).append(QueueSpec(to_a, a, at_b, at_a, *rest))
    return found


def install(engine: GraphEngine, wiring: Mapping[Place, Sequence[QueueSpec]], key: str = "test") -> None:
    by_sip: dict[int, dict[tuple[int, int], Sequence[QueueSpec]]] = {}
    for (sip, cube, pe), mine in wiring.items():
        by_sip.setdefault(sip, {})[cube, pe] = mine
    for event in [engine.install(sip, mine, key) for sip, mine in by_sip.items()]:
        engine.wait(event)


def run(
    programs: Mapping[Place, Callable[[Any], None]], pairs: Sequence[tuple[End, End]] = (NEAR,), *,
    machine: Machine | None = None, data: bool = False, observers: Sequence[Any] = (),
    options: Mapping[str, Any] | None = None, **queues: Any,
) -> GraphEngine:  # fmt: skip
    """Run a program on each place, all launched at once; return the engine at the end.

    Each has the beginning of its own slice mapped at `one_pe.VA`.
    """
    engine = GraphEngine(machine or machine_of(), data, observers=observers, **(options or {}))
    for place in programs:
        start = PhysAddr.pe_hbm_addr(*place, 0, slice_bytes=engine.addresses.slice_bytes).encode()
        engine.pe(*place).mmu.map(VA, SPACE, start, "own slice")
    install(engine, specs(engine, pairs, **queues))
    launch(engine, programs)
    engine.run()
    return engine


def launch(engine: GraphEngine, programs: Mapping[Place, Callable[[Any], None]], key: str = "test") -> None:
    ranks = {place: i for i, place in enumerate(programs)}

    def kernel(at: Place, tl: Any) -> None:
        programs[at](tl)

    for sip in sorted({place[0] for place in programs}):
        mine = [place for place in programs if place[0] == sip]
        engine.launch(
            sip, [place[1:] for place in mine], kernel, {place[1:]: (place,) for place in mine}, "test", key,
            {place[1:]: ranks[place] for place in mine}, len(programs),
        )  # fmt: skip


def legs(engine: GraphEngine, src: str, dst: str) -> list[TransferLeg]:
    """Return the links from a node to another."""
    graph, found = engine.machine.graph, []
    for link in engine.network.route(src, dst).links:
        edge, node = graph.edge(link.src, link.dst), graph.node(link.dst).overhead_ps
        found.append(TransferLeg(edge.bw_gbs, edge.latency_ps - node, node))
    return found


def way_ps(engine: GraphEngine, src: Place, dst: Place, nbytes: int) -> int:
    """Return the closed form of a message from a PE to another, the machine being idle."""
    return message_parts(legs(engine, naming.pe_dma(*src), naming.pe_dma(*dst)), nbytes).total


def moves(engine: GraphEngine, kind: int) -> list[dict[str, int]]:
    """Return the parts, or the credits, of a run, by their starts."""
    table = engine.records().dependencies.transfers
    chosen = np.flatnonzero(table["kind"] == kind)
    return sorted(
        ({name: int(column[i]) for name, column in table.items()} for i in chosen), key=lambda move: move["start_ps"]
    )


def parts(engine: GraphEngine) -> list[dict[str, int]]:
    return moves(engine, PART)


def credits_of(engine: GraphEngine) -> list[dict[str, int]]:
    return moves(engine, CREDIT)
