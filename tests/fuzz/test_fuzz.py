"""The short form of the campaign, with other seeds each day; `make fuzz` is the long one."""

from __future__ import annotations

import sys
import time

import pytest

from tests.fuzz.__main__ import apart

FIRST = int(time.time()) // 86_400 * 1000
SHORT = {
    "files": 60,
    "plans": 60,
    "kernels": 40,
    "hostile": 85,
    "space": 30,
    "causes": 60,
    "collectives": 34,
    "damage": 120,
    "arrays": 45,
    "memory": 150,
    "advice": 4,
}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory of a process, as Linux tells it")
@pytest.mark.parametrize("part", SHORT)
def test_a_short_campaign(part):
    seeds = range(FIRST, FIRST + SHORT[part])
    report = apart(part, seeds)
    assert report.tried == len(seeds)
    assert not report.failures, "\n".join(report.failures)
