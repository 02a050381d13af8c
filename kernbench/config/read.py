"""From a file or a mapping, a base and overrides to a validated configuration, or to all that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from kernbench.config.accepted import accepted
from kernbench.config.ccl import CclConfig
from kernbench.config.ccl_rules import broken as broken_ccl
from kernbench.config.ccl_rules import misfits
from kernbench.config.faults import Fault, dotted, found, key, model_at, unknown
from kernbench.config.files import default_ccl_path, load_yaml, parse_yaml, preset_path, presets, problem, read_yaml
from kernbench.config.rules import broken
from kernbench.config.schema import MachineConfig
from kernbench.config.values import Model, keys
from kernbench.errors import ConfigError, quote
from kernbench.registry import hint

BASE = "base"

_Config = TypeVar("_Config", bound=Model)


def read_machine(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, object] | Sequence[str] = ()
) -> MachineConfig:
    """Return the validated machine of a file, or of a mapping with a file's content."""
    draft = Draft.of(source, "machine")
    draft.rest_on_base()
    draft.override(overrides)
    return draft.validated(MachineConfig, lambda: load_yaml(preset_path("default")), broken)


def read_ccl(source: str | Path | Mapping[str, Any] | CclConfig, machine: MachineConfig | None = None) -> CclConfig:
    """Return the validated content of a ccl.yaml."""
    if isinstance(source, CclConfig):
        faults = [f"ccl: {fault.text}" for fault in (misfits(source, machine) if machine is not None else ())]
        if faults:
            raise ConfigError(faults)
        return source
    draft = Draft.of(source, "ccl")

    def example() -> dict[str, Any]:
        """Return the packaged file, with something right under every name that `source` has."""
        right: dict[str, Any] = load_yaml(default_ccl_path())
        known = right["algorithms"]
        given = draft.content.get("algorithms")
        if isinstance(given, dict):
            known.update({name: next(iter(known.values())) for name in given if name not in known})
        return right

    def rules(config: CclConfig) -> Iterator[Fault]:
        yield from broken_ccl(config)
        if machine is not None:
            yield from misfits(config, machine)

    return draft.validated(CclConfig, example, rules)


@dataclass
class Draft:
    """Content on its way to a configuration, and what is known to be wrong with it."""

    name: str
    content: dict[str, Any]
    faults: list[Fault] = field(default_factory=list)
    overridden: set[tuple[Any, ...]] = field(default_factory=set)
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, source: str | Path | Mapping[str, Any], name: str) -> Draft:
        """Return the draft of a file, or of a mapping, which messages call `name`."""
        if isinstance(source, Mapping):
            return cls(name, _plain(source))
        path = Path(source)
        content, doubles = read_yaml(path)
        if not isinstance(content, dict):
            what = {type(None): "is empty", list: "holds a list"}.get(type(content), "holds a single value")
            raise ConfigError(f"{path}: {what}; expected groups of keys, as in the packaged default")
        return cls(path.name, _plain(content), doubles)

    def rest_on_base(self) -> None:
        """Put the content over that of its base, if it names one."""
        if BASE not in self.content:
            return
        base = self.content.pop(BASE)
        if base not in presets():
            self.faults.append(Fault(f"{BASE} = {quote(base)} is not a preset; {hint(base, presets())}", ((BASE,),)))
            # The other faults are shown too: those of the keys that are there.
            base = "default"
        below = Draft.of(preset_path(base), base)
        below.rest_on_base()
        _merge(below.content, self.content)
        self.content = below.content

    def override(self, overrides: Mapping[str, object] | Sequence[str]) -> None:
        """Change values; the order does not matter, as a group is set before what is in it."""
        if isinstance(overrides, str):
            overrides = [overrides]
        pairs: list[tuple[Any, Any]] = list(
            overrides.items() if isinstance(overrides, Mapping) else self._pairs(overrides)
        )
        values: dict[tuple[str, ...], object] = {}
        for name, value in pairs:
            if not isinstance(name, str) or not all(name.split(".")):
                self.complaints.append(
                    f"override: {quote(name)} is not a path; join names by dots, as in sip.cube_mesh.w"
                )
            elif repr(values.setdefault(key(name), value)) != repr(value):  # nan is not equal to itself
                self.complaints.append(
                    f"override: {name} is set to {quote(values[key(name)])} and to {quote(value)}; keep one"
                )
        for path, value in sorted(values.items(), key=lambda pair: len(pair[0])):
            fault = _unknown_part(path)
            if fault is not None:
                self.complaints.append(f"override: {fault.text}")
                continue
            place: Any = self.content
            for part in path[:-1]:
                place = place.setdefault(part, {}) if isinstance(place, dict) else None
            if isinstance(place, dict):
                place[path[-1]] = _plain(value)
                self.overridden.add(path)

    def _pairs(self, texts: Iterable[Any]) -> Iterator[tuple[str, Any]]:
        for text in texts:
            path, equals, value = text.partition("=") if isinstance(text, str) else ("", "", "")
            if not equals or not path.strip():
                self.complaints.append(f"override: {quote(text)} must be path=value, as in sip.cube_mesh.w=2")
                continue
            try:
                content, doubles = parse_yaml(value)
            except yaml.YAMLError as error:
                self.complaints.append(
                    f"override: {quote(text)} has a value that {problem(error, 'correct it, or put it in quotes')}"
                )
                continue
            self.complaints += [f"override: {quote(text)}: {fault.text}" for fault in doubles]
            yield path.strip(), content

    def validated(
        self,
        model: type[_Config],
        example: Callable[[], Mapping[str, Any]],
        rules: Callable[[_Config], Iterable[Fault]],
    ) -> _Config:
        """Return the configuration."""
        config = accepted(model, self.content)
        if config is not None:
            wrong = list(rules(config))
        else:
            config, wrong = self._judged(model, example, rules)
        if not (wrong or self.faults or self.complaints):
            return config
        raise ConfigError(self.complaints + [self._line(fault) for fault in self._sorted(self.faults + wrong)])

    def _judged(
        self,
        model: type[_Config],
        example: Callable[[], Mapping[str, Any]],
        rules: Callable[[_Config], Iterable[Fault]],
    ) -> tuple[_Config, list[Fault]]:
        """Return the configuration and its faults; values that are wrong by themselves are the example's."""
        from pydantic import TypeAdapter, ValidationError

        validator = TypeAdapter(model)
        try:
            config = validator.validate_python(self.content)
            return config, list(rules(config))
        except ValidationError as error:
            right = example()
            wrong = found(model, error, right)
            # What is wrong by itself must not hide what is wrong between other keys.
            config = validator.validate_python(_mended(self.content, wrong, right))
            spoiled = [path for fault in wrong for path in fault.keys]
            return config, wrong + [fault for fault in rules(config) if not fault.touches(spoiled)]

    def _line(self, fault: Fault) -> str:
        return f"{'override' if fault.touches(self.overridden) else self.name}: {fault.text}"

    def _sorted(self, faults: list[Fault]) -> list[Fault]:
        order = {path: place for place, path in enumerate(_paths(self.content, ()))}

        def place(fault: Fault) -> int:
            path = fault.keys[0]
            while path not in order:
                path = path[:-1]
            return order[path]

        return sorted(faults, key=place)


def _unknown_part(path: tuple[str, ...]) -> Fault | None:
    """Return the fault of the first part of an override's path that leads nowhere, if there is one."""
    for depth, part in enumerate(path):
        here = path[: depth + 1]
        group = model_at(MachineConfig, path[:depth])
        if group is None:
            return Fault(f"{dotted(path)} is unknown; {dotted(path[:depth])} is a value, with no keys in it", (here,))
        if part not in keys(group):
            return unknown(here, group)
    return None


def _mended(content: dict[str, Any], wrong: list[Fault], example: Mapping[str, Any]) -> dict[str, Any]:
    """Return `content` with the values of `example` where it is wrong, and without what has no place there."""
    mended = deepcopy(content)
    for fault in wrong:
        place, right = mended, example
        for part in fault.keys[0]:
            known = part in right
            if known and isinstance(place.get(part), dict) and isinstance(right[part], Mapping):
                place, right = place[part], right[part]
                continue
            if known:
                place[part] = deepcopy(right[part])
            else:
                place.pop(part, None)
            break
    return mended


def _merge(into: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if isinstance(value, Mapping) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = value


def _plain(value: Any) -> Any:
    """Return a copy in which every mapping is a dict with names for keys."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return deepcopy(value)


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from _paths(inner, (*path, name))
