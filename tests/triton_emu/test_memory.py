import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.components._command import Run
from kernbench.errors import KernelError, OutOfBoundsError
from kernbench.triton_emu._memory_ops import Access
from tests.triton_emu.recorder import pointer, program

DTYPES = [
    np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
    np.int8, np.uint8, np.int32, np.int64, np.float64, np.bool_,
]  # fmt: skip


def values(dtype, *shape):
    return (np.arange(np.prod(shape)).reshape(shape) % 7 - 3).astype(np.float32).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_comes_and_goes_unchanged(dtype):
    x, out = values(dtype, 5, 6), np.zeros((5, 6), dtype)
    tl, backend, src, dst = program(x, out)
    tile = tl.load(src, shape=(5, 6))
    tl.store(dst, tile)
    assert out.tobytes() == x.tobytes()
    assert tile.numpy().dtype == dtype
    assert backend.names == ["load", "store"]
    assert backend.commands[0].runs == (Run(src.va, x.nbytes, x.nbytes),)
    assert not backend.commands[0].tiled


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pointer_tile_comes_and_goes_unchanged(dtype):
    x, out = values(dtype, 8, 8), np.zeros((8, 8), dtype)
    tl, _, src, dst = program(x, out)
    at = tl.arange(0, 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    tl.store(dst + at, tl.load(src + at))
    assert out.tobytes() == x.tobytes()


def test_a_scalar_pointer_loads_one_element():
    tl, _, src = program(np.array([3.0, 4.0], np.float32))
    assert tl.load(src + 1).shape == ()
    assert float(tl.load(src + 1)) == 4.0


def test_a_pointer_advances_by_elements_in_both_forms():
    x = np.arange(16, dtype=np.float16)
    tl, _, src = program(x)
    assert (src + 3).va == (np.int64(3) + src).va == src.va + 6
    np.testing.assert_array_equal(tl.load(src + 3, shape=(4,)).numpy(), x[3:7])
    np.testing.assert_array_equal(tl.load((src + 3) + tl.arange(0, 4)).numpy(), x[3:7])
    np.testing.assert_array_equal(tl.load((src + tl.arange(0, 4)) + 3).numpy(), x[3:7])
    np.testing.assert_array_equal(tl.load((src + 7) - tl.arange(0, 4)).numpy(), x[7:3:-1])
    np.testing.assert_array_equal(tl.load((src + 7 - tl.arange(0, 4)) - 2).numpy(), x[5:1:-1])


def test_dtype_reinterprets_at_the_address():
    x = np.array([1.0, -2.0], np.float32)
    tl, _, src = program(x)
    np.testing.assert_array_equal(tl.load(src, shape=2, dtype="i32").numpy(), x.view(np.int32))
    np.testing.assert_array_equal(tl.load(src + tl.arange(0, 2), dtype=tl.int32).numpy(), x.view(np.int32))


def test_a_plain_integer_is_a_byte_address():
    x = np.arange(4, dtype=np.float32)
    tl, _, src = program(x)
    np.testing.assert_array_equal(tl.load(int(src) + 4, shape=2, dtype="f32").numpy(), x[1:3])
    tl.store(int(src), tl.full((2,), 9, tl.float32))
    np.testing.assert_array_equal(x, [9, 9, 2, 3])
    with pytest.raises(KernelError, match=r"plain byte address.*dtype="):
        tl.load(int(src), shape=2)


def test_masked_off_lanes_are_zero_or_other_and_not_loaded():
    x = np.arange(8, dtype=np.float32)
    tl, backend, src = program(x)
    i = tl.arange(0, 16)
    np.testing.assert_array_equal(tl.load(src + i, mask=i < 8).numpy(), [*x, *[0] * 8])
    np.testing.assert_array_equal(tl.load(src + i, mask=i < 8, other=-1.5).numpy(), [*x, *[-1.5] * 8])
    other = tl.arange(0, 16) * 2.0
    np.testing.assert_array_equal(tl.load(src + i, mask=i < 8, other=other).numpy(), [*x, *range(16, 32, 2)])
    assert {c.runs for c in backend.commands} == {(Run(src.va, 32, 32),)}
    assert backend.commands[0].tiled


def test_other_may_be_a_computed_tile():
    x = np.arange(4, dtype=np.float32)
    tl, backend, src = program(x)
    i = tl.arange(0, 4)
    loaded = tl.load(src + i, mask=i < 2, other=tl.load(src, shape=4) + 10)
    np.testing.assert_array_equal(loaded.numpy(), [0, 1, 12, 13])
    assert backend.names[-1] == "where"


def test_a_mask_on_the_block_form_and_on_one_element():
    x = np.arange(6, dtype=np.float32)
    tl, _, src = program(x)
    rows = tl.arange(0, 3)[:, None] < 2
    np.testing.assert_array_equal(tl.load(src, mask=rows, shape=(3, 2)).numpy(), [[0, 1], [2, 3], [0, 0]])
    assert float(tl.load(src + 100, mask=False, other=7.0)) == 7.0
    tl.store(src, tl.full((3, 2), 5.0, tl.float32), mask=rows)
    np.testing.assert_array_equal(x, [5, 5, 5, 5, 4, 5])


def test_nothing_to_load_or_store_costs_nothing():
    x = np.arange(4, dtype=np.float32)
    tl, backend, src = program(x)
    i = tl.arange(0, 4)
    assert tl.load(src + i, mask=i > 9, other=2).numpy().tolist() == [2] * 4
    tl.store(src + i, i.to(tl.float32), mask=i > 9)
    assert not backend.commands


def test_a_mask_computed_from_values():
    x = np.array([1, -1, 2, -2], np.float32)
    tl, backend, src = program(x)
    loaded = tl.load(src, shape=4)
    tl.store(src + tl.arange(0, 4), loaded * 10, mask=loaded > 0)
    np.testing.assert_array_equal(x, [10, -1, 20, -2])
    assert backend.blocked


def test_offsets_computed_from_values_gather_and_scatter():
    index, x = np.array([3, 0, 3, 1], np.int32), np.arange(4, dtype=np.float32) * 10
    tl, backend, at, src = program(index, x)
    loaded = tl.load(src + tl.load(at, shape=4))
    np.testing.assert_array_equal(loaded.numpy(), [30, 0, 30, 10])
    assert backend.commands[1].runs == (Run(src.va, 8, 8), Run(src.va + 12, 4, 8))


def test_a_scalar_read_from_memory_is_an_address():
    table, x = np.array([2], np.int32), np.arange(4, dtype=np.float32)
    tl, _, at, src = program(table, x)
    np.testing.assert_array_equal(tl.load(src + tl.load(at), shape=2).numpy(), [2, 3])


def test_of_stores_to_one_address_the_last_stays():
    x = np.zeros(3, np.int32)
    tl, backend, src = program(x)
    tl.store(src + tl.arange(0, 6) % 2, tl.arange(0, 6))
    np.testing.assert_array_equal(x, [4, 5, 0])
    assert backend.commands[0].runs == (Run(src.va, 8, 24),)


def test_a_store_casts_to_the_pointers_type_as_an_operation():
    x, out = np.array([1.5, 2.7], np.float32), np.zeros(2, np.float16)
    tl, backend, src, dst = program(x, out)
    tl.store(dst, tl.load(src, shape=2))
    np.testing.assert_array_equal(out, x.astype(np.float16))
    assert backend.names == ["load", "cast", "store"]


def test_a_store_broadcasts_to_the_pointers():
    x = np.zeros((2, 3), np.float32)
    tl, _, src = program(x)
    at = src + (tl.arange(0, 2)[:, None] * 3 + tl.arange(0, 3)[None, :])
    tl.store(at, tl.arange(0, 2)[:, None] * 1.0)
    np.testing.assert_array_equal(x, [[0, 0, 0], [1, 1, 1]])
    tl.store(at, 4)
    assert (x == 4).all()


def test_stepping_a_pointer_tile_finds_its_runs_once():
    x = np.arange(64, dtype=np.float32)
    tl, backend, src = program(x)
    first = src + tl.arange(0, 4)[:, None] * 16 + tl.arange(0, 4)[None, :]
    second = first + 4
    assert second.offsets is first.offsets
    np.testing.assert_array_equal(tl.load(second).numpy(), x.reshape(4, 16)[:, 4:8])
    assert [r.va - src.va for r in backend.commands[0].runs] == [16, 80, 144, 208]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=30))
def test_runs_hold_each_distinct_address_once_in_order(lanes):
    offsets = np.array([o for o, _ in lanes])
    mask = np.array([m for _, m in lanes])
    access = Access.of(offsets, mask)
    covered = [a for start, n, _ in access.runs for a in range(start, start + n)]
    assert covered == sorted(set(offsets[mask].tolist()))
    assert sum(asked for _, _, asked in access.runs) == mask.sum()
    assert all(a + n < b for (a, n, _), (b, _, _) in zip(access.runs, access.runs[1:], strict=False)), "not maximal"
    memory = np.arange(41) * 3
    got = access.spread(memory[covered], (len(lanes),), np.array(-1))
    np.testing.assert_array_equal(got, np.where(mask, offsets * 3, -1))
    memory[covered] = access.gather(np.arange(len(lanes)) + 1000)
    for offset in set(offsets[mask].tolist()):
        last = max(i for i, (o, m) in enumerate(lanes) if m and o == offset)
        assert memory[offset] == last + 1000


def test_without_data_addresses_from_values_are_refused():
    tl, _, at, src = program(np.zeros(4, np.int32), np.zeros(4, np.float32), data=False)
    index = tl.load(at, shape=4)
    with pytest.raises(KernelError, match="data=True"):
        tl.load(src + index)
    with pytest.raises(KernelError, match="data=True"):
        tl.load(src + tl.arange(0, 4), mask=index > 0)
    with pytest.raises(KernelError, match="data=True"):
        src + tl.load(at)


def test_without_data_shapes_runs_and_types_are_there():
    tl, backend, src = program(np.zeros((4, 4), np.float16), data=False)
    tile = tl.load(src + tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 2)[None, :])
    tl.store(src, tile + tl.load(src, shape=(4, 2)))
    assert tile.shape == (4, 2)
    assert repr(tile) == "<tile 4x2 float16>"
    assert [r.nbytes for r in backend.commands[0].runs] == [4, 4, 4, 4]


def test_out_of_bounds_names_the_tensor_and_the_bytes():
    x = np.zeros((4, 4), np.float16)
    tl, _, src = program(x)
    with pytest.raises(OutOfBoundsError, match=r"bytes 0 to 34 of tensor argument 'x0', which has 32"):
        tl.load(src, shape=17)
    with pytest.raises(OutOfBoundsError, match=r"bytes 32 to 34 of"):
        tl.store(src + tl.arange(16, 17), tl.zeros(1, tl.float16))
    with pytest.raises(OutOfBoundsError, match="in no tensor"):
        tl.load(pointer(va=16), shape=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda tl, p: tl.load(p, shape=(2, 0)), "at least 1"),
        (lambda tl, p: tl.load(p, shape=(-1,)), "at least 1"),
        (lambda tl, p: tl.load(p + tl.arange(0, 2), shape=2), "has a shape already"),
        (lambda tl, p: tl.load(p + tl.arange(0, 2), other=1), "give a mask too"),
        (lambda tl, p: tl.load(p + tl.arange(0, 2), mask=tl.arange(0, 3) < 1), "mask: shapes 2 and 3 do not"),
        (lambda tl, p: tl.load(tl.arange(0, 2)), "expected a pointer"),
        (lambda tl, p: tl.load(p + tl.zeros(2, tl.float32)), "integers"),
        (lambda tl, p: tl.store(p + tl.arange(0, 2), tl.zeros(3, tl.float16)), "store.*2 and 3"),
        (lambda tl, p: tl.store(p + tl.arange(0, 2), tl.zeros((2, 2), tl.float16)), "store"),
        (lambda tl, p: tl.store(p, tl.zeros(3, tl.float16), shape=(2,)), "shape="),
        (lambda tl, p: tl.store(p, p), "load what a pointer points to"),
        (lambda tl, p: tl.ref(p + tl.arange(0, 2), 2), "scalar pointer"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, message):
    tl, backend, p = program(np.zeros(8, np.float16))
    with pytest.raises(KernelError, match=message):
        wrong(tl, p)
    assert not backend.commands
