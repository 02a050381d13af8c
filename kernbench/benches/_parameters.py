"""The parameters of a program, from its signature: names, types, choices, and the meaning of a typed text."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from kernbench._registry import hint
from kernbench.errors import ConfigError
from kernbench.studies.study import Choices
from kernbench.topology.builder import Machine

ParameterValue = int | float | bool | str | None


class ShapeText(str):
    __slots__ = ()

    def __new__(cls, text: object) -> Self:
        found = super().__new__(cls, str(text).strip())
        if not all(part.strip().isdecimal() and int(part) for part in found.split("x")):
            raise ValueError(f"{found!r} is no shape")
        return found

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.split("x"))


PARAMETER_KINDS: dict[type, str] = {
    int: "a whole number", float: "a number", bool: "yes or no", str: "text", ShapeText: "a shape such as 64x64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProgramParameter:
    """A parameter of a program; `on` returns the default on a machine, if it depends on it.

    None is the default of what the program finds itself, and an empty text means it.
    """

    name: str
    kind: type
    default: ParameterValue
    description: str = ""
    choices: Choices | None = None
    on: Callable[[Machine], ParameterValue] | None = None

    def usual(self, machine: Machine) -> ParameterValue:
        options = self.options(machine)
        if options and str(self.default) not in options:
            return options[0]
        return self.on(machine) if self.on is not None else self.default

    def options(self, machine: Machine) -> list[str]:
        return list(self.choices.of(machine)) if self.choices else []

    def parse(self, given: object, machine: Machine) -> ParameterValue:
        text = "" if given is None else str(given).strip()
        if not text and self.default is None:
            return None
        options = self.options(machine)
        if options and text not in options:
            raise ConfigError(f"{self.name} = {text!r} is unknown; {hint(text, options)}")
        if self.kind is bool:
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{self.name} = {text!r} must be true or false")
            return text.lower() == "true"
        try:
            value: ParameterValue = self.kind(text.replace(",", "") if self.kind in (int, float) else text)
        except ValueError:
            raise ConfigError(f"{self.name} = {text!r} must be {PARAMETER_KINDS[self.kind]}") from None
        if self.kind is int and value < 1:  # type: ignore[operator]
            raise ConfigError(f"{self.name} = {value} must be >= 1")
        return value


def signature_parameters(function: Callable[..., object]) -> list[ProgramParameter]:
    given = inspect.signature(function).parameters.values()
    return [parameter(x.name, annotation(function, x), x.default) for x in given if x.default is not x.empty]


def annotation(function: Callable[..., object], given: inspect.Parameter) -> Any:
    """Evaluate an annotation, which is a text after `from __future__ import annotations`."""
    if isinstance(given.annotation, str):
        return eval(given.annotation, getattr(inspect.unwrap(function), "__globals__", {}))  # noqa: S307 - as typing does
    return type(given.default) if given.annotation is inspect.Parameter.empty else given.annotation


def parameter(name: str, kind: Any, default: Any) -> ProgramParameter:
    description, choices = "", None
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        description = next((note for note in notes if isinstance(note, str)), "")
        choices = next((note for note in notes if isinstance(note, Choices)), None)
    if default is None and NoneType in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Literal:
        names = [str(value) for value in get_args(kind)]
        kind, choices = type(get_args(kind)[0]), Choices(lambda _: names)
    if kind not in PARAMETER_KINDS:
        raise ConfigError(
            f"{name}: {kind} has no field in a panel and no option; use "
            f"{', '.join(k.__name__ for k in PARAMETER_KINDS)}, Literal"
        )
    return ProgramParameter(name, kind, default, description, choices)
