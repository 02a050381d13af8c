"""Collectives on the machine: queues, installed at first use, and the launches that start one on each device."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import simpy

from kernbench.ccl.install import names, resolve_algorithm_config
from kernbench.ccl.plan import Plan, plan
from kernbench.ccl.tuner import Candidate, Tuner
from kernbench.errors import AllocationError, ConfigError, OutOfMemoryError
from kernbench.runtime_api.unread import Ends
from kernbench.sim_engine.install import QueueSpec
from kernbench.topology import naming

if TYPE_CHECKING:
    from kernbench.ccl.algorithm import Algorithm
    from kernbench.ccl.lane import Place, Target
    from kernbench.config import CclConfig
    from kernbench.sim_engine.engine import GraphEngine
    from kernbench.triton_emu.handles import Pointer

Start = Callable[[], simpy.Event]

# Shards of a device that a choice looks at (chosen: those of a cube's PEs share the way to its neighbours already).
SEEN = 2


class Queues:
    """One installation: `key` is what launches name it by, `ready` succeeds when every device has it."""

    __slots__ = ("key", "ready")

    def __init__(self, key: str | None, ready: simpy.Event) -> None:
        self.key, self.ready = key, ready


class Collectives:
    """The collectives of one machine.

    Parameters
    ----------
    engine : GraphEngine
        The machine.
    """

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._installed: dict[tuple[Any, ...], Queues] = {}
        self._tuners: dict[str, Tuner] = {}

    def chosen(
        self,
        config: CclConfig,
        collective: str,
        n_elem: int,
        itemsize: int,
        sips: Sequence[int],
        places: Sequence[Target],
    ) -> Plan:
        """Return the best plan for a collective in torch's meaning, by closed form: what `algorithm: auto` means.

        Parameters
        ----------
        config : CclConfig
            What there is to choose from.
        collective : str
        n_elem, itemsize : int
            Of the largest shard.
        sips : sequence of int
            The group's devices, in rank order.
        places : sequence of (cube, pe)
            The PEs of each that hold a shard. The forms look at the first few: more share links alike.

        Raises
        ------
        ConfigError
            If none runs there; the message says why not, for each.
        """
        tuner = self._tuner(config)
        few = list(places)[:SEEN]
        decision = tuner.choose(collective, n_elem * itemsize, sips=sips, places=few, itemsize=itemsize)
        for candidate in decision.candidates[:-1]:
            try:
                return self._planned(tuner, candidate, sips, places)
            except ConfigError:
                continue  # It takes the few, but not all of them.
        return self._planned(tuner, decision.candidates[-1], sips, places)

    def _tuner(self, config: CclConfig) -> Tuner:
        key = json.dumps(config.to_spec())
        if key not in self._tuners:
            known = [resolve_algorithm_config(name, config) for name in names(config, contribution="rank")]
            self._tuners[key] = Tuner(self._engine.machine, known)
        return self._tuners[key]

    def _planned(self, tuner: Tuner, candidate: Candidate, sips: Sequence[int], places: Sequence[Target]) -> Plan:
        algorithm = replace(tuner.algorithms[candidate.algorithm], n_slots=candidate.n_slots)
        return plan(algorithm, self._engine.machine.config, sips, places)

    def install(self, plan: Plan, key: str) -> Queues:
        """Return the queues of a plan, for whoever goes by `key`; at first use they are sent to the PEs.

        Parameters
        ----------
        plan : Plan
        key : str
            Name of the process group, say: each has rings of its own.

        Raises
        ------
        OutOfMemoryError
            If a memory has no room for a ring; no ring is held then.
        """
        found = self._installed.get(self._identity(plan, key))
        if found is None:
            found = self._installed[self._identity(plan, key)] = self._send(plan, key)
        return found

    def starts(
        self,
        plan: Plan,
        key: str,
        buffers: Mapping[Place, Sequence[Pointer]],
        n_elem: Mapping[Place, int],
        name: str,
        call: Mapping[str, Any],
    ) -> dict[int, Start]:
        """Return what starts a collective on each device; calling it returns the event of the device's completion.

        Parameters
        ----------
        plan : Plan
        key : str
            As for `install`.
        buffers : mapping
            What the kernel of each PE gets first: pointers to its own shards.
        n_elem : mapping
            Elements of each PE's shard.
        name : str
            What the launches are called.
        call : mapping
            What this call asks for, such as `op` and `root`.

        Raises
        ------
        ConfigError
            If the algorithm does not take an option of `call`, or so many pointers.
        OutOfMemoryError
            As for `install`.
        """
        args = {place: (*buffers[place], *plan.args(place, n_elem[place], **call)) for place in plan.programs}
        plan.algorithm.check_kernel(args.values())
        queues = self.install(plan, key)
        ends = Ends(self._engine, plan, queues.key, name) if queues.key is not None else None
        return {sip: self._start(plan, sip, args, name, queues, ends) for sip in plan.sips}

    def _start(
        self, plan: Plan, sip: int, args: Mapping[Place, tuple[Any, ...]], name: str, queues: Queues, ends: Ends | None
    ) -> Start:
        engine, roles = self._engine, plan.on(sip)
        own = {(cube, pe): args[sip, cube, pe] for cube, pe in roles}
        ranks = {target: role.rank for target, role in roles.items()}

        def launch() -> simpy.Event:
            kernel = plan.algorithm.kernel
            done = engine.launch(sip, list(own), kernel, own, name, queues.key, ranks, plan.world_size).done
            if ends is not None:
                done.callbacks.append(lambda _: ends.note([(sip, *target) for target in own]))
            return done

        def start() -> simpy.Event:
            if queues.ready.processed:
                return launch()
            done = simpy.Event(engine.env)
            races = engine.races(sip)
            task = None if races is None else races.task

            def complete(event: simpy.Event) -> None:
                done.succeed(event.value)

            def begin(_: simpy.Event) -> None:
                (launch() if task is None else task.run(launch)).callbacks.append(complete)

            queues.ready.callbacks.append(begin)
            return done

        return start

    @staticmethod
    def _identity(plan: Plan, key: str) -> tuple[Any, ...]:
        a = plan.algorithm
        sizes = (a.buffer_kind, a.n_slots, a.slot_size, a.credit_bytes, a.vc_chunk_size)
        graph = (a.topology, a.root_cube, plan.lanes[0].grid)
        return key, a.name, *sizes, *graph, tuple(plan.programs)

    def _send(self, plan: Plan, key: str) -> Queues:
        """Reserve the rings of a plan and install its queues on all devices."""
        engine, a = self._engine, plan.algorithm
        ready = simpy.Event(engine.env)
        rings = self._reserve(plan)
        if not rings:
            ready.succeed()
            return Queues(None, ready)
        n = len(self._installed)
        name = f"{key}: {a.name}, {a.n_slots} x {a.slot_size} B in {a.buffer_kind} ({n})"
        wirings = _wirings(plan, rings)
        left = len(wirings)

        def installed(_: simpy.Event) -> None:
            nonlocal left
            left -= 1
            if not left:
                ready.succeed()

        for sip, wiring in wirings.items():
            engine.install(sip, wiring, name).callbacks.append(installed)
        return Queues(name, ready)

    def _reserve(self, plan: Plan) -> dict[tuple[Place, str], int]:
        """Return the address of the ring of each direction of each PE."""
        a = plan.algorithm
        nbytes = (a.n_slots or 0) * (a.slot_size or 0)
        rings: dict[tuple[Place, str], int] = {}
        try:
            for place, role in plan.programs.items():
                for way in role.neighbours:
                    rings[place, way] = self._ring(a.buffer_kind, place, nbytes)
        except AllocationError as error:
            for (held, _), address in rings.items():
                self._free(a.buffer_kind, held, address)
            raise OutOfMemoryError(
                f"algorithm {a.name!r}: no room for the ring of {way!r} of {naming.pe(*place)}, {a.n_slots} slots of "
                f"{a.slot_size} B in {a.buffer_kind}: {error}; give it fewer or smaller slots, or another buffer_kind"
            ) from error
        return rings

    def _ring(self, kind: str, place: Place, nbytes: int) -> int:
        sip, cube, _ = place
        if kind == "sram":
            return self._engine.allocators.sram(sip, cube).reserve_ipcq_sram(nbytes)
        pe = self._engine.allocators.pe(*place)
        return pe.reserve_ipcq_tcm(nbytes) if kind == "tcm" else pe.reserve_ipcq_hbm(nbytes)

    def _free(self, kind: str, place: Place, address: int) -> None:
        sip, cube, _ = place
        (self._engine.allocators.sram(sip, cube) if kind == "sram" else self._engine.allocators.pe(*place)).free(
            address
        )


def _wirings(plan: Plan, rings: Mapping[tuple[Place, str], int]) -> dict[int, dict[Target, list[QueueSpec]]]:
    """Return the queues of each PE of each device, from the addresses of their rings."""
    a = plan.algorithm
    found: dict[int, dict[Target, list[QueueSpec]]] = {}
    for (sip, cube, pe), role in plan.programs.items():
        if role.neighbours:
            found.setdefault(sip, {})[cube, pe] = [
                QueueSpec(
                    direction=way,
                    peer=peer,
                    ring_pa=rings[(sip, cube, pe), way],
                    peer_pa=rings[peer, back],
                    kind=a.buffer_kind,
                    n_slots=a.n_slots or 0,
                    slot_bytes=a.slot_size or 0,
                    credit_bytes=a.credit_bytes or 0,
                    chunk_bytes=a.vc_chunk_size,
                )
                for way, (peer, back) in role.neighbours.items()
            ]
    return found


def title(algorithm: Algorithm) -> str:
    """Return what the launches of a collective are called: what it does, and over whose shards if not the ranks'."""
    over = "" if algorithm.contribution == "rank" else f" over each {algorithm.contribution}'s shard"
    return f"{algorithm.collective} by {algorithm.name}{over}"
