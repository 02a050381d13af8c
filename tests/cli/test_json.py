"""`--json` of every command: one document on stdout, errors as well, with the exit status of text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kernbench.cli._options import error_record
from kernbench.cli.main import cli, main

ERROR = {"file": None, "key": None, "value": None, "remedy": None}
PLAN = "machine: preset:small\nstudy: tests.sweeps.studies:square\naxes: {x: [1, 3], sip.cube_mesh.w: [2, 99]}\n"


@pytest.mark.parametrize("name", sorted(set(cli.commands) - {"completion"}))
def test_every_command_has_it(name):
    assert any("--json" in option.opts for option in cli.commands[name].params)


def printed(capsys) -> object:
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (["run", "--benc", "x"], 2, {"key": "--benc", "remedy": "did you mean --bench?"}),
        (["run"], 2, {"key": "NAME"}),
        (["run", "--bench", "gemm-single-pe", "--device", "gpu"], 2, {"key": "--device"}),
        (["show", "preset:smal"], 2, {}),
        (["why", "none.npz"], 2, {"key": "file"}),
        (["fly"], 2, {}),
        (["run", "--machine", "preset:small", "--bench", "tests.cli.example_benches:idle"], 1, None),
    ],
)
def test_an_error_is_json_on_stdout_with_what_it_knows(args, status, said, capsys):
    assert main(args) == status
    assert capsys.readouterr().err.startswith(("error: ", "Usage: ", "Error: ", "\n"))
    assert main([*args, "--json"]) == status
    error = printed(capsys)["error"]
    assert error["message"]
    if said is not None:
        assert {**error, "message": ""} == {**ERROR, **said, "message": ""}


def test_all_faults_are_in_one_error(capsys):
    wrong = ["--set", "cube.hbm.bw_gbs=-1", "--set", "cube.noc.pitch_mm=-2"]
    assert main(["show", "preset:small", *wrong, "--json"]) == 2
    error = printed(capsys)["error"]
    assert error["message"].count("\n") == 1
    assert [(x["file"], x["key"], x["value"]) for x in error["faults"]] == [
        ("override", "cube.noc.pitch_mm", -2), ("override", "cube.hbm.bw_gbs", -1),
    ]  # fmt: skip
    assert [x["key"] in line for x, line in zip(error["faults"], error["message"].split("\n"), strict=True)] == [
        True,
        True,
    ]
    assert (error["file"], error["key"], error["value"]) == ("override", "cube.noc.pitch_mm", -2)


def test_a_fault_of_a_file_has_file_key_value_and_remedy(tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("base: default\ncube: {noc: {pitchmm: 3}}\n")
    assert main(["show", str(tmp_path / "mine.yaml"), "--json"]) == 2
    error = printed(capsys)["error"]
    assert {name: error[name] for name in ("file", "key", "value")} == {
        "file": "mine.yaml", "key": "cube.noc.pitchmm", "value": 3,
    }  # fmt: skip
    assert error["remedy"].startswith("did you mean pitch_mm?")


def test_an_error_of_a_file_names_it():
    with pytest.raises(FileNotFoundError) as caught:
        Path("none.yaml").read_bytes()
    assert error_record(caught.value)["file"] == "none.yaml"


def test_an_error_without_words_has_its_name():
    assert error_record(RuntimeError())["message"] == "RuntimeError"


def test_an_interrupt_is_json(capsys, monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("kernbench.cli._machine.load_machine", interrupted)
    assert main(["show", "--json"]) == 1
    out, _ = capsys.readouterr()
    assert json.loads(out)["error"]["message"] == "interrupted"


def test_a_new_folder(tmp_path, capsys):
    folder = tmp_path / "lab"
    assert main(["new", str(folder), "--json"]) == 0
    made = printed(capsys)
    assert made["folder"] == str(folder)
    assert {folder / name for name in made["files"]} == set(folder.iterdir())


def test_a_sweep_has_its_rows_and_what_cannot_be(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    assert main(["sweep", "plan.yaml", "--dry-run", "--no-cache", "--json"]) == 0
    plan = printed(capsys)
    assert (plan["points"], plan["cached"]) == (2, None)
    assert [(point["x"], point["sip.cube_mesh.w"]) for point in plan["invalid"]] == [(1, 99), (3, 99)]
    assert all("sip.cube_mesh = 99" in point["reason"] for point in plan["invalid"])
    assert main(["sweep", "plan.yaml", "--no-cache", "--workers", "1", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert [(row["x"], row["status"]) for row in done["rows"]] == [(1, "ok"), (3, "ok")]
    assert done["invalid"] == plan["invalid"]
    assert (tmp_path / done["table"]).is_file()


def test_a_machine_is_printed_beside_its_drawing(tmp_path, capsys):
    assert main(["show", "preset:small", "--out", str(tmp_path / "x.svg"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "preset:small"


def test_a_cache_that_is_off_or_pruned(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KERNBENCH_CACHE", "off")
    assert main(["cache", "--json"]) == 0
    assert printed(capsys) == []
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    assert main(["cache", "--prune", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_page_says_where_it_is(monkeypatch, capsys):
    pytest.importorskip("voila")
    monkeypatch.setattr("kernbench.notebook._serve.serve_page", lambda _: None)
    assert main(["web", "--token", "abc", "--port", "9999", "--json"]) == 0
    assert printed(capsys) == {"url": "http://127.0.0.1:9999/?token=abc"}


def piped(command: str) -> subprocess.CompletedProcess[str]:
    """Run kernbench, whose output nobody reads to its end."""
    line = f'set -o pipefail; "{sys.executable}" -m kernbench {command}'
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name != "posix", reason="pipes of a shell")
@pytest.mark.parametrize("command", ["show preset:large --json | head -1", "list | true"])
def test_a_reader_that_has_seen_enough_ends_a_command_well(command):
    done = piped(command)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_reader_that_fails_is_an_error():
    done = piped("list presets > /dev/full")
    assert done.returncode != 0
    assert "No space left" in done.stderr
