"""A result is one file: it says what ran, on which machine, with which parameters and versions."""

from __future__ import annotations

import platform
import random
import zipfile
from dataclasses import replace

import pytest

import kernbench as kb
from kernbench.analysis._manifest import Manifest, _digest, versions
from kernbench.analysis.result import Result
from kernbench.cli.main import main
from kernbench.errors import ArgumentError, ConfigError
from kernbench.sweeps._saved import read_content

MANIFEST = Manifest("study gemm", {"m": 64, "dtype": "f16"}, {"data": True}, "preset:small", ("cube.ucie.port_ns=4",))


@pytest.fixture(scope="module")
def result():
    with kb.session(kb.load("preset:small", ["cube.ucie.port_ns=4"]), data=True, log="tile") as torch:
        torch.zeros(64, device="ahbm").numpy()
    return torch.result


def save(result, path, manifest):
    return replace(result, manifest=manifest).save(path)


def test_the_file_says_what_ran_with_which_versions(result, tmp_path):
    found = kb.read(save(result, tmp_path / "run.npz", MANIFEST))
    assert found.manifest == MANIFEST
    assert found.manifest.versions["python"] == platform.python_version()
    assert set(found.manifest.versions) == {"kernbench", "numpy", "python"}
    assert found.records.spec == result.records.spec
    assert found.records.digest() == result.records.digest()
    assert "study gemm m=64 dtype=f16 on preset:small, cube.ucie.port_ns=4" in repr(found)


def test_every_reader_of_results_reads_it(result, tmp_path):
    path = save(result, tmp_path / "run.npz", MANIFEST)
    assert Result.load(path).records.digest() == result.records.digest()
    assert kb.compare(path, result.save(tmp_path / "plain.npz")).latency.ratio == 1


def test_a_session_says_on_which_machine_it_ran_and_how(result, tmp_path):
    found = kb.read(result.save(tmp_path / "run.npz")).manifest
    assert (found.machine, found.overrides) == ("preset:small", ("cube.ucie.port_ns=4",))
    assert found.options == {"data": True, "log": "tile"}
    assert found.versions == versions()
    assert kb.load(found.machine, found.overrides).hash == result.records.machine
    again = kb.read(Result.load(tmp_path / "run.npz").save(tmp_path / "again.npz"))
    assert again.manifest == found


def test_a_bench_is_named_as_the_explorer_names_it(tmp_path):
    found = kb.read(kb.run("gemm-single-pe", "preset:small").result.save(tmp_path / "run.npz")).manifest
    assert (found.program, found.machine) == ("bench gemm-single-pe", "preset:small")
    assert found.options == {"data": False, "log": "operation"}


def test_a_result_without_a_manifest_is_saved_without(result, tmp_path):
    found = kb.read(replace(result, manifest=Manifest(versions={})).save(tmp_path / "run.npz"))
    assert found.manifest == Manifest(versions={})
    assert "saved" not in repr(found)


def test_the_command_line_says_what_it_ran(tmp_path, capsys):
    path = tmp_path / "run.npz"
    command = ["run", "--topology", "preset:small", "--bench", "gemm-single-pe", "--set", "cube.ucie.port_ns=4"]
    assert main([*command, "--save", str(path)]) == 0
    manifest = kb.read(path).manifest
    assert (manifest.program, manifest.machine) == ("bench gemm-single-pe", "preset:small")
    assert manifest.options == {"data": False, "log": "tile"}
    assert manifest.overrides == ("cube.ucie.port_ns=4",)
    assert kb.read(path).records.spec["cube"]["ucie"]["port_ns"] == 4


def test_a_dropped_file_is_named_as_its_owner_names_it(result, tmp_path):
    content = save(result, tmp_path / "x.npz", MANIFEST).read_bytes()
    found = read_content("my run.npz", content)
    assert (found.name, found.manifest) == ("my run", MANIFEST)
    for other in (b"", b"a text", content[:-5]):
        with pytest.raises(ConfigError) as caught:
            read_content("my run.npz", other)
        (line,) = caught.value.faults
        assert line.startswith("my run.npz: is damaged, or no result of kernbench")
        assert "/tmp" not in line


def test_a_manifest_that_was_changed_is_refused(result, tmp_path):
    data = save(result, tmp_path / "run.npz", MANIFEST).read_bytes()
    comment = data.index(b'{"program"')
    for seed in range(40):
        chosen = random.Random(seed)
        changed = bytearray(data)
        at = chosen.randrange(comment, len(data))
        changed[at] = (changed[at] + chosen.randrange(1, 256)) % 256
        with pytest.raises(ConfigError, match="is damaged, or no result"):
            read_content("run.npz", bytes(changed))


@pytest.mark.parametrize("content", [b"x", b"[]", b'{"program": "x"}', b'{"overrides": [7]}', b'{"overrides": 7}'])
def test_a_manifest_of_something_else_is_refused(result, tmp_path, content):
    path = result.save(tmp_path / "run.npz")
    for comment in (content, _digest(content) + b" " + content):
        with zipfile.ZipFile(path, "a") as file:
            file.comment = comment
        with pytest.raises(ConfigError, match=r"run\.npz: is damaged, or no result"):
            kb.read(path)


def test_parameters_that_do_not_fit_are_refused_before_anything_is_written(result, tmp_path):
    with pytest.raises(ArgumentError, match="65,535"):
        save(result, tmp_path / "run.npz", Manifest("x", {"text": "y" * 70_000}))
    assert not list(tmp_path.iterdir())
