"""Launches through the CPUs of a SIP, in plain SimPy: host - io_cpu - m_cpu of each cube - pe_cpu, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine
from tests.reference.simulator import ACK_BYTES, Reference

Target = tuple[int, int]


class Launch:
    """A message of `nbytes` to PEs (cube, pe) of a SIP, sent now.

    Each PE answers at the common start, or when it has the message if that is later, or (`at_once`) always then.
    """

    def __init__(
        self, sim: Reference, sip: int, targets: Sequence[Target], nbytes: int, *, at_once: bool = False
    ) -> None:
        self.sim, self.sip, self.targets, self.nbytes, self.at_once = sim, sip, targets, nbytes, at_once
        self.taken: dict[Target, int] = {}
        self.started: dict[Target, int] = {}
        self.target_start = self.done = 0
        self._pes_left = Counter(cube for cube, _ in targets)
        self._cubes_left = len(self._pes_left)
        sim.through("host", naming.io_cpu(sip), nbytes, self._forward)

    def _forward(self) -> None:
        if not self.at_once:
            self.target_start = self.sim.now + spread_ps(self.sim.machine, self.targets, self.nbytes)
        self.sim.forward(self.sip, self.targets, self.nbytes, self._take)

    def _take(self, cube: int, pe: int) -> None:
        self.taken[cube, pe] = now = self.sim.now
        self.started[cube, pe] = start = max(now, self.target_start)
        ways = naming.pe_cpu(self.sip, cube, pe), naming.m_cpu(self.sip, cube)
        self.sim.at(start, lambda: self.sim.answer(*ways, ACK_BYTES, partial(self._pe_done, cube)))

    def _pe_done(self, cube: int) -> None:
        self._pes_left[cube] -= 1
        if not self._pes_left[cube]:
            self.sim.answer(naming.m_cpu(self.sip, cube), naming.io_cpu(self.sip), ACK_BYTES, self._cube_done)

    def _cube_done(self) -> None:
        self._cubes_left -= 1
        if not self._cubes_left:
            self.sim.answer(naming.io_cpu(self.sip), "host", ACK_BYTES, self._all_done)

    def _all_done(self) -> None:
        self.done = self.sim.now


def spread_ps(machine: Machine, targets: Sequence[Target], nbytes: int) -> int:
    """Return how long the copies take from the IO chiplet's CPU until the last PE has its own, nothing else on."""
    idle = Reference(machine)
    taken: list[int] = []
    idle.forward(0, targets, nbytes, lambda *_: taken.append(idle.now))
    idle.run()
    return max(taken)
