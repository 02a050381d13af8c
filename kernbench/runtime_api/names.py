"""The names of the namespace that stand for types."""

from __future__ import annotations

from kernbench import dtypes
from kernbench.runtime_api import tensor, types


class TypeNames:
    """torch's dtypes, and the classes of tensors, shapes and devices."""

    Tensor = tensor.Tensor
    Size = tensor.Size
    device = types.Device
    dtype = dtypes.DType

    float32 = float = dtypes.float32
    float64 = double = dtypes.float64
    float16 = half = dtypes.float16
    bfloat16 = dtypes.bfloat16
    float8_e4m3fn = dtypes.float8_e4m3fn
    float8_e5m2 = dtypes.float8_e5m2
    int8 = dtypes.int8
    uint8 = dtypes.uint8
    int16 = short = dtypes.int16
    int32 = int = dtypes.int32
    int64 = long = dtypes.int64
    bool = dtypes.bool_
