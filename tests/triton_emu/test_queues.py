"""tl.send and tl.recv: the commands they make, and what they mean, in the mock."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.components._command import Send
from kernbench.errors import IpcqInvalidDirection, KernelError
from kernbench.triton_emu.testing import run_kernel
from kernbench.triton_emu.tl_context import TLContext
from tests.triton_emu.recorder import Recorder, pointer


class Open(Recorder):
    """Takes sends and receives, and completes none."""

    def submit(self, command):
        self.commands.append(command)


def opened(participant=(0, 1)):
    backend = Open()
    return TLContext(backend, (0, 0), (1, 1), participant), backend


def run(kernel, n=2, size=4, **settings):
    x = [np.arange(size, dtype=np.float16) + 10 * rank for rank in range(n)]
    run_kernel_in_mock(kernel, x, **settings)
    return x


def test_the_participant_is_the_third_axis():
    tl, _ = opened((5, 9))
    assert (tl.program_id(2), tl.num_programs(2)) == (5, 9)
    tl, _ = opened()
    assert (tl.program_id(2), tl.num_programs(2)) == (0, 1)


def test_sends_from_memory_and_from_a_tile():
    tl, backend = opened()
    tl.send("E", pointer("f16", va=64), shape=(3, 5))
    tl.send("W", 128, shape=2, dtype="f32")
    tl.send("E", tl.zeros((7,), tl.float16))
    first, second, third = backend.commands
    assert all(isinstance(c, Send) for c in backend.commands)
    assert (first.direction, first.nbytes, [(r.va, r.nbytes) for r in first.runs]) == ("E", 30, [(64, 30)])
    assert (second.direction, second.nbytes, second.runs[0].va) == ("W", 8, 128)
    assert (third.nbytes, third.runs, len(third.inputs)) == (14, (), 1)
    assert third.compute(np.arange(7, dtype=np.float32)).tobytes() == np.arange(7, dtype=np.float16).tobytes()


def test_receives_know_their_bytes():
    tl, backend = opened()
    tl.recv_async("W", shape=(2, 3))
    tl.recv_async(shape=4, dtype="f32", dst=512)
    tl.recv_async("N", shape=4, dst=pointer("bf16", va=64))
    any_type, plain, typed = backend.commands
    assert (any_type.direction, any_type.nbytes, any_type.output.dtype.name) == ("W", 12, "float16")
    assert (plain.direction, plain.nbytes, plain.output, plain.runs[0].va) == (None, 16, None, 512)
    assert (typed.nbytes, typed.consume) == (8, True)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda tl: tl.send("E", pointer()), "say how many elements to send with shape="),
        (lambda tl: tl.send("E", 64, shape=2), "plain byte address"),
        (lambda tl: tl.send("E", tl.zeros((2,), tl.float16), shape=3), "does not have the shape"),
        (lambda tl: tl.recv_async("W", shape=0), "at least 1"),
        (lambda tl: tl.zeros((2,), tl.float16).came_from, "did not come through a queue"),
    ],
)
def test_what_does_not_fit_is_refused(wrong, message):
    tl, _ = opened()
    with pytest.raises(KernelError, match=message):
        wrong(tl)


def test_without_queues_there_is_nobody_to_send_to():
    def kernel(x_ptr, *, tl):
        tl.send("E", x_ptr, shape=1)

    with pytest.raises(IpcqInvalidDirection, match="has no queues"):
        run_kernel(kernel, np.zeros(1, np.float16))


def test_values_and_types_arrive():
    def kernel(t_ptr, n, world, *, tl):
        tl.send("E", tl.load(t_ptr, shape=n) / 3, dtype="f32")
        tl.send("E", tl.load(t_ptr, shape=n), dtype="bf16")
        thirds = tl.recv("W", shape=n, dtype="f32")
        assert thirds.came_from == "W"
        tl.store(t_ptr, thirds * 3 + tl.recv("W", shape=n, dtype="bf16").to(tl.float32))

    x = run(kernel)
    np.testing.assert_array_equal(x[0], 2 * (np.arange(4) + 10))


def test_async_receives_complete_in_their_order():
    def kernel(t_ptr, n, world, *, tl):
        for step in range(3):
            tl.send("E", tl.load(t_ptr, shape=n) + step)
        handles = [tl.recv_async("W", shape=n) for _ in range(3)]
        first, second = tl.wait(*handles[:2])
        tl.store(t_ptr, second - first)
        tl.store(t_ptr, tl.load(t_ptr, shape=n) + tl.wait(handles[2]))

    x = run(kernel)
    np.testing.assert_array_equal(x[0], np.arange(4) + 10 + 3)


def test_any_direction_takes_the_earliest():
    def kernel(t_ptr, n, world, *, tl):
        me = tl.program_id(2)
        if me != 1:
            tl.send("E" if me == 0 else "W", t_ptr, shape=n)
            return
        seen = [tl.recv(shape=n) for _ in range(2)]
        assert sorted(tile.came_from for tile in seen) == ["E", "W"]
        tl.store(t_ptr, seen[0] + seen[1])

    x = run(kernel, n=3)
    np.testing.assert_array_equal(x[1], 2 * np.arange(4) + 20)


def test_looking_at_a_message_leaves_it():
    def kernel(t_ptr, n, world, *, tl):
        tl.send("E", t_ptr, shape=n)
        look, again = (tl.recv_no_consume("W", shape=n) for _ in range(2))
        tl.store(t_ptr, look + again + tl.recv("W", shape=n))

    x = run(kernel)
    np.testing.assert_array_equal(x[0], 3 * (np.arange(4) + 10))


def test_a_copy_is_an_operation_of_its_own():
    tl, backend = opened()
    x = tl.load(pointer(), shape=4)
    copied = tl.copy(x)
    assert copied._value is not x._value
    assert [op.kind for op in backend.commands[-1].work] == ["simple"]
