"""Any array, placed in any way, comes back; and lies where its shards say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import CUBES, PES, placed_shapes, small

KINDS = ["float16", "bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int8", "int32", "int64", "bool"]


def filled(shape, seed=0):
    return np.random.default_rng(seed).integers(-100, 100, shape)


@settings(max_examples=40)
@given(placed_shapes(), st.sampled_from(KINDS))
def test_what_is_written_is_read_back(placed, kind):
    shape, dp = placed
    with session(small(), data=True, log="off") as torch:
        dtype = getattr(torch, kind)
        values = filled(shape).astype(dtype.numpy)
        tensor = torch.from_numpy(values).to("ahbm", dp=dp)
        assert tensor.dtype is dtype
        assert (tensor.numpy() == values).all()


@settings(max_examples=40)
@given(placed_shapes())
def test_every_shard_has_its_part_row_by_row(placed):
    shape, dp = placed
    with session(small(), data=True, log="off") as torch:
        values = filled(shape).astype(np.int16)
        tensor = torch.tensor(values, dp=dp)
        end = 0
        for shard in tensor.shards:
            part = values[shard.index]
            assert shard.pa % 256 == 0
            assert shard.nbytes == part.nbytes
            stored = torch.engine.memory.peek([(shard.pa, shard.nbytes)])
            assert (stored.view(np.int16) == part.ravel()).all()
            # Parts follow each other without gaps; copies have the same offset.
            assert shard.offset_bytes in (end, end - shard.nbytes)
            end = shard.offset_bytes + shard.nbytes
        assert end == values.nbytes


@settings(max_examples=15)
@given(placed_shapes())
def test_every_pe_of_the_sip_reads_the_whole_tensor_through_its_mmu(placed):
    shape, dp = placed

    def copy_all(src, dst, n, *, tl):
        me = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        tl.store(dst + me * n, tl.load(src, shape=(n,)))

    with session(small(), data=True, log="off") as torch:
        src = torch.tensor(filled(shape), dtype=torch.int32, dp=dp)
        seen = torch.zeros(CUBES * PES, src.numel(), dtype=torch.int32, dp=DPPolicy("row_wise", "row_wise"))
        torch.launch("copy", copy_all, src, seen, src.numel())
        # In the order of the address space: part after part.
        order = [src.numpy()[s.index].ravel() for s in {s.offset_bytes: s for s in src.shards}.values()]
        assert (seen.numpy() == np.concatenate(order)).all()


def test_a_copy_near_the_pe_is_read(torch):
    def first(src, dst, *, tl):
        tl.store(dst + tl.program_id(0), tl.load(src, shape=(1,)))

    src = torch.zeros(1, dtype=torch.int32, dp=DPPolicy(num_cubes=1))
    for shard in src.shards:  # make the copies differ
        torch.engine.memory.poke([(shard.pa, 4)], np.array([shard.pe], np.int32).view(np.uint8))
    dst = torch.zeros(PES, dtype=torch.int32, dp=DPPolicy(pe="row_wise", num_cubes=1))
    torch.launch("first", first, src, dst)
    assert dst.tolist() == [0, 1, 2, 3]


def test_default_is_one_pe(torch):
    tensor = torch.zeros(8, 8, device="ahbm")
    assert [(s.sip, s.cube, s.pe, s.nbytes) for s in tensor.shards] == [(0, 0, 0, 256)]


def test_copies_count_in_memory_but_not_in_the_tensor(torch):
    tensor = torch.zeros(64, dtype=torch.int8, dp=DPPolicy())
    assert (tensor.nbytes, len(tensor.shards)) == (64, CUBES * PES)
    assert torch.accelerator.memory_allocated() == 64 * CUBES * PES
    tensor.copy_(torch.arange(64, dtype=torch.int8))
    torch.ahbm.synchronize()
    for shard in tensor.shards:
        assert (torch.engine.memory.peek([(shard.pa, 64)]) == np.arange(64)).all()


def test_empty_tensors_are_tensors(torch):
    tensor = torch.zeros(0, 4, device="ahbm")
    assert tensor.numpy().shape == (0, 4)
    assert tensor.shards == ()
    assert tensor.copy_(torch.zeros(0, 4)).tolist() == []


def test_scalar_tensors_are_tensors(torch):
    assert torch.tensor(3.5).to("ahbm").item() == 3.5


def test_policy_that_does_not_fit_is_refused(torch):
    with pytest.raises(Exception, match="num_cubes = 5, but there are 4"):
        torch.zeros(4, dp=DPPolicy(num_cubes=5))
    assert torch.accelerator.memory_allocated() == 0
