"""The compiled core and the definition say the same, to the picosecond and to the byte."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache

import pytest

from kernbench.sim_engine._network import ENGINE
from tests.sim_engine.workloads import WORKLOADS


@cache
def defined() -> dict:
    environment = {**os.environ, "KERNBENCH_ENGINE": "definition"}
    out = subprocess.run(
        [sys.executable, "-m", "tests.sim_engine.workloads"],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    found = json.loads(out.stdout)
    assert found["engine"] == "definition"
    return found


@pytest.mark.slow
@pytest.mark.skipif(ENGINE != "core", reason="needs the compiled core: run `make core`")
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_core_equals_the_definition(name):
    assert json.loads(json.dumps(WORKLOADS[name]())) == defined()[name]
