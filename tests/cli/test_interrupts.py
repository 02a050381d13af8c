"""Ctrl-C at a chosen moment of the real command: one line, exit status 1, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.repo import ROOT

# An import hook sends the interrupt while a module is imported; a trace function, when a function is entered.
AT_IMPORT = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Hook())
sys.argv = ["kernbench", *{args!r}]
runpy.run_module("kernbench", run_name="__main__", alter_sys=True)
"""
AT_CALL = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
def watch(frame, event, arg):
    if frame.f_code.co_name == {name!r} and "kernbench" in frame.f_code.co_filename:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)
sys.setprofile(watch)
sys.argv = ["kernbench", *{args!r}]
runpy.run_module("kernbench", run_name="__main__", alter_sys=True)
"""
RUN = ["run", "--topology", "preset:small", "--bench", "gemm-single-pe", "--verify-data"]


def interrupted(script, name, args, folder):
    return subprocess.run(
        [sys.executable, "-c", script.format(name=name, args=args)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "KERNBENCH_CACHE": "off"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "name",
    ["kernbench.cli.main", "click", "numpy", "numpy._core.multiarray", "numpy.lib", "kernbench.sim_engine.engine",
     "kernbench.triton_emu.runner"],
)  # fmt: skip
def test_an_interrupt_while_modules_are_imported(tmp_path, name):
    done = interrupted(AT_IMPORT, name, RUN, tmp_path)
    assert [line for line in done.stderr.splitlines() if line.strip()] == ["error: interrupted"]
    assert done.returncode == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["resolve_topology", "drain", "run_program", "__exit__", "run_bench", "__del__"])
def test_an_interrupt_while_it_runs(tmp_path, name):
    done = interrupted(AT_CALL, name, RUN, tmp_path)
    assert [line for line in done.stderr.splitlines() if line.strip()] in (["error: interrupted"], [])
    assert done.returncode == (1 if done.stderr else 0)
    assert not list(tmp_path.iterdir())
