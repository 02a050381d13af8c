"""The kinds of values in a configuration: each with its bounds, and with its unit where it has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, AllowInfNan, BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from kernbench.registry import COMPONENTS

# The type of errors whose message follows "key = value" as it stands.
EXPECTED = "expected"

# More routers on an edge than any die has room for: a slip of the keyboard must not take minutes to be refused.
LONGEST_SIDE = 64

# Beyond any machine; below it no time in picoseconds and no product of two values leaves the range of floats.
LARGEST = 10**12
_FLOATS_HOLD = 10**300


def expected(message: str) -> PydanticCustomError:
    """Return the error of a value; `message` follows "key = value" as it stands."""
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
class Unit:
    """The unit of a number, which messages and the JSON schema show."""

    name: str

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: Callable[[Any], dict[str, Any]]
    ) -> dict[str, Any]:
        return {**handler(core_schema), "unit": self.name}


# Bounds stand before the check of the type, or they would not reach the JSON schema.
_FINITE = AllowInfNan(False)
_MOST = Le(LARGEST)
_NUMBER = BeforeValidator(_number)
_POWER = AfterValidator(_power_of_two)

Ns = Annotated[float, _FINITE, Ge(0), _MOST, _NUMBER, Unit("ns")]
NsPerMm = Annotated[float, _FINITE, Ge(0), _MOST, _NUMBER, Unit("ns/mm")]
Gbs = Annotated[float, _FINITE, Gt(0), _MOST, _NUMBER, Unit("GB/s")]
Ghz = Annotated[float, _FINITE, Gt(0), _MOST, _NUMBER, Unit("GHz")]
Mm = Annotated[float, _FINITE, Gt(0), _MOST, _NUMBER, Unit("mm")]
Mib = Annotated[float, _FINITE, Gt(0), _MOST, _NUMBER, Unit("MiB")]
Gib = Annotated[float, _FINITE, Gt(0), _MOST, _NUMBER, Unit("GiB")]
Proxy = Annotated[float, _FINITE, Ge(0), _MOST, _NUMBER]
Share = Annotated[float, _FINITE, Gt(0), Le(1), _NUMBER]
Kib = Annotated[int, Ge(1), _MOST, _NUMBER, Unit("KiB")]
Bytes = Annotated[int, Ge(1), _MOST, _NUMBER, Unit("B")]
BurstBytes = Annotated[int, Ge(1), _MOST, _POWER, _NUMBER, Unit("B")]
Cycles = Annotated[int, Ge(1), _MOST, _NUMBER, Unit("cycles")]
Count = Annotated[int, Ge(1), _MOST, _NUMBER]
PowerOfTwo = Annotated[int, Ge(1), _MOST, _POWER, _NUMBER]
Side = Annotated[int, Ge(1), Le(LONGEST_SIDE), _NUMBER]
Index = Annotated[int, Ge(0), _MOST, _NUMBER]
Coordinate = Annotated[float, _FINITE, _NUMBER]
Place = Annotated[tuple[Index, Index], BeforeValidator(_pair("[row, column]"))]
Point = Annotated[tuple[Coordinate, Coordinate], BeforeValidator(_pair("[x, y]")), Unit("mm")]
Version = Annotated[Literal[1], _NUMBER]
Impl = Annotated[str, AfterValidator(_component)]


class Model(BaseModel):
    """A group of keys; any other key is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
