"""HBM controller: one slice of a cube's stack, bursts over interleaved pseudo channels.

A burst (any part of one costs a whole) is served by its channel in order of arrival; a change of direction
costs the turn-round first. A read returns its bursts in finish order, then by address; with m bursts and q
flits, flit j leaves when its share of the bursts, ceil((j + 1) m / q), is done; burst i of a write is served
when its share of the flits, ceil((i + 1) q / m), has arrived. Refresh, row misses and
bank conflicts are not modelled: `efficiency` and `access_ns` stand for them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.trains import Lines, latest
from kernbench.sim_engine.transfer import ACK_BYTES, Transaction
from kernbench.units import FLIT_BYTES, flits, ns_to_ps, serialization_ps

READ, WRITE = 0, 1
_LONG = 64  # bursts

Ready = tuple[int, int]  # since when flits are ready, and how many


class HbmCtrl:
    """The controller of one slice."""

    by_flit = True

    def __init__(self, engine: GraphEngine, node_id: str) -> None:
        hbm = engine.machine.config.cube.hbm
        self.engine, self.fabric, self.name = engine, engine.fabric, node_id
        self._clock = engine.env
        self.n = hbm.channels
        self.line_bits = hbm.burst_bytes.bit_length() - 1
        self.burst_ps = serialization_ps(hbm.burst_bytes, hbm.channel_bw_gbs * hbm.efficiency)
        self.turn_ps = ns_to_ps(hbm.turnaround_ns)
        self.access_ps = ns_to_ps(hbm.access_ns)
        self.free = [0] * self.n
        self.direction = [READ] * self.n
        self._all_read = [READ] * self.n
        self.by_rounds = engine.by_rounds and hbm.burst_bytes == FLIT_BYTES
        self._line_mask = hbm.burst_bytes - 1
        self.round_bytes = hbm.burst_bytes * self.n
        self.served_ps = 0
        self._link = engine.fabric.into(node_id, self._flits)
        # For each channel since when it has been busy without a gap, and the transaction that came to it then.
        self._since = [(0, -1)] * self.n

    @property
    def busy_ps(self) -> int:
        """Return how long its channels were busy, on average [ps]."""
        self.fabric.told(self._link)
        return self.served_ps // self.n

    def idle_ps(self) -> int:
        """Return since or until when its channels are free of all that has come."""
        self.fabric.told(self._link)
        return max(self.free)

    def on_read(self, txn: Transaction) -> None:
        """Serve a read: all its bursts are asked for at once, its flits leave as they are done."""
        self.fabric.told(self._link)
        groups = self._rounds(txn) or self._singly(txn)
        txn.pending = groups
        txn.back.nbytes += txn.nbytes
        self.fabric.call_at(groups[-1][0], txn.key, self._release, txn)

    def _singly(self, txn: Transaction) -> list[Ready]:
        """Serve bursts one by one; return how the flits become ready, the last first."""
        now, access = self._clock._now, self.access_ps
        begun = max(now, *self.free)
        done = sorted(self._bursts(self._lines(txn), now, READ, txn.key))
        q, m = flits(txn.nbytes), len(done)
        groups: list[Ready] = []
        for j in range(q):
            t = done[-(-(j + 1) * m // q) - 1][0] + access
            if groups and groups[-1][0] == t:
                groups[-1] = t, groups[-1][1] + 1
            else:
                groups.append((t, 1))
        txn.served = now, *self._since[done[-1][1] & (self.n - 1)], groups[-1][0]
        groups.reverse()
        if m > _LONG and access < self.burst_ps and txn.lines is None and self.fabric.carries_whole(txn.back):
            # Every channel is taken by this read alone from `begun` on, until one is free: nothing else can be ready.
            return _joined(groups, begun + access, min(self.free) + access, txn.back.links[0].flit_ps)
        return groups

    def _rounds(self, txn: Transaction) -> list[Ready] | None:
        """Return the same by the round, for whole rounds of consecutive lines over channels free alike; else None."""
        whole = not (txn.offset & self._line_mask or txn.nbytes % self.round_bytes)
        if not (whole and self.by_rounds) or txn.lines is not None:
            return None
        free = self.free
        start = max(free)
        now = self._clock._now
        if start > now and min(free) != start:
            return None
        if self.turn_ps and self.direction != self._all_read:
            return None
        burst, n = self.burst_ps, self.n
        if start <= now:
            if start < now or min(free) < now:
                self._since = [(now, txn.key)] * n
            start = now
        rounds: int = txn.nbytes // self.round_bytes
        end = start + rounds * burst
        self.free = [end] * n
        self.served_ps += rounds * n * burst
        access = self.access_ps
        txn.served = now, *self._since[0], end + access
        if access < burst <= n * txn.back.links[0].flit_ps:
            # Every channel is taken until `end`: nothing else can be ready between the first round and the last, and
            # the link is busy from one to the next. So the flits may as well queue for it at once.
            return [(start + burst + access, rounds * n)]
        return [(t + access, n) for t in range(end, start, -burst)]

    def _lines(self, txn: Transaction) -> Sequence[int]:
        """Return the lines that a transaction touches."""
        if txn.lines is not None:
            return txn.lines
        first = txn.offset >> self.line_bits
        return range(first, (txn.offset + txn.nbytes - 1 >> self.line_bits) + 1)

    def _bursts(self, lines: Sequence[int], arrival: int, direction: int, key: int) -> list[tuple[int, int]]:
        """Serve bursts that arrive together; return when each is done, and its line."""
        free, directions, burst, mask = self.free, self.direction, self.burst_ps, self.n - 1
        done = []
        for line in lines:
            channel = line & mask
            end = free[channel]
            if end < arrival:
                end = arrival
                self._since[channel] = arrival, key
            if directions[channel] != direction:
                directions[channel] = direction
                end += self.turn_ps
            free[channel] = end = end + burst
            done.append((end, line))
        self.served_ps += len(done) * burst
        return done

    def _release(self, txn: Transaction) -> None:
        """Put the flits that are ready now on their way back."""
        pending = txn.pending
        _, count = pending.pop()
        size = FLIT_BYTES if txn.nbytes > FLIT_BYTES else txn.nbytes
        if pending:
            self.fabric.train(txn.back, count, size, txn.key, None, None)
            self.fabric.call_at(pending[-1][0], txn.key, self._release, txn)
            return
        if self.engine.data and txn.pieces:
            txn.data = self.engine.memory.peek(txn.pieces)
        self.fabric.train(txn.back, count, size, txn.key, txn.fn, txn)

    def on_write(self, txn: Transaction) -> None:
        """Take a write whose flits have all arrived; acknowledge it when its bursts are done."""
        self.fabric.told(self._link)
        if txn.data is not None:
            self.engine.memory.poke(txn.pieces, txn.data)
        self.fabric.call_at(txn.end, txn.key, self._acknowledge, txn)

    def _flits(self, txn: Transaction, lines: Lines, first: int, until: int) -> None:
        """Serve the bursts that flits `first` to `until` (exclusive) of those that come by `lines` complete."""
        if self.by_rounds and txn.lines is None:
            begun, first = first, until
            if txn.offset & self._line_mask and txn.arrived + until - begun == flits(txn.nbytes):
                first -= 1  # The last one may complete two.
            self._run(txn, lines, begun, first)
        for i in range(first, until):
            self._several(txn, latest(lines, i))

    def _run(self, txn: Transaction, lines: Lines, first: int, until: int) -> None:
        """Serve the same in one go, at a burst a flit.

        What comes to a channel comes by lines, too: ever more slowly. So if its last burst finds it free only that one
        matters, and if not, none has since the first.
        """
        n, burst, free, direction, since, key = self.n, self.burst_ps, self.free, self.direction, self._since, txn.key
        line = (txn.offset >> self.line_bits) + txn.arrived - first
        txn.arrived += until - first
        self.served_ps += (until - first) * burst
        one, (a, d) = len(lines) == 1, lines[0]
        latest_end, last = txn.end, -1
        for i in range(until - n if until - n > first else first, until):
            channel = line + i & n - 1
            before = (i - first) // n
            if one:
                arrival = a + i * d
                begin = arrival - before * n * d
            else:
                arrival, begin = latest(lines, i), latest(lines, i - before * n)
            end = free[channel]
            if end < begin:
                end = begin
                since[channel] = begin, key
            if direction[channel] != WRITE:
                direction[channel] = WRITE
                end += self.turn_ps
            end += before * burst
            if end < arrival:
                end = arrival
                since[channel] = arrival, key
            free[channel] = end = end + burst
            if end >= latest_end:
                latest_end, last, arrived = end, channel, arrival
        if last >= 0:
            txn.end, txn.served = latest_end, (arrived, *since[last], latest_end)

    def _several(self, txn: Transaction, arrival: int) -> None:
        """Serve the bursts that a flit completes, however many."""
        lines = self._lines(txn)
        q, m, j = flits(txn.nbytes), len(lines), txn.arrived
        txn.arrived += 1
        for end, line in self._bursts(lines[j * m // q : (j + 1) * m // q], arrival, WRITE, txn.key):
            if end >= txn.end:
                txn.end, txn.served = end, (arrival, *self._since[line & (self.n - 1)], end)

    def _acknowledge(self, txn: Transaction) -> None:
        if txn.posted:
            txn.fn(txn)
        else:
            self.fabric.send(txn.back, ACK_BYTES, txn.key, txn.fn, txn)


def _joined(groups: list[Ready], since: int, until: int, flit_ps: int) -> list[Ready]:
    """Join the flits, the last first, that become ready after `since` and up to `until`, and keep a link busy.

    A link of `flit_ps` a flit carries them without a pause, as if they had all been there when the first one was.
    """
    joined: list[Ready] = []
    busy = 0
    for t, count in reversed(groups):
        if since < t <= until and t <= busy:
            joined[-1] = joined[-1][0], joined[-1][1] + count
        else:
            joined.append((t, count))
            busy = t if since < t else 0
        busy += count * flit_ps if busy else 0
    joined.reverse()
    return joined
