"""Messages between ranks: matched by source, target, tag and order, between tensors that lie as they like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.errors import CollectiveMismatchError
from kernbench.runtime_api._multiprocessing import ProcessRaisedException
from kernbench.runtime_api.context import session
from tests.runtime_api.machines import placed_shapes, small
from tests.runtime_api.ranks import on_ranks


def full(torch, value, n=8):
    return torch.full((n,), float(value), device="ahbm")


def test_a_message_arrives_and_its_source_is_told():
    def program(torch, rank):
        x = full(torch, rank)
        if rank == 0:
            return torch.distributed.send(x, 1)
        return torch.distributed.recv(x), x.tolist()[0]

    assert on_ranks(program) == [None, (0, 0.0)]


def test_messages_keep_their_order_and_tags_keep_them_apart():
    def program(torch, rank):
        dist = torch.distributed
        if rank == 0:
            works = [dist.isend(full(torch, i), 1, tag=i % 2) for i in range(4)]
            assert all(work.wait() for work in works)
            return None
        got = []
        for tag in (1, 0, 0, 1):
            x = full(torch, -1)
            dist.recv(x, 0, tag=tag)
            got.append(x.tolist()[0])
        return got

    assert on_ranks(program)[1] == [1, 0, 2, 3]


@pytest.mark.parametrize("n", [8, 50_000])
def test_messages_of_tags_that_cross_on_their_way_are_not_mistaken(n):
    """Each side begins with another of the two; long ones do not fit into a ring."""

    def pause(p, *, tl):
        for _ in range(20):
            tl.store(p, tl.load(p, shape=(1024,)) + 1.0)

    def program(torch, rank):
        dist = torch.distributed
        x, y, work = full(torch, 1 - rank, n), full(torch, 2 - 2 * rank, n), full(torch, 0, 1024)
        torch.ahbm.synchronize()
        if rank == 0:
            full(torch, 0).numpy()  # comes later
            works = [dist.isend(x, 1, tag=1), dist.isend(y, 1, tag=2)]
        else:
            works = [dist.irecv(y, 0, tag=2)]
            torch.launch("pause", pause, work)
            works.append(dist.irecv(x, 0, tag=1))
        assert all(w.wait() for w in works)
        return set(x.tolist()), set(y.tolist())

    with session(small(2), data=True) as torch:
        assert on_ranks(program, torch=torch) == [({1.0}, {2.0})] * 2
        # Each has queues of its own while the other is under way.
        assert len(_installs(torch)) == 2 * 2


def test_queues_of_messages_that_are_over_are_used_again():
    def program(torch, rank):
        for tag in range(5):
            x = full(torch, tag * (1 - rank))
            (torch.distributed.recv if rank else torch.distributed.send)(x, 1 - rank, tag=tag)
            assert x.tolist()[0] == tag

    with session(small(2), data=True) as torch:
        on_ranks(program, torch=torch)
        assert len(_installs(torch)) == 2


def _installs(torch) -> list[str]:
    return [c.name for c in torch.engine.log.commands if c.name.startswith("install")]


def test_a_receive_from_any_takes_who_came_first():
    def program(torch, rank):
        dist = torch.distributed
        if rank:
            if rank == 1:
                full(torch, 0).numpy()  # comes later
            return dist.send(full(torch, rank), 0)
        x, y = full(torch, -1), full(torch, -1)
        work = dist.irecv(x)
        sources = dist.recv(y)
        assert not work.is_completed() or work.wait()
        work.wait()
        return sources, x.tolist()[0], y.tolist()[0]

    assert on_ranks(program, 3)[0] == (1, 2.0, 1.0)


def test_everybody_may_send_before_anybody_receives():
    n = 64 * 1024  # bytes beyond what queues hold

    def program(torch, rank):
        dist = torch.distributed
        x, y = full(torch, rank, n), full(torch, -1, n)
        sent = dist.isend(x, (rank + 1) % 3)
        assert dist.recv(y, (rank - 1) % 3) == (rank - 1) % 3
        sent.wait()
        return y.numpy()

    for rank, got in enumerate(on_ranks(program, 3)):
        assert np.array_equal(got, np.full(n, (rank - 1) % 3))


def test_a_batch_is_begun_as_a_whole():
    def program(torch, rank):
        dist = torch.distributed
        x, y = full(torch, rank), full(torch, -1)
        ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, group_peer=1 - rank)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return y.tolist()[0]

    assert on_ranks(program) == [1.0, 0.0]


def test_batches_are_checked(torch):
    dist = torch.distributed
    with pytest.raises(ValueError, match=r"expected torch\.distributed\.isend or torch"):
        dist.P2POp(dist.all_reduce, torch.zeros(4), 1)
    with pytest.raises(ValueError, match=r"expected a list of torch.distributed.P2POp, not empty"):
        dist.batch_isend_irecv([])


def test_what_is_sent_and_what_is_expected_have_to_agree():
    def program(torch, rank):
        (torch.distributed.recv if rank else torch.distributed.send)(full(torch, 0, 8 + rank), 1 - rank)

    with pytest.raises(ProcessRaisedException) as caught:
        on_ranks(program)
    assert isinstance(caught.value.__cause__, CollectiveMismatchError)
    assert str(caught.value.__cause__).splitlines() == [
        "ranks disagree about the message from rank 0 to rank 1, tag 0:",
        "  rank 0: send(shape=(8,), dtype=torch.float32)",
        "  rank 1: recv(shape=(9,), dtype=torch.float32)",
    ]


def test_nobody_sends_to_itself(torch):
    def program(torch, rank):
        with pytest.raises(ValueError, match=f"dst = {rank} is the calling rank itself"):
            torch.distributed.send(full(torch, 0), rank)

    on_ranks(program, torch=torch)


def test_messages_of_a_group_are_its_own():
    def program(torch, rank):
        dist = torch.distributed
        group = dist.new_group([1, 2])
        if rank == 0:
            return None
        x, y = full(torch, rank), full(torch, 10 * rank)
        if rank == 1:
            work = dist.isend(y, 2)
            dist.send(x, group_dst=1, group=group)
            work.wait()
            return None
        assert dist.recv(x, group=group) == 1
        dist.recv(y, 1)
        return x.tolist()[0], y.tolist()[0]

    assert on_ranks(program, 3)[2] == (1.0, 10.0)


@given(placed=placed_shapes(), other=st.data())
@settings(max_examples=15)
def test_tensors_may_lie_in_different_ways(placed, other):
    shape, dp = placed
    _, other_dp = other.draw(placed_shapes().filter(lambda p: p[1].tile is None))
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    with session(small(), data=True) as torch:

        def program(torch, rank):
            if rank == 0:
                return torch.distributed.send(torch.tensor(values, device="ahbm", dp=dp), 1)
            x = torch.zeros(shape, device="ahbm", dp=other_dp)
            torch.distributed.recv(x)
            assert np.array_equal(x.numpy(), values)
            for shard in x.shards:  # every copy, too
                raw = torch.engine.memory.peek([(shard.pa, shard.nbytes)])
                assert np.array_equal(raw.view(np.float32), values[shard.index].reshape(-1))
            return None

        on_ranks(program, torch=torch)
