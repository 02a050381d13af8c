"""What a sweep can run: a function of a machine, or a program of the torch-like namespace of one, measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kernbench.registry import STUDIES
from kernbench.sweeps.activity import activity
from kernbench.sweeps.keys import Row, Study
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

PROGRAM = "torch"  # the first parameter of a program


def resolve_study(study: Study | str) -> Study:
    """Return the function of a machine that a study is.

    Parameters
    ----------
    study : callable or str
        `study(machine, **parameters)`, returning a row; or `program(torch, **parameters)`, which is measured; or the
        name of either, or its dotted path.
    """
    fn: Callable[..., Any] = STUDIES.resolve(study) if isinstance(study, str) else study
    first = next(iter(inspect.signature(fn).parameters), "")
    return partial(measured, fn) if first == PROGRAM else fn


def measured(program: Callable[..., Any], machine: Machine, *, mode: str = "auto", **parameters: Any) -> Row:
    """Run a program on a fresh machine, without values, and return what it took.

    Parameters
    ----------
    program : callable
        `program(torch, **parameters)`; a dict that it returns is part of the row.
    machine : Machine
    mode : str
        Of the engine.
    **parameters
        The program's; `dtype`, if it has one, is the type of its products.

    Returns
    -------
    dict
        `latency_ns` of the longest launch, or of the whole run if there is none; `run_ns` of the whole run; where the
        time of PEs went (`exclusive_*_ns`); the counts of `activity`; `certified`.
    """
    from kernbench.runtime_api.auto import run_program  # only programs need it, and a process starts sooner without

    returned: list[Any] = []

    def run(torch: RuntimeContext) -> None:
        returned[:] = [program(torch, **parameters)]

    result = run_program(machine, run, mode=mode)
    records = result.records
    longest = max((x.end_ps - x.start_ps for x in records.launches), default=records.makespan_ps)
    counts = activity(machine.config, records.links, records.busy_by_component(), parameters.get("dtype", "f16"))
    stages = {f"exclusive_{stage}_ns": ns for stage, ns in result.breakdown.exclusive_ns().items() if ns}
    return {
        "latency_ns": longest / 1000,
        "run_ns": result.latency_ns,
        **stages,
        **counts,
        "certified": records.mode == "exact" or bool(records.certified),
        **(returned[0] if isinstance(returned[0], dict) else {}),
    }


def parameters_of(study: Study) -> dict[str, inspect.Parameter]:
    """Return the parameters of a study by name: those of its program, if it is one, and `mode`."""
    if isinstance(study, partial) and study.func is measured:
        own = dict(list(inspect.signature(study.args[0]).parameters.items())[1:])
        return own | {"mode": inspect.signature(measured).parameters["mode"]}
    return dict(list(inspect.signature(study).parameters.items())[1:])
