from __future__ import annotations

import json

import pytest

from kernbench.cli.main import main

SMALL = ("--topology", "preset:small")


def run(*args):
    return main(["run", *SMALL, *args])


def bench(name):
    return "--bench", f"tests.cli.example_benches:{name}"


def test_a_run_prints_latency_and_stages(capsys):
    assert run(*bench("copies")) == 0
    out, err = capsys.readouterr()
    for part in (" ns", "critical path", "host copies and launches", "busiest links", "OK"):
        assert part in out
    assert err == ""


def test_json_on_stdout_is_all_there_is(capsys):
    assert run(*bench("copies"), "--verify-data", "--json") == 0
    out, err = capsys.readouterr()
    got = json.loads(out)
    assert (got["completion"], got["correctness"]) == ("OK", "NOT_CHECKED")
    assert got["result"]["latency_ns"] > 0
    assert "hello from the bench" in err


def test_values_are_computed_and_checked_only_when_asked(capsys):
    assert run("--bench", "gemm-single-pe", "--verify-data") == 0
    assert "numbers PASSED" in capsys.readouterr().out
    assert run("--bench", "gemm_single_pe") == 0
    assert "numbers NOT_CHECKED" in capsys.readouterr().out


def test_an_unknown_option_is_refused(capsys):
    assert run(*bench("copies"), "--mode", "fast") == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("idle", "idle: NO_REQUESTS"),
        ("fails", "error: first line\nerror: second line\n"),
        ("wrong", "error: element 3 is 4.0, expected 5.0\n"),
        ("crashes", "error: RuntimeError: a bug in the bench; kernbench --debug ... shows where\n"),
    ],
)
def test_a_run_that_fails_says_why_and_exits_with_1(name, line, capsys):
    assert run(*bench(name)) == 1
    out, err = capsys.readouterr()
    assert line in err
    assert "Traceback" not in err
    assert ": OK" not in out


def test_debug_shows_the_traceback(capsys):
    assert main(["--debug", "run", *SMALL, *bench("crashes")]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "example_benches.py" in err


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("--bench", "gemm-single-pee"), "did you mean gemm-single-pe?"),
        (("--bench", "no.such.module:run"), "cannot be imported"),
        ((*bench("copies"), "--device", "sip:9"), "sip:9"),
        ((*bench("copies"), "--device", "gpu"), "expected all or sip:N"),
        ((*bench("copies"), "--set", "cube.hbm.bw_gbs=-1"), "cube.hbm.bw_gbs"),
        ((*bench("copies"), "--set", "cube.hbm.bandwidth=1"), "bw_gbs"),
        ((*bench("copies"), "--log", "all"), "--log"),
        (("--bench", "qkv-gemm", "--algorithm", "tree_allreduce"), "No such option '--algorithm'"),
        ((), "name a bench"),
    ],
)
def test_a_wrong_command_line_exits_with_2_and_one_line(args, line, capsys):
    assert run(*args) == 2
    err = capsys.readouterr().err
    assert line in err
    assert "Traceback" not in err


def test_every_fault_of_the_overrides_is_reported(capsys):
    assert run(*bench("copies"), "--set", "cube.hbm.bw_gbs=-1", "--set", "cube.noc.pitch_mm=-2") == 2
    err = capsys.readouterr().err
    assert err.count("error: ") == 2


def test_an_override_changes_the_time(capsys):
    times = []
    for bw in (64, 32):
        assert run(*bench("copies"), "--json", "--set", f"system.pcie.bw_gbs={bw}") == 0
        times.append(json.loads(capsys.readouterr().out)["result"]["latency_ns"])
    assert times[1] > times[0]


def test_a_bench_has_options_of_its_own(capsys):
    machine = ["--topology", "preset:small"]
    assert main(["run", "ccl-allreduce", "--algorithm", "tree_allreduce", *machine]) == 0
    assert "all_reduce by tree_allreduce" in capsys.readouterr().out
    assert main(["run", "--bench", "ccl-allreduce", *machine, "--algorithm", "tree_allreduc"]) == 1
    assert "did you mean tree_allreduce?" in capsys.readouterr().err
    assert main(["run", "--bench=matmul", "--m", "32", *machine]) == 0
    assert main(["run", "matmul", "--m", "0", *machine]) == 2
    assert "bench matmul: m = 0 must be >= 1" in capsys.readouterr().err
    assert main(["run", "gemm-single-pe", "--m", "32", *machine]) == 2
    assert "No such option '--m'" in capsys.readouterr().err


def test_help_on_a_bench_lists_its_options(capsys):
    assert main(["run", "matmul", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--dtype f16|bf16" in out
    assert "Rows of a. Default: 128." in out
    assert main(["run", "--help"]) == 0
    assert "Rows of a" not in capsys.readouterr().out


def test_a_run_without_a_bench_says_how_to_name_one(capsys):
    assert main(["run"]) == 2
    assert "name a bench, as in `kernbench run matmul`" in capsys.readouterr().err


def clashes(torch, log=3):
    pass


def test_a_parameter_with_the_name_of_an_option_is_refused(capsys):
    assert main(["run", f"{__name__}:clashes"]) == 2
    assert "log: `kernbench run` has an option --log; rename the parameter" in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "told"), [("events=5000", "5,000 events"), ("host_s=0.5", "0.5 s of host time")])
def test_a_limit_ends_a_bench_and_names_its_line(capsys, limit, told):
    assert run(*bench("endless"), "--limit", limit) == 1
    _, err = capsys.readouterr()
    assert f"limit of {told}" in err
    assert "example_benches.py" in err


@pytest.mark.parametrize("limit", ["events", "events=many", "event=3", "host_s=-1"])
def test_a_limit_that_means_nothing_is_refused(capsys, limit):
    assert run(*bench("copies"), "--limit", limit) == 2
    assert limit.partition("=")[0] in capsys.readouterr().err


def test_a_bench_goes_by_its_number_in_the_list(capsys):
    assert main(["list", "benches"]) == 0
    listed = capsys.readouterr().out
    assert "  2  gemm-single-pe" in listed
    assert run("--bench", "2") == 0
    assert "gemm-single-pe: OK" in capsys.readouterr().out
    assert run("--bench", "99") == 2
    assert "expected a number from 1 to" in capsys.readouterr().err


def test_what_is_written_follows_from_the_ending(tmp_path, capsys):
    files = {name: tmp_path / name for name in ("run.npz", "run.html", "run.json")}
    assert run(*bench("copies"), *(part for path in files.values() for part in ("--out", str(path)))) == 0
    former = [tmp_path / name for name in ("save", "html", "trace")]
    assert run(*bench("copies"), *(part for path in former for part in (f"--{path.name}", str(path)))) == 0
    assert main(["compare", str(files["run.npz"]), str(former[0])]) == 0
    assert [path.read_bytes()[:9] for path in (files["run.html"], former[1])] == [b"<!doctype"] * 2
    assert [bool(json.loads(path.read_text())["traceEvents"]) for path in (files["run.json"], former[2])] == [True] * 2


def test_a_file_of_another_ending_is_refused_before_the_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("kernbench.runtime_api.bench_runner.run_bench", None)
    assert run(*bench("copies"), "--out", str(tmp_path / "run.pdf")) == 2
    assert ".npz (the result), .html (the picture) or .json (a trace)" in " ".join(capsys.readouterr().err.split())
