"""Element types of results: Triton's rules, the one place that knows them.

- A Python number takes the tile's type unless it is of a higher kind (bool < integer < float): then it counts as i32
  (i64 where it does not fit) or f32.
- f64 over f32 over f16, which bf16 gives way to; bf16 with anything else is f32; two different f8 give f16.
- A float with an integer is the float (bf16: f32). f8 with an integer tile is refused: cast one of them.
- Integers: the wider one; of two 8-bit ones the unsigned.
- `/` and `%` on f16 or bf16 give f32, `/` on integers f32.
"""

from __future__ import annotations

import numpy as np

from kernbench.dtypes import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from kernbench.errors import KernelError

Scalar = bool | int | float

_RANGE = {d.name: np.iinfo(d.numpy) for d in (int32, int64)}


def kind(dtype: DType) -> int:
    """Return 0 for bool, 1 for an integer, 2 for a float."""
    return 2 if dtype.is_floating_point else int(dtype is not bool_)


def dtype_of(scalar: Scalar) -> DType:
    """Return the type that a Python number has where no tile gives it one.

    >>> dtype_of(3), dtype_of(1 << 40), dtype_of(0.5)
    (torch.int32, torch.int64, torch.float32)
    """
    if isinstance(scalar, bool):
        return bool_
    if isinstance(scalar, float):
        return float32
    return int32 if _fits(scalar, int32) else int64


def promote_scalar(tile: DType, scalar: Scalar, division: bool = False) -> DType:
    """Return the type in which a tile of type `tile` and a Python number are combined.

    >>> promote_scalar(float16, 0.1), promote_scalar(int32, 0.5), promote_scalar(int32, 1 << 40)
    (torch.float16, torch.float32, torch.int64)
    """
    other = dtype_of(scalar)
    if kind(other) > kind(tile):
        return promote(tile, other, division)
    if division and tile in (float16, bfloat16):
        return float32
    if kind(tile) == 1 and isinstance(scalar, int) and not _fits(scalar, tile):
        return promote(tile, other)
    return tile


def promote(a: DType, b: DType, division: bool = False) -> DType:
    """Return the type in which tiles of types `a` and `b` are combined.

    Parameters
    ----------
    a, b : DType
        Types of the two tiles.
    division : bool
        True for `/` and `%`, which have no 16-bit form.

    Raises
    ------
    KernelError
        For an 8-bit float with an integer.

    Examples
    --------
    >>> promote(float16, float32), promote(float16, bfloat16), promote(float16, float16, division=True)
    (torch.float32, torch.float16, torch.float32)
    """
    if a is b and not (division and a.itemsize == 2):
        return a
    either = (a, b)
    for wide in (float64, float32):
        if wide in either:
            return wide
    if float16 in either:
        return float32 if division else float16
    if bfloat16 in either:
        return bfloat16 if a == b and not division else float32
    if a.is_floating_point and b.is_floating_point:
        return a if a == b else float16
    if a.is_floating_point or b.is_floating_point:
        raise KernelError(f"{a} and {b} have no common type; cast one of them, e.g. x.to(tl.float32)")
    if a.itemsize != b.itemsize:
        return a if a.itemsize > b.itemsize else b
    if uint8 in either:
        return uint8
    return b if a is bool_ else a


def _fits(scalar: int, dtype: DType) -> bool:
    limits = _RANGE.get(dtype.name) or np.iinfo(dtype.numpy)
    return int(limits.min) <= scalar <= int(limits.max)
