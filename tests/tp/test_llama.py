"""A Llama-style block under tensor parallelism 1, 2, 4, 8, against numpy in f32."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench._dtypes import float32
from kernbench.errors import KernbenchError
from kernbench.tp import ModelParallelConfig
from kernbench.tp.llama import LlamaBlock, LlamaConfig, dense_attention, llama_block
from tests.slow import slow_after
from tests.tp.test_layers import on, spawned

SIZES = LlamaConfig(hidden=48, ffn=64, heads=16, kv_heads=8, head_dim=8)
rng = np.random.default_rng(8)
WEIGHTS = {
    name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32) for name, shape in SIZES.shapes().items()
}
X = rng.standard_normal((3, 2, SIZES.hidden)).astype(np.float32)


def run(torch, rank):
    block = LlamaBlock(SIZES, ModelParallelConfig(params_dtype=float32))
    block.load(WEIGHTS)
    return block(on(torch, X)).numpy()


@pytest.mark.parametrize("ranks", slow_after(2, [2, 1, 4, 8]))
def test_block_is_right_and_the_same_on_every_rank(ranks):
    got = spawned(run, ranks)
    for each in got:
        np.testing.assert_allclose(each, llama_block(X, WEIGHTS, SIZES), rtol=2e-4, atol=2e-4)
        np.testing.assert_array_equal(each, got[0])


def test_ranks_have_to_divide_the_kv_heads():
    def program(torch, rank):
        with pytest.raises(KernbenchError, match="kv_heads = 1 is not divisible"):
            LlamaBlock(LlamaConfig(hidden=16, ffn=16, heads=2, kv_heads=1, head_dim=8), ModelParallelConfig())

    spawned(program, 2)


def test_rotary_angles_are_those_of_the_paper():
    """Pair i of d / 2 turns by position / theta^(2 i / d)."""
    got = LlamaConfig(head_dim=8, theta=10000.0).angles(4)
    np.testing.assert_allclose(got[3], [3, 0.3, 0.03, 0.003], rtol=1e-12)
    np.testing.assert_array_equal(got[0], np.zeros(4))


def test_the_reference_is_the_sum_of_its_heads():
    """Attention of one kv head at a time, token by token, in f64."""
    qkv = rng.standard_normal((4, 1, 8 * 4 * 8))
    heads = qkv.reshape(4, 8, 4, 8)
    angle = SIZES.angles(4)

    def turned(x, token):
        low, high, cos, sin = x[..., :4], x[..., 4:], np.cos(angle[token]), np.sin(angle[token])
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    got = dense_attention(qkv, SIZES).reshape(4, 8, 2, 8)
    for token in range(4):
        for head in range(8):
            keys = np.stack([turned(heads[t, head, 2], t) for t in range(token + 1)])
            for i in range(2):
                weight = np.exp(keys @ turned(heads[token, head, i], token) / np.sqrt(8))
                want = weight @ heads[: token + 1, head, 3] / weight.sum()
                np.testing.assert_allclose(got[token, head, i], want, rtol=1e-10)
