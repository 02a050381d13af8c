"""Where the time goes: the first picture of a run, its sliders and their predictions."""

from __future__ import annotations

import json

import pytest

import kernbench as kb
from kernbench.kernels.gemm import STAGINGS
from kernbench.studies import gemm
from kernbench.viz._html import result_html
from kernbench.viz._picture import picture_html
from kernbench.viz._scene import scene_of
from kernbench.viz._why import _FACTORS, handle_why, predicted, why_section

MACHINE = kb.load("preset:default", ["sip.cube_mesh.w=2", "sip.cube_mesh.h=2"])
BENCHES = ("qkv-gemm", "qkv-gemm-multi-pe", "va-offset-verify", "ccl-allreduce", "gemm-single-pe")


def product(staging="ref_ref", machine=MACHINE):
    return gemm.run(machine, (64, 128, 64), staging)


@pytest.fixture(scope="module")
def result():
    return product()


@pytest.mark.parametrize("bench", [*BENCHES, *STAGINGS])
def test_the_largest_part_of_the_first_picture_is_what_why_names_first(bench):
    result = kb.run(bench, MACHINE).result if bench in BENCHES else product(bench)
    why = result.why()
    section = why_section(why, result.records)
    first, rows = why[0], section["rows"]
    assert rows[0]["ns"] == max(row["ns"] for row in rows) == first.ns
    assert rows[0]["label"].lower() == first.what.lower()
    assert sum(row["ns"] for row in rows) + section["rest_ns"] == pytest.approx(section["device_ns"])
    assert section["device_ns"] + section["host_ns"] == pytest.approx(result.latency_ns)
    page = result_html(result)
    assert page.index("critical path on the device by resource") < page.index("<table")
    assert page.index(f"<title>{first.what}: {first.ns:,.2f} ns") == page.index("<title>")


def first_row(result):
    return predicted(why_section(result.why(), result.records), result.records)["rows"][0]


def test_a_slider_moves_coupled_fields_together_around_the_machine_s_value(result):
    row = first_row(result)
    assert [x["path"] for x in row["fields"]] == [*result.why()[0].fields, *result.why()[0].together]
    middle = len(_FACTORS) // 2
    assert _FACTORS[middle] == 1
    assert row["predicted"][middle - row["first"]] == pytest.approx([result.latency_ns] * 3)
    for field in row["fields"]:
        assert row["stops"][middle][field["path"]] == field["value"]
        assert row["stops"][-1][field["path"]] == 16 * field["value"]
        assert row["stops"][0][field["path"]] == field["value"] / 16
    table = row["stops"][row["first"] :][: len(row["predicted"])]
    assert [values[row["fields"][0]["path"]] / row["fields"][0]["value"] for values in (table[0], table[-1])] == [
        0.25,
        4,
    ]
    for values, found in zip(table, row["predicted"], strict=True):
        made = result.what_if(values)
        assert found == [made.predicted_ns, made.low_ns, made.high_ns]


def test_nothing_is_predicted_where_a_kernel_can_be_asked(result):
    header, buffers = scene_of(MACHINE, result)
    assert header["why"]["rows"][0]["stops"]
    assert not any("predicted" in row for row in header["why"]["rows"])
    assert "tornado" not in header["why"]
    assert "trace" not in buffers


def test_predictions_are_near_the_exact_runs(result):
    row = first_row(result)
    for i in (4, 12):
        exact = product(machine=MACHINE.with_(row["stops"][row["first"] + i])).latency_ns
        assert abs(exact / result.latency_ns - 1) > 0.05
        predicted, low, high = row["predicted"][i]
        assert predicted == pytest.approx(exact, rel=0.03)
        assert low <= exact <= high


def test_messages_of_the_view_are_answered(result):
    rows = handle_why({"do": "tornado"}, result.records)["rows"]
    swings = [max(abs(x - 1) for x in row["predicted"] if x) for row in rows]
    assert swings == sorted(swings, reverse=True)
    assert {"path", "label", "unit", "value"} <= rows[0].keys()
    assert handle_why({"do": "run"}, result.records) is None
    json.dumps(rows)


def test_a_slider_beyond_the_table_asks_the_kernel(result):
    question = {"do": "what_if", "id": 7, "values": {"system.pcie.latency_ns": 800}, "latency_ns": result.latency_ns}
    made = result.what_if("system.pcie.latency_ns=800")
    answer = [made.predicted_ns, made.low_ns, made.high_ns]
    assert handle_why(question, result.records) == {"do": "what_if", "id": 7, "predicted": answer}
    for change, error in (
        ({"values": {"sip.cube_mesh.w": 1}}, "run the program on the changed machine"),
        ({"values": {"cube.hbm.channel_bw_gbs": 0}}, "channel_bw_gbs = 0"),
        ({"latency_ns": 1.0}, "another run is shown now"),
    ):
        answer = handle_why(question | change, result.records)
        assert (answer["id"], answer["predicted"]) == (7, None)
        assert error in answer["error"]


def test_a_run_without_a_log_has_no_such_section():
    result = gemm.run(MACHINE, (16, 16, 16), "ref_ref", log="off")
    assert "why" not in scene_of(MACHINE, result)[0]
    assert "not logged" in result_html(result)


@pytest.mark.slow
def test_a_slider_of_a_page_shows_a_prediction(result, driver, tmp_path):
    from selenium.webdriver.common.keys import Keys

    from tests.notebook.browser import Page

    path = tmp_path / "run.html"
    path.write_text(picture_html(scene_of(MACHINE, result, offline=True)), encoding="utf-8")
    page = Page(driver, "why")
    page.open(path.as_uri())
    page.until(lambda: page.all(".kbp-why-row input"), "rows")
    slider = page.all(".kbp-why-row input")[0]
    assert "Prediction" not in page.all(".kbp-why-said")[0].text
    for _ in range(4):
        slider.send_keys(Keys.ARROW_RIGHT)
    row = first_row(result)
    said = page.all(".kbp-why-said")[0].text
    assert f"Prediction: {row['predicted'][_FACTORS.index(2.0) - row['first']][0]:,.1f} ns" in said
    assert page.all(".kbp-why-control output")[0].text == "64 GB/s"
    summary = next(x for x in page.all(".kbp-why summary") if "halved" in x.text)
    summary.click()
    assert len(page.all(".kbp-tornado-row")) > 3
