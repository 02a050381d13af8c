"""Kinds of values of a machine file, groups of its keys, and their schema for pydantic's core.

Groups of keys are frozen dataclasses, kinds of values annotated types. pydantic's core validates them; pydantic itself,
whose import takes longer than reading a file, is needed for the JSON schema only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, dataclass_transform, get_args, get_origin, get_type_hints

from pydantic_core import PydanticCustomError

from kernbench._registry import COMPONENTS, hint
from kernbench._units import ACK_BYTES

# Error type whose message follows "key = value" unchanged.
EXPECTED = "expected"

# More routers on an edge than any die has room for, so that a typo is refused at once instead of after minutes.
LONGEST_SIDE = 64

# Beyond any machine; up to it, times in ps and products of two values stay in the range of floats.
LARGEST = 10**12
_FLOATS_HOLD = 10**300

KeyPath = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `keys` are the paths of the keys involved, the most relevant first."""

    text: str
    keys: tuple[KeyPath, ...]

    def touches(self, paths: Iterable[KeyPath]) -> bool:
        """Whether one of the keys is at, above or below one of `paths`."""
        return any(key[: len(path)] == path[: len(key)] for path in paths for key in self.keys)


def dotted(path: KeyPath) -> str:
    """Format `path` for messages.

    >>> dotted(("cube", "noc", "removed", 0))
    'cube.noc.removed[0]'
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def expected(message: str) -> PydanticCustomError:
    """`message` follows "key = value" unchanged."""
    return PydanticCustomError(EXPECTED, "{message}", {"message": message})


def _plain_number(value: object) -> object:
    """Refuse text and booleans, which pydantic would convert to numbers. -0.0 becomes 0.0."""
    if isinstance(value, str):
        raise expected("must be a plain number, not text")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise expected("must be a number")
    if isinstance(value, Integral):
        return max(-_FLOATS_HOLD, min(int(value), _FLOATS_HOLD))  # both are refused: by a bound, or as off the die
    return float(value) + 0.0


def _or_auto(value: object) -> object:
    return 0 if value == "auto" else _plain_number(value)


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise expected("must be a power of two")
    return value


def _component(name: str) -> str:
    if (fault := COMPONENTS.fault(name)) is not None:
        raise expected(fault)
    return name


def _row(form: str, length: int = 2) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, (list, tuple)) or len(value) != length:
            raise expected(f"must be {'a pair ' if length == 2 else ''}{form}")
        return value

    return check


_STAGES = "[route computation, VC allocation, switch allocation, switch traversal]"


def _four_stages(value: object) -> object:
    if not isinstance(value, (list, tuple)) or len(value) != 4:
        raise expected(f"must be four numbers of cycles, {_STAGES}")
    return value


def _stages(value: tuple[int, ...]) -> tuple[int, ...]:
    if not all(value[1:]):
        raise expected(f"must be {_STAGES}, of which only the first may take 0 cycles")
    return value


@dataclass(frozen=True, eq=False)
class Kind:
    """Constraints on a value besides its type: `limits` by pydantic's names, and checks before and after the type's.

    `unit` is shown in messages and in the JSON schema.
    """

    unit: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    before: Callable[[Any], Any] | None = None
    after: Callable[[Any], Any] | None = None


def number(unit: str = "", *, after: Callable[[Any], Any] | None = None, **limits: float) -> Kind:
    return Kind(unit, {"le": LARGEST, **limits}, _plain_number, after)


NOT_EMPTY = Kind(limits={"min_length": 1})

Ns = Annotated[float, number("ns", ge=0)]
NsPerMm = Annotated[float, number("ns/mm", ge=0)]
Gbs = Annotated[float, number("GB/s", gt=0)]
Ghz = Annotated[float, number("GHz", gt=0)]
Mm = Annotated[float, number("mm", gt=0)]
Mib = Annotated[float, number("MiB", gt=0)]
Gib = Annotated[float, number("GiB", gt=0)]
Share = Annotated[float, number(gt=0, le=1)]
Kib = Annotated[int, number("KiB", ge=1)]
Bytes = Annotated[int, number("B", ge=1)]
NoMib = Annotated[float, number("MiB", ge=0)]
NoBytes = Annotated[int, number("B", ge=0)]
# An acknowledgement is one flit.
FlitBytes = Annotated[int, number("B", ge=ACK_BYTES)]
BurstBytes = Annotated[int, number("B", ge=1, after=_power_of_two)]
Cycles = Annotated[int, number("cycles", ge=1)]
Count = Annotated[int, number(ge=1)]
NoCount = Annotated[int, number(ge=0)]
AutoCount = Annotated[int, Kind(limits={"ge": 0, "le": LARGEST}, before=_or_auto)]  # 0: auto
# 1,024 SIPs are below nine levels of switches with four ports.
Levels = Annotated[int, number(ge=1, le=16)]
PowerOfTwo = Annotated[int, number(ge=1, after=_power_of_two)]
Vcs = Annotated[int, number(ge=1, le=64)]
Depth = Annotated[int, number(ge=1, le=4096)]
Side = Annotated[int, number(ge=1, le=LONGEST_SIDE)]
Index = Annotated[int, number(ge=0)]
Coordinate = Annotated[float, Kind(before=_plain_number)]
MeshPlace = Annotated[tuple[Index, Index], Kind(before=_row("[row, column]"))]
_Stage = Annotated[int, number("cycles", ge=0, le=1000)]
PipelineCycles = Annotated[tuple[_Stage, _Stage, _Stage, _Stage], Kind("cycles", before=_four_stages, after=_stages)]
Position = Annotated[tuple[Coordinate, Coordinate], Kind("mm", before=_row("[x, y]"))]
TileSizes = Annotated[tuple[Count, Count, Count], Kind(before=_row("[m, k, n]", 3))]
Efficiency = Annotated[tuple[Count, Count, Count, Share], Kind(before=_row("[m, k, n, efficiency]", 4))]
Version = Annotated[Literal[1], Kind(before=_plain_number)]
Impl = Annotated[str, Kind(after=_component)]
Pj = Annotated[float, number("pJ", ge=0)]
PjPerBit = Annotated[float, number("pJ/bit", ge=0)]
PjPerBitMm = Annotated[float, number("pJ/bit/mm", ge=0)]
Um2 = Annotated[float, number("um2", ge=0)]
Mm2 = Annotated[float, number("mm2", ge=0)]
Mm2PerMib = Annotated[float, number("mm2/MiB", ge=0)]
Mm2PerGbs = Annotated[float, number("mm2 per GB/s", ge=0)]


RATE, DURATION = "rate", "duration"


class Key(NamedTuple):
    """A key of a machine file as `described` has it, with what it inherits from its groups."""

    path: str
    kind: Any
    label: str
    description: str
    speed: str
    sets: tuple[str, ...]
    parts: tuple[str, ...]


_FILE = Key("", None, "", "", "", (), ())


_Names = str | tuple[str, ...]


def described(
    label: str = "", description: str = "", sets: _Names = (), *, parts: _Names = (), speed: str = "", **default: Any
) -> Any:
    """Describe a key, or a group of keys; with `default` or `default_factory` it may be left out.

    `label` is what forms and figures call it; one that begins in lower case follows that of its group. `speed` says
    that the key only tells how fast a part is, and whether more is faster (RATE) or slower (DURATION). `sets` are the
    resources whose time it sets, or the limits, by the names under which `why` suggests it; a key has those of its
    group if it states none. `parts` are the kinds of components and links at which the picture shows it, besides those
    of its group.
    """
    sets, parts = ((names,) if isinstance(names, str) else names for names in (sets, parts))
    shown = {"label": label, "description": description, "speed": speed, "sets": sets, "parts": parts}
    return field(metadata=shown, **default)


def rate(label: str, description: str, sets: _Names = (), **more: Any) -> Any:
    return described(label, description, sets, speed=RATE, **more)


def duration(label: str, description: str, sets: _Names = (), **more: Any) -> Any:
    return described(label, description, sets, speed=DURATION, **more)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(described, rate, duration))
@dataclass(frozen=True, kw_only=True)
class Model:
    """A group of keys; any other key is refused."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def to_spec(self) -> dict[str, Any]:
        """Convert to plain values, as a file has them."""
        return {name: _plain(value) for name in keys(type(self)) if (value := getattr(self, name)) is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return value.to_spec()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def _given(model: Model) -> dict[str, Any]:
    """As `to_spec`, without keys that have their default: a new key does not change the hash."""
    values = {key.name: (getattr(model, key.name), key.default) for key in fields(model)}
    return {
        name: _given(value) if isinstance(value, Model) else _plain(value)
        for name, (value, default) in values.items()
        if default is MISSING or value != default
    }


_KEYS: dict[type[Model], dict[str, Any]] = {}


def keys(group: type[Model]) -> dict[str, Any]:
    if group not in _KEYS:
        kinds = get_type_hints(group, include_extras=True)
        _KEYS[group] = {f.name: kinds[f.name] for f in fields(group)}
    return _KEYS[group]


def walk(group: type[Model], of: Key = _FILE) -> Iterator[Key]:
    """Yield each key of a group and of those in it, in the order of the file."""
    for key in fields(group):
        kind, given, path = keys(group)[key.name], key.metadata, f"{of.path}.{key.name}".lstrip(".")
        label, sets, parts = given.get("label", ""), given.get("sets") or of.sets, of.parts + given.get("parts", ())
        label = f"{of.label} {label}" if label[:1].islower() else label
        found = Key(path, kind, label, given.get("description", ""), given.get("speed", ""), sets, parts)
        yield from walk(kind, found) if is_group(kind) else (found,)


def is_group(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Model)


def model_at(model: type[Model], path: KeyPath) -> type[Model] | None:
    here: Any = model
    for part in path:
        is_mapping = get_origin(here) is dict
        here = get_args(here)[1] if is_mapping else keys(here).get(part) if is_group(here) else None
    return here if is_group(here) else None


def unknown(path: KeyPath, group: type[Model]) -> Fault:
    return Fault(f"{dotted(path)} is unknown; {hint(str(path[-1]), keys(group))}", (path,))


def unit_of(kind: Any) -> str:
    """Find the unit of a kind of value, or of its items; empty if there is none."""
    value, *marks = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    marks += [mark for inner in get_args(value) for mark in get_args(inner)[1:]]
    return next((mark.unit for mark in marks if isinstance(mark, Kind) and mark.unit), "")


def core_schema(model: type[Model]) -> dict[str, Any]:
    groups: dict[str, dict[str, Any]] = {}
    return {"type": "definitions", "schema": _schema_of(model, groups), "definitions": list(groups.values())}


_TYPES: dict[Any, dict[str, Any]] = {
    float: {"type": "float", "allow_inf_nan": False},
    int: {"type": "int"},
    str: {"type": "str"},
    Any: {"type": "any"},
}


def _schema_of(kind: Any, groups: dict[str, dict[str, Any]]) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _restricted(_schema_of(args[0], groups), *args[1:])
    if origin is Literal:
        return {"type": "literal", "expected": list(args)}
    inner = [_schema_of(arg, groups) for arg in args if arg not in (..., NoneType)]
    if origin in (Union, UnionType):
        return {"type": "nullable", "schema": inner[0]}
    if origin is tuple:
        return {"type": "tuple", "items_schema": inner, **({"variadic_item_index": 0} if args[-1] is ... else {})}
    if origin is dict:
        return {"type": "dict", "keys_schema": inner[0], "values_schema": inner[1]}
    if not is_group(kind):
        return _TYPES[kind]
    if kind.__name__ not in groups:
        groups[kind.__name__] = _schema_of_group(kind, groups)
    return {"type": "definition-ref", "schema_ref": kind.__name__}


def _restricted(schema: dict[str, Any], kind: Kind) -> dict[str, Any]:
    schema = {**schema, **kind.limits}
    if kind.after is not None:
        schema = {"type": "function-after", "function": {"type": "no-info", "function": kind.after}, "schema": schema}
    if kind.before is not None:
        schema = {"type": "function-before", "function": {"type": "no-info", "function": kind.before}, "schema": schema}
    return schema


def _schema_of_group(group: type[Model], groups: dict[str, dict[str, Any]]) -> dict[str, Any]:
    arguments = []
    for key in fields(group):
        kind = keys(group)[key.name]
        schema = _schema_of(kind, groups)
        default = {name: v for name in ("default", "default_factory") if (v := getattr(key, name)) is not MISSING}
        if default:
            schema = {"type": "default", "schema": schema, **default}
        shown = {} if is_group(kind) else {"description": key.metadata["description"], "title": key.metadata["label"]}
        if unit := unit_of(kind):
            shown |= {"description": f"{shown['description']} [{unit}]", "unit": unit}
        arguments.append(
            {"type": "dataclass-field", "name": key.name, "schema": schema, "metadata": {"pydantic_js_updates": shown}}
        )
    return {
        "type": "dataclass",
        "cls": group,
        "ref": group.__name__,
        "fields": list(keys(group)),
        "config": {"extra_fields_behavior": "forbid", "title": group.__name__},
        "schema": {"type": "dataclass-args", "dataclass_name": group.__name__, "fields": arguments},
    }
