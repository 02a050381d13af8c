"""What becomes of one point: its row, or why there is none."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernbench.errors import LimitError
from kernbench.sim_engine.limits import NONE, Limits, limited
from kernbench.sweeps.keys import Row

OK, ERROR, TIME, MEMORY, SESSION, DIED = "ok", "error", "time limit", "memory limit", "session limit", "worker died"
STATUSES = (OK, ERROR, TIME, MEMORY, SESSION, DIED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a point ended.

    Parameters
    ----------
    status : str
        One of `STATUSES`.
    row : dict
        What the study returned, as JSON holds it; empty unless the status is "ok".
    error : str
        What went wrong, in one line.
    trace : str
        The traceback of a study that raised.
    seconds : float
        How long it took.
    """

    status: str
    row: Row
    error: str = ""
    trace: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PointLimits:
    """How long a point may take [s], how much memory its process may fill [MiB], and what its sessions may take."""

    seconds: float | None = None
    mib: int | None = None
    session: Limits = NONE

    @property
    def need_process(self) -> bool:
        """Whether a point has to run in a process that can be ended."""
        return self.seconds is not None or self.mib is not None


def attempt(fn: Callable[[Row], Row], point: Row, limits: Limits | None = None) -> Outcome:
    """Return what `fn(point)` comes to, its sessions held to `limits`; only an interrupt gets out of here."""
    start = time.perf_counter()
    try:
        with limited(limits or NONE):
            row = json.loads(json.dumps(fn(point), default=_plain))
        if not isinstance(row, dict):
            raise TypeError(f"a study returns a dict of names to values, not {type(row).__name__}")
    except MemoryError:
        return Outcome(MEMORY, {}, "out of memory", traceback.format_exc(), time.perf_counter() - start)
    except Exception as error:  # noqa: BLE001 - whatever a study raises is its point's alone
        text = f"{type(error).__name__}: {error}"
        status = SESSION if _is_limit(error) else ERROR
        return Outcome(status, {}, text, traceback.format_exc(), time.perf_counter() - start)
    return Outcome(OK, row, seconds=time.perf_counter() - start)


def _is_limit(error: BaseException | None) -> bool:
    """Return whether a session was over a limit; the error of a rank has that as its cause."""
    return error is not None and (isinstance(error, LimitError) or _is_limit(error.__cause__))


def _plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a row holds plain values, not {type(value).__name__}")
