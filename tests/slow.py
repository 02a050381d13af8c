"""The marker `slow`: what has it is left to `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(n: int, values: Iterable[Any]) -> list[Any]:
    """Return `values` for parametrize, all but the first `n` slow; a tuple has a value for each argument."""
    sets = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*each, marks=pytest.mark.slow if i >= n else ()) for i, each in enumerate(sets)]
