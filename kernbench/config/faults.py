"""What is wrong with a configuration: from the validator's findings to lines that a user can act on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from kernbench.config.values import EXPECTED, Model, Unit, keys
from kernbench.errors import quote
from kernbench.registry import hint

if TYPE_CHECKING:
    from pydantic import ValidationError

Path = tuple[Any, ...]

_LONGEST_VALUE = 60


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. `keys` are the paths that it hangs on, the one to look at first."""

    text: str
    keys: tuple[Path, ...]

    def touches(self, paths: Iterable[Path]) -> bool:
        """Return whether one of the keys is at, above or below one of `paths`."""
        return any(key[: len(path)] == path[: len(key)] for path in paths for key in self.keys)


def key(dotted_path: str) -> Path:
    """Return the path that is written `dotted_path`."""
    return tuple(dotted_path.split("."))


def dotted(path: Path) -> str:
    """Return `path` as messages write it.

    >>> dotted(("cube", "noc", "removed", 0))
    'cube.noc.removed[0]'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def model_at(model: type[Model], path: Path) -> type[Model] | None:
    """Return the group of keys at `path` below `model`, or None if there is none."""
    here: Any = model
    for part in path:
        is_mapping = get_origin(here) is dict
        here = get_args(here)[1] if is_mapping else keys(here).get(part) if _is_group(here) else None
    return here if _is_group(here) else None


def _is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Model)


def unknown(path: Path, group: type[Model]) -> Fault:
    """Return the fault of a key that its group does not have."""
    return Fault(f"{dotted(path)} is unknown; {hint(str(path[-1]), keys(group))}", (path,))


def found(root: type[Model], error: ValidationError, example: Mapping[str, Any]) -> list[Fault]:
    """Return one fault for each finding of `error` about the keys of `root`; `example` is a right configuration."""
    findings = error.errors()
    places = [finding["loc"] for finding in findings]
    return [
        Fault(_text(root, finding, example), (place,))
        for finding, place in zip(findings, places, strict=True)
        # A list whose items are wrong is too short for that reason.
        if finding["type"] != "too_short" or not any(p[:-1] == place for p in places)
    ]


def _text(root: type[Model], finding: Any, example: Mapping[str, Any]) -> str:
    path, kind, context = finding["loc"], finding["type"], finding.get("ctx", {})
    parent = model_at(root, path[:-1])
    if parent is not None and kind == "unexpected_keyword_argument":
        return unknown(path, parent).text
    kind_of_value = _kind(root, path)
    unit = _unit(kind_of_value)
    where = dotted(path)
    if kind == "missing":
        return f"{where} is missing; {_remedy(path, example)}{unit}"
    where = f"{where} = {_shown(finding['input'], kind_of_value)}"
    if kind == "literal_error":
        known = [name.strip("' ") for name in context["expected"].replace(" or ", ",").split(",")]
        return (
            f"{where} must be {known[0]}" if len(known) == 1 else f"{where} is unknown; {hint(finding['input'], known)}"
        )
    group = model_at(root, path)
    if group is not None:
        return f"{where} must be a group of keys: {', '.join(keys(group))}"
    return f"{where} {_expectation(kind, context, finding['msg'])}{unit}"


def _expectation(kind: str, context: Mapping[str, Any], message: str) -> str:
    bounds = {"greater_than": "> {gt:g}", "greater_than_equal": ">= {ge:g}", "less_than_equal": "<= {le:g}"}
    if kind in bounds:
        return f"must be {bounds[kind].format_map(context)}"
    fixed = {
        EXPECTED: message,
        "finite_number": "must be a finite number",
        "int_from_float": "must be a whole number",
        "string_type": "must be a name",
        "tuple_type": "must be a list",
        "dict_type": "must be a group of keys",
        "too_short": "must not be empty",
    }
    return fixed.get(kind, f"is refused: {message}")


def _remedy(path: Path, example: Mapping[str, Any]) -> str:
    value: Any = example
    for part in path:
        value = value[part]
    if isinstance(value, Mapping):
        return f"add it with its keys {', '.join(value)}, or begin the file with base: default"
    return f"add it; the packaged default has {value}"


def _kind(root: type[Model], path: Path) -> Any:
    """Return the annotated type of the key that `path` leads to, or into; None if there is none."""
    names = path
    while names and isinstance(names[-1], int):
        names = names[:-1]
    parent = model_at(root, names[:-1])
    return keys(parent).get(names[-1]) if parent is not None and names else None


def _unit(kind: Any) -> str:
    """Return the unit of a kind of value, or of what it holds when it holds something."""
    value, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    marks += [mark for inner in get_args(value) for mark in get_args(inner)[1:]]
    return next((f" [{mark.name}]" for mark in marks if isinstance(mark, Unit)), "")


def _shown(value: object, kind: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and get_origin(kind) is Annotated and get_args(kind)[0] is float:
        value = float(value)
    return quote(value, _LONGEST_VALUE)
