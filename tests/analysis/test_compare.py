"""A comparison says what changed, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kernbench as kb
from kernbench.analysis.compare import compare, machine_changes
from kernbench.analysis.result import Result

CHANGES = {"system.pcie.latency_ns": 50, "cube.noc.link_bw_gbs": 512}


@pytest.fixture(scope="module")
def results():
    return [kb.run("gemm-single-pe", kb.load("preset:small").with_(x)).result for x in ({}, CHANGES)]


def test_the_same_run_differs_in_nothing(results):
    same = compare(results[0], results[0])
    assert same.machine == ()
    assert "machine: the same" in repr(same)
    assert {x.ratio for x in (same.latency, *same.launches, *same.path)} <= {1.0, None}


def test_what_changed_in_the_machine_and_in_time(results):
    found = kb.compare(*results)
    assert {x.field: x.after for x in found.machine} == CHANGES
    assert (found.latency.before, found.latency.after) == tuple(x.latency_ns for x in results)
    assert found.latency.ratio < 1
    assert [x.what for x in found.launches] == ["gemm"]
    assert sum(x.before for x in found.path) == pytest.approx(results[0].latency_ns)
    for text in (repr(found), found._repr_html_()):
        for part in (*CHANGES, "512", f"{results[1].latency_ns:,.2f}", "whole run"):
            assert part in text


def test_files_compare_as_the_results_they_hold(results, tmp_path):
    paths = [x.save(tmp_path / f"{i}.npz") for i, x in enumerate(results)]
    assert kb.compare(*paths).to_dict()["machine"] == kb.compare(*results).to_dict()["machine"]
    assert kb.compare(*map(kb.read, paths)).latency == kb.compare(*results).latency


def test_launches_of_one_name_are_told_apart_and_missing_ones_shown(results):
    launch = results[0].launches[0]
    twice = Result(replace(results[0].records, launches=(launch, launch)))
    assert [(x.what, x.before, x.ratio) for x in compare(results[0], twice).launches][1] == ("gemm #2", None, None)


def test_a_machine_that_is_not_known_is_said_to_be_so(results):
    unknown = compare(Result(replace(results[0].records, spec={})), results[1])
    assert not unknown.known
    assert unknown.machine == ()
    assert "not known" in repr(unknown)


def test_values_and_lists_are_compared_by_content():
    before, after = {"a": {"x": 1, "y": [[1, 2]]}}, {"a": {"x": 2, "y": ((1, 2),)}, "b": 3}
    assert [(x.field, x.before, x.after) for x in machine_changes(before, after)] == [("a.x", 1, 2), ("b", None, 3)]
