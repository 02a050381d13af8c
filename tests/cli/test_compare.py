from __future__ import annotations

import json
import re

import pytest

from kernbench.cli.main import main

BENCH = ("run", "--topology", "preset:small", "--bench", "gemm-single-pe")


def test_runs_are_saved_traced_explained_and_compared(tmp_path, capsys):
    a, b, trace = (str(tmp_path / name) for name in ("a.npz", "b.npz", "trace.json"))
    assert main([*BENCH, "--save", a, "--trace", trace, "--why"]) == 0
    assert "wire of the PCIe link" in capsys.readouterr().out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert main([*BENCH, "--save", b, "--set", "system.pcie.latency_ns=50"]) == 0
    capsys.readouterr()
    assert main(["compare", a, b]) == 0
    out = capsys.readouterr().out
    assert "system.pcie.latency_ns  100.0 -> 50.0" in out
    assert main(["compare", a, b, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"] == [{"field": "system.pcie.latency_ns", "before": 100.0, "after": 50.0}]
    assert found["latency"][0]["ratio"] < 1


def test_the_picture_of_a_run_is_written(tmp_path, capsys):
    path = tmp_path / "run.html"
    assert main([*BENCH, "--html", str(path)]) == 0
    latency = re.search(r"([\d,.]+)\d ns", capsys.readouterr().out)[1]
    assert f"<title>gemm-single-pe: {latency} ns on preset:small</title>" in path.read_text("utf-8")
    assert "bench gemm-single-pe on preset:small; data=False, log=tile" in path.read_text("utf-8")


def test_json_holds_the_reasons_when_asked(capsys):
    assert main([*BENCH, "--why", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["why"]["reasons"][0]["fields"] == ["cube.hbm.channel_bw_gbs"]


def test_a_file_that_is_no_result_is_refused_in_one_line(tmp_path, capsys):
    path = tmp_path / "x.npz"
    path.write_text("no result")
    assert main(["compare", str(path), str(path)]) != 0
    assert "Traceback" not in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "missing.npz"), str(path)]) == 2


def test_a_saved_run_is_explained(tmp_path, capsys):
    path = str(tmp_path / "run.npz")
    assert main([*BENCH, "--save", path, "--why"]) == 0
    shown = capsys.readouterr().out
    assert main(["why", path]) == 0
    text = capsys.readouterr().out
    title, rest = text.strip().split("\n", 1)
    assert title.startswith("run: ")
    assert rest in shown
    assert main(["why", path, "--launch", "nothing"]) != 0
    assert "'nothing'" in capsys.readouterr().err
    assert main(["why", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(x["ns"] for x in found["reasons"]) == pytest.approx(found["latency_ns"])
