"""What the notebook explorer can run: the program of each study that has one.

The signature of `Study.program` is its panel: `int`, `float`, `bool`, `str` and `Literal[...]`, each with a default;
`Annotated[int, "rows of A"]` says what a value means, and `Annotated[str, Choices(f)]` takes the names that
`f(machine)` returns. The first line of its docstring is its title. What it returns, if anything, is shown beside the
result. `Study.cost` tells how long the simulation takes, and refuses values that the machine cannot run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernbench.registry import STUDIES
from kernbench.studies.study import Study

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine

SESSION_US = 80_000.0  # to open a session, run one launch and collect its records


@dataclass(frozen=True, slots=True)
class Choices:
    """The values that a parameter can take on a machine.

    Attributes
    ----------
    of : callable
        `of(machine)` returns their names, the usual one first.
    """

    of: Callable[[Machine], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Exploration:
    """A study's program for the explorer, its cost on a machine, and its name in its module."""

    run: Callable[..., object]
    cost: Callable[..., float | None]
    source: str


def explorations() -> dict[str, Exploration]:
    """Return what every study that can be explored runs, by the study's name."""
    found: dict[str, Exploration] = {}
    for name in STUDIES.names:
        study = STUDIES.resolve(name)
        if isinstance(study, type) and issubclass(study, Study) and study.program is not Study.program:
            made = study()
            found[name] = Exploration(made.program, made.cost, f"{study.__name__}().program")
    return dict(sorted(found.items()))


def at_most(machine: Machine, *, cubes: int = 1, pes: int = 1) -> list[str]:
    """Return a fault for each parameter that asks for more cubes or PEs than the machine has."""
    config = machine.config
    asked = (("cubes", cubes, config.cubes_per_sip, "a SIP"), ("pes", pes, config.pes_per_cube, "a cube"))
    return [
        f"{name} = {value} must be at most {most}: {owner} of this machine has {most}"
        for name, value, most, owner in asked
        if value > most
    ]


def fits_slice(machine: Machine, name: str, value: object, nbytes: int) -> list[str]:
    """Return a fault if the tensors of one PE are larger than its HBM slice."""
    slice_bytes = machine.config.cube.hbm.slice_bytes(machine.config.pes_per_cube)
    if nbytes <= slice_bytes:
        return []
    return [f"{name} = {value}: the tensors of one PE take {nbytes:,} B; its HBM slice has {slice_bytes:,} B"]
