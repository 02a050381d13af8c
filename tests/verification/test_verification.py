"""The verification study: rows hold, a wrong model or a wrong formula is seen, and later work can add rows."""

from __future__ import annotations

import csv
import re
from dataclasses import replace

import pytest

from kernbench.analysis import _transfer as transfer
from kernbench.studies.study import Report
from kernbench.topology.builder import resolve_topology
from tests.reference.simulator import Reference
from tests.reference.traffic import play, random_machine, random_traffic
from tests.repo import ROOT
from tests.sim_engine.adapter import Engine
from tests.verification import __main__ as command
from tests.verification import pe
from tests.verification.network import Check, Sample
from tests.verification.study import CHECKS, VerificationStudy

SMALL = resolve_topology("preset:small")
STUDY = VerificationStudy()
QUICK = (
    "message-alone", "reads-alone", "writes-alone", "parts", "check-values", "launch-start", "common-start", "issue",
    "space",
)  # fmt: skip
SLOW = (
    "reference", "tie-spread", "tie-spread-each", "message-alone", "buffers", "digest", "tie-spread-product", "ideal",
)  # fmt: skip
MODEL = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")


def row_of(name: str, machine=SMALL) -> dict:
    [check] = (check for check in CHECKS.values() if check.name == name)
    return check.row(machine, 0)


def outcome(*pairs: tuple[float, float]):
    return lambda _machine, _repeats: [Sample(f"point {i}", *pair) for i, pair in enumerate(pairs)]


def test_every_row_names_a_rule_of_the_model_once():
    rules = set(re.findall(r"^(?:### |- \*\*)(M\d\.\d+)\b", MODEL, re.MULTILINE))
    assert {check.rule for check in CHECKS.values()} <= rules
    names = [check.name for check in CHECKS.values()]
    assert len(names) == len(set(names))


def test_every_formula_of_transfers_and_kernels_has_a_row():
    assert {check.rule for check in CHECKS.values()} >= {
        "M4.1", "M4.2", "M4.3", "M4.4", "M4.5", "M4.6", "M4.7", "M4.8",
        "M5.1", "M5.2", "M5.3", "M5.4", "M5.5", "M5.6", "M5.7", "M5.8", "M5.9", "M6.2", "M6.4",
    }  # fmt: skip


def test_buffers_are_counted_to_the_one():
    """The recurrence with one buffer more, or one less, is another one."""
    slow = pe.SLOW["a slow vector engine"]
    machine = resolve_topology("preset:default", {**slow, "cube.pe.pe_tcm.stage_buffers": 2})
    records = pe.product_of(machine, (96, 128, 96), "load_load", ("exp",))
    wrong = {n: sum(a != b for _, a, b in pe.recurrence(records, n)) for n in (1, 2, 3)}
    assert wrong[2] == 0
    assert wrong[1] > 0
    assert wrong[3] > 0


@pytest.mark.parametrize("closed", [True, False])
def test_the_second_simulator_sees_a_picosecond(closed):
    # Alike on the same machine; on one whose routers take a picosecond more, it differs.
    machine = random_machine("a picosecond")
    asks = random_traffic(machine, "a picosecond", rounds=4, light=not closed)
    engine = play(Engine(machine), asks, closed=closed)
    assert play(Reference(machine), asks, closed=closed) == engine
    assert all(engine)
    overhead = machine.config.cube.noc.router.overhead_ns
    slower = machine.with_({"cube.noc.router.overhead_ns": overhead + 0.001})
    assert play(Reference(slower), asks, closed=closed) != engine


def test_a_row_says_how_far_off_and_where():
    row = Check("a", "M4.1", "what", outcome((100, 100), (200, 203), (50, 49))).row(SMALL, 0)
    assert (row["error_max"], row["error_mean"], row["worst"]) == (3, pytest.approx(4 / 3), "point 1")
    assert (row["worst_expected"], row["worst_measured"]) == (200, 203)
    assert row["percent_max"] == 2  # of 50
    assert row["held"] is False


def test_a_row_holds_up_to_what_is_allowed_and_no_further():
    check = Check("a", "M4.1", "what", outcome((100, 105)), "%", 5.0)
    assert check.row(SMALL, 0)["held"] is True
    assert replace(check, allowed=4.999).row(SMALL, 0)["held"] is False
    assert replace(check, allowed=None).row(SMALL, 0)["held"] is None


def test_something_where_nothing_was_expected_is_all_wrong():
    assert Check("a", "M4.1", "what", outcome((0, 1))).row(SMALL, 0)["percent_max"] == 100


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("preset", ["small", "hbm3_conservative"])
def test_holds_exactly(name, preset):
    row = row_of(name, resolve_topology(f"preset:{preset}"))
    assert row["held"] is True
    assert row["error_max"] == 0
    assert row["n"] > 1


@pytest.mark.parametrize("name", ["fetch", "matrix", "store", "vector", "counts", "lines"])
def test_stages_hold_on_a_machine_of_odd_numbers(name):
    machine = SMALL.with_(
        {
            "cube.pe.pe_tcm.read_bw_gbs": 333.3,
            "cube.pe.pe_tcm.write_bw_gbs": 77.7,
            "cube.pe.pe_gemm.clock_ghz": 1.3,
            "cube.pe.pe_math.clock_ghz": 0.7,
            "cube.pe.pe_math.slow_op_cycles": 5,
        }
    )
    assert row_of(name, machine)["error_max"] == 0


def test_a_wrong_formula_is_seen(monkeypatch):
    right = transfer.ACK_BYTES
    assert row_of("writes-alone")["held"] is True
    monkeypatch.setattr(transfer, "ACK_BYTES", right + 240)
    assert row_of("writes-alone")["held"] is False


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verification")
    return folder, STUDY.report(SMALL, folder=folder, checks=["check-values", "issue", "tie-spread"], repeats=0)


def test_report(written):
    folder, report = written
    assert STUDY.read(folder) == report.rows
    with (folder / "verification.csv").open(encoding="utf-8") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["check-values", "issue", "tie-spread"]
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "**1. 2 of 3 rows hold exactly; no rule is violated.**\n\nThey are compared at 16 points.\n" in text
    assert "| M4.8 | the table of reads on an idle default machine | 12 | 0 | 0 | exact |" in text
    assert "](verification_spread.svg)" in text


def test_the_figure_draws_the_differences_of_its_rows(written):
    _, report = written
    drawn = report.chart("verification_spread").to_dict()
    [points] = [rows for rows in drawn["datasets"].values() if "points_pct" in rows[0]]
    [row] = [row for row in report.rows if row["unit"] == "%"]
    assert [(x["points_pct"], x["error"]) for x in points] == [(x["points_pct"], x["error"]) for x in row["quantiles"]]
    assert points[-1]["error"] == row["error_max"]


def test_quantiles_reach_from_the_least_to_the_largest_error():
    row = Check("a", "M4.1", "what", outcome(*[(100, 100 + i) for i in range(41)])).row(SMALL, 0)
    assert [x["points_pct"] for x in row["quantiles"]] == list(range(0, 101, 5))
    assert [x["error"] for x in row["quantiles"]] == list(range(0, 41, 2))


def test_a_broken_rule_comes_first_after_the_count():
    rows = [Check("a", "M4.1", "what", outcome((100, 103))).row(SMALL, 0)]
    rows += [Check(f"b{i}", "M4.2", "what", outcome((100, 101)), "%", None, "why").row(SMALL, 0) for i in range(9)]
    found = Report(STUDY, rows, SMALL, {}).findings
    assert found[0].text == "0 of 10 rows hold exactly; 1 do not hold."
    assert found[1].text == "What: DOES NOT HOLD, 3 ps."
    assert found[1].detail == "M4.1, point 0: expected 100, simulated 103."
    assert len(found) == 7
    assert STUDY.tables(rows)["Rules"]["verdict"].tolist() == ["BROKEN", *["reported"] * 9]
    assert len(STUDY.tables(rows)["Largest errors"]) == 10


def test_the_committed_report_holds():
    rows = STUDY.read(command.OUTPUT)
    assert [row["name"] for row in rows] == list(CHECKS)
    assert not [row["name"] for row in rows if row["held"] is False]


def test_the_committed_report_is_that_of_its_rows(tmp_path):
    command.report(STUDY.read(command.OUTPUT)).write(tmp_path)
    for path in tmp_path.iterdir():
        if path.suffix in {".md", ".csv", ".json"}:
            assert path.read_text() == (command.OUTPUT / path.name).read_text(), path.name


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in CHECKS])
def test_the_committed_rows_are_what_the_checks_find(name):
    [committed] = (row for row in STUDY.read(command.OUTPUT) if row["name"] == name)
    [found] = STUDY.run(command.MACHINE, checks=[name])
    assert {**found, "code_version": committed["code_version"]} == committed
