"""Block pointers and tensor descriptors: matrices in memory that are read and written by blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernbench.errors import KernelError
from kernbench.triton_emu._handles import Tile, pointer_type


class Block:
    """A block of a matrix in memory; offsets and strides are in elements."""

    def __init__(
        self,
        tl: Any,
        base: Any,
        shape: Sequence[Any],
        strides: Sequence[Any],
        offsets: Sequence[Any],
        block_shape: Sequence[Any],
        padding: str = "",
    ) -> None:
        self.tl, self.base, self.padding = tl, base, padding
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
        return self.base.dtype.element_ty

    @property
    def type(self) -> Any:
        return pointer_type(self.dtype)

    def at(self, offsets: Sequence[Any]) -> Block:
        return Block(self.tl, self.base, self.shape, self.strides, offsets, self.block_shape, self.padding)

    def pointers(self, checked: Sequence[int]) -> tuple[Any, Any]:
        """Return the pointers, and the mask of those inside the bounds of the dims `checked` (None without any)."""
        tl, rank = self.tl, len(self.block_shape)
        places: Any = None
        mask: Any = None
        for dim in range(rank):
            key = tuple(slice(None) if i == dim else None for i in range(rank))
            line = (tl.arange(0, self.block_shape[dim]) + self.offsets[dim])[key]
            step = line.to("int64") * self.strides[dim]
            places = step if places is None else places + step
            if dim in checked:
                inside = (line >= 0) & (line < self.shape[dim])
                mask = inside if mask is None else mask & inside
        return self.base + places, mask

    def load_checked(self, checked: Sequence[int], padding: str) -> Tile:
        """Load the block; elements outside the bounds are 0, or NaN with the padding "nan"."""
        pointers, mask = self.pointers(checked)
        other = None if mask is None else float("nan") if padding == "nan" else 0
        return self.tl.load(pointers, mask, other)

    def store_checked(self, value: Any, checked: Sequence[int]) -> None:
        pointers, mask = self.pointers(checked)
        self.tl.store(pointers, value, mask)


class tensor_descriptor(Block):
    """A matrix in memory that is read and written by blocks; elements outside of it read as zero."""

    def __init__(self, tl: Any, base: Any, shape: Any, strides: Any, block_shape: Any, padding: str = "zero") -> None:
        super().__init__(tl, base, shape, strides, [0] * len(shape), block_shape, padding)
        self._all = range(len(self.block_shape))

    def of(self, tl: Any) -> tensor_descriptor:
        """Rebind the descriptor, which the host made, to a program."""
        return tensor_descriptor(tl, self.base, self.shape, self.strides, self.block_shape, self.padding)

    def load(self, offsets: Sequence[Any], *_: Any, **__: Any) -> Any:
        return self.at(offsets).load_checked(self._all, self.padding)

    def store(self, offsets: Sequence[Any], value: Any) -> None:
        block = self.at(offsets)
        block.store_checked(self.tl.reshape(value, *self.block_shape), self._all)

    def _rows(self, x_offsets: Any, y_offset: Any) -> tuple[Any, Any]:
        columns = self.tl.arange(0, self.block_shape[1]) + y_offset
        rows = x_offsets[:, None]
        places = rows.to("int64") * self.strides[0] + columns[None, :] * self.strides[1]
        mask = (rows >= 0) & (rows < self.shape[0]) & (columns >= 0)[None, :] & (columns < self.shape[1])[None, :]
        return self.base + places, mask

    def gather(self, x_offsets: Any, y_offset: Any, *_: Any) -> Any:
        """Load rows `x_offsets` of the matrix, starting at column `y_offset`."""
        pointers, mask = self._rows(x_offsets, y_offset)
        return self.tl.load(pointers, mask, 0)

    def scatter(self, value: Any, x_offsets: Any, y_offset: Any) -> None:
        """Store rows `x_offsets` of the matrix, starting at column `y_offset`."""
        pointers, mask = self._rows(x_offsets, y_offset)
        self.tl.store(pointers, value, mask)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("atomic_"):
            raise AttributeError(f"a tensor descriptor has no attribute {name!r}", name=name)

        def update(offsets: Sequence[Any], value: Any) -> None:
            pointers, mask = self.at(offsets).pointers(self._all)
            getattr(self.tl, name)(pointers, value, mask)

        return update


def make_block_ptr(
    tl: Any, base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any = None
) -> Block:
    """Return a pointer to a block of a matrix, for `tl.load` and `tl.store`; `order` has no effect."""
    return Block(tl, base, shape, strides, offsets, block_shape)


def advance(tl: Any, base: Block, offsets: Sequence[Any]) -> Block:
    """Return the block moved by `offsets` elements along each dim."""
    return base.at([a + b for a, b in zip(base.offsets, offsets, strict=True)])


def make_tensor_descriptor(
    tl: Any, base: Any, shape: Any, strides: Any, block_shape: Any, padding_option: str = "zero", **_: Any
) -> tensor_descriptor:
    """Return a descriptor of a matrix in memory, which is read and written by blocks."""
    return tensor_descriptor(tl, base, shape, strides, block_shape, padding_option)


def load_tensor_descriptor(tl: Any, desc: tensor_descriptor, offsets: Sequence[Any]) -> Any:
    """Load the block of a descriptor at `offsets`."""
    return desc.load(offsets)


def store_tensor_descriptor(tl: Any, desc: tensor_descriptor, offsets: Sequence[Any], value: Any) -> None:
    """Store a block of a descriptor at `offsets`."""
    desc.store(offsets, value)
