"""Measuring, and the table of `benchmarks/README.md`."""

from __future__ import annotations

import gc
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from kernbench import _engine_selection
from kernbench.sim_engine._network import ENGINE

T = TypeVar("T")
README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- begin table -->", "<!-- end table -->"


@dataclass(frozen=True)
class Row:
    """One measurement; `reference` is what `ratio` compares with, measured in the same run."""

    what: str
    seconds: float
    rate: str = ""
    reference: str = ""
    ratio: float | None = None
    target: str = ""


def best(fn: Callable[[], T], repeat: int = 3) -> tuple[float, T]:
    """Return the least CPU time of `repeat` calls [s], and what the last one returned."""
    seconds = []
    for _ in range(repeat):
        gc.collect()
        begin = time.process_time()
        value = fn()
        seconds.append(time.process_time() - begin)
    return min(seconds), value


def against_definition(fn: Callable[..., Row], *args: Any, target: str = "", **options: Any) -> Row:
    """Return the row of `fn` on the engine in use, and how many times as long the definition takes, in its own process.

    Arguments are plain values: the other process gets their text.
    """
    row = fn(*args, **options)
    code = f"from {fn.__module__} import {fn.__name__} as fn; print(fn(*{args!r}, **{options!r}).seconds)"
    environment = {**os.environ, _engine_selection.VARIABLE: _engine_selection.DEFINITION}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    return replace(row, reference="the definition", ratio=float(done.stdout) / row.seconds, target=target)


def peak_mib() -> float:
    """Return the most memory that this process has used [MiB]: `ru_maxrss` of a child starts at its parent's peak."""
    found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise OSError("/proc/self/status has no VmHWM: the peak of memory is measured on Linux only")
    return int(found[1]) / 1024


def host() -> str:
    """Return what the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        found = re.search(r"model name\s*:\s*(.+)", info.read_text(encoding="utf-8"))
        cpu = found[1] if found else cpu
    versions = {name: __import__(name).__version__ for name in ("simpy", "greenlet", "numpy")}
    return f"{cpu}, engine {ENGINE}, CPython {platform.python_version()}, " + ", ".join(
        f"{k} {v}" for k, v in versions.items()
    )


def markdown(rows: list[Row]) -> str:
    """Return the rows as a table."""

    def line(*cells: Any) -> str:
        return "| " + " | ".join(str(cell) for cell in cells) + " |"

    lines = [
        line("what", "seconds", "rate", "ratio", "reference of the ratio", "target"),
        line("---", "---:", "---:", "---:", "---", "---"),
    ]
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(line(row.what, f"{row.seconds:.3g}", row.rate, ratio, row.reference, row.target))
    return "\n".join(lines)


def write(rows: list[Row]) -> None:
    """Put the rows into the table of the README, between its marks."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    table = f"{BEGIN}\n\n{host()}.\n\n{markdown(rows)}\n\n{END}"
    README.write_text(before + table + after, encoding="utf-8")


def chain(*parts: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Yield the rows of all parts, each printed as it comes."""
    for part in parts:
        for row in part():
            ratio = "" if row.ratio is None else f"  {row.ratio:.2f}x"
            print(f"{row.what}: {row.seconds:.3g} s  {row.rate}{ratio}", flush=True)
            yield row
