"""The parameters of a program, from its signature: names, types, choices, and what a typed text means."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from kernbench._registry import hint
from kernbench.benches import registry
from kernbench.errors import ConfigError
from kernbench.studies.study import Choices, explorations

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.topology.builder import Machine


Value = int | float | bool | str
_KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a program."""

    name: str
    kind: type
    default: Value
    description: str = ""
    choices: Choices | None = None

    def options(self, machine: Machine) -> list[str]:
        """Return the values it can take on `machine`; empty where any will do."""
        return list(self.choices.of(machine)) if self.choices else []

    def parse(self, given: object, machine: Machine) -> Value:
        """Return the value that `given`, a text or a value, means."""
        text = str(given).strip()
        options = self.options(machine)
        if options and text not in options:
            raise ConfigError(f"{self.name} = {text!r} is unknown; {hint(text, options)}")
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{self.name} = {text!r} must be true or false")
            return text.lower() == "true"
        try:
            value: Value = self.kind(text.replace(",", "") if self.kind in (int, float) else text)
        except ValueError:
            raise ConfigError(f"{self.name} = {text!r} must be {_KINDS[self.kind]}") from None
        if self.kind is int and value < 1:  # type: ignore[operator]
            raise ConfigError(f"{self.name} = {value} must be >= 1")
        return value


def parameters_of(function: Callable[..., object]) -> list[Parameter]:
    """Return the parameters of `function` that have a default, in its order."""
    found = []
    for given in inspect.signature(function).parameters.values():
        if given.default is inspect.Parameter.empty or given.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        found.append(_parameter(given.name, _annotation(function, given), given.default))
    return found


def _annotation(function: Callable[..., object], given: inspect.Parameter) -> Any:
    """Return the annotation itself: `from __future__ import annotations` leaves its text."""
    if isinstance(given.annotation, str):
        return eval(given.annotation, getattr(inspect.unwrap(function), "__globals__", {}))  # noqa: S307 - as typing does
    return type(given.default) if given.annotation is inspect.Parameter.empty else given.annotation


def _parameter(name: str, kind: Any, default: Any) -> Parameter:
    description, choices = "", None
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        description = next((note for note in notes if isinstance(note, str)), "")
        choices = next((note for note in notes if isinstance(note, Choices)), None)
    if get_origin(kind) is Literal:
        names = [str(value) for value in get_args(kind)]
        kind, choices = type(get_args(kind)[0]), Choices(lambda _: names)
    if kind not in _KINDS:
        raise ConfigError(
            f"{name}: {kind} has no field in a panel; use {', '.join(k.__name__ for k in _KINDS)}, Literal"
        )
    return Parameter(name, kind, default, description, choices)


@dataclass(frozen=True, slots=True)
class Workload:
    """A program for one machine, with its parameters."""

    name: str
    title: str
    function: Callable[..., object]
    parameters: tuple[Parameter, ...]
    source: tuple[str, str]
    cost: Callable[..., float | None] | None = None

    def program(self, values: Mapping[str, Value]) -> Callable[[RuntimeContext], object]:
        """Return the program with its parameters filled in."""
        return partial(self.function, **values)


def workloads(own: Iterable[Callable[..., object]] = ()) -> dict[str, Workload]:
    """Return all that can be run, by name: the user's own functions, then studies, then benches."""
    found = [_own(function) for function in own]
    for name, study in explorations().items():
        package, _, module = type(study).__module__.rpartition(".")
        source = (f"from {package} import {module}", f"{module}.{type(study).__name__}().program")
        found.append(_workload(f"study {name}", study.program, source, study.cost))
    for bench in registry.benches():
        if not bench.is_milestone:
            source = ("from kernbench.benches.registry import resolve", f"resolve({bench.name!r}).run")
            found.append(
                Workload(f"bench {bench.name}", bench.description, bench.run, tuple(parameters_of(bench.run)), source)
            )
    return {workload.name: workload for workload in found}


def not_here(name: str) -> Workload:
    """Return a program of which there is only the name: that of a saved result."""

    def program(_: RuntimeContext) -> None:
        raise ConfigError(f"{name} is not among the workloads here")

    return Workload(name, "", program, (), ("", ""))


def _own(function: Callable[..., object]) -> Workload:
    name = getattr(function, "__name__", "program")
    home = getattr(function, "__module__", "__main__")
    return _workload(name, function, ("" if home == "__main__" else f"from {home} import {name}", name))


def _workload(
    name: str, function: Callable[..., object], source: tuple[str, str], cost: Callable[..., float | None] | None = None
) -> Workload:
    title = (inspect.getdoc(function) or name).partition("\n")[0]
    return Workload(name, title, function, tuple(parameters_of(function)), source, cost)
