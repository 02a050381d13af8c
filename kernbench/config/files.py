"""Files of configuration: where they are, and what YAML they hold."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from kernbench.config.faults import Fault
from kernbench.config.parse import parse_yaml, problem
from kernbench.config.safe import MOST_YAML, read_text
from kernbench.errors import ConfigError
from kernbench.registry import hint

_PRESETS = Path(str(files("kernbench") / "presets"))


def read_yaml(path: Path) -> tuple[Any, list[Fault]]:
    """Return the content of a YAML file, and a fault for each key that stands twice.

    Raises
    ------
    ConfigError
        If it cannot be read, or is no YAML.
    """
    try:
        return parse_yaml(read_text(path, MOST_YAML, "give the path of a YAML file"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1} " if mark else ""
        raise ConfigError(f"{path}: {place}{problem(error, 'mend the syntax there')}") from error


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises
    ------
    ConfigError
        If it cannot be read, is no YAML, or has a key twice.
    """
    content, doubles = read_yaml(path)
    if doubles:
        raise ConfigError([f"{path.name}: {fault.text}" for fault in doubles])
    return content


def find(name: str = "topology.yaml", start: str | Path | None = None) -> Path:
    """Return the nearest file called `name`, upward from a folder, else the packaged default.

    Parameters
    ----------
    name : str
        `topology.yaml` or `ccl.yaml`.
    start : str or Path, optional
        The folder to begin in; the working directory if not given.
    """
    folder = Path.cwd() if start is None else Path(start).resolve()
    for place in (folder, *folder.parents):
        # Beside a notebook of its name it holds a milestone's parameters.
        if (place / name).is_file() and not (place / name).with_suffix(".ipynb").is_file():
            return place / name
    return default_ccl_path() if name == "ccl.yaml" else preset_path("default")


def presets() -> list[str]:
    """Return the names of the packaged machines, sorted."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml") if path.stem != "ccl")


def preset_path(name: str) -> Path:
    """Return the file of a packaged machine.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if name not in presets():
        raise ConfigError(f"preset:{name} is unknown; {hint(name, presets())}")
    return _PRESETS / f"{name}.yaml"


def default_ccl_path() -> Path:
    """Return the packaged ccl.yaml."""
    return _PRESETS / "ccl.yaml"
