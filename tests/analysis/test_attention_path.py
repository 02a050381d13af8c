"""The critical path of attention over ranks: whole to the picosecond, with the messages between ranks on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.analysis.critical_path import critical_path
from kernbench.studies.gqa_run import Setting, run
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
    checked(run(MACHINE, setting, mode="exact", log=log).records)


def test_messages_are_on_the_path_where_they_cannot_be_hidden():
    """One token over 8 ranks: the merge comes after all work, so its messages are on the way to the end."""
    result = run(MACHINE, Setting("decode", 8, group=4, head_dim=32, tokens=64), mode="exact")
    assert critical_path(result.records).because()["a message's arrival"] == 3  # log2(8) rounds, one after the other
