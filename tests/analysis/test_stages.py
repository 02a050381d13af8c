"""What the log keeps of tiled commands when it does not keep their tiles: the same as with them, stage by stage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis._records import Records, StageWork
from kernbench.kernels.gemm import STAGINGS
from kernbench.studies import gemm
from kernbench.topology.builder import resolve_topology
from tests.analysis.paths import STEPS, program
from tests.components.one_pe import engine_of, launch

MACHINE = resolve_topology("preset:default")
DMA = ("dma_in", "dma_out")


def stages_of(records):
    return sorted(StageWork._make(row) for row in records.dependencies.stages.tolist())


def summed(records):
    """The stages of each tiled command, from the rows of its tiles and their transfers."""
    rows = np.flatnonzero(records.tile >= 0).tolist()
    keys = sorted({(int(records.command[i]), int(records.kind[i])) for i in rows})
    found = []
    for command, kind in keys:
        own = [i for i in rows if (records.command[i], records.kind[i]) == (command, kind)]
        start, end = records.start_ps[own], records.end_ps[own]
        nbytes = int(records.nbytes[own].sum()) if records.kinds[kind] in DMA else 0
        found.append((command, kind, int(start.min()), int(end.max()), int((end - start).sum()), len(own), nbytes))
    return found


@pytest.mark.parametrize("variant", STAGINGS)
@pytest.mark.parametrize("shape", [(64, 64, 64), (100, 200, 70)])
def test_stages_are_the_sums_of_their_tiles_at_every_level(shape, variant, tmp_path):
    tiles, whole = (gemm.run(MACHINE, shape, variant, log=log).records for log in ("tile", "operation"))
    assert stages_of(whole) == stages_of(tiles)
    assert [x[:-1] for x in stages_of(tiles)] == summed(tiles)
    nodes, routes = whole.dependencies.nodes, whole.dependencies.routes
    assert {nodes[routes[x.route][0]] for x in stages_of(whole) if x.route >= 0} == {"sip0.cube0.hbm_ctrl.pe0"}
    again = Records.load(whole.save(tmp_path / "run.npz"))
    assert stages_of(again) == stages_of(whole)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 0, 5])), min_size=1, max_size=8))
def test_stages_of_any_program(steps):
    tiles, whole = (engine_of(log=log) for log in ("tile", "operation"))
    for engine in (tiles, whole):
        launch(engine, program(steps), (0, 0), (0, 1))
    found = [[x[:-1] for x in stages_of(engine.records())] for engine in (tiles, whole)]  # routes are numbered by use
    assert found[0] == found[1] == summed(tiles.records())
