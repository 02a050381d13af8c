"""Element types of results, as Triton's.

- A Python number takes the tile's type unless it is of a higher kind (bool < integer < float): then it counts as i32
  (i64 where it does not fit) or f32. An integer is exact until then.
- f64 over f32 over f16 over bf16; bf16 with any other type is f32; two different f8 give f16.
- A float with an integer is the float (bf16: f32). f8 with an integer tile is refused: cast one of them.
- Integers: the wider one; of equal width, the unsigned.
- `/` and `%` on f16 or bf16 give f32, `/` on integers f32.
- `sum` makes i32 of shorter integers (unsigned: u32), `max`, `min` and `softmax` f32 or i32 of all shorter types.
"""

from __future__ import annotations

from functools import lru_cache

from kernbench._dtypes import (
    DType,
    DTypeLike,
    as_dtype,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint32,
    uint64,
)
from kernbench.errors import KernelError

Scalar = bool | int | float


def kind(dtype: DType) -> int:
    return 2 if dtype.is_floating_point else int(dtype is not bool_)


@lru_cache(maxsize=4096, typed=True)
def dtype_of(scalar: Scalar) -> DType:
    """Type of a Python number where no tile determines it.

    >>> dtype_of(3), dtype_of(1 << 31), dtype_of(1 << 40), dtype_of(0.5)
    (torch.int32, torch.uint32, torch.int64, torch.float32)
    """
    if isinstance(scalar, bool):
        return bool_
    if isinstance(scalar, float):
        return float32
    return next((dtype for dtype in (int32, uint32, int64) if fits(scalar, dtype)), uint64)


@lru_cache(maxsize=4096, typed=True)
def promote_scalar(tile: DType, scalar: Scalar, division: bool = False) -> DType:
    """Type in which a tile of type `tile` and a Python number are combined.

    >>> promote_scalar(float16, 0.1), promote_scalar(int32, 0.5), promote_scalar(int32, 1 << 40)
    (torch.float16, torch.float32, torch.int64)
    """
    other = dtype_of(scalar)
    if kind(other) > kind(tile):
        return promote(tile, other, division)
    if division and tile in (float16, bfloat16):
        return float32
    if kind(tile) == 1 and isinstance(scalar, int) and not fits(scalar, tile):
        return promote(tile, int64 if other is uint32 else other)
    return tile


def promote(a: DType, b: DType, division: bool = False) -> DType:
    """Type in which tiles of types `a` and `b` are combined; `/` and `%` have no 16-bit form.

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
    if a is bool_ or b is bool_:
        return b if a is bool_ else a
    return a if a.numpy.kind == "u" else b


@lru_cache(maxsize=64)
def limits(dtype: DType) -> tuple[int, int]:
    return dtype.get_int_min_value(), dtype.get_int_max_value()


def fits(scalar: int, dtype: DType) -> bool:
    low, high = limits(dtype)
    return low <= scalar <= high


def wide(dtype: DType) -> DType:
    """Type in which Triton reduces values: at least 32 bits."""
    return dtype if dtype.itemsize >= 4 else float32 if dtype.is_floating_point else int32


def sum_dtype(x: DType, dtype: DTypeLike | None) -> DType:
    if dtype is not None:
        return as_dtype(dtype)
    return x if x.is_floating_point or x.itemsize >= 4 else int32 if x.is_int_signed() else uint32
