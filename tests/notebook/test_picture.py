"""`kb.picture`: the picture of a machine or a run, in a cell, in a file, and for readers without a kernel."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace

import pytest

import kernbench as kb
from kernbench.analysis._manifest import Manifest
from kernbench.errors import ArgumentError
from kernbench.notebook._picture import Picture
from kernbench.sweeps._saved import read_content


@pytest.fixture(scope="module")
def result():
    with kb.session("preset:small") as torch:
        torch.zeros(64, device="ahbm").numpy()
    return torch.result


def test_a_cell_shows_the_widget_and_readers_without_a_kernel_a_still(result):
    data, _ = kb.picture(result)._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"]
    assert b64decode(data["image/png"])[:4] == b"\x89PNG"
    assert data["text/plain"] == f"Picture of run: {result.latency_ns:,.1f} ns on preset:small"


def test_equal_results_show_equal_texts(result, tmp_path):
    again = kb.read(result.save(tmp_path / "run.npz"))
    shown = [kb.picture(x)._repr_mimebundle_()[0] for x in (result, again)]
    for kind in ("image/png", "text/plain"):
        assert shown[0][kind] == shown[1][kind]


def test_it_shows_a_machine_a_result_and_what_has_one(result):
    machine = kb.load("preset:small")
    assert "run" not in kb.picture(machine).header
    bench = kb.run(lambda torch: torch.zeros(64, device="ahbm").numpy(), machine)
    for found in (result, bench):
        assert kb.picture(found).header["run"]["end_ns"] == result.latency_ns
        assert kb.picture(found).header["machine"]["hash"] == machine.hash


def test_what_has_no_picture_is_refused(result):
    from kernbench.analysis._records import Records
    from kernbench.analysis.result import Result

    with pytest.raises(ArgumentError, match="a picture shows a machine or a result, not str"):
        kb.picture("preset:small")
    with pytest.raises(ArgumentError, match="old: the result does not contain its machine; run it again"):
        kb.picture(Result(Records.empty(), "old"))


def test_it_saves_itself_as_a_page_and_as_a_still(result, tmp_path):
    picture = kb.picture(kb.read(replace(result, manifest=Manifest("bench copy", {"n": 64})).save(tmp_path / "x.npz")))
    page = picture.save(tmp_path / "run.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "<p>bench copy n=64 on " in page
    assert picture.save(tmp_path / "run.svg").read_text("utf-8").startswith("<svg")
    with pytest.raises(ArgumentError, match=r"run\.png: the name must end in \.html or \.svg"):
        picture.save(tmp_path / "run.png")
    assert not (tmp_path / "run.png").exists()


def copied(machine):
    with kb.session(machine) as torch:
        torch.zeros(4096, device="ahbm").numpy()
    return torch.result


def test_a_field_that_is_dragged_runs_the_program_on_that_machine(monkeypatch):
    machine = kb.load("preset:small")
    picture, sent = kb.picture(machine, copied), []
    monkeypatch.setattr(picture, "send", sent.append)
    assert picture.answers == ["run", "set"]
    picture._handle_custom_msg({"do": "run"}, [])
    before = copied(machine).latency_ns
    assert picture.header["run"]["end_ns"] == before
    picture._handle_custom_msg({"do": "set", "field": "system.pcie.latency_ns", "value": 50}, [])
    picture._handle_custom_msg({"do": "set", "field": "system.pcie.bw_gbs", "value": 32}, [])
    both = machine.with_({"system.pcie.latency_ns": 50, "system.pcie.bw_gbs": 32})
    assert picture.header["run"]["end_ns"] == copied(both).latency_ns != before
    assert picture.header["machine"]["hash"] == both.hash
    picture._handle_custom_msg({"do": "set", "field": "cube.hbm.channels", "value": 6}, [])
    assert "cube.hbm.channels" in sent[0]["text"]
    assert picture.header["machine"]["hash"] == both.hash


def test_an_error_of_the_program_is_shown(monkeypatch):
    picture, sent = kb.picture(kb.load("preset:small"), lambda _: 1 / 0), []
    monkeypatch.setattr(picture, "send", sent.append)
    picture._handle_custom_msg({"do": "run"}, [])
    assert sent == [{"do": "refuse", "text": "ZeroDivisionError: division by zero"}]
    assert "run" not in picture.header


def test_without_a_program_there_are_no_controls_for_one(result):
    assert kb.picture(result).answers == []


def test_a_dropped_file_arrives_in_parts(result, tmp_path):
    content = replace(result, manifest=Manifest("bench copy")).save(tmp_path / "x.npz").read_bytes()
    picture, heard = Picture(), []
    picture.answer(run=heard.append, open_file=heard.append)
    picture._handle_custom_msg({"do": "run"}, [])
    picture._handle_custom_msg({"do": "something else"}, [])
    parts = [content[:100], content[100:200], content[200:]]
    for part, buffer in enumerate(parts):
        message = {"do": "open_file", "name": "run.npz", "part": part, "parts": len(parts)}
        picture._handle_custom_msg(message, [memoryview(buffer)])
    assert heard == [{"do": "run"}, {"do": "open_file", "name": "run.npz", "content": content}]
    assert read_content(heard[1]["name"], heard[1]["content"]).manifest.program == "bench copy"


def test_a_dropped_file_that_is_too_large_is_refused_without_keeping_it(monkeypatch):
    from kernbench.notebook import _picture
    from kernbench.sweeps import _saved

    monkeypatch.setattr(_picture, "MOST_PARTS", 2)
    monkeypatch.setattr(_saved, "_MOST", 1)
    picture, heard = Picture(), []
    picture.answer(open_file=heard.append)
    for part in range(9):
        picture._handle_custom_msg({"do": "open_file", "name": "x", "part": part, "parts": 9}, [memoryview(b"ab")])
    assert heard[0]["content"] == b"abab"
    with pytest.raises(kb.errors.ConfigError, match="x: is larger than"):
        read_content("x", heard[0]["content"])
