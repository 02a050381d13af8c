"""The critical path of attention over ranks: whole to the picosecond, with the messages between ranks on it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from kernbench.analysis._critical_path import critical_path
from kernbench.studies.attention import Setting, run
from kernbench.topology.builder import resolve_topology
from tests.analysis.paths import checked

MACHINE = resolve_topology("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})
SMALL = Setting("prefill", 4, pes=4, items=1, group=4, head_dim=32, tokens=24)


@pytest.mark.parametrize("log", ["operation", "tile"])
@pytest.mark.parametrize(
    "setting",
    [
        SMALL,
        replace(SMALL, ring=False),
        replace(SMALL, causal=True, order="zigzag"),
        replace(SMALL, phase="decode", tokens=600),
        replace(SMALL, phase="decode", merge="ring_allreduce_tcm", across="cube", cubes=2, pes=2),
    ],
)
def test_the_path_is_whole(setting, log):
    checked(run(MACHINE, setting, log=log).records)


def test_messages_are_on_the_path_where_they_cannot_be_hidden():
    """One token over 8 ranks: the merge comes after all work, so its messages are on the way to the end."""
    result = run(MACHINE, Setting("decode", 8, group=4, head_dim=32, tokens=64))
    assert critical_path(result.records).because()["a message's arrival"] == 3  # log2(8) rounds, one after the other


ENGINES = {"matrix": ("pe_gemm", "gemm"), "vector": ("pe_math", "math")}  # kind of a step: part of the machine, rows
PREFILL = Setting("prefill", 4, pes=4, group=8, head_dim=128, tokens=64)
DECODE = Setting("decode", 8, group=8, head_dim=128, tokens=1024)


def makespan(setting, part, factor):
    value = getattr(MACHINE.config.cube.pe, part).clock_ghz
    return run(MACHINE.with_({f"cube.pe.{part}.clock_ghz": value * factor}), setting).records.makespan_ps


@pytest.mark.parametrize(("setting", "most"), [(PREFILL, "vector"), (DECODE, "matrix")])
def test_limits_are_what_halving_and_doubling_say(setting, most):
    """An engine at half its speed costs its share of the path at least, and the busiest one's time at most.

    At double speed it saves half of its share at most, as another path takes over.
    """
    records = run(MACHINE, setting, log="tile").records
    share, now = dict.fromkeys(ENGINES, 0), records.makespan_ps
    for (kind, _), ps in critical_path(records).parts().items():
        if kind in share:
            share[kind] += ps
    assert max(share, key=share.__getitem__) == most
    for kind, (part, name) in ENGINES.items():
        rows = records.of_kind(name)
        busy = Counter()
        for command, ps in zip(rows.command.tolist(), (rows.end_ps - rows.start_ps).tolist(), strict=True):
            busy[records.commands[command].pe] += ps
        assert share[kind] <= makespan(setting, part, 0.5) - now <= 1.02 * max(busy.values())
        assert 0 < now - makespan(setting, part, 2) <= share[kind] / 2


def test_memory_sets_the_pace_of_a_long_decode():
    """Most of what a slice takes to read is on the path: at half its speed the step takes that much longer."""
    parts = critical_path(run(MACHINE, DECODE, log="tile").records).parts()
    share = sum(ps for (kind, _), ps in parts.items() if kind == "memory")
    hbm = MACHINE.config.cube.hbm
    slower = MACHINE.with_({"cube.hbm.channel_bw_gbs": hbm.channel_bw_gbs / 2, "cube.hbm.bw_gbs": hbm.bw_gbs / 2})
    times = [run(machine, DECODE).records.makespan_ps for machine in (MACHINE, slower)]
    reading = 2 * DECODE.tokens * DECODE.head_dim * 2 / (hbm.channels * hbm.channel_bw_gbs) * 1000
    assert 0.75 * reading <= share <= 1.02 * reading
    assert share <= times[1] - times[0] <= 1.1 * share
