"""Milestones: parameterized notebooks, executed by papermill, that write a study's report."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from kernbench import _engine_selection
from kernbench._registry import hint
from kernbench.analysis.compare import machine_changes
from kernbench.config import load_yaml
from kernbench.config._files import damaged, read_json, write_text
from kernbench.errors import ConfigError, InterruptedRun, MissingModuleError
from kernbench.points._cache import CACHE_VARIABLE, FINISHED, LOCK, OFF, entries
from kernbench.points._keys import code_version, only_ours
from kernbench.sweeps._runner import BAR, FOUND, TO_DO, Progress, left_s, show_bar, worker_count
from kernbench.topology.builder import Machine, resolve_topology

_REPORT = "report.ipynb"
KEPT = "kept"  # folder of rows that take long, each with what made it: reused for as long as that is unchanged
KEPT_S = 1.0
PACKAGED = Path(__file__).resolve().parents[1] / "notebook" / "share" / "milestones"  # in a wheel
# What a milestone needs besides the package, to simulate: its report can be drawn again without.
_NEEDS = dict.fromkeys(("models", "serving"), ("torch", "triton", "transformers"))


class MilestoneReport(NamedTuple):
    """The folder of a report, whether it was up to date (`found`), and how many slow rows are not stored."""

    folder: Path
    found: bool
    unkept: int = 0


def folder() -> Path:
    """Folder `milestones` of the notebooks: nearest upward, else next to the package or in it (a wheel)."""
    here = Path.cwd().resolve()
    for place in (here, *here.parents, Path(__file__).resolve().parents[2]):
        if any((place / "milestones").glob("*.ipynb")):
            return place / "milestones"
    if PACKAGED.is_dir():
        return PACKAGED
    raise ConfigError(f"no folder milestones with notebooks in or above {here}; run this in a checkout of kernbench")


def reports() -> Path:
    """Folder `output` beside the notebooks; for those of the package, below the working directory."""
    return (folder() if folder() != PACKAGED else Path.cwd() / "milestones") / "output"


def titles() -> dict[str, str]:
    found = {}
    for path in sorted(folder().glob("*.ipynb")):
        first = read_cells(path)[0]
        found[path.stem.replace("_", "-")] = first.splitlines()[0].lstrip("# ")
    return found


def lacking(name: str) -> str:
    """Return the packages that a milestone needs and lacks, and how to install them; empty if none."""
    missing = [module for module in _NEEDS.get(name, ()) if find_spec(module) is None]
    if not missing:
        return ""
    install = f"make frontends, then build/frontends/bin/python -m kernbench milestone {name}"
    if folder() == PACKAGED:
        install = "pip install 'kernbench[torch,frontends]'"
    return f"needs {', '.join(missing)}: {install}"


def shortest_first(*, again: bool = False) -> list[str]:
    """Order all milestones so that the first report is soon: by the time of the slow rows to simulate.

    Rows that are kept and made of the present code are reused, unless `again`. Among equals, those with the smallest
    rows in milestones/output are first.
    """

    def work(name: str) -> tuple[float, int]:
        stem = name.replace("-", "_")
        slow = [(entry["seconds"], entry["made_of"]) for entry in entries(folder() / KEPT / f"{stem}.jsonl")]
        changed = (seconds for seconds, made in slow if again or not _is_current(made))
        rows = reports() / stem / f"{stem}.json"
        return sum(changed), rows.stat().st_size if rows.is_file() else 0

    return sorted(titles(), key=work)


def _is_current(made: Mapping[str, Any]) -> bool:
    return made["code"] == code_version(made["study"].partition(":")[0])


def known_name(name: str) -> str:
    kebab = name.replace("_", "-")
    if kebab not in titles():
        raise ConfigError(f"milestone {name!r} is unknown; {hint(name, titles())}")
    return kebab


def run(
    name: str,
    *,
    topology: Machine | str | None = None,
    overrides: Sequence[str] = (),
    workers: int | None = None,
    rerender: bool = False,
    output: Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    again: bool = False,
    store: bool = False,
) -> MilestoneReport:
    """Execute a milestone with its full parameters, unless its report is up to date.

    `topology` and `overrides` are as for `kb.load`, `workers` is by default one per core, `output` NAME in `reports`.
    `parameters` of the notebook override those of milestones/NAME.yaml; files are relative to the working directory.
    `rerender` only draws again from the results that are there (also with MILESTONE_FAST=1). `again` executes it in any
    case, simulates every point (neither the cache nor kept rows are used, only what an interrupted run of this kind has
    finished), and writes the rows that took long to milestones/kept. `store` writes them, too, but simulates only those
    that no earlier run has simulated.

    Raises ConfigError if the milestone, a parameter or the machine is wrong, before anything is written;
    MissingModuleError if simulations need a package that is not installed; InterruptedRun.
    """
    import papermill

    stem = known_name(name).replace("-", "_")
    notebook = folder() / f"{stem}.ipynb"
    usual = (reports() / stem).resolve()
    out = (output or usual).resolve()
    if store and folder() == PACKAGED:
        raise ConfigError(f"{stem}: rows are stored in a checkout of kernbench; leave out --store")
    whole = out == usual and folder() != PACKAGED and not (parameters or overrides or topology)
    if store and (rerender or not whole):
        raise ConfigError(f"{stem}: kept rows are those of the whole report; leave out all other options, or --store")
    path = notebook.with_suffix(".yaml")
    full = load_yaml(path) if path.is_file() else {}
    if not isinstance(full, dict):
        raise ConfigError(f"{path.name}: must be a mapping of the notebook's parameters")
    given = {key: _from_here(value) for key, value in (parameters or {}).items()}
    work = out.with_name(f".{out.name}.unfinished")
    machine = resolve_topology(topology, overrides)
    source, changes = as_parameters(machine) if isinstance(topology, Machine) else (machine.source, list(overrides))
    values = {
        **full,
        **given,
        "workers": worker_count(workers),
        "rerender": rerender or os.environ.get("MILESTONE_FAST") == "1",
        "topology": source if source.startswith("preset:") else str(Path(source).resolve()),
        "overrides": changes,
        "output": str(work),
    }
    known = papermill.inspect_notebook(str(notebook))  # of unknown parameters it only warns
    unknown = [key for key in values if key not in known]
    if unknown:
        raise ConfigError([f"{stem}: parameter {key} is unknown; known: {', '.join(known)}" for key in unknown])
    _recover(out)
    followed = {name: value for name, value in values.items() if name not in {"output", "workers", "rerender"}}
    # The behaviour of a Python file may change without its text.
    code = any(str(value).endswith(".py") for value in given.values())
    key = None if code else made_of(notebook, followed, machine)
    if is_made(out, key) and not (again or store or values["rerender"]):
        return MilestoneReport(out, found=True)
    if not values["rerender"] and (needed := lacking(known_name(name))):
        raise MissingModuleError(f"{stem}: {needed}")
    kept = folder() / KEPT / f"{stem}.jsonl"
    if kept.is_file() and not again and not (work / FINISHED).exists():
        work.mkdir(parents=True, exist_ok=True)
        shutil.copy(kept, work / FINISHED)
    if values["rerender"] and out.is_dir():
        shutil.copytree(out, work, dirs_exist_ok=True)
    with _without_cache() if again else contextlib.nullcontext():
        _execute(notebook, work, values)
    unkept = _unkept(work / FINISHED, kept, write=again or store) if whole and not values["rerender"] else 0
    for passing in (FINISHED, LOCK):
        (work / passing).unlink(missing_ok=True)
    if not values["rerender"]:  # which draws results of whatever code made them
        stamp(work, key)
    publish(work, out, foreign(out) if out != usual and out.is_dir() else ())
    return MilestoneReport(out, found=False, unkept=unkept)


def as_parameters(machine: Machine) -> tuple[str, list[str]]:
    """Return the notebook's parameters: a file or preset, and the values that differ from it."""
    source = "preset:default" if machine.source == "mapping" else machine.source
    changes = machine_changes(resolve_topology(source).spec, machine.spec)
    return source, [f"{change.field}={json.dumps(change.after)}" for change in changes]


def publish(work: Path, out: Path, keep: Sequence[Path] = ()) -> None:
    """Move a finished report to its place atomically: an interrupt leaves a complete report there.

    Files of `out` to `keep` stay, unless the new report has one of the same name.
    """
    former = out.with_name(f".{out.name}.former")
    _recover(out)
    if out.exists():
        for path in keep:
            target = work / path.relative_to(out)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        out.rename(former)
    work.rename(out)
    shutil.rmtree(former, ignore_errors=True)


def _recover(out: Path) -> None:
    """Put back the former report after an interrupted move."""
    former = out.with_name(f".{out.name}.former")
    if former.exists() and not out.exists():
        former.rename(out)
    elif former.exists():
        shutil.rmtree(former)


@contextlib.contextmanager
def _without_cache() -> Iterator[None]:
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = OFF
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE_VARIABLE]
        else:
            os.environ[CACHE_VARIABLE] = before


def _unkept(finished: Path, kept: Path, *, write: bool) -> int:
    """Count the slow rows that are not kept, if kept ones are stale; 0 after a `write` of the slow rows."""
    lines, former = entries(finished), {entry["key"] for entry in entries(kept)}
    points = {key for line in lines if TO_DO in line for key in (*line[TO_DO], *line[FOUND])}
    found = [line for line in lines if line.get("seconds", -1) >= KEPT_S and line["key"] in points]
    slow = {line["key"]: line for line in found if _is_current(line["made_of"])}  # an interrupted run may be older
    if not write:
        return 0 if former and former <= points else len(slow.keys() - former)
    if slow:
        kept.parent.mkdir(exist_ok=True)
        write_text(kept, "".join(f"{json.dumps(entry)}\n" for _, entry in sorted(slow.items())))
    else:
        kept.unlink(missing_ok=True)
    return 0


def _from_here(value: object) -> object:
    """Absolute path of a file, since the notebook runs in another folder."""
    return str(Path(value).resolve()) if isinstance(value, str) and value and Path(value).is_file() else value


def _execute(notebook: Path, out: Path, values: dict[str, Any]) -> None:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    with TemporaryDirectory() as aside, _progress(notebook.stem, out / FINISHED):
        report = Path(aside) / _REPORT
        # This warns here if there is no core, not in the notebook, whose process then has an engine selected.
        _engine_selection.engine()
        try:
            papermill.execute_notebook(
                str(notebook),
                str(report),
                values,
                cwd=str(notebook.parent),
                progress_bar=False,
                kernel_name="python3",
                # The kernel's warnings would appear between the lines of progress.
                extra_arguments=["--log-level=ERROR"],
            )
        except (PapermillExecutionError, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt) or error.ename == "KeyboardInterrupt":
                logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # it would print the cell's whole traceback
                raise InterruptedRun(
                    f"{notebook.stem}: interrupted; finished points are kept in {out}; run the same command to continue"
                ) from error
            kept = f"; finished points are kept, the notebook up to there is {out / _REPORT}" if _begun(out) else ""
            raise ConfigError(
                f"{notebook.stem}: cell {error.exec_count} failed: {error.ename}: {error.evalue}{kept}"
            ) from error
        finally:
            if _begun(out) and report.is_file():
                shutil.move(report, out / _REPORT)
            elif not _begun(out):
                shutil.rmtree(out, ignore_errors=True)


def _begun(out: Path) -> bool:
    """Whether the study has written anything: input that it refuses before leaves nothing behind."""
    if not out.is_dir():
        return False
    if any(path.name not in (LOCK, FINISHED) for path in out.iterdir()):
        return True
    return any(TO_DO in entry for entry in entries(out / FINISHED))


@contextlib.contextmanager
def _progress(name: str, store: Path) -> Iterator[None]:
    from tqdm import tqdm

    stop = threading.Event()
    seen = store.stat().st_size if store.is_file() else 0

    def watch() -> None:
        with tqdm(desc=name, bar_format=BAR) as bar:
            running, runs, began = True, 0, 0.0
            while running:
                running = not stop.wait(0.5)
                if store.is_file() and store.stat().st_size > seen:
                    now = progress(store)
                    if now.runs != runs:
                        runs, began = now.runs, time.monotonic()
                    elapsed_s = time.monotonic() - began
                    left = left_s(elapsed_s, now.done, now.work, now.left)
                    show_bar(bar, Progress(now.done, now.total, 0, 0, elapsed_s, left))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()


STAMP = "made_of.json"
_APART = (STAMP, "running.lock")
_DRAWN_BY = ("altair", "numpy", "pandas", "vl-convert-python")


def read_cells(notebook: Path) -> list[str]:
    what, remedy = "notebook", "restore it from version control"
    content = read_json(notebook, what, remedy)
    with damaged(notebook, what, remedy):
        return ["".join(cell["source"]) for cell in content["cells"]]


def made_of(notebook: Path, values: Mapping[str, Any], machine: Machine) -> str | None:
    """Hash of everything that a report depends on; None if that is unknown, for code from elsewhere."""
    if not only_ours(machine):
        return None
    costs = machine.config.cost.to_spec()
    drawn_by = [version(name) for name in _DRAWN_BY]
    data = _files(notebook.with_suffix("") / "data")
    parts = [read_cells(notebook), values, machine.hash, costs, code_version(), drawn_by, data]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def is_made(folder: Path, key: str | None) -> bool:
    """Whether `folder` holds the report of `key`, with every file as it was written."""
    made = _read(folder)
    return key is not None and made.get("key") == key and made.get("files") == _files(folder)


def foreign(folder: Path) -> list[Path]:
    """Files of a folder that no report wrote, by its stamp."""
    written = _read(folder).get("files")
    written = written if isinstance(written, dict) else {}
    return [folder / name for name in _files(folder) if name not in written]


def stamp(folder: Path, key: str | None) -> None:
    text = json.dumps({"key": key, "files": _files(folder)}, indent=1)
    write_text(folder / STAMP, text + "\n")


def _read(folder: Path) -> dict[str, Any]:
    """Stamp of a folder; empty if missing or damaged."""
    try:
        return read_json(folder / STAMP, "stamp", "run the study again")
    except ConfigError:
        return {}


def _files(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in _APART)
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


class _Finished(NamedTuple):
    """Points of the latest of `runs`: how many are finished, how many it had to run, and their work."""

    runs: int
    done: int
    total: int
    work: float
    left: float


def progress(store: Path) -> _Finished:
    runs, todo, ran = 0, dict[str, float](), set[str]()
    for entry in entries(store):
        if TO_DO in entry:
            runs, todo, ran = runs + 1, entry[TO_DO], set()
        else:
            ran.add(str(entry.get("key")))
    done = [work for key, work in todo.items() if key in ran]
    return _Finished(runs, len(done), len(todo), sum(done), sum(todo.values()) - sum(done))
