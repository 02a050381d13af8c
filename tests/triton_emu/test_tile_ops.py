"""Scans, sorting, selection and random numbers: values, types, cost, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.errors import KernelError
from tests.components.one_pe import pointer, rows, run
from tests.triton_emu.recorder import program

X = np.array([[3, -1, 4, 1], [5, -9, 2, 6]], np.int32)


def loaded(array, **options):
    tl, recorder, at = program(array, **options)
    tile = tl.load(at + tl.arange(0, array.size)).reshape(*array.shape)
    return tl, recorder, tile


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_scans_run_along_the_axis(axis, reverse):
    tl, _, x = loaded(X)
    turned = np.flip(X, axis) if reverse else X
    for found, expected in (
        (tl.cumsum(x, axis, reverse), np.cumsum(turned, axis)),
        (tl.cumprod(x, axis, reverse), np.cumprod(turned, axis)),
        (tl.associative_scan(x, axis, tl.maximum, reverse), np.maximum.accumulate(turned, axis)),
    ):
        np.testing.assert_array_equal(found.numpy(), np.flip(expected, axis) if reverse else expected)


def test_a_scan_of_several_values():
    tl, _, x = loaded(X)

    def larger(value, place, other, at):
        return tl.where(other > value, other, value), tl.where(other > value, at, place)

    i = tl.broadcast_to(tl.arange(0, 4)[None, :], 2, 4)
    value, place = tl.associative_scan((x, i), 1, larger)
    np.testing.assert_array_equal(value.numpy(), [[3, 3, 4, 4], [5, 5, 5, 6]])
    np.testing.assert_array_equal(place.numpy(), [[0, 0, 2, 2], [0, 0, 0, 3]])
    best, at = tl.reduce((x, i), 1, larger)
    assert (best.numpy().tolist(), at.numpy().tolist()) == ([4, 6], [2, 3])
    assert tl.reduce(x, None, tl.minimum).item() == -9


def test_a_narrow_scan_rounds_at_every_step():
    tl, _, x = loaded(np.full(4, 2049, np.float16))
    assert tl.cumsum(x).numpy().tolist() == np.cumsum(np.full(4, 2049, np.float16), dtype=np.float16).tolist()
    assert loaded(np.ones(4, np.int8))[2].dtype == tl.int8
    tl, _, x = loaded(np.full(4, 100, np.int8))
    assert (tl.cumsum(x).dtype, tl.cumsum(x).numpy()[-1]) == (tl.int32, 400)


def test_sorting_and_selecting():
    tl, _, x = loaded(X)
    np.testing.assert_array_equal(tl.sort(x).numpy(), np.sort(X))
    np.testing.assert_array_equal(tl.sort(x, descending=True).numpy(), np.sort(X)[:, ::-1])
    np.testing.assert_array_equal(tl.topk(x, 2).numpy(), [[4, 3], [6, 5]])
    np.testing.assert_array_equal(tl.flip(x, 0).numpy(), X[::-1])
    index = tl.broadcast_to(tl.arange(0, 2)[None, :] * 2 + 1, 2, 2)
    np.testing.assert_array_equal(tl.gather(x, index, 1).numpy(), X[:, [1, 3]])


def test_moving_values():
    tl, _, x = loaded(X)
    both = tl.join(x, x * 10)
    assert both.shape == (2, 4, 2)
    low, high = tl.split(both)
    np.testing.assert_array_equal(low.numpy(), X)
    np.testing.assert_array_equal(high.numpy(), X * 10)
    np.testing.assert_array_equal(tl.interleave(x, -x).numpy()[0], [3, -3, -1, 1, 4, -4, 1, -1])
    assert tl.permute(both, 2, 0, 1).shape == (2, 2, 4)
    np.testing.assert_array_equal(tl.trans(both, (1, 0, 2)).numpy()[:, :, 0], X.T)
    np.testing.assert_array_equal(tl.broadcast_to(tl.sum(x, 0), 3, 4).numpy(), [X.sum(0)] * 3)


def test_philox_has_the_values_of_the_paper():
    # Random123's known answers for philox4x32-10: counter and key of zeros.
    tl, _, zero = loaded(np.zeros(1, np.int32))
    found = [word.numpy()[0] for word in tl.randint4x(0, zero)]
    assert found == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_random_numbers_are_uniform_and_normal():
    tl, _, i = loaded(np.arange(4096, dtype=np.int32))
    uniform, normal = tl.rand(7, i).numpy(), tl.randn(7, i).numpy()
    assert 0 <= uniform.min() < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02
    assert (abs(normal.mean()), abs(normal.std() - 1)) < (0.05, 0.05)
    assert not np.array_equal(uniform, tl.rand(8, i).numpy())


def test_random_numbers_of_constants_are_computed_on_the_device():
    tl, recorder, _ = loaded(np.zeros(1, np.int32))
    tl.rand(7, tl.arange(0, 8))
    assert recorder.names[-1] == "rand"


def test_without_data_only_shapes_are_known():
    tl, recorder, x = loaded(X, data=False)
    assert tl.associative_scan((x, x), 1, lambda a, b, c, d: (a + c, b * d))[1].shape == (2, 4)
    assert tl.split(tl.join(x, x))[0].shape == tl.sort(x).shape == tl.atomic_add(at_of(tl, X), 1).shape == (2, 4)
    assert all(command.compute is None for command in recorder.commands if command.name == "sort")


def at_of(tl, array):
    return pointer(0, 0, tl.int32) + tl.arange(0, array.size).reshape(*array.shape)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda tl, x: tl.sort(x, 0), "sort works along the last axis"),
        (lambda tl, x: tl.topk(x, 5), "5 of 4 values"),
        (lambda tl, x: tl.split(x), "last axis has the size 2"),
        (lambda tl, x: tl.broadcast_to(x[None, :], 2, 4), "does not broadcast to 2x4"),
        (lambda tl, x: tl.permute(x, 0, 0), "not an order of the axes"),
        (lambda tl, x: tl.broadcast_to(x, 3, 4), "shapes 2x4 and 3x4 do not broadcast"),
        (lambda tl, x: tl.gather(x, x[None, :], 0), "of the rank of"),
        (lambda tl, x: tl.gather(x, x, 0), "places -9 to 6 of axis 0"),
        (lambda tl, x: tl.rand(0.5, x), "integer seed"),
        (lambda tl, x: tl.associative_scan((x, x), 0, lambda a, b, c, d: a), "1 values for 2 inputs"),
        (lambda tl, x: tl.associative_scan(x, 2, lambda a, b: a), "axis 2 of"),
        (lambda tl, x: tl.atomic_and(pointer(0, 0, tl.float32), 1), "takes integers"),
        (lambda tl, x: tl.atomic_add(pointer(0, 0, tl.float32), 1, sem="strong"), "sem='strong' is unknown"),
    ],
)
def test_what_is_refused(call, said):
    tl, _, x = loaded(X)
    with pytest.raises(KernelError, match=said):
        call(tl, x)


def test_what_is_charged():
    def kernel(tl) -> None:
        a = tl.load(pointer(), shape=1024, dtype="f32")
        tl.wait(a)
        kept = [
            tl.cumsum(a), tl.associative_scan(a, 0, lambda x, y: tl.exp(x) + y), tl.sort(a), tl.join(a, a),
            tl.rand(1, tl.arange(0, 1024)), tl.erf(a), tl.floor(a), *tl.randint4x(1, tl.arange(0, 1024)),
        ]  # fmt: skip
        assert kept

    times = [round(end - start, 3) for start, end in rows(run(kernel), "math")]
    # 8 rows of 128 lanes, a tree of 7 levels; 10 + 1 stages of 1,024 values; 10 operations in each of 10 rounds.
    assert times[:7] == [15, 4 * 8 + 8 + 15, 55 * 8, 16, 103 * 8, 32, 8]
    assert times[7:] == [100 * 8, 0, 0, 0]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float8e5"])
def test_nan_is_above_all_numbers_in_a_sort(kind):
    tl, _, x = loaded(np.array([2, np.nan, -1, np.inf, -np.inf, 0], np.float32))
    x = x.to(getattr(tl, kind))
    rising = [-np.inf, -1, 0, 2, np.inf, np.nan]
    np.testing.assert_array_equal(tl.sort(x).to(tl.float32).numpy(), rising)
    np.testing.assert_array_equal(tl.sort(x, descending=True).to(tl.float32).numpy(), rising[::-1])
    np.testing.assert_array_equal(tl.topk(x, 2).to(tl.float32).numpy(), [np.nan, np.inf])
    np.testing.assert_array_equal(tl.topk(x, 2, descending=False).to(tl.float32).numpy(), [-np.inf, -1])


@pytest.mark.parametrize("name", ["rand", "randn", "randint", "randint4x"])
@pytest.mark.parametrize("n_rounds", [-1, 2.5, None])
def test_rounds_of_a_generator_are_a_whole_number(name, n_rounds):
    tl, _, i = loaded(np.arange(4, dtype=np.int32))
    with pytest.raises(KernelError, match=rf"tl.{name}: n_rounds = {n_rounds} must be a whole number >= 0"):
        getattr(tl, name)(7, i, n_rounds)
