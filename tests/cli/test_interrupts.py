"""Ctrl-C at a chosen moment of the real command: one line, exit status 1, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.repo import ROOT
from tests.slow import slow_after

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
# The real command: Python imports a `sitecustomize` before it.
SITE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Hook())
"""
# A command ends before an interrupt is raised again.
SLOWLY = "sys.argv =", "import kernbench._interrupts as i; i._RAISE_AGAIN_S = 2.0; sys.argv ="
SCRIPT = "import sys\nfrom kernbench.__main__ import main\nsys.exit(main())\n"
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
    slow_after(2, ["numpy", "kernbench.sim_engine.engine", "kernbench.cli.main", "click", "numpy._core.multiarray",
     "numpy.lib", "kernbench.triton_emu._runner"]),
)  # fmt: skip
def test_an_interrupt_while_modules_are_imported(tmp_path, name):
    done = interrupted(AT_IMPORT, name, RUN, tmp_path)
    assert [line for line in done.stderr.splitlines() if line.strip()] == ["error: interrupted"]
    assert done.returncode == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_interrupt_while_modules_are_imported_is_not_lost_where_the_command_ends_before_it_is_raised(tmp_path):
    done = interrupted(AT_IMPORT.replace(*SLOWLY), "kernbench.triton_emu._runner", RUN, tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: interrupted\n")


@pytest.mark.slow
def test_an_interrupt_in_a_finalizer_is_not_lost_where_the_command_ends_before_it_is_raised_again(tmp_path):
    lost = "class Lost:\n    def __del__(self):\n        signal.raise_signal(signal.SIGINT)\n"
    script = AT_CALL.replace("signal.raise_signal(signal.SIGINT)", "Lost()").replace("def watch", lost + "def watch")
    done = interrupted(script.replace(*SLOWLY), "run_bench", RUN, tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: interrupted\n")


@pytest.mark.parametrize("command", [["-m", "kernbench"], ["kernbench"]], ids=["module", "script"])
@pytest.mark.parametrize(
    "name",
    slow_after(
        1, ["typing", "__future__", "kernbench._engine_selection", "kernbench.__main__", "kernbench._interrupts"]
    ),
)
def test_an_interrupt_before_the_command_has_a_handler_ends_it_silently(tmp_path, command, name):
    (tmp_path / "sitecustomize.py").write_text(SITE.format(name=name))
    (tmp_path / "kernbench").write_text(SCRIPT)  # as pip writes it
    done = subprocess.run(
        [sys.executable, *command, "list"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout + done.stderr == ""
    assert done.returncode == -signal.SIGINT


def test_an_interrupt_stays_a_user_s_own_where_the_package_is_imported():
    code = "import signal; before = signal.getsignal(2); import kernbench; assert signal.getsignal(2) is before"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120, check=True)


@pytest.mark.parametrize(
    "name", slow_after(1, ["drain", "resolve_topology", "run_program", "__exit__", "run_bench", "__del__"])
)
def test_an_interrupt_while_it_runs(tmp_path, name):
    done = interrupted(AT_CALL, name, RUN, tmp_path)
    assert [line for line in done.stderr.splitlines() if line.strip()] in (["error: interrupted"], [])
    assert done.returncode == (1 if done.stderr else 0)
    assert not list(tmp_path.iterdir())
