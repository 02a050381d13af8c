"""The queues of collectives: their memory, their installation at first use, and the check that they end empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import simpy

from kernbench.ccl._group import Place
from kernbench.ccl._topologies import through_switch
from kernbench.ccl.algorithm import CollectivePlan
from kernbench.components.builtin.queues import Queue, check_read
from kernbench.errors import AllocationError, ConfigError, OutOfMemoryError
from kernbench.sim_engine._host_requests import QueueSpec
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import _naming as naming
from kernbench.topology._naming import PeId


@dataclass(frozen=True, slots=True)
class Installation:
    """One installation: launches refer to it by `key`; `ready` succeeds when every device has it."""

    key: str | None
    ready: simpy.Event


class InstalledQueues:
    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._installed: dict[tuple[object, ...], Installation] = {}

    def install(self, plan: CollectivePlan, key: str) -> Installation:
        """Return the queues of a plan for the user `key`; at first use, send them to the PEs."""
        a = plan.algorithm
        by = a.sends_by
        sizes = (a.buffer_kind, a.n_slots, a.slot_size, a.credit_bytes, a.vc_chunk_size, by.chunk_ns, by.payload)
        graph = (a.topology, a.root_cube, plan.subgroups[0].grid)
        identity = key, a.name, *sizes, *graph, tuple(plan.programs)
        if identity not in self._installed:
            self._installed[identity] = self._send(plan, key)
        return self._installed[identity]

    def _send(self, plan: CollectivePlan, key: str) -> Installation:
        engine, a = self._engine, plan.algorithm
        rings = self._reserve(plan)
        if not rings:
            return Installation(None, simpy.Event(engine.env).succeed())
        n = len(self._installed)
        name = f"{key}: {a.name}, {a.n_slots} x {a.slot_size} B in {a.buffer_kind} ({n})"
        installed = [engine.install(sip, wiring, name) for sip, wiring in _wirings(plan, rings).items()]
        return Installation(name, simpy.AllOf(engine.env, installed))

    def _reserve(self, plan: CollectivePlan) -> dict[tuple[Place, str], int]:
        a = plan.algorithm
        nbytes = (a.n_slots or 0) * (a.slot_size or 0)
        if a.buffer_kind == "hbm" and self._engine.addresses.controllers:
            raise ConfigError(
                f"algorithm {a.name!r}: queues in HBM need a slice at each PE, and this machine has "
                "cube.hbm.controllers; use buffer_kind tcm or sram"
            )
        if a.buffer_kind != "tcm" and a.topology is through_switch:
            raise ConfigError(
                f"algorithm {a.name!r}: buffer_kind = {a.buffer_kind}, but the sums of a switch arrive in TCM; use tcm"
            )
        if a.buffer_kind != "tcm" and a.sends_by.payload < 1:
            raise ConfigError(
                f"algorithm {a.name!r}: protocol {a.protocol} has a share of payload below 1, which queues in "
                f"{a.buffer_kind} have not; use buffer_kind tcm, or payload 1"
            )
        rings: dict[tuple[Place, str], int] = {}
        try:
            for place, role in plan.programs.items():
                for direction in role.neighbours:
                    rings[place, direction] = self._engine.allocators.ring(a.buffer_kind, place, nbytes)
        except AllocationError as error:
            for (held, _), address in rings.items():
                self._free(a.buffer_kind, held, address)
            raise OutOfMemoryError(
                f"algorithm {a.name!r}: no room for the ring of {direction!r} of {naming.pe(*place)}, {a.n_slots} "
                f"slots of {a.slot_size} B in {a.buffer_kind}: {error}; give it fewer or smaller slots, or another "
                "buffer_kind"
            ) from error
        return rings

    def _free(self, kind: str, place: Place, address: int) -> None:
        allocators = self._engine.allocators
        (allocators.sram(*place[:2]) if kind == "sram" else allocators.pe(*place)).free(address)


def _wirings(plan: CollectivePlan, rings: Mapping[tuple[Place, str], int]) -> dict[int, dict[PeId, list[QueueSpec]]]:
    a = plan.algorithm
    found: dict[int, dict[PeId, list[QueueSpec]]] = {}
    for (sip, cube, pe), role in plan.programs.items():
        if role.neighbours:
            found.setdefault(sip, {})[cube, pe] = [
                QueueSpec(
                    direction=direction,
                    peer=peer,
                    ring_pa=rings[(sip, cube, pe), direction],
                    peer_pa=rings[peer, back],
                    kind=a.buffer_kind,
                    n_slots=a.n_slots or 0,
                    slot_bytes=a.slot_size or 0,
                    credit_bytes=a.credit_bytes or 0,
                    chunk_bytes=a.vc_chunk_size,
                    summed=plan.subgroups[role.subgroup].places if a.topology is through_switch else (),
                    chunk_ns=a.sends_by.chunk_ns,
                    payload=a.sends_by.payload,
                )
                for direction, (peer, back) in role.neighbours.items()
            ]
    return found


class DrainCheck:
    """Checks that the programs of one collective have received all that was sent; counts are noted as each device ends.

    Devices that are ahead may be in the next collective by then, so the queues are compared as they were at the end of
    each device's program, and not as they are when the last device ends.
    """

    def __init__(self, engine: GraphEngine, plan: CollectivePlan, key: str, title: str) -> None:
        self._engine, self._plan, self._key, self._title = engine, plan, key, title
        self._left = len(plan.sips)
        self._noted: dict[tuple[Place, str], tuple[int, int]] = {}

    def note(self, places: list[Place]) -> None:
        for place in places:
            for direction, queue in self._queues(place).items():
                self._noted[place, direction] = queue.sent, queue.taken
        self._left -= 1
        if self._left:
            return
        for place, role in self._plan.programs.items():
            for direction, (peer, back) in role.neighbours.items():
                parts = self._noted[place, direction][0] - self._noted[peer, back][1]
                ring, queue = self._queues(peer)[back], self._queues(place)[direction]
                check_read(ring, queue, parts, f"{self._title}: {naming.pe(*peer)}", naming.pe(*place))

    def _queues(self, place: Place) -> Mapping[str, Queue]:
        queues: Mapping[str, Queue] = self._engine.pe(*place).ipcq.sets.get(self._key, {})
        return queues
