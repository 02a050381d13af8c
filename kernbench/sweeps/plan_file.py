"""A plan as a YAML file: what `kernbench sweep` takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.config import load_yaml
from kernbench.errors import ConfigError
from kernbench.registry import hint
from kernbench.sim_engine.limits import Limits
from kernbench.sweeps.engines import check_limits
from kernbench.sweeps.outcome import PointLimits
from kernbench.sweeps.plan import Plan, make_plan
from kernbench.topology.builder import PRESET

_PLAN = ("machine", "study", "axes", "parameters", "points", "where", "samples", "seed")
_LIMITS = ("time_limit_s", "memory_limit_mib", "limits")


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan, and the limits of its points."""

    plan: Plan
    limits: PointLimits


def read_plan(path: str | Path) -> PlanFile:
    """Return the plan of a YAML file.

    Parameters
    ----------
    path : str or Path
        Keys are the parameters of `kb.sweep` by the same names; a machine's path is seen from the file's folder.

    Raises
    ------
    ConfigError
        With what is wrong with it.
    """
    path = Path(path)
    content: Any = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping with the keys {', '.join((*_PLAN, *_LIMITS))}")
    known = (*_PLAN, *_LIMITS)
    unknown = [f"{path.name}: {key} is unknown; {hint(key, known)}" for key in content if key not in known]
    if "study" not in content:
        unknown.append(f"{path.name}: study is missing: name one of `kernbench list studies`")
    if unknown:
        raise ConfigError(unknown)
    machine = content.get("machine")
    if isinstance(machine, str) and not machine.startswith(PRESET):
        machine = str(path.parent / machine)
    rest = {key: content[key] for key in _PLAN[3:] if content.get(key) is not None}
    plan = make_plan(machine, content["study"], content.get("axes") or {}, **rest)
    seconds, mib, session = (content.get(key) for key in _LIMITS)
    limits = PointLimits(seconds, mib, Limits.of(session))
    check_limits(limits)
    return PlanFile(plan, limits)
