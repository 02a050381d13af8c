"""The columns of a run: its times, its critical path and its counters."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from kernbench.analysis._critical_path import critical_path
from kernbench.analysis._records import Launch, Records
from kernbench.analysis._resources import attribution
from kernbench.points._keys import Row, StudyFn
from kernbench.sweeps._energy_area import counters
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    from kernbench.analysis.result import Result
    from kernbench.runtime_api.context import RuntimeContext

HOW = ("log", "data", "tie_seed")  # parameters of the measurement


def program_row(
    program: Callable[..., Any],
    machine: Machine,
    *,
    log: str = "operation",
    data: bool = False,
    tie_seed: int | None = None,
    **parameters: Any,
) -> Row:
    from kernbench.runtime_api.bench_runner import (
        run_program,  # only programs need it; without it, a process starts sooner
    )

    returned: list[Any] = []

    def run(torch: RuntimeContext) -> None:
        returned.append(program(torch, **parameters))

    result = run_program(machine, run, log=log, data=data, tie_seed=tie_seed)
    return row_of(result, machine, returned[0], complete(program, parameters).get("dtype", "f16"))


def row_of(result: Result, machine: Machine, returned: object, dtype: object) -> Row:
    records = result.records
    longest = max((x.end_ps - x.start_ps for x in records.launches), default=records.makespan_ps)
    counts = counters(machine.config, records.links, records.busy_by_component(), dtype)
    stages = {f"exclusive_{stage}_ns": ns for stage, ns in result.breakdown.exclusive_ns().items() if ns}
    return {
        "latency_ns": longest / 1000,
        "run_ns": result.latency_ns,
        **stages,
        **counts,
        **(returned if isinstance(returned, dict) else {}),
    }


def path_columns(records: Records, launches: Sequence[Launch], parts: Iterable[str], of: Mapping[str, str]) -> Row:
    """Time of each part on the critical path of launches; the columns sum to it.

    `of` has the part of each resource, as `why` calls it; what it does not name is of the launches.
    """
    found = dict.fromkeys(parts, 0)
    for (kind, resource), ps in critical_path(records, launches).parts().items():
        found[of.get(attribution(kind, resource).group, "launch")] += ps
    return {f"path_{part}_ns": ps / 1000 for part, ps in found.items()}


def complete(study: StudyFn, parameters: Row) -> Row:
    """Add the study's defaults for missing parameters, so that both forms are the same point."""
    usual = {name: p.default for name, p in parameters_of(study).items() if p.default is not p.empty}
    return {name: value for name, value in usual.items() if _is_plain(value)} | parameters


def parameters_of(study: StudyFn) -> dict[str, inspect.Parameter]:
    """Parameters of a study by name: those of its program, if it is one, and of the measurement."""
    owner: Any = getattr(study, "__self__", None)
    if hasattr(owner, "fields"):
        return owner.fields()
    if isinstance(study, partial) and study.func is program_row:
        own = dict(list(inspect.signature(study.args[0]).parameters.items())[1:])
        return own | {name: inspect.signature(program_row).parameters[name] for name in HOW}
    return dict(list(inspect.signature(study).parameters.items())[1:])


def _is_plain(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True
