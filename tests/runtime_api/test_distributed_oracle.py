"""The same program on real torch (gloo, two processes) and here, where torch is installed."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

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
    group = dist.new_group([1])
    outside = dist.get_rank(group)
    return [np.asarray(t.cpu().numpy()) for t in (*found, t, joint, *parts, own, split, got)], outside


def real(rank, port, results):
    import torch

    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    results[rank] = program(torch, rank, "cpu")
    torch.distributed.destroy_process_group()


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
