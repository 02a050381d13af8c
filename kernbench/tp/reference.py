"""What a Llama block computes, in numpy: the same weights, one device, the type of its input."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernbench.tp.llama import LlamaConfig


def llama_block(x: np.ndarray, weights: Mapping[str, np.ndarray], sizes: LlamaConfig) -> np.ndarray:
    """Return the block's output for x [sequence, batch, hidden], with whole weights as of `LlamaConfig.shapes`."""
    w = weights
    x = x + attention(_norm(x, w["norm1"], sizes.eps) @ w["qkv"].T, sizes) @ w["o"].T
    y = _norm(x, w["norm2"], sizes.eps)
    gate = y @ w["gate"].T
    out: np.ndarray = x + (gate / (1 + np.exp(-gate)) * (y @ w["up"].T)) @ w["down"].T
    return out


def attention(qkv: np.ndarray, sizes: LlamaConfig) -> np.ndarray:
    """Return causal attention with rotary embedding, [sequence, batch, heads * head_dim], of a fused projection."""
    tokens, batch, _ = qkv.shape
    group, d = sizes.group, sizes.head_dim
    heads = qkv.reshape(tokens, batch, sizes.kv_heads, group + 2, d)
    turn = np.exp(1j * sizes.angles(tokens))[:, None, None, None]
    z = (heads[..., : d // 2] + 1j * heads[..., d // 2 :]) * turn
    turned = np.concatenate([z.real, z.imag], -1).astype(qkv.dtype)
    q, k, v = turned[..., :group, :], turned[..., group, :], heads[..., group + 1, :]
    s = np.einsum("qbhgd,kbhd->bhgqk", q, k) / np.sqrt(d)
    s = np.where(np.tri(tokens, dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    out: np.ndarray = np.einsum("bhgqk,kbhd->qbhgd", p / p.sum(-1, keepdims=True), v).reshape(tokens, batch, -1)
    return out


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    out: np.ndarray = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight
    return out
