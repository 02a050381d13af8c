"""Keys tell apart what may differ, and nothing else."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from pathlib import Path

import pytest

import kernbench as kb
from kernbench import _engine_selection
from kernbench.config import default_ccl_path
from kernbench.points import _keys as keys
from kernbench.points._keys import code_version, key_of, study_name, study_version, sweep_key
from kernbench.studies.probe import ProbeStudy
from kernbench.sweeps._plan import run_study
from tests.sweeps import studies


def test_keys_tell_points_apart():
    key = key_of("study", "1", "machine", {"a": 1, "b": 2})
    assert key == key_of("study", "1", "machine", {"b": 2, "a": 1})
    others = [
        key_of("other", "1", "machine", {"a": 1, "b": 2}),
        key_of("study", "2", "machine", {"a": 1, "b": 2}),
        key_of("study", "1", "another", {"a": 1, "b": 2}),
        key_of("study", "1", "machine", {"a": 1, "b": 3}),
    ]
    assert len({key, *others}) == 5


def test_built_files_are_no_code_and_sources_of_the_core_are(tmp_path, monkeypatch):
    package = tmp_path / "kernbench"
    (package / "sweeps").mkdir(parents=True)
    monkeypatch.setattr(keys, "__file__", str(package / "sweeps" / "keys.py"))

    def now() -> str:
        code_version.cache_clear()
        return code_version()

    empty = now()
    for built in (_engine_selection.SUFFIX, ".c", ".built", ".pyd"):
        (package / f"core{built}").write_text("built")
    assert now() == empty
    versions = {empty}
    for source in (".pyx", ".pxd"):
        (package / f"core{source}").write_text("source")
        versions.add(now())
    assert len(versions) == 3
    code_version.cache_clear()


def test_what_decides_the_rows_of_a_study_is_its_code_and_nothing_else(tmp_path, monkeypatch):
    package = tmp_path / "kernbench"
    monkeypatch.setattr(keys, "__file__", str(package / "sweeps" / "keys.py"))
    imports = "from kernbench.studies import work\nfrom kernbench.studies.own_report import draw\n"
    decide = {
        "units.py": "", "analysis/why.py": "",
        "sim_engine/_core.pyx": "", "presets/small.yaml": "", "studies/data/shapes.csv": "",
        "studies/own.py": f"{imports}from kernbench.studies.study import Study\n"
        "from kernbench.studies._page import cell\n",
        "studies/work.py": "import kernbench.studies.cases\nfrom kernbench.sweeps._measure import area\n"
        "from kernbench.sweeps._plan import make_plan\nfrom kernbench.torch._models import Calls\n",
        "studies/cases.py": "", "sweeps/_measure.py": "",
        "torch/_models.py": "from kernbench.triton._translate import x\n", "triton/_translate.py": "",
    }  # fmt: skip
    others = (
        "__init__.py",
        "_engine_selection.py",
        "compat.py",
        "ccl/__init__.py",
        "viz/charts.py",
        "torch/_program.py",
        "cli/main.py",
        "sweeps/_plan.py",
        "studies/own_report.py",
        "studies/study.py",
        "studies/_page.py",
        "studies/another.py",
        "analysis/_what_if/_predictions.py",
    )
    for name, text in {**decide, **dict.fromkeys(others, "")}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)

    def now() -> str:
        code_version.cache_clear()
        return code_version("kernbench.studies.own")

    version = now()
    for name in others:
        (package / name).write_text("changed = 1")
        assert now() == version, name
    for name, text in decide.items():
        (package / name).write_text(f"{text}changed = 1")
        assert now() != version, name
        version = now()
    code_version.cache_clear()


def test_a_study_of_the_package_has_its_version_and_another_its_own_as_well():
    assert study_version(run_study) == code_version()
    assert study_version(partial(run_study)) == code_version()
    assert study_name(partial(studies.square, x=1)) == "tests.sweeps.studies:square"
    assert study_name(ProbeStudy().simulate) == "kernbench.studies.probe:ProbeStudy.simulate"
    assert study_version(ProbeStudy().simulate) == code_version("kernbench.studies.probe") != code_version()
    assert study_version(studies.square).startswith(code_version() + "+")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Modules of a user: a study, and a component, each with modules that they import."""
    files = {
        "own_study.py": "import numpy\nfrom own_package import kernels\n\ndef study(machine):\n    return {}\n",
        "own_package/__init__.py": "", "own_package/kernels.py": "from . import tables\n",
        "own_package/tables.py": "", "own_package/unused.py": "",
        "own_part.py": "import own_latency\nclass Slow: ...\n", "own_latency.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda name: (tmp_path / name).write_text(files[name] + "changed = 1\n")
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_the_modules_that_a_users_study_imports_decide_its_rows(own):
    study = importlib.import_module("own_study").study
    version = study_version(study)
    own("own_package/unused.py")
    assert study_version(study) == version
    for name in ("own_package/tables.py", "own_package/kernels.py", "own_package/__init__.py", "own_study.py"):
        own(name)
        assert study_version(study) != version, name
        version = study_version(study)


def test_the_code_of_a_users_component_is_in_the_key_and_is_not_run(own):
    machine = kb.load("preset:small", {"cube.noc.router.impl": "own_part:Slow"})
    assert "own_part" not in sys.modules
    key = sweep_key("s", "v", machine, {})
    for name in ("own_latency.py", "own_part.py"):
        own(name)
        assert sweep_key("s", "v", machine, {}) != key, name
        key = sweep_key("s", "v", machine, {})
    own("own_study.py")
    assert sweep_key("s", "v", machine, {}) == key
    assert "own_part" not in sys.modules


def test_a_study_of_a_notebook_is_known_by_what_it_does_and_uses():
    def written(body: str, scale: int):
        names = {"__name__": "__main__", "scale": scale}
        exec(f"def study(machine, *, x):\n    return {{'y': {body}}}", names)
        return names["study"]

    version = study_version(written("x * scale", 2))
    assert version == study_version(written("x * scale", 2))
    assert version != study_version(written("x + scale", 2))
    assert version != study_version(written("x * scale", 3))


def test_what_a_study_is_given_beforehand_is_part_of_it():
    versions = {study_version(partial(studies.square, y=y)) for y in (1, 2)} | {study_version(studies.square)}
    assert len(versions) == 3


def test_a_study_made_by_a_function_counts_with_what_it_uses():
    assert study_version(studies.scaled(2)) == study_version(studies.scaled(2)) != study_version(studies.scaled(3))


def test_another_ccl_yaml_gives_other_results(tmp_path, monkeypatch):
    version = study_version(studies.square)
    monkeypatch.chdir(tmp_path)
    assert study_version(studies.square) == version, "the packaged one"
    (tmp_path / "ccl.yaml").write_text(default_ccl_path().read_text() + "\n# mine\n")
    assert study_version(studies.square) != version


PROGRAM = """<algo name="pair" ngpus="2" coll="allreduce" inplace="1" nchunksperloop="1">
<gpu id="0" i_chunks="1"><tb id="0" send="1" recv="1">
  <step s="0" type="s" srcoff="0"/><step s="1" type="r" dstoff="0"/></tb></gpu>
<gpu id="1" i_chunks="1"><tb id="0" send="0" recv="0">
  <step s="0" type="rrcs" srcoff="0" dstoff="0"/></tb></gpu>
</algo>"""


def test_an_msccl_program_and_what_runs_it_count_where_ccl_yaml_names_one(tmp_path, monkeypatch):
    study = ProbeStudy().simulate
    monkeypatch.chdir(tmp_path)
    package = study_version(study)
    assert not any(keys._decides_rows(Path(path)) for path in keys._MSCCL)

    program, runs = tmp_path / "pair.xml", tmp_path / "runs.py"
    program.write_text(PROGRAM)
    runs.write_text("a = 1")
    monkeypatch.setattr(keys, "_MSCCL", {runs})
    (tmp_path / "ccl.yaml").write_text(default_ccl_path().read_text() + "  pair:\n    module: pair.xml\n")
    named = study_version(study)
    runs.write_text("a = 2")
    mended = study_version(study)
    program.write_text(PROGRAM + "\n")
    assert len({package, named, mended, study_version(study)}) == 4


def test_what_runs_msccl_programs_exists():
    root = Path(keys.__file__).parents[1]
    assert all((root / path).is_file() for path in keys._MSCCL)
