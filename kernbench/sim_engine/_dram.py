"""One slice of a cube's memory stack under the timing of a DRAM standard (M4.10 to M4.13).

A controller schedules commands ahead, for the time of two accesses, so one calendar entry covers a batch of commands of
all channels. Channels that get the same bursts at the same times issue the same commands, which are computed once. The
compiled core and its definition share this module.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kernbench.analysis._records import DramActivity
from kernbench.config._dram import dram, dram_controller
from kernbench.sim_engine._transaction import Reply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kernbench.config._schema import Hbm
    from kernbench.sim_engine._memory_store import MemoryStore
    from kernbench.sim_engine._network import Network
    from kernbench.sim_engine._transaction import Transaction

_READ, _WRITE = 0, 1
CLOSED = -1
NEVER = 1 << 62
_AHEAD = 2  # accesses
_NUMBERS = attrgetter("numbers")


class Timing:
    """Timing of a pseudo channel [ps], and sizes and thresholds of its queues [accesses]."""

    def __init__(self, hbm: Hbm) -> None:
        ps, queues = dram(hbm.timing).times_ps(hbm.channel_bw_gbs), dram_controller()
        written = ps["CWL"] + ps["tBL"]
        self.access, self.read_data = ps["tBL"], ps["CL"] + ps["tBL"]
        self.act_read, self.act_write, self.act_pre = ps["tRCDRD"], ps["tRCDWR"], ps["tRAS"]
        self.act_bank, self.act_group, self.act_other, self.faw = ps["tRC"], ps["tRRD_L"], ps["tRRD_S"], ps["tFAW"]
        self.pre_act, self.read_pre, self.write_pre = ps["tRP"], ps["tRTP"], written + ps["tWR"]
        self.write_data = written
        self.col_group, self.col_other, self.read_write = ps["tCCD_L"], ps["tCCD_S"], ps["tRTW"]
        self.write_group, self.write_other = written + ps["tWTR_L"], written + ps["tWTR_S"]
        self.ref_bank, self.ref_every, self.ref_other = ps["tRFCpb"], ps["tREFIpb"], ps["tRREFD"]
        self.read_queue, self.write_queue = queues.read_queue, queues.write_queue
        self.refresh_alone = queues.refresh == "channel"
        self.write_high = round(queues.write_high * queues.write_queue)
        self.write_low = round(queues.write_low * queues.write_queue)


class BankGroup:
    """A bank group: the earliest times of its next commands [ps]."""

    def __init__(self) -> None:
        self.act = self.read = self.write = 0


class Bank:
    """A bank: its open row, the earliest times of its next commands [ps], and its queued accesses.

    `opener` is the access that its row was opened for, until that access is served.
    """

    def __init__(self, group: BankGroup) -> None:
        self.group = group
        self.row = CLOSED
        self.act = self.pre = self.read = self.write = 0
        self.reads: list[DramAccess] = []
        self.writes: list[DramAccess] = []
        self.opener: DramAccess | None = None

    def hit(self, queue: list[DramAccess]) -> DramAccess | None:
        """Find the oldest access in `queue` to the open row."""
        if self.row != CLOSED:
            for access in queue:
                if access.row == self.row:
                    return access
        return None


class DramAccess:
    """The part of a burst in one row: `count` columns remain to be read or written. `order` is its age."""

    def __init__(self, burst: Burst, bank: Bank, row: int, count: int, kind: int) -> None:
        self.burst, self.bank, self.row, self.count, self.kind = burst, bank, row, count, kind
        self.arrival = self.order = 0

    def copy(self, copies: dict[Any, Any]) -> DramAccess:
        """Copy into the copies of its bank and burst; `copies` maps originals to copies."""
        if self.burst not in copies:
            copies[self.burst] = twin = Burst(self.burst.request)
            twin.left, twin.end = self.burst.left, self.burst.end
        burst = copies[self.burst]
        other = copies[self] = DramAccess(burst, copies[self.bank], self.row, self.count, self.kind)
        other.arrival, other.order = self.arrival, self.order
        return other


class Burst:
    """A burst of a request, in each channel of a `Channel`.

    `left` counts its accesses that are not served (read) or not queued (write).
    """

    def __init__(self, request: DramRequest) -> None:
        self.request = request
        self.left = self.end = 0


class DramRequest(Reply):
    """A request at the memory; its parts are bursts, `done` when they are served (read) or queued (write).

    `ready_at` counts a read's scheduled bursts by completion time.
    """

    def __init__(self, txn: Transaction, bursts: int) -> None:
        self.begins(txn, bursts)
        self.ready_at: dict[int, int] = {}


class Channel:
    """Pseudo channels that issue the same commands: banks, the earliest times of their next commands [ps], and queues.

    `numbers` are the channels; all else is per channel. `clock` is the time of the latest command, `act_1` to `act_4`
    are those of the latest ACT commands. `reads` and `writes` count queued accesses, `opened` those whose row is being
    opened; `waiting` accesses do not fit into the queues. `due` is the time of the next command that is not fixed yet.
    Statistics: `begun` busy periods, opened `rows`, `served` time of the data bus [ps], and `worked` busy time until
    `since` [ps].
    """

    def __init__(self, owner: DramSlice, numbers: list[int]) -> None:
        self.owner, self.numbers = owner, numbers
        self.timing = timing = owner.timing
        self.groups = [BankGroup() for _ in range(owner.groups)]
        self.banks = [Bank(group) for group in self.groups for _ in range(owner.banks)]
        self.active: list[Bank] = []
        self.act_1 = self.act_2 = self.act_3 = self.act_4 = -timing.faw
        self.act = self.read = self.write = self.clock = self.orders = self.busy = 0
        self.reads = self.writes = self.opened = self.refreshed = 0
        self.waiting: deque[DramAccess] = deque()
        self.drains, self.due = False, NEVER
        self.begun = self.rows = self.served = self.worked = 0
        self.ahead: list[int] = []  # ends of accesses, in a live run
        self.since, self.key = 0, -1

    def split(self, numbers: list[int]) -> Channel:
        """Move `numbers` to a copy, as their future commands differ."""
        other = Channel(self.owner, numbers)
        copies: dict[Any, Any] = {None: None}
        self.numbers = [number for number in self.numbers if number not in numbers]
        for group, its in zip(self.groups, other.groups, strict=True):
            its.act, its.read, its.write = group.act, group.read, group.write
        for bank, twin in zip(self.banks, other.banks, strict=True):
            copies[bank] = twin
            twin.row, twin.act, twin.pre, twin.read, twin.write = bank.row, bank.act, bank.pre, bank.read, bank.write
            twin.reads = [access.copy(copies) for access in bank.reads]
            twin.writes = [access.copy(copies) for access in bank.writes]
            twin.opener = copies[bank.opener]
        other.active = [copies[bank] for bank in self.active]
        other.waiting = deque([access.copy(copies) for access in self.waiting])
        other.act_1, other.act_2, other.act_3, other.act_4 = self.act_1, self.act_2, self.act_3, self.act_4
        other.act, other.read, other.write = self.act, self.read, self.write
        other.clock, other.orders, other.busy, other.due = self.clock, self.orders, self.busy, self.due
        other.reads, other.writes, other.opened = self.reads, self.writes, self.opened
        other.refreshed, other.drains = self.refreshed, self.drains
        other.begun, other.rows, other.served, other.worked = self.begun, self.rows, self.served, self.worked
        other.ahead = self.ahead.copy()
        other.since, other.key = self.since, self.key
        return other

    def arrive(self, access: DramAccess, t: int, key: int) -> None:
        """Queue an access that arrives at `t`, or let it wait for room in its queue."""
        self.due = t
        if not (self.reads or self.writes or self.opened) and self.busy <= t:
            self.begun += 1
            self.worked += self.busy - self.since
            self.since, self.key = t, key
        if self.waiting or not self.has_room(access):
            self.waiting.append(access)
        else:
            self.admit(access, t)

    def has_room(self, access: DramAccess) -> bool:
        """Whether its queue has room; an empty one accepts an access of any size."""
        queued, size = self.reads, self.timing.read_queue
        if access.kind == _WRITE:
            queued, size = self.writes, self.timing.write_queue
        return not queued or queued + access.count <= size

    def admit(self, access: DramAccess, t: int) -> None:
        bank, request = access.bank, access.burst.request
        self.orders += 1
        access.order, access.arrival = self.orders, t
        if not bank.reads and not bank.writes:
            self.active.append(bank)
        if access.kind == _READ:
            bank.reads.append(access)
            self.reads += access.count
            return
        bank.writes.append(access)
        self.writes += access.count
        access.burst.left -= 1
        if not access.burst.left:
            request.done += len(self.numbers)
            txn = request.txn
            if t >= txn.served_ps:
                txn.served_ps, txn.since_ps, txn.opener = t, self.since, self.key
            if request.done == request.parts:
                self.owner.core.call_ordered(txn.served_ps, txn.key, self.owner.queued, txn)

    def schedule(self, now: int, until: int) -> int:
        """Fix the commands from `now` to `until`; return when the next one is due, `NEVER` if none is.

        Refreshes that were due in an idle period may be issued at times before `now`.
        """
        self.skip(now)
        while self.reads or self.writes or self.opened:
            kind, timing = self.mode(), self.timing
            first, chosen, column = NEVER, None, False
            refresh = self.refreshed + timing.ref_every
            refreshing = self.banks[self.refreshed // timing.ref_every % len(self.banks)]
            # The bank whose refresh is due closes its row, and opens no other.
            t = max(refresh, self.clock)
            if refreshing.row == CLOSED:
                first, chosen = max(t, refreshing.act, self.act), refreshing
            elif refreshing.opener is None:
                first, chosen = max(t, refreshing.pre), refreshing
            order, soonest, alone = 0, max(self.clock, now), timing.refresh_alone
            for bank in self.active:
                hit, head = bank.opener, None
                queue = bank.writes if kind else bank.reads
                if hit is None and queue:
                    head = queue[0]
                    hit = head if head.row == bank.row else bank.hit(queue)
                if hit is not None:
                    if hit.kind == _READ:
                        t = max(self.read, bank.group.read, bank.read, hit.arrival, soonest)
                    else:
                        t = max(self.write, bank.group.write, bank.write, hit.arrival, soonest)
                    # A row that a refresh is about to close serves only the access that it was opened for.
                    if (t < first or (t == first and (not column or hit.order < order))) and (
                        t < refresh or bank.opener is not None or not (alone or bank is refreshing)
                    ):
                        first, chosen, column, order = t, bank, True, hit.order
                if head is None or hit is head:
                    continue
                if bank.row == CLOSED:
                    t = max(bank.act, bank.group.act, self.act, self.act_4 + timing.faw, head.arrival, soonest)
                else:
                    t = max(bank.pre, head.arrival, soonest)
                if t >= refresh and (alone or bank is refreshing):
                    continue
                if t < first or (t == first and not column and head.order < order):
                    first, chosen, column, order = t, bank, False, head.order
            if first >= until:
                return first
            assert chosen is not None
            self.clock = first
            if column:
                self.column(chosen, kind, first)
            elif order:
                self.row(chosen, kind, first)
            else:
                self.refresh(chosen, first)
        return NEVER

    def skip(self, now: int) -> None:
        """Skip refreshes of an idle period, except the latest one of each bank before `now`."""
        every, n = self.timing.ref_every, len(self.banks)
        behind = (now - self.refreshed) // every - n
        if behind >= n and self.busy < self.refreshed + behind * every:
            self.refreshed += behind * every
            for bank in self.banks:
                bank.row = CLOSED

    def mode(self) -> int:
        """Choose _READ or _WRITE: writes are drained once the high watermark is passed or no read is queued."""
        if not self.drains:
            self.drains = not self.reads or self.writes > self.timing.write_high
        elif self.reads and self.writes < self.timing.write_low:
            self.drains = False
        return _WRITE if self.drains else _READ

    def refresh(self, bank: Bank, t: int) -> None:
        """Precharge the bank at `t` if a row is open, else refresh it."""
        if bank.row != CLOSED:
            bank.row = CLOSED
            bank.act = max(bank.act, t + self.timing.pre_act)
            return
        self.refreshed += self.timing.ref_every
        bank.act = t + self.timing.ref_bank
        self.act = max(self.act, t + self.timing.ref_other)

    def row(self, bank: Bank, kind: int, t: int) -> None:
        """Precharge the bank at `t` if a row is open, else activate the row of its oldest access."""
        timing = self.timing
        if bank.row != CLOSED:
            bank.row = CLOSED
            bank.act = max(bank.act, t + timing.pre_act)
            return
        bank.opener = (bank.writes if kind else bank.reads)[0]
        bank.row = bank.opener.row
        bank.read, bank.write, bank.pre = t + timing.act_read, t + timing.act_write, t + timing.act_pre
        bank.act, bank.group.act, self.act = t + timing.act_bank, t + timing.act_group, t + timing.act_other
        self.act_1, self.act_2, self.act_3, self.act_4 = t, self.act_1, self.act_2, self.act_3
        self.opened += 1
        self.rows += 1
        self.taken(bank.opener, t)

    def column(self, bank: Bank, kind: int, t: int) -> None:
        timing, group = self.timing, bank.group
        access = bank.opener
        if access is None:
            access = bank.hit(bank.writes if kind else bank.reads)
        assert access is not None
        if bank.opener is None:
            self.taken(access, t)
        else:
            bank.opener = None
            self.opened -= 1
        if access.kind == _READ:
            self.read, group.read = t + timing.col_other, t + timing.col_group
            self.write = max(self.write, t + timing.read_write)
            bank.pre = max(bank.pre, t + timing.read_pre)
            self.busy = t + timing.read_data
        else:
            self.write, group.write = t + timing.col_other, t + timing.col_group
            self.read = max(self.read, t + timing.write_other)
            group.read = max(group.read, t + timing.write_group)
            bank.pre = max(bank.pre, t + timing.write_pre)
            self.busy = t + timing.write_data
        self.served += timing.access
        if self.owner.live:
            self.ahead.append(self.busy)
        access.count -= 1
        if not access.count:
            (bank.reads if access.kind == _READ else bank.writes).remove(access)
            if not bank.reads and not bank.writes:
                self.active.remove(bank)
            if access.kind == _READ:
                burst = access.burst
                burst.end = max(burst.end, self.busy)
                burst.left -= 1
                if not burst.left:
                    self.owner.done(burst.request, burst.end, self)

    def taken(self, access: DramAccess, t: int) -> None:
        """Remove a column of an access from its queue's count, when its row is opened for it or when it is served."""
        if access.kind == _READ:
            self.reads -= 1
        else:
            self.writes -= 1
        while self.waiting and self.has_room(self.waiting[0]):
            self.admit(self.waiting.popleft(), t)


class DramSlice:
    """One slice of a cube's memory stack, with the commands, banks and rows of a DRAM standard.

    A write is complete when it is queued as a whole. A read's bytes are sampled when its last part leaves.
    """

    by_flit = False

    def __init__(self, network: Network, hbm: Hbm, memory: MemoryStore | None) -> None:
        standard, self.timing = dram(hbm.timing), Timing(hbm)
        self.network, self.core, self.memory = network, network.core, memory
        self.n, self.line_bits = hbm.channels, hbm.burst_bytes.bit_length() - 1
        self.channel_bits = hbm.channels.bit_length() - 1
        self.groups, self.banks = groups, banks = standard.bank_groups, standard.banks_per_group
        self.channels = [Channel(self, list(range(hbm.channels)))]  # by the lowest of their numbers
        self.of = self.channels * hbm.channels  # by number
        self.per_burst = hbm.burst_bytes // standard.access_bytes
        self.per_row = standard.row_bytes // standard.access_bytes * groups * banks
        self.piece = min(self.per_burst, self.per_row)
        self.patterns = _patterns(hbm.mapping, groups, banks, self.per_row, self.piece)
        self.bank_bits = (groups * banks).bit_length() - 1 if hbm.hash == "xor" else 0
        self.window = _AHEAD * self.timing.col_other
        self.live = self.core.live
        self.planned = -1

    @property
    def busy_ps(self) -> int:
        return sum([channel.served * len(channel.numbers) for channel in self.channels]) // self.n

    @property
    def activity(self) -> DramActivity:
        begun = rows = bus_ps = worked_ps = 0
        for channel in self.channels:
            n = len(channel.numbers)
            begun += n * channel.begun
            rows += n * channel.rows
            bus_ps += n * channel.served
            worked_ps += n * (channel.worked + channel.busy - channel.since)
        return DramActivity(begun, rows, bus_ps // (self.per_burst * self.timing.access), bus_ps, worked_ps)

    def busy_by(self, now: int) -> int:
        ahead = 0
        for channel in self.channels:
            channel.ahead = [end for end in channel.ahead if end > now]
            ahead += sum([min(end - now, self.timing.access) for end in channel.ahead]) * len(channel.numbers)
        return self.busy_ps - -(-ahead // self.n)

    def on_read(self, txn: Transaction) -> None:
        txn.back.nbytes += txn.nbytes
        self._take(txn, _READ)

    def on_write(self, txn: Transaction) -> None:
        """Handle the arrival of a write's last flit; it is acknowledged once all of it is queued."""
        if self.memory is not None and txn.data is not None:
            self.memory.poke(txn.pieces, txn.data)
        self._take(txn, _WRITE)

    def _take(self, txn: Transaction, kind: int) -> None:
        now = self.core.now
        txn.arrived_ps = now
        lines = txn.lines
        if lines is None:
            lines = range(txn.offset >> self.line_bits, (txn.offset + txn.nbytes - 1 >> self.line_bits) + 1)
        request = DramRequest(txn, len(lines))
        if len(self.channels) < self.n:
            self._separate(lines)
        for line in lines:
            number = self._channel(line)
            channel = self.of[number]
            if channel.numbers[-1] != number:
                continue
            first = (line >> self.channel_bits) * self.per_burst
            burst, accesses = Burst(request), []
            for start in range(first, first + self.per_burst, self.piece):
                row = start // self.per_row
                hashed = row & (1 << self.bank_bits) - 1
                for bank, count in self.patterns[start % self.per_row // self.piece]:
                    accesses.append(DramAccess(burst, channel.banks[bank ^ hashed], row, count, kind))
            burst.left = len(accesses)
            for access in accesses:
                channel.arrive(access, now, txn.key)
        self._plan(now)

    def _channel(self, line: int) -> int:
        """Get the channel of a line; a hash changes it with the bits of the row above those that change the bank."""
        if self.bank_bits:
            line ^= (line >> self.channel_bits) * self.per_burst // self.per_row >> self.bank_bits
        return line & (self.n - 1)

    def _separate(self, lines: Sequence[int]) -> None:
        """Split the channels that these lines access differently."""
        asked: list[list[int]] = [[] for _ in self.of]
        for line in lines:
            asked[self._channel(line)].append(line >> self.channel_bits)
        for channel in self.channels.copy():
            while True:
                bursts = asked[channel.numbers[0]]
                others = [number for number in channel.numbers if asked[number] != bursts]
                if not others:
                    break
                channel = channel.split(others)
                self.channels.append(channel)
                for number in others:
                    self.of[number] = channel
        self.channels.sort(key=_NUMBERS)

    def _plan(self, t: int) -> None:
        """Schedule commands at `t`, after all arrivals of that instant."""
        if self.planned < 0 or t < self.planned:
            self.planned = t
            self.core.call_last(t, self._continue, t)

    def _continue(self, t: int) -> None:
        if t != self.planned:
            return
        self.planned = -1
        following = NEVER
        for channel in self.channels:
            if channel.due < t + self.window:
                channel.due = channel.schedule(t, t + self.window)
            following = min(following, channel.due)
        if following != NEVER:
            self._plan(following)

    def done(self, request: DramRequest, end: int, channel: Channel) -> None:
        """Handle the completion of a read's burst at `end`, in each pseudo channel of `channel`."""
        txn, ready, count = request.txn, request.ready_at, len(channel.numbers)
        if end > txn.served_ps:
            txn.served_ps, txn.since_ps, txn.opener = end, channel.since, channel.key
        if end in ready:
            ready[end] += count
        else:
            ready[end] = count
            self.core.call_ordered(end, txn.key, self._release, request)

    def queued(self, txn: Transaction) -> None:
        """Acknowledge a write, all of whose bursts are queued."""
        self.network.acknowledge(txn)

    def _release(self, request: DramRequest) -> None:
        """Send the flits that are ready now on the reply route."""
        request.done += request.ready_at.pop(self.core.now)
        self.network.reply(request, self.memory)


def _patterns(mapping: str, groups: int, banks: int, per_row: int, piece: int) -> list[list[tuple[int, int]]]:
    """Map each aligned piece of accesses within a row number to its banks and their numbers of accesses."""
    sizes = {"Ba": banks, "Bg": groups, "Co": per_row // (groups * banks)}
    order = [mapping[i : i + 2] for i in range(len(mapping) - 2, 0, -2)]  # without Ro, the least significant first
    patterns: list[list[tuple[int, int]]] = []
    for start in range(0, per_row, piece):
        counts: dict[int, int] = {}
        for access in range(start, start + piece):
            left, at = access, {}
            for name in order:
                left, at[name] = divmod(left, sizes[name])
            bank = at["Bg"] * banks + at["Ba"]
            counts[bank] = counts.get(bank, 0) + 1
        patterns.append(list(counts.items()))
    return patterns
