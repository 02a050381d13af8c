"""`kb.ccl.choose`: the fastest algorithm, where the tensor is, and what to change first."""

from __future__ import annotations

import json

import pytest

import kernbench as kb
from kernbench.ccl.algorithm import plan
from kernbench.ccl.install import load_ccl_config, names, resolve_algorithm_config
from kernbench.ccl.tuner import Candidate, Decision
from kernbench.config import default_ccl_path
from kernbench.errors import ArgumentError, ConfigError
from kernbench.runtime_api.collective import run
from kernbench.studies.best_collective import CollectiveChoice, Spread, bytes_of, system_of

SMALL = kb.load("preset:default", {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2})
CONFIG = load_ccl_config(default_ccl_path())


def sips(machine):
    own = machine.config.system.sips
    return own.count, own.topology, own.w, own.h


def test_a_count_takes_the_squarest_grid():
    assert sips(system_of(SMALL, 12, "torus_2d")) == (12, "torus_2d", 4, 3)
    assert sips(system_of(SMALL, "8", "mesh_2d_no_wrap")) == (8, "mesh_2d_no_wrap", 4, 2)
    assert sips(system_of(SMALL, "2x4", "torus_2d")) == (8, "torus_2d", 2, 4)
    assert sips(system_of(SMALL, "4x2", "ring_1d")) == (8, "ring_1d", None, None)
    assert system_of(SMALL, None, None) is SMALL


def test_wrong_questions_are_refused():
    for wrong in ("4by2", -1, True, "x"):
        with pytest.raises(ArgumentError, match="must be a number of SIPs, or a grid as 4x2"):
            system_of(SMALL, wrong, "torus_2d")
    with pytest.raises(ConfigError, match=r"system\.sips\.topology"):
        system_of(SMALL, 4, "moebius")
    for wrong in ("64 kilo", "0", "3", "-4", "", True):
        with pytest.raises(ArgumentError, match=r"must be a (number of bytes|multiple of the 2 bytes)"):
            bytes_of(wrong)
    with pytest.raises(ArgumentError, match="collective 'all_redcue' is unknown; did you mean all_reduce"):
        kb.ccl.choose(64, collective="all_redcue", machine=SMALL)


def test_the_choice_is_the_fastest_that_there_is():
    chosen = kb.ccl.choose("16KiB", sips=4, topology="torus_2d", machine=SMALL, changes=False)
    machine = system_of(SMALL, 4, "torus_2d")
    times = {}
    for name in names(CONFIG, "all_reduce", "rank"):
        if name not in chosen.decision.refused:
            planned = plan(
                resolve_algorithm_config(name, CONFIG).on(machine.config), machine.config, range(4), [(0, 0)]
            )
            times[name] = run(machine, planned, 1 << 14).latency_ns
    assert chosen.simulated_ns <= 1.02 * min(times.values())
    assert chosen.decision.bound_ns < chosen.simulated_ns < chosen.launched_ns
    assert sum(c.simulated_ns is not None for c in chosen.decision.candidates) == 3


def test_the_same_bytes_on_other_pes_are_compared():
    chosen = kb.ccl.choose(4096, sips=2, topology="ring_1d", machine=SMALL, changes=False)
    found = {spread.where: spread for spread in chosen.spreads}
    assert {name: (x.pes, x.nbytes) for name, x in found.items()} == {
        "one PE": (1, 4096), "the 8 PEs of a cube": (8, 512), "a PE of each of 4 cubes": (4, 1024),
        "all 32 PEs": (32, 128),
    }  # fmt: skip
    assert found["one PE"].simulated_ns == chosen.simulated_ns
    times = [spread.simulated_ns for spread in chosen.spreads]
    assert times == sorted(times)


def test_the_first_change_makes_it_faster():
    chosen = kb.ccl.choose(4096, sips=2, topology="ring_1d", machine=SMALL)
    first = chosen.changes.iloc[0]
    assert first["factor"] == "latency between SIPs"
    assert first["first"] == "down"
    machine = system_of(SMALL, 2, "ring_1d")
    faster = machine.with_({"system.sip_link.latency_ns": machine.config.system.sip_link.latency_ns / 2})
    algorithm = resolve_algorithm_config(chosen.algorithm, CONFIG).on(machine.config)
    ns = run(faster, plan(algorithm, faster.config, range(2), [(0, 0)]), 4096).latency_ns
    assert 100 * (1 - ns / chosen.simulated_ns) == pytest.approx(first["gain_pct"], abs=0.5)
    text, page = repr(chosen), chosen._repr_html_()
    for said in (chosen.title, "change first: halve latency between SIPs", "Algorithms", "on the critical path"):
        assert said in text
        assert said in page
    assert json.dumps(chosen.to_dict(), allow_nan=False)
    assert None in [change["up_pct"] for change in chosen.to_dict()["changes"]]  # HBM may not outrun its link


def test_the_page_names_algorithms_that_do_not_run():
    class Path:
        def __repr__(self):
            return "the critical path"

        _repr_html_ = __repr__

    candidates = (Candidate("ring_allreduce", 4, None, None, 12_345.6), Candidate("torus_allreduce", 16, 20_000.0))
    refused = {"mesh_allreduce": "6 SIPs are not a <grid>"}
    decision = Decision("all_reduce", 64, 6, "0123456789abcdef", candidates, refused, 0.0, "")
    spread = Spread("one PE", 1, 64, "ring_allreduce", 4, 12_345.6)
    chosen = CollectiveChoice("6 SIPs, ring_1d", decision, (spread,), None, 13_000.0, Path())
    text, page = repr(chosen), chosen._repr_html_()
    assert "mesh_allreduce  6 SIPs are not a <grid>" in text
    assert "6 SIPs are not a &lt;grid&gt;" in page
    assert f"  ring_allreduce       4  {'':16}  {'12,346':>14}" in text.splitlines()
    assert f"  torus_allreduce     16  {'20,000':>16}" in text.splitlines()
    assert text.endswith("the critical path")
