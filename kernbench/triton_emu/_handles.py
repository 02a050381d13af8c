"""What a kernel holds: pointers into memory, tiles in TCM, and commands that it can wait for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from operator import index
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench._dtypes import DType
from kernbench._registry import hint
from kernbench.components._command import Command, Recv, Value
from kernbench.errors import KernelError

if TYPE_CHECKING:
    from kernbench.triton_emu._memory_ops import Access
    from kernbench.triton_emu._program import Program

Shape = tuple[int, ...]
DTypeLike = DType | str | type

# The thread that the cycle collector runs in, or 0. What it finds stays where it is until the program ends:
# when a tile's space becomes free is a matter of reference counts, so that two runs agree.
_collecting = 0


def _note_collection(phase: str, _info: dict[str, int]) -> None:
    global _collecting  # noqa: PLW0603 : the interpreter has one collector
    _collecting = get_ident() if phase == "start" else 0


gc.callbacks.append(_note_collection)


def shape_text(shape: Shape) -> str:
    """Return a shape as messages print it: 32x64, or scalar."""
    return "x".join(map(str, shape)) or "scalar"


class Pointer:
    """A typed address: `pointer + n` is n elements further, `pointer + tile` a tile of pointers."""

    __slots__ = ("dtype", "va")
    __array_ufunc__ = None  # numpy's numbers leave `n + pointer` to __radd__

    def __init__(self, va: int, dtype: DType) -> None:
        self.va, self.dtype = va, dtype

    def __add__(self, n: int | Tile) -> Any:
        if isinstance(n, Tile) and n.shape:
            return PointerTile(self, n)
        return Pointer(self.va + index(n) * self.dtype.itemsize, self.dtype)

    __radd__ = __add__

    def __sub__(self, n: int | Tile) -> Any:
        return self + -n

    def __int__(self) -> int:
        return self.va

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pointer):
            return NotImplemented
        return self.va == other.va and self.dtype == other.dtype

    def __hash__(self) -> int:
        return hash((self.va, self.dtype.name))

    def __repr__(self) -> str:
        return f"<pointer to {self.dtype.name} at {self.va:#x}>"


class PointerTile:
    """A tile of pointers: `base` plus `offsets` elements."""

    __slots__ = ("base", "offsets")

    def __init__(self, base: Pointer, offsets: Tile) -> None:
        if offsets.dtype.is_floating_point:
            raise KernelError(f"offsets of a pointer are integers, not {offsets.dtype}")
        self.base, self.offsets = base, offsets

    @property
    def shape(self) -> Shape:
        """Return the shape of the tile."""
        return self.offsets.shape

    @property
    def dtype(self) -> DType:
        """Return the type that the pointers point to."""
        return self.base.dtype

    def __add__(self, n: int | Tile) -> PointerTile:
        # A uniform step moves the base: the runs of the offsets are found once for a whole loop.
        if isinstance(n, Tile) and n.shape:
            return PointerTile(self.base, self.offsets + n)
        return PointerTile(self.base + n, self.offsets)

    __radd__ = __add__

    def __sub__(self, n: int | Tile) -> PointerTile:
        return self + -n

    def __getitem__(self, key: Any) -> PointerTile:
        return PointerTile(self.base, self.offsets[key])

    def __repr__(self) -> str:
        return f"<{shape_text(self.shape)} pointers to {self.dtype.name} from {self.base.va:#x}>"


class Pending:
    """A command under way, for `tl.wait`."""

    __slots__ = ("command",)

    def __init__(self, command: Command) -> None:
        self.command = command

    def __repr__(self) -> str:
        return f"<{self.command.name} {self.command.tag}, for tl.wait>"


def _binary(name: str) -> Callable[[Tile, Any], Tile]:
    def operator(self: Tile, other: Any) -> Tile:
        return self._tl._binary(name, self, other)

    return operator


def _reflected(name: str) -> Callable[[Tile, Any], Tile]:
    def operator(self: Tile, other: Any) -> Tile:
        return self._tl._binary(name, other, self)

    return operator


def _unary(name: str) -> Callable[[Tile], Tile]:
    def function(self: Tile) -> Tile:
        return self._tl._unary(name, self)

    function.__name__, function.__doc__ = name, f"Return `tl.{name}` of the tile."
    return function


class Tile:
    """A tile of values: a constant, folded at no cost, or a result that has its place in TCM.

    Operators broadcast as numpy's and have the element types of Triton. `float(x)`, `int(x)`, `bool(x)`, `item()`
    and `numpy()` wait for the value. The place in TCM is free once the last reference is gone and no command needs it.
    """

    __slots__ = ("_access", "_base", "_constant", "_recv", "_tl", "_undefined", "_value", "dtype", "shape")
    __array_ufunc__ = None  # numpy leaves `number * tile` to __rmul__

    def __init__(
        self,
        tl: Program,
        value: Value,
        *,
        constant: bool = False,
        shape: Shape | None = None,
        base: Tile | None = None,
    ) -> None:
        self._tl = tl
        self._value, self._constant, self._base = value, constant, base
        self.shape: Shape = value.shape if shape is None else shape
        self.dtype: DType = value.dtype
        self._access: Access | None = None
        self._undefined: np.ndarray | None = None  # which elements depend on some that a mask left out
        self._recv: Recv | None = base._recv if base is not None else None

    def __del__(self) -> None:
        if self._constant or self._base is not None or not self._tl._open:
            return
        if _collecting and _collecting == get_ident():
            return
        self._tl._backend.drop(self._value)

    def _view(self, shape: Shape) -> Tile:
        """Return the same values under another shape; it keeps this tile's place alive."""
        if self._constant:
            array = self._value.array
            assert array is not None
            return self._tl._fold(array.reshape(shape), self.dtype)
        view = Tile(self._tl, self._value, shape=shape, base=self if self._base is None else self._base)
        if self._undefined is not None:
            view._undefined = self._undefined.reshape(shape)
        return view

    def _array(self) -> np.ndarray:
        """Return the values in the carrier type, waiting for them."""
        value = self._value
        if not self._constant:
            if not self._tl._backend.data:
                raise KernelError(
                    f"the values of {self!r} are not known: this run computes times only. "
                    "Open the session with data=True, or do not let control flow and addresses depend on them"
                )
            self._tl._backend.block(value)
        assert value.array is not None
        return value.array.reshape(self.shape)

    def numpy(self) -> np.ndarray:
        """Return a copy of the values in the tile's own type, waiting for them."""
        return self._array().astype(self.dtype.numpy)

    def item(self) -> Any:
        """Return the one value as a Python number, waiting for it."""
        array = self._array()
        if array.size != 1:
            raise KernelError(
                f"{self!r} has {array.size} values where one is needed; reduce it first (tl.sum, tl.max), "
                "and combine conditions with & | ~ instead of and, or, not"
            )
        return array.reshape(()).item()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __index__(self) -> int:
        if self.dtype.is_floating_point:
            raise TypeError(f"{self!r} cannot be used as an index: it is not an integer")
        return int(self.item())

    @property
    def came_from(self) -> str:
        """Return the direction that a received tile came from."""
        if self._recv is None:
            raise KernelError(f"{self!r} did not come through a queue; came_from is for what tl.recv returns")
        self._tl._backend.block(self._recv)
        return self._recv.came_from

    @property
    def T(self) -> Tile:
        """Return the transpose, as `tl.trans`."""
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

    # Functions of `tl` that are methods of a tile too, as in Triton.

    abs, cos, exp, exp2, log, log2 = map(_unary, ("abs", "cos", "exp", "exp2", "log", "log2"))
    rsqrt, sigmoid, sin, sqrt = map(_unary, ("rsqrt", "sigmoid", "sin", "sqrt"))

    def trans(self) -> Tile:
        """Return `tl.trans` of the tile."""
        return self._tl.trans(self)

    def cast(self, dtype: DTypeLike) -> Tile:
        """Return `tl.cast` of the tile."""
        return self._tl.cast(self, dtype)

    to = cast

    def cdiv(self, div: Any) -> Any:
        """Return `tl.cdiv` of the tile."""
        return self._tl.cdiv(self, div)

    def max(self, axis: int | None = None, keep_dims: bool = False) -> Tile:
        """Return `tl.max` of the tile."""
        return self._tl.max(self, axis, keep_dims)

    def min(self, axis: int | None = None, keep_dims: bool = False) -> Tile:
        """Return `tl.min` of the tile."""
        return self._tl.min(self, axis, keep_dims)

    def reshape(self, *shape: Any) -> Tile:
        """Return `tl.reshape` of the tile."""
        return self._tl.reshape(self, *shape)

    def softmax(self, dim: int | None = None) -> Tile:
        """Return `tl.softmax` of the tile."""
        return self._tl.softmax(self, dim)

    def sum(self, axis: int | None = None, keep_dims: bool = False, dtype: DTypeLike | None = None) -> Tile:
        """Return `tl.sum` of the tile."""
        return self._tl.sum(self, axis, keep_dims, dtype)

    def __getattr__(self, name: str) -> Any:
        known = [n for n in dir(Tile) if not n.startswith("_")]
        raise AttributeError(f"a tile has no attribute {name!r}; {hint(name, sorted(known))}", name=name)

    def __repr__(self) -> str:
        what = "constant" if self._constant else "tile"
        text = f"<{what} {shape_text(self.shape)} {self.dtype.name}"
        array = self._value.array
        if array is None:
            return text + ">"
        values = np.array2string(array.reshape(self.shape), threshold=8, edgeitems=2, precision=4, separator=", ")
        return f"{text}: {values}>"

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
    __eq__, __ne__ = _binary("eq"), _binary("ne")  # type: ignore[assignment]

    __neg__, __invert__, __abs__ = map(_unary, ("neg", "not", "abs"))

    def __pos__(self) -> Tile:
        return self
