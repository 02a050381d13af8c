"""The manifest of a result file: program, parameters, machine, and the versions that produced it.

It is the comment of the archive, so every program that reads zip files can show it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np

from kernbench.errors import ArgumentError

_LONGEST = zipfile.ZIP_MAX_COMMENT


def versions() -> dict[str, str]:
    return dict(_versions())


@cache
def _versions() -> tuple[tuple[str, str], ...]:
    packages = [(name, version(name)) for name in ("kernbench", "numpy")]
    return (*packages, ("python", platform.python_version()))


@dataclass(frozen=True, slots=True)
class Manifest:
    """Program, parameters, options, machine, and versions of a run; empty where a file lacks them.

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
        return " ".join([self.program, *(f"{name}={value}" for name, value in self.parameters.items())])

    def __str__(self) -> str:
        machine = ", ".join([self.machine, *self.overrides])
        ran = f"{self.title} on {machine}" if self.program else machine
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return "; ".join(x for x in (ran, options, ", ".join(f"{k} {v}" for k, v in self.versions.items())) if x)

    def comment(self, arrays: str) -> bytes:
        """Comment of an archive whose arrays have this digest; ArgumentError if it is too long for a zip file."""
        text = json.dumps({**asdict(self), "arrays": arrays}).encode()
        comment = _digest(text) + b" " + text
        if len(comment) > _LONGEST:
            raise ArgumentError(f"the parameters take {len(comment):,} bytes; a result file holds {_LONGEST:,}")
        return comment

    @classmethod
    def of(cls, comment: bytes) -> tuple[Manifest, str]:
        """Manifest in the comment of a file and the digest of its arrays; UNKNOWN and "" without a comment."""
        if not comment:
            return UNKNOWN_MANIFEST, ""
        digest, _, text = comment.partition(b" ")
        if digest != _digest(text):
            raise ValueError("the manifest was changed")
        content = json.loads(text)
        arrays = content.pop("arrays", "")
        found = cls(**{**content, "overrides": tuple(content["overrides"])})
        texts = (found.program, found.machine, *found.overrides, *found.versions.values())
        values = (*found.parameters.values(), *found.options.values())
        if not all(isinstance(x, str) for x in texts) or not all(isinstance(x, (int, float, str)) for x in values):
            raise TypeError("the manifest holds values of other types")
        return found, arrays


UNKNOWN_MANIFEST = Manifest(versions={})


def read_manifest(path: Path) -> tuple[Manifest, str]:
    with zipfile.ZipFile(path) as file:
        return Manifest.of(file.comment)


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:16].encode()
