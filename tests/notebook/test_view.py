"""The panels, driven by their widgets, without a kernel."""

from __future__ import annotations

import re
from html import escape

import ipywidgets as widgets
import pytest

import kernbench as kb
from kernbench.notebook import LiveRun, TopologyPicker, explore
from kernbench.notebook import _model as model
from kernbench.notebook import _panels as panels
from kernbench.notebook._export import EXPORTS
from kernbench.notebook._panels import STEPS, WHOLE, why_html
from kernbench.notebook._serve import PAGE
from tests.notebook import programs

LONG_S = 60


@pytest.fixture
def view():
    view = explore("preset:small", programs.copies, programs.endless)
    view.run_panel.auto.value = False
    yield view
    view.explorer.cancel()
    assert view.explorer.wait(LONG_S)


@pytest.fixture
def ran(view):
    view.workload_panel.workload.value = "study gemm"
    for name in "mkn":
        view.workload_panel.inputs[name].value = "64"
    view.run_panel.run.click()
    assert view.explorer.wait(LONG_S)
    return view


def text(html):
    return re.sub(r"<[^>]*>", " ", html.value)


def latency(view):
    return float(re.search(r'kb-now">([\d,.]+) ns', view.run_panel.snapshot.value)[1].replace(",", ""))


def test_run_button_runs_and_the_panel_shows_it(ran):
    assert "done" in text(ran.run_panel.snapshot)
    assert ran.result_panel.root.titles[ran.result_panel.root.selected_index] == "Why"
    assert "of the time" in text(ran.result_panel.html["Why"])
    assert "1 result compared with a reference: right" in text(ran.result_panel.html["Why"])
    assert not ran.run_panel.run.disabled
    assert ran.run_panel.cancel.disabled


def test_why_answers_for_one_launch_as_long_as_runs_have_it(ran):
    panel, result = ran.result_panel, ran.explorer.result
    whole = text(panel.html["Why"])
    (launch,) = result.launches
    assert panel.of.options == (WHOLE, launch.name)
    panel.of.value = launch.name
    assert why_html(result.why(launch.name)) in panel.html["Why"].value
    assert text(panel.html["Why"]) != whole
    ran.workload_panel.inputs["k"].value = "128"
    ran.run_panel.run.click()
    assert ran.explorer.wait(LONG_S)
    assert panel.of.value == WHOLE
    assert text(panel.html["Why"]) != whole
    panel.of.value = "gemm 64x128x64 ref_ref"
    ran.run_panel.run.click()
    assert ran.explorer.wait(LONG_S)
    assert panel.of.value == "gemm 64x128x64 ref_ref"
    assert why_html(ran.explorer.result.why(panel.of.value)) in panel.html["Why"].value


def test_a_short_run_is_replayed_and_can_be_scrubbed(ran):
    panel, replay = ran.run_panel, ran.explorer.state.finished.replay
    assert panel.play.playing
    assert panel.at.value == 0
    panel.at.value = STEPS // 2
    assert latency(ran) == pytest.approx(replay.end_ps / 2000, abs=0.1)
    panel.at.value = STEPS
    assert latency(ran) == pytest.approx(ran.result.latency_ns, abs=0.1)
    panel.speed.value = 4.0
    assert panel.play.interval < 20


def test_a_change_is_simulated_by_itself(ran):
    ran.run_panel.auto.value = True
    ran.machine_panel.set("cube.hbm.channel_bw_gbs", "16")
    assert ran.explorer.wait(LONG_S)
    assert [entry.overrides for entry in ran.explorer.history] == [(), ("cube.hbm.channel_bw_gbs=16",)]
    assert "done" in text(ran.run_panel.snapshot)
    assert latency(ran) == 0, "the replay begins again"


def test_a_long_run_is_not_replayed(view, monkeypatch):
    monkeypatch.setattr(model, "REPLAY_S", 0)
    view.run_panel.run.click()
    assert view.explorer.wait(LONG_S)
    assert not view.run_panel.play.playing
    assert view.run_panel.at.value == STEPS


def test_buttons_say_what_can_be_done_during_a_run(view):
    programs.started.clear()
    view.workload_panel.workload.value = "endless"
    view.run_panel.run.click()
    assert programs.started.wait(LONG_S)
    assert view.run_panel.run.disabled
    assert not view.run_panel.cancel.disabled
    view.run_panel.cancel.click()
    assert view.explorer.wait(LONG_S)
    assert "cancelled" in text(view.run_panel.snapshot)
    assert not view.run_panel.run.disabled


def test_an_error_is_shown_and_the_panel_stays_usable(view):
    view.workload_panel.inputs["fail"].value = True
    view.run_panel.run.click()
    assert view.explorer.wait(LONG_S)
    assert "ZeroDivisionError: as asked for" in text(view.run_panel.snapshot)
    view.workload_panel.inputs["fail"].value = False
    view.run_panel.run.click()
    assert view.explorer.wait(LONG_S)
    assert "done" in text(view.run_panel.snapshot)


def test_a_cancelled_run_says_so_once(view):
    programs.started.clear()
    view.workload_panel.workload.value = "endless"
    view.run_panel.run.click()
    assert programs.started.wait(LONG_S)
    view.run_panel.cancel.click()
    assert text(view.run_panel.snapshot).split().count("cancelled") == 1


def test_a_wrong_value_has_its_message_beside_it(view):
    view.machine_panel.set("cube.hbm.channels", "6")
    rows = view.machine_panel.fields.children
    at = next(
        i for i, x in enumerate(rows) if view.machine_panel.inputs["cube.hbm.channels"] in getattr(x, "children", ())
    )
    assert "cube.hbm.channels = 6 must be a power of two" in text(rows[at + 1])
    assert view.run_panel.run.disabled
    assert "wrong values" in view.run_panel.note.value
    view.machine_panel.group.value = "Network on chip"
    assert "must be a power of two" in text(view.machine_panel.summary), "out of sight, but not forgotten"
    view.machine_panel.reset.click()
    assert not view.run_panel.run.disabled


def test_a_wrong_parameter_has_its_message_beside_it(view):
    view.workload_panel.inputs["count"].value = "x"
    assert "must be a whole number" in text(view.workload_panel._messages["count"])
    view.workload_panel.inputs["count"].value = "3"
    assert text(view.workload_panel._messages["count"]) == ""
    assert view.explorer.values["count"] == 3


def test_the_drawing_follows_the_machine(view):
    before = view.machine_panel.drawing.value
    view.machine_panel.set("system.sips.count", "4")
    after = view.machine_panel.drawing.value
    assert "System: 4 SIPs" in after
    assert after != before
    view.machine_panel.view.value = "cube"
    assert "System" not in view.machine_panel.drawing.value
    assert "system.sips.count" in text(view.machine_panel.summary)


def test_another_preset_takes_the_place_of_all_changes(view):
    view.machine_panel.set("system.sips.count", "4")
    view.machine_panel.source.value = "preset:six_sip_torus"
    assert view.machine.config.n_sips == 6
    assert view.machine_panel.inputs["system.sips.count"].value == "6"


def test_a_file_of_the_users_own_is_loaded_or_refused(view, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("base: small\ncube:\n  ucie: {port_ns: 4}\n")
    [other] = [x for x in controls(view.machine_panel.controls) if "kb-file-path" in x._dom_classes]
    other.value = str(path)
    assert view.machine.config.cube.ucie.port_ns == 4
    path.write_text("base: small\ncube:\n  ucie: {ports_ns: 4}\n")
    other.value = ""
    other.value = str(path)
    assert "did you mean port_ns" in text(view.machine_panel.saved)
    assert view.machine.config.cube.ucie.port_ns == 4


def test_the_machine_is_saved_and_offered_as_a_file(view, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    view.machine_panel.save.click()
    assert (tmp_path / "topology.yaml").is_file()
    assert 'download="topology.yaml"' in view.machine_panel.saved.value
    view.machine_panel.save.click()
    assert "is there already" in text(view.machine_panel.saved)


def test_a_page_writes_no_file_and_names_no_code(tmp_path, monkeypatch):
    monkeypatch.setenv(PAGE, "1")
    monkeypatch.chdir(tmp_path)
    picker = TopologyPicker("preset:small")
    picker.save.click()
    assert not list(tmp_path.iterdir())
    assert 'download="topology.yaml"' in picker.saved.value
    for name in picker.group.options:
        picker.group.value = name
        assert not [path for path in picker.inputs if path.endswith(".impl")]
    assert not [x for x in controls(picker.controls) if "kb-file-path" in x._dom_classes]


def test_choices_of_a_parameter_follow_the_machine(view):
    view.workload_panel.workload.value = "study probe"
    few = view.workload_panel.inputs["case"].options
    view.machine_panel.source.value = "preset:default"
    assert set(few) < set(view.workload_panel.inputs["case"].options)


def test_every_tab_shows_the_run(ran):
    panel = ran.result_panel
    for name, says in (("Stages", "exclusive"), ("Links", "hottest"), ("Roofline", "useful work")):
        panel.show(name)
        assert says in text(panel.html[name])
    panel.show("Timeline")
    assert "matrix" in text(panel.timeline.picture)


def subject(panel):
    """What the tab that is open says of the run that it shows."""
    tab = panel.root.children[panel.root.selected_index]
    return text(next(x for x in tab.children if x is panel.subject))


TABS_OF_A_RUN = ("Why", "Stages", "Timeline", "Links", "Roofline", "Export")


@pytest.mark.parametrize("name", TABS_OF_A_RUN)
def test_every_tab_names_the_run_it_shows_and_says_when_it_is_another(ran, name):
    panel = ran.result_panel
    panel.show(name)
    assert "Run 1" in subject(panel)
    assert "m=64 k=64 n=64" in subject(panel)
    assert "outdated" not in subject(panel)
    ran.machine_panel.set("cube.hbm.channel_bw_gbs", "16")
    assert "outdated: cube.hbm.channel_bw_gbs was 32.0, is 16.0" in subject(panel)
    assert "outdated" in text(ran.run_panel.snapshot)
    ran.workload_panel.workload.value = "copies"
    ran.workload_panel.inputs["fail"].value = True
    ran.run_panel.run.click()
    assert ran.explorer.wait(LONG_S)
    assert "Run 1" in subject(panel)
    assert "run 2 is failed: copies" in subject(panel)


def test_a_parameter_that_this_machine_cannot_run_has_its_message_beside_it(view):
    view.machine_panel.source.value = "preset:default"
    view.workload_panel.workload.value = "study ccl"
    view.workload_panel.inputs["cubes"].value = "99"
    assert "cubes = 99 must be at most 16" in text(view.workload_panel._messages["cubes"])
    assert view.run_panel.run.disabled
    view.workload_panel.inputs["cubes"].value = "16"
    assert text(view.workload_panel._messages["cubes"]) == ""
    assert not view.run_panel.run.disabled
    view.machine_panel.set("sip.cube_mesh.w", "2")
    assert "must be at most 8" in text(view.workload_panel._messages["cubes"])


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.003, "0.1 s"), (0.44, "0.4 s"), (6.3, "6 s"), (4259.6, "71 min"), (40_000, "11 h")]
)
def test_an_estimate_is_told_as_well_as_it_is_known(seconds, said):
    assert panels._rounded(seconds) == said


def test_the_timeline_zooms(ran):
    ran.result_panel.show("Timeline")
    tab = ran.result_panel.timeline
    whole = tab.picture.value
    tab.window.value = (400, 600)
    assert tab.picture.value != whole
    assert f"{0.4 * ran.result.latency_ns:,.2f} ns" in text(tab.picture)
    assert "sip0.cube0" in text(tab.picture)


def test_runs_are_pinned_and_compared(ran):
    history = ran.result_panel.history
    history.pin.click()
    ran.machine_panel.set("cube.hbm.channel_bw_gbs", "16")
    ran.run_panel.run.click()
    assert ran.explorer.wait(LONG_S)
    assert "cube.hbm.channel_bw_gbs" in text(history.comparison)
    assert re.search(r"#1 .* #2 ", text(history.comparison))
    assert text(history.table).count("study gemm m=64") == 2
    history.before.value = None
    assert "Pin a run" in text(history.comparison)


def test_a_limit_that_steps_waited_for_is_told_once():
    with kb.session(kb.load("preset:small", overrides=["system.sips.count=2"])) as torch:
        torch.collective([torch.empty(1 << 15, dtype="f16", device=f"ahbm:{i}") for i in range(2)], "tree_allreduce")
    why = torch.result.why()
    (limit,) = why.limits()
    assert why_html(why).count(escape(limit)) == 1


@pytest.mark.parametrize("what", list(EXPORTS))
def test_everything_can_be_exported(ran, what):
    ran.result_panel.what.value = what
    ran.result_panel.prepare.click()
    assert 'download="run1' in ran.result_panel.file.value


def test_before_a_run_every_tab_asks_for_one(view):
    panel = view.result_panel
    panel.prepare.click()
    panel.timeline.window.value = (10, 500)
    shown = [*panel.html.values(), panel.timeline.picture, panel.history.table, panel.file]
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
    for panel in (ran.machine_panel, ran.workload_panel):
        for row in [row for row in panel.fields.children if hasattr(row, "children")]:
            assert "<label" in row.children[0].value


def test_one_program_is_watched_in_a_cell():
    live = LiveRun(programs.copies, "preset:small")
    assert live.explorer.wait(LONG_S)
    assert live.result is not None
    assert "done" in text(live.root.children[1].children[1])
    assert "copies" in live._repr_mimebundle_()["text/plain"]


def test_shows_itself_as_widgets_and_in_words(view):
    bundle = view._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert "run this cell" in bundle["text/plain"]
    assert bundle["image/svg+xml"].startswith("<svg")
