"""Which ranks form which parallel group: arithmetic on an order string, as Megatron-LM does it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from kernbench.errors import ArgumentError

AXES = ("tp", "cp", "ep", "dp", "pp")
ORDER = "tp-cp-ep-dp-pp"


def rank_groups(sizes: Mapping[str, int], axes: str, order: str = ORDER) -> list[list[int]]:
    """Return the groups of ranks that differ only along `axes`.

    Parameters
    ----------
    sizes : mapping
        Size of each axis; one that is left out has size 1.
    axes : str
        Such as "tp", or several: "tp-cp".
    order : str
        All axes, the one whose ranks are next to each other first.

    Returns
    -------
    list of list of int
        Each group ascending, groups by their first rank.

    Raises
    ------
    ArgumentError
        If the order string does not fit the sizes.

    Examples
    --------
    >>> rank_groups({"tp": 2, "dp": 3}, "tp"), rank_groups({"tp": 2, "dp": 3}, "dp")
    ([[0, 1], [2, 3], [4, 5]], [[0, 2, 4], [1, 3, 5]])
    """
    names = check_order(order, sizes)
    wanted = axes.split("-")
    unknown = [axis for axis in wanted if axis not in AXES]
    if unknown:
        raise ArgumentError(f"axes = {axes!r}: {unknown[0]!r} is unknown; known: {', '.join(AXES)}")
    shape = [sizes.get(name, 1) for name in names]
    grid = np.arange(prod(shape)).reshape(shape[::-1]).transpose()
    inside = [i for i, name in enumerate(names) if name in wanted]
    outside = [i for i in range(len(names)) if i not in inside]
    size = prod(shape[i] for i in inside)
    groups = grid.transpose(outside[::-1] + inside[::-1]).reshape(-1, size)
    return sorted(groups.tolist())


def check_order(order: str, sizes: Mapping[str, int]) -> list[str]:
    """Return the axes of an order string; raise if one is unknown or twice, or one of size above 1 is missing."""
    names = order.split("-")
    for name in names:
        if name not in AXES:
            raise ArgumentError(f"order = {order!r}: {name!r} is unknown; known: {', '.join(AXES)}")
        if names.count(name) > 1:
            raise ArgumentError(f"order = {order!r}: {name!r} stands there twice")
    for name, size in sizes.items():
        if size > 1 and name not in names:
            raise ArgumentError(f"order = {order!r}: {name!r} has size {size}, but is not in the order; add it")
    return names
