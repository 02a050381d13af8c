"""Tests of the front end of PyTorch need it; with KERNBENCH_TORCH=required its absence is an error."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

MISSING = [name for name in ("torch", "triton") if find_spec(name) is None]
REQUIRED = os.environ.get("KERNBENCH_TORCH") == "required"  # before tests hide the variables of the environment
collect_ignore = ["acceptance.py"] + (["models.py"] if MISSING else [])

if MISSING and REQUIRED:
    raise pytest.UsageError(f"KERNBENCH_TORCH=required, but {' and '.join(MISSING)} cannot be imported")
if MISSING:
    collect_ignore_glob = ["test_*.py"]
