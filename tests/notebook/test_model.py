"""The explorer without a browser: every action, and what it may not do."""

from __future__ import annotations

import gc
import re
import threading
import tracemalloc
from types import SimpleNamespace

import pytest

import kernbench as kb
from kernbench.errors import ConfigError, KernbenchError
from kernbench.notebook import _job as job
from kernbench.notebook import _model as model
from kernbench.notebook._job import _BEAT_S, READING_RESULT, RunJob
from kernbench.notebook._live import COMPUTING, MAKING
from kernbench.notebook._model import CANCELLED, DONE, FAILED, IDLE, OUTDATED, RUNNING, Explorer
from kernbench.notebook._panels import state_html
from kernbench.notebook._serve import Quota
from kernbench.sim_engine._limits import Watchdog
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies import gemm
from tests.notebook import programs

close = Watchdog.close
LONG_S = 60  # what no wait here comes near to


@pytest.fixture
def explorer():
    explorer = Explorer("preset:small", [programs.copies, programs.endless, programs.patient])
    yield explorer
    explorer.cancel()
    assert explorer.wait(LONG_S)


def run(explorer):
    assert explorer.run()
    assert explorer.wait(LONG_S)
    return explorer.state


def small_gemm(explorer):
    explorer.choose("study gemm")
    for name in "mkn":
        explorer.set(name, 64)


def begin_endless(explorer):
    programs.started.clear()
    explorer.choose("endless")
    assert explorer.run()
    assert programs.started.wait(LONG_S)


def test_begins_idle_with_something_to_run(explorer):
    assert explorer.state.status == IDLE
    assert not explorer.obstacle
    assert explorer.workload.name == "copies"
    assert explorer.result is None
    assert not explorer.cancel()


def test_a_run_ends_with_its_result_its_frame_and_its_reasons(explorer):
    small_gemm(explorer)
    state = run(explorer)
    assert state.status == DONE
    assert explorer.now_ns == explorer.result.latency_ns
    assert state.finished.outcome.checks == 1
    assert state.finished.why.path.makespan_ps == explorer.result.records.makespan_ps
    alone = gemm.run(kb.load("preset:small"), (64, 64, 64), "ref_ref")
    assert explorer.result.records.digest() == alone.records.digest()


def test_what_a_program_prints_and_returns_is_kept_and_not_printed(explorer, capsys):
    state = run(explorer)
    assert (state.finished.outcome.printed, state.finished.outcome.shown) == ("copying\n", "4 copies")
    assert capsys.readouterr().out == ""
    print("still here")
    assert capsys.readouterr().out == "still here\n"


def test_observers_hear_each_state_and_frames_grow(explorer):
    seen = []
    explorer.on_change.append(lambda: seen.append(explorer.state))
    explorer.choose("study gemm")
    run(explorer)
    assert seen[0].status == RUNNING
    assert seen[-1].status == DONE
    frames = [state.frame.now_ns for state in seen if state.frame and state.status == RUNNING]
    assert frames == sorted(frames)


def test_frames_tell_of_a_run_under_way(explorer):
    frames = []
    explorer.on_change.append(lambda: frames.append(explorer.state.frame))
    begin_endless(explorer)
    while len([x for x in frames if x is not None]) < 3:
        assert explorer.state.status == RUNNING
    early, late = next(x for x in frames if x is not None), frames[-1]
    assert late.now_ns > early.now_ns
    assert late.events > early.events
    assert late.link_load.any()
    assert explorer.now_ns >= late.now_ns


def test_a_run_says_what_it_does_at_least_twice_a_second(explorer):
    """Whatever it does: each wait of the program ends with the third beat of its phase."""
    said, lines = [], []

    def heard():
        said.append(explorer.phase)
        lines.append(re.sub("<.*?>", "", state_html(explorer)))
        if said[-3:] in ([MAKING] * 3, [COMPUTING] * 3):
            programs.going.set()

    assert _BEAT_S < 0.5
    explorer.on_beat.append(heard)
    explorer.choose("patient")
    programs.going.clear()
    assert run(explorer).status == DONE
    assert [*dict.fromkeys(x for x in said if x in (MAKING, COMPUTING))] == [MAKING, COMPUTING]
    assert [x for x in lines if MAKING in x][-1].endswith(" s")
    assert "done" in state_html(explorer)


def test_a_run_is_done_when_its_result_is_shown_and_no_earlier(explorer):
    states = []
    explorer.on_change.append(lambda: states.append((explorer.state.status, explorer.phase, explorer.result)))
    small_gemm(explorer)
    assert run(explorer).status == DONE
    first = next(i for i, (_, _, result) in enumerate(states) if result is not None)
    assert states[first][:2] == (RUNNING, READING_RESULT), "listeners show it first"
    assert [status for status, *_ in states[first + 1 :]] == [DONE, DONE]


def test_cancel_ends_a_run_and_the_next_one_is_a_fresh_one(explorer):
    begin_endless(explorer)
    assert explorer.cancel()
    assert explorer.state.status == CANCELLED
    assert explorer.wait(LONG_S)
    assert explorer.state.status == CANCELLED
    assert not explorer.history
    explorer.choose("copies")
    assert run(explorer).status == DONE


def reached(explorer, phase, monkeypatch):
    """Start a run that never leaves a phase, and wait until it is in it."""
    programs.started.clear()
    if phase == "cache":
        monkeypatch.setattr(model, "cached_run", lambda _: programs.spinning(None))
        small_gemm(explorer)
    elif phase == "records":
        monkeypatch.setattr(GraphEngine, "records", lambda _: programs.spinning(None))
        explorer.choose("copies")
    elif phase == "events":
        explorer.choose("endless")
    else:
        explorer.choose("spinning")
        explorer.set("kernel", phase == "kernel")
        explorer.set("catches", phase == "catches")
    assert explorer.run()
    assert programs.started.wait(LONG_S)


@pytest.mark.parametrize("phase", ["cache", "program", "catches", "kernel", "events", "records"])
def test_cancel_ends_a_run_in_every_phase(phase, monkeypatch):
    explorer = Explorer("preset:small", [programs.copies, programs.endless, programs.spinning])
    reached(explorer, phase, monkeypatch)
    assert explorer.cancel()
    assert explorer.state.status == CANCELLED, "at once"
    assert explorer.wait(LONG_S)
    assert not explorer.obstacle
    monkeypatch.undo()
    explorer.choose("copies")
    assert run(explorer).status == DONE


def test_no_run_begins_before_the_thread_of_a_cancelled_one_has_ended(explorer, monkeypatch):
    begin_endless(explorer)
    messages, cancelled = [], threading.Event()

    def ends(dog):
        cancelled.wait(LONG_S)  # the run's thread may come here before `cancel` has returned
        messages.append(explorer.obstacle)
        close(dog)

    monkeypatch.setattr(Watchdog, "close", ends)
    assert explorer.cancel()
    cancelled.set()
    assert explorer.wait(LONG_S)
    assert messages[-1:] == ["the cancelled run is ending"]
    assert not explorer.obstacle


def test_a_program_that_leaves_the_interpreter_has_failed():
    explorer = Explorer("preset:small", [programs.exits])
    assert run(explorer).status == FAILED
    assert "SystemExit: 3 (line " in explorer.state.message


def test_a_second_click_starts_no_second_run(explorer):
    begin_endless(explorer)
    entry = explorer.state.entry
    assert explorer.obstacle == "a run is under way"
    assert not explorer.run()
    assert explorer.state.entry is entry
    assert sum(thread.name == "kernbench run" for thread in threading.enumerate()) == 1


def test_many_clicks_at_once_start_one_run(explorer):
    explorer.choose("endless")
    gate, started = threading.Barrier(8), []

    def click():
        gate.wait()
        started.append(explorer.run())

    threads = [threading.Thread(target=click) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(started) == 1


def test_an_error_of_the_program_is_told_with_its_place_and_the_panel_stays(explorer):
    explorer.set("fail", True)
    state = run(explorer)
    assert state.status == FAILED
    assert state.message.startswith("ZeroDivisionError: as asked for (line ")
    assert "in copies" in state.message
    explorer.set("fail", False)
    assert run(explorer).status == DONE


def test_an_error_of_the_library_is_told_in_its_words(explorer):
    small_gemm(explorer)
    explorer.form.set("cube.pe.pe_tcm.size_mb", "6")
    explorer.set("staging", "load_load")
    for name in "mkn":
        explorer.set(name, 1024)
    explorer.set_option("data", False)
    state = run(explorer)
    assert state.status == FAILED
    assert "TCM" in state.message


def test_wrong_machine_or_parameter_is_in_the_way(explorer):
    explorer.form.set("cube.hbm.channels", "6")
    assert explorer.obstacle == "the machine has wrong values"
    assert not explorer.run()
    explorer.form.reset()
    explorer.set("count", "none")
    assert explorer.wrong["count"] == "count = 'none' must be a whole number"
    assert not explorer.run()
    explorer.set("count", "2")
    assert run(explorer).status == DONE


def test_choosing_another_work_forgets_the_wrong_parameter(explorer):
    explorer.set("count", "none")
    explorer.choose("study gemm")
    assert not explorer.obstacle


def test_unknown_names_list_the_known_ones(explorer):
    with pytest.raises(ConfigError, match="did you mean copies"):
        explorer.choose("copis")
    with pytest.raises(ConfigError, match="known: data, log"):
        explorer.set_option("speed", 1)
    with pytest.raises(ConfigError, match="did you mean tile"):
        explorer.set_option("log", "tiles")


def test_options_reach_the_run(explorer):
    small_gemm(explorer)
    explorer.set_option("data", False)
    explorer.set_option("log", "off")
    state = run(explorer)
    assert state.finished.outcome.checks == 0
    assert "was not logged" in state.finished.why


def test_a_change_after_a_run_starts_a_short_one_by_itself_and_no_other(explorer, monkeypatch):
    small_gemm(explorer)
    explorer.touched()
    assert explorer.state.status == IDLE, "the first run is for the user to start"
    run(explorer)
    explorer.touched()
    assert len(explorer.history) == 1, "nothing has changed"
    explorer.set("m", 96)
    monkeypatch.setattr(model, "AUTO_RUN_S", 0)
    explorer.touched()
    assert len(explorer.history) == 1
    monkeypatch.setattr(model, "AUTO_RUN_S", LONG_S)
    explorer.auto = False
    explorer.touched()
    assert not explorer.state.busy
    assert explorer.status == OUTDATED
    explorer.auto = True
    explorer.touched()
    assert explorer.wait(LONG_S)
    assert len(explorer.history) == 2
    assert explorer.status == DONE
    explorer.choose("copies")
    explorer.touched()
    assert len(explorer.history) == 2, "nothing is known of how long it takes"


@pytest.fixture
def timed(monkeypatch):
    """An explorer of a program that says how many seconds of the host its runs take."""
    clock = [0.0]

    def lasting(torch, *, seconds: float = 0.5, fail: bool = False, size: int = 4):
        clock[0] += seconds
        if fail:
            raise ValueError("as asked for")
        torch.zeros(size, device="ahbm")

    monkeypatch.setattr(job, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    return Explorer("preset:small", [lasting])


def run_for(explorer, seconds, *, fail=False):
    explorer.auto = False
    explorer.set("seconds", seconds)
    explorer.set("fail", fail)
    status = run(explorer).status
    explorer.auto = True
    return status


@pytest.mark.parametrize(("seconds", "status", "runs"), [(0.999, DONE, 3), (1.0, OUTDATED, 2)])
def test_a_change_starts_a_run_if_the_last_one_of_the_workload_took_under_a_second(timed, seconds, status, runs):
    for each in (1.999 - seconds, seconds):
        assert run_for(timed, each) == DONE
    timed.set("size", 8)
    timed.touched()
    assert timed.wait(LONG_S)
    assert (timed.status, len(timed.history)) == (status, runs)


@pytest.mark.parametrize(("before", "failed", "starts"), [(0.5, 0.5, True), (0.5, 2.0, False), (2.0, 0.5, False)])
def test_a_run_that_has_failed_makes_the_next_one_no_shorter(timed, before, failed, starts):
    assert run_for(timed, before) == DONE
    assert run_for(timed, failed, fail=True) == FAILED
    assert timed.runs_by_itself is starts


def test_nothing_is_known_of_a_workload_of_which_no_run_has_ended_well(timed):
    timed.choose("study gemm")
    run(timed)
    timed.choose("lasting")
    assert not timed.runs_by_itself
    assert run_for(timed, 0.5, fail=True) == FAILED
    assert not timed.runs_by_itself
    assert run_for(timed, 0.5) == DONE
    timed.set("size", 8)
    assert timed.runs_by_itself


def test_a_result_of_something_else_than_is_chosen_is_outdated_at_once(explorer):
    small_gemm(explorer)
    run(explorer)
    assert (explorer.status, explorer.changes) == (DONE, [])
    changes = [
        (lambda: explorer.set("m", 128), lambda: explorer.set("m", 64), "m was 64, is 128"),
        (
            lambda: explorer.form.set("cube.hbm.channel_bw_gbs", "16"),
            explorer.form.reset,
            "cube.hbm.channel_bw_gbs was 32.0, is 16.0",
        ),
        (
            lambda: explorer.set_option("data", False),
            lambda: explorer.set_option("data", True),
            "data was True, is False",
        ),
        (lambda: explorer.set("m", "none"), lambda: explorer.set("m", 64), "a value is wrong"),
        (lambda: explorer.choose("copies"), lambda: small_gemm(explorer), "run was study gemm, is copies"),
    ]
    for change, back, said in changes:
        change()
        assert explorer.status == OUTDATED
        assert explorer.changes == [said]
        assert explorer.message == said
        back()
        assert (explorer.status, explorer.changes) == (DONE, [])


@pytest.mark.slow
def test_the_tabs_keep_the_last_finished_run_while_others_run_fail_or_are_cancelled(explorer):
    run(explorer)
    first = explorer.state.finished
    begin_endless(explorer)
    assert explorer.state.entry.number == 2
    assert explorer.state.finished is first
    explorer.cancel()
    assert explorer.wait(LONG_S)
    explorer.choose("copies")
    explorer.set("fail", True)
    run(explorer)
    assert explorer.state.entry.number == 3
    assert explorer.state.finished is first
    assert explorer.result is first.result


@pytest.mark.parametrize(
    ("preset", "work", "values", "said"),
    [
        ("default", "study ccl", {"cubes": 99}, {"cubes": "cubes = 99 must be at most 16"}),
        ("default", "study ccl", {"cubes": 99, "pes": 9}, {"cubes": "at most 16", "pes": "at most 8"}),
        ("default", "study ccl", {"elements": 10**12}, {"elements": "HBM slice has"}),
        ("default", "study ccl", {"algorithm": "torus_allreduce"}, {"algorithm": "form no grid"}),
        ("six_sip_torus", "study ccl", {"algorithm": "mesh_allreduce_4"}, {"algorithm": "6 take part"}),
        (
            "default",
            "study ccl",
            {"algorithm": "intercube_allreduce", "cubes": 3, "elements": 100},
            {"elements": "must be a multiple of cubes x pes = 3"},
        ),
        ("small", "study ccl", {}, {"system.sips.count": "system.sips.count = 1 must be >= 2"}),
        ("default", "study gqa", {"cubes": 17}, {"cubes": "at most 16"}),
        ("default", "study gqa", {"ranks": 3}, {"ranks": "must divide cubes x pes = 8"}),
        ("default", "study gqa", {"phase": "prefill", "tokens": 7}, {"tokens": "must be even"}),
        ("default", "study gqa", {"merge": "mesh_allreduce_4"}, {"merge": "does not run here"}),
        ("default", "study gemm", {"m": 10**6, "k": 10**6}, {"m": "HBM slice has"}),
    ],
)
def test_what_the_machine_cannot_run_is_refused_beside_its_field_before_the_run(preset, work, values, said):
    explorer = Explorer(f"preset:{preset}")
    explorer.choose(work)
    for name, value in values.items():
        assert explorer.set(name, value)
    assert explorer.obstacle == "a parameter is wrong"
    assert not explorer.run()
    assert set(explorer.wrong) == set(said)
    for name, text in said.items():
        assert text in explorer.wrong[name]


def test_begins_with_a_workload_that_the_machine_can_run():
    assert Explorer("preset:default").workload.name == "study ccl"
    explorer = Explorer("preset:small")
    assert explorer.workload.name != "study ccl"
    assert not explorer.obstacle


@pytest.mark.parametrize("work", ["study ccl", "study gemm", "study gqa", "study layers", "study probe"])
def test_usual_values_are_right(work):
    explorer = Explorer("preset:default")
    explorer.choose(work)
    assert not explorer.obstacle


def test_a_smaller_machine_makes_a_parameter_wrong(explorer):
    explorer.form.load("preset:default")
    explorer.choose("study ccl")
    assert explorer.set("cubes", 9)
    assert not explorer.wrong
    explorer.form.set("sip.cube_mesh.w", "2")
    assert "cubes = 9 must be at most 8" in explorer.wrong["cubes"]


def test_a_run_that_is_about_to_start_can_be_waited_for(explorer, monkeypatch):
    # A run that ends may start another, in its own thread, while its user waits.
    waited = []
    start = RunJob.start

    def started(self: RunJob, after: RunJob | None = None) -> None:
        waited.append(explorer.wait(0))
        start(self, after)

    monkeypatch.setattr(RunJob, "start", started)
    run(explorer)
    assert waited == [False]


def test_a_change_during_a_run_starts_another_when_that_one_ends(explorer, monkeypatch):
    monkeypatch.setattr(model, "AUTO_RUN_S", LONG_S)
    small_gemm(explorer)
    touched = []

    def touch_once():
        if explorer.state.status == RUNNING and not touched:
            touched.append(explorer.set("m", 96))
            explorer.touched()

    explorer.on_change.append(touch_once)
    assert explorer.run()
    while len(explorer.history) < 2:
        assert explorer.wait(LONG_S)
    assert explorer.wait(LONG_S)
    assert [entry.values["m"] for entry in explorer.history] == [64, 96]


def test_two_runs_are_compared(explorer):
    small_gemm(explorer)
    run(explorer)
    explorer.form.set("cube.hbm.channel_bw_gbs", "16")
    run(explorer)
    first, last = explorer.history
    found = explorer.compared(last, first)
    assert [(x.field, x.before, x.after) for x in found.machine] == [("cube.hbm.channel_bw_gbs", 32.0, 16.0)]
    assert found.latency.after > found.latency.before
    assert (first.latency_ns, last.latency_ns) == (found.latency.before, found.latency.after)


@pytest.mark.parametrize(
    ("preset", "work", "values"),
    [
        ("small", "study gemm", {"m": 256, "k": 256, "n": 256}),
        ("default", "study ccl", {"algorithm": "ring_allreduce_tcm", "elements": 65536}),
    ],
)
def test_doubling_the_named_resource_helps_and_one_off_the_path_does_not(preset, work, values):
    explorer = Explorer(f"preset:{preset}")
    explorer.choose(work)
    explorer.set_option("data", False)
    for name, value in values.items():
        assert explorer.set(name, value)
    first = next(reason for reason in run(explorer).finished.why if reason.fields)
    latency = explorer.result.latency_ns
    for field in (*first.fields, *first.together):
        factor = 0.5 if field.endswith("_ns") else 2
        explorer.form.set(field, f"{factor * float(explorer.form.text(field)):g}")
    assert not explorer.form.wrong
    run(explorer)
    assert explorer.result.latency_ns < latency - 0.4 * first.ns
    explorer.form.reset()
    explorer.form.set("cube.sram.bw_gbs", "256")
    run(explorer)
    assert explorer.result.latency_ns == latency


@pytest.mark.slow
def test_auto_tells_why_it_chose(explorer):
    explorer.form.load("preset:default")
    explorer.choose("study ccl")
    state = run(explorer)
    shown = state.finished.outcome.shown
    assert state.finished.outcome.checks == 1
    assert "lower bound" in shown.reason
    assert {"auto", shown.algorithm} <= set(explorer.workload.parameters[0].options(explorer.form.machine))


@pytest.mark.slow
def test_values_are_compared_when_every_device_has_its_own():
    explorer = Explorer("preset:six_sip_torus")
    explorer.choose("study ccl")
    assert explorer.set("algorithm", "tree_allreduce")
    state = run(explorer)
    assert state.status == DONE, state.message
    assert state.finished.outcome.checks == 1


def test_old_logs_are_let_go_and_the_baselines_stays(explorer, monkeypatch):
    monkeypatch.setattr(model, "KEPT_ROWS", 0)
    for _ in range(3):
        run(explorer)
        if len(explorer.history) == 1:
            explorer.baseline = explorer.history[-1]
    assert [entry.number for entry in explorer.with_results()] == [1, 3]
    with pytest.raises(KernbenchError, match="run 2 is no longer kept"):
        explorer.result_of(explorer.history[1])
    assert len(explorer.history) == 3


@pytest.mark.slow
def test_ten_runs_leak_neither_threads_nor_memory(explorer, monkeypatch):
    monkeypatch.setattr(model, "KEPT_ROWS", 0)
    small_gemm(explorer)
    found = []
    tracemalloc.start()  # arrays included; the process's own size depends on what else has run in it
    try:
        for runs in (3, 10):
            for _ in range(runs):
                run(explorer)
            gc.collect()
            found.append((threading.active_count(), len(gc.get_objects()), tracemalloc.get_traced_memory()[0]))
    finally:
        tracemalloc.stop()
    (threads, objects, memory), after = found
    assert after[0] == threads
    assert after[1] < objects + 2000  # the machine of one run alone is some tens of thousands
    assert after[2] < memory + (1 << 20)


@pytest.mark.parametrize(("most", "said"), [(1, "1 run"), (2, "2 runs")])
def test_a_quota_that_is_spent_is_said(tmp_path, most, said):
    quota = Quota(most, tmp_path / "runs")
    for _ in range(most):
        quota.take()
    obstacle = Explorer("preset:small", quota=quota).obstacle
    assert obstacle == f"you have started {said} within an hour, as many as this page allows; try later"
