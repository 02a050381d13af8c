"""Which engine simulates, and when built files are used: in a copy of the package with one module to compile."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from kernbench import _engine_selection
from tests.repo import NOTEBOOK_FOLDERS, PACKAGE, ROOT, files, notebooks

pytestmark = pytest.mark.slow

SHARE = Path("kernbench", "notebook", "share")
SAMPLE = Path("kernbench", "sample.py")
SOURCE = "class Sample:\n    def __init__(self):\n        self.n = 1\n"
DECLARED = "cdef class Sample:\n    cdef public int n\n"

# Prints the engine, and where the sample was loaded from.
WHICH = (
    "from kernbench import _engine_selection, sample; "
    "print(_engine_selection.engine(), 'py' if sample.__file__.endswith('.py') else 'built')"
)


def project(folder: Path) -> Path:
    """A project with setup.py, the selection of the engine, and one module with types."""
    package = folder / "kernbench"
    package.mkdir()
    shutil.copy(ROOT / "setup.py", folder)
    for name in ("__init__.py", "_names.py", Path(_engine_selection.__file__).name, "errors.py"):
        shutil.copy(ROOT / "kernbench" / name, package)
    (folder / SAMPLE).write_text(SOURCE)
    (folder / SAMPLE.with_suffix(".pxd")).write_text(DECLARED)
    (package / "__init__.pxd").touch()
    return folder


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in {_engine_selection.VARIABLE, "CC", "PYTHONPATH"}}
    env = {**kept, "CFLAGS": "-O0", **variables}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, check=False, capture_output=True, text=True)


def compiled(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "setup.py", "--quiet", "build_ext", "--inplace", **variables)


@pytest.fixture(scope="module")
def with_core(tmp_path_factory):
    folder = project(tmp_path_factory.mktemp("with_core"))
    done = compiled(folder)
    assert done.returncode == 0, done.stderr
    assert "compiling 1 of the 1 modules" in done.stderr
    return folder


@pytest.fixture
def copy(with_core, tmp_path):
    """A copy has other times of change, as an installed wheel has."""
    return Path(shutil.copytree(with_core, tmp_path / "copy"))


def test_a_fresh_core_is_used(copy):
    done = run(copy, "-c", WHICH)
    assert (done.stdout, done.stderr) == ("core built\n", "")


def test_the_definition_is_loaded_from_source_and_says_nothing(copy):
    done = run(copy, "-c", WHICH, KERNBENCH_ENGINE="definition")
    assert (done.stdout, done.stderr) == ("definition py\n", "")


def edit_source(folder):
    with (folder / SAMPLE).open("a") as file:
        file.write("# edited\n")
    os.utime(folder / SAMPLE, (0, 0))  # older than what was built, as a file from an archive may be


def edit_types(folder):
    (folder / SAMPLE.with_suffix(".pxd")).write_text("cdef class Sample:\n    cdef public long n\n")


def lose_built_file(folder):
    _engine_selection.built(folder / SAMPLE).unlink()


def lose_types(folder):
    (folder / SAMPLE.with_suffix(".pxd")).unlink()


def lose_record(folder):
    (folder / "kernbench" / _engine_selection.RECORD).unlink()


def interrupt_build(folder):
    record = folder / "kernbench" / _engine_selection.RECORD
    record.write_text("\n".join("- " + line.split(" ")[1] for line in record.read_text().splitlines()) + "\n")


BREAKS = (edit_source, edit_types, lose_built_file, lose_types, lose_record, interrupt_build)


@pytest.mark.parametrize("break_", BREAKS)
def test_a_core_that_does_not_match_its_sources_is_not_used(copy, break_):
    break_(copy)
    done = run(copy, "-c", WHICH)
    assert done.stdout == "definition py\n"
    assert done.stderr.count("\n") == 1
    assert "make core" in done.stderr


@pytest.mark.parametrize("break_", BREAKS)
def test_a_core_that_is_required_has_to_match_its_sources(copy, break_):
    break_(copy)
    done = run(copy, "-c", WHICH, KERNBENCH_ENGINE="core")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kernbench.errors.ConfigError: KERNBENCH_ENGINE=core: the compiled core ")
    assert "make core" in last


def test_the_warning_names_the_file_that_changed(copy):
    edit_source(copy)
    assert "kernbench/sample.py changed" in run(copy, "-c", WHICH).stderr


def test_an_unknown_engine_is_an_error(copy):
    done = run(copy, "-c", WHICH, KERNBENCH_ENGINE="fast")
    assert "KERNBENCH_ENGINE=fast: unknown engine; use core or definition" in done.stderr
    assert done.returncode == 1


def test_processes_of_a_run_use_its_engine_and_warn_once(copy):
    lose_record(copy)
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WHICH!r}], check=True)"
    done = run(copy, "-c", f"{WHICH}; {child}")
    assert done.stdout.split() == ["definition", "py"] * 2
    assert done.stderr.count("\n") == 1


def test_line_endings_are_no_change(copy):
    text = (copy / SAMPLE).read_bytes()
    (copy / SAMPLE).write_bytes(text.replace(b"\n", b"\r\n"))
    assert _engine_selection.fault(copy / "kernbench") == ""


def test_a_build_compiles_what_changed_and_removes_what_has_no_source(copy):
    assert compiled(copy).stderr == ""
    edit_source(copy)
    orphan = _engine_selection.built(copy / "kernbench" / "gone.py")
    orphan.touch()
    assert "compiling 1 of the 1 modules" in compiled(copy).stderr
    assert run(copy, "-c", WHICH).stdout == "core built\n"
    assert not orphan.exists()


def test_without_a_compiler_the_build_goes_on_without_the_core(tmp_path):
    folder = project(tmp_path)
    (folder / "bin").mkdir()
    offline = {"PATH": str(folder / "bin"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    done = compiled(folder, **offline)
    assert done.returncode == 0, done.stderr
    assert "no C compiler found: downloading" in done.stderr
    assert "the compiled core is left out: there is no C compiler, and none could be downloaded" in done.stderr
    assert run(folder, "-c", WHICH).stdout == "definition py\n"
    assert compiled(folder, KERNBENCH_ENGINE="core", **offline).returncode != 0


def test_no_core_is_built_for_the_definition(tmp_path):
    done = compiled(project(tmp_path), KERNBENCH_ENGINE="definition")
    assert (done.returncode, done.stderr) == (0, "")
    assert _engine_selection.read_record(tmp_path / "kernbench") == {}


def test_a_compiled_file_is_what_python_would_load_by_itself(copy):
    path = [str(copy / "kernbench")]
    usual = importlib.machinery.PathFinder.find_spec("kernbench.sample", path)
    ours = _engine_selection.SourceFinder("kernbench").find_spec("kernbench.sample", path)
    assert usual.origin == str(_engine_selection.built(copy / SAMPLE))
    assert ours.origin == str(copy / SAMPLE)
    assert _engine_selection.SourceFinder("kernbench").find_spec("other.sample", path) is None


def test_every_file_of_the_package_is_installed(tmp_path):
    stray = _engine_selection.built(PACKAGE / "stray.py")
    stray.touch()
    try:
        done = run(ROOT, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path))
    finally:
        stray.unlink()
    assert done.returncode == 0, done.stderr
    installed = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    ours = [path.relative_to(ROOT) for path in files()]
    shipped = {SHARE / path for path in ours if path.parts[0] in NOTEBOOK_FOLDERS and "output" not in path.parts}
    beside = {path for path in shipped if path.suffix in {".py", ".toml"} and "data" not in path.parts}
    assert installed == {path for path in ours if path.parts[0] == PACKAGE.name} | (shipped - beside)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """The command in an empty folder, from a wheel of this checkout in an environment with the packages it needs."""
    place = tmp_path_factory.mktemp("newcomer")
    wheel = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(ROOT)]
    done = run(place, *wheel, KERNBENCH_ENGINE="definition")
    assert done.returncode == 0, done.stderr
    assert run(place, "-m", "venv", "venv").returncode == 0
    bin_ = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
    needed = "\n".join(path for path in sys.path if path.endswith("-packages"))
    (site,) = (place / "venv").rglob("site-packages")
    (site / "needed.pth").write_text(needed)
    install = [bin_ / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *place.glob("*.whl")]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {_engine_selection.VARIABLE: "definition"}
    env |= {"KERNBENCH_CACHE": str(place / "cache"), "JUPYTER_DATA_DIR": str(place / "jupyter")}
    subprocess.run(install, env=env, check=True)
    (place / "empty").mkdir()

    def command(*args: str) -> subprocess.Popen[str]:
        line = [bin_ / "kernbench", *args]
        return subprocess.Popen(
            line, cwd=place / "empty", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return command


def made(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate()
    assert process.returncode == 0, text
    return text


def test_a_newcomer_without_a_checkout_makes_a_report_from_the_rows_of_the_wheel(newcomer):
    assert "  probe " in made(newcomer("list", "milestones"))
    kept, other = "all-pe0-write", "own-slice-read"  # 11 s to simulate; not kept, as it takes less than 2 s
    parameters = [f"cases=[{kept}, {other}]", "sizes=[1048576]"]
    wrote = made(newcomer("milestone", "probe", *(f"--param={text}" for text in parameters)))
    page = Path(wrote.splitlines()[-1].removeprefix("probe: wrote "))
    assert page.parts[-5:] == ("empty", "milestones", "output", "probe", "README.md")
    rows = json.loads(page.with_name("probe.json").read_text())["rows"]
    assert sorted(row["case"] for row in rows) == [kept, other]
    cached = json.loads(made(newcomer("cache", "--json")))
    assert [group["points"] for group in cached] == [1], "the kept one was simulated"
    refused = newcomer("milestone", "probe", "--store")
    assert "rows are stored in a checkout" in refused.communicate()[0]
    assert refused.returncode == 2


def test_a_newcomer_without_a_checkout_has_the_notebooks(newcomer):
    made(newcomer("new", "mine"))
    made(newcomer("run", "--machine", "mine/topology.yaml", "--bench", "gemm-single-pe"))
    with newcomer("lab", "--json", "--no-browser") as lab:
        try:
            told = "".join(takewhile(lambda line: "http://127.0.0.1:" not in line, lab.stdout))
        finally:
            lab.terminate()
    folder = Path(json.JSONDecoder().raw_decode(told)[0]["folder"])
    assert (folder.name, folder.parent.name) == ("lab", "empty")
    copies = {path.relative_to(folder) for path in folder.rglob("*.ipynb")}
    assert copies == {path.relative_to(ROOT) for path in notebooks()}
