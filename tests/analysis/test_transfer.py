"""The closed form: its parts, and that they sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.analysis._transfer import (
    TRANSFER_PARTS,
    Channels,
    TransferLeg,
    TransferParts,
    message_parts,
    read_parts,
    write_parts,
)

FAST = Channels(8, 256, 8000)
LEGS = [TransferLeg(256, 0, 1000), TransferLeg(128, 50_000, 0), TransferLeg(256, 30, 8000)]

legs = st.lists(
    st.builds(TransferLeg, st.sampled_from([64, 100, 128, 256, 512.5]), st.integers(0, 10**5), st.integers(0, 9000)),
    min_size=1,
)
counts, bursts = st.sampled_from([1, 2, 8, 16]), st.sampled_from([64, 256, 512])
memories = st.builds(Channels, counts, bursts, st.integers(1, 20_000), st.integers(0, 50_000))


def test_parts_of_a_message_by_hand():
    parts = message_parts(LEGS, 1024)
    assert parts == TransferParts(wire=50_030, nodes=9000, fill=2000, serialization=8000)
    assert parts.total == 69_030


def test_a_message_below_a_flit_takes_its_own_bytes_and_one_above_whole_flits():
    assert message_parts(LEGS, 128).serialization == 1000
    assert message_parts(LEGS, 257).serialization == message_parts(LEGS, 512).serialization == 4000


def test_a_memory_as_fast_as_the_links_adds_its_first_burst():
    own = [TransferLeg(256, 0, 1000), TransferLeg(256, 0, 0)]
    assert read_parts(own, own, 4096, FAST).total == 27_000
    assert read_parts(own, own, 4096, FAST).memory == 8000


def test_a_slow_memory_adds_what_the_links_wait_for():
    own = [TransferLeg(256, 0, 1000), TransferLeg(256, 0, 0)]
    half = Channels(4, 256, 8000)
    # 16 bursts in 4 rounds of 8 ns; the last 4 of 16 flits are ready at 32 ns instead of 12 ns.
    assert read_parts(own, own, 4096, half).memory == 32_000 - 12_000
    # A write's flits come 1 ns apart; the last channel's bursts from 3 ns on, back to back, end at 35 ns, not 15 ns.
    assert write_parts(own, own, 4096, half).memory == 35_000 - 15_000


def test_access_is_paid_once_by_a_read():
    far = Channels(8, 256, 8000, access_ps=40_000)
    assert read_parts(LEGS, LEGS, 65_536, far).total - read_parts(LEGS, LEGS, 65_536, FAST).total == 40_000


def test_what_a_transfer_took_beyond_is_queueing():
    alone = message_parts(LEGS, 1024)
    loaded = alone.measured(alone.total + 123)
    assert loaded.queueing == 123
    assert loaded.total == alone.total + 123
    assert sum(loaded.columns().values()) == pytest.approx(loaded.total / 1000)
    assert list(loaded.columns()) == [f"{part}_ns" for part in TRANSFER_PARTS]


@given(legs, legs, memories, st.integers(1, 20_000), st.integers(1, 5000), st.integers(0, 1000))
def test_more_bytes_never_end_earlier_and_no_part_is_negative(there, back, memory, nbytes, more, offset):
    for form in (read_parts, write_parts):
        short, long = form(there, back, nbytes, memory, offset), form(there, back, nbytes + more, memory, offset)
        assert short.total <= long.total
        assert min(getattr(short, part) for part in TRANSFER_PARTS) >= 0
        assert short.queueing == 0
