from __future__ import annotations

import json

import pytest

from kernbench.cli.main import main

BENCH = ("run", "gemm-single-pe", "--machine", "preset:small")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    paths = [str(folder / f"{name}.npz") for name in "abc"]
    for path, latency in zip(paths, (100, 50, 25), strict=True):
        assert main([*BENCH, "--out", path, "--set", f"system.pcie.latency_ns={latency}"]) == 0
    return paths


def test_saved_runs_are_compared_as_text_json_and_page(files, tmp_path, capsys):
    page = tmp_path / "page.html"
    capsys.readouterr()
    assert main(["report", *files, "--out", str(page)]) == 0
    shown = capsys.readouterr().out.split("\n")
    assert shown[0] == "3 runs of bench gemm-single-pe"
    assert shown[1].startswith("c is fastest: ")
    assert ["system.pcie.latency_ns", "100", "50", "25"] in [line.split() for line in shown]
    assert "<title>3 runs of bench gemm-single-pe</title>" in page.read_text("utf-8")
    assert main(["report", *files, "--baseline", files[1], "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] == "b"
    slow, same, fast = (run["speedup"] for run in found["runs"])
    assert slow < same == 1 < fast


def test_wrong_input_is_refused_before_anything_is_written(files, tmp_path, capsys):
    bad, page = tmp_path / "bad.npz", tmp_path / "page.html"
    bad.write_text("no result")
    capsys.readouterr()
    assert main(["report", files[0], str(bad), "--out", str(page)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {bad}: is damaged")
    assert main(["report", files[0], str(bad), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["file"], error["remedy"]) == (
        str(bad), "save the result again, with result.save() or kernbench run --out",
    )  # fmt: skip
    assert main(["report", files[0]]) == 2
    assert main(["report", *files, "--out", str(tmp_path / "page.pdf")]) == 2
    assert main(["report", *files, "--baseline", "d", "--out", str(page)]) == 2
    assert not page.exists()
