"""Completion callbacks."""

from __future__ import annotations

from typing import Any


class Callee:
    """Base class of callbacks that compiled code calls directly: on arrivals, and at requested times."""

    def landed(self, arg: Any) -> None:
        """Handle an arrival."""
        raise TypeError(f"{type(self).__name__} takes no messages")

    def woken(self, what: int, arg: Any) -> None:
        """Continue with step `what` at the requested time."""
        raise TypeError(f"{type(self).__name__} is not to be woken")

    def __call__(self, arg: Any) -> None:
        self.landed(arg)
