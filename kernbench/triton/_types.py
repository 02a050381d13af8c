"""Triton's element types and type objects, over those of the kernel language."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench import _dtypes as dtypes
from kernbench._dtypes import DType, as_dtype
from kernbench._registry import hint
from kernbench.errors import KernelError

_NAMES = {
    "int1": dtypes.bool_, "int8": dtypes.int8, "int16": dtypes.int16, "int32": dtypes.int32, "int64": dtypes.int64,
    "uint8": dtypes.uint8, "uint16": dtypes.uint16, "uint32": dtypes.uint32, "uint64": dtypes.uint64,
    "fp8e4nv": dtypes.float8_e4m3fn, "fp8e5": dtypes.float8_e5m2, "fp16": dtypes.float16, "bf16": dtypes.bfloat16,
    "fp32": dtypes.float32, "fp64": dtypes.float64,
}  # fmt: skip
_WITHOUT_VALUES = ("fp8e4b8", "fp8e4b15", "fp8e5b16")  # a kernel may name them where it does not use them


class dtype:
    """A scalar type under Triton's name, such as fp32."""

    is_ptr_type = False

    def __init__(self, name: str) -> None:
        self.name = name
        if name in _NAMES:
            self.native: DType = _NAMES[name]
        self.itemsize = self.native.itemsize if name in _NAMES else 1
        self.primitive_bitwidth = 1 if name == "int1" else 8 * self.itemsize
        self.int_bitwidth = self.primitive_bitwidth

    @property
    def scalar(self) -> dtype:
        """The type itself."""
        return self

    @property
    def element_ty(self) -> dtype:
        """The type itself: that of the elements of a tensor of it."""
        return self

    def is_floating(self) -> bool:
        """Return whether it is a float."""
        return self.native.is_floating_point

    def is_standard_floating(self) -> bool:
        """Return whether it is a float of at least 16 bits."""
        return self.is_floating() and self.itemsize > 1

    def is_int(self) -> bool:
        """Return whether it is an integer, bool included."""
        return not self.native.is_floating_point

    def is_int_signed(self) -> bool:
        """Return whether it is a signed integer."""
        return self.native.numpy.kind == "i"

    def is_int_unsigned(self) -> bool:
        """Return whether it is an unsigned integer, bool included."""
        return self.native.numpy.kind in "ub"

    def is_bool(self) -> bool:
        """Return whether it is int1."""
        return self.name == "int1"

    def is_fp8(self) -> bool:
        """Return whether it is an 8-bit float."""
        return self.name.startswith("fp8")

    def is_ptr(self) -> bool:
        """Return False: it is no pointer."""
        return False

    is_block = is_const = is_ptr

    def get_int_max_value(self) -> int:
        """Return the largest integer of the type."""
        return 1 if self.is_bool() else int(np.iinfo(self.native.numpy).max)

    def get_int_min_value(self) -> int:
        """Return the smallest integer of the type."""
        return 0 if self.is_bool() else int(np.iinfo(self.native.numpy).min)

    def __getattr__(self, name: str) -> Any:
        if name == "native":
            raise KernelError(f"{self!r} is not supported; 8-bit floats that are: float8e4nv, float8e5")
        if name.startswith("is_") and name[3:] in TYPES:
            return lambda: self.name == name[3:]
        raise AttributeError(f"{self!r} has no attribute {name!r}")

    def __eq__(self, other: object) -> bool:
        found = maybe_dtype(other)
        return found is not None and not isinstance(found, pointer_type) and self.name == found.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"triton.language.{self.name.replace('fp', 'float').replace('bf', 'bfloat')}"


class pointer_type:
    """The type of a pointer to elements of a scalar type."""

    primitive_bitwidth, itemsize = 64, 8

    def __init__(self, element_ty: Any, address_space: Any = 1, const: bool = False) -> None:
        self.element_ty = of(element_ty)
        self.name = f"pointer<{self.element_ty}>"

    @property
    def scalar(self) -> pointer_type:
        """The type itself."""
        return self

    def is_ptr(self) -> bool:
        """Return True: it is a pointer."""
        return True

    def is_floating(self) -> bool:
        """Return False: it is no number."""
        return False

    is_block = is_const = is_int = is_bool = is_fp8 = is_int_signed = is_int_unsigned = is_floating

    def __eq__(self, other: object) -> bool:
        return isinstance(other, pointer_type) and self.element_ty == other.element_ty

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name


class block_type:
    """The type of a tensor: that of its elements, and its shape."""

    def __init__(self, element_ty: Any, shape: Any) -> None:
        self.element_ty, self.shape = element_ty, tuple(shape)

    @property
    def scalar(self) -> Any:
        """The type of its elements."""
        return self.element_ty

    def is_block(self) -> bool:
        """Return True: it has a shape."""
        return True

    def is_ptr(self) -> bool:
        """Return False: its elements may be pointers, it is a tensor."""
        return False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.element_ty, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, block_type) and (self.element_ty, self.shape) == (other.element_ty, other.shape)

    def __hash__(self) -> int:
        return hash((self.element_ty, self.shape))

    def __repr__(self) -> str:
        return f"<{list(self.shape)}, {self.element_ty}>"


class _Known(type):
    def __instancecheck__(cls, value: object) -> bool:
        return value is None or isinstance(value, (bool, int, float, str, dtype, pointer_type))


class constexpr(metaclass=_Known):
    """A value known at compile time: here, the value itself. Also an annotation."""

    def __new__(cls, value: Any) -> Any:
        return getattr(value, "value", value)


class const:
    """An annotation of pointers that are only read."""


TYPES = {name: dtype(name) for name in (*_NAMES, *_WITHOUT_VALUES)}
_BY_NATIVE = {native.name: TYPES[name] for name, native in _NAMES.items()}
LANGUAGE_NAMES = {
    **{name: found for name, found in TYPES.items() if "int" in name},
    **{name.replace("fp", "float"): found for name, found in TYPES.items() if found.is_fp8()}, "float16": TYPES["fp16"],
    "bfloat16": TYPES["bf16"], "float32": TYPES["fp32"], "float64": TYPES["fp64"],
}  # fmt: skip


def of_native(native: DType) -> dtype:
    """Return the type under Triton's name."""
    return _BY_NATIVE[native.name]


def maybe_dtype(value: object) -> Any:
    """Return the type that a value means, or None: ours, Triton's own, or the name of either."""
    if isinstance(value, (dtype, pointer_type)):
        return value
    if isinstance(value, DType):
        return of_native(value)
    kind = type(value)
    if kind.__module__.startswith("triton.language") and kind.__name__ == "pointer_type":
        return pointer_type(getattr(value, "element_ty"))  # noqa: B009 : no static type has it
    name = value if isinstance(value, str) else getattr(value, "name", None)
    if name is None and kind.__module__ == "torch" and kind.__name__ == "dtype":
        name = str(value).removeprefix("torch.")
    if not isinstance(name, str):
        return None
    if name in TYPES:
        return TYPES[name]
    if name in LANGUAGE_NAMES:
        return LANGUAGE_NAMES[name]
    try:
        return of_native(as_dtype(name))
    except TypeError:
        return None


def of(value: object) -> Any:
    """Return the type that a value means.

    Raises
    ------
    KernelError
        If it is none, or one that the machine does not have.
    """
    found = maybe_dtype(value)
    if found is None:
        name = getattr(value, "name", value)
        raise KernelError(f"dtype {name!r} is not supported; {hint(str(name), sorted(LANGUAGE_NAMES))}")
    return found


def wide(kind: DType) -> DType:
    """Return the type that Triton reduces a type to, of at least 32 bits."""
    if kind.itemsize >= 4:
        return kind
    return dtypes.float32 if kind.is_floating_point else dtypes.int32


def type_of_sum(kind: DType, wanted: Any) -> DType | None:
    """Return the type of a sum, or None for that of the kernel language."""
    if wanted is not None:
        found: DType = of(wanted).native
        return found
    return kind if kind.is_floating_point else dtypes.uint32 if kind is dtypes.bool_ else None
