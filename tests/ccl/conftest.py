"""Machines for collectives."""

from __future__ import annotations

import pytest

from kernbench.config import MachineConfig
from kernbench.topology.builder import resolve_topology


@pytest.fixture(scope="session")
def two_sips() -> MachineConfig:
    return resolve_topology("preset:default").config


@pytest.fixture(scope="session")
def six_sips() -> MachineConfig:
    return resolve_topology("preset:six_sip_torus").config
