"""The same program on real torch (gloo, two processes) and here, where torch is installed."""

from __future__ import annotations

import importlib.util
import inspect

import numpy as np
import pytest

from kernbench.runtime_api.distributed import Distributed
from tests.runtime_api.ranks import on_ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch, the oracle, is not installed"),
]


def program(torch, rank, device):
    """Return what a handful of collectives make of values that depend on the rank."""
    dist = torch.distributed

    def x(first, *shape):
        size = int(np.prod(shape))
        return (torch.from_numpy(np.arange(first, first + size, dtype=np.float32).reshape(shape))).to(device)

    found = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
        t = x(10 * rank, 3, 4)
        dist.all_reduce(t, op=op)
        found.append(t)
    t = x(10 * rank, 5)
    dist.broadcast(t, src=1)
    joint = torch.zeros(6, 4).to(device)
    dist.all_gather_into_tensor(joint, x(20 * rank, 3, 4))
    parts = [torch.zeros(2, 2).to(device) for _ in range(2)]
    dist.all_gather(parts, x(7 * rank, 2, 2))
    own = torch.zeros(4).to(device)
    dist.scatter(own, [x(3, 4), x(30, 4)] if rank == 0 else None, src=0)
    split = torch.zeros(3, 2).to(device)
    dist.all_to_all_single(split, x(50 * rank, 3, 2), [2 - rank, 1 + rank], [2 - rank, 1 + rank])
    got = torch.zeros(4).to(device)
    work = dist.isend(x(100 * rank, 4), 1 - rank)
    assert dist.recv(got, 1 - rank) == 1 - rank
    work.wait()
    found += [t, joint, *parts, own, split, got, *more(torch, rank, x, device)]
    group = dist.new_group([1])
    own_group = dist.new_group([1, 0])
    told = [dist.get_rank(group), dist.get_world_size(group), dist.get_process_group_ranks(own_group)]
    told += [dist.get_global_rank(own_group, 1), dist.get_group_rank(own_group, 0)]
    return [np.asarray(t.cpu().numpy()) for t in found], told


def more(torch, rank, x, device):
    """Return what the rest of the collectives make, of integers and halves too."""
    dist = torch.distributed
    found = []
    for dtype in (np.int32, np.int64, np.uint8, np.float16):
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            t = torch.from_numpy(np.arange(1 + rank, 7 + rank, dtype=dtype)).to(device)
            assert dist.all_reduce(t, op=op, async_op=True).wait()
            found.append(t)
    t = x(10 * rank, 5)
    dist.reduce(t, dst=1)
    found += [t] if rank == 1 else []
    part = torch.zeros(2, 3).to(device)
    dist.reduce_scatter_tensor(part, x(5 * rank, 4, 3))
    listed = torch.zeros(3).to(device)
    dist.reduce_scatter(listed, [x(rank, 3), x(9 * rank, 3)])
    gathered = [torch.zeros(2).to(device) for _ in range(2)]
    dist.gather(x(rank, 2), gathered if rank == 0 else None, dst=0)
    swapped = [torch.zeros(2).to(device) for _ in range(2)]
    dist.all_to_all(swapped, [x(100 * rank, 2), x(100 * rank + 10, 2)])
    passed = torch.zeros(3).to(device)
    ops = [dist.P2POp(dist.isend, x(7 * rank, 3), 1 - rank), dist.P2POp(dist.irecv, passed, 1 - rank)]
    assert all(work.wait() for work in dist.batch_isend_irecv(ops))
    crossed = [torch.zeros(2).to(device) for _ in range(2)]
    works = [dist.isend(x(10 * tag + rank, 2), 1 - rank, tag=tag) for tag in range(2)]
    works += [dist.irecv(crossed[tag], 1 - rank, tag=tag) for tag in (1, 0)]
    assert all(work.wait() for work in works)
    return [*found, part, listed, *gathered, *swapped, passed, *crossed]


def real(rank, port, results):
    import torch

    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results[rank] = program(torch, rank, "cpu")
    torch.distributed.destroy_process_group()


# Parameters of torch 2.15 are left out that ours do not have: how objects are unpickled, and groups that change.
LEFT_OUT = ("self", "weights_only", "enable_reconfigure")


def test_parameters_are_torchs():
    """By position and by name; torch's private ones are left out, and those that ours do not have yet."""
    import torch

    def parameters(f):
        return [name for name in inspect.signature(f).parameters if not name.startswith("_") and name not in LEFT_OUT]

    ours = {name: f for name, f in inspect.getmembers(Distributed, inspect.isfunction) if not name.startswith("_")}
    assert {"all_reduce", "all_gather_into_tensor", "new_group", "batch_isend_irecv"} <= set(ours)
    for name, f in ours.items():
        theirs = getattr(torch.distributed, name, None)
        if theirs is not None:  # a name of a later torch than is installed
            assert parameters(f) == parameters(theirs), name


def test_ranks_here_and_ranks_of_torch_compute_the_same():
    import socket

    import torch

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with torch.multiprocessing.Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.spawn(real, args=(port, results), nprocs=2)
        expected = dict(results)
    got = on_ranks(lambda torch, rank: program(torch, rank, "ahbm"))
    for rank in range(2):
        assert got[rank][1] == expected[rank][1]
        for a, b in zip(got[rank][0], expected[rank][0], strict=True):
            assert np.array_equal(a, b)
