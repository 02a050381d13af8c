"""What every test runs under: no settings of the person and no number of cores, the same examples each time."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.util import find_spec

import pytest
from hypothesis import settings

from kernbench import _engine_selection

# Host time says nothing about the simulator, and a failure must be there again on the next run.
settings.register_profile("kernbench", deadline=None, derandomize=True, max_examples=50, print_blob=True)
settings.load_profile("kernbench")


@pytest.fixture(autouse=True)
def _no_settings_of_user_and_host(monkeypatch):
    for name in [n for n in os.environ if n.startswith(("KERNBENCH_", "CCL_", "MILESTONE_"))]:
        if name != _engine_selection.VARIABLE:  # processes that a test starts use its engine
            monkeypatch.delenv(name)
    # Rows of earlier runs would hide what a change has broken.
    monkeypatch.setenv("KERNBENCH_CACHE", "off")
    # A process takes longer to start than most tests: one that is about processes says how many.
    monkeypatch.setattr(os, "cpu_count", lambda: 1)


_BROWSER_REQUIRED = os.environ.get("KERNBENCH_BROWSER") == "required"


def _need(missing):
    """Skip the tests that need what is missing, unless KERNBENCH_BROWSER=required."""
    if missing and not _BROWSER_REQUIRED:
        pytest.skip(f"not installed: {', '.join(missing)}")


@pytest.fixture(scope="session")
def driver():
    """A headless Chromium, shared by all tests of this process."""
    missing = [] if find_spec("selenium") else ["selenium"]
    _need(missing + [x for x in ("chromium", "chromedriver") if shutil.which(x) is None])
    from tests.notebook.browser import chromium

    with chromium() as driver:
        yield driver


@pytest.fixture(scope="session")
def web(driver, tmp_path_factory):
    """The address of the served page, token included."""
    _need(["voila"] * (find_spec("voila") is None))
    from tests.notebook.served import TOKEN, served
    from tests.repo import ROOT

    with served("web", tmp_path_factory.mktemp("web"), cwd=ROOT) as address:
        yield f"{address}/?token={TOKEN}"


@pytest.fixture(scope="session")
def lab(driver, tmp_path_factory):
    """The address of JupyterLab in a clone of this repository, and the clone."""
    _need(["jupyterlab"] * (find_spec("jupyterlab") is None))
    from tests.notebook.served import served
    from tests.repo import ROOT

    checkout = tmp_path_factory.mktemp("clone") / "kernbench"
    clone = ["git", "-c", "safe.directory=*", "clone", "--quiet", "--shared", ROOT, checkout]
    subprocess.run(clone, check=True)
    with served("lab", tmp_path_factory.mktemp("lab"), cwd=checkout) as address:
        yield address, checkout


@pytest.fixture
def renew(request):
    """Whether screenshots are written, not compared."""
    return request.config.getoption("--renew-screenshots")
