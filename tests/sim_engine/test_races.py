"""Where accesses that may race are recorded; tests/runtime_api/test_races.py has the races."""

from __future__ import annotations

import pytest

from kernbench.sim_engine._races import _Access

FAR = 1 << 32  # a slice of another PE


@pytest.mark.parametrize(
    ("pieces", "spans"),
    [
        ([(64, 160)], [(64, 224)]),
        ([(0, 16), (32, 16), (64, 16)], [(0, 80)]),
        ([(64, 16), (0, 16)], [(0, 80)]),
        ([(0, 160), (FAR, 160)], [(0, 160), (FAR, FAR + 160)]),
        ([(FAR + 32, 16), (0, 160), (FAR, 16)], [(0, 160), (FAR, FAR + 48)]),
        ([(0, 8), (8 + (1 << 16) - 1, 8)], [(0, (1 << 16) + 15)]),
        ([(0, 8), (8 + (1 << 16), 8)], [(0, 8), ((1 << 16) + 8, (1 << 16) + 16)]),
    ],
)
def test_pieces_far_apart_are_recorded_apart(pieces, spans):
    """Otherwise a small access to slices of several PEs would be recorded in all pages between them."""
    assert _Access(None, pieces, True, None).spans() == spans
