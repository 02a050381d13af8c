import ast
import gc
import re

import ml_dtypes
import numpy as np
import pytest

from kernbench._engine_selection import PACKAGE
from kernbench.errors import DeadlockError, KernelError, OutOfBoundsError, OutOfMemoryError
from kernbench.triton_emu._runner import run_kernel_program
from kernbench.triton_emu.testing import run_kernel
from tests.triton_emu.recorder import Recorder, pointer, program


def test_every_program_runs_in_order():
    seen = []

    def kernel(tl):
        seen.append((tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)))

    run_kernel(kernel, grid=(2, 3))
    assert seen == [(pe, cube, 2, 3) for cube in range(3) for pe in range(2)]


def test_arrays_stand_for_tensors():
    def kernel(x_ptr, y_ptr, n, tl):
        assert (x_ptr.dtype.element_ty, y_ptr.dtype.element_ty) == (tl.bfloat16, tl.float8e4nv)
        tl.store(y_ptr, tl.load(x_ptr, shape=(n,)) * 1000)

    x = np.array([0.001, 0.01, 1], ml_dtypes.bfloat16)
    y = np.zeros(3, ml_dtypes.float8_e4m3fn)
    run_kernel(kernel, x, y, 3)
    assert np.isnan(y.astype(np.float32)).tolist() == [False, False, True]


def test_an_array_that_is_not_contiguous_is_written_in_place():
    def kernel(x_ptr, tl):
        tl.store(x_ptr, tl.load(x_ptr, shape=(2, 3)) + 1)

    whole = np.zeros((3, 4), np.float32)
    run_kernel(kernel, whole[:, ::2].T)
    np.testing.assert_array_equal(whole, [[1, 0, 1, 0]] * 3)


def test_an_array_passed_twice_is_one_tensor():
    def kernel(x_ptr, out_ptr, tl):
        tl.store(out_ptr, tl.load(x_ptr, shape=4) * 2)
        tl.store(out_ptr, tl.load(x_ptr, shape=4) * 2)

    x = np.ones(4, np.float32)
    run_kernel(kernel, x, x)
    np.testing.assert_array_equal(x, [4] * 4)


def test_out_of_bounds_in_a_kernel_names_tensor_bytes_line_and_program():
    def kernel(x_ptr, y_ptr, tl):
        tl.load(y_ptr + 2 * tl.program_id(0), shape=(4,))

    with pytest.raises(OutOfBoundsError) as caught:
        run_kernel(kernel, np.zeros(9, np.float32), np.zeros(5, np.float32), grid=(2, 1))
    line = test_out_of_bounds_in_a_kernel_names_tensor_bytes_line_and_program.__code__.co_firstlineno + 2
    assert re.search(rf"test_program\.py:{line}: kernel kernel, program \(1, 0\): bytes 8 to 24", str(caught.value))
    assert "'y_ptr', which has 20" in str(caught.value)


def helper(tl, x):
    return x + tl.zeros(3, tl.float32)


def test_the_place_of_an_error_is_the_last_line_outside_the_language():
    def kernel(x_ptr, tl):
        helper(tl, tl.load(x_ptr, shape=(2,)))

    with pytest.raises(KernelError, match=rf"test_program.py:{helper.__code__.co_firstlineno + 1}: ") as caught:
        run_kernel(kernel, np.zeros(2, np.float32))
    assert isinstance(caught.value.__cause__, KernelError)


def test_any_error_in_a_kernel_is_a_kernel_error_with_its_cause():
    def kernel(tl):
        return 1 // 0

    with pytest.raises(KernelError, match=r"test_program\.py:\d+: .*ZeroDivisionError") as caught:
        run_kernel(kernel)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(("raised", "seen"), [(OutOfMemoryError, OutOfMemoryError), (DeadlockError, DeadlockError)])
def test_errors_of_the_machine_keep_their_kind(raised, seen):
    def kernel(tl):
        raise raised("why")

    with pytest.raises(seen, match="why"):
        run_kernel(kernel)


def test_an_unknown_name_lists_the_nearest():
    def kernel(tl):
        tl.arrange(0, 4)

    with pytest.raises(KernelError, match=r"tl.arrange is not supported; did you mean arange.* known: .*abs,"):
        run_kernel(kernel)
    tl, _, *_ = program()
    assert not hasattr(tl, "arrange")
    with pytest.raises(AttributeError, match=r"no attribute 'smu'; did you mean sum"):
        tl.zeros(3, tl.float32).smu()
    with pytest.raises(TypeError, match="unknown dtype 'f12'"):
        tl.zeros(3, "f12")


def test_a_value_is_dropped_with_its_last_reference():
    tl, backend, p = program(np.zeros((4, 4), np.float32))
    a = tl.load(p, shape=(4, 4))
    value = a._value
    b = a
    del a
    assert backend.dropped == []
    del b
    assert backend.dropped == [value]


def test_a_view_keeps_the_value():
    tl, backend, p = program(np.zeros((4, 4), np.float32))
    a = tl.load(p, shape=(4, 4))
    value, view = a._value, a.reshape(16)[:, None].reshape(2, 8)
    del a
    assert backend.dropped == []
    del view
    assert backend.dropped == [value]


def test_temporaries_are_dropped_at_once():
    tl, backend, p = program(np.zeros(4, np.float32))
    a = tl.load(p, shape=4)
    b = tl.exp(a * 2 + 1)
    mul, add, _ = backend.commands[1:]
    assert backend.dropped == [mul.output, add.output]
    assert b.shape == (4,)


KEPT_BY_NONE = {
    "abs": lambda tl, x: tl.abs(x), "exp": lambda tl, x: tl.exp(x), "trans": lambda tl, x: tl.trans(x),
    "permute": lambda tl, x: tl.permute(x, 1, 0), "max": lambda tl, x: tl.max(x, 0), "sum": lambda tl, x: tl.sum(x, 0),
    "argmax": lambda tl, x: tl.argmax(x, 0), "indices": lambda tl, x: tl.max(x, 0, return_indices=True),
    "cumsum": lambda tl, x: tl.cumsum(x, 0), "softmax": lambda tl, x: tl.softmax(x), "sort": lambda tl, x: tl.sort(x),
    "flip": lambda tl, x: tl.flip(x, 0), "cast": lambda tl, x: x.to(tl.float16), "bool": lambda tl, x: x.to(tl.int1),
    "bitcast": lambda tl, x: x.to(tl.int32, bitcast=True), "add": lambda tl, x: x + 1, "mod": lambda tl, x: x % 3,
    "fma": lambda tl, x: tl.fma(x, 2.0, x), "where": lambda tl, x: tl.where(x > 0, x, 0.0),
    "clamp": lambda tl, x: tl.clamp(x, 0.0, 1.0), "maximum": lambda tl, x: tl.maximum(x, 0.0),
    "copy": lambda tl, x: tl.copy(x), "broadcast": lambda tl, x: tl.broadcast_to(x[None], (2, 64, 64)),
    "dot": lambda tl, x: tl.dot(x, x, x), "dot of a transpose": lambda tl, x: tl.dot(x, x.T),
    "dot of stacks": lambda tl, x: tl.dot(x[None], x[None]), "reduce": lambda tl, x: tl.reduce(x, 0, tl.fdiv),
    "scan": lambda tl, x: tl.associative_scan(x, 0, tl.add), "join": lambda tl, x: tl.join(x, x),
    "full": lambda tl, x: tl.full((4,), tl.sum(x), tl.float32), "pow": lambda tl, x: tl.pow(x, x),
    "gather": lambda tl, x: tl.gather(x, x.to(tl.int32) - 1, 0), "not": lambda tl, x: ~x.to(tl.int32),
}  # fmt: skip


@pytest.mark.parametrize("operation", KEPT_BY_NONE.values(), ids=KEPT_BY_NONE)
def test_a_command_with_values_keeps_no_handle(operation):
    # The function of a command is a closure, which may hold more than it needs; in compiled code it shares one scope.
    tl, backend, x_ptr = program(np.ones((64, 64), np.float32))
    x = tl.load(x_ptr, shape=(64, 64))
    value, found = x._held, operation(tl, x)
    del x
    assert any(dropped is value for dropped in backend.dropped), found


def test_constants_are_never_dropped():
    tl, backend, p = program(np.zeros(4, np.float32))
    tl.load(p + (tl.arange(0, 4) * 2) // 2)
    tl.store(p, tl.zeros(4, tl.float32))
    assert backend.dropped == [backend.commands[0].output]


def test_the_end_of_the_kernel_drops_its_locals():
    def kernel(x_ptr, tl):
        a = tl.load(x_ptr, shape=4)
        assert a.shape == (4,)

    backend = Recorder(data=False)
    run_kernel_program(kernel, (pointer(),), backend, (0, 0), (1, 1))
    assert backend.dropped == [backend.commands[0].output]


def test_what_outlives_the_program_is_not_dropped():
    kept = []

    def kernel(x_ptr, tl):
        kept.append(tl.load(x_ptr, shape=4))

    backend = Recorder(data=False)
    run_kernel_program(kernel, (pointer(),), backend, (0, 0), (1, 1))
    kept.clear()
    assert backend.dropped == []


@pytest.mark.slow
def test_the_cycle_collector_does_not_drop():
    tl, backend, p = program(np.zeros(4, np.float32))
    cycle = [tl.load(p, shape=4)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert backend.dropped == []
    tl.load(p, shape=4)
    assert len(backend.dropped) == 1


@pytest.mark.parametrize(
    "read", [float, bool, int, lambda x: float(x.item()), lambda x: x.numpy(), lambda x: [1, 2][x.to("i32")]]
)
def test_reading_a_value_waits_for_it_and_needs_data(read):
    tl, backend, p = program(np.ones(1, np.float32))
    x = tl.load(p)
    assert read(x) in (1, 2)
    assert len(backend.blocked) == 1
    tl, backend, p = program(np.ones(1, np.float32), data=False)
    with pytest.raises(KernelError, match="data=True"):
        read(tl.load(p))
    assert backend.blocked == []


def test_wait_takes_tiles_and_blocks_on_no_constant():
    tl, backend, p = program(np.ones(4, np.float32), data=False)
    x = tl.load(p, shape=4)
    tl.wait(x, tl.arange(0, 4))
    assert backend.blocked == [x._value]


def test_control_flow_may_depend_on_values():
    def kernel(x_ptr, n_ptr, tl):
        for i in tl.range(tl.load(n_ptr)):
            if tl.load(x_ptr + i) > 1:
                tl.store(x_ptr + i, 0)

    x = np.array([1, 2, 1, 2], np.int32)
    run_kernel(kernel, x, np.array([3], np.int64))
    np.testing.assert_array_equal(x, [1, 0, 1, 2])


def test_prints(capsys):
    def kernel(x_ptr, tl):
        tl.static_print("n =", tl.constexpr(4))
        tl.device_print("x", tl.load(x_ptr, shape=2), tl.arange(0, 2), "text")

    run_kernel(kernel, np.array([0.5, 1], np.float16))
    assert capsys.readouterr().out.splitlines() == [
        "n = 4", "pid (0, 0, 0) x [0.5 1. ]", "pid (0, 0, 0) x [0 1]", "pid (0, 0, 0) x text",
    ]  # fmt: skip


def test_a_print_waits_for_nothing(capsys):
    tl, backend, p = program(np.ones(2, np.float32))
    x = tl.load(p, shape=2)
    x._value.done_ps = -1
    tl.device_print("x", x)
    assert capsys.readouterr().out == ""
    for tell in x._value.waiters:
        tell(5, 0)
    assert capsys.readouterr().out == "pid (0, 0, 0) x [1. 1.]\n"
    tl, backend, p = program(np.ones(2, np.float32), data=False)
    tl.device_print("x", tl.load(p, shape=2))
    assert capsys.readouterr().out == "pid (0, 0, 0) x <tile 2 float32>\n"
    assert backend.blocked == []


def test_hints_and_assertions():
    tl, backend, p = program(np.ones(2, np.float32))
    assert tl.multiple_of(p, 16) is tl.max_contiguous(p, 16) is p
    tl.assume(p.va > 0)
    tl.debug_barrier()
    tl.static_assert(True)
    with pytest.raises(KernelError, match="static_assert failed: why"):
        tl.static_assert(1 > 2, "why")
    assert [*tl.static_range(1, 7, 2)] == [*tl.range(1, 7, 2, num_stages=3)] == [1, 3, 5]
    assert not backend.commands


def test_handles_print_well():
    tl, _, p = program(np.arange(40, dtype=np.float16))
    assert repr(p) == f"<pointer to float16 at {p.va:#x}>"
    assert repr(p + tl.arange(0, 8)) == f"<8 pointers to float16 from {p.va:#x}>"
    assert repr(tl.load(p, shape=40)) == "<tile 40 float16: [ 0.,  1., ..., 38., 39.]>"
    assert repr(tl.arange(0, 3)[:, None]) == "<constant 3x1 int32: [[0], [1], [2]]>".replace("], [", "],\n [")
    ref = tl.ref(p, (4, 10))
    assert (ref.shape, ref.dtype) == ((4, 10), tl.float16)
    assert repr(tl.composite("gemm", ref, tl.load(p, shape=(10, 4)), p)) == "<gemm 4x10x4, for tl.wait>"
    assert p == pointer("f16", p.va)
    assert len({p, pointer("f16", p.va), p + 1}) == 2


def test_compiled_functions_bind_no_parameter_anew():
    """The caller of compiled code keeps an argument until the call returns; in the definition a tile would be freed."""
    found = []
    for path in sorted((PACKAGE / "triton_emu").glob("*.pxd")):
        source = path.with_suffix(".py")
        for function in ast.walk(ast.parse(source.read_text())):
            if isinstance(function, ast.FunctionDef):
                parameters = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
                bound = {
                    node.id
                    for node in ast.walk(function)
                    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
                }
                found += [f"{source.name}: {function.name}: {name}" for name in sorted(parameters & bound)]
    assert found == []
