"""The explorer without a browser: every action, and what it may not do."""

from __future__ import annotations

import gc
import threading
import tracemalloc

import pytest

import kernbench as kb
from kernbench.errors import ConfigError, KernbenchError
from kernbench.notebook import model
from kernbench.notebook.job import Job
from kernbench.notebook.model import Explorer
from kernbench.notebook.state import CANCELLED, DONE, FAILED, IDLE, RUNNING, STOPPING
from kernbench.studies import gemm
from tests.notebook import programs

LONG_S = 60  # what no wait here comes near to


@pytest.fixture
def explorer():
    explorer = Explorer("preset:small", [programs.copies, programs.endless, programs.spins])
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


def begin_endless(explorer, name="endless"):
    programs.started.clear()
    explorer.choose(name)
    assert explorer.run()
    assert programs.started.wait(LONG_S)


def test_begins_idle_with_something_to_run(explorer):
    assert explorer.state.status == IDLE
    assert not explorer.obstacle
    assert explorer.work.name == "copies"
    assert explorer.result is None
    assert not explorer.cancel()


def test_a_run_ends_with_its_result_its_frame_and_its_reasons(explorer):
    small_gemm(explorer)
    state = run(explorer)
    assert state.status == DONE
    assert state.frame.now_ns == explorer.result.latency_ns
    assert state.outcome.checks == 1
    assert state.why.path.makespan_ps == explorer.result.records.makespan_ps
    alone = gemm.run(kb.load("preset:small"), (64, 64, 64), "ref_ref")
    assert explorer.result.records.digest() == alone.records.digest()


def test_what_a_program_prints_and_returns_is_kept_and_not_printed(explorer, capsys):
    state = run(explorer)
    assert (state.outcome.printed, state.outcome.shown) == ("copying\n", "4 copies")
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
    assert late.links
    assert late.exclusive_ns["host"] > 0


@pytest.mark.parametrize("name", ["endless", "spins"])
def test_cancel_ends_a_run_and_the_next_one_is_a_fresh_one(explorer, name):
    begin_endless(explorer, name)
    assert explorer.cancel()
    assert explorer.state.status in (STOPPING, CANCELLED)
    assert explorer.wait(LONG_S)
    assert explorer.state.status == CANCELLED
    assert not explorer.history
    explorer.choose("copies")
    assert run(explorer).status == DONE


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
    assert state.outcome.checks == 0
    assert "was not logged" in state.why


def test_estimate_grows_with_the_work(explorer):
    assert explorer.estimate_s() is None
    small_gemm(explorer)
    run(explorer)
    took = explorer.history[-1].seconds
    assert explorer.estimate_s() == took
    explorer.set("m", 128)
    explorer.set("n", 192)
    assert explorer.estimate_s() == pytest.approx(6 * took)
    explorer.choose("copies")
    assert explorer.estimate_s() is None


def test_a_change_starts_a_short_run_by_itself_and_no_other(explorer, monkeypatch):
    explorer.touched()
    assert explorer.state.status == IDLE, "nothing is known of how long it takes"
    run(explorer)
    monkeypatch.setattr(model, "AUTO_RUN_S", 0)
    explorer.touched()
    assert len(explorer.history) == 1
    monkeypatch.setattr(model, "AUTO_RUN_S", LONG_S)
    explorer.auto = False
    explorer.touched()
    assert not explorer.state.busy
    explorer.auto = True
    explorer.touched()
    assert explorer.wait(LONG_S)
    assert len(explorer.history) == 2


def test_a_run_that_is_about_to_start_can_be_waited_for(explorer, monkeypatch):
    # A run that ends may start another, in its own thread, while its user waits.
    waited = []
    start = Job.start

    def started(job: Job) -> None:
        waited.append(explorer.wait(0))
        start(job)

    monkeypatch.setattr(Job, "start", started)
    run(explorer)
    assert waited == [False]


def test_a_change_during_a_run_starts_another_when_that_one_ends(explorer, monkeypatch):
    monkeypatch.setattr(model, "AUTO_RUN_S", LONG_S)
    run(explorer)
    touched = []

    def touch_once():
        if explorer.state.status == RUNNING and not touched:
            touched.append(explorer.set("count", 3))
            explorer.touched()

    explorer.on_change.append(touch_once)
    assert explorer.run()
    while len(explorer.history) < 3:
        assert explorer.wait(LONG_S)
    assert explorer.wait(LONG_S)
    assert [entry.values["count"] for entry in explorer.history] == [4, 4, 3]


def test_runs_are_compared_with_the_pinned_one(explorer):
    small_gemm(explorer)
    with pytest.raises(KernbenchError, match="pin a run"):
        explorer.compared()
    run(explorer)
    explorer.pin()
    explorer.form.set("cube.hbm.channel_bw_gbs", "16")
    run(explorer)
    found = explorer.compared()
    assert [(x.field, x.before, x.after) for x in found.machine] == [("cube.hbm.channel_bw_gbs", 32.0, 16.0)]
    assert found.latency.after > found.latency.before
    last, first = explorer.table()
    assert last["against_baseline"] == pytest.approx(found.latency.ratio)
    assert first["against_baseline"] == 1
    assert last["machine"] == "preset:small, cube.hbm.channel_bw_gbs=16"
    explorer.pin_as(None)
    assert explorer.table()[0]["against_baseline"] is None


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
    first = next(reason for reason in run(explorer).why if reason.fields)
    latency = explorer.result.latency_ns
    for field in (*first.fields, *first.together):
        factor = 0.5 if field.endswith("_ns") else 2
        explorer.form.set(field, f"{factor * float(explorer.form.text(field)):g}")
    assert explorer.form.valid
    run(explorer)
    assert explorer.result.latency_ns < latency - 0.4 * first.ns
    explorer.form.reset()
    explorer.form.set("cube.sram.bw_gbs", "256")
    run(explorer)
    assert explorer.result.latency_ns == latency


def test_auto_tells_why_it_chose(explorer):
    explorer.form.load("preset:default")
    explorer.choose("study ccl")
    state = run(explorer)
    assert state.outcome.checks == 1
    assert "lower bound" in state.outcome.shown.reason
    assert {"auto", state.outcome.shown.algorithm} <= set(explorer.work.parameters[0].options(explorer.form.machine))


def test_old_logs_are_let_go_and_the_baselines_stays(explorer, monkeypatch):
    monkeypatch.setattr(model, "KEPT_ROWS", 0)
    for _ in range(3):
        run(explorer)
        if len(explorer.history) == 1:
            explorer.pin()
    assert [entry.number for entry in explorer.kept()] == [1, 3]
    with pytest.raises(KernbenchError, match="run 2 is no longer kept"):
        explorer.result_of(explorer.history[1])
    assert len(explorer.table()) == 3


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
