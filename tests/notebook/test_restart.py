"""A kernel that is restarted during a live run leaves nothing behind, and what had finished is there again."""

from __future__ import annotations

import tempfile

import psutil
import pytest

from tests.notebook.served import LONG_S
from tests.repo import ROOT

jupyter_client = pytest.importorskip("jupyter_client")

BEGIN = """
from kernbench.notebook._model import Explorer
from tests.notebook import programs
explorer = Explorer("preset:small", [programs.endless])
explorer.choose("study gemm")
for name in "mkn":
    explorer.set(name, 64)
"""
FINISH = (
    BEGIN
    + """
assert explorer.run() and explorer.wait(60)
print(explorer.state.finished.outcome.made > 0, explorer.result.records.digest())
"""
)
LIVE = """
explorer.choose("endless")
assert explorer.run() and programs.started.wait(60)
print(explorer.state.status)
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    manager = jupyter_client.KernelManager(kernel_name="python3")
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=LONG_S)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def said(client, code):
    heard = []
    reply = client.execute_interactive(code, timeout=LONG_S, output_hook=heard.append)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(x["content"]["text"] for x in heard if x["msg_type"] == "stream").split()


@pytest.mark.slow
def test_a_restart_during_a_live_run_leaves_no_process_and_loses_no_result(kernel, tmp_path):
    manager, client = kernel
    found, digest = said(client, FINISH)
    assert found == "False"
    assert said(client, LIVE) == ["running"]
    old = psutil.Process(manager.provisioner.pid)
    family = [old, *old.children(recursive=True)]
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=LONG_S)
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert said(client, FINISH) == ["True", digest]
    assert sorted(x.name for x in (tmp_path / "cache").iterdir() if "-" not in x.name) == ["points.sqlite"]
