"""Every error that kernbench raises on purpose. Each one is also an instance of the builtin that has its meaning.

KernbenchError
+-- ArgumentError            ValueError      an argument has a value that the function does not take
+-- StateError               RuntimeError    a call at a time when it is not possible
+-- ConfigError              ValueError      a machine, ccl or plan file, or an override, is wrong
|   +-- MissingFileError     FileNotFoundError
|   +-- MissingModuleError   ImportError     an optional package is not installed
+-- HostError                OSError         the host refuses a file, a folder or a connection
+-- PointError               RuntimeError    a point of a study failed
+-- InterruptedRun           RuntimeError    a study or sweep was interrupted; finished points are kept
+-- PlacementError           ValueError      a tensor cannot be placed as its DPPolicy says
+-- AllocationError          RuntimeError    a memory is full, or a free does not match an allocation
+-- KernelError              RuntimeError    a kernel failed: its file, line, program and PE are named
|   +-- OutOfBoundsError     IndexError      an access outside every mapped tensor
|   +-- OutOfMemoryError                     TCM or scratch cannot hold what the kernel asks for
|   +-- RaceError                            accesses to the same bytes that nothing orders
|   +-- IpcqInvalidDirection ValueError      a queue that the program does not have
+-- DeadlockError            RuntimeError    no program and no rank can continue; every waiter is named
|   +-- IpcqDeadlock
+-- LimitError               TimeoutError    a run took more events, simulated time or host time than it may
+-- CollectiveMismatchError  RuntimeError    ranks disagree about a collective call
+-- VerificationError        AssertionError  a bench's values differ from numpy's
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_WORD, _LINE = 160, 2000
_LONG_WORD = re.compile(rf"\S{{{_WORD + 1},}}")


def quote(value: object, longest: int = 80) -> str:
    """Format a value for messages: its repr, cut to `longest` characters.

    >>> quote("x" * 1000, 12)
    "'xxxxxxxx..."
    >>> quote([1, 2])
    '[1, 2]'
    """
    return shortened(repr(value), longest)


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


class KernbenchError(Exception):
    """Base of all kernbench errors; a long name or value is cut, and a terminal's control characters are escaped."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(_readable(arg) if isinstance(arg, str) else arg for arg in args))


def printable(text: str) -> str:
    r"""Escape every non-printable character except line ends and tabs.

    >>> printable("a\x1b[31m\u202eb")
    'a\\x1b[31m\\u202eb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def _readable(text: str) -> str:
    """Make a message printable, and shorten words and lines that would hide the rest."""
    text = printable(text)
    if len(text) <= _WORD:
        return text
    text = _LONG_WORD.sub(lambda word: f"{word[0][: _WORD // 2]}...{word[0][-_WORD // 4 :]}", text)
    return "\n".join(
        line if len(line) <= _LINE else f"{line[: _LINE // 2]} ... {line[-_LINE // 4 :]}" for line in text.split("\n")
    )


class ArgumentError(KernbenchError, ValueError):
    """An argument has a value that the function does not accept."""


class StateError(KernbenchError, RuntimeError):
    """A call at a time when it is not possible: before initialization, or after the end."""


class ConfigError(KernbenchError, ValueError):
    """A configuration is invalid; `faults` holds one line per fault of the file.

    Of faults of keys, `records` has file, key, value and remedy, in the same order.
    """

    def __init__(self, faults: list[str] | str, records: Sequence[Mapping[str, Any]] = ()) -> None:
        self.records = list(records)
        self.faults = [_readable(fault) for fault in ([faults] if isinstance(faults, str) else faults)]
        super().__init__("\n".join(self.faults))


class MissingFileError(ConfigError, FileNotFoundError):
    """A file that was named does not exist."""


class MissingModuleError(ConfigError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class HostError(KernbenchError, OSError):
    """The host refuses a file, a folder or a connection: a full disk, missing rights, an unreachable scheduler."""


class PointError(KernbenchError, RuntimeError):
    """A point of a study failed; the message ends with the point's own traceback."""


class InterruptedRun(KernbenchError, RuntimeError):
    """A study or sweep was interrupted; finished points are kept."""


class PlacementError(KernbenchError, ValueError):
    """A tensor cannot be placed as requested."""


class AllocationError(KernbenchError, RuntimeError):
    """A memory is full, or a free does not match an allocation."""


class KernelError(KernbenchError, RuntimeError):
    """A kernel failed on a PE."""


class OutOfBoundsError(KernelError, IndexError):
    """A kernel accessed an address that no tensor holds."""


class OutOfMemoryError(KernelError):
    """TCM or scratch cannot hold what a kernel asks for."""


class RaceError(KernelError):
    """Two unordered accesses to the same bytes, one of them a write; the message names both lines."""


class IpcqInvalidDirection(KernelError, ValueError):
    """A program names a queue that it does not have; the message lists those it has."""


class DeadlockError(KernbenchError, RuntimeError):
    """No program and no rank can continue; the message names every waiter."""


class IpcqDeadlock(DeadlockError):
    """A receive without a matching send; the message adds the state of each ring."""


class LimitError(KernbenchError, TimeoutError):
    """A run exceeded its limit on events, simulated time or host time; the message names what was running."""


class CollectiveMismatchError(KernbenchError, RuntimeError):
    """The ranks of a group do not call the same collective."""


class VerificationError(KernbenchError, AssertionError):
    """The values of a bench differ from those of its reference."""
