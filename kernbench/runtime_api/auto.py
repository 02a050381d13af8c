"""Runs that can be repeated: whole messages first, trains of flits where their certificate fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernbench.analysis.result import Result
from kernbench.errors import KernbenchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import MODES, GraphEngine
from kernbench.topology.builder import Machine

AUTO = "auto"


def passes(
    machine: Machine, *, data: bool = False, mode: str = AUTO, log: str = "operation", tie_seed: int | None = None
) -> Iterator[GraphEngine]:
    """Yield an engine for each run of a program until one counts: it is the last.

    "auto" yields one in mode "fast" first, and where messages turned out to interleave one in mode "exact". What the
    last engine says equals "exact" in any case.

    Parameters
    ----------
    machine : Machine
    data : bool
        Whether values are moved and computed.
    mode : str
        A mode of the engine, or "auto".
    log : str
        Level of the op log.
    tie_seed : int or None
        Permutes who is first of simultaneous arrivals, to see how much that decides.
    """
    if mode not in (*MODES, AUTO):
        raise KernbenchError(f"mode = {mode!r} is unknown; known: {', '.join((*MODES, AUTO))}")
    if mode != AUTO:
        yield GraphEngine(machine, data, mode=mode, log=log, tie_seed=tie_seed)
        return
    engine = GraphEngine(machine, data, mode="fast", log=log, tie_seed=tie_seed)
    yield engine
    if not engine.certified and engine.failure is None:
        yield GraphEngine(machine, data, mode="exact", log=log, tie_seed=tie_seed)


def run_program(
    machine: Machine,
    program: Callable[[RuntimeContext], object],
    *,
    data: bool = False,
    mode: str = AUTO,
    log: str = "operation",
    tie_seed: int | None = None,
) -> Result:
    """Run `program(torch)` on a fresh machine and return what happened.

    Parameters
    ----------
    machine : Machine
    program : callable
        Told the same, it must ask the same of the machine: "auto" may call it more than once.
    data : bool
        Whether values are moved and computed.
    mode : str
        A mode of the engine, or "auto", as for `passes`.
    log : str
        Level of the op log.
    tie_seed : int or None
        Permutes who is first of simultaneous arrivals, to see how much that decides.
    """
    for engine in passes(machine, data=data, mode=mode, log=log, tie_seed=tie_seed):
        with RuntimeContext(engine) as torch:
            program(torch)
    return torch.result
