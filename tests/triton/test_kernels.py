"""Kernels of a file on the PEs, without Triton installed: values, placement, data on the device, and errors."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import kernbench as kb
from kernbench.errors import KernelError, OutOfBoundsError
from kernbench.triton._grid import ASSIGNMENTS
from kernbench.triton._language import StaticAssertError
from kernbench.triton._module import TensorDescriptor, load
from kernbench.triton._session import on
from tests.triton import cases
from tests.triton.conftest import KERNELS

TWO = kb.DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.__name__)
def test_values(case, kernels, machine):
    with kb.session(machine, data=True) as torch, on(torch):
        case(kernels)


@pytest.mark.parametrize("placement", ASSIGNMENTS)
@pytest.mark.parametrize("case", [cases.add, cases.matmul, cases.descriptors], ids=lambda case: case.__name__)
def test_values_do_not_depend_on_the_placement(case, placement, kernels, machine):
    with kb.session(machine, data=True) as torch, on(torch, placement=placement):
        case(kernels)


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ("round-robin", [(0, 32), (0, 64), (1, 64)]),
        ("blocks", [(0, 64), (0, 64), (1, 32)]),
        ("owner", [(0, 32), (0, 64), (0, 64)]),
    ],
)
def test_who_runs_what(placement, expected, kernels, machine):
    # Three programs, the last of half the size, which all store to the first of two PEs.
    with kb.session(machine, data=True) as torch:
        x, y, out = (torch.ones(80, dp=TWO) for _ in range(3))
        with on(torch, placement=placement):
            kernels.add[(3,)](x, y, out, 40, BLOCK=16)
        assert out.numpy().tolist() == [2.0] * 40 + [1.0] * 40
    records = torch.result.records
    stores = records.of_kind("store")
    pes = [records.commands[i].pe for i in stores.command]
    assert sorted(zip(pes, stores.nbytes.tolist(), strict=True)) == expected


def test_the_owner_of_the_output_runs_the_program(kernels, machine):
    def far(placement):
        with kb.session(machine) as torch, on(torch, placement=placement):
            x, y, out = (torch.empty(4096, dp=TWO) for _ in range(3))
            kernels.add[(64,)](x, y, out, 4096, BLOCK=64)
        return torch.result.latency_ns

    assert far("owner") < far("round-robin")


def test_device_tensors_are_queued_and_named(kernels, machine):
    with kb.session(machine, data=True) as torch:
        x, out = torch.ones(40, dp=TWO), torch.zeros(40, dp=TWO)
        with on(torch):
            kernels.add[(3,)](x, x, out, 40, BLOCK=16)
            kernels.add[(3,)](x, out, out, 40, BLOCK=16)
        assert out.numpy().tolist() == [3.0] * 40
    assert [launch.name for launch in torch.result.launches] == ["add", "add"]
    assert "add" in str(torch.result.why("add"))


def test_a_whole_storage_is_placed_once_and_views_keep_their_strides(kernels, machine):
    whole = np.arange(200, dtype=np.float32)
    x, y, out = whole[10:90:2], whole[11:91:2], np.zeros(40, np.float32)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.add[(3,)](x.base[10:50], y.base[11:51], out, 40, BLOCK=16)
    np.testing.assert_array_equal(out, whole[10:50] + whole[11:51])
    np.testing.assert_array_equal(whole, np.arange(200))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"])
def test_types(dtype, kernels, machine):
    x, y = np.arange(24).astype(dtype), np.arange(24)[::-1].astype(dtype)
    out = np.zeros_like(x)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.add[(2,)](x, y, out, 24, BLOCK=16)
    assert out.tolist() == [23] * 24


def test_grouped_gemm_reads_pointers_from_memory(kernels, machine):
    sizes = [(20, 18, 30), (16, 40, 16)]
    rng = np.random.default_rng(0)
    with kb.session(machine, data=True) as torch:
        groups = [
            (
                torch.tensor(rng.standard_normal((m, k)).astype(np.float16), dp=TWO),
                torch.tensor(rng.standard_normal((k, n)).astype(np.float16), dp=TWO),
                torch.zeros(m, n, dtype=torch.float16, dp=TWO),
            )
            for m, n, k in sizes
        ]
        pointers = [np.array([g[i].data_ptr() for g in groups], np.int64) for i in range(3)]
        with on(torch):
            kernels.grouped_gemm[(4,)](*pointers, np.array(sizes, np.int32), 2, PROGRAMS=4, B=16)
        for a, b, c in groups:
            wide = a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)
            np.testing.assert_allclose(c.numpy(), wide, rtol=2e-3, atol=2e-3)


def test_descriptors_of_the_host(kernels, machine):
    x = np.random.default_rng(1).standard_normal((13, 21)).astype(np.float32)
    out = np.zeros_like(x)
    source, target = (TensorDescriptor.from_tensor(a, [4, 8]) for a in (x, out))
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.host_descriptors[(4, 3)](source, target, 4, 8)
    np.testing.assert_array_equal(out, x * 2 + 1)


def test_random_numbers_are_those_of_philox(kernels, machine):
    n = 100
    out = np.zeros(4 * n, np.float32)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.random[(2,)](out, 7, n, B=64)
    uniform, normal = out[:n], out[n : 2 * n]
    assert 0 <= uniform.min() < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.1
    assert abs(normal.std() - 1) < 0.25


def test_times_do_not_depend_on_values(kernels, machine):
    def latency(data):
        x = np.ones(500, np.float32)
        with kb.session(machine, data=data) as torch, on(torch):
            kernels.softmax[(3,)](x, np.zeros_like(x), 5, 100, 100, BLOCK=128)
        return torch.result.latency_ns

    assert latency(True) == latency(False)


# -- what is refused


def line_of(text):
    lines = KERNELS.read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line)


def test_inline_assembly_is_refused_by_name_at_the_launch(kernels, machine):
    x = np.zeros(8, np.int32)
    with (
        kb.session(machine, data=True) as torch,
        on(torch),
        pytest.raises(
            KernelError, match=rf"kernels.py:{line_of('mov.b32')}: kernel assembly: tl.inline_asm_elementwise"
        ),
    ):
        kernels.assembly[(1,)](x, x, B=8)
    assert not torch.result.launches


def test_a_type_that_is_not_supported_is_refused_only_if_it_is_used(kernels, machine):
    x, out = np.linspace(-3, 3, 8, dtype=np.float32), np.zeros(8, np.float32)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.eight_bits[(1,)](x, out, B=8, ON_ROCM=False)
    assert np.abs(out - x).max() <= 2**-3  # 3 bits of mantissa
    where = rf"kernels.py:{line_of('.to(kind)')}: kernel eight_bits.*float8e4b8 is not supported"
    with kb.session(machine, data=True) as torch, on(torch), pytest.raises(KernelError, match=where):
        kernels.eight_bits[(1,)](x, out, B=8, ON_ROCM=True)


def test_conversions_to_integers_are_those_of_cuda(kernels, machine):
    x = np.array([0, -2.5, 2.5, 0.3, 1e30, -1e30, np.inf, np.nan], np.float32)
    out = np.zeros((5, 8), np.int64)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.to_integers[(1,)](x, out, B=8)
    low, high, least, most = -(2**31), 2**31 - 1, -(2**63), 2**63 - 1
    assert out.tolist() == [
        [low, 1, 1, -2, 99, 99, high, low],
        [0, -2, 2, 0, high, low, high, 0],
        [0, 0, 2, 0, 2**32 - 1, 0, 2**32 - 1, 0],
        [0, -3, 3, 0, most, least, most, 0],
        [0, -2, 3, 1, most, least, most, 0],
    ]


def test_exponents_and_powers_of_two(kernels, machine):
    x, out = np.array([0, -2.5, 0.5, 7], np.float32), np.zeros((4, 4), np.float32)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.exponents[(1,)](x, out, B=4)
    assert out[0].tolist() == [-np.inf, 1, -1, 2]
    assert out[1].tolist() == [0, -1.25, 0.5, 14]
    assert np.allclose(out[2], [0, -1, 1, 0], atol=1e-6)
    assert out[3].tolist() == [0, 1, 2, 3]


def test_what_a_function_that_the_kernel_calls_takes_is_checked_too(kernels, machine):
    with (
        kb.session(machine, data=True) as torch,
        on(torch),
        pytest.raises(
            KernelError,
            match=rf":{line_of('globaltimer')}: kernel helper_with_assembly: tl.extra.cuda.globaltimer is not",
        ),
    ):
        kernels.nested_assembly[(1,)](np.zeros(1, np.int32))


def test_an_error_names_the_line_of_the_kernel(kernels, machine):
    x = np.ones(4, np.float32)
    for n, text, kind in ((0, "static_assert(n > 0)", KernelError), (1, "1_000_000_000", OutOfBoundsError)):
        said = rf"kernels.py:{line_of(text)}: kernel failing"
        with kb.session(machine, data=True) as torch, on(torch), pytest.raises(kind, match=said):
            kernels.failing[(1,)](x, x, n)


@pytest.mark.parametrize(
    ("grid", "args", "said"),
    [
        ((1,), (), "missing a required argument"),
        ((1,), (1, 2, 3, 4), "no argument is a tensor"),
        ((1, 1, 1, 1), None, "one to three integers"),
        ((-1,), None, "one to three integers"),
        (("x",), None, "one to three integers"),
    ],
)
def test_bad_launches(grid, args, said, kernels, machine):
    x = np.ones(4, np.float32)
    args = (x, x, x, 4) if args is None else args
    with kb.session(machine, data=True) as torch, on(torch), pytest.raises(TypeError, match=said):
        kernels.add[grid](*args, BLOCK=4)


def test_a_scalar_pointer_takes_no_tile(kernels, machine):
    said = rf"kernels.py:{line_of('tl.store(out, tl.arange(0, B))')}: .*does not fit a scalar pointer; add offsets"
    with kb.session(machine, data=True) as torch, on(torch), pytest.raises(KernelError, match=said):
        kernels.tile_to_scalar[(1,)](np.zeros(4, np.int32), B=4)


def test_other_bad_arguments(kernels, machine):
    x = np.ones(4, np.float32)
    with kb.session(machine, data=True) as torch, on(torch):
        with pytest.raises(TypeError, match="no argument 'BLOCKS'"):
            kernels.add[(1,)](x, x, x, 4, BLOCKS=4)
        with pytest.raises(TypeError, match=r"argument 'x': unknown dtype.*complex64"):
            kernels.add[(1,)](x.astype(np.complex64), x, x, 4, BLOCK=4)
    with pytest.raises(ValueError, match="placement = 'owners' is unknown; did you mean owner"):
        on(torch, placement="owners")


def test_outside_of_the_block_a_launch_says_what_is_missing(kernels):
    x = np.ones(4, np.float32)
    with pytest.raises(KernelError, match=r"with kb\.triton\.on"):
        kernels.add[(1,)](x, x, x, 4, BLOCK=4)


# -- files


def test_a_file_gets_triton_alone():
    before = {name for name in sys.modules if name.partition(".")[0] == "triton"}
    load(KERNELS)
    assert {name for name in sys.modules if name.partition(".")[0] == "triton"} == before


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file of kernels"):
        load(tmp_path / "none.py")


def test_a_file_that_fails_leaves_nothing(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("import triton\nimport triton.language as tl\ntl.no_such_name\n", encoding="utf-8")
    before = set(sys.modules)
    with pytest.raises(AttributeError, match="no_such_name"):
        load(file)
    assert {name for name in set(sys.modules) - before if "triton" in name} == set()


def test_a_warm_up_launches_nothing_and_gives_a_kernel_that_fills_a_pe(kernels, machine):
    x = np.ones((4, 7), np.float32)
    with kb.session(machine) as torch, kb.triton.on(torch):
        device = kernels.triton.runtime.driver.active.utils.get_device_properties(0)
        kernel = kernels.softmax.warmup(x, x, 4, 7, 7, BLOCK=8, num_warps=8, grid=(1,))
        assert device["max_num_regs"] // (kernel.n_regs * device["warpSize"] * 8) == 1
        assert device["max_shared_mem"] // kernel.metadata.shared == 1
        assert torch.result.launches == ()
        kernel[(1, 1, 1)](x, x, 4, 7, 7, 8)
    assert device["multiprocessor_count"] == machine.config.n_pes
    assert len(torch.result.launches) == 1


# -- pointers that are no tensors


class Typed:
    """The least that Triton takes as a pointer."""

    def __init__(self, address, dtype):
        self.address, self.dtype = address, dtype

    def data_ptr(self):
        return self.address


class View(Typed):
    """A tensor as another type, from an element on, which it keeps alive."""

    def __init__(self, base, dtype, offset=0):
        start = base.ctypes.data if isinstance(base, np.ndarray) else base.data_ptr()
        super().__init__(start + offset * base.dtype.itemsize, dtype)
        self.base = base


def test_what_has_an_address_and_a_type_is_a_pointer(kernels, machine):
    x, y = np.arange(40, dtype=np.float32), np.ones(40, np.float32)
    bits = np.zeros(44, np.int32)
    with kb.session(machine, data=True) as torch:
        ended = torch.tensor(y, dp=TWO)  # of a session that ended: at the same address
    gc.collect()
    with kb.session(machine, data=True) as torch, on(torch):
        device = torch.tensor(y, dp=TWO)
        assert device.data_ptr() == ended.data_ptr()
        gc.collect()  # now the collector lists it behind the other
        y_at, out = Typed(device.data_ptr(), "f32"), View(bits, np.dtype("float32"), 4)
        kernels.add[(2,)](View(x, "float32", 10), y_at, out, 30, BLOCK=16)
        assert bits[:4].tolist() == bits[34:].tolist()[:4] == [0] * 4
        assert bits.view(np.float32)[4:34].tolist() == (x[10:] + 1).tolist()
        kernels.add[(2,)](x, Typed(device.data_ptr() + 8, "f32"), View(device, "float32", 5), 30, BLOCK=32)
        assert device.numpy().tolist() == [1] * 5 + (x[:30] + 1).tolist() + [1] * 5
        with pytest.raises(TypeError, match=r"argument 'y' points to 0x10, which is in no tensor"):
            kernels.add[(1,)](x, Typed(16, "f32"), x, 30, BLOCK=16)
        with pytest.raises(TypeError, match="argument 'y': unknown dtype 'complex64'"):
            kernels.add[(1,)](x, Typed(16, "complex64"), x, 30, BLOCK=16)


def test_a_negative_shift_or_number_of_rounds_is_refused(kernels, machine):
    x, out = np.array([2, 1, 0, 3], np.int32), np.zeros(8, np.int32)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.shifted[(1,)](x, out, 1, B=4)
        kernels.drawn[(1,)](np.zeros(4, np.float32), B=4, ROUNDS=6)
    assert out.tolist() == [4, 2, 0, 6, 0, 0, 0, 0]
    for launch, text in (
        (lambda: kernels.shifted[(1,)](x, out, -1, B=4), "shl: 1 of 1 shifts are negative"),
        (lambda: kernels.shifted[(1,)](x - 1, out, 1, B=4), "shr: 1 of 4 shifts are negative"),
        (lambda: kernels.words_of_philox[(1,)](out, B=4, ROUNDS=-1), "tl.philox: n_rounds = -1 must be"),
        (lambda: kernels.drawn[(1,)](out, B=4, ROUNDS=-1), "n_rounds = -1 must be a whole number >= 0"),
    ):
        with kb.session(machine, data=True) as torch, on(torch), pytest.raises(KernelError, match=text):
            launch()


def test_a_failed_static_assert_refuses_the_launch_and_the_session_goes_on(kernels, machine, capsys):
    x, out = np.arange(16, dtype=np.float32), np.zeros(16, np.float32)
    with kb.session(machine, data=True) as torch, on(torch):
        with pytest.raises(StaticAssertError, match=r"^\S+kernels\.py:\d+: kernel copied_if_small, .*: at most 8$"):
            kernels.copied_if_small[(1,)](x, out, B=16)
        assert not out.any()
        assert torch.result.launches == ()
        capsys.readouterr()
        kernels.copied_if_small[(1,)](x, out, B=8)
    assert out.tolist() == [*range(8), *[0] * 8]
    assert capsys.readouterr().out == "size 8\n", "trying a program prints nothing"


def test_nan_is_above_all_numbers_in_a_sort(kernels, machine):
    x, out = np.array([2, np.nan, -np.inf, np.inf], np.float32), np.zeros(4, np.float32)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.falling[(1,)](x, out, B=4)
    np.testing.assert_array_equal(out, [np.nan, np.inf, 2, -np.inf])


def test_elements_that_a_mask_left_out_are_no_divisors(kernels, machine):
    x, y, out = np.arange(-30, 33), np.arange(63) % 7 + 1, np.zeros(63, np.int64)
    with kb.session(machine, data=True) as torch, on(torch):
        kernels.remainders[(1,)](x, y, out, 63, B=64)
    np.testing.assert_array_equal(out, np.fmod(x, y) + np.trunc(x / y).astype(np.int64))
    y[5] = 0
    with kb.session(machine, data=True) as torch, on(torch), pytest.raises(KernelError, match="1 of 64 divisors are 0"):
        kernels.remainders[(1,)](x, y, out, 63, B=64)


def test_a_launch_gives_the_kernel_with_its_constants(kernels, machine):
    x, out = np.ones(40, np.float32), np.zeros((3, 40), np.float32)
    with kb.session(machine, data=True) as torch, kb.triton.on(torch):
        kernel = kernels.add[(3,)](x, x, out[0], 40, BLOCK=16)
        kernel[(3, 1, 1)](x, x, out[1], 40)
        kernel[(2, 1, 1)](x, x, out[2], 40, 32)
    assert (out == 2).all()
