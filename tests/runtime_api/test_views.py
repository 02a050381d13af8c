"""Parts of a device tensor: one run of bytes, or an error that says where to cut."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.policy.placement.dp import DPPolicy


def numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_whole_shards_of_a_column_wise_tensor(torch):
    a = numbers(4, 8)
    x = torch.tensor(a, dp=DPPolicy(pe="column_wise", num_cubes=1))
    part = x[:, 2:6]
    assert (part.numpy() == a[:, 2:6]).all()
    assert [(s.pe, s.offset_bytes, s.index[1]) for s in part.shards] == [(1, 0, slice(0, 2)), (2, 32, slice(2, 4))]
    assert part.data_ptr() == x.data_ptr() + 32
    assert part.pes == [(0, 1), (0, 2)]


def test_inside_one_shard(torch):
    a = numbers(4, 8)
    x = torch.tensor(a, dp=DPPolicy(pe="column_wise", num_cubes=1))
    assert (x[1:3, 4:6].numpy() == a[1:3, 4:6]).all()
    assert x[1:3, 4:6].pes == [(0, 2)]


def test_unaligned_says_what_would_be_aligned(torch):
    x = torch.zeros(4, 8, dp=DPPolicy(pe="column_wise", num_cubes=1), name="w")
    with pytest.raises(IndexError, match=r"w\[0:4, 1:3\] is not one run.*dim 1 at 0, 2, 4, 6, 8; cut there"):
        x[:, 1:3]
    with pytest.raises(IndexError, match=r"w\[1:2, 0:8\] is not one run"):
        x[1]


def test_rows_are_always_a_run(torch):
    a = numbers(13, 3)
    x = torch.tensor(a, dp=DPPolicy(cube="row_wise", pe="row_wise"))
    for start in range(13):
        for stop in range(start + 1, 14):
            assert (x[start:stop].numpy() == a[start:stop]).all()


def test_kernel_on_a_view_runs_where_the_view_is(torch):
    def mark(x, n, *, tl):
        tl.store(x, tl.full((n,), tl.program_id(0), tl.int32))

    x = torch.zeros(4, 2, dtype=torch.int32, dp=DPPolicy(pe="row_wise", num_cubes=1))
    x.fill_(-1)
    torch.launch("mark", mark, x[2], 2)
    assert x.tolist() == [[-1, -1], [-1, -1], [2, 2], [-1, -1]]


def test_indexing_what_was_reshaped_or_transposed(torch):
    a = numbers(4, 6)
    rows = torch.tensor(a, dp=DPPolicy(pe="row_wise", num_cubes=1))
    assert (rows.view(8, 3)[3:5].numpy() == a.reshape(8, 3)[3:5]).all()
    assert (rows.view(2, 2, 6)[1, 0].numpy() == a[2]).all()
    with pytest.raises(IndexError, match="is not one run"):
        rows.view(8, 3)[:, 1]
    columns = torch.tensor(a, dp=DPPolicy(pe="column_wise", num_cubes=1))
    assert (columns.view(8, 3).numpy() == a.reshape(8, 3)).all()
    with pytest.raises(IndexError, match="index it before reshaping"):
        columns.view(8, 3)[0]
    with pytest.raises(IndexError, match="before transposing"):
        rows.T[0]
    with pytest.raises(RuntimeError, match="reshaped and then transposed"):
        rows.view(8, 3).T.contiguous()


@pytest.mark.parametrize("key", [(slice(None, None, 2),), ([0, 1],), (np.array([0]),), (True,), (1.0,)])
def test_only_blocks(torch, key):
    with pytest.raises(IndexError, match=r"step 2 in dim 0|takes integers, slices"):
        torch.zeros(4, 4, device="ahbm")[key]


def test_too_many_indices(torch):
    with pytest.raises(IndexError, match="too many indices for tensor of dimension 2"):
        torch.zeros(4, 4, device="ahbm")[0, 0, 0]


def test_transposed_copy_lies_on_the_same_pes(torch):
    a = numbers(4, 8)
    x = torch.tensor(a, dp=DPPolicy(pe="column_wise", num_cubes=1))
    y = x.T.contiguous()
    assert [s.index for s in y.shards] == [(slice(2 * i, 2 * i + 2), slice(0, 4)) for i in range(4)]
    assert (y.numpy() == a.T).all()
    assert (y[2:4].numpy() == a.T[2:4]).all()


def test_a_view_keeps_the_memory(torch):
    x = torch.zeros(4, 4, device="ahbm")
    part = x[1]
    del x
    assert torch.accelerator.memory_allocated() == 64
    assert part.tolist() == [0, 0, 0, 0]
    del part
    assert torch.accelerator.memory_allocated() == 0
