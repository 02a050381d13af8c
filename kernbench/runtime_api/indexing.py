"""What `tensor[key]` selects, where only blocks can be selected."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from kernbench.errors import quote


def parse(key: Any, shape: Sequence[int]) -> tuple[tuple[slice, ...], list[int], set[int]]:
    """Return what `key` selects of an array: a slice for every dim, the result's shape, and the dims it drops.

    Raises
    ------
    IndexError
        If it selects anything but a block.
    """
    keys = list(key) if isinstance(key, tuple) else [key]
    taken = sum(k is not None and k is not Ellipsis for k in keys)
    if taken > len(shape):
        raise IndexError(f"too many indices for tensor of dimension {len(shape)}")
    rest = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
    keys[rest : rest + 1] = [slice(None)] * (len(shape) - taken)
    box: list[slice] = []
    sizes: list[int] = []
    dropped: set[int] = set()
    for k in keys:
        dim = len(box)
        if k is None:
            sizes.append(1)
        elif isinstance(k, slice):
            start, stop, step = k.indices(shape[dim])
            if step != 1:
                raise IndexError(f"step {step} in dim {dim}: a part of a device tensor has step 1")
            box.append(slice(start, max(start, stop)))
            sizes.append(max(start, stop) - start)
        else:
            at, size = _integer(k), shape[dim]
            if not -size <= at < size:
                raise IndexError(f"index {at} is out of bounds for dimension {dim} with size {size}")
            box.append(slice(at % size, at % size + 1))
            dropped.add(dim)
    return tuple(box), sizes, dropped


def _integer(key: Any) -> int:
    try:
        if not isinstance(key, bool):
            return index(key)
    except TypeError:
        pass
    raise IndexError(
        f"index {quote(key)} of type {type(key).__name__}: a device tensor takes integers, slices, None and ...; "
        "read it first: .cpu()[...]"
    )
