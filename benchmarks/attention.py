"""Attention of Llama-3 70B: the panels of the study with values, one decode step, the committed report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import kernbench as kb
from benchmarks.table import Row, best
from kernbench.studies import attention, gqa, milestone
from kernbench.topology.builder import resolve_topology


def measure() -> Iterator[Row]:
    """Yield the validation panels together, a decode step on one SIP, and the whole report."""
    yield panels()
    yield decoded(32768)
    yield reported()


def panels() -> Row:
    """Return the four panels at validation scale, compared with numpy."""

    def once() -> int:
        with kb.session("preset:default", data=True) as torch:
            gqa.panels(torch)
            return torch.checks

    seconds, checks = best(once)
    assert checks == len(gqa.PANELS), "every panel must be checked"
    return Row("attention, four validation panels, values compared with numpy", seconds, target="< 2 s")


def decoded(context: int) -> Row:
    """Return one decode step of one sequence over the PEs of a SIP, timing alone."""
    machine = resolve_topology("preset:default")
    setting = gqa.Case("decode", context).setting(machine.config)
    seconds, result = best(lambda: attention.run(machine, setting))
    rate = f"{len(result.records.commands) / seconds / 1000:.0f} k commands/s"
    return Row(
        f"Llama-3 70B, decode of one token at {context:,} on {setting.programs} PEs",
        seconds,
        rate,
        target="< 5 s",
    )


def reported() -> Row:
    """Return the wall time of the attention report with its full parameters, nothing of it kept before."""
    with TemporaryDirectory() as folder:
        begin = time.perf_counter()
        milestone.run("gqa", topology="preset:default", output=Path(folder))
        seconds = time.perf_counter() - begin
    return Row(f"`kernbench milestone gqa` (wall time, {os.cpu_count()} cores)", seconds, target="< 180 s")
