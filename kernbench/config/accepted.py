"""The configuration in a valid file, without pydantic, whose import takes longer than a small run."""

from __future__ import annotations

from math import isfinite
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from kernbench.config.values import After, Before, Bound, Model, Unit, keys

_Config = TypeVar("_Config", bound=Model)


class _DoubtError(ValueError):
    """A value that only pydantic can judge: it may be wrong, or of a type that pydantic converts."""


def accepted(model: type[_Config], content: object) -> _Config | None:
    """Return the configuration that pydantic makes of `content`, or None where only pydantic can decide.

    Nothing is accepted that pydantic refuses. What is left to pydantic are faults, which it names, and values of types
    that it converts.
    """
    try:
        config: _Config = _group(model, content)
    except ValueError:
        return None
    return config


def _group(model: type[Model], content: object) -> Any:
    kinds = keys(model)
    if type(content) is not dict or not content.keys() <= kinds.keys():
        raise _DoubtError
    values = {name: _value(kinds[name], value) for name, value in content.items()}
    try:
        return model(**values)
    except TypeError:  # a key is missing
        raise _DoubtError from None


def _value(kind: Any, value: Any) -> Any:
    """Return `value` as a value of `kind`."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(args[0], args[1:], value)
    if origin in (Union, UnionType):
        inner = [arg for arg in args if arg is not NoneType]
        if len(inner) != 1 or len(args) != 2:
            raise _DoubtError
        return None if value is None else _value(inner[0], value)
    if origin is Literal:
        if any(type(value) is type(arg) and value == arg for arg in args):
            return value
        raise _DoubtError
    if origin is tuple and type(value) in (list, tuple):
        kinds = args[:1] * len(value) if args[-1] is ... else args
        return tuple([_value(inner, item) for inner, item in zip(kinds, value, strict=True)])
    if origin is dict and type(value) is dict and all(type(name) is str for name in value) and args[0] is str:
        return {name: _value(args[1], item) for name, item in value.items()}
    if kind is float and type(value) in (int, float) and isfinite(value):
        return float(value)
    if kind is Any or (kind in (int, str) and type(value) is kind):
        return value
    if isinstance(kind, type) and issubclass(kind, Model):
        return _group(kind, value)
    raise _DoubtError


def _annotated(kind: Any, marks: tuple[Any, ...], value: Any) -> Any:
    for mark in reversed(marks):
        if isinstance(mark, Before):
            value = mark.function(value)
    value = _value(kind, value)
    for mark in marks:
        if isinstance(mark, After):
            value = mark.function(value)
        elif not _holds(mark, value):
            raise _DoubtError
    return value


def _holds(mark: Any, value: Any) -> bool:
    if isinstance(mark, Bound):  # only finite floats get here
        return (
            (mark.ge is None or value >= mark.ge)
            and (mark.gt is None or value > mark.gt)
            and (mark.le is None or value <= mark.le)
            and (mark.min_length is None or len(value) >= mark.min_length)
        )
    return isinstance(mark, (Before, Unit))  # `Before` has run
