"""The mock runtime: messages, slots, and who waits for whom."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from kernbench.ccl._group import Group
from kernbench.ccl.algorithm import algorithm, plan_group
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.errors import ConfigError, IpcqDeadlock, IpcqInvalidDirection, KernelError


def zeros(n, size=4):
    return [np.full(size, rank, np.float16) for rank in range(n)]


def test_by_name_by_plan_and_by_place():
    x = zeros(3)
    run_kernel_in_mock("ring_allreduce_tcm", x)
    assert all((v == 3).all() for v in x)

    def double(t_ptr, n, world, *, tl):
        tl.store(t_ptr, tl.load(t_ptr, shape=n) * 2)

    places = {(sip, 0, 0): np.ones(2, np.float16) for sip in range(2)}
    run_kernel_in_mock(plan_group(algorithm(double, topology="none"), Group.line(2)), places)
    assert all((v == 2).all() for v in places.values())
    with pytest.raises(KernelError, match="3 tensors for 2 participants"):
        run_kernel_in_mock(plan_group(algorithm(double, topology="none"), Group.line(2)), zeros(3))


def test_programs_know_who_they_are():
    seen = []

    def kernel(t_ptr, n, world, *, tl):
        seen.append((tl.program_id(2), tl.num_programs(2), world))

    run_kernel_in_mock(kernel, zeros(3))
    assert seen == [(0, 3, 3), (1, 3, 3), (2, 3, 3)]


def test_a_deadlock_names_who_waits_for_whom():
    def kernel(t_ptr, n, world, *, tl):
        if tl.program_id(2) == 1:
            tl.send("E", t_ptr, shape=n)
        tl.recv("W", shape=n)

    message = (
        r"2 of 3 participants wait for each other: a deadlock:\n"
        r"- participant [01] \(sip[01].cube0.pe0\)\n    recv of 8 B from W \(participant [02]\)\n"
        r"    ring E: 0 messages"
    )
    with pytest.raises(IpcqDeadlock, match=message):
        run_kernel_in_mock(kernel, zeros(3))


def passed_on_in_place(t_ptr, n, world, *, tl):
    """All-gather that sends on what it received, from the slot that it came in."""
    for _ in range(2):
        tl.send("E", t_ptr, shape=n)
    held = [tl.recv("W", shape=n) for _ in range(2)]
    for tile in held:
        tl.send("E", tile)
    del held, tile
    for _ in range(2):
        tl.recv("W", shape=n)


def test_tiles_that_are_held_hold_their_slots():
    run_kernel_in_mock(passed_on_in_place, zeros(3), n_slots=2)
    with pytest.raises(
        IpcqDeadlock, match=r"ring W: 1 of 1 slots hold data .*; every slot holds a tile: drop it \(del\)"
    ):
        run_kernel_in_mock(passed_on_in_place, zeros(3), n_slots=1)


def test_longer_messages_leave_their_slots_as_they_come():
    run_kernel_in_mock(passed_on_in_place, zeros(3, size=8), n_slots=1, slot_bytes=4)


def test_messages_left_unread_are_named():
    def kernel(t_ptr, n, world, *, tl):
        tl.send("E", t_ptr, shape=n)

    with pytest.raises(
        KernelError, match=r"participant 0 .* ended without reading what participant 1 .* over 'E' \('W' .*\): 8 B;"
    ):
        run_kernel_in_mock(kernel, zeros(2))


def test_an_unknown_direction_lists_the_known():
    def kernel(t_ptr, n, world, *, tl):
        tl.send("north", t_ptr, shape=n)

    with pytest.raises(IpcqInvalidDirection, match=r"test_mock.py:\d+: kernel kernel.*no queue 'north'; .*E, W"):
        run_kernel_in_mock(kernel, zeros(2))


def test_alone_there_are_no_queues():
    def kernel(t_ptr, n, world, *, tl):
        tl.send("E", t_ptr, shape=n)

    with pytest.raises(IpcqInvalidDirection, match=r"no queue 'E'; it has none: .* no other program"):
        run_kernel_in_mock(kernel, zeros(1))


def test_each_participant_has_an_array_of_its_own():
    with pytest.raises(KernelError, match=r"\(0, 0, 0\) and \(1, 0, 0\) .* share an array; .*: x.copy\(\)"):
        run_kernel_in_mock("ring_allreduce_tcm", zeros(1) * 3)
    x = np.ones(4, np.float16)
    run_kernel_in_mock(lambda a_ptr, b_ptr, n, world, *, tl: None, [(x, x)])


def test_a_kernel_that_does_not_take_its_arguments_is_refused_as_on_the_machine():
    def kernel(t_ptr, n, world):
        pass

    with pytest.raises(ConfigError, match=r"takes no tl, .*; write kernel\(t_ptr, n, world, \*, tl\)"):
        run_kernel_in_mock(kernel, zeros(2))
    with pytest.raises(ConfigError, match=r"does not take what it would get, .*; give each device as many tensors"):
        run_kernel_in_mock("ring_allreduce_tcm", [(x, x.copy()) for x in zeros(2)])


@pytest.mark.parametrize("tensors", [[], [[1.0, 2.0], [3.0, 4.0]]])
def test_tensors_are_arrays(tensors):
    with pytest.raises(KernelError, match="expected a numpy array for each participant"):
        run_kernel_in_mock("ring_allreduce_tcm", tensors)


def test_a_message_is_received_as_it_was_sent():
    def kernel(t_ptr, n, world, *, tl):
        tl.send("E", t_ptr, shape=n)
        tl.recv("W", shape=n, dtype="f32")

    with pytest.raises(KernelError, match=r"recv of 16 B from 'W', where a message of 8 B is next"):
        run_kernel_in_mock(kernel, zeros(2))


def test_memory_that_a_message_is_still_to_come_to():
    """A load of it waits for the message; a store to what has been sent does not change it."""

    def kernel(t_ptr, n, world, *, tl):
        arrival = tl.recv_async("W", shape=n, dst=t_ptr + n)
        tl.send("E", t_ptr, shape=n)
        tl.store(t_ptr, tl.zeros((n,), tl.float16))
        tl.store(t_ptr, tl.load(t_ptr + n, shape=n) + 1)
        assert tl.wait(arrival) is None

    x = [np.array([rank, -1], np.float16) for rank in range(3)]
    algorithm_ = algorithm(kernel, lambda *, n_elem, world_size: (n_elem // 2, world_size))
    run_kernel_in_mock(algorithm_, x, n_slots=1)
    assert [v.tolist() for v in x] == [[3, 2], [1, 0], [2, 1]]


def lines_of(function):
    """Return the lines of Python that a call runs."""
    count = 0

    def trace(_frame, event, _arg):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("n_slots", [None, 2])
def test_a_message_costs_the_same_however_many_wait(n_slots):
    costs = []

    def kernel(t_ptr, n, world, *, tl):
        def send():
            tl.send("E", t_ptr, shape=n)

        if tl.program_id(2) == 0:
            for more in (8, 1000):
                for _ in range(more):
                    send()
                costs.append(min(lines_of(send) for _ in range(5)))  # a collection of garbage runs lines, too
        else:
            for _ in range(1018):
                tl.recv("W", shape=n)

    run_kernel_in_mock(kernel, zeros(2), n_slots=n_slots)
    assert costs[0] == costs[1] > 0
