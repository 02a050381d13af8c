"""load, store and ref: the part of `tl` that accesses memory, by blocks and by pointer tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy as np

from kernbench._dtypes import DType, DTypeLike, as_dtype
from kernbench.components._command import Load, Ref, Run, Store, Value
from kernbench.errors import KernelError
from kernbench.triton_emu._blocks import Block
from kernbench.triton_emu._handles import Pointer, PointerTile, Tile, shape_text
from kernbench.triton_emu._places import Affine, Inside, Pieces, Runs, Shape
from kernbench.triton_emu._program import Program, broadcast_shape, shape_of


@dataclass(frozen=True)
class Access:
    """Distinct element offsets of a pointer tile, as runs of consecutive ones.

    `runs` holds (first offset, elements, requested elements) ascending; `masked` says whether a mask excludes some.
    The mask and the index of each requested element among the distinct ones are needed with data only: `_arrays`
    computes both on demand.
    """

    runs: Runs
    distinct: int
    masked: bool
    _arrays: Callable[[], tuple[np.ndarray | None, np.ndarray | None]]

    @classmethod
    def of(cls, offsets: np.ndarray, mask: np.ndarray | None) -> Access:
        """Access to `offsets` (elements, any shape) where `mask` (same shape; None: everywhere) is set.

        >>> Access.of(np.array([4, 5, 9, 5]), None).runs
        ((4, 2, 3), (9, 1, 1))
        """
        wanted = offsets.astype(np.int64, copy=False).reshape(-1)
        flat = None if mask is None else mask.reshape(-1)
        if flat is not None:
            wanted = wanted[flat]
        if not wanted.size:
            return cls((), 0, flat is not None, lambda: (None, flat))
        steps = np.diff(wanted)
        if (steps > 0).all():
            distinct, inverse, counts = wanted, None, None
        else:
            distinct, inverse, counts = _distinct(wanted)
            steps = np.diff(distinct)
        first = np.concatenate(([0], np.flatnonzero(steps != 1) + 1))
        sizes = np.diff(np.append(first, distinct.size))
        asked = sizes if counts is None else np.add.reduceat(counts, first)
        runs = tuple(zip(distinct[first].tolist(), sizes.tolist(), asked.tolist(), strict=True))
        return cls(runs, int(distinct.size), flat is not None, lambda: (inverse, flat))

    @classmethod
    def at_places(cls, places: Affine | Pieces, inside: Inside | None) -> Access | None:
        """As `of`, without arrays; None if arrays are needed."""
        wanted: Affine | Pieces = places
        if inside is not None:
            if not inside.size:
                return cls((), 0, True, lambda: (None, inside.array().reshape(-1)))
            if not isinstance(places, Affine):
                return None
            wanted = places.within(inside)
        runs = wanted.runs()
        if runs is None:
            return None

        def arrays() -> tuple[np.ndarray | None, np.ndarray | None]:
            inverse = None if wanted.ascend else cls.of(wanted.array(), None).inverse
            return inverse, None if inside is None else inside.array().reshape(-1)

        return cls(runs, sum([n for _, n, _ in runs]), inside is not None, arrays)

    @cached_property
    def _made(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        return self._arrays()

    @property
    def inverse(self) -> np.ndarray | None:
        """Index of each requested element among the distinct ones (None: the identity)."""
        return self._made[0]

    @property
    def mask(self) -> np.ndarray | None:
        """Which elements are requested, flat in row-major order (None: all)."""
        return self._made[1]

    def at(self, va: int, itemsize: int) -> tuple[Run, ...]:
        return tuple([Run(va + start * itemsize, n * itemsize, asked * itemsize) for start, n, asked in self.runs])

    def spread(self, distinct: np.ndarray, shape: tuple[int, ...], other: np.ndarray) -> np.ndarray:
        """Build the tile from its distinct elements; masked-off ones are `other`, which broadcasts to `shape`."""
        values = distinct if self.inverse is None else distinct[self.inverse]
        if self.mask is None:
            return values.reshape(shape)
        out = np.array(np.broadcast_to(other, shape), dtype=distinct.dtype)
        out.reshape(-1)[self.mask] = values
        return out

    def gather(self, values: np.ndarray) -> np.ndarray:
        """Return the distinct elements to store; at a repeated address, the last value."""
        flat = values.reshape(-1)
        if self.mask is not None:
            flat = flat[self.mask]
        if self.inverse is None:
            return flat
        out = np.empty(self.distinct, flat.dtype)
        out[self.inverse] = flat
        return out


def _distinct(wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (distinct values ascending, index of each element among them, count of each).

    Dense values are counted, which takes a tenth of the time of sorting.
    """
    low, high = int(wanted.min()), int(wanted.max())
    if high - low >= 8 * wanted.size:
        distinct, inverse, counts = np.unique(wanted, return_inverse=True, return_counts=True)
        return distinct, inverse.reshape(-1), counts
    places = wanted - low
    counts = np.bincount(places)
    found = counts > 0
    return np.flatnonzero(found) + low, (np.cumsum(found) - 1)[places], counts[found]


def load(
    tl: Program,
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Sequence[int] = (),
    padding_option: str = "",
    cache_modifier: str = "",
    eviction_policy: str = "",
    volatile: bool = False,
    *,
    shape: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
) -> Tile:
    """Load a tile into TCM.

    Two forms: a scalar pointer with `shape` loads that many consecutive elements, row by row (one element
    without `shape`); a tile of pointers, or a block pointer, loads the element of each. Each distinct address moves
    once.

    Parameters
    ----------
    pointer : Pointer or PointerTile or int, or the result of `make_block_ptr`
        Source address; a plain integer is a byte address and needs `dtype`.
    mask : Tile or bool, optional
        Elements to load; the mask's values are needed at once.
    other : Tile or number, optional
        Value of masked-off elements; zero by default.
    boundary_check, padding_option : sequence of int, str
        Of a block pointer: the dims whose bounds are checked, and "nan" for NaN instead of zero outside of them.
    cache_modifier, eviction_policy, volatile : object
        Hints of Triton, without effect.
    shape : int or sequence of int, optional
        Shape of the block form.
    dtype : DType or str, optional
        Element type in memory, where it is not the pointer's.

    Returns
    -------
    Tile
        The values, of the shape of the block or of the tile of pointers.

    Raises
    ------
    KernelError
        If shapes do not match, or if mask or offsets depend on values and data is off.
    """
    if isinstance(pointer, Block):
        if mask is not None or other is not None:
            raise KernelError("load: a block pointer takes boundary_check instead of mask and other")
        return pointer.load_checked(boundary_check, padding_option)
    where, otherwise = (None, None) if _holds(mask) else (mask, other)
    if isinstance(pointer, PointerTile):
        if shape is not None:
            raise KernelError(f"load: {pointer!r} has a shape already; shape= goes with a scalar pointer")
        return _load_tile(tl, pointer, where, otherwise, dtype)
    base = as_pointer(tl, "load", pointer, dtype)
    sizes = () if shape is None else shape_of(shape)
    if where is not None:
        return _load_tile(tl, block(tl, base, sizes), where, otherwise, None)
    dt = base.element_ty
    out = Value(sizes, dt)
    nbytes, decode = out.nbytes, partial(dt.decode, shape=sizes)
    tl._submit(Load("load", (), out, decode, 0, "", (Run(base.va, nbytes, nbytes),)))
    return Tile(tl, out)


def store(
    tl: Program,
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Sequence[int] = (),
    cache_modifier: str = "",
    eviction_policy: str = "",
    *,
    shape: int | Sequence[int] | None = None,
    dtype: DTypeLike | None = None,
) -> None:
    """Store a tile to memory, cast to the pointer's element type first if it has another (one simple operation).

    Parameters
    ----------
    pointer : Pointer or PointerTile or int
        Destination: a scalar pointer takes the tile as consecutive elements, a tile of pointers element by element
        (at a repeated address the last one in row-major order wins). A plain integer is a byte address.
    value : Tile or number
        Value to store; broadcast to the shape of a tile of pointers.
    mask : Tile or bool, optional
        Elements to store; the mask's values are needed at once.
    boundary_check : sequence of int
        Of a block pointer: the dims whose bounds are checked.
    cache_modifier, eviction_policy : object
        Hints of Triton, without effect.
    shape : int or sequence of int, optional
        Shape that the block form expects.
    dtype : DType or str, optional
        Element type in memory, where it is not the pointer's (or, of a plain address, the value's).

    Raises
    ------
    KernelError
        If shapes do not match, or if mask or offsets depend on values and data is off.
    """
    tile = tl._constant(value)
    tl._own(tile)
    if isinstance(pointer, Block):
        pointer.store_checked(tile, boundary_check)
        return
    where = None if _holds(mask) else mask
    if isinstance(pointer, PointerTile):
        if shape is not None:
            raise KernelError(f"store: {pointer!r} has a shape already; shape= goes with a scalar pointer")
        _store_tile(tl, pointer, tile, where, dtype)
        return
    base = as_pointer(tl, "store", pointer, tile.dtype if dtype is None and not isinstance(pointer, Pointer) else dtype)
    if shape is not None and shape_of(shape) != tile.shape:
        raise KernelError(f"store: {tile!r} does not have the shape {shape_of(shape)} that shape= asks for")
    if where is not None:
        _store_tile(tl, block(tl, base, tile.shape), tile, where, None)
        return
    if tile.dtype is not base.element_ty:
        tile = tl.cast(tile, base.element_ty)
    source, nbytes = tile._value, tile._value.nbytes
    tl._submit(Store("store", (source,), None, base.element_ty.encode, 0, "", (Run(base.va, nbytes, nbytes),)))


def ref(tl: Program, pointer: Any, shape: int | Sequence[int], dtype: DTypeLike | None = None) -> Ref:
    """Return an operand of a composite that stays in memory, row by row, and is streamed from there."""
    base = as_pointer(tl, "ref", pointer, dtype)
    return Ref(base.va, shape_of(shape), base.element_ty)


def _holds(mask: Any) -> bool:
    """Whether a mask is a constant scalar that is true."""
    return mask is True or (isinstance(mask, Tile) and mask._constant and not mask.shape and bool(mask))


def as_pointer(tl: Program, name: str, pointer: Any, dtype: DTypeLike | None) -> Pointer:
    if type(pointer) is Pointer:
        return pointer if dtype is None else Pointer(pointer.va, as_dtype(dtype))
    if isinstance(pointer, (int, np.integer)) and not isinstance(pointer, bool):
        if dtype is None:
            raise KernelError(f"{name}: {int(pointer):#x} is a plain byte address; give the element type with dtype=")
        return Pointer(int(pointer), as_dtype(dtype))
    if isinstance(pointer, PointerTile):
        raise KernelError(f"{name} takes a scalar pointer, got {pointer!r}")
    raise KernelError(f"{name}: expected a pointer, got {pointer!r} ({type(pointer).__name__})")


def block(tl: Program, base: Pointer, shape: Shape) -> PointerTile:
    return PointerTile(base, tl.reshape(tl.arange(0, prod(shape)), *(shape or (1,)))._view(shape))


def access_of(tl: Program, name: str, pointers: PointerTile, mask: Any) -> Access:
    """Return the access of a pointer tile. Blocks for offsets and mask if they are computed values."""
    offsets = pointers.offsets
    tl._own(offsets, mask)
    if mask is not None:
        known = tl._constant(mask)
        if broadcast_shape(f"{name}: mask", offsets.shape, known.shape) != offsets.shape:
            raise KernelError(f"{name}: the mask {known!r} does not broadcast to {pointers!r}")
        inside = known._places
        if isinstance(inside, Inside):
            inside = inside.spread(offsets.shape)
            if inside.size < prod(inside.shape):
                return _accessed(offsets, inside)
        else:
            wanted = known._array() != 0
            if not wanted.all():
                return Access.of(offsets._array(), np.broadcast_to(wanted, offsets.shape))
    if offsets._access is None:
        offsets._access = _accessed(offsets, None)
    return offsets._access


def _accessed(offsets: Tile, inside: Inside | None) -> Access:
    places = offsets._places
    found = Access.at_places(places, inside) if isinstance(places, (Affine, Pieces)) else None
    return Access.of(offsets._array(), None if inside is None else inside.array()) if found is None else found


def _load_tile(tl: Program, pointers: PointerTile, mask: Any, other: Any, dtype: DTypeLike | None) -> Tile:
    dt = pointers.element_ty if dtype is None else as_dtype(dtype)
    shape = pointers.shape
    if other is not None and mask is None:
        raise KernelError("load: other= is for masked-off elements; give a mask too")
    access = access_of(tl, "load", pointers, mask)
    fill = tl._constant(0 if other is None else other)
    if broadcast_shape("load: other", shape, fill.shape) != shape:
        raise KernelError(f"load: other {fill!r} does not broadcast to {pointers!r}")
    filling = access.masked
    if filling and not fill._constant:
        blank = np.zeros(shape, dt.carrier)
    else:
        fill = tl.cast(fill, dt) if filling else fill
        blank = fill._array() if filling else np.zeros((), dt.carrier)
    if not access.runs:
        loaded = tl._fold(np.broadcast_to(blank, shape), dt)
    else:
        out = Value(shape, dt)

        def compute(raw: np.ndarray) -> np.ndarray:
            return access.spread(dt.decode(raw, -1), shape, blank)

        runs = access.at(pointers.base.va, dt.itemsize)
        tl._submit(Load("load", (), out, compute, 0, "", runs, True))
        loaded = Tile(tl, out)
    if filling and not fill._constant:
        return tl.where(mask, loaded, tl.cast(fill, dt))
    if filling and other is None and tl._data and not loaded._constant:
        assert access.mask is not None
        loaded._undefined = ~access.mask.reshape(shape)
    return loaded


def _store_tile(tl: Program, pointers: PointerTile, value: Tile, mask: Any, dtype: DTypeLike | None) -> None:
    dt: DType = pointers.element_ty if dtype is None else as_dtype(dtype)
    shape = pointers.shape
    if broadcast_shape("store", shape, value.shape) != shape:
        raise KernelError(f"store: {value!r} does not broadcast to {pointers!r}, of shape {shape_text(shape)}")
    access = access_of(tl, "store", pointers, mask)
    if not access.runs:
        return
    stored = value if value.dtype is dt else tl.cast(value, dt)
    seen = value.shape

    def compute(array: np.ndarray) -> np.ndarray:
        return dt.encode(access.gather(np.broadcast_to(array.reshape(seen), shape)))

    runs = access.at(pointers.base.va, dt.itemsize)
    tl._submit(Store("store", (stored._value,), None, compute, 0, "", runs, True))
