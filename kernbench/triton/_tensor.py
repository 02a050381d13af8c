"""What a kernel computes with: tensors, block pointers and tensor descriptors, over tiles and pointers of a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._registry import hint
from kernbench.errors import KernelError
from kernbench.triton._types import TYPES, block_type, of, pointer_type
from kernbench.triton_emu._handles import Pointer, PointerTile, Tile

if TYPE_CHECKING:
    from kernbench.triton._language import Language

_INT1 = TYPES["int1"]


def _quotient(a: int, b: int) -> int:
    return -(-a // b) if (a < 0) != (b < 0) else a // b


# Operations on integers that the program knows: exact, or left to the kernel language where they do not fit.
_KNOWN: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _quotient,
    "mod": lambda a, b: a - b * _quotient(a, b),
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_COMPARE = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))


def _known(name: str, a: Any, b: Any) -> Any:
    """Return (value, type) of an operation on known integers, or None where it has to be computed as a tile."""
    function = _KNOWN.get(name)
    dtype = None
    values = []
    for x in (a, b):
        if isinstance(x, tensor):
            if type(x.handle) is not int or (dtype is not None and x.dtype is not dtype):
                return None
            dtype, x = x.dtype, x.handle
        elif type(x) is not int:
            return None
        values.append(x)
    if function is None or dtype is None or (name in ("floordiv", "mod") and not values[1]):
        return None
    low, high = dtype.get_int_min_value(), dtype.get_int_max_value()
    if not (low <= values[0] <= high and low <= values[1] <= high):
        return None
    found = function(*values)
    if name in _COMPARE:
        return bool(found), _INT1
    return (found, dtype) if low <= found <= high else None


def _binary(name: str) -> Callable[[tensor, Any], Any]:
    def method(self: tensor, other: Any) -> Any:
        return self._lang._binary(name, self, other)

    return method


def _reflected(name: str) -> Callable[[tensor, Any], Any]:
    def method(self: tensor, other: Any) -> Any:
        return self._lang._binary(name, other, self)

    return method


class tensor:
    """A value, or a block of them. `handle` is a tile, a pointer, a tile of pointers, or a number that is known."""

    __slots__ = ("_lang", "dtype", "handle")
    __array_ufunc__ = None

    def __init__(self, lang: Language, handle: Any, dtype: Any) -> None:
        self._lang, self.handle, self.dtype = lang, handle, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes."""
        return self.handle.shape if isinstance(self.handle, (Tile, PointerTile)) else ()

    @property
    def type(self) -> Any:
        """The type with the shape."""
        return block_type(self.dtype, self.shape) if self.shape else self.dtype

    @property
    def numel(self) -> int:
        """The number of values."""
        return int(np.prod(self.shape))

    @property
    def T(self) -> Any:
        """The transpose."""
        return self._lang.trans(self)

    def to(self, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Any:
        """Return the values in another type."""
        return self._lang.cast(self, dtype, fp_downcast_rounding, bitcast)

    def logical_and(self, other: Any) -> Any:
        """Return whether both are not zero."""
        return (self != 0) & (self._lang.to_tensor(other) != 0)

    def logical_or(self, other: Any) -> Any:
        """Return whether one is not zero."""
        return (self != 0) | (self._lang.to_tensor(other) != 0)

    def __getitem__(self, key: Any) -> Any:
        lang = self._lang
        handle = lang._native(self)
        if isinstance(handle, Pointer):
            raise KernelError(f"{self!r}[{key!r}]: a pointer has no elements; load it, or add an offset")
        return lang._wrap(handle[key])

    def __bool__(self) -> bool:
        return bool(self.handle)

    def __int__(self) -> int:
        return int(self.handle)

    def __float__(self) -> float:
        return float(self.handle)

    def __index__(self) -> int:
        return operator.index(self.handle)

    def __neg__(self) -> Any:
        return self._lang._negative(self)

    def __invert__(self) -> Any:
        return self._lang._unary("not", self)

    def __pos__(self) -> tensor:
        return self

    def __abs__(self) -> Any:
        return self._lang.abs(self)

    def __repr__(self) -> str:
        return repr(self.handle) if not isinstance(self.handle, (int, float)) else f"{self.handle} {self.dtype}"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = [n for n in dir(tensor) if not n.startswith("_")]
        raise AttributeError(f"a tensor has no attribute {name!r}; {hint(name, known)}", name=name)

    __hash__ = object.__hash__

    __add__, __radd__ = _binary("add"), _reflected("add")
    __sub__, __rsub__ = _binary("sub"), _reflected("sub")
    __mul__, __rmul__ = _binary("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _binary("div"), _reflected("div")
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _reflected("floordiv")
    __mod__, __rmod__ = _binary("mod"), _reflected("mod")
    __and__, __rand__ = _binary("and"), _reflected("and")
    __or__, __ror__ = _binary("or"), _reflected("or")
    __xor__, __rxor__ = _binary("xor"), _reflected("xor")
    __lshift__, __rlshift__ = _binary("shl"), _reflected("shl")
    __rshift__, __rrshift__ = _binary("shr"), _reflected("shr")
    __lt__, __le__ = _binary("lt"), _binary("le")
    __gt__, __ge__ = _binary("gt"), _binary("ge")
    __eq__, __ne__ = _binary("eq"), _binary("ne")


class Block:
    """A block of a matrix in memory: base, shape and strides of the matrix, offsets and shape of the block."""

    def __init__(
        self,
        lang: Language,
        base: tensor,
        shape: Sequence[Any],
        strides: Sequence[Any],
        offsets: Sequence[Any],
        block_shape: Sequence[Any],
        padding: str = "",
    ) -> None:
        self.lang, self.base, self.padding = lang, base, padding
        self.shape, self.strides, self.offsets = list(shape), list(strides), list(offsets)
        self.block_shape = [int(n) for n in block_shape]
        rank = len(self.block_shape)
        if any(len(x) != rank for x in (self.shape, self.strides, self.offsets)):
            raise KernelError(
                f"a block of {rank} dims has {len(self.shape)} sizes, {len(self.strides)} strides and "
                f"{len(self.offsets)} offsets; give one of each for every dim"
            )

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self.base.dtype.element_ty

    @property
    def type(self) -> Any:
        """The type of the pointer, whose element type is that of the block."""
        return pointer_type(self.dtype)

    def at(self, offsets: Sequence[Any]) -> Block:
        """Return the block at other offsets."""
        return Block(self.lang, self.base, self.shape, self.strides, offsets, self.block_shape, self.padding)

    def pointers(self, checked: Sequence[int]) -> tuple[tensor, Any]:
        """Return the pointers, and the mask of those that are inside along the dims `checked`."""
        lang, rank = self.lang, len(self.block_shape)
        places: Any = None
        mask: Any = None
        for dim in range(rank):
            key = tuple(slice(None) if i == dim else None for i in range(rank))
            line = (lang.arange(0, self.block_shape[dim]) + self.offsets[dim])[key]
            step = line.to("int64") * self.strides[dim]
            places = step if places is None else places + step
            if dim in checked:
                inside = (line >= 0) & (line < self.shape[dim])
                mask = inside if mask is None else mask & inside
        return self.base + places, mask

    def load_checked(self, checked: Sequence[int], padding: str) -> Any:
        """Return the values; what is outside is 0, or NaN with the padding "nan"."""
        pointers, mask = self.pointers(checked)
        if mask is None:
            return self.lang.load(pointers)
        return self.lang.load(pointers, mask, float("nan") if padding == "nan" else 0)

    def store_checked(self, value: Any, checked: Sequence[int]) -> None:
        """Store what is inside."""
        pointers, mask = self.pointers(checked)
        self.lang.store(pointers, value, mask)


class tensor_descriptor(Block):
    """A matrix in memory that is read and written by blocks, zero outside of it."""

    @property
    def _all(self) -> range:
        return range(len(self.block_shape))

    def load(self, offsets: Sequence[Any], *_: Any, **__: Any) -> Any:
        """Return the block at `offsets`."""
        return self.at(offsets).load_checked(self._all, self.padding)

    def store(self, offsets: Sequence[Any], value: Any) -> None:
        """Store a block at `offsets`."""
        block = self.at(offsets)
        block.store_checked(self.lang.reshape(value, *self.block_shape), self._all)

    def _rows(self, x_offsets: Any, y_offset: Any) -> tuple[tensor, Any]:
        columns = self.lang.arange(0, self.block_shape[1]) + y_offset
        rows = x_offsets[:, None]
        places = rows.to("int64") * self.strides[0] + columns[None, :] * self.strides[1]
        mask = (rows >= 0) & (rows < self.shape[0]) & (columns >= 0)[None, :] & (columns < self.shape[1])[None, :]
        return self.base + places, mask

    def gather(self, x_offsets: Any, y_offset: Any, *_: Any) -> Any:
        """Return rows of the matrix, from a column on."""
        pointers, mask = self._rows(x_offsets, y_offset)
        return self.lang.load(pointers, mask, 0)

    def scatter(self, value: Any, x_offsets: Any, y_offset: Any) -> None:
        """Store rows of the matrix, from a column on."""
        pointers, mask = self._rows(x_offsets, y_offset)
        self.lang.store(pointers, value, mask)


def pointer_of(lang: Language, handle: Any, dtype: Any) -> tensor:
    """Return integers as pointers, or pointers as pointers to another type."""
    native = of(dtype.element_ty).native
    if isinstance(handle, Pointer):
        return tensor(lang, Pointer(handle.va, native), dtype)
    if isinstance(handle, PointerTile):
        scaled = handle.offsets * handle.dtype.itemsize // native.itemsize
        return tensor(lang, PointerTile(Pointer(handle.base.va, native), scaled), dtype)
    if isinstance(handle, Tile) and handle.shape:
        return tensor(lang, PointerTile(Pointer(0, native), handle // native.itemsize), dtype)
    return tensor(lang, Pointer(int(handle), native), dtype)


def is_bool(value: Any) -> bool:
    """Return whether a value is one bit."""
    return isinstance(value, bool) or (isinstance(value, tensor) and value.dtype.is_bool())


def is_signed_by_unsigned(a: Any, b: Any) -> bool:
    """Return whether the type that a signed integer and an unsigned one share is unsigned."""
    if not (isinstance(a, tensor) and isinstance(b, tensor)):
        return False
    fits = a.dtype.primitive_bitwidth <= b.dtype.primitive_bitwidth
    return bool(fits and a.dtype.is_int_signed() and b.dtype.is_int_unsigned())
