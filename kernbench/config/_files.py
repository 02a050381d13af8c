"""Configuration files: where they are, the YAML they hold, and how untrusted files are read and written safely."""

from __future__ import annotations

import csv
import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import lru_cache
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.constructor import ConstructorError

from kernbench._registry import hint
from kernbench._units import GIB, MIB
from kernbench.config._kinds import Fault, dotted
from kernbench.errors import ConfigError, HostError, MissingFileError, shortened

if TYPE_CHECKING:
    import numpy as np


_NUMBERS = {
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


MOST_VALUES = 50_000
MOST_DEPTH = 100
_TOO_DEEP = "it is nested too deeply"


class TooLargeError(ConstructorError):
    """The text holds more than `MOST_VALUES` values."""


class _Loader(yaml.SafeLoader):
    """YAML with the plain decimal numbers of YAML 1.2 and of every editor.

    1e3 is one; 1:30 (once 90), 010 (once 8) and 1_000 are text. At most `MOST_VALUES` values are read.
    """

    values = 0

    def fetch_flow_collection_start(self, kind: Any) -> None:
        """Limit the nesting of bracketed lists and groups: the scanner's time grows with the square of the depth."""
        if self.flow_level >= MOST_DEPTH:
            raise yaml.YAMLError(_TOO_DEEP)
        super().fetch_flow_collection_start(kind)

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.values += 1
        if self.values > MOST_VALUES:
            raise TooLargeError(None, None, f"more than {MOST_VALUES:,} values", self.get_mark())
        return super().compose_node(parent, index)

    yaml_implicit_resolvers = {  # noqa: RUF012 - as the class above
        first: [(tag, form) for tag, form in forms if tag.rpartition(":")[2] not in _NUMBERS]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Turn an invalid value, such as a date 2024-13-45, into a fault with a place."""
        try:
            return super().construct_object(node, deep)
        except ValueError as error:
            raise ConstructorError(None, None, str(error).partition(";")[0], node.start_mark) from error


for _kind, _form in _NUMBERS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(f"({_form})$"), list("-+.0123456789"))


def parse_yaml(text: str) -> tuple[Any, list[Fault]]:
    """Parse YAML; the faults are duplicate keys."""
    content, doubles = _parsed(text)
    return deepcopy(content), list(doubles)


@lru_cache(maxsize=16)
def _parsed(text: str) -> tuple[Any, list[Fault]]:
    """Cache text that is parsed repeatedly: ccl.yaml, for every run of an algorithm."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, []
        if _size(node, {}) > MOST_VALUES:
            raise TooLargeError(None, None, f"more than {MOST_VALUES:,} values, its aliases counted", node.start_mark)
        # Before construction, which adds merged (`<<`) keys to a group's own keys.
        doubles = list(_doubles(node, (), set(), ()))
        return loader.construct_document(node), doubles
    except RecursionError:
        raise yaml.YAMLError(_TOO_DEEP) from None
    finally:
        loader.dispose()


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Count the values in a node, each alias as its target."""
    if id(node) not in sizes:
        sizes[id(node)] = 1  # ends the recursion at an alias of itself, which is reported elsewhere
        if isinstance(node, yaml.SequenceNode):
            sizes[id(node)] += sum(_size(item, sizes) for item in node.value)
        elif isinstance(node, yaml.MappingNode):
            sizes[id(node)] += sum(_size(key, sizes) + _size(value, sizes) for key, value in node.value)
    return sizes[id(node)]


def problem(error: yaml.YAMLError, remedy: str) -> str:
    """Describe a YAML error on one line; a syntax error ends with `remedy`."""
    what = " ".join(str(getattr(error, "problem", None) or error).split())
    if isinstance(error, TooLargeError):
        return f"holds {what}; leave some out"
    return f"is not valid YAML: {shortened(what, 200)}; {remedy}"


def _doubles(node: yaml.Node, path: tuple[Any, ...], visited: set[int], above: tuple[int, ...]) -> Iterator[Fault]:
    if id(node) in above:
        raise ConstructorError(None, None, "the group of this anchor holds an alias of itself", node.start_mark)
    if id(node) in visited:
        return
    visited.add(id(node))
    above = (*above, id(node))
    if isinstance(node, yaml.SequenceNode):
        for place, item in enumerate(node.value):
            yield from _doubles(item, (*path, place), visited, above)
    elif isinstance(node, yaml.MappingNode):
        lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if isinstance(key_node, yaml.ScalarNode):
                here = (*path, key)
                if key in lines:
                    at = f"lines {lines[key]} and {line}" if line != lines[key] else f"line {line}"
                    yield Fault(f"{dotted(here)} is a duplicate key, in {at}; keep one", (here,))
                lines.setdefault(key, line)
                yield from _doubles(value_node, here, visited, above)


MOST_YAML = MIB
MOST_JSON = 256 * MIB
# Arrays of a log compress to a fifth, those of a long one to a hundredth.
MOST_ARRAYS, MOST_SMALL_ARRAYS, MOST_RATIO = 4 * GIB, 64 * MIB, 200

_DAMAGE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError,
    RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_text(path: Path, most: int, remedy: str) -> str:
    data = read_bytes(path, most, remedy)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text at byte {error.start}; save it as UTF-8") from error


def read_bytes(path: Path, most: int, remedy: str) -> bytes:
    why = None
    try:
        if path.exists() and not path.is_file():
            why = "it is not a file"
        else:
            with path.open("rb") as file:
                data = file.read(most + 1)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except OSError as error:
        why = error.strerror
    except ValueError as error:  # a path with a null character
        why = str(error)
    if why is not None:
        raise ConfigError(f"{path}: cannot be read ({why}); {remedy}")
    if len(data) > most:
        raise ConfigError(f"{path}: is larger than {most // MIB} MiB; {remedy}")
    return data


@contextmanager
def damaged(name: object, what: str, remedy: str) -> Iterator[None]:
    """Turn exceptions inside the with-block, due to unexpected content of the file `name`, into a ConfigError."""
    try:
        yield
    except ConfigError:
        raise
    except _DAMAGE as error:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ConfigError(f"{name}: is damaged, or no {what} ({why}); {remedy}") from error


_REMEDY = "make room or name another folder, then run the same again"


@contextmanager
def replacing(path: Path, remedy: str = _REMEDY) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` on success, and is deleted on failure or interrupt."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise HostError(f"{path}: cannot be written: {error.strerror or error}; {remedy}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str, remedy: str = _REMEDY) -> Path:
    """Write atomically, as `replacing`."""
    with replacing(path, remedy) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return path


def read_json(path: Path, what: str, remedy: str) -> dict[str, Any]:
    text = read_text(path, MOST_JSON, remedy)
    with damaged(path, what, remedy):
        content = json.loads(text)
        if not isinstance(content, dict):
            raise TypeError(f"expected an object, found {type(content).__name__}")
    return content


def read_arrays(path: Path, what: str, remedy: str) -> dict[str, np.ndarray]:
    """Refuse objects and oversized arrays in an .npz file before memory is allocated."""
    import numpy as np

    try:
        size = path.stat().st_size
        with damaged(path, what, remedy), zipfile.ZipFile(path) as file:
            total = sum(info.file_size for info in file.infolist())
            most = min(MOST_ARRAYS, max(MOST_SMALL_ARRAYS, MOST_RATIO * size))
            if total > most:
                raise ConfigError(
                    f"{path}: {size:,} bytes hold arrays of {total:,} bytes; at most {most:,} are read; {remedy}"
                )
            for info in file.infolist():
                _check_header(file, info)
        with damaged(path, what, remedy), np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else ConfigError
        raise kind(f"{path}: cannot be read ({error.strerror or error}); {remedy}") from error


def _check_header(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Raise a ValueError unless a member of an archive is an array of numbers, as long as its header says."""
    from numpy.lib import format as npy

    with file.open(info) as member:
        version = npy.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{info.filename} has format {version}")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(member)
        if dtype.hasobject:
            raise ValueError("an array holds Python objects")
        if min(shape, default=0) < 0 or member.tell() + prod(shape) * dtype.itemsize != info.file_size:
            raise ValueError(f"{info.filename} holds {info.file_size:,} bytes, not an array of shape {shape}")


_PRESETS = Path(str(files("kernbench") / "presets"))


def read_yaml(path: Path) -> tuple[Any, list[Fault]]:
    try:
        return parse_yaml(read_text(path, MOST_YAML, "give the path of a YAML file"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}, column {mark.column + 1} " if mark else ""
        raise ConfigError(f"{path}: {place}{problem(error, 'correct the syntax there')}") from error


def load_yaml(path: Path) -> Any:
    content, doubles = read_yaml(path)
    if doubles:
        raise ConfigError([f"{path.name}: {fault.text}" for fault in doubles])
    return content


_TABLE = ("m", "k", "n", "efficiency")


def complete_table(content: Mapping[str, Any], folder: Path) -> None:
    """Replace the path of a matrix engine's CSV table, relative to `folder`, by its rows."""
    group: Any = content
    for name in ("cube", "pe", "pe_gemm"):
        group = group.get(name) if isinstance(group, dict) else None
    if isinstance(group, dict) and isinstance(group.get("table"), str):
        group["table"] = _read_table(folder / group["table"])


def _read_table(path: Path) -> list[list[float]]:
    text = read_text(path, MOST_YAML, "give cube.pe.pe_gemm.table the path of a CSV file")
    lines = [(i, [cell.strip() for cell in row]) for i, row in enumerate(csv.reader(text.splitlines()), 1) if row]
    if not lines or tuple(lines[0][1]) != _TABLE:
        raise ConfigError(f"{path}: line 1 must name the columns {','.join(_TABLE)}")
    rows = []
    for i, cells in lines[1:]:
        if len(cells) != len(_TABLE):
            raise ConfigError(f"{path}: line {i} has {len(cells)} values; expected {','.join(_TABLE)}")
        try:
            rows.append([*(int(size) for size in cells[:3]), float(cells[3])])
        except ValueError:
            raise ConfigError(
                f"{path}: line {i}: {','.join(cells)} is not {','.join(_TABLE)}: expected three whole numbers and a "
                "share of peak"
            ) from None
    return rows


def find(name: str = "topology.yaml", start: str | Path | None = None) -> Path:
    """Search a folder and its parents, nearest first, for a file called `name`; else the packaged default."""
    folder = Path.cwd() if start is None else Path(start).resolve()
    for place in (folder, *folder.parents):
        # Next to a notebook of the same name, the file holds a milestone's parameters.
        if (place / name).is_file() and not (place / name).with_suffix(".ipynb").is_file():
            return place / name
    return default_ccl_path() if name == "ccl.yaml" else preset_path("default")


def presets() -> list[str]:
    return sorted(path.stem for path in _PRESETS.glob("*.yaml") if path.stem != "ccl")


def preset_path(name: str) -> Path:
    if name not in presets():
        raise ConfigError(f"preset:{name} is unknown; {hint(name, presets())}")
    return _PRESETS / f"{name}.yaml"


def default_ccl_path() -> Path:
    """Return the packaged ccl.yaml."""
    return _PRESETS / "ccl.yaml"
