"""Collective algorithms of one's own, from a Python file, for the comparison in the collectives report."""

from __future__ import annotations

import runpy
from pathlib import Path

from kernbench.ccl.algorithm import Algorithm
from kernbench.errors import ConfigError


def algorithms(path: str | Path) -> list[Algorithm]:
    """Return the algorithms that a Python file leaves behind in its names, one by one or in lists.

    Parameters
    ----------
    path : str or Path
        A file that calls `kernbench.ccl.algorithm.algorithm` on its kernels.

    Raises
    ------
    ConfigError
        If there is no such file, nothing in it, or one name twice.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"own = {str(path)!r} is no file; give the path of a Python file with algorithms of your own")
    left = [value for name, value in runpy.run_path(str(file)).items() if not name.startswith("_")]
    each = [item for value in left for item in (value if isinstance(value, list | tuple) else [value])]
    found = {id(item): item for item in each if isinstance(item, Algorithm)}
    if not found:
        raise ConfigError(
            f"{file.name}: has no algorithm; make one of each kernel, as in "
            "mine = kernbench.ccl.algorithm.algorithm(kernel)"
        )
    names = [item.name for item in found.values()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"{file.name}: two algorithms are called {twice!r}; give one another name=")
    return list(found.values())
