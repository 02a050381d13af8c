"""What Triton's language has beyond tiles of numbers, in kernels that get `tl`: types, pointers, blocks, scalars."""

import numpy as np
import pytest

from kernbench.errors import KernelError
from kernbench.triton_emu._handles import _METHODS, Pointer, Tensor
from kernbench.triton_emu.testing import run_kernel
from tests.triton_emu.recorder import program

rng = np.random.default_rng(0)


def test_the_type_of_a_pointer_is_that_of_addresses():
    tl, _, p = program(np.zeros(8, np.float16))
    tile = p + tl.arange(0, 4)
    for pointers in (p, tile):
        assert pointers.dtype == tl.pointer_type(tl.float16) != tl.pointer_type(tl.float32)
        assert pointers.dtype.is_ptr()
        assert pointers.type.element_ty in (tl.float16, pointers.dtype)
        assert pointers.dtype.element_ty is tl.float16
        assert isinstance(pointers, tl.tensor)
    assert tile.type.shape == (4,)
    assert (tile.numel, p.numel) == (4, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda tl, p: p.dtype.itemsize,
        lambda tl, p: tl.zeros(4, p.dtype),
        lambda tl, p: tl.load(p, shape=4, dtype=p.dtype),
    ],
)
def test_the_type_of_a_pointer_is_not_that_of_its_elements(wrong):
    tl, _, p = program(np.zeros(8, np.float16))
    with pytest.raises((AttributeError, TypeError), match=r"use that of its elements, ptr\.dtype\.element_ty"):
        wrong(tl, p)


def test_pointers_are_integers_and_other_pointers():
    tl, backend, p = program(np.zeros(8, np.float16))
    i = tl.arange(0, 4)
    assert p.to(tl.int64) == p.va
    assert (p + i).to(tl.int64).numpy().tolist() == [p.va + 2 * n for n in range(4)]
    wide = tl.pointer_type(tl.float32)
    assert p.to(wide).dtype == (p + 2 * i).to(wide).dtype == wide
    assert (p + 2 * i).to(wide).to(tl.int64).numpy().tolist() == [p.va + 4 * n for n in range(4)]
    assert p.to(tl.int64).to(tl.pointer_type(tl.float16)) == p
    assert ((p + i).to(tl.int64) + 2).to(tl.pointer_type(tl.float16)).to(tl.int64).numpy()[0] == p.va + 2
    assert not backend.commands


def test_pointers_are_compared_and_subtracted():
    tl, _, p = program(np.zeros(8, np.float16))
    i = tl.arange(0, 4)
    assert (p + 3) - p == 3
    assert ((p + i) - p).numpy().tolist() == [0, 1, 2, 3]
    assert p - tl.full((), 2, tl.uint32) == p + -2
    assert p < p + 1 <= p + 1
    assert ((p + i) >= p + 2).numpy().tolist() == [False, False, True, True]
    assert ((p + i) == p + 2).numpy().tolist() == [False, False, True, False]
    assert i + p is not None
    assert (i + p).shape == (4,)
    with pytest.raises(TypeError, match="unsupported operand"):
        i * p


def test_tiles_of_pointers_have_shapes_and_are_chosen():
    a, b = np.arange(8, dtype=np.float32), np.arange(8, dtype=np.float32) * 10
    tl, _, p, q = program(a, b)
    i = tl.arange(0, 4)
    assert (p + i).reshape(2, 2).shape == (2, 2)
    assert (p + i).expand_dims(0).shape == (1, 4)
    assert tl.broadcast_to(p, 3).shape == (3,)
    assert tl.broadcast_to((p + i)[None, :], (2, 4)).shape == (2, 4)
    chosen = tl.where(i < 2, p + i, q + i)
    assert tl.load(chosen).numpy().tolist() == [0, 1, 20, 30]


def test_block_pointers_and_descriptors():
    def kernel(x, out, tl):
        source = tl.make_block_ptr(x, (5, 6), (6, 1), (4, 4), (2, 4), (1, 0))
        tile = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        target = tl.make_tensor_descriptor(out, [3, 4], [4, 1], [2, 4])
        target.store([0, 0], tile)
        target.atomic_add([1, 0], tl.full((2, 4), 1, tl.float32))
        tl.store(
            tl.advance(tl.make_block_ptr(out, (3, 4), (4, 1), (0, 2), (1, 2)), (2, 0)), tl.full((1, 2), 7.0, "f32")
        )

    x, out = np.arange(30, dtype=np.float32).reshape(5, 6), np.zeros((3, 4), np.float32)
    run_kernel(kernel, x, out)
    assert out.tolist() == [[28, 29, 0, 0], [1, 1, 1, 1], [1, 1, 7, 7]]


def test_scalars_take_tritons_width_only_with_a_tile():
    tl, backend, *_ = program()
    big = tl.program_id(0) + (1 << 40)
    assert type(big) is int
    assert [tl.to_tensor(n).dtype for n in (1, 1 << 31, 1 << 40, 1 << 63)] == [tl.int32, tl.uint32, tl.int64, tl.uint64]
    assert (tl.arange(0, 2) + (1 << 31)).dtype == tl.int64
    assert (tl.full((), 2**31 - 1, tl.int32) + 1).numpy() == -(2**31)
    assert tl.arange(3, 4).item().shape == ()
    assert int(tl.arange(3, 4).item()) == 3
    assert not backend.commands


def test_one_bit_wraps_and_a_signed_number_keeps_its_sign_when_shifted():
    a, b = np.array([-8, 8], np.int16), np.array([1, 2], np.uint32)
    tl, backend, p, q = program(a, b)
    x, y = tl.load(p, shape=2), tl.load(q, shape=2)
    count = len(backend.commands)
    assert (x >> y).numpy().view(np.int32).tolist() == [-4, 2]
    assert len(backend.commands) == count + 1
    one = x == x
    assert (one + one).numpy().tolist() == [False, False]
    assert (-one).numpy().tolist() == [True, True]


def test_the_result_of_a_dot_has_the_type_of_acc():
    a = rng.normal(size=(4, 4)).astype(np.float16)
    tl, backend, p = program(a)
    x = tl.load(p, shape=(4, 4))
    wide = a.astype(np.float32) @ a.astype(np.float32)
    np.testing.assert_array_equal(tl.dot(x, x, x).numpy(), (wide + a).astype(np.float16))
    assert backend.names == ["load", "cast", "dot", "cast"]
    np.testing.assert_array_equal(tl.dot(x, x, out_dtype=tl.float16).numpy(), wide.astype(np.float16))
    stacked = x.reshape(1, 4, 4)
    np.testing.assert_array_equal(tl.dot(stacked, stacked).numpy()[0], wide)


def test_functions_of_math_and_libdevice():
    tl, *_ = program()
    x = tl.full(2, 0.5, tl.float32)
    assert float(tl.math.atan2(x, x).numpy()[0]) == pytest.approx(np.pi / 4)
    assert tl.extra.libdevice.clz(tl.arange(0, 2)).numpy().tolist() == [32, 31]
    assert tl.umulhi(tl.full(1, -1, tl.int32), tl.full(1, -1, tl.int32)).numpy().tolist() == [-2]
    assert tl.popc(tl.full(1, -1, tl.int64)).numpy().tolist() == [64]
    with pytest.raises(AttributeError, match=r"tl\.dot_scaled is not supported: the matrix engine"):
        tl.dot_scaled  # noqa: B018
    with pytest.raises(KernelError, match=r"takes floats, got torch.int32; convert them first"):
        tl.math.atan(tl.arange(0, 2))


def test_extremes_with_their_places_and_with_nan():
    a = np.array([[3, np.nan, 7], [9, 1, 9]], np.float16)
    tl, _, p = program(a)
    x = tl.load(p, shape=(2, 3))
    value, place = tl.max(x, 1, return_indices=True)
    assert (value.dtype, place.dtype) == (tl.float16, tl.int32)
    assert place.numpy().tolist() == [2, 0]
    assert tl.argmin(x, None).numpy() == 4
    assert tl.argmin(x, 1, keep_dims=True).numpy().tolist() == [[0], [1]]
    kept = tl.max(x, 1, propagate_nan=tl.PropagateNan.ALL)
    assert np.isnan(kept.numpy()).tolist() == [True, False]
    assert np.isnan(tl.maximum(x, 0, propagate_nan=tl.PropagateNan.ALL).numpy()).sum() == 1
    assert tl.clamp(x, 2, 4).numpy()[0].tolist() == [3, 2, 4]


def test_types_answer_tritons_questions():
    tl, *_ = program()
    asked = ("fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5", "fp8e4b8", "int1", "int8", "uint32")
    for dtype, name in ((tl.float16, "fp16"), (tl.bfloat16, "bf16"), (tl.int1, "int1"), (tl.float8e4b8, "fp8e4b8")):
        assert [n for n in asked if getattr(dtype, f"is_{n}")()] == [name]
    kinds = ("is_floating", "is_standard_floating", "is_fp8", "is_int", "is_int_signed", "is_int_unsigned", "is_bool")
    found = {
        d.name: [k for k in kinds if getattr(d, k)()] for d in (tl.float16, tl.float8e5, tl.int8, tl.uint8, tl.int1)
    }
    assert found == {
        "float16": ["is_floating", "is_standard_floating"],
        "float8_e5m2": ["is_floating", "is_fp8"],
        "int8": ["is_int", "is_int_signed"],
        "uint8": ["is_int", "is_int_unsigned"],
        "bool": ["is_int", "is_int_unsigned", "is_bool"],
    }
    assert [d.primitive_bitwidth for d in (tl.int1, tl.int8, tl.float64, tl.pointer_type(tl.int8))] == [1, 8, 64, 64]
    assert (tl.int8.get_int_min_value(), tl.int1.get_int_max_value()) == (-128, 1)
    with pytest.raises(TypeError, match="float8e4b8 is not supported; 8-bit floats that are: float8e4nv, float8e5"):
        tl.zeros(3, tl.float8e4b8)


def test_addresses_are_exact_beyond_32_bits():
    tl, *_ = program()
    for pointer in (Pointer((1 << 31) - 8, tl.int8, tl), Pointer((1 << 40) - 8, tl.int8)):
        tile = pointer.to(tl.int64) + 4 * tl.arange(0, 4)
        assert tile.dtype == tl.int64
        assert tile.numpy().tolist() == [pointer.va + 4 * n for n in range(4)]
        assert (pointer + 4 * tl.arange(0, 4)).to(tl.int64).numpy().tolist() == tile.numpy().tolist()
    known = Pointer(64, tl.float32, tl)
    assert (known + 1).to(tl.int64).dtype == (known.to(tl.pointer_type(tl.int8)) + 4).to(tl.int64).dtype == tl.int64
    assert int((known + 3) - known) == 3
    assert known < known + 1
    with pytest.raises(AttributeError, match="a pointer has no attribute 'sum'"):
        Pointer(64, tl.float32).sum()


def test_a_method_of_a_tensor_is_the_function_of_its_name():
    assert [getattr(Tensor, name).__name__ for name in _METHODS] == [*_METHODS]
