"""Files of configuration: where they are, and what YAML they hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from kernbench.config.faults import Fault, dotted
from kernbench.errors import ConfigError
from kernbench.registry import hint

_PRESETS = Path(str(files("kernbench") / "presets"))


class _Loader(yaml.SafeLoader):
    """YAML, with 1e3 a number as in YAML 1.2 and in every editor."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def parse_yaml(text: str) -> tuple[Any, list[Fault]]:
    """Return the content of `text`, and a fault for each key that stands twice.

    Raises
    ------
    yaml.YAMLError
        If it is no YAML.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, []
        return loader.construct_document(node), list(_doubles(node, (), set()))
    finally:
        loader.dispose()


def _doubles(node: yaml.Node, path: tuple[Any, ...], visited: set[int]) -> Iterator[Fault]:
    if id(node) in visited:  # an alias
        return
    visited.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for place, item in enumerate(node.value):
            yield from _doubles(item, (*path, place), visited)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if isinstance(key_node, yaml.ScalarNode):
                here = (*path, key)
                if key in lines:
                    yield Fault(f"{dotted(here)} stands twice, in lines {lines[key]} and {line}; keep one", (here,))
                lines.setdefault(key, line)
                yield from _doubles(value_node, here, visited)


def read_yaml(path: Path) -> tuple[Any, list[Fault]]:
    """Return the content of a YAML file, and a fault for each key that stands twice.

    Raises
    ------
    ConfigError
        If it cannot be read, or is no YAML.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give the path of a YAML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text at byte {error.start}; save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1} " if mark else ""
        problem = getattr(error, "problem", None) or error
        raise ConfigError(f"{path}: {place}is no YAML: {problem}; mend the syntax there") from error


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
        if (place / name).is_file():
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
