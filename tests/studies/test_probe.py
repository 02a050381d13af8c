"""The probe: alone, the simulation and the closed form are one; together, what is too long is queueing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.analysis.transfer import PARTS
from kernbench.errors import KernbenchError
from kernbench.studies.probe import ProbeStudy
from kernbench.studies.probe_cases import cases, select
from kernbench.studies.probe_run import hops, probe
from kernbench.topology.builder import resolve_topology
from tests.reference.traffic import random_machine

DEFAULT = resolve_topology("preset:default")
SMALL = resolve_topology("preset:small")
CONSERVATIVE = resolve_topology("preset:hbm3_conservative")


@pytest.fixture(scope="module")
def rows():
    return ProbeStudy().run(DEFAULT, sizes=[4096, 8192])


@pytest.mark.parametrize(
    ("case", "ns"),
    [
        ("own-slice-read", 27.00),
        ("same-half-read", 30.06),
        ("other-half-read", 57.60),
        ("next-cube-read", 101.42),
        ("other-sip-read", 224.12),
        ("d2h-read", 337.06),
    ],
)
def test_check_values(case, ns):
    assert probe(DEFAULT, cases(DEFAULT)[case], 4096).parts[0].total == round(ns * 1000)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 30_000), st.data())
def test_alone_the_simulation_takes_the_closed_form(seed, nbytes, data):
    machine = random_machine(seed)
    case = data.draw(st.sampled_from([case for case in cases(machine).values() if not case.pattern]))
    [parts] = probe(machine, case, nbytes).parts
    assert parts.queueing == 0


@pytest.mark.parametrize("nbytes", [100, 4096, 5000, 100_000])
def test_a_slow_memory_is_in_the_closed_form(nbytes):
    single = [case for case in cases(CONSERVATIVE).values() if not case.pattern]
    slow = [probe(CONSERVATIVE, case, nbytes).parts[0] for case in single]
    fast = [probe(DEFAULT, case, nbytes).parts[0] for case in single]
    assert all(parts.queueing == 0 for parts in slow)
    assert all(a.memory > b.memory for a, b in zip(slow, fast, strict=True))


@pytest.mark.parametrize("name", ["eastbound-write", "all-one-read"])
def test_transfers_that_meet_queue_and_parts_still_sum(name):
    found = probe(SMALL, cases(SMALL)[name], 8192)
    assert max(parts.queueing for parts in found.parts) > 0
    assert min(parts.queueing for parts in found.parts) >= 0
    assert max(parts.total for parts in found.parts) == found.result.records.makespan_ps


def test_no_pattern_beats_its_fullest_resource(rows):
    patterns = [row for row in rows if row["transfers"] > 1]
    assert len({row["case"] for row in patterns}) == 10
    assert all(row["bandwidth_gbs"] < row["fair_gbs"] for row in patterns)
    assert all(row["hottest_share"] <= 1 for row in rows)


def test_pes_at_their_own_slices_do_not_meet(rows):
    own = next(row for row in rows if row["case"] == "all-own-read")
    assert own["queueing_ns"] == 0
    assert own["last_end_ns"] == 27.0


def test_parts_sum_to_the_mean(rows):
    for row in rows:
        assert sum(row[f"{part}_ns"] for part in PARTS) == pytest.approx(row["mean_ns"], rel=1e-12)


def test_hops_tell_when_each_link_was_crossed():
    crossed = hops(DEFAULT, cases(DEFAULT)["own-slice-read"], 4096)
    there, into, out, back = crossed
    assert [hop["flits"] for hop in crossed] == [1, 1, 16, 16]
    assert (there["first_arrival_ns"], into["first_arrival_ns"]) == (0, 1)
    assert (out["first_arrival_ns"], out["first_end_ns"]) == (9, 10)
    assert back["last_end_ns"] == 27
    assert out["bytes"] == 4096


def test_a_machine_has_the_cases_that_it_has_parts_for():
    one = DEFAULT.with_(
        {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1,
         "cube.pe_layout.corners": ["NW"]}
    )  # fmt: skip
    assert list(cases(one)) == ["h2d-write", "d2h-read", "own-slice-read", "own-slice-write"]
    with pytest.raises(KernbenchError, match="no probe case 'other-sip-read'"):
        select(one, ["other-sip-read"])


def test_every_case_runs_on_odd_machines():
    for seed in range(6):
        machine = random_machine(seed)
        assert len(ProbeStudy().run(machine, sizes=[300])) == len(cases(machine))


def test_bad_parameters_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(KernbenchError, match="did you mean next-cube-read"):
        ProbeStudy().run(DEFAULT, cases=["next-cube"], folder=tmp_path)
    with pytest.raises(KernbenchError, match="sizes"):
        ProbeStudy().run(DEFAULT, sizes=[0], folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_report_can_be_drawn_again_from_its_files(tmp_path):
    study = ProbeStudy()
    cases = ["own-slice-read", "next-cube-write", "eastbound-read", "all-one-read", "all-one-write"]
    first = study.report(SMALL, folder=tmp_path, cases=cases, sizes=[4096, 8192])
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = study.report(SMALL, folder=tmp_path, rerender=True, cases=cases, sizes=[4096, 8192])
    assert again.rows == first.rows
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == written
    assert {"probe.csv", "probe_hops.csv", "probe_single_parts.svg", "probe_links_eastbound_read.png"} <= set(written)
    page = written["README.md"].decode()
    assert "4 single transfers: all equal their closed form to the picosecond." in page
    assert "](probe_single_bandwidth.svg)" in page


def test_reading_a_folder_without_results_says_what_to_do(tmp_path):
    with pytest.raises(KernbenchError, match="run the study first"):
        ProbeStudy().read(tmp_path)
