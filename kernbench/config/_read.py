"""Reads a file or a mapping, with base and overrides, into a validated configuration, or reports all of its faults."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast, get_args, get_origin

from pydantic_core import SchemaValidator, ValidationError

from kernbench._registry import hint
from kernbench.config._ccl import CclConfig, ccl_faults, ccl_misfits, complete_programs, fill_in
from kernbench.config._files import (
    complete_table,
    default_ccl_path,
    load_yaml,
    preset_path,
    presets,
    read_yaml,
)
from kernbench.config._kinds import (
    EXPECTED,
    Fault,
    KeyPath,
    Model,
    core_schema,
    dotted,
    keys,
    model_at,
    unit_of,
    unknown,
)
from kernbench.config._overrides import override, plain
from kernbench.config._rules import machine_faults
from kernbench.config._schema import MachineConfig
from kernbench.errors import ConfigError, quote

_BASE = "base"
NEW_FILES = "the complete file that `kernbench new DIR` writes"
_LONGEST_VALUE = 60

_Config = TypeVar("_Config", bound=Model)


_VALIDATORS: dict[type[Model], SchemaValidator] = {}


def _validator(model: type[Model]) -> SchemaValidator:
    if model not in _VALIDATORS:
        _VALIDATORS[model] = SchemaValidator(cast("Any", core_schema(model)))
    return _VALIDATORS[model]


def read_machine(
    source: str | Path | Mapping[str, Any], overrides: Mapping[str, object] | Sequence[str] = ()
) -> MachineConfig:
    draft = Draft.of(source, "machine")
    draft.rest_on_base()
    draft.override(overrides)
    complete_table(draft.content, Path())
    return draft.machine()


def read_ccl(source: str | Path | Mapping[str, Any] | CclConfig, machine: MachineConfig | None = None) -> CclConfig:
    """Return the validated content of a ccl.yaml, completed from the packaged one."""
    if isinstance(source, CclConfig):
        faults = [f"ccl: {fault.text}" for fault in (ccl_misfits(source, machine) if machine is not None else ())]
        if faults:
            raise ConfigError(faults)
        return source
    draft = Draft.of(source, "ccl")
    complete_programs(draft.content, Path() if isinstance(source, Mapping) else Path(source).parent)
    for note in fill_in(draft.content, load_yaml(default_ccl_path())):
        warnings.warn(f"{draft.name}: {note}", UserWarning, stacklevel=2)

    def example() -> dict[str, Any]:
        """Return the packaged file, with a valid entry under every name that `source` has."""
        right: dict[str, Any] = load_yaml(default_ccl_path())
        known = right["algorithms"]
        given = draft.content.get("algorithms")
        if isinstance(given, dict):
            known.update({name: next(iter(known.values())) for name in given if name not in known})
        return right

    def rules(config: CclConfig) -> Iterator[Fault]:
        yield from ccl_faults(config)
        if machine is not None:
            yield from ccl_misfits(config, machine)

    return draft.validated(CclConfig, example, rules)


@dataclass
class Draft:
    """The content of a configuration before validation, and its faults so far."""

    name: str
    content: dict[str, Any]
    path: Path = Path("machine")
    faults: list[Fault] = field(default_factory=list)
    overridden: set[tuple[Any, ...]] = field(default_factory=set)
    complaints: list[Fault] = field(default_factory=list)  # of overrides

    @classmethod
    def of(cls, source: str | Path | Mapping[str, Any], name: str) -> Draft:
        if isinstance(source, Mapping):
            return cls(name, plain(source))
        path = Path(source)
        content, doubles = read_yaml(path)
        if not isinstance(content, dict):
            what = {type(None): "is empty", list: "holds a list"}.get(type(content), "holds a single value")
            raise ConfigError(f"{path}: {what}; expected groups of keys, as in the packaged default")
        return cls(path.name, plain(content), path, doubles)

    def rest_on_base(self, above: tuple[Path, ...] = ()) -> None:
        """Read the table that the content names; merge it into its base: a preset, or a file that is valid alone."""
        complete_table(self.content, self.path.parent)
        if _BASE not in self.content:
            return
        base = self.content.pop(_BASE)
        above = (*above, self.path.resolve())
        below = Draft.of(self._base(base, above), "base")
        below.rest_on_base(above)
        if base not in presets():
            below.machine()
        _merge(below.content, self.content)
        self.content = below.content

    def _base(self, base: object, above: tuple[Path, ...]) -> Path:
        if base in presets():
            return preset_path(str(base))
        path = self.path.parent / str(base)
        if not str(base).endswith((".yaml", ".yml")):
            fault = f"is not a preset, nor a file that ends in .yaml; {hint(base, presets())}"
        elif path.resolve() in above:
            fault = "rests on this file; name another one"
        else:
            return path
        self.faults.append(Fault(f"{_BASE} = {quote(base)} {fault}", ((_BASE,),)))
        return preset_path("default")  # to report the faults of the given keys, too

    def machine(self) -> MachineConfig:
        return self.validated(MachineConfig, lambda: load_yaml(preset_path("default")), machine_faults)

    def override(self, overrides: Mapping[str, object] | Sequence[str]) -> None:
        paths, faults = override(self.content, overrides)
        self.overridden |= paths
        self.complaints += faults

    def validated(
        self,
        model: type[_Config],
        example: Callable[[], Mapping[str, Any]],
        rules: Callable[[_Config], Iterable[Fault]],
    ) -> _Config:
        """Return the configuration, or raise all faults; rules are checked with the example's for invalid values."""
        try:
            config = _validator(model).validate_python(self.content)
            wrong = list(rules(config))
        except ValidationError as error:
            right = example()
            wrong = _found(model, error, right)
            # Invalid values must not hide broken rules between other keys.
            config = _validator(model).validate_python(_mended(self.content, wrong, right))
            spoiled = [path for fault in wrong for path in fault.keys]
            wrong += [fault for fault in rules(config) if not fault.touches(spoiled)]
        if wrong or self.faults or self.complaints:
            faults = [("override", fault) for fault in self.complaints]
            faults += [
                ("override" if fault.touches(self.overridden) else self.name, fault)
                for fault in self._sorted(self.faults + wrong)
            ]
            raise ConfigError(
                [f"{file}: {fault.text}" for file, fault in faults], [self._record(*fault) for fault in faults]
            )
        return cast("_Config", config)

    def _record(self, file: str, fault: Fault) -> dict[str, Any]:
        value: Any = self.content
        for part in fault.keys[0] if fault.keys else ():
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                value = None
        key = dotted(fault.keys[0]) if fault.keys else None
        remedy = fault.text.partition("; ")[2] or None
        return {
            "file": file,
            "key": key,
            "value": value if fault.keys else None,
            "remedy": remedy,
            "message": fault.text,
        }

    def _sorted(self, faults: list[Fault]) -> list[Fault]:
        order = {path: place for place, path in enumerate(_paths(self.content, ()))}

        def place(fault: Fault) -> int:
            path = fault.keys[0]
            while path not in order:
                path = path[:-1]
            return order[path]

        return sorted(faults, key=place)


def _mended(content: dict[str, Any], wrong: list[Fault], example: Mapping[str, Any]) -> dict[str, Any]:
    """Replace invalid values in `content` by those of `example`, and drop unknown keys."""
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


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from _paths(inner, (*path, name))


def _found(root: type[Model], error: ValidationError, example: Mapping[str, Any]) -> list[Fault]:
    """Convert each validation error to a fault; `example` is a valid configuration."""
    findings = error.errors()
    places = [finding["loc"] for finding in findings]
    return [
        Fault(_text(root, finding, example), (place,))
        for finding, place in zip(findings, places, strict=True)
        # A list with invalid items is also reported as too short.
        if finding["type"] != "too_short" or not any(p[:-1] == place for p in places)
    ]


def _text(root: type[Model], finding: Any, example: Mapping[str, Any]) -> str:
    path, kind, context = finding["loc"], finding["type"], finding.get("ctx", {})
    parent = model_at(root, path[:-1])
    if parent is not None and kind == "unexpected_keyword_argument":
        return unknown(path, parent).text
    kind_of_value = _kind(root, path)
    unit = f" [{found}]" if (found := unit_of(kind_of_value)) else ""
    where = dotted(path)
    if kind == "missing":
        return f"{where} is missing; {_remedy(root, path, example)}{unit}"
    where = f"{where} = {_shown(finding['input'], kind_of_value)}"
    if kind == "literal_error":
        known = [name.strip("' ") for name in context["expected"].replace(" or ", ",").split(",")]
        return (
            f"{where} must be {known[0]}" if len(known) == 1 else f"{where} is unknown; {hint(finding['input'], known)}"
        )
    group = model_at(root, path)
    if group is not None:
        return f"{where} must be a group of keys: {', '.join(keys(group))}"
    return f"{where} {_expectation(kind, context, finding['msg'])}{unit}"


def _expectation(kind: str, context: Mapping[str, Any], message: str) -> str:
    bounds = {"greater_than": "> {gt:g}", "greater_than_equal": ">= {ge:g}", "less_than_equal": "<= {le:g}"}
    if kind in bounds:
        return f"must be {bounds[kind].format_map(context)}"
    fixed = {
        EXPECTED: message,
        "finite_number": "must be a finite number",
        "int_from_float": "must be a whole number",
        "string_type": "must be a name",
        "tuple_type": "must be a list",
        "dict_type": "must be a group of keys",
        "too_short": "must not be empty",
    }
    return fixed.get(kind, f"is refused: {message}")


def _remedy(root: type[Model], path: KeyPath, example: Mapping[str, Any]) -> str:
    value: Any = example
    for part in path:
        value = value[part]
    if isinstance(value, Mapping):
        complete = "begin the file with base: default" if root is MachineConfig else f"start from {NEW_FILES}"
        return f"add it with its keys {', '.join(value)}, or {complete}"
    return f"add it; the packaged default has {value}"


def _kind(root: type[Model], path: KeyPath) -> Any:
    """Annotated type of the key that `path` leads to, or into; None if there is none."""
    names = path
    while names and isinstance(names[-1], int):
        names = names[:-1]
    parent = model_at(root, names[:-1])
    return keys(parent).get(names[-1]) if parent is not None and names else None


def _shown(value: object, kind: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and get_origin(kind) is Annotated and get_args(kind)[0] is float:
        value = float(value)
    return quote(value, _LONGEST_VALUE)


_PARTIAL = "Partial"


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of machine files: bounds, units, and a description of each key.

    A file that names a `base` may leave any key out; another one may not.
    """
    from pydantic.json_schema import GenerateJsonSchema

    schema = GenerateJsonSchema().generate(cast("Any", core_schema(MachineConfig)))
    groups = schema.pop("$defs")
    groups["Machine"] = schema
    table = groups["PeGemmConfig"]["properties"]["table"]
    table["anyOf"] = [{name: table.pop(name) for name in ("type", "items")}, {"type": "string"}]
    reads = groups["PeDmaConfig"]["properties"]["outstanding_reads"]
    reads["anyOf"] = [{name: reads.pop(name) for name in ("type", "minimum", "maximum")}, {"const": "auto"}]
    for group in groups.values():
        for named in (group, *group["properties"].values()):
            named.pop("title", None)  # repeats the name
    partial = {name + _PARTIAL: _without_required(group) for name, group in groups.items()}
    top = partial.pop("Machine" + _PARTIAL)
    top["properties"][_BASE] = {
        "anyOf": [{"enum": presets()}, {"type": "string", "pattern": r"\.ya?ml$"}],
        "description": "Preset or machine file that supplies every key that is left out",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": "kernbench machine",
        "if": {"not": {"required": [_BASE]}},
        "then": {"$ref": "#/$defs/Machine"},
        "$defs": groups | partial,
    }


def _without_required(node: Any) -> Any:
    """Copy a schema node, requiring nothing and referring to the partial groups."""
    if isinstance(node, list):
        return [_without_required(inner) for inner in node]
    if not isinstance(node, dict):
        return node
    return {
        name: inner + _PARTIAL if name == "$ref" else _without_required(inner)
        for name, inner in node.items()
        if name != "required"
    }
