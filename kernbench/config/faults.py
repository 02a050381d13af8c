"""From what the validator found to lines that name file, key, value, expectation and remedy."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

_BOUNDS = {
    "greater_than": ("gt", ">"),
    "greater_than_equal": ("ge", ">="),
    "less_than": ("lt", "<"),
    "less_than_equal": ("le", "<="),
}


def dotted(path: tuple[Any, ...]) -> str:
    """Return `path` as it is written in messages and overrides."""
    return ".".join(str(part) for part in path)


def model_at(model: type[BaseModel], path: tuple[Any, ...]) -> type[BaseModel] | None:
    """Return the model that stands at `path` below `model`."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return None
        model = inner
    return model


def unknown(key: str, known: list[str]) -> str:
    """Return what to say of a key that does not exist."""
    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"is unknown; {hint}known: {', '.join(known)}"


def faults(name: str, root: type[BaseModel], error: ValidationError) -> list[str]:
    """Return one line per fault of the file called `name`."""
    return [f"{name}: {_line(root, fault)}" for fault in error.errors()]


def _line(root: type[BaseModel], fault: Any) -> str:
    path = tuple(fault["loc"])
    kind, value, where = fault["type"], fault["input"], dotted(path)
    parent = model_at(root, path[:-1])
    unit = _unit(parent, path)
    if kind == "extra_forbidden" and parent is not None:
        return f"{where} {unknown(str(path[-1]), list(parent.model_fields))}"
    if kind == "missing":
        return f"{where} is missing{unit}; add it (the packaged default shows one)"
    if kind in _BOUNDS:
        bound, sign = _BOUNDS[kind]
        return f"{where} = {value!r} must be {sign} {fault['ctx'][bound]}{unit}"
    if kind == "literal_error":
        known = fault["ctx"]["expected"].replace(" or ", ", ").replace("'", "")
        near = get_close_matches(str(value), known.split(", "), n=1)
        return f"{where} = {value!r} is unknown; {f'did you mean {near[0]}? ' if near else ''}known: {known}"
    if kind in ("int_from_float", "int_type", "int_parsing"):
        return f"{where} = {value!r} must be a whole number{unit}"
    if kind in ("float_type", "float_parsing", "finite_number"):
        return f"{where} = {value!r} must be a finite number{unit}"
    if kind in ("model_type", "model_attributes_type"):
        return f"{where} = {value!r} must be a mapping of keys"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{where} = {value!r} {message}{unit if message.startswith('must') else ''}"


def _unit(parent: type[BaseModel] | None, path: tuple[Any, ...]) -> str:
    field = parent.model_fields.get(str(path[-1])) if parent is not None and path else None
    if field is None:
        return ""
    extras = [field.json_schema_extra, *(getattr(m, "json_schema_extra", None) for m in field.metadata)]
    for inner in get_args(field.annotation):
        extras += [getattr(m, "json_schema_extra", None) for m in getattr(inner, "__metadata__", ())]
    return next((f" [{extra['unit']}]" for extra in extras if isinstance(extra, dict) and "unit" in extra), "")
