"""Memory of tensors: held while anything needs it, then given back and unmapped."""

from __future__ import annotations

import gc

import pytest

from kernbench.errors import AllocationError, OutOfBoundsError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import small


def add_one(x, n, *, tl):
    tl.store(x, tl.load(x, shape=(n,)) + 1)


def peek_at(x, address, *, tl):
    tl.load(address, shape=(4,), dtype="f32")


@pytest.fixture(autouse=True)
def _references_alone_decide():
    gc.disable()
    yield
    gc.enable()


def test_del_frees(torch):
    allocated = torch.accelerator.memory_allocated
    x = torch.zeros(1000, dtype=torch.int8, device="ahbm")
    y = torch.zeros(24, dtype=torch.int8, device="ahbm:1")
    assert (allocated(), allocated(0), allocated("ahbm:1")) == (1000, 1000, 24)
    torch.ahbm.synchronize(0)
    torch.ahbm.synchronize(1)
    first = x.data_ptr(), x.shards[0].pa
    del x
    assert (allocated(0), allocated(1)) == (0, 24)
    again = torch.zeros(1000, dtype=torch.int8, device="ahbm")
    assert (again.data_ptr(), again.shards[0].pa) == first
    del y
    assert allocated(1) == 0


def test_a_deleted_tensor_does_not_count_while_operations_are_pending(torch):
    for _ in range(4):
        x = torch.zeros(1024, dtype=torch.int8, device="ahbm")
        torch.launch("add", add_one, x, 64)
        del x
    assert torch.accelerator.memory_allocated() == 0
    assert torch.accelerator.max_memory_allocated() == 1024
    torch.ahbm.synchronize()
    assert torch.accelerator.memory_allocated() == 0


def in_place(torch, t):
    torch.distributed.all_reduce(t)


def with_a_handle(torch, t):
    torch.distributed.all_reduce(t, async_op=True).wait()


def into_a_list(torch, t):
    torch.distributed.all_gather([torch.zeros(8, device=t.device) for _ in range(2)], t)


def as_a_message(torch, t):
    if torch.distributed.get_rank():
        torch.distributed.recv(t, 0)
    else:
        torch.distributed.send(t, 1)


@pytest.mark.parametrize("exchange", [in_place, with_a_handle, into_a_list, as_a_message])
def test_a_collective_keeps_no_tensor_once_it_is_complete(torch, exchange):
    left = []

    def rank(rank, torch):
        torch.distributed.init_process_group()
        t = torch.zeros(8, device=f"ahbm:{rank}")
        exchange(torch, t)
        del t
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
        torch.ahbm.synchronize(rank)
        left.append(torch.accelerator.memory_allocated(rank))

    torch.multiprocessing.spawn(rank, args=(torch,), nprocs=2)
    assert left == [0, 0]


def test_a_view_counts_as_its_tensor(torch):
    x = torch.zeros(8, 4, dtype=torch.int32, device="ahbm")
    view = x[2:4].view(8)
    del x
    assert torch.accelerator.memory_allocated() == 128
    del view
    assert torch.accelerator.memory_allocated() == 0


def test_pending_operations_keep_the_memory(torch):
    x = torch.zeros(64, dtype=torch.int32, device="ahbm")
    kept = torch.zeros(64, dtype=torch.int32, device="ahbm")
    torch.launch("add", add_one, x, 64)
    kept.copy_(x)
    address = x.data_ptr()
    del x
    assert torch.accelerator.memory_allocated() == 256
    other = torch.zeros(64, dtype=torch.int32, device="ahbm")
    assert other.data_ptr() != address
    assert kept.tolist() == [1] * 64
    torch.ahbm.synchronize()
    assert torch.accelerator.memory_allocated() == 2 * 256


def test_what_was_freed_is_unmapped():
    with pytest.raises(OutOfBoundsError, match="'left'"), session(small(), data=True) as torch:  # noqa: PT012 : the block is what is tested
        gone = torch.zeros(64, device="ahbm", name="gone")
        left = torch.zeros(64, device="ahbm", name="left")
        torch.launch("peek", peek_at, left, gone.data_ptr())
        torch.ahbm.synchronize()
        address = gone.data_ptr()
        del gone
        torch.launch("peek", peek_at, left, address)
        torch.ahbm.synchronize()


def test_peak(torch):
    peak, reset = torch.accelerator.max_memory_allocated, torch.accelerator.reset_peak_memory_stats
    x = torch.zeros(100, dtype=torch.int8, device="ahbm")
    torch.ahbm.synchronize()
    del x
    y = torch.zeros(60, dtype=torch.int8, device="ahbm")
    assert (peak(), torch.accelerator.memory_allocated()) == (100, 60)
    reset()
    assert peak() == 60
    z = torch.zeros_like(y)
    assert peak() == 120
    del z


def test_full_memory_names_the_pe_and_holds_nothing(torch):
    per_pe = torch.engine.machine.config.cube.hbm.slice_bytes(4)
    rows = DPPolicy(pe="row_wise", num_cubes=1)
    last = torch.empty(4, dtype=torch.int8, dp=rows)[3:].clone()
    torch.ahbm.synchronize()
    assert (last.pes, torch.accelerator.memory_allocated()) == ([(0, 3)], 1)
    with pytest.raises(AllocationError, match=r"HBM slice of sip0\.cube0\.pe3: no room"):
        torch.empty(4 * per_pe, dtype=torch.int8, dp=rows)
    assert torch.accelerator.memory_allocated() == 1
    del last
    torch.empty(4 * per_pe, dtype=torch.int8, dp=rows)


def test_memory_that_waits_for_an_operation_is_waited_for(torch):
    per_pe = torch.engine.machine.config.cube.hbm.slice_bytes(4)
    x = torch.empty(per_pe, dtype=torch.int8, device="ahbm")
    torch.launch("add", add_one, x, 16)
    del x
    y = torch.empty(per_pe, dtype=torch.int8, device="ahbm")
    assert torch.accelerator.memory_allocated() == y.nbytes


def test_the_end_frees_everything():
    with session(small()) as torch:
        x = torch.zeros(64, device="ahbm", name="x")
        host = torch.zeros(64)
    assert torch.accelerator.memory_allocated() == 0
    assert host.tolist() == [0] * 64
    for use in (x.numpy, lambda: x.fill_(1), lambda: x.copy_(host), lambda: torch.zeros(4, device="ahbm")):
        with pytest.raises(RuntimeError, match="session is closed"):
            use()
    with pytest.raises(RuntimeError, match="session is closed"):
        torch.launch("add", add_one, x, 64)


def test_a_pending_copy_keeps_the_memory(torch):
    x = torch.zeros(64, device="ahbm")
    torch.ahbm.synchronize()
    x.copy_(torch.ones(64))
    free = torch.engine.allocators.pe(0, 0, 0).hbm.free_bytes
    del x
    assert torch.engine.allocators.pe(0, 0, 0).hbm.free_bytes == free
    torch.ahbm.synchronize()
    assert torch.engine.allocators.pe(0, 0, 0).hbm.free_bytes == free + 256


def test_the_end_of_a_session_frees_tensors_in_the_order_of_their_allocation():
    with session(small()) as torch:
        kept = [torch.empty(64 * i, dtype=torch.float16, device="ahbm") for i in range(1, 33)]
    rows = torch.engine.records().dependencies.allocations["nbytes"].tolist()
    assert len(kept) == 32
    assert [-n for n in rows if n < 0] == [n for n in rows if n > 0]
