"""What can be run: every study that can be explored, every bench, and functions of the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kernbench.benches import registry
from kernbench.notebook.parameters import Parameter, Value, parameters_of
from kernbench.studies.study import explorations

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


@dataclass(frozen=True, slots=True)
class Work:
    """A program for one machine, with its parameters.

    Attributes
    ----------
    name : str
        "study gemm", "bench qkv-gemm", or the name of a function.
    title : str
        What it does, in a line.
    function : callable
        `function(torch, **values)`.
    parameters : tuple of Parameter
    source : tuple of str
        Import and expression that give `function` in a cell.
    cost : callable, optional
        `cost(machine, data, **values)`, see `kernbench.studies.Study.cost`.
    """

    name: str
    title: str
    function: Callable[..., object]
    parameters: tuple[Parameter, ...]
    source: tuple[str, str]
    cost: Callable[..., float | None] | None = None

    def program(self, values: Mapping[str, Value]) -> Callable[[RuntimeContext], object]:
        """Return the program with its parameters filled in."""
        return partial(self.function, **values)


def works(own: Iterable[Callable[..., object]] = ()) -> dict[str, Work]:
    """Return all that can be run, by name: the user's own functions, then studies, then benches.

    Parameters
    ----------
    own : iterable of callable
        Functions `f(torch, *, size=64, ...)`; a bench of the user's own is found by its decorator.
    """
    found = [_own(function) for function in own]
    for name, study in explorations().items():
        package, _, module = study.run.__module__.rpartition(".")
        source = (f"from {package} import {module}", f"{module}.{study.source}")
        found.append(_work(f"study {name}", study.run, source, study.cost))
    for bench in registry.benches():
        if not bench.is_milestone:
            source = ("from kernbench.benches.registry import resolve", f"resolve({bench.name!r}).run")
            found.append(
                Work(f"bench {bench.name}", bench.description, bench.run, tuple(parameters_of(bench.run)), source)
            )
    return {work.name: work for work in found}


def _own(function: Callable[..., object]) -> Work:
    name = getattr(function, "__name__", "program")
    home = getattr(function, "__module__", "__main__")
    return _work(name, function, ("" if home == "__main__" else f"from {home} import {name}", name))


def _work(
    name: str, function: Callable[..., object], source: tuple[str, str], cost: Callable[..., float | None] | None = None
) -> Work:
    title = (inspect.getdoc(function) or name).partition("\n")[0]
    return Work(name, title, function, tuple(parameters_of(function)), source, cost)
