"""Where the elements of matrices are, and that large products find it without arrays."""

import numpy as np
import pytest

from kernbench.ops._stored import Stored
from kernbench.ops.matmul import BY_COLUMNS, BY_ROWS, GRID
from kernbench.runtime_api.context import session
from kernbench.studies.layers import StoredProduct, run
from kernbench.topology.builder import resolve_topology
from kernbench.triton_emu._memory_ops import Access
from kernbench.triton_emu._places import Affine, Pieces


@pytest.fixture(scope="module")
def machine():
    return resolve_topology("preset:default")


def everywhere(stored):
    """Return the place of each element, from the pieces one by one."""
    places = np.full(stored.shape, -1)
    for (row, m), (column, n), place, row_step, column_step, _ in stored.pieces:
        for i in range(m):
            for j in range(n):
                assert places[row + i, column + j] == -1, "an element is in two pieces"
                places[row + i, column + j] = place + i * row_step + j * column_step
    assert (places >= 0).all()
    return places


@pytest.mark.parametrize("policy", [BY_ROWS, BY_COLUMNS, GRID])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_block_is_where_its_pieces_are(machine, policy, transposed):
    stored = Stored.of(machine.config, (60, 150), policy, transposed=transposed)
    places = everywhere(stored)
    kinds = set()
    for rows in ((0, 60), (3, 1), (7, 20)):
        for columns in ((0, 150), (2, 2), (11, 40), (149, 1)):
            block = places[rows[0] : sum(rows), columns[0] : sum(columns)]
            found = stored.places(rows, columns)
            np.testing.assert_array_equal(found.array(), block)
            kinds.add(type(found))
            flat = block.reshape(-1)
            follow = bool((np.diff(flat) == 1).all())
            assert stored.first(rows, columns) == (flat[0] if follow else None)
    assert kinds == {Affine, Pieces}


def test_matrices_side_by_side_are_where_each_is(machine):
    one, other = (Stored.of(machine.config, (8, n), BY_COLUMNS) for n in (20, 40))
    both = everywhere(Stored.side_by_side([one, other], [0, 1000], 2))
    a, b = everywhere(one), everywhere(other) + 1000
    np.testing.assert_array_equal(both, np.hstack([a[:, :10], b[:, :20], a[:, 10:], b[:, 20:]]))


def test_the_pieces_of_a_block_are_found_once(machine):
    stored = Stored.of(machine.config, (8, 40), BY_COLUMNS)
    found = stored.near((0, 8), (3, 9))
    assert stored.near((0, 8), (3, 9)) is found
    assert stored.near((0, 8), (3, 8)) is not found
    assert stored.near((8, 1), (0, 40)) == []


@pytest.mark.parametrize("data", [False, True])
def test_a_product_makes_index_arrays_for_values_only(machine, data, monkeypatch):
    made = []

    def counted(owner, name):
        original = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: made.append(name) or original(*args))

    for owner in (Affine, Pieces):
        counted(owner, "array")
    counted(Access, "of")
    result, _ = run(machine, StoredProduct(128, 1280, 256, "2-D"), data=data)
    pes = 128  # each loads a block of A, and narrow shards of B side by side: not in the order of the tile
    assert len(result.records.of_kind("load")) == 2 * pes
    assert bool(made) == data
    assert made.count("of") == (pes if data else 0)


@pytest.mark.parametrize("data", [False, True])
def test_a_move_of_an_operand_makes_index_arrays_for_values_only(machine, data, monkeypatch):
    made = []
    for owner in (Affine, Pieces):
        monkeypatch.setattr(owner, "array", lambda self, of=owner.array: made.append(self) or of(self))
    a, b = (np.random.default_rng(0).integers(0, 2, size).astype(np.float16) for size in ((256, 512), (512, 256)))
    with session(machine, data=data) as torch:
        product = torch.from_numpy(a).to("ahbm") @ torch.from_numpy(b).to("ahbm")  # both on one PE, which is slow
        if data:
            np.testing.assert_array_equal(product.numpy(), a @ b)
    assert sum("move" in launch.name for launch in torch.result.records.launches) >= 2
    assert bool(made) == data
