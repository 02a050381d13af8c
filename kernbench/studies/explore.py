"""What the notebook explorer can run: programs with typed parameters, found by convention.

A module of `kernbench.studies` that has a function `explore(torch, *, size: int = 64, ...)` is one; it gets the
torch-like namespace of a fresh machine and asks something of it. Its signature is its panel: `int`, `float`, `bool`,
`str` and `Literal[...]`, each with a default; `Annotated[int, "rows of A"]` says what a value means, and
`Annotated[str, Choices(f)]` takes the names that `f(machine)` returns. The first line of its docstring is its title.
What it returns, if anything, is shown beside the result.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernbench.registry import STUDIES
from kernbench.studies.study import Study

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine

FUNCTION = "explore"
_APART = f"_{FUNCTION}"  # a study may keep it in a module of its own


@dataclass(frozen=True, slots=True)
class Choices:
    """The values that a parameter can take on a machine.

    Attributes
    ----------
    of : callable
        `of(machine)` returns their names, the usual one first.
    """

    of: Callable[[Machine], Sequence[str]]


def explorations() -> dict[str, Callable[..., object]]:
    """Return the function of every study that can be explored, by the study's name."""
    import kernbench.studies as package

    found: dict[str, Callable[..., object]] = {}
    for name in STUDIES.names:
        study = STUDIES.resolve(name)
        if isinstance(study, type) and issubclass(study, Study) and study.program is not Study.program:
            found[name] = study().program
    for info in pkgutil.iter_modules(package.__path__):
        function = getattr(importlib.import_module(f"{package.__name__}.{info.name}"), FUNCTION, None)
        if callable(function):
            found[info.name.removesuffix(_APART)] = function
    return found
