"""A Llama-style block under tensor parallelism 1, 2, 4, 8, against numpy in f32."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.dtypes import float32
from kernbench.errors import KernbenchError
from kernbench.tp import ModelParallelConfig
from kernbench.tp.llama import LlamaBlock, LlamaConfig
from tests.tp.test_layers import on, spawned

SIZES = LlamaConfig(hidden=48, ffn=64, heads=16, kv_heads=8, head_dim=8)
rng = np.random.default_rng(8)
WEIGHTS = {
    name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32) for name, shape in SIZES.shapes().items()
}
X = rng.standard_normal((3, 2, SIZES.hidden)).astype(np.float32)


def norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + SIZES.eps) * weight


def reference(x):
    tokens, batch, _ = x.shape
    kv, group, d, w = SIZES.kv_heads, SIZES.group, SIZES.head_dim, WEIGHTS
    qkv = (norm(x, w["norm1"]) @ w["qkv"].T).reshape(tokens, batch, kv, group + 2, d)
    z = (qkv[..., : d // 2] + 1j * qkv[..., d // 2 :]) * np.exp(1j * SIZES.angles(tokens))[:, None, None, None]
    turned = np.concatenate([z.real, z.imag], -1)
    q, k, v = turned[..., :group, :], turned[..., group, :], qkv[..., group + 1, :]
    s = np.einsum("qbhgd,kbhd->bhgqk", q, k) / np.sqrt(d)
    s = np.where(np.tri(tokens, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    mixed = np.einsum("bhgqk,kbhd->qbhgd", p / p.sum(-1, keepdims=True), v).reshape(tokens, batch, -1)
    x = x + mixed @ w["o"].T
    y = norm(x, w["norm2"])
    gate = y @ w["gate"].T
    return x + (gate / (1 + np.exp(-gate)) * (y @ w["up"].T)) @ w["down"].T


def run(torch, rank):
    block = LlamaBlock(SIZES, ModelParallelConfig(params_dtype=float32))
    block.load(WEIGHTS)
    return block(on(torch, X)).numpy()


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_block_is_right_and_the_same_on_every_rank(ranks):
    got = spawned(run, ranks)
    for each in got:
        np.testing.assert_allclose(each, reference(X), rtol=2e-4, atol=2e-4)
        np.testing.assert_array_equal(each, got[0])


def test_ranks_have_to_divide_the_kv_heads():
    def program(torch, rank):
        with pytest.raises(KernbenchError, match="kv_heads = 1 is not divisible"):
            LlamaBlock(LlamaConfig(hidden=16, ffn=16, heads=2, kv_heads=1, head_dim=8), ModelParallelConfig())

    spawned(program, 2)
