from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.cli.main import cli, main
from kernbench.sim_engine._network import ENGINE
from kernbench.studies import milestone
from kernbench.viz._fields import fields
from tests.repo import ROOT

COMMANDS = sorted(cli.commands)


def test_no_command_is_help_and_help_names_every_command(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name):
    out = CliRunner().invoke(cli, [name, "--help"])
    assert out.exit_code == 0
    for parameter in cli.commands[name].params:
        if parameter.param_type_name == "option":
            assert getattr(parameter, "help", None), parameter.name
            assert (parameter.opts[0] in out.output) is not parameter.hidden


def test_an_unknown_command_is_bad_usage(capsys):
    assert main(["fly"]) == 2
    assert "No such command 'fly'" in capsys.readouterr().err


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "kernbench", "nothing"], capture_output=True, text=True, check=False)
    assert done.returncode == 2


def test_a_warning_is_one_line(tmp_path):
    (tmp_path / "ccl.yaml").write_text("defaults: {backpressure: sleep}\n")
    command = [sys.executable, "-m", "kernbench", "validate", "preset:small", "ccl.yaml"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    assert done.stderr == "warning: ccl.yaml: defaults.backpressure = sleep is not modelled; credit is used instead\n"


def test_version_and_engine(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"kernbench {version('kernbench')}, engine {ENGINE}\n"


def test_an_engine_that_cannot_be_used_is_one_line():
    command, env = [sys.executable, "-m", "kernbench", "--version"], {**os.environ, "KERNBENCH_ENGINE": "fast"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: KERNBENCH_ENGINE=fast: unknown engine; use core or definition\n"


def test_list_as_text_and_as_json(capsys):
    assert main(["list", "presets", "components"]) == 0
    text = capsys.readouterr().out
    assert main(["list", "presets", "components", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert set(table) == {"presets", "components"}
    assert {"default", "small", "large", "six_sip_torus", "hbm3_conservative"} <= set(table["presets"])
    assert "2 SIPs, 256 PEs" in table["presets"]["default"]
    assert all(name in text for kind in table.values() for name in kind)


def test_benches_are_listed_with_what_they_do(capsys):
    assert main(["list", "benches", "--json"]) == 0
    benches = json.loads(capsys.readouterr().out)["benches"]
    assert benches["gemm-single-pe"]


def test_list_refuses_an_unknown_kind(capsys):
    assert main(["list", "bench"]) == 2
    assert "benches" in capsys.readouterr().err


def test_show_in_words(capsys):
    assert main(["show", "preset:small"]) == 0
    out = capsys.readouterr().out
    for part in ("Machine(preset:small", "System", "SIP", "Cube", "Matrix engine", "GB/s"):
        assert part in out


def test_show_one_view_only(capsys):
    assert main(["show", "preset:small", "--view", "pe"]) == 0
    out = capsys.readouterr().out
    assert "Matrix engine" in out
    assert "System" not in out


def test_show_as_json_is_the_file_and_its_hash(capsys):
    assert main(["show", "preset:small", "--json", "--set", "cube.noc.pitch_mm=2.5"]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["spec"]["cube"]["noc"]["pitch_mm"] == 2.5
    assert len(got["hash"]) >= 12


@pytest.mark.parametrize(("view", "suffix", "head"), [("cube", "svg", b"<svg"), ("pe", "png", b"\x89PNG")])
def test_show_draws_into_a_file(view, suffix, head, tmp_path, capsys):
    out = tmp_path / f"view.{suffix}"
    assert main(["show", "preset:small", "--view", view, "--out", str(out)]) == 0
    assert out.read_bytes().startswith(head)
    assert capsys.readouterr().out == ""


def test_show_refuses_what_it_cannot_write(tmp_path, capsys):
    assert main(["show", "preset:small", "--out", str(tmp_path / "x.pdf")]) == 2
    assert ".svg or .png" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", ["preset:nothing", "no_such_file.yaml"])
def test_a_machine_that_is_not_there_is_bad_input(source, capsys):
    assert main(["show", source]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert source.removeprefix("preset:") in err


@pytest.fixture
def bad_file(tmp_path):
    path = tmp_path / "bad.yaml"
    assert main(["new", str(tmp_path / "lab")]) == 0
    text = (tmp_path / "lab" / "topology.yaml").read_text(encoding="utf-8")
    assert "pitch_mm: 3.0" in text
    path.write_text(text.replace("pitch_mm: 3.0", "pitch_mm: -3.0").replace("removed:", "remove:"), encoding="utf-8")
    return path


def test_validate_prints_each_fault_of_each_file(bad_file, tmp_path, capsys):
    good = tmp_path / "lab" / "topology.yaml"
    capsys.readouterr()
    assert main(["validate", str(good), str(bad_file), str(tmp_path / "none.yaml")]) == 2
    out, err = capsys.readouterr()
    assert f"{good}: valid, 2 SIPs, 256 PEs" in out
    assert len(err.splitlines()) >= 3
    assert all(line.startswith("error: ") for line in err.splitlines())
    assert "pitch_mm" in err
    assert "removed" in err
    assert "none.yaml" in err


@pytest.mark.parametrize("name", ["ccl_bad.yaml", "my_algorithms.yaml"])
def test_validate_reads_ccl_files(name, tmp_path, capsys):
    assert main(["new", str(tmp_path / "lab")]) == 0
    good, bad = tmp_path / "lab" / "ccl.yaml", tmp_path / name
    text = good.read_text(encoding="utf-8")
    bad.write_text(text.replace("buffer_kind: tcm", "buffer_kind: tmc").replace("mapper: by_cube", "mapper: by_cubes"))
    capsys.readouterr()
    assert main(["validate", str(good), str(bad)]) == 2
    out, err = capsys.readouterr()
    assert "algorithms, by default auto" in out
    assert "defaults.buffer_kind = 'tmc' is unknown; did you mean tcm?" in err
    assert "algorithms.intercube_allreduce.mapper = 'by_cubes' is not a mapper; did you mean by_cube?" in err


def test_validate_holds_ccl_files_to_the_machines_beside_them(tmp_path, capsys):
    assert main(["new", str(tmp_path / "lab")]) == 0
    machine, ccl = tmp_path / "lab" / "topology.yaml", tmp_path / "lab" / "ccl.yaml"
    ccl.write_text(ccl.read_text(encoding="utf-8").replace("root_cube: corner", "root_cube: 99"), encoding="utf-8")
    capsys.readouterr()
    assert main(["validate", str(ccl)]) == 0
    assert main(["validate", str(ccl), str(machine)]) == 2
    out, err = capsys.readouterr()
    assert f"{machine}: valid" in out
    assert err.startswith("error: ccl.yaml: algorithms.intercube_allreduce_corner.root_cube = 99 must be < 16")


def test_validate_reads_presets_and_looks_for_components(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_routers.py").write_text("class Slow:\n    raise SystemExit\n", encoding="utf-8")
    machine = tmp_path / "topology.yaml"
    for impl, said in {
        "my_routers:Slow": "",
        "my_routers:Fast": "topology.yaml: cube.noc.router.impl = 'my_routers:Fast': the module has no Fast",
        "no_routers:Slow": "topology.yaml: cube.noc.router.impl = 'no_routers:Slow' cannot be imported: ModuleNotFound",
    }.items():
        text = f"schema_version: 1\nbase: default\ncube:\n  noc:\n    router:\n      impl: {impl}\n"
        machine.write_text(text, encoding="utf-8")
        assert main(["validate", "preset:six_sip_torus", str(machine)]) == (2 if said else 0)
        out, err = capsys.readouterr()
        assert "preset:six_sip_torus: valid, 6 SIPs" in out
        assert said in err
        assert bool(said) == bool(err)


@pytest.mark.parametrize("path", [path for path in fields() if path.endswith(".impl")])
def test_a_component_that_does_not_exist_is_named_with_its_file_and_key(tmp_path, path, capsys):
    machine = tmp_path / "my_machine.yaml"
    machine.write_text("base: small\n", encoding="utf-8")
    command = ["run", "--topology", str(machine), "--bench", "gemm-single-pe", "--set"]
    assert main([*command, f"{path}=no_parts:Slow"]) == 2
    said = f"error: my_machine.yaml: {path} = 'no_parts:Slow' cannot be imported: ModuleNotFoundError"
    assert capsys.readouterr().err.startswith(said)


def test_validate_as_json(bad_file, capsys):
    capsys.readouterr()
    assert main(["validate", str(bad_file), "--json"]) == 2
    (report,) = json.loads(capsys.readouterr().out)
    assert report["file"] == str(bad_file)
    assert len(report["faults"]) >= 2


def test_the_schema_is_json_and_knows_the_keys(capsys):
    assert main(["validate", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert "cube" in schema["properties"]


def test_validate_needs_a_file(capsys):
    assert main(["validate"]) == 2
    assert "at least one FILE" in capsys.readouterr().err


def test_a_milestone_that_is_not_known(capsys):
    assert main(["milestone", "gem"]) == 2
    assert "gemm" in capsys.readouterr().err


@pytest.mark.parametrize("args", [(), ("gemm", "--all")])
def test_milestones_are_named_or_all(args, capsys):
    assert main(["milestone", *args]) == 2
    assert "gemm" in capsys.readouterr().err


def test_parameters_of_a_milestone_are_key_and_value(capsys):
    assert main(["milestone", "gemm", "--param", "shapes"]) == 2
    assert "KEY=VALUE" in capsys.readouterr().err


def test_help_is_quick_because_nothing_heavy_is_imported():
    code = "import sys; from kernbench.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "pydantic", "yaml", "matplotlib", "simpy"} & set(done.stderr.split())


def test_new_finds_its_templates():
    templates = Path(sys.modules["kernbench.cli"].__file__).parent / "templates"
    assert list(templates.glob("*.txt"))


@pytest.mark.parametrize(
    "command",
    [
        ["run", "--bench", "gemm-single-pe", "--save", "none/x.kb"],
        ["run", "--bench", "gemm-single-pe", "--trace", "none/x.json"],
        ["show", "preset:small", "--out", "none/x.svg"],
    ],
)
def test_a_folder_that_is_missing_is_said_before_anything_runs(command, capsys, monkeypatch):
    monkeypatch.setattr("kernbench.runtime_api.bench_runner.run_bench", None)
    assert main(command) == 2
    assert "folder none does not exist; make it first" in capsys.readouterr().err


def test_all_milestones_are_announced_and_the_smallest_runs_first(capsys, monkeypatch):
    ran = []

    def run(name, **_):
        ran.append(name)
        return milestone.MilestoneReport(milestone.folder(), found=False)

    monkeypatch.setattr(milestone, "run", run)
    monkeypatch.setattr(milestone, "_NEEDS", {})
    assert main(["milestone", "--all"]) == 0
    said = capsys.readouterr()
    assert said.err == f"making 8 reports: {', '.join(ran)}\n"
    page = milestone.folder() / "README.md"
    assert said.out.splitlines() == [f"{name}: wrote {page}" for name in ran]
    assert ran == milestone.shortest_first()


def test_a_run_that_simulated_slow_rows_says_at_the_end_how_to_store_them(capsys, monkeypatch):
    made = {"probe": 0, "gemm": 2, "ccl": 3}
    asked = {}

    def run(name, **given):
        asked[name] = given["store"]
        return milestone.MilestoneReport(milestone.folder(), found=False, unkept=made[name])

    monkeypatch.setattr(milestone, "run", run)
    assert main(["milestone", *made]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "rows that took over 1 s and are not in milestones/kept: 2 of gemm, 3 of ccl; "
        "kernbench milestone gemm ccl --store stores them there, without simulating them again"
    )
    assert not any(asked.values())
    assert main(["milestone", "probe", "--store"]) == 0
    assert asked["probe"]
    assert "milestones/kept" not in capsys.readouterr().out


def test_a_milestone_whose_packages_are_missing_is_left_out_of_all_and_listed_with_what_it_needs(capsys, monkeypatch):
    ran = []

    def run(name, **_):
        ran.append(name)
        return milestone.MilestoneReport(milestone.folder(), found=False)

    monkeypatch.setattr(milestone, "run", run)
    monkeypatch.setattr(milestone, "_NEEDS", {"models": ("numpy", "no_such_module")})
    assert main(["milestone", "--all"]) == 0
    assert "models: left out; it needs no_such_module: make frontends" in capsys.readouterr().out
    assert len(ran) == 7
    assert "models" not in ran
    assert main(["milestone", "--all", "--rerender"]) == 0  # which simulates nothing
    assert "models" in ran
    assert main(["list", "milestones"]) == 0
    assert "PyTorch models by module (needs no_such_module: make frontends" in capsys.readouterr().out


def test_a_milestone_whose_packages_are_missing_is_an_error_by_name(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(milestone, "_NEEDS", {"probe": ("no_such_module",)})
    assert main(["milestone", "probe", "--out", str(tmp_path / "out")]) == 2
    assert "probe: needs no_such_module: make frontends" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_milestone_runs_when_one_of_the_names_is_unknown(capsys, monkeypatch):
    monkeypatch.setattr("kernbench.studies.milestone.run", None)
    assert main(["milestone", "gemm", "prob"]) == 2
    assert "milestone 'prob' is unknown; did you mean probe?" in capsys.readouterr().err


def test_an_interrupted_milestone_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("papermill.execute_notebook", interrupted)
    assert main(["milestone", "gemm", "--out", str(tmp_path / "out")]) == 1
    assert "gemm: interrupted; finished points are kept" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell(shell, capsys):
    assert main(["completion", shell]) == 0
    assert f"_KERNBENCH_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_a_shell_completes_commands():
    env = {**os.environ, "_KERNBENCH_COMPLETE": "bash_complete", "COMP_WORDS": "kernbench mile", "COMP_CWORD": "1"}
    done = subprocess.run([sys.executable, "-m", "kernbench"], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,milestone\n"


def test_a_calibration_checks_its_file_before_it_begins(tmp_path, capsys):
    there, nowhere = tmp_path / "fitted.yaml", tmp_path / "no" / "fitted.yaml"
    there.write_text("")
    for out, said in ((there, "is there already"), (nowhere, "does not exist; make it first")):
        assert main(["calibrate", "missing.csv", "--free", "cube.hbm.efficiency", "--out", str(out)]) == 2
        assert said in capsys.readouterr().err


def test_the_help_of_fidelity_has_every_workload_and_parameter():
    from kernbench.studies.fidelity import WORKLOADS

    words = CliRunner().invoke(cli, ["fidelity", "--help"]).output.replace(",", " ").replace("[", " ").replace("]", " ")
    words = words.replace(":", " ").split()
    for name, workload in WORKLOADS.items():
        assert {name, *workload.required, *workload.optional} <= set(words), name


TAKES_A_MACHINE = [name for name in COMMANDS if any("--topology" in p.opts for p in cli.commands[name].params)]


@pytest.mark.parametrize("name", TAKES_A_MACHINE)
def test_a_machine_has_one_name_in_every_help(name):
    out = CliRunner().invoke(cli, [name, "--help"]).output
    assert "--machine FILE|preset:NAME" in out
    assert "--topology" not in out


def test_the_machine_of_a_command_by_its_name_and_by_that_of_the_reference_design(capsys):
    assert TAKES_A_MACHINE == ["calibrate", "ccl", "fidelity", "gemm", "milestone", "probe", "run", "show"]
    hashes = []
    for option in ("--machine", "--topology"):
        assert main(["show", option, "preset:small", "--json"]) == 0
        hashes.append(json.loads(capsys.readouterr().out)["hash"])
    assert hashes[0] == hashes[1]
    assert main(["show", "preset:small", "--machine", "preset:small"]) == 2
