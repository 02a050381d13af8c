from __future__ import annotations

import pytest

from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small


@pytest.fixture
def torch():
    with session(small(), data=True) as namespace:
        yield namespace
