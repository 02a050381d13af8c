"""Scans, sorting, selection and random numbers: the part of `tl` that moves values within a tile, on PE_MATH."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from kernbench._dtypes import DType, DTypeLike, float32, int32, uint32, uint64
from kernbench.errors import KernelError
from kernbench.triton_emu._handles import Tile
from kernbench.triton_emu._places import Shape
from kernbench.triton_emu._program import Program, broadcast_shape
from kernbench.triton_emu._promotion import kind, sum_dtype, wide

_PHILOX = {
    "uint32": (0x9E3779B9, 0xBB67AE85, 0xD2511F53, 0xCD9E8D57),
    "uint64": (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, 0xD2E7470EE14C6C93, 0xCA5A826395121157),
}
_ROUND = ("simple",) * 10  # four products, four exclusive ors, two additions
ROUNDS = 10


def _outputs(
    tl: Program,
    name: str,
    kinds: tuple[str, ...],
    function: Callable[..., Sequence[np.ndarray]],
    operands: Sequence[Tile],
    shape: Shape,
    dtypes: Sequence[DType],
    elements: int | None = None,
    fold: bool = True,
) -> tuple[Tile, ...]:
    """Return the results of a function with several: the first command has all of its work, the others none."""
    held: list[np.ndarray] = []

    def result(number: int) -> Callable[..., np.ndarray]:
        def compute(*arrays: np.ndarray) -> np.ndarray:
            if not held:
                held.extend(function(*arrays))
            return held[number]

        return compute

    return tuple(
        tl._vector(name, () if i else kinds, result(i), operands, shape, dtype, None, elements, fold)
        for i, dtype in enumerate(dtypes)
    )


def _applied(tl: Program, combine_fn: Callable[..., Any], tiles: Sequence[Tile]) -> Callable[..., list[np.ndarray]]:
    dtypes = [tile.dtype for tile in tiles]

    def combine(left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> list[np.ndarray]:
        operands = zip((*left, *right), (*dtypes, *dtypes), strict=True)
        found = combine_fn(*[tl._fold(np.asarray(a), dtype) for a, dtype in operands])
        results = found if isinstance(found, (tuple, list)) else (found,)
        if len(results) != len(dtypes):
            raise KernelError(f"combine_fn returns {len(results)} values for {len(dtypes)} inputs; return one for each")
        return [tl.cast(x, dtype)._array() for x, dtype in zip(results, dtypes, strict=True)]

    return combine


def _combined(
    tl: Program,
    name: str,
    input: Any,
    axis: int,
    combine_fn: Callable[..., Any],
    shape_of_result: Callable[[Shape, int], Shape],
    function: Callable[[list[np.ndarray], Callable[..., list[np.ndarray]], int], list[np.ndarray]],
) -> Any:
    tiles = [tl._constant(x) for x in (input if isinstance(input, (tuple, list)) else (input,))]
    shape = tiles[0].shape
    if any(tile.shape != shape for tile in tiles):
        raise KernelError(f"{name}: the inputs have different shapes: {tiles!r}")
    at = tl._axis(name, tiles[0], axis)
    combine = _applied(tl, combine_fn, tiles)
    outer, tl._trace = tl._trace, []
    ones = [np.ones((), tile.dtype.carrier) for tile in tiles]
    combine(ones, ones)
    kinds, tl._trace = (*tl._trace, "reduce"), outer

    def compute(*arrays: np.ndarray) -> list[np.ndarray]:
        return function([np.moveaxis(a.reshape(shape), at, 0) for a in arrays], combine, at)

    dtypes = [tile.dtype for tile in tiles]
    out = _outputs(tl, name, kinds, compute, tiles, shape_of_result(shape, at), dtypes, prod(shape))
    return out if isinstance(input, (tuple, list)) else out[0]


def associative_scan(tl: Program, input: Any, axis: int, combine_fn: Callable[..., Any], reverse: bool = False) -> Any:
    """Return the running results of `combine_fn` along an axis, from its end if `reverse`.

    Parameters
    ----------
    input : Tile or tuple of Tile
        Values to scan; `combine_fn` takes that many accumulated values, then that many new ones, and returns as many.
    axis : int
        The axis.
    combine_fn : callable
        The function; the cost is its operations for every element, and one reduction.
    reverse : bool
        Whether to begin at the end.

    Returns
    -------
    Tile or tuple of Tile
        As `input`.

    Raises
    ------
    KernelError
        If shapes differ, or `combine_fn` returns another number of values.
    """

    def scan(arrays: list[np.ndarray], combine: Callable[..., list[np.ndarray]], at: int) -> list[np.ndarray]:
        steps = [a[::-1] if reverse else a for a in arrays]
        rows = [[a[0] for a in steps]]
        for i in range(1, len(steps[0])):
            rows.append(combine(rows[-1], [a[i] for a in steps]))
        found = [np.stack(column) for column in zip(*rows, strict=True)]
        return [np.moveaxis(a[::-1] if reverse else a, 0, at) for a in found]

    return _combined(tl, "associative_scan", input, axis, combine_fn, lambda shape, _: shape, scan)


def reduce(tl: Program, input: Any, axis: int | None, combine_fn: Callable[..., Any], keep_dims: bool = False) -> Any:
    """Reduce all values along an axis (None: all axes) with `combine_fn`; parameters as of `associative_scan`.

    Returns
    -------
    Tile or tuple of Tile
        As `input`, without the axis unless `keep_dims`.
    """
    first = input[0] if isinstance(input, (tuple, list)) else input
    rank = len(first.shape)
    if axis is None:
        flat = [x.reshape(prod(x.shape)) for x in (input if isinstance(input, (tuple, list)) else (input,))]
        out = reduce(tl, tuple(flat), 0, combine_fn)
        out = tuple(x._view((1,) * rank) for x in out) if keep_dims else out
        return out if isinstance(input, (tuple, list)) else out[0]

    def shape_of_result(shape: Shape, at: int) -> Shape:
        return (*shape[:at], *((1,) if keep_dims else ()), *shape[at + 1 :])

    def fold(arrays: list[np.ndarray], combine: Callable[..., list[np.ndarray]], at: int) -> list[np.ndarray]:
        values = [a[0] for a in arrays]
        for i in range(1, len(arrays[0])):
            values = combine(values, [a[i] for a in arrays])
        return [np.expand_dims(v, at) if keep_dims else v for v in values]

    return _combined(tl, "reduce", input, axis, combine_fn, shape_of_result, fold)


def _cumulative(
    tl: Program, name: str, function: Any, input: Any, axis: int, reverse: bool, dtype: DTypeLike | None
) -> Tile:
    x = tl._constant(input)
    out, at = sum_dtype(x.dtype, dtype), tl._axis(name, x, axis)

    def compute(a: np.ndarray) -> np.ndarray:
        steps = (np.flip(a, at) if reverse else a).astype(out.numpy)
        found: np.ndarray = function(steps, axis=at, dtype=out.numpy).astype(out.carrier)
        return np.flip(found, at) if reverse else found

    return tl._vector(name, ("reduce",), compute, (x,), x.shape, out, out)


def cumsum(tl: Program, input: Any, axis: int = 0, reverse: bool = False, dtype: DTypeLike | None = None) -> Tile:
    """Return the running sum along an axis, of the type of `sum`, rounded at every step; costs a reduction."""
    return _cumulative(tl, "cumsum", np.cumsum, input, axis, reverse, dtype)


def cumprod(tl: Program, input: Any, axis: int = 0, reverse: bool = False, dtype: DTypeLike | None = None) -> Tile:
    """Return the running product along an axis, of the type of `sum`, rounded at every step; costs a reduction."""
    return _cumulative(tl, "cumprod", np.cumprod, input, axis, reverse, dtype)


def sort(tl: Program, x: Any, dim: int | None = None, descending: bool = False) -> Tile:
    """Return the values sorted along the last axis, NaN above all numbers, as in torch: a bitonic network.

    It costs one simple operation for each of its n (n + 1) / 2 stages, where n is log2 of the size.
    """
    return _sorted(tl, "sort", x, None, dim, descending)


def topk(tl: Program, x: Any, k: int, dim: int | None = None, descending: bool = True) -> Tile:
    """Return the k largest values along the last axis (smallest if not `descending`), sorted, at the cost of `sort`.

    Types below 32 bit are cast to f32 or i32 first.

    Raises
    ------
    KernelError
        If there are not k values.
    """
    x = tl._constant(x)
    return _sorted(tl, "topk", tl.cast(x, wide(x.dtype)), index(k), dim, descending)


def _sorted(tl: Program, name: str, x: Any, k: int | None, dim: int | None, descending: bool) -> Tile:
    x = tl._constant(x)
    if not x.shape or tl._axis(name, x, -1 if dim is None else dim) != len(x.shape) - 1:
        raise KernelError(f"{name} works along the last axis of a tile, got dim={dim} of {x!r}")
    size = x.shape[-1]
    if k is not None and not 1 <= k <= size:
        raise KernelError(f"{name}: {k} of {size} values of {x!r} do not exist")
    stages = (size - 1).bit_length()

    def compute(a: np.ndarray) -> np.ndarray:
        found = np.sort(a, axis=-1)
        return (found[..., ::-1] if descending else found)[..., :k]

    shape = (*x.shape[:-1], size if k is None else k)
    kinds = ("simple",) * (stages * (stages + 1) // 2)
    return tl._vector(name, kinds, compute, (x,), shape, x.dtype, None, prod(x.shape))


def flip(tl: Program, x: Any, dim: int | None = None) -> Tile:
    """Reverse the values along an axis (default: the last): one simple operation."""
    x = tl._constant(x)
    at = tl._axis("flip", x, -1 if dim is None else dim)
    return tl._vector("flip", ("simple",), lambda a: np.flip(a, at), (x,), x.shape, x.dtype, None)


def gather(tl: Program, src: Any, index: Any, axis: int) -> Tile:
    """Return the values of `src` at the indices `index` along an axis: one simple operation on each of the result.

    Raises
    ------
    KernelError
        If `index` does not have the shape of `src` except along the axis, or an index is out of range.
    """
    src, index = tl._constant(src), tl._constant(index)
    at = tl._axis("gather", src, axis)
    if index.dtype.is_floating_point or len(index.shape) != len(src.shape):
        raise KernelError(f"gather: index is an integer tile of the rank of {src!r}, got {index!r}")
    if any(a != b for i, (a, b) in enumerate(zip(index.shape, src.shape, strict=True)) if i != at):
        raise KernelError(f"gather: {index!r} and {src!r} differ in another axis than {axis}")

    def compute(a: np.ndarray, places: np.ndarray) -> np.ndarray:
        if places.min() < 0 or places.max() >= a.shape[at]:
            raise KernelError(
                f"gather: places {places.min()} to {places.max()} of axis {axis}, which has {a.shape[at]}"
            )
        return np.take_along_axis(a, places.astype(np.int64), at)

    return tl._vector("gather", ("simple",), compute, (src, index), index.shape, src.dtype, None)


def join(tl: Program, a: Any, b: Any) -> Tile:
    """Stack two tiles along a new last axis of size 2: one simple operation on each value."""
    (x, y), dtype = tl._unify("join", (a, b))
    shape = broadcast_shape("join", x.shape, y.shape)

    def compute(*arrays: np.ndarray) -> np.ndarray:
        return np.stack([np.broadcast_to(array, shape) for array in arrays], axis=-1)

    return tl._vector("join", ("simple",), compute, (x, y), (*shape, 2), dtype, dtype)


def split(tl: Program, a: Any) -> tuple[Tile, Tile]:
    """Return the two halves of a last axis of size 2: one simple operation on each value.

    Raises
    ------
    KernelError
        If the last axis has another size.
    """
    x = tl._constant(a)
    if not x.shape or x.shape[-1] != 2:
        raise KernelError(f"split takes a tile whose last axis has the size 2, got {x!r}")
    shape = x.shape[:-1]
    low, high = (
        tl._vector("split", ("simple",), lambda a, i=i: a[..., i], (x,), shape, x.dtype, None) for i in range(2)
    )
    return low, high


def interleave(tl: Program, a: Any, b: Any) -> Tile:
    """Interleave two tiles along the last axis, at the cost of `join`."""
    joined = join(tl, a, b)
    return joined if len(joined.shape) == 1 else joined._view((*joined.shape[:-2], 2 * joined.shape[-2]))


def cat(tl: Program, input: Any, other: Any, can_reorder: bool = False, dim: int = 0) -> Tile:
    """Concatenate two tiles along an axis: one simple operation on each value."""
    (x, y), dtype = tl._unify("cat", (tl._constant(input), tl._constant(other)))
    shape = list(x.shape)
    shape[dim] += y.shape[dim]

    def joined(*arrays: np.ndarray) -> np.ndarray:
        return np.concatenate(arrays, axis=dim)

    return tl._vector("cat", ("simple",), joined, (x, y), tuple(shape), dtype, dtype)


def histogram(tl: Program, input: Any, num_bins: int, mask: Any = None) -> Tile:
    """Count the integers from 0 to `num_bins` - 1, as i32: one reduction."""
    tiles = [tl._constant(x) for x in (input, mask) if x is not None]
    bins = index(num_bins)

    def count(a: np.ndarray, wanted: np.ndarray | None = None) -> np.ndarray:
        kept = a.reshape(-1) if wanted is None else a[np.broadcast_to(wanted, a.shape)]
        return np.bincount(kept[(kept >= 0) & (kept < bins)], minlength=bins)

    return tl._vector("histogram", ("reduce",), count, tiles, (bins,), int32, None, prod(tiles[0].shape))


def swizzle2d(tl: Program, i: Any, j: Any, size_i: Any, size_j: Any, size_g: Any) -> tuple[Any, Any]:
    """Return the row and column of a row-major position when rows are visited in groups of `size_g`."""
    place = i * size_j + j
    in_group = size_g * size_j
    first = place // in_group * size_g
    rows = tl.minimum(size_i - first, size_g)
    return first + place % in_group % rows, place % in_group // rows


# --- random numbers: Philox, with the values of Triton


def _umulhi(a: int, b: np.ndarray) -> np.ndarray:
    if b.dtype == np.uint32:
        return (b.astype(np.uint64) * np.uint64(a) >> np.uint64(32)).astype(np.uint32)
    low, high, half = np.uint64(a & 0xFFFFFFFF), np.uint64(a >> 32), np.uint64(32)
    b_low, b_high = b & np.uint64(0xFFFFFFFF), b >> half
    middle = b_low * high + (b_low * low >> half)
    other = (middle & np.uint64(0xFFFFFFFF)) + b_high * low
    return b_high * high + (middle >> half) + (other >> half)


def _philox(seed: np.ndarray, words: Sequence[np.ndarray], rounds: int) -> list[np.ndarray]:
    """Four words of Philox, of u32 or u64 as `words` are."""
    word = words[0].dtype.type
    key_a, key_b, a, b = _PHILOX[words[0].dtype.name]
    c0, c1, c2, c3 = words
    whole = seed.astype(np.uint64)
    k0, k1 = (whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)) if word is np.uint32 else (whole, whole * 0)
    k0, k1 = k0.astype(word), k1.astype(word)
    for _ in range(rounds):
        c0, c1, c2, c3 = _umulhi(b, c2) ^ c1 ^ k0, word(b) * c2, _umulhi(a, c0) ^ c3 ^ k1, word(a) * c0
        k0, k1 = k0 + word(key_a), k1 + word(key_b)
    return [c0, c1, c2, c3]


def _words(seed: np.ndarray, offset: np.ndarray, rounds: int) -> list[np.ndarray]:
    low = offset.astype(np.uint32)
    high = (offset.astype(np.int64) >> 32).astype(np.uint32) if offset.dtype.itemsize > 4 else low * np.uint32(0)
    return _philox(seed, (low, high, low * np.uint32(0), low * np.uint32(0)), rounds)


def _uniform(words: np.ndarray) -> np.ndarray:
    x = words.view(np.int32)
    return np.where(x < 0, ~x, x).astype(np.float32) * np.float32(4.6566127342e-10)


def _normal(u1: np.ndarray, u2: np.ndarray) -> np.ndarray:
    radius = np.sqrt(np.float32(-2.0) * np.log(np.maximum(np.float32(1.0e-7), u1)))
    return radius * np.cos(np.float32(6.283185307179586) * u2)


def _rounds(name: str, n_rounds: Any) -> int:
    rounds = index(n_rounds) if hasattr(n_rounds, "__index__") else -1
    if rounds < 0:
        raise KernelError(
            f"tl.{name}: n_rounds = {n_rounds!r} must be a whole number >= 0; Triton's default is {ROUNDS}"
        )
    return rounds


def _random(
    tl: Program,
    name: str,
    seed: Any,
    offset: Any,
    n_rounds: int,
    kinds: tuple[str, ...],
    function: Callable[[list[np.ndarray]], list[np.ndarray]],
    dtypes: Sequence[DType],
) -> tuple[Tile, ...]:
    seed, offset = tl._constant(seed), tl._constant(offset)
    if seed.shape or kind(seed.dtype) != 1 or kind(offset.dtype) != 1:
        raise KernelError(f"tl.{name} takes an integer seed and integer offsets, got {seed!r} and {offset!r}")
    rounds = _rounds(name, n_rounds)

    def compute(s: np.ndarray, o: np.ndarray) -> list[np.ndarray]:
        return function(_words(s.reshape(()), o, rounds))

    # Never folded: the device computes random numbers although seed and offsets are known.
    return _outputs(tl, name, _ROUND * rounds + kinds, compute, (seed, offset), offset.shape, dtypes, fold=False)


def randint(tl: Program, seed: Any, offset: Any, n_rounds: int = ROUNDS) -> Tile:
    """Return random u32: ten simple operations per round of Philox."""
    return _random(tl, "randint", seed, offset, n_rounds, (), lambda w: w[:1], (uint32,))[0]


def randint4x(tl: Program, seed: Any, offset: Any, n_rounds: int = ROUNDS) -> tuple[Tile, ...]:
    """Return four tiles of random u32 at the cost of one."""
    return _random(tl, "randint4x", seed, offset, n_rounds, (), lambda w: w, (uint32,) * 4)


def rand(tl: Program, seed: Any, offset: Any, n_rounds: int = ROUNDS) -> Tile:
    """Return random f32 between 0 and 1: `randint` and three simple operations."""
    kinds = ("simple",) * 3
    return _random(tl, "rand", seed, offset, n_rounds, kinds, lambda w: [_uniform(w[0])], (float32,))[0]


def randn(tl: Program, seed: Any, offset: Any, n_rounds: int = ROUNDS) -> Tile:
    """Return standard normal f32: `randint`, ten simple operations, log, sqrt and cos."""
    kinds = ("simple",) * 10 + ("slow",) * 3
    function = lambda w: [_normal(_uniform(w[0]), _uniform(w[1]))]  # noqa: E731
    return _random(tl, "randn", seed, offset, n_rounds, kinds, function, (float32,))[0]


def rand4x(tl: Program, seed: Any, offsets: Any, n_rounds: int = ROUNDS) -> tuple[Any, ...]:
    """Return four tiles of random f32 between 0 and 1."""
    return tuple(uint_to_uniform_float(tl, x) for x in randint4x(tl, seed, offsets, n_rounds))


def randn4x(tl: Program, seed: Any, offset: Any, n_rounds: int = ROUNDS) -> tuple[Any, ...]:
    """Return four tiles of standard normal f32."""
    u1, u2, u3, u4 = rand4x(tl, seed, offset, n_rounds)
    return (*pair_uniform_to_normal(tl, u1, u2), *pair_uniform_to_normal(tl, u3, u4))


def uint_to_uniform_float(tl: Program, x: Any) -> Any:
    """Map random integers to floats between 0 and 1."""
    is_wide = x.dtype.itemsize == 8
    x = x.to("int64" if is_wide else "int32", bitcast=True)
    return tl.where(x < 0, ~x, x) * (1.0842020432385337e-19 if is_wide else 4.6566127342e-10)


def pair_uniform_to_normal(tl: Program, u1: Any, u2: Any) -> tuple[Any, Any]:
    """Map two uniform floats to two standard normal ones (Box-Muller)."""
    angle = u2 * 6.283185307179586
    radius = tl.sqrt(tl.log(tl.maximum(u1, 1.0e-7)) * -2.0)
    return radius * tl.cos(angle), radius * tl.sin(angle)


def philox(tl: Program, seed: Any, c0: Any, c1: Any, c2: Any, c3: Any, n_rounds: int = ROUNDS) -> tuple[Tile, ...]:
    """Return the four words of Philox of four counters, as u32, or as u64 if the first counter has 64 bits."""
    rounds = _rounds("philox", n_rounds)
    tiles = [tl._constant(x) for x in (c0, c1, c2, c3)]
    dtype = uint64 if tiles[0].dtype.itemsize == 8 else uint32
    shape = broadcast_shape("philox", *(tile.shape for tile in tiles))

    def words(s: np.ndarray, *counters: np.ndarray) -> list[np.ndarray]:
        spread = [np.broadcast_to(c.astype(dtype.numpy), shape) for c in counters]
        return _philox(s.reshape(()), spread, rounds)

    operands = (tl._constant(seed), *tiles)
    return _outputs(tl, "philox", _ROUND * rounds, words, operands, shape, (dtype,) * 4, fold=False)
