"""The files of this checkout, for the tests that read the project itself."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "kernbench"
NOTEBOOK_FOLDERS = ("notebooks", "milestones")
_CODE = {".py", ".pyx", ".pxd"}
_TEXT = _CODE | {".ipynb", ".md", ".toml", ".yaml", ".yml", ".cfg", ".txt", ".lock", ".json", ".csv", ".svg", ""}


@cache
def files() -> tuple[Path, ...]:
    """Every file that is, or is about to be, under version control."""
    # The owner of a checkout inside a container is often somebody else; git refuses that unless told.
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(p for n in sorted(set(names.split("\0"))) if n and (p := ROOT / n).is_file())


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_files() -> list[Path]:
    return [p for p in files() if p.suffix in _TEXT]


def python_files(folder: Path) -> list[Path]:
    return [p for p in files() if p.suffix == ".py" and p.is_relative_to(folder)]


def notebooks(*folders: str) -> list[Path]:
    wanted = [ROOT / f for f in folders or NOTEBOOK_FOLDERS]
    return [p for p in files() if p.suffix == ".ipynb" and p.parent in wanted]
