"""Element types: torch's names, with the attributes that Triton's types have; bf16 and f8 come from ml_dtypes.

16- and 8-bit floats are stored rounded (to nearest even) and computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from kernbench.errors import quote


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type of `itemsize` bytes, printed as torch prints it; there is one object of each.

    `carrier` is the numpy type in which its values are computed. A type of zero bytes has a name and no values.
    """

    name: str
    numpy: np.dtype
    is_floating_point: bool
    itemsize: int = field(init=False)
    carrier: np.dtype = field(init=False)

    def __post_init__(self) -> None:
        narrow = self.is_floating_point and self.numpy.itemsize < 4
        object.__setattr__(self, "itemsize", self.numpy.itemsize)
        object.__setattr__(self, "carrier", np.dtype(np.float32) if narrow else self.numpy)

    @property
    def element_ty(self) -> DType:
        return self

    scalar = element_ty

    @property
    def primitive_bitwidth(self) -> int:
        return 1 if self.is_bool() else 8 * self.itemsize

    int_bitwidth = primitive_bitwidth

    def is_floating(self) -> bool:
        return self.is_floating_point

    def is_standard_floating(self) -> bool:
        return self.is_floating_point and self.itemsize > 1

    def is_fp8(self) -> bool:
        return self.is_floating_point and self.itemsize <= 1

    def is_int(self) -> bool:
        """Bool counts as an integer."""
        return not self.is_floating_point

    def is_int_signed(self) -> bool:
        return self.numpy.kind == "i"

    def is_int_unsigned(self) -> bool:
        """Bool counts as unsigned."""
        return self.numpy.kind in "ub"

    def is_bool(self) -> bool:
        return self.numpy.kind == "b"

    def is_ptr(self) -> bool:
        return False

    is_block = is_const = is_ptr

    def get_int_max_value(self) -> int:
        return 1 if self.is_bool() else int(np.iinfo(self.numpy).max)

    def get_int_min_value(self) -> int:
        return 0 if self.is_bool() else int(np.iinfo(self.numpy).min)

    def round(self, values: np.ndarray) -> np.ndarray:
        """Round to this type, in the carrier type (a copy only if needed)."""
        return np.asarray(values).astype(self.numpy, copy=False).astype(self.carrier, copy=False)

    def decode(self, raw: np.ndarray, shape: int | tuple[int, ...]) -> np.ndarray:
        """Convert bytes (uint8) in memory format to the carrier type (a copy only if needed)."""
        return raw.view(self.numpy).astype(self.carrier, copy=False).reshape(shape)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Convert values to bytes (uint8) in memory format (a copy only if needed)."""
        return np.ascontiguousarray(values.astype(self.numpy, copy=False)).reshape(-1).view(np.uint8)

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return _named, (self.name,)

    def __repr__(self) -> str:
        return f"torch.{self.name}"


DTypeLike = DType | str | type

float32 = DType("float32", np.dtype(np.float32), True)
float64 = DType("float64", np.dtype(np.float64), True)
float16 = DType("float16", np.dtype(np.float16), True)
bfloat16 = DType("bfloat16", np.dtype(ml_dtypes.bfloat16), True)
float8_e4m3fn = DType("float8_e4m3fn", np.dtype(ml_dtypes.float8_e4m3fn), True)
float8_e5m2 = DType("float8_e5m2", np.dtype(ml_dtypes.float8_e5m2), True)
int8 = DType("int8", np.dtype(np.int8), False)
uint8 = DType("uint8", np.dtype(np.uint8), False)
int16 = DType("int16", np.dtype(np.int16), False)
int32 = DType("int32", np.dtype(np.int32), False)
int64 = DType("int64", np.dtype(np.int64), False)
uint16 = DType("uint16", np.dtype(np.uint16), False)
uint32 = DType("uint32", np.dtype(np.uint32), False)
uint64 = DType("uint64", np.dtype(np.uint64), False)
bool_ = DType("bool", np.dtype(np.bool_), False)

# Triton's other 8-bit floats: a kernel may name them, but not use them.
_WITHOUT_VALUES = {name: DType(name, np.dtype(np.void), True) for name in ("float8e4b8", "float8e4b15", "float8e5b16")}

ALL = (
    float32, float64, float16, bfloat16, float8_e4m3fn, float8_e5m2,
    int8, uint8, int16, uint16, int32, uint32, int64, uint64, bool_,
)  # fmt: skip

# Types that the matrix engine takes, and the names of their rates and energies.
MATRIX_TYPES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8", "float8_e5m2": "f8", "int8": "i8",
}  # fmt: skip
_ALIASES = {
    "f64": float64, "fp64": float64, "double": float64,
    "f32": float32, "fp32": float32, "float": float32,
    "f16": float16, "fp16": float16, "half": float16,
    "bf16": bfloat16,
    "f8e4m3fn": float8_e4m3fn, "f8e4m3": float8_e4m3fn, "f8e5m2": float8_e5m2,
    "fp8e4nv": float8_e4m3fn, "float8e4nv": float8_e4m3fn, "fp8e5": float8_e5m2, "float8e5": float8_e5m2,
    "i8": int8, "u8": uint8, "i16": int16, "u16": uint16, "i32": int32, "u32": uint32, "i64": int64, "u64": uint64,
    "i1": bool_, "int1": bool_,
    **_WITHOUT_VALUES, **{name.replace("float", "fp"): d for name, d in _WITHOUT_VALUES.items()},
    **{d.name: d for d in ALL},
}  # fmt: skip
_BY_NUMPY = {d.numpy: d for d in ALL}


def _named(name: str) -> DType:
    """Unpickle a type, including those without values."""
    return _ALIASES[name]


TRITON = {
    name: _ALIASES[name]
    for name in (
        "float16", "bfloat16", "float32", "float64", "float8e4nv", "float8e5", *_WITHOUT_VALUES, "int1",
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    )
}  # fmt: skip


def _is(asked: DType) -> Callable[[DType], bool]:
    return lambda self: self == asked


for _name, _dtype in TRITON.items():  # is_fp16(), is_bf16(), is_int32(), ...
    setattr(DType, f"is_{_name.replace('bfloat', 'bf').replace('float', 'fp')}", _is(_dtype))


class PointerType:
    """The type of a pointer to elements of a type."""

    primitive_bitwidth = 64

    def __init__(self, element_ty: object, address_space: int = 1, const: bool = False) -> None:
        self.element_ty = as_dtype(element_ty)

    @property
    def scalar(self) -> PointerType:
        return self

    def is_ptr(self) -> bool:
        return True

    def is_floating(self) -> bool:
        return False

    is_block = is_const = is_int = is_bool = is_fp8 = is_int_signed = is_int_unsigned = is_floating

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PointerType) and self.element_ty == other.element_ty

    def __hash__(self) -> int:
        return hash((PointerType, self.element_ty))

    if not TYPE_CHECKING:  # a type checker detects unknown names itself

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"the type of a pointer has no {name!r}; use that of its elements, ptr.dtype.element_ty", name=name
            )

    def __repr__(self) -> str:
        return f"pointer<{self.element_ty.name}>"


@dataclass(frozen=True, slots=True)
class BlockType:
    """The type of a tile: its element type and shape."""

    element_ty: DType | PointerType
    shape: tuple[int, ...]

    @property
    def scalar(self) -> DType | PointerType:
        return self.element_ty

    def is_block(self) -> bool:
        return True

    def is_ptr(self) -> bool:
        """Return False, even for a block of pointers."""
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.element_ty, name)


def as_dtype(value: object) -> DType:
    """Convert a DType, one of its names, or a type of numpy, torch or Triton to a DType.

    TypeError if no type has that name, with the known ones, or if the machine does not have the type.

    >>> as_dtype("f16"), as_dtype(np.int32)
    (torch.float16, torch.int32)
    """
    if isinstance(value, DType):
        if not value.itemsize:
            raise TypeError(f"dtype {value.name} is not supported; 8-bit floats that are: float8e4nv, float8e5")
        return value
    if isinstance(value, PointerType):
        raise TypeError(f"{value!r} is the type of a pointer; use that of its elements, ptr.dtype.element_ty")
    name = value if isinstance(value, str) else getattr(value, "name", None) or str(value).removeprefix("torch.")
    if name in _ALIASES:
        return as_dtype(_ALIASES[name])
    if not isinstance(value, str):
        with suppress(TypeError):
            found = _BY_NUMPY.get(np.dtype(value))  # type: ignore[call-overload]
            if found is not None:
                return found
    known = sorted(name for name, dtype in _ALIASES.items() if dtype.itemsize)
    raise TypeError(f"unknown dtype {quote(value)}; known: {', '.join(known)}")
