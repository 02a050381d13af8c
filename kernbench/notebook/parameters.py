"""The parameters of a program, from its signature: names, types, choices, and what a typed text means."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

from kernbench.errors import ConfigError
from kernbench.registry import hint
from kernbench.studies.study import Choices

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine

Value = int | float | bool | str
_KINDS: dict[type, str] = {int: "a whole number", float: "a number", bool: "yes or no", str: "text"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a program.

    Attributes
    ----------
    name : str
    kind : type
        int, float, bool or str.
    default : int, float, bool or str
    says : str
        What it means; may be empty.
    choices : Choices or None
        The values it can take, where they are few.
    """

    name: str
    kind: type
    default: Value
    says: str = ""
    choices: Choices | None = None

    def options(self, machine: Machine) -> list[str]:
        """Return the values it can take on `machine`; empty where any will do."""
        return list(self.choices.of(machine)) if self.choices else []

    def parse(self, given: object, machine: Machine) -> Value:
        """Return the value that `given`, a text or a value, means.

        Raises
        ------
        ConfigError
            If it means none.
        """
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
    """Return the parameters of `function` that have a default, in its order.

    Raises
    ------
    ConfigError
        If one is of a kind that no panel can ask for.
    """
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
    says, choices = "", None
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)
        says = next((note for note in notes if isinstance(note, str)), "")
        choices = next((note for note in notes if isinstance(note, Choices)), None)
    if get_origin(kind) is Literal:
        names = [str(value) for value in get_args(kind)]
        kind, choices = type(get_args(kind)[0]), Choices(lambda _: names)
    if kind not in _KINDS:
        raise ConfigError(
            f"{name}: {kind} has no field in a panel; use {', '.join(k.__name__ for k in _KINDS)}, Literal"
        )
    return Parameter(name, kind, default, says, choices)
