"""Values that a thread computes are those of a program without it, and are there before anything reads them."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import numpy as np
import pytest

import kernbench as kb
from kernbench.runtime_api import _making
from kernbench.sim_engine._memory_store import MemoryStore


def made(torch, sizes):
    """Random tensors of two devices, by both distributions, the last one on the host."""
    for i, n in enumerate(sizes):
        draw = torch.rand if i % 2 else torch.randn
        yield draw(n, device=f"ahbm:{i % 2}", dtype=torch.float16)
    yield torch.randn(5)


def two_sips():
    return kb.load("preset:small", overrides=["system.sips.count=2"])


def test_values_do_not_depend_on_the_thread(monkeypatch):
    found = []
    for least in (1 << 30, 100, 1):  # none, the large ones, all are computed by the thread
        monkeypatch.setattr(_making, "_LEAST", least)
        with kb.session(two_sips(), data=True) as torch:
            found.append([x.numpy() for x in made(torch, [7, 3000, 300, 5, 2000])])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)
    assert np.ptp(found[0][1].astype(float)) > 0.5


def test_values_are_computed_one_tensor_after_the_other(monkeypatch):
    monkeypatch.setattr(_making, "_LEAST", 100)
    second = threading.Event()

    def first(told):
        return np.full(400, second.wait(0.1))  # True if the second was begun meanwhile

    def other(told):
        second.set()
        return np.zeros(400)

    with kb.session(two_sips(), data=True) as torch:
        one, two = (torch.empty(400, device="ahbm:0") for _ in range(2))
        torch.fill_later(one, first)
        torch.fill_later(two, other)
        assert not one.numpy().any()


def test_a_program_continues_while_values_are_computed(monkeypatch):
    monkeypatch.setattr(_making, "_LEAST", 100)
    asked, allowed = threading.Event(), threading.Event()

    def values(told):
        asked.set()
        assert allowed.wait(60)
        told(400)
        return np.arange(400)

    with kb.session(two_sips(), data=True) as torch:
        late, other = torch.empty(400, device="ahbm:0"), torch.ones(4, device="ahbm:1")
        torch.fill_later(late, values)
        memory = torch.engine.memory
        assert asked.wait(60)
        assert (memory.made_bytes, memory.due_bytes) == (0, 1600)
        other += 1  # simulated meanwhile
        torch.ahbm.synchronize(1)
        allowed.set()
        assert late.numpy().tolist() == list(range(400))
        assert other.tolist() == [2.0] * 4
        assert memory.made_bytes == 1600


def test_an_error_is_raised_where_the_values_are_read(monkeypatch):
    monkeypatch.setattr(_making, "_LEAST", 1)

    def values(told):
        raise MemoryError("no room")

    with kb.session("preset:small", data=True) as torch:
        x = torch.empty(4, device="ahbm")
        torch.fill_later(x, values)
        with pytest.raises(MemoryError, match="no room"):
            x.peek()


def later(store, pieces, data):
    future = Future()
    store.later(pieces, future)
    return lambda: future.set_result(np.array(data, np.uint8))


def test_bytes_are_stored_in_the_order_of_the_calls():
    store, page = MemoryStore(), 1 << 18
    first = later(store, [(page - 2, 4)], [1, 2, 3, 4])
    second = later(store, [(page, 1), (5 * page, 1)], [9, 8])
    assert store.peek([(9 * page, 1)]).tolist() == [0], "nothing is due there"
    second()
    first()
    assert store.peek([(page, 1)]).tolist() == [9]
    assert store.peek([(page - 2, 4), (5 * page, 1)]).tolist() == [1, 2, 9, 4, 8]


def test_a_write_comes_after_what_was_due_before():
    store = MemoryStore()
    later(store, [(0, 4)], [1, 2, 3, 4])()
    store.poke([(1, 2)], np.array([7, 7], np.uint8))
    later(store, [(2, 1)], [5])()
    assert store.peek([(0, 4)]).tolist() == [1, 7, 5, 4]
