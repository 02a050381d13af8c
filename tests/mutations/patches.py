"""The patches in this folder, and what their first lines say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Patch(NamedTuple):
    """A change that breaks a rule."""

    path: Path
    rule: str
    change: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of its file."""
        return self.path.stem


def _read(path: Path) -> Patch:
    text = path.read_text(encoding="utf-8")
    rule, change, tests = re.match(r"Rule: (\S+)\nChange: (.+)\nTests: (.+)\n", text).groups()
    return Patch(path, rule, change, tuple(tests.split()))


PATCHES = tuple(_read(path) for path in sorted(Path(__file__).parent.glob("*.patch")))
