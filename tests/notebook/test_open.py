"""A saved result is opened as a run, and the form shows what it ran where that is available."""

from __future__ import annotations

import io
import json
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest

import kernbench as kb
from kernbench.analysis._manifest import Manifest, digest_of
from kernbench.errors import ArgumentError, ConfigError, StateError
from kernbench.notebook import _model as model
from kernbench.notebook._export import export
from kernbench.notebook._model import Explorer
from kernbench.notebook._view import ExplorerView
from tests.notebook import programs

LONG_S = 60


@pytest.fixture(scope="module")
def made():
    """A run of an explorer: its entry, its result, and the file that Export makes."""
    explorer = Explorer("preset:small")
    explorer.choose("study gemm")
    for name in "mkn":
        explorer.set(name, 32)
    explorer.form.set("cube.ucie.port_ns", "4")
    explorer.set_option("log", "operation")
    assert explorer.run()
    assert explorer.wait(LONG_S)
    entry, result = explorer.history[-1], explorer.result
    return entry, result, export("result (one file)", entry, result).content


def test_what_it_ran_is_chosen_and_its_result_is_current(made):
    entry, result, content = made
    explorer, seen = Explorer("preset:default"), []
    explorer.on_change.append(lambda: seen.append((explorer.state.status, explorer.state.finished.why is not None)))
    explorer.open("run1.npz", content)
    assert explorer.status == "done"
    assert explorer.current
    assert explorer.result.records.digest() == result.records.digest()
    assert explorer.history[-1].title == entry.title
    assert (explorer.history[-1].name, explorer.history[-1].label) == (f"#1 {entry.title}", "run1")
    assert (explorer.form.machine.hash, explorer.form.overrides()) == (entry.machine.hash, ["cube.ucie.port_ns=4"])
    assert (explorer.values["m"], explorer.options) == (32, entry.options)
    assert explorer.state.message.startswith("from run1.npz: study gemm")
    assert seen == [("running", False), ("done", False), ("done", True)]
    assert explorer.run()
    assert explorer.wait(LONG_S)
    assert explorer.result.records.digest() == result.records.digest()


def test_an_opened_result_does_not_tell_how_long_a_run_takes_here(made, monkeypatch):
    monkeypatch.setattr(model, "AUTO_RUN_S", LONG_S)
    explorer = Explorer("preset:default")
    explorer.open("run1.npz", made[2])
    explorer.set("m", 64)
    assert explorer.changes
    assert not explorer.runs_by_itself
    assert explorer.run()
    assert explorer.wait(LONG_S)
    explorer.set("m", 96)
    assert explorer.runs_by_itself


def test_a_result_of_a_session_is_shown_without_changing_the_form(tmp_path):
    with kb.session("preset:small") as torch:
        torch.zeros(64, device="ahbm").numpy()
    explorer = Explorer("preset:default")
    before = explorer.workload, dict(explorer.values), explorer.form.machine.hash
    explorer.open("mine.npz", torch.result.save(tmp_path / "x").read_bytes())
    assert (explorer.workload, explorer.values, explorer.form.machine.hash) == before
    assert explorer.status == "outdated"
    assert explorer.history[-1].title == "mine"
    assert explorer.history[-1].machine.hash == torch.result.records.machine
    with pytest.raises(ArgumentError, match="code cell: mine is not a variable here"):
        export("code cell", explorer.history[-1], explorer.result)


@pytest.mark.parametrize(
    "change",
    [{"machine": "/etc/hostname"}, {"overrides": ("cube.pe.pe_gemm.impl=os:system",)}, {"program": "nothing"}],
    ids=lambda change: next(iter(change)),
)
def test_a_page_chooses_nothing_else_that_a_file_names(made, tmp_path, change):
    said = {"program": "study gemm", "machine": "preset:small", "overrides": ("cube.ucie.port_ns=4",)}
    explorer = Explorer("preset:default", page=True)
    explorer.open("x.npz", replace(made[1], manifest=Manifest(**{**said, **change})).save(tmp_path / "x").read_bytes())
    assert explorer.form.file.source == "preset:default"
    assert explorer.result.records.digest() == made[1].records.digest()


def test_options_that_do_not_exist_are_not_taken(made, tmp_path):
    manifest = Manifest(
        "study gemm", {"m": 32}, {"log": "everything", "data": False}, "preset:small", made[0].overrides
    )
    explorer = Explorer("preset:default")
    explorer.open("x.npz", replace(made[1], manifest=manifest).save(tmp_path / "x").read_bytes())
    assert (explorer.options.log, explorer.options.data) == ("tile", False)


def test_what_is_no_result_is_refused_and_changes_nothing(made):
    explorer = Explorer("preset:small")
    before = explorer.state
    with pytest.raises(ConfigError, match=r"^topology\.yaml: is damaged, or no result of kernbench"):
        explorer.open("topology.yaml", b"base: small\n")
    assert explorer.state is before
    assert not explorer.history


def test_nothing_is_opened_during_a_run(made):
    go = threading.Event()

    def waits(torch):
        go.wait(LONG_S)
        programs.copies(torch)

    explorer = Explorer("preset:small", [waits])
    assert explorer.run()
    with pytest.raises(StateError, match=r"a run is under way; open run1\.npz when it has ended"):
        explorer.open("run1.npz", made[2])
    go.set()
    assert explorer.wait(LONG_S)
    assert len(explorer.history) == 1


def dropped(view, name, content):
    message = {"do": "open_file", "name": name, "part": 0, "parts": 1}
    view.stage.picture._handle_custom_msg(message, [memoryview(content)])


def test_a_file_is_dropped_on_the_picture(made):
    view = ExplorerView(Explorer("preset:small"))
    assert {"run", "open_file"} <= set(view.stage.picture.answers)
    dropped(view, "run1.npz", b"something else")
    assert "run1.npz: is damaged, or no result of kernbench" in view.stage.refused.value
    assert view.result is None
    dropped(view, "run1.npz", made[2])
    assert view.stage.refused.value == ""
    assert view.result.records.digest() == made[1].records.digest()
    assert view.stage.picture.header["run"]["end_ns"] == made[1].latency_ns
    assert made[0].title in view.stage.subject.value


def forged(content, change):
    """Return a whole file, with the digest of its arrays, whose machine was changed."""
    with np.load(io.BytesIO(content)) as file:
        arrays = dict(file)
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        manifest, _ = Manifest.of(file.comment)
    meta = json.loads(arrays["meta"].tobytes())
    change(meta["spec"])
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    made = io.BytesIO()
    np.savez(made, **arrays)
    with zipfile.ZipFile(made, "a") as file:
        file.comment = manifest.comment(digest_of(arrays))
    return made.getvalue()


def test_a_page_opens_no_machine_that_names_code(made):
    content = forged(made[2], lambda spec: spec["cube"]["pe"]["pe_gemm"].update(impl="os:system"))
    explorer = Explorer("preset:small", page=True)
    with pytest.raises(ConfigError, match=r"x\.npz: cube\.pe\.pe_gemm\.impl = 'os:system' names code, which no page"):
        explorer.open("x.npz", content)
    assert not explorer.history


@pytest.mark.parametrize("page", [True, False])
def test_a_file_of_the_server_that_a_machine_names_is_not_read(made, tmp_path, page):
    (tmp_path / "secret").write_text("m,k,n,efficiency\nthe password\n")
    table = str(tmp_path / "secret")
    content = forged(made[2], lambda spec: spec["cube"]["pe"]["pe_gemm"].update(model="table", table=table))
    with pytest.raises(ConfigError, match=r"^x\.npz: is damaged.*its machine names a file") as caught:
        Explorer("preset:small", page=page).open("x.npz", content)
    assert "password" not in str(caught.value)
