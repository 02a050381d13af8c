"""Copies between strided arrays."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench as kb
from kernbench import DPPolicy
from kernbench.kernels.partition import chunk
from kernbench.ops.copy import Strided, copy

ROWS = DPPolicy(cube="row_wise", pe="row_wise")


@pytest.mark.parametrize(
    ("shape", "source", "target"),
    [
        ((24, 40), (40, 1), (40, 1)),
        ((24, 40), (1, 24), (40, 1)),
        ((24, 40), (0, 1), (40, 1)),  # one row, for all
        ((3, 8, 20), (8, 1, 24), (160, 20, 1)),
        ((10, 40), (80, 2), (40, 1)),
        ((), (), ()),
    ],
)
def test_elements_go_where_their_strides_say(shape, source, target):
    with kb.session("preset:small", data=True) as torch:
        a = np.arange(1024, dtype=np.float32)
        x, y = torch.from_numpy(a).to("ahbm", dp=ROWS), torch.zeros(1024, device="ahbm", dp=ROWS)
        parts = {pe: [chunk(int(np.prod(shape)), len(y.pes), i)] for i, pe in enumerate(y.pes)}
        y._run("copy", copy, y, (x,), Strided(shape, source, target, parts))
        expected = np.zeros(1024, np.float32)

        def seen(whole, strides):
            return np.lib.stride_tricks.as_strided(whole, shape, [4 * step for step in strides])

        seen(expected, target)[...] = seen(a, source)
        np.testing.assert_array_equal(y.numpy(), expected)
