"""Reading machine files: YAML or a mapping, presets, overrides, and all faults at once."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from kernbench.config.faults import dotted, faults, model_at, unknown
from kernbench.config.rules import broken
from kernbench.config.schema import MachineConfig
from kernbench.errors import ConfigError

_PRESETS = Path(str(files("kernbench") / "presets"))
_BASE = "base"


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in one mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"key {key!r} stands twice (lines {seen[key]} and {line}); remove one",
                    key_node.start_mark,
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


def load_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises
    ------
    ConfigError
        If it cannot be read or is no YAML.
    """
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506  a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give the path of a YAML file") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark else ""
        raise ConfigError(f"{path}:{line} is no YAML: {getattr(error, 'problem', error)}") from error


def find(name: str = "topology.yaml", start: str | Path | None = None) -> Path:
    """Return the nearest file called `name` upward from `start` (the working directory), else the packaged default."""
    folder = Path(start or Path.cwd()).resolve()
    for place in (folder, *folder.parents):
        if (place / name).is_file():
            return place / name
    return default_ccl_path() if name == "ccl.yaml" else preset_path("default")


def presets() -> list[str]:
    """Return the names of the packaged machines."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml") if path.stem != "ccl")


def preset_path(name: str) -> Path:
    """Return the file of a packaged machine.

    Raises
    ------
    ConfigError
        If there is none of that name.
    """
    if name not in presets():
        near = get_close_matches(name, presets(), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"preset:{name} is unknown; {hint}known: {', '.join(presets())}")
    return _PRESETS / f"{name}.yaml"


def default_ccl_path() -> Path:
    """Return the packaged ccl.yaml."""
    return _PRESETS / "ccl.yaml"


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of machine files, for editors."""
    return MachineConfig.model_json_schema()


def read_machine(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, object] | Sequence[str] = ()
) -> MachineConfig:
    """Return the validated machine of a file, or of a mapping with a file's content.

    Parameters
    ----------
    source
        A path or a mapping. A file that begins with `base: NAME` states only what differs from that preset.
    overrides
        `{"sip.cube_mesh.w": 2}` or `["sip.cube_mesh.w=2"]`; values of the latter are YAML.

    Raises
    ------
    ConfigError
        With every fault, one a line: file, key, value, what was expected.
    """
    name, content = ("machine", copy.deepcopy(dict(source))) if isinstance(source, Mapping) else _content(Path(source))
    wrong = _override(content, overrides)
    try:
        config = MachineConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(wrong + faults(name, MachineConfig, error)) from None
    wrong += [f"{name}: {line}" for line in broken(config)]
    if wrong:
        raise ConfigError(wrong)
    return config


def _content(path: Path) -> tuple[str, dict[str, Any]]:
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path.name}: must be a mapping of keys, found {type(content).__name__}")
    base = content.pop(_BASE, None)
    if base is None:
        return path.name, content
    if not isinstance(base, str):
        raise ConfigError(f"{path.name}: base = {base!r} must name a preset; known: {', '.join(presets())}")
    merged = _content(preset_path(base))[1]
    _merge(merged, content)
    return path.name, merged


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _override(content: dict[str, Any], overrides: Mapping[str, object] | Sequence[str]) -> list[str]:
    """Change `content`; return what is wrong with the overrides themselves."""
    wrong = []
    pairs = overrides.items() if isinstance(overrides, Mapping) else [_pair(text) for text in overrides]
    for path, value in pairs:
        parts = tuple(path.split("."))
        parent = model_at(MachineConfig, parts[:-1])
        if parent is None:
            # Name the first part that leads nowhere.
            depth = next(i for i in range(len(parts)) if model_at(MachineConfig, parts[: i + 1]) is None)
            parent, parts = model_at(MachineConfig, parts[:depth]), parts[: depth + 1]
        assert parent is not None
        if parts[-1] not in parent.model_fields or dotted(parts) != path:
            wrong.append(f"override {path}: {dotted(parts)} {unknown(parts[-1], list(parent.model_fields))}")
            continue
        place = content
        for part in parts[:-1]:
            place = place.setdefault(part, {})
        place[parts[-1]] = value
    return wrong


def _pair(text: str) -> tuple[str, Any]:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ConfigError(f"override {text!r} must be path=value, as in sip.cube_mesh.w=2")
    try:
        return path.strip(), yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {text!r}: the value is no YAML ({getattr(error, 'problem', error)})") from error
