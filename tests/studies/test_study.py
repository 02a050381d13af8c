"""The frame: a user's own study is one class; it is run, resumed, swept, written and drawn like the shipped ones."""

from __future__ import annotations

import re
from typing import ClassVar

import pytest

import kernbench as kb
from kernbench.errors import ConfigError, KernbenchError
from kernbench.studies import Chart, Column, Finding, GemmStudy, LayersStudy, Parameter, Report, Study
from kernbench.sweeps._plan import make_plan
from kernbench.viz.charts import bars
from tests.repo import ROOT

RAN: list[int] = []


class Copies(Study):
    """How long the host takes to read a slice."""

    name, title = "copies", "Reading a slice"
    parameters: ClassVar = {
        "sizes": Parameter([256, 4096], "bytes of each read", "B"),
        "slow": Parameter(False, "half the PCIe"),
    }
    columns: ClassVar = {"nbytes": Column("bytes", "B"), "time_ns": Column("time", "ns")}
    charts: ClassVar = (Chart("copies_time", bars("time_ns", "nbytes"), "Time of a read"),)

    def points(self, machine, *, sizes, slow):
        change = {"machine": {"system.pcie.bw_gbs": 32}} if slow else {}
        return [{"nbytes": n, **change} for n in sizes]

    def program(self, torch, *, nbytes: int = 4096):
        torch.empty(nbytes // 2, dtype=torch.float16, device="ahbm").numpy()

    def row(self, machine, result, *, nbytes):
        RAN.append(nbytes)
        if nbytes == 13 * 2:
            raise KernbenchError("unlucky")
        return {"nbytes": nbytes, "time_ns": result.latency_ns, "parts": {"a": nbytes / 2}}

    def findings(self, rows):
        return [Finding(f"point {i}", weight=i) for i in range(9)]


def test_points_come_back_in_their_order_with_their_stamps():
    rows = Copies().run("preset:small", sizes=[4096, 256])
    assert [row["nbytes"] for row in rows] == [4096, 256]
    assert rows[0]["time_ns"] > rows[1]["time_ns"]
    assert {row["machine"] for row in rows} == {kb.load("preset:small").hash}


def test_a_study_and_a_sweep_of_it_run_the_same_points():
    own = Copies().plan("preset:small", sizes=[256, 4096], slow=True)
    swept = make_plan("preset:small", Copies(), {"nbytes": [256, 4096]}, parameters={"system.pcie.bw_gbs": 32})
    usual = make_plan("preset:small", Copies(), {"system.pcie.bw_gbs": [32, 64]})
    assert own.keys == swept.keys
    assert own.keys[1] == usual.keys[0] != usual.keys[1], "a default and the same value are one point"
    assert Copies().plan("preset:small", sizes=[256]).keys[0] not in own.keys


def test_fields_are_those_of_the_program_and_what_row_or_simulate_adds():
    assert list(Copies().fields()) == ["nbytes"]
    assert list(GemmStudy().fields()) == ["m", "k", "n", "staging", "dtype", "timeline"]
    product = ["m", "n", "k", "placement", "dtype", "trans_a", "trans_b"]
    assert list(LayersStudy().fields()) == [*product, "list", "name", "tp", "links"]


def test_an_unknown_name_in_a_list_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(ConfigError, match="variants: 'ref_rfe' is unknown; did you mean ref_ref"):
        GemmStudy().run("preset:small", variants=["ref_rfe"], folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_point_may_change_the_machine():
    fast, slow = (Copies().run("preset:small", sizes=[1 << 16], slow=slow)[0] for slow in (False, True))
    assert slow["time_ns"] > fast["time_ns"]
    assert slow["machine"] != fast["machine"]


def test_finished_points_survive_a_failure(tmp_path):
    with pytest.raises(KernbenchError, match="copies: a point failed: KernbenchError: unlucky"):
        Copies().run("preset:small", folder=tmp_path, sizes=[512, 26])
    RAN.clear()
    Copies().run("preset:small", folder=tmp_path, sizes=[512, 1024])
    assert RAN == [1024]


def test_parameters_without_a_point_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r'copies: {"sizes": \[\], .*gives no point'):
        Copies().report("preset:small", folder=tmp_path / "new", sizes=[])
    assert not (tmp_path / "new").exists()


def test_an_unknown_parameter_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="copies: parameter size is unknown; did you mean sizes"):
        Copies().run("preset:small", folder=tmp_path / "new", size=[1])
    assert not (tmp_path / "new").exists()


def test_the_page_has_seven_findings_tables_method_and_versions(tmp_path):
    report = Copies().report("preset:small", folder=tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert [finding.text for finding in report.findings] == [f"point {i}" for i in range(8, 1, -1)]
    assert page.index("**1. point 8**") < page.index("![Time of a read](copies_time.svg)") < page.index("## Method")
    assert "| bytes [B] | time [ns] |" in page
    assert "How long the host takes to read a slice." in page
    assert "Parameters: sizes = [256, 4096], slow = false." in page
    assert Copies().read(tmp_path) == report.rows


def test_a_claim_is_bold_its_numbers_are_plain_and_it_is_the_title_of_its_figure(tmp_path):
    class Claiming(Copies):
        """Reads of which something is said."""

        def findings(self, rows):
            return [
                Finding("Less is said later.", "copies_time", 1),
                Finding("A read takes long.", "copies_time", 2, detail="It takes 1 us."),
            ]

    report = Claiming().report("preset:small", folder=tmp_path)
    figure = "![A read takes long](copies_time.svg)\n\nTime of a read."
    page = (tmp_path / "README.md").read_text()
    assert f"**1. A read takes long.**\n\nIt takes 1 us.\n\n{figure}\n\n**2. Less is said later.**\n" in page
    assert "A read takes long<" in (tmp_path / "copies_time.svg").read_text()
    assert "1. A read takes long. It takes 1 us.\n2. Less is said later." in repr(report)


class Bare(Copies):
    """Reads without a chart."""

    charts: ClassVar = ()


def test_a_long_table_is_a_file(tmp_path):
    rows = [dict(Bare().run("preset:small", sizes=[256])[0], nbytes=n) for n in range(101)]
    for shown, is_file in ((rows[:100], False), (rows, True)):
        Report(Bare(), shown, kb.load("preset:small"), {}).write(tmp_path)
        assert ("101 rows, in [all_points.csv](all_points.csv)." in (tmp_path / "README.md").read_text()) == is_file
        assert (tmp_path / "all_points.csv").exists() == is_file


def test_the_page_names_the_machine_s_file_without_its_folder(tmp_path):
    machine = tmp_path / "mine.yaml"
    machine.write_text((ROOT / "topology.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    Copies().report(str(machine), folder=tmp_path / "report")
    page = (tmp_path / "report" / "README.md").read_text()
    assert "(mine.yaml), kernbench" in page
    assert str(tmp_path) not in page


def test_a_damaged_file_of_a_report_is_named(tmp_path):
    Copies().report("preset:small", folder=tmp_path)
    nested = tmp_path / "copies_parts.csv"
    for text in ("", "a,b\n1,2\n", nested.read_text().replace("\n1,", "\n77,")):
        nested.write_text(text)
        with pytest.raises(ConfigError, match=r"copies_parts\.csv: is damaged, or no table of rows"):
            Copies().read(tmp_path)
    nested.unlink()
    for rows in ("", ', "rows": 5', ', "rows": [5]'):
        (tmp_path / "copies.json").write_text('{"schema_version": 2' + rows + "}")
        with pytest.raises(ConfigError, match=r"copies\.json: is damaged, or no file of results"):
            Copies().read(tmp_path)


def test_a_sweep_takes_a_study_and_checks_its_fields():
    table = kb.sweep(
        "preset:small", Copies, {"nbytes": [256, 512], "system.pcie.bw_gbs": [32, 64]}, progress=False
    ).table
    assert len(table) == 4
    assert (table["status"] == "ok").all()
    with pytest.raises(ConfigError, match="nbyte"):
        kb.sweep("preset:small", Copies, {"nbyte": [256]}, progress=False)


def test_a_report_names_its_charts():
    report = Report(Copies(), Copies().run("preset:small"), kb.load("preset:small"), {})
    with pytest.raises(KernbenchError, match="did you mean copies_time"):
        report.chart("copies_tim")


def test_points_that_differ_only_in_labels_share_a_run():
    class Twice(Copies):
        """The same read, for two reasons."""

        def points(self, machine, *, sizes, slow):
            return [{"nbytes": 640, "labels": {"why": why}} for why in ("first", "second")]

    RAN.clear()
    rows = Twice().run("preset:small")
    assert [(row["why"], row["nbytes"]) for row in rows] == [("first", 640), ("second", 640)]
    assert RAN == [640]


def test_the_page_says_what_was_refused(tmp_path):
    class Refusing(Copies):
        """Reads that a machine does not admit."""

        def refused(self, machine, *, sizes, slow):
            return {f"{n} B": "not an element" for n in sizes if n % 2}

    Refusing().report("preset:small", folder=tmp_path, sizes=[256])
    assert "## Refused" not in (tmp_path / "README.md").read_text()
    report = Report(Refusing(), Copies().run("preset:small"), kb.load("preset:small"), {"sizes": [3], "slow": False})
    report.write(tmp_path)
    assert "## Refused\n\n- 3 B: not an element" in (tmp_path / "README.md").read_text()


def test_the_example_of_the_guide_is_a_study_with_a_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "howto" / "study.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, object] = {"__name__": "__main__"}
    exec(example, names)
    report, study = names["report"], names["Reads"]
    assert [row["nbytes"] for row in report.rows] == [256, 4096, 65536]
    assert "65,536 B reach" in report.findings[0].text
    assert {path.name for path in (tmp_path / "build" / "reads").iterdir()} >= {
        "README.md",
        "reads.csv",
        "reads_rate.svg",
    }
    swept = kb.sweep("preset:small", study, {"nbytes": [256, 512]}, progress=False)
    assert list(swept.table["nbytes"]) == [256, 512]
