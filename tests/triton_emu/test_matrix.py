import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.components._command import Ref, Value
from kernbench.errors import KernelError
from kernbench.triton_emu._handles import Pending
from tests.triton_emu.recorder import program

rng = np.random.default_rng(1)
F8 = ml_dtypes.float8_e4m3fn


def matrix(dtype, *shape):
    return rng.integers(-4, 5, shape).astype(np.float32).astype(dtype)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, F8, np.float32, np.int8])
def test_dot_accumulates_wide(dtype):
    a, b = matrix(dtype, 5, 300), matrix(dtype, 300, 7)
    tl, backend, pa, pb = program(a, b)
    out = tl.dot(tl.load(pa, shape=a.shape), tl.load(pb, shape=b.shape))
    wide = np.int32 if dtype is np.int8 else np.float32
    assert out.numpy().dtype == wide
    np.testing.assert_array_equal(out.numpy(), a.astype(np.float64) @ b.astype(np.float64))
    command = backend.commands[-1]
    assert (command.name, command.flops, command.mkn) == ("dot", 2 * 5 * 300 * 7, (5, 300, 7))


def test_dot_of_i8_is_exact():
    a = np.full((2, 200_000), 127, np.int8)
    tl, _, p = program(a)
    x = tl.load(p, shape=a.shape)
    with np.errstate(over="ignore"):
        expected = np.int64(127 * 127 * 200_000).astype(np.int32)
    assert (tl.dot(x, x.T).numpy() == expected).all()


def test_dot_adds_to_acc():
    a, b = matrix(np.float16, 4, 6), matrix(np.float16, 6, 3)
    tl, backend, pa, pb = program(a, b)
    x, y = tl.load(pa, shape=a.shape), tl.load(pb, shape=b.shape)
    acc = tl.dot(x, y)
    once = a.astype(np.float32) @ b.astype(np.float32)
    np.testing.assert_array_equal(tl.dot(x, y, acc).numpy(), 2 * once)
    np.testing.assert_array_equal(tl.dot(x, y, acc=tl.full((4, 3), 1, tl.float32)).numpy(), once + 1)
    assert [len(c.inputs) for c in backend.commands[2:]] == [2, 3, 3]


def test_constant_zeros_as_acc_are_free():
    a = matrix(np.float16, 4, 4)
    tl, backend, p = program(a)
    x = tl.load(p, shape=(4, 4))
    tl.dot(x, x, tl.zeros((4, 4), tl.float32))
    assert len(backend.commands[-1].inputs) == 2


def test_dot_takes_views():
    a = matrix(np.float16, 24)
    tl, _, p = program(a)
    x = tl.load(p, shape=24)
    expected = a.reshape(4, 6).astype(np.float32) @ a.reshape(6, 4).astype(np.float32)
    np.testing.assert_array_equal(tl.dot(x.reshape(4, 6), x.reshape(6, 4)).numpy(), expected)


def run_gemm(stage_a, stage_b, dtype=np.float16, mkn=(33, 70, 41), epilogue=(), acc=None, out_dtype=None, **arrays):
    m, k, n = mkn
    a, b, out = matrix(dtype, m, k), matrix(dtype, k, n), np.zeros((m, n), out_dtype or dtype)
    extra = list(arrays.values())
    tl, backend, pa, pb, po, *pe = program(a, b, out, *extra)
    pointers = dict(zip(arrays, pe, strict=True))
    epilogue = [(e[0], pointers.get(e[1], e[1])) if isinstance(e, tuple) else e for e in epilogue]
    x = tl.load(pa, shape=(m, k)) if stage_a == "load" else tl.ref(pa, (m, k))
    y = tl.load(pb, shape=(k, n)) if stage_b == "load" else tl.ref(pb, shape=(k, n))
    kwargs = {} if acc is None else {"acc": tl.load(pointers[acc], shape=(m, n))}
    handle = tl.composite("gemm", a=x, b=y, out_ptr=po, epilogue=epilogue, **kwargs)
    tl.wait(handle)
    assert isinstance(handle, Pending)
    assert backend.blocked == [handle.command]
    return a.astype(np.float32) @ b.astype(np.float32), out, backend.commands[-1]


@pytest.mark.parametrize("stages", ["ref ref", "load ref", "ref load", "load load"])
def test_composite_stagings(stages):
    stage_a, stage_b = stages.split()
    expected, out, command = run_gemm(stage_a, stage_b)
    np.testing.assert_array_equal(out, expected.astype(np.float16))
    assert isinstance(command.a, Value if stage_a == "load" else Ref)
    assert isinstance(command.b, Value if stage_b == "load" else Ref)
    assert command.inputs == tuple(x for x in (command.a, command.b) if isinstance(x, Value))
    assert command.out.shape == (33, 41)
    assert (command.flops, command.tag) == (2 * 33 * 70 * 41, "33x70x41")


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, F8, np.float32])
def test_composite_types(dtype):
    expected, out, _ = run_gemm("ref", "load", dtype)
    np.testing.assert_array_equal(out.astype(np.float32), expected.astype(dtype).astype(np.float32))


def test_composite_rounds_once_to_the_type_of_out():
    expected, out, _ = run_gemm("ref", "ref", np.int8, out_dtype=np.int32)
    np.testing.assert_array_equal(out, expected.astype(np.int32))
    expected, out, _ = run_gemm("ref", "ref", np.float16, out_dtype=np.float32)
    np.testing.assert_array_equal(out, expected)


EPILOGUES = {
    "relu": (["relu"], lambda x: np.maximum(x, 0), ["simple"]),
    "silu": (["silu"], lambda x: x / (1 + np.exp(-x)), ["slow", "simple", "slow", "simple"]),
    "gelu": (["gelu"], gelu, ["simple"] * 3 + ["slow", "simple", "slow", "simple"]),
    "exp": ([("scale", 0.01), "exp"], lambda x: np.exp(x * 0.01), ["simple", "slow"]),
    "scale": ([("scale", -2)], lambda x: -2 * x, ["simple"]),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue(name):
    epilogue, function, kinds = EPILOGUES[name]
    expected, out, command = run_gemm("ref", "load", np.float32, epilogue=epilogue)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(out, function(expected), rtol=1e-4, atol=1e-4)
    assert [w.kind for w in command.epilogue] == kinds


def test_epilogue_operands_in_order():
    bias, residual = matrix(np.float32, 41), matrix(np.float16, 33, 41)
    expected, out, command = run_gemm(
        "ref", "ref", out_dtype=np.float32, epilogue=[("bias", "p"), "relu", ("scale", 0.5), ("add", "q")],
        p=bias, q=residual,
    )  # fmt: skip
    np.testing.assert_array_equal(out, np.maximum(expected + bias, 0) * 0.5 + residual)
    assert [(kind, x.shape, x.dtype.name) for kind, x in command.extra] == [
        ("row", (41,), "float32"), ("tile", (33, 41), "float16"),
    ]  # fmt: skip
    assert [w.kind for w in command.epilogue] == ["simple"] * 4


def test_epilogue_operands_may_be_tiles():
    a, bias = matrix(np.float16, 8, 8), matrix(np.float16, 8)
    out = np.zeros((8, 8), np.float16)
    tl, backend, pa, pb, po = program(a, bias, out)
    x, row = tl.load(pa, shape=(8, 8)), tl.load(pb, shape=(1, 8))
    tl.composite("gemm", x, x, po, epilogue=[("bias", row), ("add", x)])
    np.testing.assert_array_equal(out, (a.astype(np.float32) @ a + bias + a).astype(np.float16))
    assert len(backend.commands[-1].inputs) == 4


def test_composite_adds_to_acc():
    expected, out, command = run_gemm("load", "ref", out_dtype=np.float32, acc="c", c=np.full((33, 41), 7, np.float32))
    np.testing.assert_array_equal(out, expected + 7)
    assert command.acc is command.inputs[-1]


def test_i8_epilogue_is_exact():
    bias = np.full(41, 2**24 + 1, np.int32)
    expected, out, _ = run_gemm("ref", "ref", np.int8, out_dtype=np.int32, epilogue=[("bias", "p")], p=bias)
    np.testing.assert_array_equal(out, expected.astype(np.int32) + bias)


@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("shape", [(300,), (20, 33), (2, 3, 5)])
def test_composite_math(shape, two):
    a, b, out = matrix(np.float16, *shape), matrix(np.float16, *shape), np.zeros(shape, np.float16)
    tl, backend, pa, pb, po = program(a, b, out)
    y = tl.load(pb, shape=shape) if two else None
    tl.wait(tl.composite("math", tl.ref(pa, shape), y, po, epilogue=["relu", ("scale", 3)]))
    total = a + b if two else a
    np.testing.assert_array_equal(out, np.maximum(total, 0) * 3)
    command = backend.commands[-1]
    assert [w.kind for w in command.epilogue] == ["simple"] * (3 if two else 2)
    assert (command.op, command.flops) == ("math", a.size)


def test_composite_takes_views_of_values():
    a, out = matrix(np.float16, 24), np.zeros((4, 4), np.float32)
    tl, backend, pa, po = program(a, out)
    x = tl.load(pa, shape=24)
    tl.composite("gemm", x.reshape(4, 6), x.reshape(6, 4), po)
    np.testing.assert_array_equal(out, a.reshape(4, 6).astype(np.float32) @ a.reshape(6, 4).astype(np.float32))
    command = backend.commands[-1]
    assert (command.a.shape, command.b.shape) == ((4, 6), (6, 4))
    assert command.inputs == (backend.commands[0].output,) * 2, "the space must stay taken"


def test_a_view_is_complete_when_its_value_is():
    tl, backend, p = program(np.zeros(24, np.float16), data=False)
    x = tl.load(p, shape=24)
    x._value.done_ps = -1
    tl.composite("gemm", x.reshape(4, 6), x.reshape(6, 4), p)
    view = backend.commands[-1].a
    assert view.done_ps == -1
    for tell in x._value.waiters:
        tell(77, 0)
    assert view.done_ps == 77


def test_a_plain_address_takes_the_type_of_a():
    a, out = matrix(np.float16, 4, 4), np.zeros((4, 4), np.float16)
    tl, _, pa, po = program(a, out)
    tl.composite("gemm", tl.ref(pa, (4, 4)), tl.ref(pa, (4, 4)), int(po))
    np.testing.assert_array_equal(out, (a.astype(np.float32) @ a).astype(np.float16))


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.integers(1, 70)] * 3), st.booleans())
def test_any_size_without_data_is_the_same_command(mkn, load):
    m, k, n = mkn
    commands = []
    for data in (True, False):
        a, b = np.zeros((m, k), np.float16), np.zeros((k, n), np.float16)
        tl, backend, pa, pb, po = program(a, b, np.zeros((m, n), np.float16), data=data)
        x = tl.load(pa, shape=(m, k)) if load else tl.ref(pa, (m, k))
        tl.wait(tl.composite("gemm", x, tl.ref(pb, (k, n)), po, epilogue="gelu"))
        tl.dot(tl.load(pa, shape=(m, k)), tl.load(pb, shape=(k, n)))
        commands.append([(c.name, c.flops, c.tag) for c in backend.commands])
    assert commands[0] == commands[1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda tl, p, x: tl.dot(x, tl.load(p, shape=(3, 4))), "inner sizes of 4x4 float16 and 3x4 float16.*4 and 3"),
        (lambda tl, p, x: tl.dot(x, x.reshape(16)), "takes matrices"),
        (lambda tl, p, x: tl.dot(x, tl.ref(p, (4, 4))), "tl.load it"),
        (lambda tl, p, x: tl.dot(x, x.to(tl.float32)), "one type"),
        (lambda tl, p, x: tl.dot(x.to(tl.int32), x.to(tl.int32)), "takes float16"),
        (lambda tl, p, x: tl.dot(x, x, x[:, :, None]), "acc must be a tile 4x4 float32, got 4x4x1 float32"),
        (lambda tl, p, x: tl.composite("conv", x, x, p), "unknown composite op 'conv'.*gemm"),
        (lambda tl, p, x: tl.composite("gemm", x, None, p), "operands are"),
        (lambda tl, p, x: tl.composite("gemm", p, x, p), "operands are"),
        (lambda tl, p, x: tl.composite("gemm", x, x), "out_ptr is missing"),
        (lambda tl, p, x: tl.composite("gemm", x, tl.ref(p, (2, 4)), p), "inner sizes"),
        (lambda tl, p, x: tl.composite("gemm", x, x, p, epilogue=["tanh"]), "unknown epilogue item 'tanh'.*relu"),
        (lambda tl, p, x: tl.composite("gemm", x, x, p, epilogue=["rellu"]), "did you mean relu"),
        (lambda tl, p, x: tl.composite("gemm", x, x, p, epilogue=["bias"]), "not complete"),
        (lambda tl, p, x: tl.composite("gemm", x, x, p, epilogue=[("relu", 2)]), "not complete"),
        (lambda tl, p, x: tl.composite("gemm", x, x, p, epilogue=[("scale", "x")]), "a number"),
        (lambda tl, p, x: tl.composite("gemm", x, x, p, epilogue=[("add", tl.arange(0, 4))]), "shape 4x4, got 4"),
        (lambda tl, p, x: tl.composite("math", x, x, p, acc=x), "no acc"),
        (lambda tl, p, x: tl.composite("math", x, x.reshape(16), p), "must be equal"),
        (lambda tl, p, x: tl.wait(3), "wait takes"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(wrong, message):
    tl, _, p = program(np.zeros((4, 4), np.float16))
    with pytest.raises(KernelError, match=message):
        wrong(tl, p, tl.load(p, shape=(4, 4)))
