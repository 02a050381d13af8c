"""Attention over ranks, in the mock: round a ring, along a chain, in parts merged by all-reduce algorithms."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl.algorithm import algorithm
from kernbench.ccl.testing import run_kernel_in_mock
from kernbench.errors import KernbenchError
from kernbench.kernels import ring_attention as ring
from tests.kernels.test_attention import bound, drawn, exact


def attend(q, k, v, causal, order, is_ring):
    """Run on ranks whose parts are q [world, kv_heads, tokens, group, d] and k, v [world, kv_heads, tokens, d]."""
    world, kv_heads, _, group, d = q.shape
    options = {"kv_heads": kv_heads, "group": group, "head_dim": d, "causal": causal, "order": order, "ring": is_ring}
    topology = "ring_1d" if is_ring else "mesh_2d_no_wrap"
    entry = algorithm(
        ring.ring_attention, ring.kernel_args, topology=topology, options=options | {"grid_w": world, "grid_h": 1}
    )
    out = np.zeros_like(q)
    run_kernel_in_mock(entry, list(zip(q, k, v, out, strict=True)))
    return out


def in_order(x, order):
    """From parts by rank to one sequence: [world, kv_heads, tokens, ...] -> [kv_heads, world * tokens, ...]."""
    world, _, tokens = x.shape[:3]
    at = np.zeros((world, tokens), int)
    for rank in range(world):
        for span in ring.tokens_of(order, rank, world, tokens):
            at[rank, span.start : span.start + span.size] = span.first + span.step * np.arange(span.size)
    whole = np.zeros((x.shape[1], world * tokens, *x.shape[3:]), x.dtype)
    for rank in range(world):
        whole[:, at[rank]] = x[rank]
    return whole


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 2), st.integers(1, 9), st.integers(1, 20), st.booleans(), st.booleans(),
    st.sampled_from(ring.ORDERS),
)  # fmt: skip
def test_ranks_together_are_one(world, kv_heads, group, half, causal, is_ring, order):
    q = drawn((world, kv_heads, 2 * half, group, 16), np.float32)
    k, v = drawn((2, world, kv_heads, 2 * half, 16), np.float32)
    got = in_order(attend(q, k, v, causal, order, is_ring), order)
    assert np.abs(got - exact(in_order(q, order), in_order(k, order), in_order(v, order), causal)).max() < 1e-4


@pytest.mark.parametrize("is_ring", [True, False])
def test_more_rows_than_stay_in_tcm(is_ring):
    q, (k, v) = drawn((2, 1, 80, 8, 32), np.float16, 2), drawn((2, 2, 1, 80, 32), np.float16, 2)
    q_, k_, v_ = (in_order(x, "contiguous") for x in (q, k, v))
    got, want = in_order(attend(q, k, v, True, "contiguous", is_ring), "contiguous"), exact(q_, k_, v_, True)
    assert (np.abs(got - want) <= bound(q_, k_, v_, want)).all()


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(ring.ORDERS), st.integers(1, 9), st.integers(1, 9))
def test_orders_give_every_position_once(order, world, half):
    spans = [span for rank in range(world) for span in ring.tokens_of(order, rank, world, 2 * half)]
    positions = sorted(span.first + span.step * i for span in spans for i in range(span.size))
    assert positions == [*range(2 * half * world)]


def test_zigzag_gives_every_rank_the_same_work():
    def pairs(order, rank):
        return sum(
            span.first + span.step * i + 1 for span in ring.tokens_of(order, rank, 4, 8) for i in range(span.size)
        )

    assert len({pairs("zigzag", rank) for rank in range(4)}) == 1
    assert all(pairs("contiguous", a) < pairs("contiguous", b) for a, b in pairwise(range(4)))


def test_unknown_orders_are_refused():
    with pytest.raises(KernbenchError, match="known: contiguous, zigzag, striped"):
        ring.tokens_of("random", 0, 2, 4)
    with pytest.raises(KernbenchError, match="3 is odd"):
        ring.tokens_of("zigzag", 0, 2, 3)
