"""Operators on device tensors: torch's values, types and shapes; each takes simulated time."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small

PLACES = {
    "one": None,
    "rows": kb.DPPolicy(cube="row_wise", pe="row_wise", num_cubes=2, num_pes=2),
    "columns": kb.DPPolicy(cube="column_wise", pe="column_wise", num_cubes=2, num_pes=2),
    "mixed": kb.DPPolicy(cube="row_wise", pe="column_wise", num_cubes=2, num_pes=3),
    "copies": kb.DPPolicy(cube="replicate", pe="row_wise", num_cubes=2, num_pes=2),
}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
rng = np.random.default_rng(3)


def placed(torch, values, place="one", dtype=None):
    """Return a device tensor of `values`."""
    dp = PLACES[place]
    where = {"device": "ahbm"} if dp is None else {"dp": dp}
    return torch.tensor(values, **({} if dtype is None else {"dtype": dtype}), **where)


def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)


def close(found, expected, dtype=np.float32):
    found = found.numpy()
    assert found.shape == expected.shape
    assert found.dtype == dtype
    tolerance = 2e-3 if found.dtype.itemsize == 2 else 1e-5
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("other", PLACES)
@pytest.mark.parametrize("name", OPERATORS)
def test_two_tensors(torch, name, place, other):
    a, b = normal(5, 7), normal(5, 7) + 3
    close(OPERATORS[name](placed(torch, a, place), placed(torch, b, other)), OPERATORS[name](a, b))


IN_PLACE = {"+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_every_other_name_of_the_tensor_has_the_values(torch, name, place):
    a, b = normal(4, 6), normal(6) + 3
    x, other = placed(torch, a, place), placed(torch, b)
    same, turned = x, x.t()
    x = IN_PLACE[name](x, other)
    assert x is same
    close(turned, OPERATORS[name](a, b).T)
    x = IN_PLACE[name](x, x)
    close(same, OPERATORS[name](OPERATORS[name](a, b), OPERATORS[name](a, b)))


def test_in_place_keeps_the_type_and_changes_no_other_element(torch):
    a = np.arange(12, dtype=np.float16).reshape(4, 3)
    x = placed(torch, a)
    row = x[1:3]
    row *= placed(torch, np.float32([0.5, 2, 3]))
    expected = a.copy()
    expected[1:3] *= np.float16([0.5, 2, 3])
    close(x, expected, np.float16)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda x: operator.iadd(x, 1.5),
            "result type torch.float32 can't be cast to the desired output type torch.int32",
        ),
        (lambda x: operator.itruediv(x, 2), "result type torch.float32 can't be cast"),
        (lambda x: operator.iadd(x[0], x), r"output with shape \(2,\) doesn't match the broadcast shape \(2, 2\)"),
        (lambda x: operator.iadd(x, x[0]), "both sides hold some elements"),
        (lambda x: operator.iadd(x, x.t()), "both sides hold some elements"),
    ],
)
def test_in_place_refuses_what_torch_refuses(torch, change, told):
    x = placed(torch, np.arange(4, dtype=np.int32).reshape(2, 2))
    with pytest.raises(RuntimeError, match=told):
        change(x)


def test_a_comparison_is_no_silent_false(torch):
    x = placed(torch, normal(3))
    for compare in (lambda: x == x.clone(), lambda: x != 1, lambda: np.float32(1) == x, lambda: 1.0 in x):
        with pytest.raises(TypeError, match=r"x\.numpy\(\)"):
            compare()
    assert x is not None
    assert x != None  # noqa: E711
    assert {x: 1}[x] == 1


@pytest.mark.parametrize("name", OPERATORS)
def test_a_number_on_either_side(torch, name):
    a = normal(4, 6) + 5
    x = placed(torch, a, "rows")
    close(OPERATORS[name](x, 2.5), OPERATORS[name](a, np.float32(2.5)))
    close(OPERATORS[name](3, x), OPERATORS[name](np.float32(3), a))


def test_numbers_of_numpy_are_numbers(torch):
    x = placed(torch, normal(4).astype(np.float16))
    for y in (np.float32(2) * x, x * np.float32(2), x * np.float64(2), np.int64(2) * x):
        assert y.dtype is torch.float16
        assert np.array_equal(y.numpy(), x.numpy() * np.float16(2))


@given(
    shapes=st.sampled_from(
        [((4, 6), (6,)), ((4, 1), (1, 6)), ((3, 1, 5), (4, 1)), ((), (2, 3)), ((5,), ()), ((1,), (7, 1))]
    ),
    places=st.tuples(st.sampled_from(["one", "rows"]), st.sampled_from(["one", "rows", "copies"])),
    name=st.sampled_from(list(OPERATORS)),
)
@settings(max_examples=20, deadline=None)
def test_shapes_broadcast(shapes, places, name):
    values = [np.asarray(rng.uniform(1, 2, shape), np.float32) for shape in shapes]
    with session(small(), data=True) as torch:
        x, y = (placed(torch, v, p if v.ndim else "one") for v, p in zip(values, places, strict=True))
        close(OPERATORS[name](x, y), np.asarray(OPERATORS[name](*values)))


def test_views_are_operands(torch):
    a, b = normal(4, 6), normal(6, 4)
    x, y = placed(torch, a, "rows"), placed(torch, b, "columns")
    close(x.T + y, a.T + b)
    close(x[2:4] * 2, a[2:4] * 2)
    close(x.permute(1, 0) - y, a.T - b)
    close(x.view(24) + y.T.contiguous().view(24), a.reshape(24) + b.T.reshape(24))


TYPES = [
    ("float16", "float16", "float16"), ("float16", "float32", "float32"), ("float16", "bfloat16", "float32"),
    ("int32", "float16", "float16"), ("int32", "int64", "int64"), ("uint8", "int8", "int16"), ("bool", "int8", "int8"),
    ("int8", "int8", "int8"), ("bool", "float16", "float16"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "expected"), TYPES)
def test_common_types_are_torchs(torch, a, b, expected):
    x, y = (torch.ones(4, dtype=getattr(torch, name), device="ahbm") for name in (a, b))
    for z in (x + y, y * x):
        assert z.dtype is getattr(torch, expected)
        assert z.tolist() in ([2] * 4, [1] * 4)


@pytest.mark.parametrize(
    ("dtype", "number", "expected"),
    [
        ("int32", 1, "int32"), ("int32", 1.5, "float32"), ("float16", 1, "float16"), ("float16", 1.5, "float16"),
        ("bool", 2, "int64"), ("bfloat16", 3, "bfloat16"),
    ],
)  # fmt: skip
def test_numbers_count_only_where_their_kind_is_higher(torch, dtype, number, expected):
    assert (torch.ones(4, dtype=getattr(torch, dtype), device="ahbm") + number).dtype is getattr(torch, expected)


def test_division_of_integers_is_float(torch):
    x = torch.arange(4, dtype=torch.int32, device="ahbm")
    assert (x / 2).tolist() == [0.0, 0.5, 1.0, 1.5]
    assert (x / x).dtype is torch.float32


def test_half_is_computed_in_f32_and_rounded_once(torch):
    a = rng.standard_normal(256).astype(np.float16)
    x = placed(torch, a, "rows")
    assert np.array_equal((x * x).numpy(), (a.astype(np.float32) ** 2).astype(np.float16))


@pytest.mark.parametrize("place", ["one", "rows", "columns", "copies"])
@pytest.mark.parametrize("other", ["one", "rows", "columns"])
def test_matrix_products(torch, place, other):
    a, b = normal(70, 131), normal(131, 66)
    x, y = placed(torch, a, place), placed(torch, b, other)
    close(x @ y, a @ b)
    half = placed(torch, a.astype(np.float16), place) @ placed(torch, b.astype(np.float16), other)
    exact = a.astype(np.float16).astype(np.float32) @ b.astype(np.float16).astype(np.float32)
    np.testing.assert_allclose(half.numpy().astype(np.float32), exact, rtol=2e-2, atol=2e-2)
    assert half.dtype is torch.float16


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 4)), ((2, 3, 5), (5, 4)), ((2, 3, 5), (2, 5, 4)),
        ((2, 1, 3, 5), (4, 5, 2)), ((3, 0), (0, 2)),
    ],
)  # fmt: skip
def test_products_of_any_number_of_dims(torch, a, b):
    x, y = normal(*a), normal(*b)
    close(torch.matmul(placed(torch, x), placed(torch, y)), np.matmul(x, y))


def test_a_product_of_transposed_views(torch):
    a, b = normal(8, 5), normal(6, 8)
    close(placed(torch, a, "rows").T @ placed(torch, b, "columns").T, a.T @ b.T)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dim", [None, 0, 1, -1, (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_sums_and_means(torch, place, dim, keepdim):
    a = normal(4, 6, 5)
    x = placed(torch, a, place)
    close(x.sum(dim, keepdim), a.sum(dim, keepdims=keepdim))
    close(torch.mean(x, dim, keepdim), a.mean(dim, keepdims=keepdim))


def test_sums_of_long_rows_and_of_integers(torch):
    a = rng.integers(-9, 9, (3, 9000)).astype(np.int8)
    close(placed(torch, a).sum(1), a.sum(1, dtype=np.int64), np.int64)
    assert placed(torch, a).sum().item() == int(a.sum(dtype=np.int64))
    b = normal(2, 9000)
    np.testing.assert_allclose(placed(torch, b, "columns").sum(1).numpy(), b.sum(1), rtol=1e-4, atol=1e-3)
    assert placed(torch, a).sum(dtype=torch.float32).dtype is torch.float32


@pytest.mark.parametrize("place", ["one", "rows", "columns"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_largest_and_where_it_is(torch, place, dim):
    a = rng.integers(0, 5, (6, 7)).astype(np.float32)
    found = placed(torch, a, place).max(dim)
    close(found.values, a.max(dim))
    assert np.array_equal(found.indices.numpy(), a.argmax(dim))
    assert found.indices.dtype is torch.int64
    assert placed(torch, a, place).max().item() == a.max()
    assert torch.max(placed(torch, a, place), dim, keepdim=True).values.shape == a.max(dim, keepdims=True).shape


def test_nan_is_the_largest(torch):
    a = np.array([[1.0, np.nan, 3.0], [1.0, 2.0, 3.0]], np.float32)
    values, indices = placed(torch, a).max(1)
    assert np.isnan(values.numpy()[0])
    assert values.numpy()[1] == 3
    assert indices.tolist() == [1, 2]
    assert np.isnan(placed(torch, a).max().item())


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(torch, place, dim):
    a = normal(6, 10)
    e = np.exp(a - a.max(dim, keepdims=True))
    close(placed(torch, a, place).softmax(dim), e / e.sum(dim, keepdims=True))
    assert torch.softmax(placed(torch, a, place).half(), dim).dtype is torch.float16


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(torch, dim):
    parts = [normal(4, 6) for _ in range(3)] + [normal(*((2, 6) if dim == 0 else (4, 2)))]
    tensors = [placed(torch, part, place) for part, place in zip(parts, PLACES, strict=False)]
    close(torch.cat(tensors, dim), np.concatenate(parts, dim))
    mixed = torch.cat([tensors[0].half(), tensors[1]], dim)
    assert mixed.dtype is torch.float32


def test_shapes_and_types(torch):
    a = normal(3, 4, 5)
    x = placed(torch, a, "rows")
    assert np.array_equal(x.permute(2, 0, 1).numpy(), a.transpose(2, 0, 1))
    assert np.array_equal(torch.permute(x, (1, 0, 2)).numpy(), a.transpose(1, 0, 2))
    for dim in range(-4, 4):
        assert np.array_equal(x.unsqueeze(dim).numpy(), np.expand_dims(a, dim))
    assert x.half().dtype is torch.float16
    assert x.half().float().dtype is torch.float32
    assert np.array_equal(x.half().numpy(), a.astype(np.float16))
    assert x.float() is x


def test_functional(torch):
    functional = torch.nn.functional
    a, w, b = normal(4, 8), normal(6, 8), normal(6)
    x = placed(torch, a, "rows")
    close(functional.linear(x, placed(torch, w, "rows"), placed(torch, b)), a @ w.T + b)
    close(functional.relu(x), np.maximum(a, 0))
    close(functional.silu(x), a / (1 + np.exp(-a)))
    close(functional.gelu(x, approximate="tanh"), 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))))
    close(functional.softmax(x, -1), np.exp(a) / np.exp(a).sum(-1, keepdims=True))
    scale = normal(8)
    mean_square = (a * a).mean(-1, keepdims=True)
    close(functional.rms_norm(x, (8,), placed(torch, scale)), a / np.sqrt(mean_square + 1.1920929e-07) * scale)
    centred = a - a.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    close(functional.layer_norm(x, (8,), placed(torch, scale), placed(torch, scale)), normed * scale + scale)
    q, k, v = normal(2, 4, 8), normal(2, 6, 8), normal(2, 6, 8)
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    close(functional.scaled_dot_product_attention(*(placed(torch, t) for t in (q, k, v))), expected)


def test_the_least_tile_buffers_hold_a_product_in_f32_and_its_bias():
    least = 4 * (64 * (32 + 32) + 32) * 4  # B: four buffers of tiles of both operands and of a bias
    machine = kb.load("preset:small", {"cube.pe.pe_tcm.tile_buffer_mb": least / (1 << 20)})
    x, w, b = normal(40, 70), normal(50, 70), normal(50)
    with session(machine, data=True) as torch:
        y = torch.nn.functional.linear(*(torch.tensor(v, device="ahbm") for v in (x, w, b)))
        close(y, x @ w.T + b)


def test_operators_are_launches_that_take_time():
    def run(data):
        with session(small(), data=data) as torch:
            x = torch.ones(64, 64, dp=PLACES["rows"])
            torch.ahbm.synchronize()
            before = torch.engine.now_ns
            y = ((x + 1) @ x).softmax(-1).half()
            torch.cat([y, y.sum(0, keepdim=True)])
            torch.ahbm.synchronize()
            assert torch.engine.now_ns > before + 1000
        return torch.result

    result = run(True)
    names = [launch.name for launch in result.launches if not launch.name.startswith("matmul move")]
    assert [name.split()[0] for name in names][:5] == ["add", "matmul", "softmax", "copy", "sum"]
    assert run(False).records.digest() == result.records.digest()


@pytest.mark.parametrize(
    ("ask", "error", "text"),
    [
        (lambda torch, x: x + torch.ones(4), ValueError, "is on the host"),
        (lambda torch, x: x + torch.ones(4, 3, device="ahbm:1"), RuntimeError, "ahbm:0 and ahbm:1"),
        (lambda torch, x: x + torch.ones(5, device="ahbm"), RuntimeError, "do not broadcast"),
        (lambda torch, x: x @ x, RuntimeError, "cannot be multiplied"),
        (lambda torch, x: x @ x.half().T, RuntimeError, "same dtype"),
        (lambda torch, x: x.to(torch.int32) @ x.to(torch.int32).T, ValueError, "not a type of PE_GEMM"),
        (lambda torch, x: x.to(torch.int32).mean(), RuntimeError, "x.float"),
        (lambda torch, x: x.sum(2), IndexError, "Dimension out of range"),
        (lambda torch, x: x.sum((0, 0)), RuntimeError, "multiple times"),
        (lambda torch, x: torch.cat([x, x[:2]], 1), RuntimeError, "must match except in dimension 1"),
        (lambda torch, x: torch.cat([]), RuntimeError, "non-empty"),
        (lambda torch, x: x + "one", TypeError, "unsupported operand"),
        (lambda torch, x: torch.cat([x, "one"]), TypeError, "expected tensors and numbers"),
        (lambda torch, x: x.permute(0, 0), RuntimeError, "not an order"),
        (lambda torch, x: torch.nn.functional.gelu(x), ValueError, "tanh"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(torch, ask, error, text):
    with pytest.raises(error, match=text):
        ask(torch, torch.ones(4, 3, device="ahbm"))
