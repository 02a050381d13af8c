"""Attention of Llama-3 70B: the panels of the study with values, one decode step, the committed report."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import kernbench as kb
from benchmarks.table import Row, best
from kernbench.studies import attention, gqa, milestone
from kernbench.topology.builder import resolve_topology


def measure() -> Iterator[Row]:
    """Yield the validation panels together, a decode step on one SIP, a prefill, and the whole report."""
    yield panels()
    yield replace(simulated("decode of one token at", gqa.Case("decode", 32768)), target="< 5 s")
    yield simulated("prefill of", gqa.Case("prefill", 2048, query_heads=8, represents=8, causal=True))
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


def simulated(what: str, case: gqa.Case) -> Row:
    """Return one step of one sequence, timing alone."""
    machine = resolve_topology("preset:default")
    setting = case.setting(machine.config)
    seconds, result = best(lambda: attention.run(machine, setting))
    rate = f"{len(result.records.commands) / seconds / 1000:.0f} k commands/s"
    return Row(f"Llama-3 70B, {what} {case.context:,} on {setting.programs} PEs", seconds, rate)


def reported() -> Row:
    """Return the wall time of the attention report with its full parameters, nothing of it kept before."""
    with TemporaryDirectory() as folder:
        begin = time.perf_counter()
        milestone.run("gqa", topology="preset:default", output=Path(folder))
        seconds = time.perf_counter() - begin
    return Row(f"`kernbench milestone gqa` (wall time, {os.cpu_count()} cores)", seconds, target="< 180 s")
