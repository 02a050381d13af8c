"""Kernels as a file, and a small machine to run them on."""

from pathlib import Path

import pytest

from kernbench.topology.builder import resolve_topology
from kernbench.triton._module import load

collect_ignore = ["acceptance.py", "kernels.py"]  # they import triton; `load` provides it to the kernels
KERNELS = Path(__file__).with_name("kernels.py")


@pytest.fixture(scope="session")
def kernels():
    return load(KERNELS)


@pytest.fixture(scope="session")
def machine():
    return resolve_topology("preset:small")
