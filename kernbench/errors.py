"""Every error that kernbench raises on purpose.

KernbenchError
+-- ConfigError              a machine, ccl or plan file, or an override, is wrong
+-- PlacementError           a tensor cannot be placed as its DPPolicy says
+-- AllocationError          a memory is full, or a free does not match an allocation
+-- KernelError              a kernel failed: its file, line, program and PE are named
|   +-- OutOfBoundsError     an access outside every mapped tensor
|   +-- OutOfMemoryError     TCM or scratch cannot hold what the kernel asks for
|   +-- IpcqInvalidDirection a queue that the program does not have
+-- DeadlockError            nothing can go on; every waiter is named
|   +-- IpcqDeadlock
+-- LimitError               a run took more events, simulated time or host time than it may
+-- CollectiveMismatchError  ranks disagree about a collective call
+-- VerificationError        a bench's values are not what numpy says they are
"""

from __future__ import annotations


class KernbenchError(Exception):
    """Base of all kernbench errors."""


class ConfigError(KernbenchError):
    """A configuration is wrong; `faults` holds one line per fault of the file."""

    def __init__(self, faults: list[str] | str) -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n".join(self.faults))


class PlacementError(KernbenchError):
    """A tensor cannot be placed as asked."""


class AllocationError(KernbenchError):
    """A memory is full, or a free does not match an allocation."""


class KernelError(KernbenchError):
    """A kernel failed on a PE."""


class OutOfBoundsError(KernelError):
    """A kernel touched an address that no tensor holds."""


class OutOfMemoryError(KernelError):
    """TCM or scratch cannot hold what a kernel asks for."""


class IpcqInvalidDirection(KernelError):
    """A program names a queue that it does not have; the message lists those it has."""


class DeadlockError(KernbenchError):
    """Nothing can go on; the message names every waiter."""


class IpcqDeadlock(DeadlockError):
    """A receive that nobody serves; the message adds the state of each ring."""


class LimitError(KernbenchError):
    """A run took more events, simulated time or host time than its limits allow; the message names what ran."""


class CollectiveMismatchError(KernbenchError):
    """Ranks of one group disagree about the collective they call."""


class VerificationError(KernbenchError):
    """A bench computed something else than its reference."""
