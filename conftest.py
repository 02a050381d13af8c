"""What pytest leaves alone, and which engine the tests run.

The paired .py of a notebook runs as its notebook and is never imported; the notebooks of full reports are copies run
with other parameters, which have nothing to be compared with.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec

import pytest

from kernbench import _engine_selection

collect_ignore_glob = ["notebooks/*.py", "milestones/*.py", "milestones/output/*"]

# The front end of PyTorch imports it, and so do notebooks: `make frontends-all` runs these.
MISSING = [name for name in ("torch", "triton") if find_spec(name) is None]
WITH_TORCH = ["notebooks/07_bring_your_model.ipynb", "milestones/models.ipynb", "milestones/serving.ipynb"]
if MISSING:
    collect_ignore_glob += ["kernbench/torch/_*.py", *WITH_TORCH]
elif find_spec("transformers") is None:
    collect_ignore_glob += ["kernbench/torch/_models.py", "milestones/models.ipynb", "milestones/serving.ipynb"]

# Without a core the tests run the definition. The header says so: a warning would be an error, and change notebooks.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    ENGINE = _engine_selection.engine()

# pytest imports a file as what it is: next to the compiled module, its source would be a second module of that name.
collect_ignore = [str(source) for source in _engine_selection.modules().values() if ENGINE == _engine_selection.CORE]


def pytest_report_header() -> str:
    """Return the engine that simulates, and what is left out."""
    left_out = f"; left out without {' and '.join(MISSING)}: tests/torch, {', '.join(WITH_TORCH)}" if MISSING else ""
    return f"kernbench engine: {ENGINE}{left_out}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make screenshots`."""
    parser.addoption(
        "--renew-screenshots", action="store_true", help="write tests/notebook/screenshots instead of comparing"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give each process whole files, in the order of collection: tests of a file share fixtures, cells a kernel."""
    if config.getoption("dist", "no") == "load":  # what `-n` selects
        config.option.dist, config.option.loadscopereorder = "loadfile", False
