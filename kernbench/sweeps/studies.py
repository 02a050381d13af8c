"""What a sweep can run: a function of a machine, or a program of the torch-like namespace of one, measured."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kernbench.errors import ConfigError
from kernbench.registry import STUDIES
from kernbench.sweeps.activity import activity
from kernbench.sweeps.keys import Row, Study, study_name
from kernbench.topology.builder import Machine
from kernbench.triton_emu.runner import check_plain

if TYPE_CHECKING:
    from kernbench.analysis.result import Result
    from kernbench.runtime_api.context import RuntimeContext

PROGRAM = "torch"  # the first parameter of a program
HOW = ("log", "data", "tie_seed")  # parameters of the measurement


def resolve_study(study: Callable[..., Any] | str) -> Study:
    """Return the function of a machine that a study is.

    Parameters
    ----------
    study : callable or str
        A `Study`, of which every axis point is one `simulate`; or `study(machine, **parameters)`, returning a row; or
        `program(torch, **parameters)`, which is measured; or the name of one of these, or its dotted path.

    Raises
    ------
    ConfigError
        If a program has a parameter named as one of the measurement.
    """
    found: Any = STUDIES.resolve(study) if isinstance(study, str) else study
    if hasattr(found, "simulate"):
        simulate: Study = (found() if isinstance(found, type) else found).simulate
        return simulate
    fn: Callable[..., Any] = found
    check_plain(fn, "study")
    names = list(inspect.signature(fn).parameters)
    if names[:1] != [PROGRAM]:
        return fn
    taken = [name for name in HOW if name in names]
    if taken:
        raise ConfigError(f"parameter {taken[0]} of {study_name(fn)} is one of how it is run: name it otherwise")
    return partial(measured, fn)


def measured(
    program: Callable[..., Any],
    machine: Machine,
    *,
    log: str = "operation",
    data: bool = False,
    tie_seed: int | None = None,
    **parameters: Any,
) -> Row:
    """Run a program on a fresh machine and return what it took.

    Parameters
    ----------
    program : callable
        `program(torch, **parameters)`; a dict that it returns is part of the row.
    machine : Machine
    log : str
        Of the engine; "tile" looks into composites.
    data : bool
        Whether values are computed, and checked where the program does.
    tie_seed : int or None
        Permutes who is first of simultaneous arrivals: over some of them, what a latency owes to that order.
    **parameters
        The program's; `dtype`, if it has one, is the type of its products.

    Returns
    -------
    dict
        As `row_of` has it.
    """
    from kernbench.runtime_api.program import run_program  # only programs need it, and a process starts sooner without

    returned: list[Any] = []

    def run(torch: RuntimeContext) -> None:
        returned.append(program(torch, **parameters))

    result = run_program(machine, run, log=log, data=data, tie_seed=tie_seed)
    return row_of(result, machine, returned[0], complete(program, parameters).get("dtype", "f16"))


def row_of(result: Result, machine: Machine, returned: object, dtype: object) -> Row:
    """Return what a run took.

    Parameters
    ----------
    result : Result
    machine : Machine
    returned : object
        What the program returned; a dict is part of the row.
    dtype : DType or name
        Of the products.

    Returns
    -------
    dict
        `latency_ns` of the longest launch, or of the whole run if there is none; `run_ns` of the whole run; where the
        time of PEs went (`exclusive_*_ns`); the counts of `activity`.
    """
    records = result.records
    longest = max((x.end_ps - x.start_ps for x in records.launches), default=records.makespan_ps)
    counts = activity(machine.config, records.links, records.busy_by_component(), dtype)
    stages = {f"exclusive_{stage}_ns": ns for stage, ns in result.breakdown.exclusive_ns().items() if ns}
    return {
        "latency_ns": longest / 1000,
        "run_ns": result.latency_ns,
        **stages,
        **counts,
        **(returned if isinstance(returned, dict) else {}),
    }


def complete(study: Study, parameters: Row) -> Row:
    """Return parameters, and the study's own values for those that are left out: both ways it is the same point."""
    usual = {name: p.default for name, p in parameters_of(study).items() if p.default is not p.empty}
    return {name: value for name, value in usual.items() if _is_plain(value)} | parameters


def parameters_of(study: Study) -> dict[str, inspect.Parameter]:
    """Return the parameters of a study by name: those of its program, if it is one, and how it is run."""
    owner: Any = getattr(study, "__self__", None)
    if hasattr(owner, "fields"):
        fields: dict[str, inspect.Parameter] = owner.fields()
        return fields
    if isinstance(study, partial) and study.func is measured:
        own = dict(list(inspect.signature(study.args[0]).parameters.items())[1:])
        return own | {name: inspect.signature(measured).parameters[name] for name in HOW}
    return dict(list(inspect.signature(study).parameters.items())[1:])


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
