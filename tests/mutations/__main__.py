"""Apply each patch in this folder to a copy of the project, rebuild the core, and see whether a test notices.

A patch says in its first lines which rule of docs/model.md it breaks, or which module, and which tests must fail:

    Rule: M4.5
    Change: a first write turns
    Tests: tests/oracle tests/components/test_hbm_ctrl.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from kernbench import _engine_selection
from tests.mutations.patches import PATCHES, Patch
from tests.repo import ROOT, files

_LIMIT_S = 600


@click.command()
@click.argument("names", nargs=-1)
def main(names: tuple[str, ...]) -> None:
    """Run the patches whose names contain one of NAMES, or all; exit with 1 if one survives."""
    chosen = [patch for patch in PATCHES if not names or any(name in patch.name for name in names)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kernbench"
        _copy(copy)
        _build(copy)
        # A test that fails anyway notices nothing.
        if failed := _failing(copy, tuple(sorted({test for patch in chosen for test in patch.tests}))):
            raise click.ClickException(f"without a mutation, too, fails {failed}")
        survivors = [patch for patch in chosen if not _killed(copy, patch)]
    click.echo(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations killed")
    raise SystemExit(1 if survivors else 0)


def _killed(copy: Path, patch: Patch) -> bool:
    began = time.monotonic()
    _git_apply(copy, patch)
    _build(copy)
    killer = _failing(copy, patch.tests)
    _git_apply(copy, patch, "--reverse")
    outcome = f"killed by {killer}" if killer else "SURVIVED"
    click.echo(f"{patch.name} ({patch.rule}, {patch.change}): {outcome}, {time.monotonic() - began:.0f} s")
    return bool(killer)


def _copy(to: Path) -> None:
    """Copy the sources, and what is built of them."""
    compiled = [
        _engine_selection.PACKAGE / _engine_selection.RECORD,
        *map(_engine_selection.built, _engine_selection.modules().values()),
    ]
    for path in (*files(), *(path for path in compiled if path.is_file())):
        target = to / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def _build(copy: Path) -> None:
    # Compiled quickly, not for speed.
    environment = {**os.environ, "CFLAGS": "-O0", "KERNBENCH_ENGINE": "core"}
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=copy, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"the core does not build:\n{done.stdout}{done.stderr}")


def _git_apply(copy: Path, patch: Patch, *options: str) -> None:
    command = ["git", "apply", "--unidiff-zero", *options, str(patch.path)]
    done = subprocess.run(command, cwd=copy, check=False, capture_output=True, text=True)
    if done.returncode:
        raise click.ClickException(f"{patch.name} does not apply: {done.stderr}")


def _failing(copy: Path, tests: tuple[str, ...]) -> str:
    """Return the first test that fails, "" if none does."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "KERNBENCH_ENGINE": "core"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, check=False, capture_output=True, text=True, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return f"a test that does not end within {_LIMIT_S} s"
    if done.returncode == 0:
        return ""
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (
        failed[0]
        if failed
        else f"pytest, which ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    )


if __name__ == "__main__":
    main()
