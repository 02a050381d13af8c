"""Index tiles that are known without arrays, against the same kernels on arrays: values, runs, memory and errors."""

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.components._command import Run
from kernbench.errors import KernbenchError
from kernbench.kernels.gemm import tiled_gemm
from kernbench.triton_emu._memory_ops import Access
from kernbench.triton_emu._places import Affine, Inside, Pieces
from kernbench.triton_emu.testing import MockMemory
from kernbench.triton_emu.tl_context import TLContext
from tests.triton_emu.recorder import Recorder, program

NUMBERS = (0, 1, 2, 3, 5, 8, 17, -1, -2, -7, 100, 2**31 - 3, -(2**31), 2**32 + 1)
TYPES = ("int32", "int64", "uint32", "int16", "uint8")


class Arrays(TLContext):
    """The language with an array for every constant."""

    def _placed(self, places, dtype, kinds=()):
        return self._fold(places.array().astype(dtype.carrier), dtype)


def shape_from(rng):
    return tuple(rng.choice((1, 2, 3, 4, 6)) for _ in range(rng.randint(1, 3)))


def tile_from(tl, rng, depth):
    """Return an index tile; what is drawn depends on shapes only."""
    if not depth:
        n = rng.choice((1, 2, 3, 4, 6, 12))
        start = rng.choice((0, 0, 1, -3, 40, 2**31 - 13))
        return rng.choice(
            (lambda: tl.arange(start, start + n), lambda: tl.full(shape_from(rng), rng.choice((0, 3, 200)), tl.int32))
        )()
    x = tile_from(tl, rng, depth - 1)
    what = rng.choice(("number", "number", "both", "both", "new axis", "reshape", "cast", "broadcast", "other"))
    if what == "number":
        return rng.choice((lambda n: x + n, lambda n: x - n, lambda n: n - x, lambda n: x * n))(rng.choice(NUMBERS))
    if what == "both":
        y = tile_from(tl, rng, depth - 1)
        if len(x.shape) == len(y.shape) == 1:
            x, y = x[:, None], y[None, :]
        return rng.choice((lambda: x + y, lambda: x - y, lambda: x * y))()
    if what == "new axis":
        return x[tuple(rng.choice(((None, ...), (slice(None), None)))[:1])] if len(x.shape) < 3 else x
    if what == "reshape":
        return x.reshape(rng.choice(((x.numel,), (1, x.numel), (2, -(-x.numel // 2)), (-(-x.numel // 3), 3))))
    if what == "cast":
        return x.to(rng.choice(TYPES))
    if what == "broadcast":
        return tl.broadcast_to(x, (2, *x.shape)) if len(x.shape) < 3 else x
    return rng.choice((lambda: x // 2, lambda: x % 3, lambda: -x, lambda: tl.maximum(x, 4), lambda: tl.flip(x)))()


def mask_from(tl, rng, x):
    """Return a mask for an index tile, or None."""

    def one():
        axis = rng.randrange(len(x.shape))
        line = tl.arange(0, x.shape[axis])[tuple(slice(None) if i == axis else None for i in range(len(x.shape)))]
        compared = rng.choice((line, line * -2 + 5, x))
        bound = rng.choice((-3, 0, 1, 2, 3, 9, 1000))
        return rng.choice(
            (lambda: compared < bound, lambda: compared <= bound, lambda: compared > bound, lambda: bound <= compared)
        )()

    return rng.choice(
        (
            lambda: None,
            one,
            lambda: one() & one(),
            lambda: one() & one() & one(),
            lambda: one() | one(),
            lambda: ~one(),
            lambda: tl.full(x.shape, rng.random() < 0.5, tl.int1),
            lambda: one() & (rng.random() < 0.5),
        )
    )()


def outcome(kind, seed, data):
    """Return what a random kernel gives with a class of the language, as plain values; and whether it had no array."""
    rng = random.Random(seed)
    memory = MockMemory()
    x = np.arange(1 << 10, dtype=np.float32)
    pointer = memory.add("x", x) + rng.choice((0, 300, 1000))
    backend = Recorder(memory, data)
    tl = kind(backend, (0, 0), (1, 1))
    found, known = [], False
    try:
        offsets = tile_from(tl, rng, rng.randint(0, 4))
        mask = mask_from(tl, rng, offsets)
        known = offsets._places is not None and (mask is None or isinstance(mask._places, Inside))
        loaded = tl.load(pointer + offsets, mask)
        tl.store(pointer + offsets, loaded + 1 + offsets * 0, mask)
        tl.atomic_add(pointer + offsets, offsets.to(tl.float32), mask)
        known_values = [x for x in (offsets, mask, loaded) if x is not None and (data or x._constant)]
        found += [(tile.dtype.name, tile.shape, tile.numpy().tolist()) for tile in known_values]
    except KernbenchError as error:
        found.append((type(error).__name__, str(error)))
    return [*found, [command.runs for command in backend.commands], x.tolist()], known


@given(st.integers(0, 1 << 62), st.booleans())
def test_any_kernel_gives_what_it_gives_on_arrays(seed, data):
    found, _ = outcome(TLContext, seed, data)
    expected, _ = outcome(Arrays, seed, data)
    assert found == expected


def test_the_kernels_are_of_both_kinds():
    known = [outcome(TLContext, seed, False)[1] for seed in range(200)]
    assert 50 < sum(known) < 150
    assert not any(outcome(Arrays, seed, False)[1] for seed in range(200))


def affine(rng, shape=None):
    shape = shape or shape_from(rng)
    strides = tuple(rng.choice((0, 1, -1, 2, 3, 4, 6, 7, 12, 24, -24)) for _ in shape)
    return Affine(rng.randint(-50, 50), shape, strides)


def separate(sizes, strides):
    """Return whether a step along each axis goes beyond all that shorter steps reach."""
    steps = sorted((abs(step), n) for n, step in zip(sizes, strides, strict=True) if step and n > 1)
    return all(step > sum(s * (n - 1) for s, n in steps[:i]) for i, (step, _) in enumerate(steps))


def summary(access):
    arrays = (access.inverse, access.mask)
    return access.runs, access.distinct, access.masked, [None if x is None else x.tolist() for x in arrays]


@given(st.integers(0, 1 << 62))
def test_runs_of_affine_places_are_those_of_their_array(seed):
    rng = random.Random(seed)
    places = affine(rng)
    spans = []
    for n in places.shape:
        start, end = sorted((rng.randint(0, n), rng.randint(0, n)))
        spans.append((start, end))
    for inside in (None, Inside(places.shape, tuple(spans))):
        found = Access.at_places(places, inside)
        expected = Access.of(places.array(), None if inside is None else inside.array())
        sizes = places.shape if inside is None else [end - start for start, end in spans]
        assert (found is None) == (bool(expected.runs) and not separate(sizes, places.strides))
        if found is not None:
            assert summary(found) == summary(expected)
    assert places.ends == (places.array().min(), places.array().max())


@given(st.integers(0, 1 << 62))
def test_runs_of_pieces_are_those_of_their_array(seed):
    rng = random.Random(seed)
    height, widths = rng.randint(1, 4), [rng.randint(1, 4) for _ in range(rng.randint(2, 4))]
    parts = [((0, sum(widths[:i])), affine(rng, (height, width))) for i, width in enumerate(widths)]
    pieces = Pieces((height, sum(widths)), tuple(parts))
    np.testing.assert_array_equal(pieces.array(), np.hstack([part.array() for _, part in parts]))
    found = Access.at_places(pieces, None)
    if found is not None:
        assert summary(found) == summary(Access.of(pieces.array(), None))


@given(st.integers(0, 1 << 62))
def test_blocks_that_are_joined_keep_the_order_of_their_elements(seed):
    rng = random.Random(seed)
    blocks, arrays = [], []
    for first in range(0, rng.randint(1, 3) * 1000, 1000):
        block = Affine(first, (rng.randint(1, 5), rng.randint(1, 5)), (rng.choice((5, 7)), 1))
        start = rng.randrange(block.shape[0] * block.shape[1])
        stop = rng.randint(start + 1, block.shape[0] * block.shape[1])
        blocks += block.flat(start, stop)
        arrays.append(block.array().reshape(-1)[start:stop])
    rng.shuffle(blocks)
    joined, array = Pieces.joined(blocks), np.concatenate([x.array().reshape(-1) for x in blocks])
    np.testing.assert_array_equal(np.sort(array), np.concatenate(arrays))
    np.testing.assert_array_equal(joined.array(), array)
    assert summary(Access.at_places(joined, None)) == summary(Access.of(array, None))


@pytest.mark.parametrize(
    ("pieces", "runs"),
    [
        ([Affine(8, (2, 2), (2, 1)), Affine(4, (2, 2), (2, 1))], ((4, 8, 8),)),  # two shards, in the other order
        ([Affine(0, (2, 2), (2, 1)), Affine(5, (2, 2), (0, 1))], ((0, 4, 4), (5, 2, 4))),
        ([Affine(0, (2, 2), (2, 1)), Affine(3, (2, 2), (2, 1))], None),  # one element in both
    ],
)
def test_pieces_that_follow_each_other_are_one_run(pieces, runs):
    found = Access.at_places(Pieces((2, 4), (((0, 0), pieces[0]), ((0, 2), pieces[1]))), None)
    assert (found and found.runs) == runs


def test_a_result_that_wraps_is_an_array():
    tl, *_ = program()
    top = tl.arange(0, 2) + (2**31 - 2)
    assert top._places == Affine(2**31 - 2, (2,), (1,))
    assert (top + 1)._places is None
    assert (top + 1).numpy().tolist() == [2**31 - 1, -(2**31)]
    assert (tl.arange(-1, 1).to(tl.uint32))._places is None
    assert (tl.arange(0, 2).to(tl.uint32))._places is not None


@pytest.mark.parametrize(
    ("mask", "spans"),
    [
        (lambda i, j: i < 3, ((0, 3), (0, 8))),
        (lambda i, j: i <= 3, ((0, 4), (0, 8))),
        (lambda i, j: 2 * j > 9, ((0, 4), (5, 8))),
        (lambda i, j: (j >= 2) & (j < 9) & (i < 1), ((0, 1), (2, 8))),
        (lambda i, j: (j < 5) & (j >= 2), ((0, 4), (2, 5))),
        (lambda i, j: (j < 2) & (j >= 5), ((0, 4), (5, 5))),
        (lambda i, j: -j > -3, ((0, 4), (0, 3))),
        (lambda i, j: i + j < 11, ((0, 4), (0, 8))),
        (lambda i, j: (i < 0) & (j < 5), ((0, 0), (0, 0))),
    ],
)
def test_a_mask_of_a_box_has_no_array(mask, spans):
    tl, backend, src = program(np.zeros(64, np.float16), data=False)
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    made = mask(i, j)
    where = made._places.spread((4, 8))
    np.testing.assert_array_equal(where.array(), np.broadcast_to(made.numpy(), (4, 8)))
    assert where.spans == spans
    tl.load(src + (i * 8 + j), made)
    rows, columns = (end - start for start, end in spans)
    assert sum(run.nbytes for command in backend.commands for run in command.runs) == 2 * rows * columns


@pytest.mark.parametrize("n", [1, 4])
def test_a_mask_of_nothing_stays_one_under_another_shape(n):
    tl, backend, src = program(np.zeros(4, np.float16))
    nothing = (tl.arange(0, n) < 0)[:, None].reshape(n)
    assert nothing._places is not None
    assert not nothing.numpy().any()
    tl.load(src + tl.arange(0, n), nothing)
    assert not backend.commands


def test_a_mask_of_another_shape_is_an_array():
    tl, *_ = program(data=False)
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    assert (i + j < 10)._places is None
    assert (i + j < 11)._places is not None
    assert ((i < 2) | (j < 2))._places is None


def peak_of(kernel, *args, data=False):
    """Return the most bytes of objects and arrays that a kernel has at a time."""
    tl, backend, *pointers = program(*args, data=data)
    tracemalloc.start()
    try:
        kernel(*pointers, tl=tl)
        return tracemalloc.get_traced_memory()[1], backend
    finally:
        tracemalloc.stop()


def test_a_rectangle_takes_no_memory_of_its_size():
    def kernel(x, *, tl):
        i, j = tl.arange(0, 512)[:, None], tl.arange(0, 1024)[None, :]
        pointers = x + (i * 1024 + j)
        for step in range(4):
            tl.load(pointers + step, mask=(i < 300) & (j < 1024 - step))

    def scattered(x, *, tl):
        i, j = tl.arange(0, 512)[:, None], tl.arange(0, 1024)[None, :]
        tl.load(x + (i * 1024 + j) // 1)

    x = np.zeros((513, 1024), np.float16)
    known, backend = peak_of(kernel, x)
    assert known < 512 * 1024
    assert [len(command.runs) for command in backend.commands] == [1, 300, 300, 300]
    made, backend = peak_of(scattered, x)
    assert made > 8 * 512 * 1024
    assert len(backend.commands[0].runs) == 1


def test_a_tiled_product_without_values_makes_no_arrays():
    def arrays(block):
        a = np.zeros((256, 256), np.float16)
        return peak_of(lambda a, b, c, tl: tiled_gemm(a, b, c, 256, 256, 256, block, block, block, tl=tl), a, a, a)[0]

    assert arrays(256) < 256 * 256  # less than a byte an element: runs and commands


def test_values_come_in_the_order_of_the_tile():
    x = np.arange(24, dtype=np.float32)
    tl, backend, src = program(x)
    pieces = Pieces((2, 4), (((0, 0), Affine(8, (2, 2), (2, 1))), ((0, 2), Affine(4, (2, 2), (2, 1)))))
    tile = tl.load(src + tl.constant(pieces))
    np.testing.assert_array_equal(tile.numpy(), [[8, 9, 4, 5], [10, 11, 6, 7]])
    assert backend.commands[0].runs == (Run(src.va + 16, 32, 32),)
    tl.store(src + tl.constant(pieces), tile * 10)
    np.testing.assert_array_equal(x[4:12], [40, 50, 60, 70, 80, 90, 100, 110])
    np.testing.assert_array_equal((tl.constant(pieces) + 1).numpy(), [[9, 10, 5, 6], [11, 12, 7, 8]])
    np.testing.assert_array_equal(tl.constant(pieces).reshape(8).numpy(), [8, 9, 4, 5, 10, 11, 6, 7])
