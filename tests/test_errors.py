"""Errors are also instances of the builtin that has their meaning."""

from __future__ import annotations

import ast
import builtins
import inspect

import pytest

import kernbench as kb
from kernbench import errors
from kernbench.cli.main import main
from kernbench.errors import KernbenchError
from kernbench.points._cache import Cache, PointStore
from kernbench.studies.probe import ProbeStudy
from kernbench.studies.study import Report, read_results
from kernbench.sweeps._plan import read_plan
from kernbench.tp import parallel_state
from tests.repo import ROOT
from tests.sweeps import studies


def test_every_error_has_the_meaning_of_a_builtin():
    found = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, KernbenchError)]
    assert len(found) > 10
    known = {cls for _, cls in inspect.getmembers(builtins, inspect.isclass)}
    for cls in found:
        if cls is not KernbenchError:
            assert (set(cls.__mro__) & known) - {object, BaseException, Exception}, cls


def test_the_table_in_the_docstring_is_the_tree():
    for _, cls in inspect.getmembers(errors, inspect.isclass):
        if cls is not KernbenchError:
            line = next(line for line in errors.__doc__.splitlines() if f"+-- {cls.__name__}" in line)
            own = [base.__name__ for base in cls.__bases__ if base.__module__ == "builtins"]
            assert all(name in line for name in own), line


def test_an_indivisible_size_is_a_value_error():
    with pytest.raises(ValueError, match="world of 6 ranks is not divisible by 4"):
        kb.tp.parallel_state.data_size(6, {"tp": 4})


def test_a_bad_order_is_a_value_error():
    with pytest.raises(ValueError, match="'xp' is unknown"):
        parallel_state.check_order("tp-xp", {"tp": 2})


# What only a mistake in the engine itself can cause.
INTERNAL = {"kernbench/components/builtin/pe_ipcq.py"}


def test_no_error_is_without_the_meaning_of_a_builtin():
    def makes_one(path):
        calls = (x for x in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(x, ast.Call))
        return any(isinstance(call.func, ast.Name) and call.func.id == "KernbenchError" for call in calls)

    found = {path for path in (ROOT / "kernbench").rglob("*.py") if makes_one(path)}
    assert {path.relative_to(ROOT).as_posix() for path in found} == INTERNAL


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    for read in (kb.load, kb.read, read_results):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            read(tmp_path / "nowhere.yaml")


def test_an_unknown_chart_is_a_value_error():
    report = Report(ProbeStudy(), [], kb.load("preset:small"), {})
    with pytest.raises(ValueError, match="chart 'nothing' is unknown"):
        report.chart("nothing")


def test_what_the_host_refuses_is_an_os_error(tmp_path):
    path = tmp_path / "points.sqlite"
    path.write_text("no database" * 1000)
    with pytest.raises(OSError, match=r"points\.sqlite: cannot be used as the cache"):
        Cache(tmp_path).groups()


def test_a_folder_in_use_is_a_runtime_error(tmp_path):
    with PointStore(tmp_path), pytest.raises(RuntimeError, match="another run is writing"):
        kb.sweep("preset:small", studies.square, {"x": [1]}, folder=tmp_path, progress=False)


def test_a_kernels_error_is_a_runtime_error():
    def kernel(x, *, tl):
        tl.load(x + 4096, shape=(4,))

    with kb.session("preset:small") as torch:
        x = torch.zeros(4, dtype=torch.float16, device="ahbm")
        torch.launch("outside", kernel, x)
        with pytest.raises(IndexError) as caught:
            torch.ahbm.synchronize()
    assert isinstance(caught.value, RuntimeError)


NAME = "x\x1b]0;title\x07\x1b[2J\u202e"
SHOWN = r"x\x1b]0;title\x07\x1b[2J\u202e"


def test_control_characters_of_names_are_escaped_in_every_error(tmp_path):
    def kernel(x, *, tl):
        tl.load(x + 4096, shape=(4,))

    def launched():
        with kb.session("preset:small") as torch:
            torch.launch(NAME, kernel, torch.zeros(4, dtype=torch.float16, device="ahbm", name=NAME))
            torch.ahbm.synchronize()

    machine, plan = tmp_path / "topology.yaml", tmp_path / "plan.yaml"
    escaped = NAME.encode("unicode_escape").decode()
    machine.write_text(f'base: small\n"{escaped}": 1\ncube: {{ucie: {{port_ns: "{escaped}"}}}}\n')
    plan.write_text(f'study: "{escaped}"\naxes: {{k: [64]}}\n')
    calls = (
        launched,
        lambda: kb.load(machine),
        lambda: kb.load("preset:small", {NAME: 1}),
        lambda: kb.load(f"preset:{NAME}"),
        lambda: kb.load(tmp_path / NAME),
        lambda: read_plan(plan),
        lambda: kb.read(tmp_path / NAME),
    )
    for call in calls:
        with pytest.raises(KernbenchError) as caught:
            call()
        message = str(caught.value)
        assert SHOWN in message.replace("\\\\", "\\"), message
        assert message.replace("\n", "").isprintable()


def test_the_command_line_prints_no_control_characters_of_a_file(tmp_path, capsys):
    def kernel(x, *, tl):
        tl.store(x, tl.load(x, shape=(4,)) + 1)

    with kb.session("preset:small") as torch:
        torch.launch(NAME, kernel, torch.zeros(4, dtype=torch.float16, device="ahbm"))
    path = str(torch.result.save(tmp_path / "run.npz"))
    assert main(["compare", path, path]) == 0
    assert main(["compare", path, f"{path}{NAME}"]) == 2
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert SHOWN in text
        assert text.replace("\n", "").isprintable()
