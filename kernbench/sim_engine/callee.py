"""What the calendar calls back without a bound method."""

from __future__ import annotations

from typing import Any


class Callee:
    """What is called at the arrival of a message, or at a time it asked for."""

    __slots__ = ()

    def landed(self, arg: Any) -> None:
        """Take a message that has arrived."""
        raise TypeError(f"{type(self).__name__} takes no messages")

    def woken(self, what: int, arg: Any) -> None:
        """Continue with step `what` at the time asked for."""
        raise TypeError(f"{type(self).__name__} is not to be woken")

    def __call__(self, arg: Any) -> None:
        """Take a message that has arrived."""
        self.landed(arg)
