"""Atomic operations: what they cost, when they take effect, and what they order."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench.errors import RaceError
from kernbench.runtime_api.context import session
from tests.components.one_pe import pointer, rows, run
from tests.runtime_api.machines import small
from tests.triton_emu.recorder import program

PES = kb.DPPolicy(pe="row_wise", num_cubes=1, num_pes=2)


@pytest.mark.parametrize("gap", [1, 200])
@pytest.mark.parametrize("pe", [0, 7])
def test_an_atomic_is_a_store_and_a_load_of_the_same_elements(pe, gap):
    def atomic(tl) -> None:
        tl.atomic_add(pointer(0, pe, tl.int32) + tl.arange(0, 64) * gap, 1)

    def plain(tl) -> None:
        at = pointer(0, pe, tl.int32) + tl.arange(0, 64) * gap
        tl.store(at, tl.full((64,), 1, tl.int32))
        tl.wait(tl.load(at))

    one, two = run(atomic), run(plain)
    for kind in ("store", "load"):
        assert rows(one, kind) == rows(two, kind) != []
    assert rows(one, "load")[0][0] == rows(one, "store")[0][1]


@pytest.mark.parametrize("sem", [None, "acq_rel", "release", "relaxed", "acquire"])
def test_an_atomic_waits_for_earlier_stores_unless_it_is_relaxed(sem):
    def kernel(tl) -> None:
        tl.store(pointer(1 << 16, 7, tl.int32), tl.full((1024,), 5, tl.int32))
        tl.atomic_xchg(pointer(0, 0, tl.int32), 1, sem=sem)

    (first, end), (second, _) = sorted(rows(run(kernel), "store"))
    assert first == 2
    assert second == 4 if sem in ("relaxed", "acquire") else second == end > 4


def many(x, n, *, tl):
    for _ in range(n):
        tl.atomic_add(x + tl.arange(0, 8) // 4, 1)


def test_no_update_is_lost():
    with session(small(), data=True) as torch:
        x = torch.zeros(16, dtype=torch.int32, dp=PES)
        torch.launch("count", many, x, 5)
        assert x.numpy()[:2].tolist() == [5 * 4 * 2] * 2
        assert not x.numpy()[2:].any()


def locked(lock, x, found, *, tl):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    value = tl.load(x)
    tl.store(x, value + 1)
    tl.atomic_xchg(lock, 0)
    tl.store(found + tl.program_id(0) * 8, value)


def test_a_lock_orders_plain_accesses():
    with session(small(), data=True) as torch:
        lock, x = (torch.zeros(16, dtype=torch.int32, dp=PES) for _ in range(2))
        found = torch.zeros(16, dtype=torch.int32, dp=PES)
        torch.launch("lock", locked, lock, x, found)
        assert x.numpy()[0] == 2
        assert sorted(found.numpy()[::8].tolist()) == [0, 1]


def plain_and_atomic(x, *, tl):
    for i in range(20):
        if tl.program_id(0) == 0:
            tl.store(x, tl.full((8,), i, tl.int32))
        else:
            tl.atomic_add(x + tl.arange(0, 8), 1)


def test_a_plain_store_and_an_atomic_under_way_together_race():
    with session(small(), data=True) as torch:
        x = torch.zeros(16, dtype=torch.int32, dp=PES)
        torch.launch("race", plain_and_atomic, x)
        with pytest.raises(RaceError, match="race on 32 B"):
            torch.ahbm.synchronize()


def test_values_change_no_time():
    def time(data: bool) -> float:
        with session(small(), data=data) as torch:
            torch.launch("count", many, torch.zeros(16, dtype=torch.int32, dp=PES), 3)
        return torch.result.latency_ns

    assert time(True) == time(False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("atomic_max", 6, [6, 6, 9]), ("atomic_min", 6, [5, 2, 6]), ("atomic_and", 6, [4, 2, 0]),
        ("atomic_or", 6, [7, 6, 15]), ("atomic_xor", 6, [3, 4, 15]), ("atomic_xchg", 6, [6, 6, 6]),
    ],
)  # fmt: skip
def test_operations(name, value, expected):
    x = np.array([5, 2, 9], np.int32)
    tl, _, at = program(x)
    old = getattr(tl, name)(at + tl.arange(0, 3), value)
    assert old.numpy().tolist() == [5, 2, 9]
    assert x.tolist() == expected
