"""Handles of a kernel: pointers into memory, tiles in TCM, and pending commands."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable
from functools import lru_cache
from math import prod
from operator import index
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._dtypes import BlockType, DType, PointerType, bool_, int64
from kernbench._registry import hint
from kernbench.components._command import Command, Recv, Value
from kernbench.errors import KernelError
from kernbench.triton_emu._places import Places, Shape

if TYPE_CHECKING:
    from kernbench.triton_emu._memory_ops import Access
    from kernbench.triton_emu._program import Program


# The thread that the cycle collector runs in, or 0. Tiles that it collects keep their space until the program ends:
# space is freed by reference counts only, so that runs are deterministic.
_collecting = 0


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    global _collecting  # noqa: PLW0603 : the interpreter has one collector
    _collecting = get_ident() if phase == "start" else 0


gc.callbacks.append(_note_collection)


def shape_text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


# Functions of `tl` that are also methods of a tensor, as in Triton.
_METHODS = (
    "abs", "argmax", "argmin", "associative_scan", "atomic_add", "atomic_and", "atomic_cas", "atomic_max",
    "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "broadcast_to", "cast", "cdiv", "ceil", "cos",
    "cumprod", "cumsum", "erf", "exp", "exp2", "expand_dims", "flip", "floor", "gather", "histogram", "item",
    "log", "log2", "logical_and", "logical_or", "max", "min", "permute", "ravel", "reduce", "reduce_or",
    "reshape", "rsqrt", "sigmoid", "sin", "softmax", "split", "sqrt", "sqrt_rn", "squeeze", "store", "sum",
    "trans", "unsqueeze", "view", "xor_sum",
)  # fmt: skip


def _method(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._tl is None:
            raise _unknown(self, name)
        return getattr(self._tl, name)(self, *args, **kwargs)

    method.__name__ = name
    return method


def _unknown(tensor: Any, name: str) -> AttributeError:
    what = "pointer" if isinstance(tensor, Pointer) else "tile"
    known = sorted(n for n in dir(type(tensor)) if not n.startswith("_"))
    return AttributeError(f"a {what} has no attribute {name!r}; {hint(name, known)}", name=name)


class Tensor:
    """Triton's tensor: a tile of values, a pointer, or a tile of pointers."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy leaves `number * tile` to __rmul__

    @property
    def type(self) -> Any:
        return BlockType(self.dtype, self.shape) if self.shape else self.dtype

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def to(self, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Tile:
        return self._tl.cast(self, dtype, fp_downcast_rounding, bitcast)

    def __pos__(self) -> Any:
        return self

    # With `__getattr__` alone, Python would make an error for each name first.
    (
        abs, argmax, argmin, associative_scan, atomic_add, atomic_and, atomic_cas, atomic_max, atomic_min,
        atomic_or, atomic_xchg, atomic_xor, broadcast_to, cast, cdiv, ceil, cos, cumprod, cumsum, erf, exp,
        exp2, expand_dims, flip, floor, gather, histogram, item, log, log2, logical_and, logical_or, max, min,
        permute, ravel, reduce, reduce_or, reshape, rsqrt, sigmoid, sin, softmax, split, sqrt, sqrt_rn,
        squeeze, store, sum, trans, unsqueeze, view, xor_sum,
    ) = map(_method, _METHODS)  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        raise _unknown(self, name)


class KnownInt(int):
    """An integer known to the program: exact, with the one method that Triton's kernels use on it."""

    def to(self, dtype: Any) -> Any:
        """Return the integer, which has no width, or a pointer to this address."""
        return Pointer(self, dtype.element_ty) if isinstance(dtype, PointerType) else self


pointer_type = lru_cache(PointerType)


def address(x: Any) -> Any:
    """Convert pointers to byte addresses (Python integers, or i64); return anything else unchanged."""
    if isinstance(x, Pointer):
        return KnownInt(x.va) if x._tl is None else x._tl._fold(np.asarray(x.va, np.int64), int64)
    if isinstance(x, PointerTile):
        return x.offsets.to(int64) * x.element_ty.itemsize + x.base.va
    return x


def pointers_of(x: Any, element_ty: DType, tl: Program | None) -> Any:
    """Convert integers (byte addresses), or pointers to another type, to pointers."""
    if isinstance(x, PointerTile):
        scaled = x.offsets * x.element_ty.itemsize // element_ty.itemsize
        return PointerTile(Pointer(x.base.va, element_ty, tl), scaled)
    if isinstance(x, Tile) and x.shape:
        return PointerTile(Pointer(0, element_ty, tl), x // element_ty.itemsize)
    return Pointer(int(x), element_ty, tl)


def _compared(name: str) -> Callable[[Any, Any], Any]:
    compare = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        return NotImplemented if other is None else compare(address(self), address(other))

    return method


class Pointer(Tensor):
    """A typed address: `pointer + n` is n elements further, `pointer + tile` a tile of pointers.

    As an integer it is Python's; in a language where scalars have a width, which is then given as `tl`, it is i64.
    """

    __slots__ = ("_tl", "element_ty", "va")
    shape = ()

    def __init__(self, va: int, element_ty: DType, tl: Program | None = None) -> None:
        self.va, self.element_ty, self._tl = va, element_ty, tl

    @property
    def dtype(self) -> PointerType:
        return pointer_type(self.element_ty)

    def __add__(self, n: Any) -> Any:
        if isinstance(n, Tile) and n.shape:
            return PointerTile(self, n)
        return Pointer(self.va + index(n) * self.element_ty.itemsize, self.element_ty, self._tl)

    __radd__ = __add__

    def __sub__(self, n: Any) -> Any:
        if isinstance(n, Tensor) and (n.shape or isinstance(n, Pointer)):
            return _difference(self, n)
        return self + -index(n)

    def to(self, dtype: Any, fp_downcast_rounding: str | None = None, bitcast: bool = False) -> Any:
        if isinstance(dtype, PointerType):
            return Pointer(self.va, dtype.element_ty, self._tl)
        return address(self).to(dtype)

    def __int__(self) -> int:
        return self.va

    __index__ = __int__

    __lt__, __le__, __gt__, __ge__ = map(_compared, ("lt", "le", "gt", "ge"))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pointer):
            return NotImplemented
        return self.va == other.va and self.element_ty == other.element_ty

    def __hash__(self) -> int:
        return hash((self.va, self.element_ty.name))

    def __repr__(self) -> str:
        return f"<pointer to {self.element_ty.name} at {self.va:#x}>"


class PointerTile(Tensor):
    """A tile of pointers: `base` plus `offsets` elements."""

    __slots__ = ("base", "offsets")

    def __init__(self, base: Pointer, offsets: Tile) -> None:
        if offsets.dtype.is_floating_point:
            raise KernelError(f"offsets of a pointer are integers, not {offsets.dtype}")
        self.base, self.offsets = base, offsets

    @property
    def shape(self) -> Shape:
        return self.offsets.shape

    @property
    def element_ty(self) -> DType:
        return self.base.element_ty

    @property
    def dtype(self) -> PointerType:
        return self.base.dtype

    @property
    def _tl(self) -> Program:
        return self.offsets._tl

    def __add__(self, n: Any) -> PointerTile:
        # A uniform step moves the base, so the runs of the offsets are computed once for a whole loop.
        if isinstance(n, Tile) and n.shape:
            return PointerTile(self.base, self.offsets + n)
        return PointerTile(self.base + n, self.offsets)

    __radd__ = __add__

    def __sub__(self, n: Any) -> Any:
        return _difference(self, n) if isinstance(n, (Pointer, PointerTile)) else self + -n

    def __getitem__(self, key: Any) -> PointerTile:
        return PointerTile(self.base, self.offsets[key])

    __lt__, __le__, __gt__, __ge__ = map(_compared, ("lt", "le", "gt", "ge"))
    __eq__, __ne__ = _compared("eq"), _compared("ne")
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<{shape_text(self.shape)} pointers to {self.element_ty.name} from {self.base.va:#x}>"


def _difference(x: Pointer | PointerTile, y: Any) -> Any:
    """Return x - y in elements for pointers, or x moved back by a tile of elements."""
    if isinstance(y, Tile):
        return x + -y
    return (address(x) - address(y)) // x.element_ty.itemsize


class Pending:
    __slots__ = ("command",)

    def __init__(self, command: Command) -> None:
        self.command = command

    def __repr__(self) -> str:
        return f"<{self.command.name} {self.command.tag}, for tl.wait>"


class Tile(Tensor):
    """A tile of values: a constant, folded at no cost, or a result with space in TCM.

    Operators broadcast as numpy's and have the element types of Triton. `float(x)`, `int(x)`, `bool(x)` and `numpy()`
    wait for the value. The space in TCM is free once the last reference is gone and no command needs it. The array of a
    constant known as `_places` is created on demand.
    """

    __slots__ = (
        "_access", "_base", "_constant", "_held", "_places", "_recv", "_tl", "_undefined", "dtype", "shape",
    )  # fmt: skip

    def __init__(
        self,
        tl: Program,
        value: Value,
        constant: bool = False,
        shape: Shape | None = None,
        base: Tile | None = None,
        places: Places | None = None,
    ) -> None:
        self.opens(tl, value)
        self._constant, self._base, self._places = constant, base, places
        if shape is not None:
            self.shape = shape
        if base is not None:
            self._recv: Recv | None = base._recv

    def opens(self, tl: Program, value: Value) -> None:
        """Set the fields for the result of a command, of an object that compiled code has made without `__init__`."""
        self._tl, self._held, self._constant = tl, value, False
        self._base = self._places = None
        self.shape = value.shape
        self.dtype: DType = value.dtype
        self._access: Access | None = None
        self._undefined: np.ndarray | None = None  # elements that depend on masked-off ones
        self._recv = None

    def __del__(self) -> None:
        if self._constant or self._base is not None or not self._tl._open:
            return
        if _collecting and _collecting == get_ident():
            return
        self._tl._drop(self._held)

    @property
    def _value(self) -> Value:
        """The operand of a command; with data, this creates the array of a constant."""
        if self._places is not None and self._tl._data:
            self._array()
        return self._held

    def _with(self, name: str, other: Any) -> Tile:
        if other is None or isinstance(other, (Pointer, PointerTile)):
            return NotImplemented  # as of an operator
        return self._tl._binary(name, self, other)

    def _view(self, shape: Shape) -> Tile:
        """Return the same values under another shape; the view keeps this tile's space alive."""
        if self._constant:
            places = None if self._places is None else self._places.view(shape)
            if places is not None:
                return self._tl._placed(places, self.dtype)
            return self._tl._fold(self._array().reshape(shape), self.dtype)
        view = Tile(self._tl, self._held, shape=shape, base=self if self._base is None else self._base)
        if self._undefined is not None:
            view._undefined = self._undefined.reshape(shape)
        return view

    def _array(self) -> np.ndarray:
        """Wait for the values; return them in the carrier type."""
        value = self._held
        if not self._constant:
            if not self._tl._data:
                raise KernelError(
                    f"the values of {self!r} are not known: this run computes times only. "
                    "Open the session with data=True, or do not let control flow and addresses depend on them"
                )
            self._tl._block(value)
        elif value.array is None:
            assert self._places is not None
            value.array = self._places.array().astype(self.dtype.carrier, copy=False)
        assert value.array is not None
        return value.array.reshape(self.shape)

    def numpy(self) -> np.ndarray:
        """Wait for the values; return a copy in the tile's own type."""
        return self._array().astype(self.dtype.numpy)

    def _number(self) -> Any:
        array = self._array()
        if array.size != 1:
            raise KernelError(
                f"{self!r} has {array.size} values where one is needed; reduce it first (tl.sum, tl.max), "
                "and combine conditions with & | ~ instead of and, or, not"
            )
        return array.reshape(()).item()

    def __bool__(self) -> bool:
        return bool(self._number())

    def __int__(self) -> int:
        return int(self._number())

    def __float__(self) -> float:
        return float(self._number())

    def __index__(self) -> int:
        if self.dtype.is_floating_point:
            raise TypeError(f"{self!r} cannot be used as an index: it is not an integer")
        return int(self._number())

    @property
    def came_from(self) -> str:
        """The direction that a received tile came from."""
        if self._recv is None:
            raise KernelError(f"{self!r} did not come through a queue; came_from is for what tl.recv returns")
        self._tl._block(self._recv)
        return self._recv.came_from

    @property
    def T(self) -> Tile:
        """The transpose, as `tl.trans`."""
        return self._tl.trans(self)

    def __getitem__(self, key: Any) -> Tile:
        keys = key if isinstance(key, tuple) else (key,)
        sizes = iter(self.shape)
        shape: list[int] = []
        for k in keys:
            size = 1 if k is None else next(sizes, None)
            if size is None or not (k is None or (isinstance(k, slice) and k == slice(None))):
                raise KernelError(
                    f"{self!r}[{key!r}]: a tile takes only None and : as indices, : at most {len(self.shape)} times"
                )
            shape.append(size)
        return self._view((*shape, *sizes))

    def __repr__(self) -> str:
        what = "constant" if self._constant else "tile"
        text = f"<{what} {shape_text(self.shape)} {self.dtype.name}"
        array = self._array() if self._constant else self._held.array
        if array is None:
            return text + ">"
        values = np.array2string(array.reshape(self.shape), threshold=8, edgeitems=2, precision=4, separator=", ")
        return f"{text}: {values}>"

    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Tile:
        return self._with("add", other)

    def __radd__(self, other: Any) -> Tile:
        return self._tl._binary("add", other, self)

    def __sub__(self, other: Any) -> Tile:
        return self._with("sub", other)

    def __rsub__(self, other: Any) -> Tile:
        return self._tl._binary("sub", other, self)

    def __mul__(self, other: Any) -> Tile:
        return self._with("mul", other)

    def __rmul__(self, other: Any) -> Tile:
        return self._tl._binary("mul", other, self)

    def __truediv__(self, other: Any) -> Tile:
        return self._with("div", other)

    def __rtruediv__(self, other: Any) -> Tile:
        return self._tl._binary("div", other, self)

    def __floordiv__(self, other: Any) -> Tile:
        return self._with("floordiv", other)

    def __rfloordiv__(self, other: Any) -> Tile:
        return self._tl._binary("floordiv", other, self)

    def __mod__(self, other: Any) -> Tile:
        return self._with("mod", other)

    def __rmod__(self, other: Any) -> Tile:
        return self._tl._binary("mod", other, self)

    def __and__(self, other: Any) -> Tile:
        return self._with("and", other)

    def __rand__(self, other: Any) -> Tile:
        return self._tl._binary("and", other, self)

    def __or__(self, other: Any) -> Tile:
        return self._with("or", other)

    def __ror__(self, other: Any) -> Tile:
        return self._tl._binary("or", other, self)

    def __xor__(self, other: Any) -> Tile:
        return self._with("xor", other)

    def __rxor__(self, other: Any) -> Tile:
        return self._tl._binary("xor", other, self)

    def __lshift__(self, other: Any) -> Tile:
        return self._with("shl", other)

    def __rlshift__(self, other: Any) -> Tile:
        return self._tl._binary("shl", other, self)

    def __rshift__(self, other: Any) -> Tile:
        return self._with("shr", other)

    def __rrshift__(self, other: Any) -> Tile:
        return self._tl._binary("shr", other, self)

    def __lt__(self, other: Any) -> Tile:
        return self._with("lt", other)

    def __le__(self, other: Any) -> Tile:
        return self._with("le", other)

    def __gt__(self, other: Any) -> Tile:
        return self._with("gt", other)

    def __ge__(self, other: Any) -> Tile:
        return self._with("ge", other)

    def __eq__(self, other: object) -> Any:
        return self._with("eq", other)

    def __ne__(self, other: object) -> Any:
        return self._with("ne", other)

    def __neg__(self) -> Tile:
        if self.dtype is bool_:
            return self
        return self._tl._neg(self) if self._places is None else 0 - self

    def __invert__(self) -> Tile:
        return self._tl._not(self)

    def __abs__(self) -> Tile:
        return self._tl.abs(self)
