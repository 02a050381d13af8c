"""What is known of a collective before it runs: its plan, its closed form, its bounds, and what simulating it takes."""

from __future__ import annotations

from functools import cached_property, lru_cache

from kernbench.ccl.algorithm import Algorithm
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.estimate import Estimate
from kernbench.ccl.lane import Place, Target
from kernbench.ccl.plan import plan
from kernbench.topology.builder import Machine

PROGRAM = 10  # a program, with its launch and its queues, takes about as long to simulate as so many sends


class Ready:
    """An algorithm on a machine, for shards of any size.

    Parameters
    ----------
    machine : Machine
    algorithm : Algorithm
    targets : list of (cube, PE)
        Those of each SIP that have a shard.
    itemsize : int
        Bytes of an element.
    """

    def __init__(self, machine: Machine, algorithm: Algorithm, targets: list[Target], itemsize: int) -> None:
        self.machine, self._itemsize = machine, itemsize
        self.plan = plan(algorithm, machine.config, range(machine.config.n_sips), targets)

    @cached_property
    def form(self) -> Estimate:
        """Its closed form."""
        return Estimate(self.plan, self.machine, self._itemsize)

    @property
    def bounds(self) -> Bounds:
        """Its lower bounds, which all algorithms on the same PEs have in common."""
        return _bounds(self.machine, tuple(self.plan.programs), self.plan.algorithm.contribution)

    def work(self, nbytes: int) -> int:
        """Estimate how much there is to simulate, so that the longest case starts first.

        Notes
        -----
        Messages sent, and parts of them received, count one each; a program counts `PROGRAM`. An algorithm without a
        form is taken to send two vectors from each program, part by part.
        """
        slot = self.plan.algorithm.slot_size
        assert slot is not None
        programs = len(self.plan.programs)
        if not self.form.known:
            return programs * (PROGRAM + 4 * -(-nbytes // slot))
        sent = self.form.sent(nbytes)
        return PROGRAM * programs + sum(x.messages * sum(x.queues.values()) * (1 + -(-x.nbytes // slot)) for x in sent)


@lru_cache(maxsize=64)
def _bounds(machine: Machine, members: tuple[Place, ...], contribution: str) -> Bounds:
    return Bounds(machine, list(members), contribution)
