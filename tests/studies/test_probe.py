"""The probe: alone, the simulation and the closed form are one; together, what is too long is queueing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernbench as kb
from kernbench.analysis._transfer import TRANSFER_PARTS
from kernbench.errors import ConfigError, KernbenchError
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.gemm import GemmStudy
from kernbench.studies.probe import ProbeStudy, cases, hops, pair_ns, run, select
from kernbench.topology.builder import resolve_topology
from tests.components.queues_under_test import way_ps
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
    assert run(DEFAULT, cases(DEFAULT)[case], 4096).parts[0].total == round(ns * 1000)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.integers(1, 30_000), st.data())
def test_alone_the_simulation_takes_the_closed_form(seed, nbytes, data):
    machine = random_machine(seed)
    case = data.draw(st.sampled_from([case for case in cases(machine).values() if not (case.pattern or case.pair)]))
    [parts] = run(machine, case, nbytes).parts
    assert parts.queueing == 0


@pytest.mark.parametrize("nbytes", [100, 4096, 5000, 100_000])
def test_a_slow_memory_is_in_the_closed_form(nbytes):
    single = [case for case in cases(CONSERVATIVE).values() if not (case.pattern or case.pair)]
    slow = [run(CONSERVATIVE, case, nbytes).parts[0] for case in single]
    fast = [run(DEFAULT, case, nbytes).parts[0] for case in single]
    assert all(parts.queueing == 0 for parts in slow)
    assert all(a.memory > b.memory for a, b in zip(slow, fast, strict=True))


def test_with_commands_of_a_standard_the_memory_takes_what_an_idle_machine_does():
    machine = DEFAULT.with_({"cube.hbm.timing": "hbm3"})
    own, far = (run(machine, cases(machine)[name], 256) for name in ("own-slice-read", "other-sip-read"))
    assert own.alone[0].memory == far.alone[0].memory == 42_500
    assert own.alone[0].total == run(DEFAULT, cases(DEFAULT)["own-slice-read"], 256).alone[0].total - 8000 + 42_500
    assert own.parts[0].queueing == far.parts[0].queueing == 0
    # A write is acknowledged as soon as it is queued.
    assert run(machine, cases(machine)["own-slice-write"], 4096).alone[0].memory == 0


@pytest.mark.parametrize("name", ["eastbound-write", "all-one-read"])
def test_transfers_that_meet_queue_and_parts_still_sum(name):
    found = run(SMALL, cases(SMALL)[name], 8192)
    assert max(parts.queueing for parts in found.parts) > 0
    assert min(parts.queueing for parts in found.parts) >= 0
    assert max(parts.total for parts in found.parts) == found.result.records.makespan_ps


def test_no_pattern_beats_its_fullest_resource(rows):
    patterns = [row for row in rows if row.get("transfers", 1) > 1]
    assert len({row["case"] for row in patterns}) == 10
    assert all(row["bandwidth_gbs"] < row["fair_gbs"] for row in patterns)
    assert all(row["hottest_share"] <= 1 for row in patterns)


def test_pes_at_their_own_slices_do_not_meet(rows):
    own = next(row for row in rows if row["case"] == "all-own-read")
    assert own["queueing_ns"] == 0
    assert own["last_end_ns"] == 27.0


def test_parts_sum_to_the_mean(rows):
    for row in (row for row in rows if "mean_ns" in row):
        assert sum(row[f"{part}_ns"] for part in TRANSFER_PARTS) == pytest.approx(row["mean_ns"], rel=1e-12)


@pytest.mark.parametrize("nbytes", [100, 4096, 10240])
@pytest.mark.parametrize(("pair", "slice_of"), [("pe-east", "same-half"), ("cube-east", "next-cube")])
def test_loads_and_stores_from_pe_to_pe_take_the_closed_form(pair, slice_of, nbytes):
    found = cases(DEFAULT)
    for command, kind in (("load", "read"), ("store", "write")):
        [alone] = run(DEFAULT, found[f"{slice_of}-{kind}"], nbytes).alone
        assert pair_ns(DEFAULT, found[f"{pair}-{command}"], nbytes) == alone.total / 1000


@pytest.mark.parametrize("nbytes", [128, 4096])
@pytest.mark.parametrize(("pair", "peer"), [("pe-south", (0, 0, 4)), ("cube-south", (0, 4, 0))])
def test_a_message_of_one_slot_takes_its_way_and_both_ports_of_tcm(pair, peer, nbytes):
    """Ports of 512 GB/s: one to write what arrives, one to read what is received."""
    way_ns = way_ps(GraphEngine(DEFAULT), (0, 0, 0), peer, nbytes) / 1000
    assert pair_ns(DEFAULT, cases(DEFAULT)[f"{pair}-message"], nbytes) == pytest.approx(way_ns + 2 * nbytes / 512)


def test_pairs_are_the_next_pe_and_the_next_cube_of_a_row_and_a_column():
    found = {case.name.removesuffix("-load"): case.pair[1] for case in cases(DEFAULT).values() if case.kind == "load"}
    assert found == {"pe-east": (0, 0, 1), "pe-south": (0, 0, 4), "cube-east": (0, 1, 0), "cube-south": (0, 4, 0)}
    places = {"cube.noc.rows": 4, "cube.noc.cols": 6, "cube.noc.removed": [], "sip.cube_mesh.w": 1}
    turned = DEFAULT.with_({**places, "cube.pe_layout.pe_routers": [[1, 1], [0, 1], [1, 0], [3, 1], [1, 5], [1, 4]]})
    found = {case.name.removesuffix("-load"): case.pair[1] for case in cases(turned).values() if case.kind == "load"}
    assert found == {"pe-east": (0, 0, 5), "pe-south": (0, 0, 3), "cube-south": (0, 1, 0)}


def test_the_finding_from_pe_to_pe_compares_messages_with_loads(rows):
    said = [finding for finding in ProbeStudy().findings(rows) if finding.chart == "probe_pe_to_pe"]
    [found] = said
    assert found.text == "128 B over pe-east take 4.0 ns as a message, 13.6 ns as a load."
    assert " 4 KiB over pe-east take 36.0 against 30.1 ns: " in found.detail
    without = [row for row in rows if row["kind"] != "load"]
    assert not [finding for finding in ProbeStudy().findings(without) if finding.chart == "probe_pe_to_pe"]


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
        assert len(ProbeStudy().run(machine, sizes=[300], messages=[300])) == len(cases(machine))


def test_bad_parameters_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(KernbenchError, match="did you mean next-cube-read"):
        ProbeStudy().run(DEFAULT, cases=["next-cube"], folder=tmp_path)
    for wrong in ({"sizes": [0]}, {"messages": []}):
        with pytest.raises(KernbenchError, match=f"{next(iter(wrong))} = .* must be bytes >= 1"):
            ProbeStudy().run(DEFAULT, **wrong, folder=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
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


@pytest.mark.parametrize("what", ["probe", "a load curve of a cube", "gemm"])
def test_a_machine_with_memory_apart_from_its_pes_is_refused(what):
    machine = kb.load("preset:a100_sxm")
    measure = {
        "probe": lambda: cases(machine),
        "a load curve of a cube": lambda: kb.load_curve(machine, loads=[0.1]),
        "gemm": lambda: GemmStudy().run(machine),
    }[what]
    with pytest.raises(ConfigError, match=rf"cube.hbm.controllers = 10: {what} measures the HBM slices of PEs"):
        measure()
