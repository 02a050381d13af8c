"""A pseudo channel under the timing of HBM3 at 25.6 GB/s, against times found by hand: a clock is 0.625 ns.

Without other constraints, a read of a closed row takes tRCDRD + CL + BL = 19.375 + 12.5 + 1.25 ns.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.config._dram import dram, dram_controller
from kernbench.sim_engine import _dram
from kernbench.sim_engine._dram import DramSlice
from kernbench.sim_engine._network import Clock, Network
from kernbench.sim_engine._transaction import Route, Transaction
from kernbench.topology._naming import hbm
from kernbench.topology.builder import resolve_topology
from tests.components import one_pe

HIT, MISS = 12.5 + 1.25, 19.375 + 12.5 + 1.25
WRITTEN = 6.25 + 1.25  # from a write command to the end of its data
GROUPS, COLUMNS, BANKS = 4, 32, 4


class Replies(Network):
    """The network behind a slice: notes when the last flit of each reply is ready [ps], and how many there were."""

    def __init__(self) -> None:
        self.env = Clock()
        self.core = self.env.core
        self.ends: dict[int, int] = {}
        self.flits: dict[int, int] = {}

    def train(self, route, n, size, key, fn, arg):
        self.ends[key] = self.core.now
        self.flits[key] = self.flits.get(key, 0) + n

    def send(self, route, nbytes, key, fn, arg, each=False):
        self.train(route, 1, nbytes, key, fn, arg)


def at(row=0, bank=0, group=0, column=0) -> int:
    """Return an address of the mapping RoBaCoBg."""
    return (((row * BANKS + bank) * COLUMNS + column) * GROUPS + group) * 32


def slice_of(**hbm) -> tuple[Replies, DramSlice]:
    chosen = {"timing": "hbm3", "hash": "none", "channels": 1, "channel_bw_gbs": 25.6, "burst_bytes": 32, **hbm}
    machine = resolve_topology("preset:default", {f"cube.hbm.{key}": value for key, value in chosen.items()})
    replies = Replies()
    return replies, DramSlice(replies, machine.config.cube.hbm, None)


def ask(replies, part, requests) -> None:
    """Ask for (kind, address, start ns, bytes)."""
    for key, (kind, address, t, *nbytes) in enumerate(requests):
        txn = Transaction(*(nbytes or [32]), address, lambda _: None)
        txn.key, txn.back = key, Route((), 0, None, 256)
        replies.core.call_at(round(t * 1000), part.on_read if kind == "read" else part.on_write, txn)


def ends(*requests, **hbm) -> list[float]:
    """Return when each read is done, and each write is acknowledged [ns]."""
    replies, part = slice_of(**hbm)
    ask(replies, part, requests)
    replies.env.run()
    return [replies.ends[key] / 1000 for key in range(len(requests))]


def written(*requests) -> float:
    """Return when the data of the last access are transferred [ns]."""
    replies, part = slice_of()
    ask(replies, part, requests)
    replies.env.run()
    return part.channels[0].busy / 1000


@pytest.fixture
def with_(monkeypatch):
    """Change parameters of the standards."""

    def change(**values) -> None:
        def changed(name):
            part = dram(name)
            ns = {**part.ns, **{key: value for key, value in values.items() if key in part.ns}}
            clocks = {**part.clocks, **{key: value for key, value in values.items() if key in part.clocks}}
            assert values.keys() <= ns.keys() | clocks.keys()
            return replace(part, ns=ns, clocks=clocks)

        monkeypatch.setattr(_dram, "dram", changed)

    return change


COLD, OPEN = ("read", at(), 0), ("read", at(column=9), 0)
TWO_GROUPS = (
    ("read", at(), 0),
    ("read", at(group=1), 0),
    ("read", at(column=1), 100),
    ("read", at(group=1, column=1), 100),
)
SAME_GROUP = (("read", at(), 0), ("read", at(column=1), 100), ("read", at(column=2), 100))
CONFLICT = (("read", at(), 0), ("read", at(row=1), 0))
FIVE_BANKS = tuple(("read", at(group=i % 4, bank=i // 4), 0) for i in range(5))
LATE_CONFLICT = (("read", at(), 0), ("read", at(column=1), 100), ("read", at(row=1), 100))
WRITE_THEN_ROW = (("write", at(), 0), ("read", at(row=1), 20))
OPEN_TWO = (("read", at(), 0), ("read", at(group=1), 0))
AFTER_WRITE = (*OPEN_TWO, ("write", at(column=1), 100), ("read", at(group=1, column=1), 101))
AFTER_WRITE_SAME_GROUP = (*OPEN_TWO, ("write", at(column=1), 100), ("read", at(column=2), 101))
REFRESHED_BANK, OTHER_BANK = (("read", at(), 244),), (("read", at(group=1), 244),)


@pytest.mark.parametrize(
    ("requests", "last", "parameter", "lower", "without"),
    [
        pytest.param((COLD,), MISS, "tRCDRD", 10, 10 + HIT, id="tRCDRD"),
        pytest.param((COLD,), MISS, "CL", 10, 19.375 + 10 + 1.25, id="CL"),
        pytest.param(TWO_GROUPS, 100 + 1.25 + HIT, "tCCD_S", 1, 100 + 0.625 + HIT, id="tCCD_S"),
        # In the same group tCCD_L applies, of two groups tCCD_S.
        pytest.param(SAME_GROUP, 100 + 2.5 + HIT, "tCCD_L", 1, 100 + 1.25 + HIT, id="tCCD_L"),
        # Without tRRD_S the second column follows the first by tCCD_S.
        pytest.param(OPEN_TWO, 2.5 + MISS, "tRRD_S", 0.625, 1.25 + MISS, id="tRRD_S"),
        pytest.param((COLD, ("read", at(bank=1), 0)), 3.125 + MISS, "tRRD_L", 0.625, 2.5 + MISS, id="tRRD_L"),
        # The fifth ACT; without the window it is 2.5 after the fourth.
        pytest.param(FIVE_BANKS, 15 + MISS, "tFAW", 5, 10 + MISS, id="tFAW"),
        # Of one bank: tRC, else tRAS + tRP.
        pytest.param(CONFLICT, 45 + MISS, "tRC", 40, 28.125 + 16.25 + MISS, id="tRC"),
        pytest.param(LATE_CONFLICT, 100 + 5.625 + 16.25 + MISS, "tRTP", 0.625, 100 + 0.625 + 16.25 + MISS, id="tRTP"),
        pytest.param(LATE_CONFLICT, 100 + 5.625 + 16.25 + MISS, "tRP", 5, 100 + 5.625 + 5 + MISS, id="tRP"),
        pytest.param(
            WRITE_THEN_ROW, 9.375 + WRITTEN + 20.625 + 16.25 + MISS, "tWR", 0, 45 + MISS, id="tWR"
        ),
        pytest.param(AFTER_WRITE, 100 + WRITTEN + 4.375 + HIT, "tWTR_S", 0, 100 + WRITTEN + HIT, id="tWTR_S"),
        pytest.param(
            AFTER_WRITE_SAME_GROUP, 100 + WRITTEN + 6.25 + HIT, "tWTR_L", 0, 100 + WRITTEN + 4.375 + HIT, id="tWTR_L"
        ),
        pytest.param(AFTER_WRITE, 100 + WRITTEN + 4.375 + HIT, "CWL", 2.5, 100 + 3.75 + 4.375 + HIT, id="CWL"),
        # Bank 0 is refreshed from 243.75 on.
        # Without tRFCpb, tRREFD applies to it as well.
        pytest.param(REFRESHED_BANK, 243.75 + 200 + MISS, "tRFCpb", 0.625, 243.75 + 5 + MISS, id="tRFCpb"),
        pytest.param(REFRESHED_BANK, 243.75 + 200 + MISS, "tREFI", 4800, 244 + MISS, id="tREFI"),
        pytest.param(OTHER_BANK, 243.75 + 5 + MISS, "tRREFD", 0.625, 244.375 + MISS, id="tRREFD"),
    ],
)  # fmt: skip
def test_a_constraint_binds_and_with_another_value_does_not(with_, requests, last, parameter, lower, without):
    assert ends(*requests)[-1] == last
    with_(**{parameter: lower})
    assert ends(*requests)[-1] == without


def test_a_slice_tells_rows_bursts_and_the_share_of_time_in_which_its_data_buses_are_busy():
    def activity(*requests, **hbm):
        replies, part = slice_of(**hbm)
        ask(replies, part, requests)
        replies.env.run()
        return part.activity

    ps = 1250  # of an access
    # Four columns of a row, tCCD_L apart; later one more, and with a conflict another row.
    row = tuple(("read", at(column=i), 0) for i in range(4))
    first = 33_125 + 3 * 2500
    assert activity(*row) == (1, 1, 4, 4 * ps, first)
    assert activity(*row, ("read", at(column=9), 100)) == (2, 1, 5, 5 * ps, first + 13_750)
    assert activity(*row, ("read", at(row=1), 100)) == (2, 2, 5, 5 * ps, first + 16_250 + 33_125)
    # Bursts of two accesses over two channels, which share a schedule until only one of them is asked.
    two = {"channels": 2, "burst_bytes": 64}
    both = activity(("read", 0, 0, 128), **two)
    assert both == (2, 4, 2, 4 * ps, 2 * (33_125 + 2500))
    assert activity(("read", 0, 0, 128), ("read", 0, 100, 64), **two) == (3, 4, 3, 6 * ps, both[-1] + 12_500 + 2 * ps)


def test_a_row_stays_open_for_tras(with_):
    # With tRC out of the way: the row closes after tRAS, else after tRCDRD + tRTP.
    with_(tRC=40)
    assert ends(*CONFLICT)[-1] == 28.125 + 16.25 + MISS
    with_(tRC=40, tRAS=20)
    assert ends(*CONFLICT)[-1] == 19.375 + 5.625 + 16.25 + MISS


def test_a_write_waits_for_trcdwr_and_its_data_for_cwl(with_):
    assert written(("write", at(), 0)) == 9.375 + 6.25 + 1.25
    with_(tRCDWR=5)
    assert written(("write", at(), 0)) == 5 + 6.25 + 1.25
    with_(CWL=2.5)
    assert written(("write", at(), 0)) == 9.375 + 2.5 + 1.25


def test_a_write_waits_for_trtw_after_a_read(with_):
    requests = (OPEN, ("read", at(), 100), ("write", at(column=1), 101))
    assert written(*requests) == 100 + 12.5 + WRITTEN
    with_(tRTW=0.625)
    assert written(*requests) == 101 + WRITTEN


def test_writes_follow_each_other_by_tccd(with_):
    other, same = (
        (*OPEN_TWO, ("write", at(column=1), 100), ("write", at(group=g, column=2), 100)) for g in (1, 0)
    )  # fmt: skip
    assert (written(*other), written(*same)) == (100 + 1.25 + WRITTEN, 100 + 2.5 + WRITTEN)
    with_(tCCD_S=1, tCCD_L=3)
    assert (written(*other), written(*same)) == (100 + 0.625 + WRITTEN, 100 + 1.875 + WRITTEN)


def test_a_refresh_waits_for_trc_and_trrd(with_):
    # The row opens at 230 and closes at 258.125: REF after tRC at 275, else after tRP at 274.375.
    same_bank = (("read", at(), 230), ("read", at(), 300))
    # Another bank's row opens at 243: REF at 245.5, else at 243.75.
    other_bank = (("read", at(group=1), 243), ("read", at(), 250))
    assert (ends(*same_bank)[1], ends(*other_bank)[1]) == (275 + 200 + MISS, 243 + 2.5 + 200 + MISS)
    with_(tRC=40, tRRD_S=0.625)
    assert (ends(*same_bank)[1], ends(*other_bank)[1]) == (274.375 + 200 + MISS, 243.75 + 200 + MISS)


def test_banks_are_refreshed_group_after_group():
    assert ends(("read", at(bank=1), 488)) == [2 * 243.75 + 200 + MISS]
    assert ends(("read", at(group=1), 488)) == [2 * 243.75 + 5 + MISS]
    assert ends(("read", at(group=1), 5 * 243.75 + 1)) == [5 * 243.75 + 200 + MISS]


def test_a_refresh_closes_the_row_first():
    # Open since 0; closed at 243.75, refreshed 16.25 later, for 200.
    assert ends(OPEN, ("read", at(), 250))[-1] == 243.75 + 16.25 + 200 + MISS
    # Another bank's row stays open.
    assert ends(("read", at(group=1), 0), ("read", at(group=1), 250))[-1] == 250 + HIT


def test_a_refresh_that_waits_for_its_bank_stops_the_channel(monkeypatch):
    # Bank 0 closes its row at 243.75 and is refreshed at 260. Until then, the open row of another bank waits.
    requests = (OPEN, ("read", at(group=1), 0), ("read", at(group=1, column=1), 244))
    assert ends(*requests)[-1] == 243.75 + 16.25 + HIT
    monkeypatch.setattr(_dram, "dram_controller", lambda: replace(dram_controller(), refresh="bank"))
    assert ends(*requests)[-1] == 244 + HIT


def test_no_row_opens_while_a_refresh_waits_for_its_bank(monkeypatch):
    # Bank 0 closes its row at 243.75 and is refreshed at 260; another bank opens its row tRREFD later.
    requests = (OPEN, ("read", at(group=1), 244))
    assert ends(*requests)[-1] == 243.75 + 16.25 + 5 + MISS
    monkeypatch.setattr(_dram, "dram_controller", lambda: replace(dram_controller(), refresh="bank"))
    assert ends(*requests)[-1] == 244 + MISS


def test_refreshes_of_an_idle_time_are_made_up_for():
    # 1600 refreshes later, each bank's row is closed, and bank 0 is being refreshed.
    t = 243.75 * 1601
    assert ends(OPEN, ("read", at(), t + 1), ("read", at(group=1), t + 1))[1:] == [t + 200 + MISS, t + 5 + MISS]


def test_the_oldest_hit_goes_before_an_older_miss():
    first, miss, hit = ends(OPEN, ("read", at(row=1), 100), ("read", at(), 100))
    assert (first, hit) == (MISS, 100 + HIT)
    assert miss == 100 + 5.625 + 16.25 + MISS
    # What arrives when the row is closed waits for the next one.
    assert ends(OPEN, ("read", at(row=1), 100), ("read", at(), 103))[2] > miss


def test_writes_wait_for_reads_until_the_queue_is_nearly_full():
    # Reads of one bank, a row each: one at a time, so that some wait until the last one's row opens.
    reads = [("read", at(row=i), 0) for i in range(40)]

    def while_reading(n: int) -> list[float]:
        return ends(*reads, *(("write", at(row=500, bank=2, group=i % 4, column=i // 4), 0) for i in range(n)))[:39]

    alone = ends(*reads)[:39]
    assert while_reading(51) == alone
    assert while_reading(52)[0] > alone[0]


def test_writing_ends_when_the_queue_is_nearly_empty(monkeypatch):
    # Of 60 writes to open rows of four groups, 48 go before the read: 12 are less than 20 % of 64. The last is at
    # 158.75 in group 3.
    opened = [("read", at(bank=2, group=g), 0) for g in range(4)]
    writes = [("write", at(bank=2, group=i % 4, column=1 + i // 4), 100) for i in range(60)]
    requests = (COLD, *opened, *writes, ("read", at(column=1), 100))
    assert ends(*requests)[-1] == 100 + 47 * 1.25 + WRITTEN + 4.375 + HIT
    monkeypatch.setattr(_dram, "dram_controller", lambda: replace(dram_controller(), write_low=0.5))
    # 29, the last in the read's group.
    assert ends(*requests)[-1] == 100 + 28 * 1.25 + WRITTEN + 6.25 + HIT


def test_a_write_is_acknowledged_when_the_queue_has_it():
    requests = [("write", at(row=i), 0) for i in range(66)]
    found = ends(*requests)
    assert found[:64] == [0] * 64
    # Rows of one bank: a place is free when a row opens for its write, at 0 and then with every other row.
    row = 9.375 + WRITTEN + 20.625 + 16.25
    assert found[64:] == [0, row]


def test_a_write_to_two_channels_is_acknowledged_when_both_have_it():
    # A place is free when the second row opens: in channel 0 a nanosecond later than in channel 1.
    fill = [("write", 2 * at(row=i) + 32 * channel, 1 - channel) for i in range(65) for channel in (0, 1)]
    row = 9.375 + WRITTEN + 20.625 + 16.25
    assert ends(*fill, ("write", 2 * at(row=500), 10, 64), channels=2)[-1] == 1 + row


def test_bursts_larger_than_an_access_take_consecutive_accesses():
    # 256 B are two columns of four groups. The last row opens after 3 tRRD_S. Its first column waits tCCD_S for the
    # group before, its second one tCCD_L.
    assert ends(("read", 0, 0, 256), burst_bytes=256) == [3 * 2.5 + 1.25 + 2.5 + MISS]
    # In one bank, eight columns tCCD_L apart.
    assert ends(("read", 0, 0, 256), burst_bytes=256, mapping="RoBaBgCo") == [7 * 2.5 + MISS]


@pytest.mark.parametrize(
    ("mapping", "same_row", "same_bank"),
    [("RoBaBgCo", 992, 16384), ("RoBaCoBg", 128, 16384), ("RoCoBgBa", 512, 16384), ("RoBgBaCo", 32, 16384)],
)
def test_a_mapping_places_rows(mapping, same_row, same_bank):
    hit, miss = (ends(("read", 0, 0), ("read", offset, 100), mapping=mapping)[1] for offset in (same_row, same_bank))
    assert (hit, miss) == (100 + HIT, 100 + 16.25 + MISS)


def test_channels_work_side_by_side():
    # The first 256 B of a channel as above, then an access each tCCD_S.
    one, eight = (ends(("read", 0, 0, 4096), channels=n, burst_bytes=256)[0] for n in (1, 8))
    assert (one, eight) == (11.25 + 120 * 1.25 + MISS, 11.25 + 8 * 1.25 + MISS)


def drawn(seed: int, n: int) -> list[tuple[str, int, float, int]]:
    rng = Random(seed)
    kinds, sizes = ("read", "read", "write"), (1, 64, 700, 4096)
    return [(rng.choice(kinds), rng.randrange(1 << 22), rng.randrange(4000), rng.choice(sizes)) for _ in range(n)]


def test_commands_are_fixed_for_the_time_of_two_accesses():
    # Four reads of one group, tCCD_L apart from 100 on. One of another group fits between those not yet fixed.
    group = [("read", at(column=i), 100) for i in range(1, 5)]
    opened = (("read", at(), 0), ("read", at(group=1), 0))

    def other(t: float) -> float:
        return ends(*opened, *group, ("read", at(group=1, column=1), t))[-1]

    assert other(100) == 100 + 1.25 + HIT
    # At 100 the commands before 102.5 are fixed: one. At 102.5, one more.
    assert other(100.1) == 100 + 1.25 + HIT
    assert other(101.3) == 101.3 + HIT
    assert other(102.6) == 102.5 + 1.25 + HIT


def test_packed_tiles_take_fewer_rows_than_strided_ones():
    # A tile of 32 x 64 f16: 4 KiB in sequence, or 32 lines of 256 B in rows of a matrix 16 KiB wide.
    def tile(lines) -> float:
        replies, part = slice_of(channels=8, burst_bytes=256)
        txn = Transaction(4096, 0, lambda _: None, lines=lines)
        txn.key, txn.back = 0, Route((), 0, None, 256)
        replies.core.call_at(0, part.on_read, txn)
        replies.env.run()
        return replies.ends[0] / 1000

    packed, near, far = tile(range(16)), tile(range(0, 32, 2)), tile(range(0, 16 * 65, 65))
    assert packed == tile(None)
    # Half of the channels serve twice the bursts: the bus decides.
    assert near == packed + 2 * 10
    # Two rows of the same banks for each channel: the second burst takes as long as the first, after tRC.
    assert (packed, far) == (11.25 + 10 + MISS, 45 + 11.25 + MISS)


def apart(part) -> None:
    """Give each channel its own schedule."""
    while len(part.channels) < part.n:
        part.channels.append(part.channels[0].split([part.n - len(part.channels)]))
    part.channels.sort(key=lambda channel: channel.numbers)
    part.of = part.channels.copy()


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([256, 1024]), st.sampled_from(["none", "xor"]))
@pytest.mark.slow
def test_channels_that_share_a_schedule_take_as_long_as_apart(seed, burst, hashed):
    rng = Random(seed)
    # Mostly what all channels are asked alike: whole rounds, and lines of every other or every fourth channel.
    requests = drawn(seed, 4) + [(rng.choice(("read", "write")), 0, rng.randrange(2000), 4096) for _ in range(40)]
    lines = [range(first := rng.randrange(1 << 12), first + 16 * step, step) for step in rng.choices((1, 2, 4), k=44)]
    found = []
    for separate in (False, True):
        replies, part = slice_of(channels=8, burst_bytes=burst, hash=hashed)
        if separate:
            apart(part)
        txns = [Transaction(4096, 0, lambda _: None, lines=of) for of in lines]
        for key, (txn, (kind, _, t, _)) in enumerate(zip(txns, requests, strict=True)):
            txn.key, txn.back = key, Route((), 0, None, 256)
            replies.core.call_at(t * 1000, part.on_read if kind == "read" else part.on_write, txn)
        replies.env.run()
        found.append((replies.ends, [(t.served_ps, t.since_ps, t.opener) for t in txns], part.busy_ps))
    assert found[0] == found[1]


def test_a_hash_puts_rows_of_a_bank_in_different_banks():
    """The bank is XORed with the row: rows 0 to 31 of bank 5 are where row r has bank 5 ^ r % 16 without a hash."""
    asked = [("read", at(row=r, bank=1, group=1), r) for r in range(32)]
    placed = [("read", at(row=r, bank=(5 ^ r) % 4, group=(5 ^ r) % 16 // 4), r) for r in range(32)]
    assert ends(*asked, hash="xor") == ends(*placed)
    assert ends(*asked, hash="xor")[15] < ends(*asked)[15] / 2  # without it, a row each tRC


def test_a_hash_puts_equal_banks_of_later_rows_in_different_channels():
    """The channel is XORed with the bits of the row above those of the bank: row 16 c of channel 0 is in channel c."""
    lines = [at(row=16 * c) // 32 for c in range(4)]
    asked = [("read", 4 * line * 32, c) for c, line in enumerate(lines)]
    placed = [("read", (4 * line + c) * 32, c) for c, line in enumerate(lines)]
    assert ends(*asked, hash="xor", channels=4) == ends(*placed, channels=4)
    assert max(ends(*asked, hash="xor", channels=4)) < max(ends(*asked, channels=4))


@pytest.mark.parametrize("channels", [1, 8])
def test_a_hash_gives_each_line_a_place_of_its_own(channels):
    _, part = slice_of(channels=channels, hash="xor")
    lines = range(1 << 15)
    assert len({(part._channel(line), line // channels) for line in lines}) == len(lines)
    assert {part._channel(line) for line in lines} == set(range(channels))


def scheduled(gather: str, size: int) -> tuple[list[list[int]], int, int]:
    """Return which channels share schedules after a product on one PE, their accesses, and those of all channels."""
    engine = one_pe.run(
        one_pe.gemm(size, size, size), {"cube.hbm.timing": "hbm3", "cube.hbm.hash": "none", "cube.hbm.gather": gather}
    )
    channels = engine.parts[hbm(0, 0, 0)].channels
    every = sum(channel.orders * len(channel.numbers) for channel in channels)
    return [channel.numbers for channel in channels], sum(channel.orders for channel in channels), every


def test_channels_that_are_asked_for_the_same_share_a_schedule():
    # A and B in tiles of 4 KiB, 8 x 4 x 8 of each, and C: bursts of 4 accesses of 2 columns, a schedule for 8 channels.
    bursts = (2 * 8 * 4 * 8 * 4096 + 256 * 256 * 2) // 256
    assert scheduled("packed", 256) == ([[*range(8)]], bursts * 4 // 8, bursts * 4)
    # Rows of 2 bursts: a tile is every other line, which 4 channels are asked for alike.
    shared, own, every = scheduled("strided", 256)
    assert shared == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert own * 4 == every


def test_another_request_to_one_channel_splits_a_schedule():
    replies, part = slice_of(channels=4, burst_bytes=256)
    ask(replies, part, [("read", 0, 0, 1024), ("read", 2 * 256, 1, 256), ("read", 0, 2, 512)])
    replies.env.run()
    assert [channel.numbers for channel in part.channels] == [[0, 1], [2], [3]]


def test_longer_streams_take_longer_and_faster_channels_less():
    def stream(n: int, bw: float) -> float:
        return max(ends(*(("read", 32 * i, 0) for i in range(n)), channel_bw_gbs=bw))

    times = [stream(n, 25.6) for n in (1, 8, 64, 512, 2000)]
    assert times == sorted(set(times))
    rates = [stream(512, bw) for bw in (8, 16, 25.6, 32)]
    assert rates == sorted(set(rates), reverse=True)


@settings(max_examples=30)
@given(
    st.integers(0, 10**6), st.sampled_from(["hbm2e", "hbm3"]), st.sampled_from([1, 8]), st.sampled_from([32, 256, 1024])
)
def test_everything_is_served_once_and_no_faster_than_the_bus(seed, timing, channels, burst):
    requests = drawn(seed, 60)
    replies, part = slice_of(timing=timing, channels=channels, burst_bytes=burst)
    ask(replies, part, requests)
    replies.env.run()
    lines = sum((at + n - 1) // burst - at // burst + 1 for _, at, _, n in requests)
    assert part.busy_ps == lines * burst // 32 * 1250 // channels
    for key, (kind, _, _, nbytes) in enumerate(requests):
        assert replies.flits[key] == (-(-nbytes // 256) if kind == "read" else 1)
    for channel in part.channels:
        assert not any((channel.reads, channel.writes, channel.opened, channel.waiting, channel.active))
        assert channel.served <= channel.busy


def digest(engine: str) -> str:
    code = "from tests.sim_engine.test_dram import *; print(digest_here())"
    run = subprocess.run(
        [sys.executable, "-c", code], env={"KERNBENCH_ENGINE": engine, "PYTHONPATH": ":".join(sys.path)},
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return run.stdout


def digest_here() -> str:
    times = [
        ends(*drawn(seed, 80), timing=timing, channels=4, burst_bytes=256, hash=("none", "xor")[seed % 2])
        for seed in range(4)
        for timing in ("hbm2e", "hbm3")
    ]
    return sha256(repr(times).encode()).hexdigest()


@pytest.mark.slow
def test_the_core_and_its_definition_give_the_same_times():
    assert digest("core") == digest("definition")
