"""Races: accesses to the same bytes, at least one of them a write, that nothing orders.

A task is an operation of a device's stream: a launch, a copy, one device's part of a collective. Tasks of one stream
follow each other, a task follows all that its stream waits for, and all that was complete when the program submitted
it. Programs of a launch are unordered, unless they have queues or use atomic operations: these order them, so that only
accesses in flight at the same time count. Two atomic accesses of a launch never race.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from kernbench.errors import RaceError
from kernbench.sim_engine._memory_store import Watch
from kernbench.sim_engine._user_code import Line, line_text, user_line

if TYPE_CHECKING:
    from kernbench.sim_engine._memory_store import ByteRange, MemoryStore

_FINE, _COARSE = 12, 20
_LARGE = 1 << 16

_T = TypeVar("_T")


class _Task:
    """One operation of a stream. `number` counts within the stream, `submitted` and `finished` over all streams.

    `after` maps other streams to the number of their tasks that precede this one.
    """

    __slots__ = ("after", "device", "finished", "line", "number", "stream", "submitted")

    def __init__(self, device: DeviceRaces, stream: object, number: int, after: dict[object, int]) -> None:
        self.device, self.stream, self.number, self.after = device, stream, number, after
        self.line: Line | None = user_line()
        self.submitted = device.tick()
        self.finished: int | None = None

    def follows(self, other: _Task) -> bool:
        """Whether `other` completes before this task begins, or had completed when this one was submitted."""
        if self.stream is other.stream:
            return self.number > other.number
        if other.finished is not None and other.finished < self.submitted:
            return True
        return other.number <= self.after.get(other.stream, 0)

    def run(self, start: Callable[[], _T]) -> _T:
        """Call `start` with this as the current task of its device."""
        before, self.device.task = self.device.task, self
        try:
            return start()
        finally:
            self.device.task = before

    def begin(self) -> None:
        """Drop recorded accesses that can no longer race."""
        self.device.begin(self)

    def finish(self) -> None:
        self.device.finish(self)


class Actor(Protocol):
    """The source of an access: one program of a launch, or the host."""

    @property
    def task(self) -> Any: ...

    @property
    def is_ordered(self) -> bool:
        """Whether messages or atomic operations order it with the others of its task."""

    def description(self) -> str: ...

    def under_way(self, lo: int, hi: int, writes_only: bool) -> bool:
        """Whether it accesses (or writes) some of the bytes at this moment."""

    def owner(self, pa: int) -> str:
        """Name of the tensor at an address, for messages."""


class HostActor:
    """The host, in one copy."""

    is_ordered = False

    def __init__(self, task: _Task) -> None:
        self.task = task

    def description(self) -> str:
        return "the host"

    def under_way(self, lo: int, hi: int, writes_only: bool) -> bool:
        return self.task.finished is None

    def owner(self, pa: int) -> str:
        return ""


class _Access:
    __slots__ = ("actor", "atomic", "line", "pieces", "writes")

    def __init__(
        self, actor: Actor, pieces: Sequence[ByteRange], writes: bool, line: Line | None, atomic: bool = False
    ) -> None:
        self.actor, self.pieces, self.writes, self.line, self.atomic = actor, pieces, writes, line, atomic

    def spans(self) -> list[tuple[int, int]]:
        """Ranges [lo, hi) that contain the pieces; those far apart, as in slices of several PEs, by themselves."""
        lo, n = self.pieces[0]
        if len(self.pieces) == 1:
            return [(lo, lo + n)]
        found: list[tuple[int, int]] = []
        for lo, n in sorted(self.pieces):
            if found and lo - found[-1][1] < _LARGE:
                found[-1] = found[-1][0], max(found[-1][1], lo + n)
            else:
                found.append((lo, lo + n))
        return found

    def overlap(self, other: _Access) -> ByteRange | None:
        """First bytes that both access, if any."""
        for pa, n in self.pieces:
            for at, m in other.pieces:
                if pa < at + m and at < pa + n:
                    lo = max(pa, at)
                    return lo, min(pa + n, at + m) - lo
        return None


class _Cell:
    """Accesses to a page: by one actor (`sole`), or by several."""

    __slots__ = ("accesses", "sole", "wrote")

    def __init__(self, actor: Actor) -> None:
        self.sole: Actor | None = actor
        self.wrote = False
        self.accesses: dict[tuple[Any, ...], _Access] = {}


class DeviceRaces:
    """Accesses to the memory of one SIP that may still race.

    Small accesses are recorded in pages of 4 KiB, those of 64 KiB and more in pages of 1 MiB.
    """

    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory
        self._fine: dict[int, _Cell] = {}
        self._coarse: dict[int, _Cell] = {}
        self._ticks = 0
        self._live: dict[object, int] = {}
        self._streams: set[object] = set()  # those whose accesses are kept
        self._foreign = 0  # when a task last ended while a task of another stream was in flight
        self.copies: dict[int, list[Copies]] = {}
        self.task: _Task | None = None

    # -- tasks

    def tick(self) -> int:
        """Advance the clock of submissions and completions."""
        self._ticks += 1
        return self._ticks

    def submit(self, stream: object, number: int, after: dict[object, int]) -> _Task:
        self._live[stream] = self._live.get(stream, 0) + 1
        return _Task(self, stream, number, after)

    def begin(self, task: _Task) -> None:
        """Drop all accesses if none can race with those of `task` or of later tasks."""
        if len(self._live) == 1 and (self._streams <= {task.stream} or self._foreign < task.submitted):
            self._fine.clear()
            self._coarse.clear()
            self._streams.clear()
            self._memory.watches.clear()
        self._streams.add(task.stream)

    def finish(self, task: _Task) -> None:
        task.finished = self.tick()
        left = self._live[task.stream] - 1
        if left:
            self._live[task.stream] = left
        else:
            del self._live[task.stream]
        if len(self._streams) > 1 or self._live.keys() - {task.stream}:
            self._foreign = task.finished

    # -- accesses

    def host(self, pieces: Sequence[ByteRange], write: bool) -> None:
        """Record a copy of the host, which begins now as part of the current task."""
        task = self.task
        if task is None:
            return
        if write and self.copies:
            self._host_wrote(pieces)
        if len(self._live) == 1 and not self._fine and not self._coarse:
            return  # nothing else is in flight, and later tasks follow it
        self.accesses(HostActor(task), [((piece,), write) for piece in pieces], task.line)

    def accesses(
        self,
        actor: Actor,
        touched: Sequence[tuple[Sequence[ByteRange], bool]],
        line: Line | None,
        atomic: bool = False,
    ) -> None:
        """Record accesses that begin now: (pieces, whether they are written) of each."""
        for pieces, writes in touched:
            self._access(_Access(actor, pieces, writes, line, atomic))

    def _access(self, access: _Access) -> None:
        for lo, hi in access.spans():
            if hi - lo < _LARGE:
                self._note(self._fine, _FINE, lo, hi, access)
                self._check_all(self._coarse, _COARSE, lo, hi, access)
            else:
                self._note(self._coarse, _COARSE, lo, hi, access)
                self._check_all(self._fine, _FINE, lo, hi, access)
            if access.writes and self.copies:
                for page in range(lo >> _COARSE, (hi - 1 >> _COARSE) + 1):
                    for copies in self.copies.get(page, ()):
                        copies.wrote(access)

    def _check_all(self, cells: dict[int, _Cell], bits: int, lo: int, hi: int, access: _Access) -> None:
        first, last = lo >> bits, hi - 1 >> bits
        pages = (
            range(first, last + 1) if last - first < len(cells) else [page for page in cells if first <= page <= last]
        )
        for page in pages:
            if page in cells:
                self._check(cells[page], access)

    def _note(self, cells: dict[int, _Cell], bits: int, lo: int, hi: int, access: _Access) -> None:
        actor, writes = access.actor, access.writes
        for page in range(lo >> bits, (hi - 1 >> bits) + 1):
            cell = cells.get(page)
            if cell is None:
                cell = cells[page] = _Cell(actor)
            elif cell.sole is not actor:
                self._check(cell, access)
                cell.sole = None
            if writes:
                cell.wrote = True
            key = (writes, access.atomic, lo, hi)
            cell.accesses[key if cell.sole is actor else (*key, actor)] = access

    def _check(self, cell: _Cell, access: _Access) -> None:
        actor = access.actor
        if cell.sole is actor or not (access.writes or cell.wrote):
            return
        for other in cell.accesses.values():
            if other.actor is not actor and (access.writes or other.writes):
                shared = access.overlap(other)
                if shared is not None and self._unordered(access, other, shared):
                    self._report(access, other, shared)

    def _unordered(self, mine: _Access, other: _Access, shared: ByteRange) -> bool:
        task, before = mine.actor.task, other.actor.task
        if task is not before:
            return not task.follows(before)
        if mine.atomic and other.atomic:
            return False
        if mine.actor.is_ordered:
            return other.actor.under_way(shared[0], shared[0] + shared[1], not mine.writes)
        return True

    def _report(self, mine: _Access, other: _Access, shared: ByteRange) -> None:
        if mine.writes and other.writes and mine.actor.task is other.actor.task:
            # The order does not matter if both write the same values.
            in_flight = other.actor.under_way(shared[0], shared[0] + shared[1], False)
            self._memory.watch(Watch(shared, lambda: self._raise(mine, other, shared)), not in_flight)
            return
        self._raise(mine, other, shared)

    def _raise(self, mine: _Access, other: _Access, shared: ByteRange) -> NoReturn:
        tensor = mine.actor.owner(shared[0]) or other.actor.owner(shared[0])
        what = f"{shared[1]} B of tensor {tensor!r}" if tensor else f"{shared[1]} B at {shared[0]:#x}"
        remedy = (
            "let the programs write different elements, or order them by tl.send and tl.recv"
            if mine.actor.task is other.actor.task
            else "wait for the first before the second: Work.wait(), or torch.ahbm.synchronize()"
        )
        raise RaceError(f"race on {what}: {_told(mine)}, and {_told(other)}, in no order; {remedy}")

    # -- copies of replicated parts

    def replicate(self, copies: Copies) -> Callable[[], None]:
        """Watch the copies of a replicated part; return a function to call when its memory is freed."""
        pages = [page for pa in copies.starts for page in range(pa >> _COARSE, (pa + copies.nbytes - 1 >> _COARSE) + 1)]
        for page in pages:
            self.copies.setdefault(page, []).append(copies)

        def forget() -> None:
            for page in pages:
                held = self.copies[page]
                held.remove(copies)
                if not held:
                    del self.copies[page]

        return forget

    def _host_wrote(self, pieces: Sequence[ByteRange]) -> None:
        for pa, nbytes in pieces:
            for page in range(pa >> _COARSE, (pa + nbytes - 1 >> _COARSE) + 1):
                for copies in self.copies.get(page, ()):
                    copies.host_wrote(pa, nbytes)


class Copies:
    """The copies of a replicated part of a tensor: `starts` are their addresses; the host reads the first.

    Each PE writes its own copy. If kernels have written different values, the tensor has no defined value.
    """

    def __init__(self, name: str, starts: Sequence[int], nbytes: int) -> None:
        self.name, self.starts, self.nbytes = name, tuple(starts), nbytes
        self._written: list[dict[ByteRange, tuple[int, _Access]]] = [{} for _ in starts]
        self._count = 0
        self._is_checked = True

    def wrote(self, access: _Access) -> None:
        """Record a program's writes to any of the copies."""
        for pa, n in access.pieces:
            for written, start in zip(self._written, self.starts, strict=True):
                if start <= pa < start + self.nbytes:
                    self._count += 1
                    written[pa - start, n] = access.actor.task.number, access
                    self._is_checked = False

    def host_wrote(self, pa: int, nbytes: int) -> None:
        """Forget earlier writes: the host writes the same to all copies."""
        for written, start in zip(self._written, self.starts, strict=True):
            lo, hi = pa - start, pa - start + nbytes
            for at, n in [piece for piece in written if lo <= piece[0] and piece[0] + piece[1] <= hi]:
                del written[at, n]

    def check(self, memory: MemoryStore) -> None:
        """Compare the copies if kernels have written any since the last check."""
        if self._is_checked:
            return
        first = memory.peek([(self.starts[0], self.nbytes)])
        for start, written in zip(self.starts[1:], self._written[1:], strict=True):
            if not written:
                continue
            differs = first != memory.peek([(start, self.nbytes)])
            for (at, n), (number, access) in written.items() if differs.any() else ():
                if differs[at : at + n].any():
                    self._compare(at + int(differs[at : at + n].argmax()), number, access, int(differs.sum()))
        self._is_checked = True

    def _compare(self, at: int, number: int, access: _Access, count: int) -> None:
        read = [found for (start, n), found in self._written[0].items() if start <= at < start + n]
        last, own = max(read, key=lambda found: found[0], default=(-1, None))
        if number < last:
            return  # what the host reads is newer
        other = (
            f"{_told(own)} to the copy that the host reads" if own else "no program wrote the copy that the host reads"
        )
        raise RaceError(
            f"race on tensor {self.name!r}: its replicated copies differ in {count} of {self.nbytes} B: "
            f"{_told(access)} to another copy, and {other}; let every PE that holds a copy write the same values, or "
            "place the tensor with row_wise or column_wise"
        )


def _told(access: _Access) -> str:
    verb = "writes" if access.writes else "reads"
    asked = access.actor.task.line
    origin = f" (asked for at {line_text(asked)})" if asked is not None and asked != access.line else ""
    return f"{access.actor.description()} {verb} them at {line_text(access.line)}{origin}"
