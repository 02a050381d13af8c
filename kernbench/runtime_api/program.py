"""One program on one machine, from a fresh engine to a result."""

from __future__ import annotations

from collections.abc import Callable

from kernbench.analysis.result import Result
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import Machine


def run_program(
    machine: Machine,
    program: Callable[[RuntimeContext], object],
    *,
    data: bool = False,
    log: str = "operation",
    tie_seed: int | None = None,
) -> Result:
    """Run `program(torch)` on a fresh machine and return what happened.

    Parameters
    ----------
    machine : Machine
    program : callable
    data : bool
        Whether values are moved and computed.
    log : str
        Level of the op log.
    tie_seed : int or None
        Permutes who is first of simultaneous arrivals, to see how much that decides.
    """
    with RuntimeContext(GraphEngine(machine, data, log=log, tie_seed=tie_seed)) as torch:
        program(torch)
    return torch.result
