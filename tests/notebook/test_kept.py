"""The explorer and the cache of points: what is there is shown at once, what was run is there for others."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing

import pytest

import kernbench as kb
from kernbench.analysis._records import Records
from kernbench.config import default_ccl_path
from kernbench.errors import HostError, KernbenchError
from kernbench.notebook import _job as job
from kernbench.notebook import _model as model
from kernbench.notebook import explore
from kernbench.notebook._model import CANCELLED, DONE, RUNNING, Explorer
from kernbench.points._cache import default_cache
from kernbench.studies.gemm import GemmStudy
from tests.notebook import programs

LONG_S = 60
SIZE = {"m": 64, "k": 64, "n": 64}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path / "cache"))
    return default_cache()


def explorer(work="study gemm", **values):
    made = Explorer("preset:small", [programs.copies, programs.endless])
    made.choose(work)
    for name, value in (SIZE | values if work == "study gemm" else values).items():
        assert made.set(name, value)
    return made


def run(explorer, **how):
    """Run, and return the state at the end and those of the way there."""
    seen = []
    explorer.on_change.append(lambda: seen.append(explorer.state))
    assert explorer.run(**how)
    assert explorer.wait(LONG_S)
    explorer.on_change.clear()
    return explorer.state, seen


def kept_points(cache):
    return sum(group.points for group in cache.groups())


def test_a_finished_run_is_shown_at_once_by_the_next_explorer():
    first, _ = run(explorer())
    there = explorer()
    state, seen = run(there)
    assert state.status == DONE
    assert state.message.startswith("from the cache: simulated 20")
    assert all(other.frame is None for other in seen if other.status == RUNNING), "nothing was simulated"
    assert there.result.records.digest() == first.finished.result.records.digest()
    assert [repr(x) for x in state.finished.why] == [repr(x) for x in first.finished.why]
    assert (state.finished.outcome.checks, state.finished.outcome.seconds) == (1, first.finished.outcome.seconds)
    assert there.history[0].name == there.result.name


def test_what_is_shown_as_done_is_in_the_cache(cache):
    made, kept_when_done = explorer(), []

    def look():
        if made.state.status == DONE:
            kept_when_done.append(kept_points(cache))

    made.on_change.append(look)
    assert made.run()
    assert made.wait(LONG_S)
    assert set(kept_when_done) == {1}


def test_what_is_in_the_cache_can_be_run_again():
    run(explorer())
    there = explorer()
    assert not there.current
    state, _ = run(there)
    assert state.message.startswith("from the cache")
    assert there.current
    state, _ = run(there, again=there.current)
    assert state.message == ""
    there.set("m", 96)
    assert not there.current


@pytest.mark.slow
def test_the_button_says_whether_it_simulates():
    view = explore("preset:small", programs.copies)
    view.explorer.auto = False
    view.workload.workload.value = "study gemm"
    for name in "mkn":
        view.workload.inputs[name].control.value = "64"
    button, found = view.bar.run, []
    for label in ("Run", "Run again"):
        assert button.description == label
        button.click()
        assert view.explorer.wait(LONG_S)
        found.append(view.explorer.state.finished.outcome.made > 0)
    for size in ("96", "64"):
        view.workload.inputs["m"].control.value = size
        assert button.description == "Run"
        button.click()
        assert view.explorer.wait(LONG_S)
        found.append(view.explorer.state.finished.outcome.made > 0)
    assert found == [False, False, False, True]
    assert "from the cache" in view.bar.state.value


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.set("m", 96),
        lambda x: x.set_option("data", False),
        lambda x: x.set_option("log", "operation"),
        lambda x: x.form.set("cube.hbm.channel_bw_gbs", "16"),
    ],
)
def test_another_point_is_not_found(change):
    run(explorer())
    other = explorer()
    change(other)
    assert run(other)[0].message == ""


@pytest.mark.slow
def test_a_cancelled_or_failed_run_is_not_kept(cache):
    other = explorer("endless")
    programs.started.clear()
    assert other.run()
    assert programs.started.wait(LONG_S)
    other.cancel()
    assert other.wait(LONG_S)
    assert other.state.status == CANCELLED
    run(explorer(m=2048, k=2048, n=2048, staging="load_load"))
    stopped = explorer()
    stopped.on_change.append(stopped.cancel)
    assert stopped.run()
    assert stopped.wait(LONG_S)
    assert stopped.state.status == CANCELLED
    assert kept_points(cache) == 0


def test_a_sweep_finds_the_points_of_the_explorer(cache):
    run(explorer())
    found = []
    swept = kb.sweep(
        "preset:small",
        GemmStudy().program,
        {"m": [64, 96]},
        parameters={"k": 64, "n": 64, "log": "tile", "data": True},
        workers=1,
        progress=lambda now: found.append(now.found),
    )
    assert found[-1] == 1
    alone = kb.sweep(
        "preset:small",
        GemmStudy().program,
        {"m": [64, 96]},
        parameters={"k": 64, "n": 64, "log": "tile", "data": True},
        workers=1,
        progress=False,
        cache=False,
    )
    assert swept.table.equals(alone.table)


def test_the_explorer_tells_the_time_of_a_sweeps_point_and_runs_it_for_its_log():
    swept = kb.sweep(
        "preset:small", GemmStudy().program, {"m": [64]}, parameters={"k": 64, "n": 64}, workers=1, progress=False
    )
    there = explorer()
    there.set_option("log", "operation")
    there.set_option("data", False)
    _, seen = run(there)
    (ns,) = swept.table["run_ns"]
    messages = {other.message for other in seen if other.status == RUNNING}
    assert f"in the cache: {ns:,.1f} ns; its log is not there, so it is simulated for that" in messages
    assert there.result.latency_ns == ns
    assert run(explorer())[0].message == ""
    there = explorer()
    there.set_option("log", "operation")
    there.set_option("data", False)
    assert "from the cache" in run(there)[0].message


def test_of_a_long_run_only_the_row_is_kept(cache, monkeypatch):
    monkeypatch.setattr(job, "LOG_ROWS", 3)
    run(explorer())
    assert kept_points(cache) == 1
    assert run(explorer())[0].message == ""


@pytest.mark.slow
def test_what_a_program_shows_is_shown_again():
    def auto():
        made = Explorer("preset:default")
        made.choose("study ccl")
        return run(made)[0]

    first, again = auto(), auto()
    assert "from the cache" in again.message
    assert again.finished.outcome.shown._repr_html_() == first.finished.outcome.shown._repr_html_()


def test_what_is_not_known_to_be_the_same_is_run_each_time(cache, tmp_path, monkeypatch):
    run(explorer("copies"))
    own = explorer()
    own.form.set("cube.noc.router.impl", "kernbench.components.builtin.transit:Router")
    run(own)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ccl.yaml").write_text(default_ccl_path().read_text() + "\n# mine\n")
    run(explorer())
    assert kept_points(cache) == 0


def test_a_finished_bench_is_found_with_the_same_parameters():
    first, _ = run(explorer("bench matmul", m=32))
    again, _ = run(explorer("bench matmul", m=32))
    assert again.message.startswith("from the cache")
    assert again.finished.result.records.digest() == first.finished.result.records.digest()
    other, _ = run(explorer("bench matmul", m=64))
    assert other.message == ""
    assert other.finished.result.latency_ns > first.finished.result.latency_ns


def test_a_log_that_cannot_be_read_is_run_again(cache, monkeypatch):
    run(explorer())
    monkeypatch.setattr(job, "written", lambda *_: b"no log")
    run(explorer(), again=True)
    with pytest.warns(RuntimeWarning, match="damaged points are deleted"):
        state, _ = run(explorer())
    assert (state.status, state.message) == (DONE, "")
    assert kept_points(cache) == 1


@pytest.mark.parametrize(
    "column", ["log = zeroblob(9)", "log = substr(log, 1, 2000)", "log = substr(log, 1, 900) || substr(log, 899)",
               "notes = '{'", "notes = '[]'", "notes = '{}'", """notes = '{"shown": null, "checks": "1"}'""",
               """notes = json_set(notes, '$.more', 1)""", "notes = json_set(notes, '$.events', 'many')"]
)  # fmt: skip
def test_a_damaged_entry_is_deleted_and_run_again(cache, column):
    run(explorer())
    with closing(sqlite3.connect(cache.path, isolation_level=None)) as database:
        database.execute(f"UPDATE logs SET {column}")
    with pytest.warns(RuntimeWarning, match="damaged points are deleted; they are run again") as warned:
        state, _ = run(explorer())
    assert (state.status, state.message) == (DONE, "")
    assert len(warned) == 1
    assert run(explorer())[0].message.startswith("from the cache")


def test_without_a_cache_it_runs(monkeypatch):
    monkeypatch.setenv("KERNBENCH_CACHE", "off")
    for _ in range(2):
        assert run(explorer())[0].message == ""


def test_a_log_that_finds_no_room_costs_no_result(monkeypatch):
    def full(records, path):
        raise HostError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr(Records, "save", full)
    with pytest.warns(RuntimeWarning, match="the log of a run is not kept: .*No space left on device"):
        state, _ = run(explorer())
    assert state.status == DONE


def test_a_log_that_finds_no_room_to_be_read_is_simulated(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    run(explorer())
    monkeypatch.setattr(job, "_unpacked", full)
    with pytest.warns(RuntimeWarning, match="the log of a run in the cache is not read: .*No space left on device"):
        state, _ = run(explorer())
    assert (state.status, state.message) == (DONE, "")


def test_logs_go_with_their_points(cache):
    run(explorer())
    assert cache.groups()[0].nbytes > 5000
    assert cache.prune() == 1
    assert run(explorer())[0].message == ""


def restored():
    """Return an explorer of a new process: with nothing but the cache."""
    made = Explorer("preset:small", [programs.copies])
    made.restore()
    return made


def test_the_history_of_an_earlier_process_is_there_and_its_results_are_read_on_demand(monkeypatch):
    first = explorer()
    first.form.set("cube.hbm.channel_bw_gbs", "16")
    run(first)
    small = explorer(m=96)
    run(small)
    reads = []
    monkeypatch.setattr(job, "_unpacked", lambda log, unpack=job._unpacked: reads.append(1) or unpack(log))
    there = restored()
    assert [(x.title, x.latency_ns, x.seconds) for x in there.history] == [
        (x.title, x.latency_ns, x.seconds) for x in (first.history[0], small.history[0])
    ]
    assert [x.machine.hash for x in there.history] == [first.form.machine.hash, small.form.machine.hash]
    assert there.history[0].overrides == ("cube.hbm.channel_bw_gbs=16",)
    assert there.with_results() == there.history
    assert not reads
    assert there.result_of(there.history[0]).records.digest() == first.result.records.digest()
    assert len(reads) == 1
    assert there.compared(*there.history).latency.before == small.history[0].latency_ns
    there.choose("copies")
    run(there)
    assert [x.number for x in there.history] == [1, 2, 3]
    monkeypatch.setattr(model, "AUTO_RUN_S", LONG_S)
    there.choose("study gemm")
    assert there.runs_by_itself, "how long it took is known, too"


def test_names_and_notes_are_in_the_next_process_and_after_the_run_is_simulated_again():
    first = explorer()
    run(first)
    first.annotate(1, {"label": "baseline"})
    first.annotate(1, {"note": "of the paper"})
    there = restored()
    (entry,) = there.history
    assert (entry.label, entry.note) == ("baseline", "of the paper")
    assert there.result_of(entry).latency_ns == entry.latency_ns, "the log is there, too"
    run(first, again=True)
    assert [(x.number, x.label) for x in first.history] == [(1, "baseline"), (2, "baseline")]
    first.annotate(2, {"label": ""})
    assert [(x.label, x.note) for x in (*first.history, *restored().history)] == [("", "of the paper")] * 3


def test_visitors_of_a_page_name_runs_for_themselves(monkeypatch):
    run(explorer())
    page = explorer()
    run(page)
    monkeypatch.setattr(page.form, "page", True)
    page.annotate(1, {"label": "mine"})
    assert page.history[0].label == "mine"
    assert restored().history[0].label == ""


def test_runs_are_deleted_from_history_and_cache(cache):
    one = explorer()
    run(one)
    one.set("m", 96)
    run(one)
    one.baseline = one.history[0]
    one.delete(one.history[0])
    assert [x.values["m"] for x in one.history] == [96]
    assert one.baseline is None
    assert [x.values["m"] for x in restored().history] == [96]
    one.delete()
    assert not one.history
    assert not restored().history
    assert kept_points(cache) == 0


def test_the_history_is_bounded(monkeypatch):
    monkeypatch.setattr(model, "HISTORY", 2)
    one = explorer()
    for m in (64, 96, 128):
        one.set("m", m)
        run(one)
    assert [x.values["m"] for x in one.history] == [96, 128]
    assert [x.values["m"] for x in restored().history] == [96, 128]


def test_a_run_without_its_log_is_in_the_history_without_a_result(monkeypatch):
    monkeypatch.setattr(job, "LOG_ROWS", 3)
    run(explorer())
    there = restored()
    assert [x.values["m"] for x in there.history] == [64]
    assert not there.with_results()
    with pytest.raises(KernbenchError, match="no longer kept"):
        there.result_of(there.history[0])


@pytest.mark.parametrize(
    "column",
    [
        "notes = '{}'",
        "notes = json_set(notes, '$.run', 1)",
        "notes = json_set(notes, '$.run.spec', 1)",
        "notes = json_remove(notes, '$.run.options')",
    ],
)
def test_an_entry_that_tells_nothing_of_its_run_is_left_out(cache, column):
    run(explorer())
    with closing(sqlite3.connect(cache.path, isolation_level=None)) as database:
        database.execute(f"UPDATE logs SET {column}")
    assert not restored().history
