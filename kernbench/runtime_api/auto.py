"""Runs that can be repeated: whole messages first, flit by flit where their certificate fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernbench.analysis.result import Result
from kernbench.errors import KernbenchError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import MODES, GraphEngine
from kernbench.topology.builder import Machine

AUTO = "auto"


def passes(machine: Machine, *, data: bool = False, mode: str = AUTO, log: str = "operation") -> Iterator[GraphEngine]:
    """Yield an engine for each run of a program until one counts: it is the last.

    "auto" yields one in mode "fast" first, and goes on, with flits on every route over a link at which messages
    turned out to interleave, until no new one is found: what the last engine says then equals "exact".

    Parameters
    ----------
    machine : Machine
    data : bool
        Whether values are moved and computed.
    mode : str
        A mode of the engine, or "auto".
    log : str
        Level of the op log.
    """
    if mode not in (*MODES, AUTO):
        raise KernbenchError(f"mode = {mode!r} is unknown; known: {', '.join((*MODES, AUTO))}")
    hot: frozenset[str] = frozenset()
    while True:
        engine = GraphEngine(machine, data, mode="fast" if mode == AUTO else mode, log=log, hot=hot)
        yield engine
        found = frozenset(engine.fabric.flagged) - hot
        if mode != AUTO or not found or engine.failure is not None:
            return
        hot |= found


def run_program(
    machine: Machine,
    program: Callable[[RuntimeContext], object],
    *,
    data: bool = False,
    mode: str = AUTO,
    log: str = "operation",
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
    """
    for engine in passes(machine, data=data, mode=mode, log=log):
        with RuntimeContext(engine) as torch:
            program(torch)
    return torch.result
