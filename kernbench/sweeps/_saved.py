"""A result as one file: the machine, what ran with which parameters, the result, and the versions that produced it.

The file is what `Result.save` writes; the manifest is the comment of the archive, so every reader of results reads it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from kernbench._units import MIB
from kernbench.analysis._records import Records
from kernbench.analysis.result import Result
from kernbench.config._files import damaged, replacing
from kernbench.errors import ArgumentError, ConfigError

_FILE, _REMEDY = "result of kernbench", "save the result again, with result.save() or kernbench run --save"
_LONGEST = zipfile.ZIP_MAX_COMMENT
_MOST = 256 * MIB  # of content that arrives from a browser, in parts of 4 MiB
MOST_PARTS = _MOST // (4 * MIB) + 1


def versions() -> dict[str, str]:
    """Return the versions that decide what a run computes."""
    packages = {name: version(name) for name in ("kernbench", "numpy")}
    return {**packages, "python": platform.python_version()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What ran: program, parameters, options, machine, and versions. Empty where a file does not say.

    Parameters
    ----------
    program : str
        Name of the workload or bench.
    parameters : mapping of str to int, float, bool or str
        Its parameters.
    options : mapping of str to bool or str
        How it ran: `data` and `log`.
    machine : str
        Where the machine came from: a path or `preset:NAME`. The machine itself is in the result.
    overrides : tuple of str
        Changes to it, as `kb.load` takes them.
    versions : mapping of str to str
        Versions of kernbench, numpy and Python.
    """

    program: str = ""
    parameters: Mapping[str, int | float | bool | str] = field(default_factory=dict)
    options: Mapping[str, bool | str] = field(default_factory=dict)
    machine: str = ""
    overrides: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=versions)

    @property
    def title(self) -> str:
        """What ran: the program and its parameters."""
        return " ".join([self.program, *(f"{name}={value}" for name, value in self.parameters.items())])

    def __str__(self) -> str:
        ran = f"{self.title} on {', '.join([self.machine, *self.overrides])}" if self.program else ""
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return "; ".join(x for x in (ran, options, ", ".join(f"{k} {v}" for k, v in self.versions.items())) if x)

    @classmethod
    def of(cls, comment: bytes) -> Manifest:
        """Return the manifest in the comment of a file; an empty one if there is none."""
        if not comment:
            return cls(versions={})
        digest, _, text = comment.partition(b" ")
        if digest != _digest(text):
            raise ValueError("the manifest was changed")
        content = json.loads(text)
        found = cls(**{**content, "overrides": tuple(content["overrides"])})
        texts = (found.program, found.machine, *found.overrides, *found.versions.values())
        values = (*found.parameters.values(), *found.options.values())
        if not all(isinstance(x, str) for x in texts) or not all(isinstance(x, (int, float, str)) for x in values):
            raise TypeError("the manifest holds values of other types")
        return found


@dataclass(frozen=True, eq=False, repr=False)
class SavedResult(Result):
    """A result from a file, with its manifest.

    Parameters
    ----------
    records : Records
    name : str
        The name of the file, without its suffix.
    manifest : Manifest
        What ran, on which machine, with which parameters and versions.
    """

    manifest: Manifest = field(default_factory=Manifest)

    def __repr__(self) -> str:
        said = str(self.manifest)
        return f"{super().__repr__()}\n\nsaved: {said}" if said else super().__repr__()


def save(result: Result, path: str | Path, manifest: Manifest) -> Path:
    """Write a result with its manifest; an existing file is replaced only when the new one is complete."""
    path, text = Path(path), json.dumps(asdict(manifest)).encode()
    comment = _digest(text) + b" " + text
    if len(comment) > _LONGEST:
        raise ArgumentError(f"{path}: the parameters take {len(comment):,} bytes; a file holds {_LONGEST:,}")
    with replacing(path) as part:
        result.save(part)
        with zipfile.ZipFile(part, "a") as file:
            file.comment = comment
    return path


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()


def read(path: str | Path) -> SavedResult:
    """Reopen a result that `result.save`, `kernbench run --save` or the explorer wrote; it is named after its file.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    SavedResult
        With `manifest`: what ran, with which parameters and versions, as far as the file says.

    Raises
    ------
    ConfigError
        If the file cannot be read, is damaged, or is no result of kernbench.

    Examples
    --------
    >>> import kernbench as kb
    >>> result = kb.read("run1.npz")  # doctest: +SKIP
    >>> print(result.manifest)  # doctest: +SKIP
    study gemm m=64 k=64 n=64 on preset:small; data=True, log=tile; kernbench 0.1.0, numpy 2.4.6, python 3.11.7
    """
    path = Path(path)
    records = Records.load(path)
    with damaged(path, _FILE, _REMEDY), zipfile.ZipFile(path) as file:
        manifest = Manifest.of(file.comment)
    return SavedResult(records, path.stem, manifest)


def read_content(name: str, content: bytes) -> SavedResult:
    """Return the result in the content of a file called `name`; raises as `read` does."""
    if len(content) > _MOST:
        raise ConfigError(f"{name}: is larger than {_MOST // MIB} MiB; open it in a cell, with kb.read")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        path.write_bytes(content)
        try:
            found = read(path)
        except ConfigError as error:
            raise ConfigError([fault.replace(str(path), name) for fault in error.faults]) from error
    return SavedResult(found.records, Path(name).stem, found.manifest)
