"""What is known of a collective before it runs: its plan, its closed form, its bounds, and what simulating it takes."""

from __future__ import annotations

from functools import cached_property, lru_cache

from kernbench.ccl.algorithm import Algorithm
from kernbench.ccl.bounds import Bounds
from kernbench.ccl.estimate import Estimate
from kernbench.ccl.lane import Place, Target
from kernbench.ccl.plan import plan
from kernbench.policy.routing import router_of
from kernbench.topology import naming
from kernbench.topology.builder import Machine
from kernbench.units import FLIT_BYTES

# What takes about as long to simulate as a message's send, or its receipt: a share of a program, with its launch and
# its queues, and flits on a link. Found by least squares over all cases of the report that end within a minute.
PROGRAM = 8
FLITS = 1000


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
        """Return about how much there is to simulate.

        Notes
        -----
        Messages sent, and parts of them received, count one each; a program counts `PROGRAM`, and `FLITS` flits on a
        link count one. An algorithm without a form is taken to send two vectors, part by part, to its first neighbour.
        """
        slot = self.plan.algorithm.slot_size
        assert slot is not None
        total = float(PROGRAM * len(self.plan.programs))
        if not self.form.known:
            flits = 2 * -(-nbytes // FLIT_BYTES) * self._links
            return int(total + len(self.plan.programs) * (4 * -(-nbytes // slot) + flits / FLITS))
        for sent in self.form.sent(nbytes):
            queues, links = sum(sent.queues.values()), sum(n * len(hop.out) for hop, n in sent.queues.items())
            flits = -(-sent.nbytes // FLIT_BYTES) * links
            total += sent.messages * (queues * (1 - -sent.nbytes // slot) + flits / FLITS)
        return int(total)

    @cached_property
    def _links(self) -> int:
        """Links from the first program to its first neighbour."""
        place, role = next(iter(self.plan.programs.items()))
        peers = [peer for peer, _ in role.neighbours.values()][:1]
        path = router_of(self.machine.graph).path
        return sum(len(path(naming.pe_dma(*place), naming.pe_dma(*peer))) - 1 for peer in peers)


@lru_cache(maxsize=64)
def _bounds(machine: Machine, members: tuple[Place, ...], contribution: str) -> Bounds:
    return Bounds(machine, list(members), contribution)
