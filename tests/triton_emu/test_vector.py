import operator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench._dtypes import as_dtype
from kernbench.errors import KernelError
from tests.triton_emu.recorder import program

FLOATS = [np.float32, np.float16, ml_dtypes.bfloat16, np.float64]
rng = np.random.default_rng(0)


def carried(x):
    return x.astype(as_dtype(x.dtype).carrier)


def rounded(x, dtype):
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(dtype)


def loaded(*arrays):
    tl, backend, *pointers = program(*arrays)
    return tl, backend, *(tl.load(p, shape=a.shape) for p, a in zip(pointers, arrays, strict=True))


def same(tile, expected):
    got = tile.numpy()
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got.astype(carried(got).dtype), expected.astype(carried(got).dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "sqrt", "sin", "cos", "abs"])
def test_functions_are_numpys_rounded_once(name, dtype):
    x = rng.uniform(0.1, 4, (3, 5)).astype(dtype)
    tl, _, tile = loaded(x)
    same(getattr(tl, name)(tile), rounded(getattr(np, name)(carried(x)), dtype))
    same(getattr(tile, name)(), rounded(getattr(np, name)(carried(x)), dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rsqrt_and_sigmoid(dtype):
    x = rng.uniform(0.1, 4, 9).astype(dtype)
    tl, _, tile = loaded(x)
    same(tl.rsqrt(tile), rounded(1 / np.sqrt(carried(x)), dtype))
    same(tl.sigmoid(-tile), rounded(1 / (1 + np.exp(carried(x))), dtype))
    assert float(tl.sigmoid(tl.full((), -1e4, tl.float32))) == 0


@pytest.mark.parametrize("dtype", [*FLOATS, np.int32, np.int8])
@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, np.maximum, np.minimum])
def test_arithmetic(op, dtype):
    a, b = (rng.integers(-9, 9, (4, 3)).astype(dtype) for _ in "ab")
    tl, _, x, y = loaded(a, b)
    tile_op = {"maximum": tl.maximum, "minimum": tl.minimum}.get(op.__name__, op)
    same(tile_op(x, y), rounded(op(carried(a), carried(b)), dtype))
    same(tile_op(x, 3), rounded(op(carried(a), carried(a).dtype.type(3)), dtype))


def test_f16_sums_are_rounded_to_f16():
    tl, _, x = loaded(np.array([2048.0], np.float16))
    assert (x + 1).item() == 2048.0
    assert (x + 1.0).dtype == tl.float16
    assert (x.to(tl.float32) + 1).item() == 2049.0


def test_numbers_take_the_tiles_type_before_the_operation():
    x = np.array([1.0, 3.0], np.float16)
    _, _, tile = loaded(x)
    same(tile * 0.1, rounded(x.astype(np.float32) * np.float32(np.float16(0.1)), np.float16))


def test_division_is_done_in_f32():
    a, b = np.array([1.0, 2.0], np.float16), np.array([3.0, 0.0], np.float16)
    tl, _, x, y = loaded(a, b)
    same(x / y, np.array([np.float32(1) / np.float32(3), np.inf], np.float32))
    tl, _, x = loaded(np.array([1, 2], np.int32))
    same(x / 4, np.array([0.25, 0.5], np.float32))
    same(1 / x.to(tl.float64), np.array([1, 0.5], np.float64))


def test_integer_division_truncates_as_triton_does():
    a, b = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    tl, _, x, y = loaded(a, b)
    same(x // y, np.array([3, -3, -3, 3], np.int32))
    same(x % y, np.array([1, -1, 1, -1], np.int32))
    same(tl.cdiv(tl.arange(0, 5), 2), np.array([0, 1, 1, 2, 2], np.int32))
    assert tl.cdiv(7, 2) == 4


def test_integers_wrap():
    tl, _, x = loaded(np.array([127], np.int8))
    assert (x + 1).item() == -128
    assert (x + 1).dtype == tl.int8
    assert (x + 1000).dtype == tl.int32


def test_bits_shifts_and_logic():
    a, b = np.array([12, 10, -8], np.int32), np.array([10, 3, 1], np.int32)
    _, _, x, y = loaded(a, b)
    for op in (operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift):
        same(op(x, y), op(a, b))
    same(~x, ~a)
    p, q = x > 0, y > 2
    same(p & q, (a > 0) & (b > 2))
    same(p | q, (a > 0) | (b > 2))
    same(~p, ~(a > 0))
    same(1 << y, np.int32(1) << b)


@pytest.mark.parametrize("op", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons(op):
    a, b = np.array([1, 2, np.nan], np.float16), np.array([2, 2, 2], np.float16)
    _, _, x, y = loaded(a, b)
    same(op(x, y), op(a, b))
    same(op(x, 2), op(a, np.float16(2)))
    same(op(2, x), op(np.float16(2), a))


def test_numbers_on_the_left():
    a = np.array([1.0, 2.0, 4.0], np.float32)
    _, _, x = loaded(a)
    same(1 - x, 1 - a)
    same(8 / x, 8 / a)
    same(np.float32(2) * x, 2 * a)
    same(-x + +x, 0 * a)
    same(abs(-x), a)


def test_nan_loses_in_maximum_and_minimum():
    a, b = np.array([np.nan, 1], np.float32), np.array([2, np.nan], np.float32)
    tl, _, x, y = loaded(a, b)
    same(tl.maximum(x, y), np.array([2, 1], np.float32))
    same(tl.minimum(x, y), np.array([2, 1], np.float32))
    assert tl.max(x).item() == 1


def test_where_clamp_fma():
    a, b = rng.normal(size=(2, 6)).astype(np.float16)
    tl, _, x, y = loaded(a, b)
    same(tl.where(x > y, x, y), np.where(a > b, a, b))
    same(tl.where(x > y, x, 0.0), np.where(a > b, a, np.float16(0)))
    same(tl.where(x > y, 1, 0), (a > b).astype(np.int32))
    same(tl.clamp(x, -0.5, 0.5), np.clip(a, np.float16(-0.5), np.float16(0.5)))
    same(tl.fma(x, y, x), rounded(carried(a).astype(np.float64) * b + a, np.float16))
    same(tl.fma(2.0, x, 1), rounded(2 * carried(a) + 1, np.float16))


def test_fma_rounds_once():
    e = np.float32(2.0**-12)
    tl, _, x = loaded(np.array([1 + e], np.float32))
    assert tl.fma(x, x, -(1 + 2 * e)).item() == float(e) ** 2
    assert (x * x - (1 + 2 * e)).item() == 0


def test_casts():
    a = np.array([1.7, -1.7, 0.0, 300.0], np.float32)
    tl, backend, x = loaded(a)
    same(x.to(tl.int32), np.array([1, -1, 0, 300], np.int32))
    same(tl.cast(x, "f16"), a.astype(np.float16))
    same(x.to(tl.int1), np.array([True, True, False, True]))
    same(x.to(tl.bfloat16), a.astype(ml_dtypes.bfloat16))
    same((x > 0).to(tl.float32), np.array([1, 0, 0, 1], np.float32))
    count = len(backend.commands)
    assert x.to(tl.float32) is x
    assert len(backend.commands) == count


def test_f8_e4m3fn_overflows_to_nan_and_e5m2_to_infinity():
    tl, _, x = loaded(np.array([448.0, 1000.0, -1e6], np.float32))
    assert np.isnan(x.to(tl.float8e4nv).to(tl.float32).numpy()).tolist() == [False, True, True]
    assert np.isinf(x.to(tl.float8e5).to(tl.float32).numpy()).tolist() == [False, False, True]


def test_f8_arithmetic_is_rounded_to_f8():
    a = np.array([16.0, 3.0], ml_dtypes.float8_e4m3fn)
    _, _, x = loaded(a)
    assert (x + x * 0.0625).numpy().astype(np.float32).tolist() == [16.0, 3.25]


BROADCASTS = st.sampled_from([((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)), ((), (3,)), ((1,), (5, 1))])


@settings(max_examples=30, deadline=None)
@given(BROADCASTS, st.sampled_from([operator.add, operator.mul, operator.lt]), st.integers(0, 5))
def test_broadcasting_is_numpys(shapes, op, seed):
    a, b = (np.random.default_rng(seed).integers(-5, 5, s).astype(np.int32) for s in shapes)
    _, _, x, y = loaded(np.atleast_1d(a), np.atleast_1d(b))
    x, y = x.reshape(*(a.shape or (1,))), y.reshape(*(b.shape or (1,)))
    expected = op(np.atleast_1d(a), np.atleast_1d(b))
    same(op(x, y), expected)


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ("f16", "f16", "f16"), ("f16", "f32", "f32"), ("f16", "bf16", "f16"), ("bf16", "bf16", "bf16"),
        ("bf16", "f8e5m2", "f32"), ("f8e4m3", "f8e5m2", "f16"), ("f64", "f16", "f64"), ("i32", "f16", "f16"),
        ("i32", "bf16", "f32"), ("i8", "i32", "i32"), ("i8", "u8", "u8"), ("u8", "i16", "i16"), ("i1", "i8", "i8"),
        ("i64", "i32", "i64"),
    ],
)  # fmt: skip
def test_types_of_results_are_tritons(a, b, out):
    tl, _, *_ = program()
    x, y = tl.zeros(1, a), tl.zeros(1, b)
    assert (x + y).dtype == (y + x).dtype == as_dtype(out)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions(axis, keep):
    a = rng.normal(size=(5, 7)).astype(np.float16)
    tl, _, x = loaded(a)
    how = {"axis": axis, "keepdims": keep}
    same(tl.sum(x, axis, keep), np.asarray(np.sum(a, dtype=np.float32, **how)).astype(np.float16))
    same(tl.max(x, axis, keep_dims=keep), np.asarray(np.max(a, **how)).astype(np.float32))
    same(x.min(axis, keep_dims=keep), np.asarray(np.min(a, **how)).astype(np.float32))


def test_sums_of_narrow_types_are_wide():
    tl, _, *_ = program()
    assert tl.sum(tl.full(100, 100, tl.int8)).item() == 10_000
    assert tl.sum(tl.arange(0, 8) > 2).item() == 5
    assert tl.sum(tl.arange(0, 8) > 2).dtype == tl.uint32
    assert tl.sum(tl.full(3, 0.1, tl.bfloat16)).dtype == tl.bfloat16
    assert tl.sum(tl.full(3, 0.1, tl.float16)).dtype == tl.float16
    assert tl.sum(tl.full(5, 30_000, tl.float16), dtype=tl.float32).item() == 150_000


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_softmax_along_dim_zero_unless_given(dtype):
    a = (rng.normal(size=(4, 6)) * 30).astype(dtype)
    tl, _, x = loaded(a)
    for dim in (0, 1, -1):
        e = np.exp(carried(a) - carried(a).max(axis=dim, keepdims=True))
        same(tl.softmax(x, dim), rounded(e / e.sum(axis=dim, keepdims=True), np.float32))
    same(tl.softmax(x), tl.softmax(x, 0).numpy())


def test_shapes_change_without_commands():
    a = np.arange(6, dtype=np.float32)
    tl, backend, x = loaded(a)
    views = [x.reshape(2, 3), tl.reshape(x, (3, 2)), x[:, None], x[None, :], x.reshape((2, 3))[:, None, :]]
    assert [v.shape for v in views] == [(2, 3), (3, 2), (6, 1), (1, 6), (2, 1, 3)]
    assert backend.names == ["load"]
    for view in views:
        same(view, a.reshape(view.shape))
    same(x[:, None] * x[None, :], np.outer(a, a))
    same(x.reshape(2, 3) + 1, a.reshape(2, 3) + 1)
    same(tl.sum(x.reshape(2, 3), axis=1), a.reshape(2, 3).sum(1))


def test_trans_is_an_operation():
    a = np.arange(6, dtype=np.float16).reshape(2, 3)
    tl, backend, x = loaded(a)
    same(x.T, a.T)
    same(tl.trans(x), a.T)
    assert backend.names == ["load", "trans", "trans"]


def test_a_computed_scalar_fills_a_tile():
    tl, _, x = loaded(np.array([2.5], np.float32))
    same(tl.full((2, 2), tl.sum(x), tl.float16), np.full((2, 2), 2.5, np.float16))


COSTS = [
    (lambda tl, x: x + x, [("simple", 24, 2)]),
    (lambda tl, x: x * 2.0, [("simple", 24, 2)]),
    (lambda tl, x: x < 0, [("simple", 24, 2)]),
    (lambda tl, x: x / x, [("slow", 24, 4)]),
    (lambda tl, x: tl.exp(x), [("slow", 24, 2)]),
    (lambda tl, x: tl.sigmoid(x), [("slow", 24, 2), ("simple", 24, 2), ("slow", 24, 2)]),
    (lambda tl, x: tl.fma(x, x, x), [("simple", 24, 2)]),
    (lambda tl, x: tl.clamp(x, 0, 1), [("simple", 24, 2)] * 2),
    (lambda tl, x: x.to(tl.float32), [("simple", 24, 4)]),
    (lambda tl, x: x.T, [("simple", 24, 2)]),
    (lambda tl, x: tl.sum(x, axis=1), [("reduce", 24, 2)]),
    (lambda tl, x: tl.max(x), [("reduce", 24, 4)]),
    (lambda tl, x: tl.argmax(x, 1), [("reduce", 24, 4)]),
    (lambda tl, x: tl.softmax(x, 1), [(k, 24, 4) for k in ("reduce", "simple", "slow", "reduce", "slow")]),
    (lambda tl, x: x[:, :, None] + tl.zeros((1, 1, 10), tl.float16), [("simple", 240, 2)]),
]


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize(("make", "work"), COSTS)
def test_work_of_the_vector_engine(make, work, data):
    a = np.ones((4, 6), np.float16)
    tl, backend, p = program(a, data=data)
    out = make(tl, tl.load(p, shape=(4, 6)))
    command = backend.commands[-1]
    assert [(w.kind, w.elements, w.itemsize) for w in command.work] == work
    assert command.flops == work[0][1]
    assert command.output.shape == out.shape
    assert (command.output.array is not None) == data


@pytest.mark.parametrize("data", [True, False])
def test_what_constants_make_is_folded(data):
    tl, backend, *_ = program(data=data, pe=(3, 2), grid=(8, 4))
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    total = tl.sum(tl.where((i[:, None] < 50) & (i[None, :] > 49), i * 2.0, tl.exp(tl.zeros((16, 16), tl.float32))))
    assert float(total) == pytest.approx(256 - 28 + 2 * sum(range(50, 64)) * 2)
    assert int(tl.cdiv(tl.max(i), 10)) == 7
    assert [*range(10)[tl.full((), 7, tl.int32) :]] == [7, 8, 9]
    assert not backend.commands
    assert not backend.blocked
    assert tl.program_id(1) == 2
    assert tl.num_programs(0) == 8
    assert tl.program_id(0).to(tl.int64) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda tl, x: x + tl.zeros(3, tl.float16), "4x6 and 3 do not broadcast"),
        (lambda tl, x: tl.exp(tl.arange(0, 4)), r"tl.exp takes a float.*x.to\(tl.float32\)"),
        (lambda tl, x: x & 1, "takes integers"),
        (lambda tl, x: ~x, "takes integers"),
        (lambda tl, x: x // 2, "takes integers"),
        (lambda tl, x: x + "a", "expected a tile or a number, got 'a'"),
        (lambda tl, x: np.ones((4, 6)) * x, "expected a tile or a number, got array"),
        (lambda tl, x: x.reshape(5, 5), "24 values.*takes 25"),
        (lambda tl, x: tl.sum(x, axis=2), "axis 2"),
        (lambda tl, x: tl.softmax(x, dim=-3), "axis -3"),
        (lambda tl, x: tl.trans(tl.arange(0, 3)), "matrix"),
        (lambda tl, x: x[0], "only None and :"),
        (lambda tl, x: x[:, :, :], "at most 2"),
        (lambda tl, x: bool(x > 0), "24 values where one is needed.*&"),
        (lambda tl, x: x.to(tl.float8e5) + tl.arange(0, 6), "no common type"),
        (lambda tl, x: tl.zeros((2, -1), tl.float32), "at least 1"),
        (lambda tl, x: tl.full((2,), x, tl.float32), "number or a scalar"),
        (lambda tl, x: tl.program_id(3), "axis 3"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, message):
    tl, _, x = loaded(np.ones((4, 6), np.float16))
    with pytest.raises(KernelError, match=message):
        wrong(tl, x)


@pytest.mark.parametrize(
    ("dtype", "limit", "beyond"),
    [
        ("float8e4nv", (464, 448), (464.1, np.nan)),
        ("float8e5", (61439, 57344), (61440, np.inf)),
        ("float16", (65519, 65504), (65520, np.inf)),
    ],
)
def test_the_largest_value_that_rounds_to_a_number(dtype, limit, beyond):
    # Half way between two numbers the even one is taken, and beyond the largest that is NaN or infinity.
    tl, _, x = loaded(np.array([limit[0], beyond[0]], np.float32))
    np.testing.assert_array_equal(x.to(getattr(tl, dtype)).to(tl.float32).numpy(), [limit[1], beyond[1]])


def test_half_way_goes_to_even():
    tl, _, x = loaded(np.array([2049, 2049.1, 2051, 2050.9], np.float32))
    np.testing.assert_array_equal(x.to(tl.float16).to(tl.float32).numpy(), [2048, 2050, 2052, 2050])


@pytest.mark.parametrize("shift", [lambda x, n: x << n, lambda x, n: x >> n])
def test_a_negative_shift_is_refused(shift):
    tl, _, x = loaded(np.array([4, 5, 6], np.int32))
    assert shift(x, tl.full(3, 1, tl.int32)).numpy().tolist() == shift(np.array([4, 5, 6]), 1).tolist()
    for n in (-1, tl.arange(0, 3) - 1):
        with pytest.raises(KernelError, match=r"test_vector.py:\d+: sh[lr]: 1 of [13] shifts are negative"):
            shift(x, n).numpy()


@pytest.mark.parametrize(
    "fault",
    [
        lambda tl, x: tl.full(8, 9, tl.int32) // x,
        lambda tl, x: tl.full(8, 9, tl.int32) % x,
        lambda tl, x: 9 // x.to(tl.int64),
        lambda tl, x: (9 % x.reshape(2, 4)).reshape(8),
        lambda tl, x: 9 // tl.where(x > 1, x, x * 1),
        lambda tl, x: 9 >> (x - 1),
        lambda tl, x: 9 << (x - 1),
    ],
)
def test_elements_that_a_mask_left_out_are_no_faults(fault):
    a = np.array([3, 2, 1, 0, 0], np.int32)
    tl, _, p = program(a)
    i = tl.arange(0, 8)
    x = tl.load(p + i, i < 3)
    assert fault(tl, x).numpy().shape == (8,)
    for wrong in (tl.load(p + i, i < 4), tl.load(p + i, i < 3, 0)):
        with pytest.raises(KernelError, match=r"[15] of 8 (divisors are 0|shifts are negative)"):
            fault(tl, wrong).numpy()
