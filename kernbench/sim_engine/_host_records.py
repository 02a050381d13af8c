"""What a run remembers of the host: its launches, and what it has queued on the devices."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kernbench.analysis._records import Communication, Operation


class LaunchRow(NamedTuple):
    """The record of a launch: times in ps, -1 if not reached; `queues` and `protocol` are empty for none.

    Its programs run from `start_ps` to `done_ps`, and the host knows of that at `end_ps`.
    """

    name: str
    queues: str
    protocol: str
    sip: int
    command: int
    operation: int
    sent_ps: int
    target_start_ps: int
    start_ps: int
    done_ps: int
    end_ps: int


class LaunchTable:
    """The launches of a run in the order of sending, packed into 88 B each, as a program may launch for hours."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {"": 0}
        self._numbers = array("q")

    def append(self, row: LaunchRow) -> int:
        number = len(self)
        texts = self._texts
        self._numbers.extend((*(texts.setdefault(text, len(texts)) for text in row[:3]), *row[3:]))
        return number

    def note(self, number: int, target_start_ps: int, start_ps: int, done_ps: int = -1, end_ps: int = -1) -> None:
        """Update the times of a launch, which are unknown when it is sent."""
        end = (number + 1) * len(LaunchRow._fields)
        self._numbers[end - 4 : end] = array("q", (target_start_ps, start_ps, done_ps, end_ps))

    def __len__(self) -> int:
        return len(self._numbers) // len(LaunchRow._fields)

    def __iter__(self) -> Iterator[LaunchRow]:
        texts, width = list(self._texts), len(LaunchRow._fields)
        for at in range(0, len(self._numbers), width):
            name, queues, protocol, *numbers = self._numbers[at : at + width]
            yield LaunchRow(texts[name], texts[queues], texts[protocol], *numbers)


class OperationTable:
    """What the host has queued on the devices, in that order, packed as the launches are."""

    def __init__(self) -> None:
        self._communications: dict[Communication | None, int] = {None: 0}
        self._numbers = array("q")  # of each: SIP, communication, and the ends of its two lists in `_before`
        self._before = array("q")

    def append(self, sip: int, after: Iterable[int], waited: Iterable[int], communication: Communication | None) -> int:
        number, known = len(self), self._communications
        self._before.extend(after)
        middle = len(self._before)
        self._before.extend(waited)
        self._numbers.extend((sip, known.setdefault(communication, len(known)), middle, len(self._before)))
        return number

    def __len__(self) -> int:
        return len(self._numbers) // 4

    def __iter__(self) -> Iterator[Operation]:
        known, start = list(self._communications), 0
        for at in range(0, len(self._numbers), 4):
            sip, which, middle, end = self._numbers[at : at + 4]
            yield Operation(sip, tuple(self._before[start:middle]), tuple(self._before[middle:end]), known[which])
            start = end
