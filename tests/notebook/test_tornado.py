"""The tornado that fills in behind: predicted at once, simulated one by one, and never in the user's way."""

from __future__ import annotations

import threading

import pytest

import kernbench as kb
from kernbench.notebook import _model as model
from kernbench.notebook._model import DONE, Explorer
from kernbench.notebook._tornado import TornadoRuns, message
from kernbench.points._cache import default_cache
from kernbench.studies import gemm
from tests.notebook import programs

LONG_S = 60
# The last two come with a faster slice, and cannot be slower than it.
FEW = {
    "cube.hbm.channel_bw_gbs": 32, "system.pcie.latency_ns": 100, "cube.hbm.bw_gbs": 256, "cube.pe.pe_dma.bw_gbs": 256,
}  # fmt: skip


@pytest.fixture
def explorer(monkeypatch, tmp_path):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr("kernbench.analysis._what_if._predictions.COVERED", (*FEW,))
    explorer = Explorer("preset:small", [programs.copies, programs.endless])
    explorer.choose("study gemm")
    for name in "mkn":
        explorer.set(name, 64)
    assert explorer.run()
    assert explorer.wait(LONG_S)
    yield explorer
    explorer.cancel()
    explorer.stop_behind()
    assert explorer.wait(LONG_S)


class Heard(list):
    """What is reported; `nth(n)` waits for that many."""

    def __init__(self):
        self._more = threading.Condition()

    def __call__(self, progress):
        with self._more:
            self.append(progress)
            self._more.notify_all()

    def nth(self, n):
        with self._more:
            assert self._more.wait_for(lambda: len(self) >= n, LONG_S)
        return self[n - 1]


def fill(explorer, report):
    finished = explorer.state.finished
    return TornadoRuns(explorer, finished.entry, finished.result, report)


def bars(progress):
    return {(field, i): bar for field, found in progress.found.rows for i, bar in enumerate(found) if bar}


def test_bars_are_predicted_at_once_and_simulated_one_by_one(explorer):
    heard = Heard()
    assert fill(explorer, heard).wait(LONG_S)
    assert all(bar.exact_ns is None for bar in bars(heard[0]).values())
    simulated = [sum(bar.exact_ns is not None for bar in bars(x).values()) for x in heard]
    assert simulated == [*range(len(bars(heard[0])) + 1), len(bars(heard[0]))]
    assert [x.done for x in heard] == simulated
    assert not heard[-1].running
    for (field, i), bar in bars(heard[-1]).items():
        changes = {x.field: x.new for x in bar.changes}
        assert changes[field] == 2 ** (2 * i - 1) * FEW[field]
        alone = gemm.run(kb.load("preset:small", changes), (64, 64, 64), "ref_ref")
        assert bar.exact_ns == alone.latency_ns
        assert bar.error == pytest.approx(bar.predicted_ns / alone.latency_ns - 1)
    assert explorer.state.status == DONE
    assert len(explorer.history) == 1


def test_what_the_cache_has_is_not_simulated_again(explorer, monkeypatch):
    assert fill(explorer, lambda _: None).wait(LONG_S)
    monkeypatch.setattr(model, "RunJob", None)
    heard = Heard()
    assert fill(explorer, heard).wait(LONG_S)
    assert heard[-1].done == heard[-1].total == len(bars(heard[-1]))


def test_a_restarted_explorer_does_not_list_what_ran_behind(explorer):
    assert fill(explorer, lambda _: None).wait(LONG_S)
    assert len(default_cache().noted(100)) == 1


def test_a_run_of_the_user_goes_first(explorer, monkeypatch):
    """One that is under way behind it is ended, and begins again afterwards."""
    entry, result = explorer.state.finished.entry, explorer.result
    explorer.choose("endless")
    endless = explorer.workload
    asked = []
    latency = explorer.latency_behind

    def behind(each):
        asked.append(each)
        return latency(model.replace(each, workload=endless, values={}) if len(asked) == 1 else each)

    monkeypatch.setattr(explorer, "latency_behind", behind)
    programs.started.clear()
    heard = Heard()
    runs = TornadoRuns(explorer, entry, result, heard)
    assert programs.started.wait(LONG_S)
    assert not explorer.obstacle
    explorer.choose("copies")
    assert explorer.run()
    assert explorer.wait(LONG_S)
    assert explorer.state.status == DONE
    assert explorer.state.finished.outcome.printed == "copying\n"
    assert runs.wait(LONG_S)
    assert heard[-1].done == heard[-1].total
    assert asked[0].machine is asked[1].machine


def test_it_stops_within_a_run(explorer, monkeypatch):
    entry, result = explorer.state.finished.entry, explorer.result
    explorer.choose("endless")
    programs.started.clear()
    heard = Heard()
    runs = TornadoRuns(explorer, model.replace(entry, workload=explorer.workload, values={}), result, heard)
    assert programs.started.wait(LONG_S)
    runs.stop()
    assert runs.wait(LONG_S)
    assert (heard[-1].done, heard[-1].running, heard[-1].error) == (0, False, "")


def test_a_run_that_fails_leaves_predictions_and_says_why(explorer):
    entry, result = explorer.state.finished.entry, explorer.result
    explorer.choose("copies")
    failing = model.replace(entry, workload=explorer.workload, values={"fail": True})
    heard = Heard()
    assert TornadoRuns(explorer, failing, result, heard).wait(LONG_S)
    assert "as asked for" in heard[-1].error
    assert not heard[-1].running
    assert all(bar.exact_ns is None for bar in bars(heard[-1]).values())


def test_the_view_learns_which_bars_are_simulated_and_the_largest_error(explorer):
    heard = Heard()
    assert fill(explorer, heard).wait(LONG_S)
    spec = explorer.form.machine.spec
    first, last = message(heard[0], spec), message(heard[-1], spec)
    assert {x for row in first["rows"] for x in row["exact"]} == {None}
    assert first["largest"] is None
    for row in last["rows"]:
        assert [x is None for x in row["exact"]] == [x is None for x in row["predicted"]]
    assert last["largest"] == max(abs(bar.error) for bar in bars(heard[-1]).values())
    assert (last["running"], last["error"]) == (False, "")
