"""Messages through the CPUs of a SIP, in plain SimPy: host - io_cpu - m_cpu of each cube - pe_cpu, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import simpy

from kernbench.topology import naming
from kernbench.topology.builder import Machine
from tests.reference.simulator import Reference

Target = tuple[int, int]


class Cpus:
    """The CPUs of a machine, each serving one message at a time."""

    def __init__(self, sim: Reference) -> None:
        self.sim = sim
        config = sim.machine.config
        self._service = {
            "io_cpu": config.sip.io.io_cpu.service_ns,
            "m_cpu": config.cube.m_cpu.service_ns,
            "pe_cpu": config.cube.pe.pe_cpu.command_ns,
        }
        self._servers: dict[str, simpy.Resource] = {}

    def serve(self, node_id: str, then: Callable[[], None]) -> None:
        """Occupy a CPU for one message, after those that came before; then go on."""
        if node_id not in self._servers:
            self._servers[node_id] = simpy.Resource(self.sim.env, 1)
        self.sim.env.process(self._serve(node_id, then))

    def _serve(self, node_id: str, then: Callable[[], None]) -> Iterator[simpy.Event]:
        with self._servers[node_id].request() as turn:
            yield turn
            yield self.sim.env.timeout(round(self._service[naming.parse(node_id).kind] * 1000))
        then()


class Launch:
    """A message of `nbytes` to PEs (cube, pe) of a SIP, sent now.

    Each PE answers at the common start, or when it has the message if that is later, or (`at_once`) always then.
    With `dry`, it begins when the IO chiplet's CPU has done its part, and nobody answers.
    """

    def __init__(
        self, cpus: Cpus, sip: int, targets: Sequence[Target], nbytes: int, at_once: bool = False, dry: bool = False
    ) -> None:
        self.cpus, self.sim, self.sip, self.nbytes = cpus, cpus.sim, sip, nbytes
        self.at_once, self.dry = at_once, dry
        self.cubes: dict[int, list[int]] = {}
        for cube, pe in targets:
            self.cubes.setdefault(cube, []).append(pe)
        self.targets = list(targets)
        self.taken: dict[Target, int] = {}
        self.started: dict[Target, int] = {}
        self.target_start = self.done = 0
        self._pes_left = {cube: len(pes) for cube, pes in self.cubes.items()}
        self._cubes_left = len(self.cubes)
        io_cpu = naming.io_cpu(sip)
        if dry:
            self._to_cubes()
        else:
            self.sim.send("host", io_cpu, nbytes, lambda: cpus.serve(io_cpu, self._to_cubes))

    def _to_cubes(self) -> None:
        if not (self.dry or self.at_once):
            self.target_start = self.sim.now + spread_ps(self.sim.machine, self.targets, self.nbytes)
        for cube in self.cubes:
            m_cpu = naming.m_cpu(self.sip, cube)
            self.sim.send(
                naming.io_cpu(self.sip),
                m_cpu,
                self.nbytes,
                lambda cube=cube, m_cpu=m_cpu: self.cpus.serve(m_cpu, lambda: self._to_pes(cube)),
            )

    def _to_pes(self, cube: int) -> None:
        for pe in self.cubes[cube]:
            pe_cpu = naming.pe_cpu(self.sip, cube, pe)
            self.sim.send(
                naming.m_cpu(self.sip, cube),
                pe_cpu,
                self.nbytes,
                lambda pe=pe, pe_cpu=pe_cpu: self.cpus.serve(pe_cpu, lambda: self._take(cube, pe)),
            )

    def _take(self, cube: int, pe: int) -> None:
        self.taken[cube, pe] = now = self.sim.now
        if self.dry:
            return
        self.started[cube, pe] = start = max(now, self.target_start)
        pe_cpu, m_cpu = naming.pe_cpu(self.sip, cube, pe), naming.m_cpu(self.sip, cube)
        self.sim.at(start, lambda: self.sim.answer(pe_cpu, m_cpu, 16, lambda: self._pe_done(cube)))

    def _pe_done(self, cube: int) -> None:
        self._pes_left[cube] -= 1
        if not self._pes_left[cube]:
            self.sim.answer(naming.m_cpu(self.sip, cube), naming.io_cpu(self.sip), 16, self._cube_done)

    def _cube_done(self) -> None:
        self._cubes_left -= 1
        if not self._cubes_left:
            self.sim.answer(naming.io_cpu(self.sip), "host", 16, self._all_done)

    def _all_done(self) -> None:
        self.done = self.sim.now


def spread_ps(machine: Machine, targets: Sequence[Target], nbytes: int) -> int:
    """Return how long the copies take from the IO chiplet's CPU until the last PE has its own, nothing else on."""
    idle = Reference(machine)
    dry = Launch(Cpus(idle), 0, targets, nbytes, dry=True)
    idle.run()
    return max(dry.taken.values())
