"""Plans of tiled commands: made once for equal shapes and types, whichever PE asks; each PE has its own addresses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import kernbench as kb
from kernbench.components.builtin.pe_scheduler import TileGrid
from kernbench.kernels.gemm import gemm
from kernbench.policy.placement.dp import DPPolicy

EACH = DPPolicy(cube="replicate", pe="replicate")


def launched(*shapes: tuple[int, int, int], dtype: str = "f16", log: str = "tile") -> Any:
    """Return an engine that has run products of these shapes, each on every PE of a small machine."""
    with kb.session(kb.load("preset:small"), log=log) as torch:
        for m, k, n in shapes:
            a, b, out = (torch.empty(size, dtype=dtype, device="ahbm", dp=EACH) for size in ((m, k), (k, n), (m, n)))
            torch.launch("gemm", gemm, a, b, out, m, k, n, "ref_ref")
        torch.ahbm.synchronize()
    return torch.engine


def test_equal_products_share_a_plan_on_all_pes():
    engine = launched((64, 128, 64), (64, 128, 64))
    assert len(engine.pes()) > 1
    assert len(engine.plans) == 1


@pytest.mark.parametrize("other", [(64, 128, 96), (64, 64, 64), (32, 128, 64)])
def test_each_size_of_a_product_has_a_plan(other):
    assert len(launched((64, 128, 64), other).plans) == 2


def test_pes_that_share_a_plan_read_their_own_operands():
    engine = launched((64, 128, 64))
    records = engine.records()
    reads = records.of_kind("dma_in")
    sizes: dict[str, int] = {}
    for command, nbytes in zip(reads.command.tolist(), reads.nbytes.tolist(), strict=True):
        place = records.commands[command].place
        sizes[place] = sizes.get(place, 0) + nbytes
    # Each 32 x 32 output tile reads a row of tiles of A and a column of tiles of B, 128 deep.
    assert set(sizes.values()) == {2 * 2 * 2 * 32 * 128 * 2}
    assert len(sizes) == len(engine.pes())


def test_equal_commands_of_a_pe_are_kept_once():
    engine = launched((64, 128, 64), (64, 128, 64), log="operation")
    commands = engine.records().commands
    assert len({id(command) for command in commands}) == len(set(commands)) < len(commands)


def test_a_ragged_grid_counts_its_true_elements():
    grid = TileGrid(3, 5, 2, 4, itemsize=2)
    assert sum(grid.elements(r, c) for r in range(2) for c in range(2)) == 15
    packed = sorted(
        (grid.offset(r, c, grid.height(r)), grid.elements(r, c) * grid.itemsize) for r in range(2) for c in range(2)
    )
    assert packed[0][0] == 0
    assert all(a + n == b for (a, n), (b, _) in pairwise(packed)), "tiles lie one after the other"
    assert sum(packed[-1]) == 30
