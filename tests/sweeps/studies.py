"""Studies that the tests of sweeps run, in other processes, too: they have to be importable."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np


def square(machine, *, x: int, y: int = 1):
    return {"area_x": x * x * y, "pes_seen": machine.config.n_pes}


def scaled(by: int):
    def study(machine, *, x: int):
        return {"y": by * x}

    return study


def hurts(machine, *, x: int, how: str = "raise"):
    """Fail at x = 2, one way or another."""
    if x == 2 and how == "raise":
        raise ValueError("two is not for me")
    if x == 2 and how == "die":
        os._exit(9)
    if x == 2 and how == "hang":
        time.sleep(60)
    if x == 2 and how == "swell":
        return {"y": float(np.ones(1 << 30)[-1])}
    return {"y": x}


def noted(machine, *, x: int, notes: str):
    """Leave a note of every run, in a file of its own."""
    path = Path(notes) / f"{x}-{os.getpid()}-{time.perf_counter_ns()}"
    path.touch()
    return {"y": x}


def dies_once(machine, *, x: int, notes: str):
    """Take the whole process down, the first time."""
    note = Path(notes) / "died"
    if x == 2 and not note.exists():
        note.touch()
        os._exit(9)
    return {"y": x}


def slowly(machine, *, x: int, notes: str):
    (Path(notes) / str(x)).touch()
    time.sleep(0.2)
    return {"y": x}


def endless(machine, *, x: int, notes: str):
    """Leave a note of the process, and never end."""
    if x:
        (Path(notes) / str(os.getpid())).touch()
        while True:
            time.sleep(60)
    return {"y": x}


def calls(notes) -> list[int]:
    """Return the points that were run, sorted."""
    return sorted(int(p.name.partition("-")[0]) for p in Path(notes).iterdir())


def sessions(machine, *, x: int):
    """Open a session that reads x times; without an end at x = 0."""
    import kernbench as kb

    with kb.session(machine) as torch:
        tensor = torch.zeros(4, device="ahbm")
        while x == 0 or torch.requests < x:
            tensor.numpy()
    return {"y": torch.engine.now_ns}
