"""Saved runs on one page: every number is that of a result, and runs of different workloads are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._records import _SCHEMA_VERSION
from kernbench.analysis.result import Result
from kernbench.errors import ArgumentError, ConfigError

HBM, PCIE = "cube.hbm.channel_bw_gbs", "system.pcie.latency_ns"
# Of each run: its parameter m, and changes to the machine.
RUNS = {"a": (64, {}), "b": (64, {HBM: 16}), "c": (128, {}), "d": (64, {PCIE: 50}), "e": (128, {HBM: 16, PCIE: 50})}


@pytest.fixture(scope="module")
def results():
    machine = kb.load("preset:small")
    return {
        name: replace(kb.run("matmul", machine.with_(changes), m=m, k=64, n=64, log="tile").result, name=name)
        for name, (m, changes) in RUNS.items()
    }


@pytest.fixture(scope="module")
def files(results, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return [result.save(folder / f"{name}.npz") for name, result in results.items()]


def test_a_row_for_each_run_with_time_speedup_and_what_differs(results, files):
    table = kb.report(files).table
    assert list(table.index) == [*RUNS]
    ns = {name: result.records.makespan_ps / 1000 for name, result in results.items()}
    assert table["latency_ns"].to_dict() == ns
    assert table["speedup"].to_dict() == pytest.approx({name: ns["a"] / each for name, each in ns.items()})
    assert table["m"].to_dict() == {name: m for name, (m, _) in RUNS.items()}
    assert table[HBM].to_dict() == {name: changes.get(HBM, 32) for name, (_, changes) in RUNS.items()}
    assert table[PCIE].to_dict() == {name: changes.get(PCIE, 100) for name, (_, changes) in RUNS.items()}
    assert set(table) == {"latency_ns", "speedup", "limit", "limit_share", "m", HBM, PCIE, "machine"}, (
        "k and n are equal"
    )


def test_another_baseline_changes_speedups_only(results, files):
    table = kb.report(files, "e").table
    latency = results["e"].latency_ns
    assert table["speedup"].to_dict() == pytest.approx({name: latency / x.latency_ns for name, x in results.items()})
    columns = [name for name in table if name != "speedup"]
    assert table[columns].equals(kb.report(files).table[columns])
    assert kb.report(files, files[4]).baseline == kb.report(results.values(), results["e"]).baseline == "e"


def test_critical_paths_are_whole_and_share_one_order(results, files):
    paths = kb.report(files).paths
    for name, times in paths.items():
        assert sum(times.values()) == pytest.approx(results[name].latency_ns)
        assert list(times) == list(paths["a"])
    longest = [max(times[what] for times in paths.values()) for what in paths["a"]]
    assert all(one >= other for one, other in pairwise(longest))


class Seen(HTMLParser):
    """Rows of all tables as lists of texts, and the widths of the pieces of each bar."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.bars, self.tags = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif given.get("class") == "kb-bar":
            self.bars.append(0.0)
        elif tag == "i" and "title" in given:
            self.bars[-1] += float(given["style"].removeprefix("width:").partition("%")[0])

    def handle_data(self, text):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += text


def test_the_page_shows_all_of_it_and_loads_nothing(results, files, tmp_path):
    report = kb.report(files)
    page = report.save(tmp_path / "page.html").read_text("utf-8")
    seen = Seen(page)
    assert not {"script", "link", "img", "iframe"} & set(seen.tags)
    assert "http" not in page.replace("http-equiv", "")
    rows = {row[0]: row[1:] for row in reversed(seen.rows)}
    assert rows["e"][0] == f"{results['e'].latency_ns:,.2f}"
    assert rows["e"][1] == f"{results['a'].latency_ns / results['e'].latency_ns:.2f}x"
    assert rows["a"][1] == "baseline"
    assert rows[HBM] == ["32", "16", "32", "32", "16"]
    assert rows["machine"] == [result.machine for result in results.values()]
    assert len(set(rows["kernbench"])) == 1
    assert rows["dma in"] == [
        f"{x.breakdown.busy_ns()['dma_in']:,.2f} {x.breakdown.busy_ns()['dma_in'] / x.latency_ns:.0%}"
        for x in results.values()
    ]
    longest = max(x.latency_ns for x in results.values())
    assert seen.bars == pytest.approx([100 * x.latency_ns / longest for x in results.values()], abs=0.01)


def test_it_displays_itself_and_is_plain_data(results, files):
    report = kb.report(files)
    shown = report._repr_mimebundle_()
    best = min(results.values(), key=lambda x: x.latency_ns)
    assert f"{best.name} is fastest: {best.latency_ns:,.2f} ns" in shown["text/plain"]
    assert f"{best.name} is fastest: {best.latency_ns:,.2f} ns" in shown["text/html"]
    found = json.loads(json.dumps(report.to_dict()))
    assert [run["latency_ns"] for run in found["runs"]] == [x.latency_ns for x in results.values()]
    assert found["differences"]["m"] == {name: m for name, (m, _) in RUNS.items()}


def test_names_from_a_file_are_text_not_markup(results):
    odd = replace(results["b"], name="<script>x</script>")
    assert "<script" not in kb.report([results["a"], odd])._repr_mimebundle_()["text/html"]


def test_runs_of_one_name_are_told_apart(results, files, tmp_path):
    other = results["b"].save(tmp_path / "a.npz")
    assert list(kb.report([files[0], other]).runs) == [str(files[0]), str(other)]
    assert list(kb.report([results["a"], results["a"]]).runs) == ["a #1", "a #2"]


def test_what_limits_a_comparison_is_said(results):
    stopped = replace(results["b"], records=replace(results["b"].records, complete=False))
    report = kb.report([results["a"], stopped])
    assert report.speedups == {"a": 1.0, "b": None}
    assert "b: INCOMPLETE" in repr(report)
    unknown = replace(results["b"], records=replace(results["b"].records, spec={}))
    assert "b: machine: not known" in repr(kb.report([results["a"], unknown]))
    older = replace(results["b"], manifest=replace(results["b"].manifest, versions={"kernbench": "0.0.1"}))
    assert "several versions of kernbench" in repr(kb.report([results["a"], older]))
    assert "several versions" not in repr(kb.report(results.values()))


def test_a_run_without_a_log_has_its_time_and_the_reason(results):
    quick = kb.run("matmul", "preset:small", m=64, k=64, n=64, log="off").result
    report = kb.report([results["a"], quick])
    assert report.table["limit_share"].isna().tolist() == [False, True]
    assert str(quick.explained) in repr(report)
    assert report.differences["log"] == {"a": "tile", quick.name: "off"}


def old(path, version):
    """Rewrite a file as one of another version of the schema."""
    with np.load(path) as file:
        arrays = dict(file)
    meta = json.loads(arrays["meta"].tobytes()) | {"schema_version": version}
    np.savez_compressed(path, **arrays | {"meta": np.frombuffer(json.dumps(meta).encode(), np.uint8)})
    return path


def test_files_that_cannot_be_compared_are_all_named_in_one_error(results, files, tmp_path):
    early = old(results["b"].save(tmp_path / "early.npz"), 2)
    cut = tmp_path / "cut.npz"
    cut.write_bytes(files[2].read_bytes()[:-100])
    with pytest.raises(ConfigError) as error:
        kb.report([files[0], early, cut])
    first, second = error.value.faults
    assert first == f"{early}: schema_version = 2 must be {_SCHEMA_VERSION}; run the bench again"
    assert second.startswith(f"{cut}: is damaged")
    assert second.endswith("; save the result again, with result.save() or kernbench run --out")
    with pytest.raises(ConfigError, match=r"none\.npz: cannot be read"):
        kb.report([files[0], tmp_path / "none.npz"])


def test_runs_of_several_workloads_are_refused_with_file_key_value_and_remedy(files, tmp_path):
    other = kb.run("gemm-single-pe", "preset:small").result.save(tmp_path / "other.npz")
    with pytest.raises(ConfigError) as error:
        kb.report([*files, other])
    (fault,) = error.value.faults
    assert fault.startswith(
        f"{other}: program = 'bench gemm-single-pe' must be 'bench matmul', as in {files[0]}; report "
    )
    (record,) = error.value.records
    assert (record["file"], record["key"], record["value"]) == (str(other), "program", "bench gemm-single-pe")
    assert isinstance(kb.compare(files[0], other).latency.before, float), "the remedy works"


@pytest.mark.parametrize(
    ("runs", "baseline", "said"),
    [
        ([], None, "two runs or more, not 0"),
        (["a"], None, "two runs or more, not 1"),
        (["a", "b"], "bb", "baseline = 'bb' is none of the runs; did you mean b"),
    ],
)
def test_wrong_arguments_are_refused(results, runs, baseline, said):
    with pytest.raises(ArgumentError, match=said):
        kb.report([results[name] for name in runs], baseline)


def test_a_single_file_or_another_ending_is_refused(results, files, tmp_path):
    for single in (str(files[0]), results["a"]):
        with pytest.raises(ArgumentError, match="must be a list of two runs or more"):
            kb.report(single)
    with pytest.raises(ArgumentError, match=r"must end in \.html"):
        kb.report(files).save(tmp_path / "page.pdf")
    assert not [*tmp_path.iterdir()]


def test_a_result_of_a_session_is_compared_with_such(results):
    unnamed = [Result(results[name].records, name) for name in "ab"]
    assert kb.report(unnamed).title == "2 runs"
    with pytest.raises(ConfigError, match="program = '' must be 'bench matmul'"):
        kb.report([results["a"], unnamed[1]])
