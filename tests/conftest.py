"""What every test runs under: no settings of the person who runs it, the same examples each time."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from kernbench import build

# Host time says nothing about the simulator, and a failure must be there again on the next run.
settings.register_profile("kernbench", deadline=None, derandomize=True, max_examples=50, print_blob=True)
settings.load_profile("kernbench")


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch):
    for name in [n for n in os.environ if n.startswith(("KERNBENCH_", "MATMUL_", "MILESTONE_"))]:
        if name != build.VARIABLE:  # processes that a test starts use its engine
            monkeypatch.delenv(name)
    # Rows of earlier runs would hide what a change has broken.
    monkeypatch.setenv("KERNBENCH_CACHE", "off")
