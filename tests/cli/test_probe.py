from __future__ import annotations

import json

import pytest

import kernbench as kb
from kernbench.cli.main import main
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.probe import hops, select


def test_lists_the_cases_of_the_machine(capsys):
    assert main(["probe", "--list", "--topology", "preset:small"]) == 0
    listed = capsys.readouterr().out
    assert "own-slice-read" in listed
    assert "other-sip" not in listed  # it has one SIP


def test_a_case_tells_its_times_parts_and_hops(capsys):
    assert main(["probe", "--case", "own-slice-read", "--topology", "preset:default"]) == 0
    said = capsys.readouterr().out
    assert "27.00" in said
    assert "sip0.cube0.hbm_ctrl.pe0->sip0.cube0.r0c0" in said
    assert "1 MiB" in said


def test_all_cases_in_one_table(capsys):
    assert main(["probe", "--topology", "preset:small"]) == 0
    said = capsys.readouterr().out
    assert "all-one-write" in said
    assert "PE to PE, ns" in said
    assert "from PE 0 of cube 0" in said
    assert "link by link" not in said


def test_a_case_from_pe_to_pe_has_its_time_at_all_sizes(capsys):
    assert main(["probe", "--case", "cube-east-load", "--topology", "preset:default"]) == 0
    said = capsys.readouterr().out
    assert "cube-east-load: PE 0 of cube 1 loads from the slice of PE 0, cube 0" in said
    assert any(line.split() == ["cube-east", "4", "KiB", "101.42"] for line in said.splitlines())
    assert "10 KiB" in said


def test_json_has_the_same_numbers(capsys):
    assert main(["probe", "--case", "same-half-read", "--json", "--topology", "preset:default"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["last_end_ns"] for row in rows][:1] == [30.06]
    assert rows[0]["hops"]


def test_an_unknown_case_is_refused_with_the_nearest(capsys):
    assert main(["probe", "--case", "same-hald-read"]) != 0
    assert "did you mean same-half-read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nothing", "same-hald-read"])
def test_a_case_without_a_match_is_bad_usage(name, capsys):
    assert main(["probe", "--case", name]) == 2
    assert "did you mean " in capsys.readouterr().err


@pytest.mark.parametrize("case", ["other-sip-read", "other-sip-write", "farthest-cube-read", "d2h-read"])
def test_hops_follow_the_route_when_times_tie(case):
    machine = kb.load("preset:default")
    (chosen,) = select(machine, [case])
    rows = hops(machine, chosen, 4096)
    engine = GraphEngine(machine)
    there = engine.network.route(*chosen.ends[0])
    route = [link.name for link in (*there.links, *engine.network.back(there).links)]
    assert [row["link"] for row in rows] == route
