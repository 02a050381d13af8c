"""The kinds of values in a configuration: each with its bounds, and with its unit where it has one.

Groups of keys are frozen dataclasses and kinds of values are annotated types, so that a valid file is read without
pydantic (`accepted`). Pydantic is imported to name the faults of an invalid one, and for the JSON schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, dataclass_transform, get_type_hints

from kernbench.registry import COMPONENTS

if TYPE_CHECKING:
    from pydantic_core import PydanticCustomError

# The type of errors whose message follows "key = value" unchanged.
EXPECTED = "expected"

# More routers on an edge than any die has room for: a slip of the keyboard must not take minutes to be refused.
LONGEST_SIDE = 64

# Beyond any machine; below it no time in picoseconds and no product of two values leaves the range of floats.
LARGEST = 10**12
_FLOATS_HOLD = 10**300


def expected(message: str) -> PydanticCustomError:
    """Return the error of a value; `message` follows "key = value" unchanged."""
    from pydantic_core import PydanticCustomError

    return PydanticCustomError(EXPECTED, "{message}", {"message": message})


def _number(value: object) -> object:
    """Refuse what pydantic would turn into a number: text and booleans. -0.0 becomes 0.0."""
    if isinstance(value, str):
        raise expected("must be a plain number, not text")
    if isinstance(value, bool) or not isinstance(value, Real):
        raise expected("must be a number")
    if isinstance(value, Integral):
        return max(-_FLOATS_HOLD, min(int(value), _FLOATS_HOLD))  # both are refused: by a bound, or as off the die
    return float(value) + 0.0


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise expected("must be a power of two")
    return value


def _component(name: str) -> str:
    if (fault := COMPONENTS.fault(name)) is not None:
        raise expected(fault)
    return name


def _pair(form: str) -> Callable[[object], object]:
    def check(value: object) -> object:
        if not isinstance(value, (list, tuple)) or len(value) != 2:
            raise expected(f"must be a pair {form}")
        return value

    return check


@dataclass(frozen=True, slots=True)
class Before:
    """A function that checks or converts a value before its type is checked."""

    function: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core.core_schema import no_info_before_validator_function

        return no_info_before_validator_function(self.function, handler(source))


@dataclass(frozen=True, slots=True)
class After:
    """A function that checks a value of the right type."""

    function: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core.core_schema import no_info_after_validator_function

        return no_info_after_validator_function(self.function, handler(source))


@dataclass(frozen=True, slots=True)
class Bound:
    """Limits of a number or of the length of a list, by pydantic's names."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None
    allow_inf_nan: bool | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        limits = {name: getattr(self, name) for name in self.__slots__}
        return {**handler(source), **{name: limit for name, limit in limits.items() if limit is not None}}


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a number, which messages and the JSON schema show."""

    name: str

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(core_schema), "unit": self.name}


# Bounds come before the check of the type; otherwise they would not reach the JSON schema.
_FINITE = Bound(allow_inf_nan=False)
_MOST = Bound(le=LARGEST)
_NUMBER = Before(_number)
_POWER = After(_power_of_two)
NOT_EMPTY = Bound(min_length=1)

Ns = Annotated[float, _FINITE, Bound(ge=0), _MOST, _NUMBER, Unit("ns")]
NsPerMm = Annotated[float, _FINITE, Bound(ge=0), _MOST, _NUMBER, Unit("ns/mm")]
Gbs = Annotated[float, _FINITE, Bound(gt=0), _MOST, _NUMBER, Unit("GB/s")]
Ghz = Annotated[float, _FINITE, Bound(gt=0), _MOST, _NUMBER, Unit("GHz")]
Mm = Annotated[float, _FINITE, Bound(gt=0), _MOST, _NUMBER, Unit("mm")]
Mib = Annotated[float, _FINITE, Bound(gt=0), _MOST, _NUMBER, Unit("MiB")]
Gib = Annotated[float, _FINITE, Bound(gt=0), _MOST, _NUMBER, Unit("GiB")]
Proxy = Annotated[float, _FINITE, Bound(ge=0), _MOST, _NUMBER]
Share = Annotated[float, _FINITE, Bound(gt=0), Bound(le=1), _NUMBER]
Kib = Annotated[int, Bound(ge=1), _MOST, _NUMBER, Unit("KiB")]
Bytes = Annotated[int, Bound(ge=1), _MOST, _NUMBER, Unit("B")]
BurstBytes = Annotated[int, Bound(ge=1), _MOST, _POWER, _NUMBER, Unit("B")]
Cycles = Annotated[int, Bound(ge=1), _MOST, _NUMBER, Unit("cycles")]
Count = Annotated[int, Bound(ge=1), _MOST, _NUMBER]
PowerOfTwo = Annotated[int, Bound(ge=1), _MOST, _POWER, _NUMBER]
Side = Annotated[int, Bound(ge=1), Bound(le=LONGEST_SIDE), _NUMBER]
Index = Annotated[int, Bound(ge=0), _MOST, _NUMBER]
Coordinate = Annotated[float, _FINITE, _NUMBER]
Place = Annotated[tuple[Index, Index], Before(_pair("[row, column]"))]
Point = Annotated[tuple[Coordinate, Coordinate], Before(_pair("[x, y]")), Unit("mm")]
Version = Annotated[Literal[1], _NUMBER]
Impl = Annotated[str, After(_component)]


def described(description: str, **default: Any) -> Any:
    """Return the field of a key; with `default` or `default_factory` the key may be left out."""
    return field(metadata={"description": description}, **default)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(described,))
@dataclass(frozen=True, kw_only=True)
class Model:
    """A group of keys; any other key is refused."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def to_spec(self) -> dict[str, Any]:
        """Return the content as plain values, reading as the file does."""
        return {name: _plain(value) for name in keys(type(self)) if (value := getattr(self, name)) is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return value.to_spec()
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


_KEYS: dict[type[Model], dict[str, Any]] = {}


def keys(group: type[Model]) -> dict[str, Any]:
    """Return the keys of a group, each with its annotated type."""
    found = _KEYS.get(group)
    if found is None:
        kinds = get_type_hints(group, include_extras=True)
        found = _KEYS[group] = {f.name: kinds[f.name] for f in fields(group)}
    return found
