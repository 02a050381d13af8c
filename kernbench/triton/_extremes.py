"""The largest and smallest of values, with NaN as Triton has it: ignored, or kept with `PropagateNan.ALL`."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench import _dtypes as dtypes
from kernbench.triton._tensor import tensor
from kernbench.triton._types import wide
from kernbench.triton_emu._handles import Tile
from kernbench.triton_emu._program import broadcast as broadcast_shapes

if TYPE_CHECKING:
    from kernbench.triton._language import Language


def maximum(lang: Language, x: Any, y: Any, propagate_nan: Any = None) -> Any:
    """Return the larger of each two; where one is NaN the other, or NaN with `PropagateNan.ALL`."""
    if not (isinstance(x, tensor) or isinstance(y, tensor)):
        return lang.to_tensor(builtins.max(x, y))
    return _propagating(lang, "maximum", np.maximum, (x, y)) if propagate_nan else lang._binary("maximum", x, y)


def minimum(lang: Language, x: Any, y: Any, propagate_nan: Any = None) -> Any:
    """Return the smaller of each two; where one is NaN the other, or NaN with `PropagateNan.ALL`."""
    if not (isinstance(x, tensor) or isinstance(y, tensor)):
        return lang.to_tensor(builtins.min(x, y))
    return _propagating(lang, "minimum", np.minimum, (x, y)) if propagate_nan else lang._binary("minimum", x, y)


def clamp(lang: Language, x: Any, min: Any, max: Any, propagate_nan: Any = None) -> Any:
    """Return x limited to a range; where x is NaN the lower bound, or NaN with `PropagateNan.ALL`."""
    if propagate_nan:
        return _propagating(lang, "clamp", lambda v, lo, hi: np.minimum(np.maximum(v, lo), hi), (x, min, max))
    return lang._wrap(lang._tl.clamp(lang._tile(x), lang._native(min), lang._native(max)))


def _propagating(lang: Language, name: str, function: Callable[..., np.ndarray], operands: Sequence[Any]) -> Any:
    """Return what the operation of the kernel language costs, with values of numpy's, which keep NaN."""
    tiles, common = lang._tl._unify(name, [lang._native(x) for x in operands])
    shape = broadcast_shapes(name, *(tile.shape for tile in tiles))
    kinds = ("simple",) * (len(tiles) - 1)
    return lang._wrap(lang._tl._by_element(name, kinds, function, tiles, shape, common, common))


def max(
    lang: Language, input: Any, axis: Any = None, return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False, propagate_nan: Any = None,
) -> Any:  # fmt: skip
    """Return the largest value, and with `return_indices` its place."""
    function = np.maximum.reduce if propagate_nan else np.fmax.reduce
    return _extreme(lang, "max", function, input, axis, return_indices, keep_dims)


def min(
    lang: Language, input: Any, axis: Any = None, return_indices: bool = False,
    return_indices_tie_break_left: bool = True,
    keep_dims: bool = False, propagate_nan: Any = None,
) -> Any:  # fmt: skip
    """Return the smallest value, and with `return_indices` its place."""
    function = np.minimum.reduce if propagate_nan else np.fmin.reduce
    return _extreme(lang, "min", function, input, axis, return_indices, keep_dims)


def _extreme(
    lang: Language, name: str, function: Callable[..., np.ndarray], input: Any, axis: Any, places: bool, keep: bool
) -> Any:
    x = lang._tile(input)
    kind = x.dtype if places else wide(x.dtype)
    value = lang._wrap(lang._tl._reduce(name, function, x, axis, keep, kind))
    return (value, _place(lang, f"arg{name}", x, axis, keep)) if places else value


def _place(lang: Language, name: str, x: Tile, axis: Any, keep: bool) -> Any:
    function = np.argmax if name == "argmax" else np.argmin
    low, high = -math.inf, math.inf

    def find(a: np.ndarray, axis: builtins.tuple[int, ...]) -> np.ndarray:
        if np.issubdtype(a.dtype, np.floating):
            a = np.where(np.isnan(a), low if name == "argmax" else high, a)
        if len(axis) > 1 or keep:
            a = a.reshape(-1) if len(axis) > 1 else a
            return np.asarray(function(a, axis=None if a.ndim == 1 and len(axis) > 1 else axis[0]))
        return np.asarray(function(a, axis=axis[0]))

    if axis is None and len(x.shape) > 1 and not keep:
        x = x.reshape(int(np.prod(x.shape)))
    shape_axis = axis if axis is not None else (0 if not keep else None)
    return lang._wrap(lang._tl._reduce(name, find, x, shape_axis, keep, dtypes.int32))


def argmax(lang: Language, input: Any, axis: Any, tie_break_left: bool = True, keep_dims: bool = False) -> Any:
    """Return the place of the largest value."""
    return _place(lang, "argmax", lang._tile(input), axis, keep_dims)


def argmin(lang: Language, input: Any, axis: Any, tie_break_left: bool = True, keep_dims: bool = False) -> Any:
    """Return the place of the smallest value."""
    return _place(lang, "argmin", lang._tile(input), axis, keep_dims)
