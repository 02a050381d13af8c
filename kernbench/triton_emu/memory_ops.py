"""Load, store and ref: the part of `tl` that reaches memory, by the block and by the pointer tile."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from kernbench.components.command import Load, Ref, Run, Store, Value
from kernbench.dtypes import DType, as_dtype
from kernbench.errors import KernelError
from kernbench.triton_emu.handles import Pointer, PointerTile, Shape, Tile, shape_text
from kernbench.triton_emu.program import broadcast, shape_of
from kernbench.triton_emu.runs import Access
from kernbench.triton_emu.vector_ops import DTypeLike, VectorOps


class MemoryOps(VectorOps):
    """Commands between memory and TCM, and operands that stay in memory."""

    def load(
        self,
        pointer: Any,
        mask: Any = None,
        other: Any = None,
        *,
        shape: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        cache_modifier: str = "",
        eviction_policy: str = "",
        volatile: bool = False,
    ) -> Tile:
        """Load a tile into TCM.

        Two forms: a scalar pointer with `shape` loads that many consecutive elements, row by row (one element
        without `shape`); a tile of pointers loads the element of each. Each distinct address moves once.

        Parameters
        ----------
        pointer : Pointer or PointerTile or int
            Where from; a plain integer is a byte address and needs `dtype`.
        mask : Tile or bool, optional
            Which elements to load; its values are needed at once.
        other : Tile or number, optional
            What masked-off elements are; zero unless given.
        shape : int or sequence of int, optional
            Shape of the block form.
        dtype : DType or str, optional
            Element type in memory, where it is not the pointer's.
        cache_modifier, eviction_policy, volatile : object
            Hints of Triton, without effect.

        Returns
        -------
        Tile
            The values, of the shape of the block or of the tile of pointers.

        Raises
        ------
        KernelError
            If shapes do not fit, or if mask or offsets depend on values and data is off.
        """
        if isinstance(pointer, PointerTile):
            if shape is not None:
                raise KernelError(f"load: {pointer!r} has a shape already; shape= goes with a scalar pointer")
            return self._load_tile(pointer, mask, other, dtype)
        base = self._pointer("load", pointer, dtype)
        sizes = () if shape is None else shape_of(shape)
        if mask is not None:
            return self._load_tile(self._block(base, sizes), mask, other, None)
        dt = base.dtype
        out = Value(sizes, dt)
        nbytes = out.nbytes
        compute = None
        if self._data:

            def compute(raw: np.ndarray) -> np.ndarray:
                return raw.view(dt.numpy).astype(dt.carrier, copy=False).reshape(sizes)

        self._backend.submit(Load("load", (), out, compute, 0, "", (Run(base.va, nbytes, nbytes),)))
        return self._tile(out)

    def store(
        self,
        pointer: Any,
        value: Any,
        mask: Any = None,
        *,
        shape: int | Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        cache_modifier: str = "",
        eviction_policy: str = "",
    ) -> None:
        """Store a tile to memory, cast to the pointer's element type first if it has another (one simple operation).

        Parameters
        ----------
        pointer : Pointer or PointerTile or int
            Where to: a scalar pointer takes the tile as consecutive elements, a tile of pointers element by element
            (of several at one address the last one, row by row, stays). A plain integer is a byte address.
        value : Tile or number
            What to store; broadcast to the shape of a tile of pointers.
        mask : Tile or bool, optional
            Which elements to store; its values are needed at once.
        shape : int or sequence of int, optional
            Shape that the block form expects.
        dtype : DType or str, optional
            Element type in memory, where it is not the pointer's (or, of a plain address, the value's).
        cache_modifier, eviction_policy : object
            Hints of Triton, without effect.

        Raises
        ------
        KernelError
            If shapes do not fit, or if mask or offsets depend on values and data is off.
        """
        value = self._constant(value)
        self._own(value)
        if isinstance(pointer, PointerTile):
            if shape is not None:
                raise KernelError(f"store: {pointer!r} has a shape already; shape= goes with a scalar pointer")
            self._store_tile(pointer, value, mask, dtype)
            return
        if dtype is None and not isinstance(pointer, Pointer):
            dtype = value.dtype
        base = self._pointer("store", pointer, dtype)
        if shape is not None and shape_of(shape) != value.shape:
            raise KernelError(f"store: {value!r} does not have the shape {shape_of(shape)} that shape= asks for")
        if mask is not None:
            self._store_tile(self._block(base, value.shape), value, mask, None)
            return
        if value.dtype is not base.dtype:
            value = self.cast(value, base.dtype)
        dt, source = base.dtype, value._value
        nbytes = source.nbytes
        compute = None
        if self._data:

            def compute(array: np.ndarray) -> np.ndarray:
                return np.ascontiguousarray(array.astype(dt.numpy, copy=False)).reshape(-1).view(np.uint8)

        self._backend.submit(Store("store", (source,), None, compute, 0, "", (Run(base.va, nbytes, nbytes),)))

    def ref(self, pointer: Any, shape: int | Sequence[int], dtype: DTypeLike | None = None) -> Ref:
        """Return an operand of a composite that stays in memory, row by row, and is streamed from there."""
        base = self._pointer("ref", pointer, dtype)
        return Ref(base.va, shape_of(shape), base.dtype)

    def _pointer(self, name: str, pointer: Any, dtype: DTypeLike | None) -> Pointer:
        if type(pointer) is Pointer:
            return pointer if dtype is None else Pointer(pointer.va, as_dtype(dtype))
        if isinstance(pointer, (int, np.integer)) and not isinstance(pointer, bool):
            if dtype is None:
                raise KernelError(f"{name}: {int(pointer):#x} is a plain byte address; say what lies there with dtype=")
            return Pointer(int(pointer), as_dtype(dtype))
        if isinstance(pointer, PointerTile):
            raise KernelError(f"{name} takes a scalar pointer, got {pointer!r}")
        raise KernelError(f"{name}: expected a pointer, got {pointer!r} ({type(pointer).__name__})")

    def _block(self, base: Pointer, shape: Shape) -> PointerTile:
        return PointerTile(base, self.reshape(self.arange(0, prod(shape)), *(shape or (1,)))._view(shape))

    def _access(self, name: str, pointers: PointerTile, mask: Any) -> Access:
        """Return which elements are meant. Blocks for offsets and mask where they are computed values."""
        offsets = pointers.offsets
        self._own(offsets, mask)
        if mask is not None:
            mask = self._constant(mask)
            if broadcast(f"{name}: mask", offsets.shape, mask.shape) != offsets.shape:
                raise KernelError(f"{name}: the mask {mask!r} does not broadcast to {pointers!r}")
            wanted = mask._array() != 0
            if not wanted.all():
                return Access.of(offsets._array(), np.broadcast_to(wanted, offsets.shape))
        if offsets._access is None:
            offsets._access = Access.of(offsets._array(), None)
        return offsets._access

    def _load_tile(self, pointers: PointerTile, mask: Any, other: Any, dtype: DTypeLike | None) -> Tile:
        dt = pointers.dtype if dtype is None else as_dtype(dtype)
        shape = pointers.shape
        if other is not None and mask is None:
            raise KernelError("load: other= is for masked-off elements; give a mask too")
        access = self._access("load", pointers, mask)
        fill = self._constant(0 if other is None else other)
        if broadcast("load: other", shape, fill.shape) != shape:
            raise KernelError(f"load: other {fill!r} does not broadcast to {pointers!r}")
        filling = access.mask is not None
        if filling and not fill._constant:
            blank = np.zeros(shape, dt.carrier)
        else:
            fill = self.cast(fill, dt) if filling else fill
            filled = fill._value.array
            assert filled is not None or not filling
            blank = np.zeros((), dt.carrier) if filled is None else filled
        if not access.runs:
            loaded = self._fold(np.array(np.broadcast_to(blank, shape)), dt)
        else:
            out = Value(shape, dt)
            compute = None
            if self._data:

                def compute(raw: np.ndarray) -> np.ndarray:
                    return access.spread(raw.view(dt.numpy).astype(dt.carrier, copy=False), shape, blank)

            runs = access.at(pointers.base.va, dt.itemsize)
            self._backend.submit(Load("load", (), out, compute, 0, "", runs, True))
            loaded = self._tile(out)
        if filling and not fill._constant:
            return self.where(mask, loaded, self.cast(fill, dt))
        return loaded

    def _store_tile(self, pointers: PointerTile, value: Tile, mask: Any, dtype: DTypeLike | None) -> None:
        dt: DType = pointers.dtype if dtype is None else as_dtype(dtype)
        shape = pointers.shape
        if broadcast("store", shape, value.shape) != shape:
            raise KernelError(f"store: {value!r} does not broadcast to {pointers!r}, of shape {shape_text(shape)}")
        access = self._access("store", pointers, mask)
        if not access.runs:
            return
        if value.dtype is not dt:
            value = self.cast(value, dt)
        compute = None
        if self._data:
            seen = value.shape

            def compute(array: np.ndarray) -> np.ndarray:
                values = access.gather(np.broadcast_to(array.reshape(seen), shape)).astype(dt.numpy)
                return np.ascontiguousarray(values).view(np.uint8)

        runs = access.at(pointers.base.va, dt.itemsize)
        self._backend.submit(Store("store", (value._value,), None, compute, 0, "", runs, True))
