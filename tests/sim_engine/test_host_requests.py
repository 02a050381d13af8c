"""Copies between the host and the machine's memories, and what those hold."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.errors import KernbenchError
from tests.components.one_pe import engine_of, slice_pa


def test_host_copies_move_bytes_and_time():
    engine = engine_of(data=True)
    pieces = [(slice_pa(engine, 0) + 100, 1000), (slice_pa(engine, 3), 24)]
    data = np.arange(1024, dtype=np.uint32).view(np.uint8)[:1024]
    engine.wait(engine.write(pieces, data))
    written = engine.env.now
    assert written > 0
    assert (engine.memory.peek(pieces) == data).all()
    assert (engine.wait(engine.read(pieces)) == data).all()
    assert engine.env.now > written
    assert [row.kind for row in engine.records()] == ["h2d", "d2h"]
    assert [row.nbytes for row in engine.records()] == [1024, 1024]


def test_host_copies_without_values_take_the_same_time():
    def end(data: bool) -> int:
        engine = engine_of(data=data)
        pieces = [(slice_pa(engine, 1), 5000)]
        engine.wait(engine.write(pieces, np.zeros(5000, np.uint8) if data else None))
        value = engine.wait(engine.read(pieces))
        assert (value is None) != data
        return engine.env.now

    assert end(True) == end(False)


def test_copies_of_nothing_end_at_once():
    engine = engine_of(data=True)
    assert engine.wait(engine.write([], np.zeros(0, np.uint8))) is None
    assert len(engine.wait(engine.read([]))) == 0
    assert engine.env.now == 0


def test_an_address_that_no_memory_has_is_refused():
    engine = engine_of()
    with pytest.raises(KernbenchError):
        engine.read([(1 << 30, 256)])


def test_memory_is_zero_until_written_and_keeps_the_order_of_pieces():
    memory = engine_of(data=True).memory
    boundary = 1 << 18
    pieces = [(boundary - 3, 6), (5, 2)]
    assert memory.peek(pieces).tolist() == [0] * 8
    memory.poke(pieces, np.arange(1, 9, dtype=np.uint8))
    assert memory.peek([(boundary - 4, 8), (4, 4)]).tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 0]
    memory.peek(pieces)[:] = 99
    assert memory.peek([(5, 2)]).tolist() == [7, 8], "what is read is a copy"
