"""A real Dask scheduler with two workers on loopback: the same table, and a killed worker costs nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import kernbench as kb
from kernbench.errors import KernbenchError
from kernbench.points._keys import code_version
from tests.repo import ROOT
from tests.sweeps import studies

distributed = pytest.importorskip("distributed", reason="the extra kernbench[cluster] is not installed")

pytestmark = pytest.mark.slow
SMALL = "preset:small"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    where = folder / "scheduler.json"
    code_version.cache_clear()  # the workers read the files as they are now
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERNBENCH_CACHE": "off"}

    def start(*arguments):
        command = [sys.executable, "-m", "dask", *arguments, "--scheduler-file", str(where)]
        return subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    parts = [start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")]
    worker = ("worker", "--host", "127.0.0.1", "--nthreads", "1", "--nworkers", "1", "--no-dashboard")
    parts += [start(*worker) for _ in range(2)]
    deadline = time.monotonic() + 60
    while not where.is_file():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield json.loads(where.read_text())["address"]
    for part in reversed(parts):
        part.send_signal(signal.SIGINT)
    for part in parts:
        part.wait(timeout=120)  # a worker that has just been started again ends later on a busy host


@pytest.fixture
def client(address):
    with distributed.Client(address) as client:
        client.wait_for_workers(2, timeout=60)
        yield client


def table(study, axes, **options):
    options = {"cache": False, "progress": False} | options
    return kb.sweep(SMALL, study, axes, **options).table


def test_the_same_table_as_on_this_machine(address, client):
    axes = {"x": list(range(10)), "sip.cube_mesh.w": [1, 2]}
    here = table(studies.square, axes, workers=2)
    assert here.equals(table(studies.square, axes, scheduler=client))
    assert here.equals(table(studies.square, axes, scheduler=address))
    assert here.equals(table(studies.square, axes, workers=1))


@pytest.mark.parametrize("limits", [{}, {"time_limit_s": 60}])
def test_a_study_in_a_file_of_the_users_own_goes_along(client, tmp_path, monkeypatch, limits):
    (tmp_path / "only_here.py").write_text(
        "def helper(x):\n    return 3 * x\n\n\ndef study(machine, *, x: int):\n    return {'y': helper(x)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    got = table("only_here:study", {"x": [1, 2]}, scheduler=client, **limits)
    assert got["y"].tolist() == [3, 6], got["error"].tolist()


def test_points_that_fail_or_have_to_be_ended_are_recorded_as_on_this_machine(client):
    assert list(table(studies.hurts, {"x": [1, 2, 3]}, scheduler=client)["status"]) == ["ok", "error", "ok"]
    hang = {"parameters": {"how": "hang"}, "time_limit_s": 5}
    assert list(table(studies.hurts, {"x": [1, 2, 3]}, scheduler=client, **hang)["status"]) == [
        "ok",
        "time limit",
        "ok",
    ]


def test_a_worker_that_is_killed_costs_nothing(client, tmp_path):
    pids = list(client.run(os.getpid).values())
    killed = []

    def kill_one(progress):
        if progress.done == 5:
            os.kill(pids[0], signal.SIGKILL)
            killed.append(pids[0])

    notes = tmp_path / "notes"
    notes.mkdir()
    got = table(
        studies.slowly,
        {"x": list(range(20))},
        parameters={"notes": str(notes)},
        scheduler=client,
        folder=tmp_path / "sweep",
        progress=kill_one,
    )
    assert killed
    assert list(got["status"]) == ["ok"] * 20
    assert list(got["y"]) == list(range(20))


def test_workers_with_other_code_are_refused(client, monkeypatch):
    monkeypatch.setattr("kernbench.sweeps._runner.code_version", lambda: "another")
    with pytest.raises(KernbenchError, match="install the same kernbench on all workers"):
        table(studies.square, {"x": [1]}, scheduler=client)


def test_a_scheduler_that_is_not_there_is_said():
    with pytest.raises(KernbenchError, match=r"scheduler tcp://127.0.0.1:9: .*; start one with `dask scheduler`"):
        table(studies.square, {"x": [1]}, scheduler="tcp://127.0.0.1:9")
