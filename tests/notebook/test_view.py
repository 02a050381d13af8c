"""The panels, driven by their widgets, without a kernel."""

from __future__ import annotations

import re
import threading
from base64 import b64decode
from html import escape

import ipywidgets as widgets
import pytest

import kernbench as kb
from kernbench.analysis._what_if import _graph
from kernbench.errors import ArgumentError
from kernbench.notebook import LiveRun, TopologyPicker, explore
from kernbench.notebook import _model as model
from kernbench.notebook._export import EXPORTS, export
from kernbench.notebook._panels import WHOLE, _why_html
from kernbench.notebook._runs import RunsTab
from kernbench.notebook._serve import _PAGE
from kernbench.points._cache import default_cache
from kernbench.viz import _scene
from kernbench.viz._scene import run_section
from kernbench.viz._why import handle_why
from tests.notebook import programs

LONG_S = 60


@pytest.fixture
def view():
    view = explore("preset:small", programs.copies, programs.endless)
    view.bar.auto.value = False
    yield view
    view.explorer.cancel()
    assert view.explorer.wait(LONG_S)


@pytest.fixture
def ran(view):
    view.workload.workload.value = "study gemm"
    for name in "mkn":
        view.workload.inputs[name].control.value = "64"
    view.bar.run.click()
    assert view.explorer.wait(LONG_S)
    return view


def text(html):
    return re.sub(r"<[^>]*>", " ", html.value)


def latency(view):
    return float(re.search(r'kb-now">([\d,.]+) ns', view.bar.state.value)[1].replace(",", ""))


def test_run_button_runs_and_the_panel_shows_it(ran):
    assert "done" in text(ran.bar.state)
    header = ran.stage.picture.header
    assert header["run"]["end_ns"] == pytest.approx(ran.result.latency_ns)
    assert "Run 1" in text(ran.stage.subject)
    ran.tabs.show("Why")
    assert "of the time" in text(ran.tabs.html["Why"])
    ran.tabs.show("Output")
    assert "1 result compared with a reference: right" in text(ran.tabs.html["Output"])
    assert not ran.bar.run.disabled
    assert ran.bar.cancel.disabled


def test_why_answers_for_one_launch_as_long_as_runs_have_it(ran):
    panel, result = ran.tabs, ran.explorer.result
    panel.show("Why")
    whole = text(panel.html["Why"])
    (launch,) = result.launches
    assert panel.of.options == (WHOLE, launch.name)
    panel.of.value = launch.name
    assert _why_html(result.why(launch.name)) in panel.html["Why"].value
    assert text(panel.html["Why"]) != whole
    ran.workload.inputs["k"].control.value = "128"
    ran.bar.run.click()
    assert ran.explorer.wait(LONG_S)
    assert panel.of.value == WHOLE
    assert text(panel.html["Why"]) != whole
    panel.of.value = "gemm 64x128x64 ref_ref"
    ran.bar.run.click()
    assert ran.explorer.wait(LONG_S)
    assert panel.of.value == "gemm 64x128x64 ref_ref"
    assert _why_html(ran.explorer.result.why(panel.of.value)) in panel.html["Why"].value


def test_a_change_is_simulated_by_itself(ran, monkeypatch):
    monkeypatch.setattr(model, "AUTO_RUN_S", LONG_S)
    ran.bar.auto.value = True
    ran.machine_form.set("cube.hbm.channel_bw_gbs", "16")
    assert ran.explorer.wait(LONG_S)
    assert [entry.overrides for entry in ran.explorer.history] == [(), ("cube.hbm.channel_bw_gbs=16",)]
    assert "done" in text(ran.bar.state)
    assert latency(ran) == pytest.approx(ran.result.latency_ns, abs=0.1)


def test_buttons_say_what_can_be_done_during_a_run(view):
    programs.started.clear()
    view.workload.workload.value = "endless"
    view.bar.run.click()
    assert programs.started.wait(LONG_S)
    assert view.bar.run.disabled
    assert not view.bar.cancel.disabled
    view.bar.cancel.click()
    assert view.explorer.wait(LONG_S)
    assert "cancelled" in text(view.bar.state)
    assert not view.bar.run.disabled


def test_a_former_run_is_pale_and_one_under_way_is_not(ran):
    live = threading.Event()
    ran.workload.workload.value = "endless"
    assert "kb-stale" in ran.stage.root._dom_classes
    ran.explorer.on_change.append(lambda: ran.stage.picture.live and live.set())
    ran.bar.run.click()
    assert live.wait(LONG_S)
    assert "kb-stale" not in ran.stage.root._dom_classes


def test_an_error_is_shown_and_the_panel_stays_usable(view):
    view.workload.inputs["fail"].control.value = True
    view.bar.run.click()
    assert view.explorer.wait(LONG_S)
    assert "ZeroDivisionError: as asked for" in text(view.bar.state)
    view.workload.inputs["fail"].control.value = False
    view.bar.run.click()
    assert view.explorer.wait(LONG_S)
    assert "done" in text(view.bar.state)


def test_a_cancelled_run_says_so_once(view):
    programs.started.clear()
    view.workload.workload.value = "endless"
    view.bar.run.click()
    assert programs.started.wait(LONG_S)
    view.bar.cancel.click()
    assert text(view.bar.state).split().count("cancelled") == 1


def test_a_wrong_value_has_its_message_beside_it(view):
    view.machine_form.set("cube.hbm.channels", "6")
    field = view.machine_form.inputs["cube.hbm.channels"]
    assert field.root in view.machine_form.fields.children
    assert "cube.hbm.channels = 6 must be a power of two" in text(field.message)
    assert view.bar.run.disabled
    assert "wrong values" in view.bar.note.value
    view.machine_form.group.value = "Network on chip"
    assert "must be a power of two" in text(view.machine_form.summary), "out of sight, but not forgotten"
    view.machine_form.reset.click()
    assert not view.bar.run.disabled


def test_a_wrong_parameter_has_its_message_beside_it(view):
    view.workload.inputs["count"].control.value = "x"
    assert "must be a whole number" in text(view.workload.inputs["count"].message)
    view.workload.inputs["count"].control.value = "3"
    assert text(view.workload.inputs["count"].message) == ""
    assert view.explorer.values["count"] == 3


def test_the_picture_follows_the_machine_until_there_is_a_run(view):
    before = view.stage.picture.header["machine"]
    view.machine_form.set("system.sips.count", "4")
    after = view.stage.picture.header["machine"]
    assert (before["hash"], after["hash"]) == (kb.load("preset:small").hash, view.machine.hash)
    assert "SIPs  1 &rarr;  4" in text(view.machine_form.summary)


def test_the_picker_alone_has_a_picture_of_its_machine():
    picker = TopologyPicker("preset:small")
    assert picker.root is picker.root
    picker.picture._handle_custom_msg({"do": "set", "field": "system.sips.count", "value": 4}, [])
    assert picker.machine.config.n_sips == 4
    assert picker.picture.header["machine"]["hash"] == picker.machine.hash


def test_the_first_run_involves_every_cube():
    view = explore("preset:default")
    assert view.explorer.values["cubes"] == view.machine.config.cubes_per_sip
    assert not view.explorer.wrong


def test_another_preset_takes_the_place_of_all_changes(view):
    view.machine_form.set("system.sips.count", "4")
    view.machine_form.source.value = "preset:six_sip_torus"
    assert view.machine.config.n_sips == 6
    assert view.machine_form.inputs["system.sips.count"].control.value == "6"


def test_a_file_of_the_users_own_is_loaded_or_refused(view, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: small\ncube:\n  ucie: {port_ns: 4}\n")
    [other] = [x for x in controls(view.machine_form.controls) if "kb-file-path" in x._dom_classes]
    other.value = str(path)
    assert view.machine.config.cube.ucie.port_ns == 4
    path.write_text("base: small\ncube:\n  ucie: {ports_ns: 4}\n")
    other.value = ""
    other.value = str(path)
    assert "did you mean port_ns" in text(view.machine_form.saved)
    assert view.machine.config.cube.ucie.port_ns == 4


def test_the_machine_is_saved_and_offered_as_a_file(view, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    view.machine_form.save.click()
    assert (tmp_path / "topology.yaml").is_file()
    assert 'download="topology.yaml"' in view.machine_form.saved.value
    view.machine_form.save.click()
    assert "is there already" in text(view.machine_form.saved)


@pytest.fixture
def page(monkeypatch):
    """The process of a served page, whose memory `explore` limits for good."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    monkeypatch.setenv(_PAGE, "1")
    yield
    resource.setrlimit(resource.RLIMIT_DATA, limits)


@pytest.mark.usefixtures("page")
def test_a_page_writes_no_file_and_names_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picker = TopologyPicker("preset:small")
    picker.save.click()
    assert not list(tmp_path.iterdir())
    assert 'download="topology.yaml"' in picker.saved.value
    for name in picker.group.options:
        picker.group.value = name
        assert not [path for path in picker.inputs if path.endswith((".impl", ".table"))]
    assert not [x for x in controls(picker.controls) if "kb-file-path" in x._dom_classes]


def test_choices_of_a_parameter_follow_the_machine(view):
    view.workload.workload.value = "study probe"
    few = view.workload.inputs["case"].control.options
    view.machine_form.source.value = "preset:default"
    assert set(few) < set(view.workload.inputs["case"].control.options)


def test_every_tab_shows_the_run(ran):
    panel = ran.tabs
    for name, says in (("Why", "critical path"), ("Stages", "busy stages")):
        panel.show(name)
        assert says in text(panel.html[name])
    panel.show("Roofline")
    assert "useful work" in text(panel.roofline_note)
    (chart,) = panel.roofline.children
    assert chart.spec["title"]["subtitle"].startswith("run 1: ")
    said = [layer["data"]["values"][0].get("text") for layer in chart.spec["layer"] if "data" in layer]
    assert {"HBM", "TCM"} <= set(said), "the point itself says what it is; there is no legend"
    assert "legend" not in str(chart.spec["layer"])


def subject(panel):
    """What the tab that is open says of the run that it shows."""
    tab = panel.root.children[panel.root.selected_index]
    return text(next(x for x in tab.children if x is panel.subject))


TABS_OF_A_RUN = ("Why", "Stages", "Output", "Roofline", "Export")


@pytest.mark.parametrize("name", TABS_OF_A_RUN)
def test_every_tab_names_the_run_it_shows_and_says_when_it_is_another(ran, name):
    panel = ran.tabs
    panel.show(name)
    assert "Run 1" in subject(panel)
    assert "m=64 k=64 n=64" in subject(panel)
    assert "former" not in subject(panel)
    ran.machine_form.set("cube.hbm.channel_bw_gbs", "16")
    said = "of the former settings: HBM bandwidth per channel was 32.0, is 16.0"
    assert said in subject(panel)
    assert said in text(ran.stage.subject)
    assert "kb-stale" in ran.stage.root._dom_classes
    assert "outdated" in text(ran.bar.state)
    ran.workload.workload.value = "copies"
    ran.workload.inputs["fail"].control.value = True
    ran.bar.run.click()
    assert ran.explorer.wait(LONG_S)
    assert "Run 1" in subject(panel)
    assert "run 2 is failed: copies" in subject(panel)


def test_a_tab_shows_nothing_of_a_former_run_until_it_is_drawn(ran):
    panel = ran.tabs
    shown = [*panel.html.values(), panel.roofline_note]
    assert {text(html).strip() for html in shown} == {"drawing ..."}
    for name in ("Why", "Stages", "Output", "Roofline"):
        panel.show(name)
    assert not [html for html in shown if "drawing" in text(html)]
    panel.show("Runs")
    ran.workload.inputs["k"].control.value = "128"
    ran.bar.run.click()
    assert ran.explorer.wait(LONG_S)
    assert {text(html).strip() for html in shown} == {"drawing ..."}


def test_a_parameter_that_this_machine_cannot_run_has_its_message_beside_it(view):
    view.machine_form.source.value = "preset:default"
    view.workload.workload.value = "study ccl"
    view.workload.inputs["cubes"].control.value = "99"
    assert "cubes = 99 must be at most 16" in text(view.workload.inputs["cubes"].message)
    assert view.bar.run.disabled
    view.workload.inputs["cubes"].control.value = "16"
    assert text(view.workload.inputs["cubes"].message) == ""
    assert not view.bar.run.disabled
    view.machine_form.set("sip.cube_mesh.w", "2")
    assert "must be at most 8" in text(view.workload.inputs["cubes"].message)


def test_a_field_of_the_machine_that_the_workload_cannot_run_on_has_its_message_beside_it(view):
    view.machine_form.set("system.sips.count", "1")
    assert text(view.machine_form.inputs["system.sips.count"].message) == ""
    view.workload.workload.value = "study ccl"
    assert "over SIPs needs two" in text(view.machine_form.inputs["system.sips.count"].message)
    assert "over SIPs needs two" in text(view.workload.message)
    view.machine_form.set("system.sips.count", "2")
    assert text(view.machine_form.inputs["system.sips.count"].message) == text(view.workload.message) == ""
    assert not view.bar.run.disabled


def run_again(view, path, value):
    view.machine_form.set(path, value)
    view.bar.run.click()
    assert view.explorer.wait(LONG_S)


@pytest.mark.slow
def test_runs_are_side_by_side_and_two_are_compared(ran):
    runs = ran.tabs.runs
    assert "runs are compared here" in text(runs.hint)
    run_again(ran, "cube.hbm.channel_bw_gbs", "16")
    run_again(ran, "cube.hbm.channel_bw_gbs", "24")
    assert [row["run"] for row in runs.table.rows] == [1, 2, 3]
    columns = {column["key"]: column for column in runs.table.columns}
    assert columns["cube.hbm.channel_bw_gbs"]["title"] == "HBM bandwidth per channel [GB/s]"
    assert columns["latency_ns"]["number"]
    assert "m" not in columns, "what all runs have in common has no column"
    assert [row["text"]["cube.hbm.channel_bw_gbs"] for row in runs.table.rows] == ["32", "16", "24"]
    slow, fast = (ran.explorer.history[i].latency_ns for i in (1, 2))
    assert [row["sort"]["latency_ns"] for row in runs.table.rows][1:] == [slow, fast]
    assert (runs.table.a, runs.table.b) == (2, 3)
    runs.table.a = 1
    assert re.search(r"#1 .* #3 ", text(runs.comparison))
    assert ran.explorer.baseline.number == 1
    run_again(ran, "cube.hbm.channel_bw_gbs", "8")
    assert (runs.table.a, runs.table.b) == (1, 4), "A stays, B is the last run"
    runs.table.b = 1
    assert text(runs.comparison) == "", "a run is not compared with itself"


def test_only_runs_of_one_workload_are_side_by_side(ran):
    runs = ran.tabs.runs
    assert runs.of_row.layout.display == "none", "there is one workload"
    run_again(ran, "cube.hbm.channel_bw_gbs", "16")
    ran.workload.workload.value = "copies"
    assert runs.of.value == "study gemm", "nothing of the other to show"
    ran.bar.run.click()
    assert ran.explorer.wait(LONG_S)
    assert (runs.of.value, runs.of.options, runs.of_row.layout.display) == ("copies", ("copies", "study gemm"), "")
    assert [row["run"] for row in runs.table.rows] == [3]
    assert (runs.table.a, runs.table.b, runs.pair, text(runs.comparison)) == (0, 3, None, "")
    assert "not shown here: 2 runs of other workloads" in text(runs.hint)
    assert runs.coordinates.layout.display == "none"
    runs.of.value = "study gemm"
    assert [row["run"] for row in runs.table.rows] == [1, 2]
    assert {"m", "count"} & {column["key"] for column in runs.table.columns} == set()
    assert "The same in all 2 runs: 5 parameters" in text(runs.same)
    assert "Rows of A and C (M) = 64" in text(runs.same)
    runs.table.a, runs.table.b = 1, 2
    assert re.search(r"#1 .* #2 ", text(runs.comparison))
    ran.workload.workload.value = "study gemm"
    ran.workload.workload.value = "copies"
    assert runs.of.value == "copies", "the form is followed"
    runs.clear.click()
    assert "all 3 runs" in runs.question.value, "of all workloads"


def test_runs_of_two_workloads_are_not_compared(ran):
    ran.workload.workload.value = "copies"
    ran.bar.run.click()
    assert ran.explorer.wait(LONG_S)
    gemm, copies = ran.explorer.history
    with pytest.raises(ArgumentError, match="run 1 is of study gemm and run 2 is of copies: only runs of one workload"):
        ran.explorer.compared(copies, gemm)


def test_a_run_is_named_where_it_is_shown(ran):
    run_again(ran, "cube.hbm.channel_bw_gbs", "16")
    runs = ran.tabs.runs
    runs.table.a, runs.table.b = 2, 1
    assert [column["key"] for column in runs.table.columns][:3] == ["run", "latency_ns", "label"]
    for key, value in (("label", " half the bandwidth "), ("note", "n" * 300), ("run", "7")):
        runs.table._handle_custom_msg({"do": "annotate", "run": 2, "key": key, "value": value}, [])
    row = runs.table.rows[1]
    assert (row["run"], row["text"]["label"], row["text"]["note"]) == (2, "half the bandwidth", "n" * 200)
    assert (runs.table.a, runs.table.b) == (2, 1), "what is compared stays"
    assert export("machine file", ran.explorer.state.finished.entry, ran.result).name == (
        "half_the_bandwidth-topology.yaml"
    )
    runs.table._handle_custom_msg({"do": "annotate", "run": 9, "key": "label", "value": "of none"}, [])
    assert [row["text"]["label"] for row in runs.table.rows] == ["", "half the bandwidth"]


def test_two_runs_are_shown_in_one_timeline(ran):
    run_again(ran, "cube.hbm.channel_bw_gbs", "16")
    runs, picture = ran.tabs.runs, ran.stage.picture
    alone = picture.header["timeline"]
    runs.both.value = True
    assert picture.header["timeline"] != alone
    assert re.search(r"Run 2 .* compared with  Run 1 ", text(ran.stage.subject))
    assert picture.header["run"]["end_ns"] == pytest.approx(ran.explorer.history[1].latency_ns)
    runs.table.b, runs.table.a = 1, 2
    assert re.search(r"Run 1 .* compared with  Run 2 ", text(ran.stage.subject))
    assert picture.header["run"]["end_ns"] == pytest.approx(ran.explorer.history[0].latency_ns)
    runs.both.value = False
    assert "compared" not in text(ran.stage.subject)
    assert picture.header["timeline"] == alone


def test_the_picture_shows_the_critical_path(ran):
    assert ran.stage.picture.header["path"]


def test_the_first_prediction_finds_its_graph_made(ran, monkeypatch):
    monkeypatch.setattr(_graph, "_Timing", None)
    records = ran.result.records
    question = {
        "do": "what_if",
        "id": 1,
        "values": {"cube.hbm.channel_bw_gbs": 16},
        "latency_ns": ran.result.latency_ns,
    }
    assert handle_why(question, records)["predicted"][0] > ran.result.latency_ns


def test_a_run_shows_loads_then_the_critical_path_then_tables_and_charts(ran, monkeypatch):
    ran.machine_form.set("cube.hbm.channel_bw_gbs", "16")
    shown = []
    monkeypatch.setattr(RunsTab, "refresh", lambda _: shown.append("table"))
    monkeypatch.setattr(RunsTab, "draw", lambda _: shown.append("charts"))
    ran.stage.picture.observe(lambda change: shown.append(sorted(change["new"])), "header")
    computed = []
    monkeypatch.setattr(_scene, "run_section", lambda *given: computed.append(given) or run_section(*given))
    ran.bar.run.click()
    assert ran.explorer.wait(LONG_S)
    loads = ["machine", "run", "timeline"]
    at = shown.index(loads)
    assert "charts" not in shown[:at], "charts wait for the run"
    assert shown[at:] == [loads, sorted([*loads, "path", "why"]), "table", "charts"]
    assert len(computed) == 1, "loads are computed once"


def test_parallel_coordinates_have_a_line_for_each_run_and_an_axis_for_each_difference(ran):
    run_again(ran, "cube.hbm.channel_bw_gbs", "16")
    (chart,) = ran.tabs.runs.coordinates.children
    points = [layer["data"]["values"] for layer in chart.spec["layer"]][1]
    axes = list(dict.fromkeys(point["axis"] for point in points))
    assert axes[:2] == ["HBM bandwidth per channel [GB/s]", "Time [ns]"]
    assert len(points) == 2 * len(axes)
    ends = {(point["run"], point["axis"]): point["at"] for point in points}
    assert (ends[1, axes[0]], ends[2, axes[0]]) == (1, 0)
    assert (ends[1, axes[1]], ends[2, axes[1]]) == (0, 1), "half the bandwidth takes longer"
    assert {point["run"]: point["which"] for point in points} == {1: "A", 2: "B"}


def test_a_chart_asks_no_network(ran):
    run_again(ran, "cube.hbm.channel_bw_gbs", "16")
    (chart,) = ran.tabs.runs.coordinates.children
    assert "import " not in chart._esm[:2000]
    assert "esm.sh" not in chart._esm


def test_a_slider_and_its_text_say_the_same(view):
    view.workload.workload.value = "study gemm"
    field = view.workload.inputs["k"]
    assert field.slider.value == 512
    field.slider.value = 1024.0
    assert field.control.value == "1024"
    assert view.explorer.values["k"] == 1024
    field.control.value = "96"
    assert field.slider.value == 96
    assert view.explorer.values["k"] == 96
    assert 512.0 in [value for _, value in field.slider.options]
    field.control.value = "many"
    assert "must be a whole number" in text(field.message)
    assert field.slider.value == 96
    view.machine_form.group.value = "HBM"
    view.machine_form.inputs["cube.hbm.channel_bw_gbs"].slider.value = 28.0
    assert view.machine.config.cube.hbm.channel_bw_gbs == 28


def test_a_value_that_does_not_fit_others_is_refused_beside_the_field_that_was_changed(view):
    view.machine_form.set("cube.hbm.channel_bw_gbs", "64")
    inputs = view.machine_form.inputs
    said = text(inputs["cube.hbm.channel_bw_gbs"].message)
    assert "cube.pe.pe_dma.bw_gbs = 256 must be &gt;= 512" in said
    assert "cube.hbm.bw_gbs = 256 must be &gt;= 512" in text(inputs["cube.hbm.bw_gbs"].message)
    assert view.bar.run.disabled
    inputs["cube.hbm.channel_bw_gbs"].control.value = "32"
    assert not [x for x in inputs.values() if text(x.message).strip()]


def test_the_picture_runs_and_sets_fields(view):
    view.stage.picture._handle_custom_msg({"do": "run"}, [])
    assert view.explorer.wait(LONG_S)
    assert view.result is not None
    view.stage.picture._handle_custom_msg({"do": "set", "field": "cube.hbm.channel_bw_gbs", "value": 16}, [])
    assert view.machine.config.cube.hbm.channel_bw_gbs == 16
    assert view.machine_form.inputs["cube.hbm.channel_bw_gbs"].control.value == "16"
    assert "kb-stale" in view.stage.root._dom_classes


def test_a_limit_that_steps_waited_for_is_told_once():
    with kb.session(kb.load("preset:small", overrides=["system.sips.count=2"])) as torch:
        torch.collective([torch.empty(1 << 15, dtype="f16", device=f"ahbm:{i}") for i in range(2)], "tree_allreduce")
    why = torch.result.why()
    (limit,) = why.limits()
    assert _why_html(why).count(escape(limit)) == 1


@pytest.mark.parametrize("what", list(EXPORTS))
def test_everything_can_be_exported(ran, what):
    ran.tabs.what.value = what
    ran.tabs.prepare.click()
    assert 'download="run1' in ran.tabs.file.value


def test_before_a_run_every_tab_asks_for_one(view):
    panel = view.tabs
    panel.prepare.click()
    shown = [*panel.html.values(), panel.roofline_note, panel.runs.hint, panel.file]
    assert all("othing has run yet: press Run" in text(html) for html in shown)


def controls(widget):
    if isinstance(widget, widgets.ValueWidget | widgets.Button) and not isinstance(widget, widgets.HTML):
        yield widget
    for child in getattr(widget, "children", ()):
        yield from controls(child)


def test_every_control_says_what_it_is_to_whoever_does_not_see_it(ran):
    found = list(controls(ran.root))
    assert len(found) > 30
    assert not [x for x in found if not (x.tooltip or getattr(x, "tooltips", ()) or x.description)]
    for panel in (ran.machine_form, ran.workload):
        for field in panel.fields.children:
            assert "<label" in field.children[0].children[0].value


def test_one_program_is_watched_in_a_cell():
    live = LiveRun(programs.copies, "preset:small")
    assert live.explorer.wait(LONG_S)
    assert live.result is not None
    assert "done" in text(live.bar.state)
    assert live.stage.picture.header["run"]["end_ns"] == pytest.approx(live.result.latency_ns)
    assert "copies" in live._repr_mimebundle_()["text/plain"]


def test_shows_itself_as_widgets_and_in_words(view):
    bundle = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "run this cell" in bundle["text/plain"]
    assert b64decode(bundle["image/png"])[:4] == b"\x89PNG"


def test_a_run_is_deleted_after_a_question(ran, monkeypatch, tmp_path):
    ran.workload.inputs["k"].control.value = "128"
    ran.bar.run.click()
    assert ran.explorer.wait(LONG_S)
    runs = ran.tabs.runs
    runs.table._handle_custom_msg({"do": "delete", "run": 1}, [])
    assert "Delete run 1, study gemm m=64 k=64" in runs.question.value
    assert "cache" not in runs.question.value  # it is off
    runs.kept.click()
    assert (runs.confirm.layout.display, len(ran.explorer.history)) == ("none", 2)
    runs.table._handle_custom_msg({"do": "delete", "run": 1}, [])
    runs.confirmed.click()
    assert [row["run"] for row in runs.table.rows] == [2]
    assert runs.confirm.layout.display == "none"


def test_the_history_is_cleared_after_a_question_that_names_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    view = explore("preset:small")
    runs = view.tabs.runs
    assert (runs.clear.layout.display, runs.both.layout.display) == ("none", "none")
    view.workload.workload.value = "study gemm"
    view.bar.run.click()
    assert view.explorer.wait(LONG_S)
    assert runs.clear.layout.display == ""
    runs.clear.click()
    assert "all 1 runs" not in runs.question.value
    assert "cache of this computer" in runs.question.value
    runs.confirmed.click()
    assert (view.explorer.history, runs.table.rows, runs.clear.layout.display) == ([], [], "none")
    assert "Nothing has run yet" in runs.hint.value
    assert explore("preset:small").explorer.history == []


@pytest.mark.usefixtures("page")
def test_visitors_of_a_page_do_not_delete_from_the_cache_that_they_share(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    view = explore("preset:small")
    view.workload.workload.value = "study gemm"
    view.bar.run.click()
    assert view.explorer.wait(LONG_S)
    key = view.explorer.history[0].key
    view.tabs.runs.clear.click()
    assert "cache" not in view.tabs.runs.question.value
    view.tabs.runs.confirmed.click()
    assert not view.explorer.history
    assert default_cache().find(key) is not None


def test_workloads_are_grouped_by_kind(view):
    (groups,) = (x for x in view.workload.workload._dom_classes if x.startswith("kb-groups-"))
    kinds = [part.split(":") for part in groups.removeprefix("kb-groups-").split(",")]
    assert [kind for _, kind in kinds] == ["Your_programs", "Studies", "Collectives", "Serving", "Benches"]
    names = list(view.workload.workload.options)
    for n, kind in kinds[1:]:
        start = {"Studies": "study ", "Collectives": "collective ", "Serving": "step of ", "Benches": "bench "}[kind]
        assert len([name for name in names if name.startswith(start)]) == int(n)
    assert sum(int(n) for n, _ in kinds) == len(names)


@pytest.mark.slow
def test_a_collective_on_a_machine_with_one_sip_joins_two(view):
    view.workload.workload.value = "collective all_reduce"
    assert not view.explorer.wrong
    sips = view.workload.inputs["sips"].control
    assert sips.value == "2"
    view.machine_form.source.value = "preset:default"
    assert view.workload.inputs["sips"].control.value == "as the machine"
    view.machine_form.source.value = "preset:small"
    assert not view.explorer.wrong
    view.bar.run.click()
    assert view.explorer.wait(LONG_S)
    assert view.result.records.spec["system"]["sips"]["count"] == 2
    view.workload.inputs["sips"].control.value = "3"
    view.machine_form.source.value = "preset:default"
    assert view.explorer.values["sips"] == "3"
