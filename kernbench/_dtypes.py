"""Element types: torch's names over numpy arrays; bf16 and f8 come from ml_dtypes.

16- and 8-bit floats are stored rounded (to nearest even) and computed in float32.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from kernbench.errors import quote


@dataclass(frozen=True, slots=True)
class DType:
    """An element type of `itemsize` bytes, printed as torch prints it.

    `carrier` is the numpy type that its values are computed in.
    """

    name: str
    numpy: np.dtype
    is_floating_point: bool
    itemsize: int = field(init=False, compare=False)
    carrier: np.dtype = field(init=False, compare=False)

    def __post_init__(self) -> None:
        narrow = self.is_floating_point and self.numpy.itemsize < 4
        object.__setattr__(self, "itemsize", self.numpy.itemsize)
        object.__setattr__(self, "carrier", np.dtype(np.float32) if narrow else self.numpy)

    @property
    def element_ty(self) -> DType:
        """Return the type itself: a pointer's `dtype` is that of its elements."""
        return self

    def round(self, values: np.ndarray) -> np.ndarray:
        """Return `values` rounded to this type, in the carrier type (a copy only where needed)."""
        return np.asarray(values).astype(self.numpy, copy=False).astype(self.carrier, copy=False)

    def decode(self, raw: np.ndarray, shape: int | tuple[int, ...]) -> np.ndarray:
        """Return the values of bytes (uint8) as memory stores them, in the carrier type (a copy only where needed)."""
        return raw.view(self.numpy).astype(self.carrier, copy=False).reshape(shape)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the bytes (uint8) of `values` as memory stores them (a copy only where needed)."""
        return np.ascontiguousarray(values.astype(self.numpy, copy=False)).reshape(-1).view(np.uint8)

    def __repr__(self) -> str:
        return f"torch.{self.name}"


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

ALL = (
    float32, float64, float16, bfloat16, float8_e4m3fn, float8_e5m2,
    int8, uint8, int16, uint16, int32, uint32, int64, uint64, bool_,
)  # fmt: skip

_ALIASES = {
    "f64": float64, "fp64": float64, "double": float64,
    "f32": float32, "fp32": float32, "float": float32,
    "f16": float16, "fp16": float16, "half": float16,
    "bf16": bfloat16,
    "f8e4m3fn": float8_e4m3fn, "f8e4m3": float8_e4m3fn, "f8e5m2": float8_e5m2,
    "i8": int8, "u8": uint8, "i16": int16, "u16": uint16, "i32": int32, "u32": uint32, "i64": int64, "u64": uint64,
    "i1": bool_,
    **{d.name: d for d in ALL},
}  # fmt: skip
_BY_NUMPY = {d.numpy: d for d in ALL}


def as_dtype(value: object) -> DType:
    """Return the DType that `value` means: a DType, one of its names, or a numpy type.

    Raises
    ------
    TypeError
        If no type has that name; the message lists the known ones.

    Examples
    --------
    >>> as_dtype("f16"), as_dtype(np.int32)
    (torch.float16, torch.int32)
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str):
        if value in _ALIASES:
            return _ALIASES[value]
    else:
        with suppress(TypeError):
            found = _BY_NUMPY.get(np.dtype(value))  # type: ignore[call-overload]
            if found is not None:
                return found
    raise TypeError(f"unknown dtype {quote(value)}; known: {', '.join(sorted(_ALIASES))}")
