"""Attention as one operator of torch, so that it reaches the native kernel whole."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import torch
from torch.nn import functional


@torch.library.custom_op("kernbench::attention", mutates_args=())
def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, scale: float
) -> torch.Tensor:
    """Return softmax(q k^T scale + mask) v; kv heads divide the query heads."""
    return functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )


@attention.register_fake
def _(q: Any, k: Any, v: Any, mask: Any, is_causal: bool, scale: float) -> torch.Tensor:
    batch, heads, tokens, _ = q.shape
    return q.new_empty(batch, tokens, heads, v.shape[3]).transpose(1, 2)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask)


def _gradients(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the gradients, with the scores computed again; the products are those of the machine."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    weights = torch.ops.aten._safe_softmax(_scores(q, keys, mask, is_causal, scale), -1)
    to_values = weights.to(q.dtype).transpose(-1, -2) @ grad
    to_weights = (grad @ values.transpose(-1, -2)).float()
    to_scores = (weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True)) * scale).to(q.dtype)
    to_keys = to_scores.transpose(-1, -2) @ q
    if group > 1:
        to_keys, to_values = (x.unflatten(1, (k.shape[1], group)).sum(2) for x in (to_keys, to_values))
    return to_scores @ keys, to_keys, to_values


def _scores(
    q: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None, is_causal: bool, scale: float
) -> torch.Tensor:
    scores = (q @ keys.transpose(-1, -2)).float() * scale
    if is_causal:
        seen = torch.ones(q.shape[2], keys.shape[2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    q, k, v, mask = ctx.saved_tensors
    return *_gradients(grad, q, k, v, mask, ctx.is_causal, ctx.scale), None, None, None


attention.register_autograd(_backward, setup_context=_setup)


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Return torch's attention on the CPU, which its layers call, as the operator; nothing reads the second result."""
    if dropout_p:
        return NotImplemented
    scale = 1 / sqrt(query.shape[-1]) if scale is None else scale
    scores = _scores(query, key, attn_mask, is_causal, scale)
    return attention(query, key, value, attn_mask, is_causal, scale), scores.logsumexp(-1)


def flash_attention_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, dropout_p: float, is_causal: bool, *, attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    """Return its gradients."""
    if dropout_p:
        return NotImplemented
    scale = 1 / sqrt(query.shape[-1]) if scale is None else scale
    return _gradients(grad_out, query, key, value, attn_mask, is_causal, scale)


def _replacement(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Take the arguments of `scaled_dot_product_attention`; leading dims, which may be broadcast, are one batch."""
    if dropout_p or (attn_mask is not None and attn_mask.requires_grad):
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    three = [x if x.dim() > 2 else x.unsqueeze(0) for x in (query, key, value)]
    lead = torch.broadcast_shapes(*(x.shape[:-3] for x in three))
    kv_heads = max(x.shape[-3] for x in three[1:])
    heads = max(three[0].shape[-3], kv_heads)
    four = [
        x.expand(*lead, n, *x.shape[-2:]).reshape(-1, n, *x.shape[-2:])
        for x, n in zip(three, (heads, kv_heads, kv_heads), strict=True)
    ]
    mask = attn_mask
    if mask is not None:
        mask = mask.expand(*lead, heads, query.shape[-2], key.shape[-2])
        mask = mask.reshape(-1, *mask.shape[-3:])
    out: torch.Tensor = attention(*four, mask, is_causal, 1 / sqrt(query.shape[-1]) if scale is None else scale)
    return out.reshape(*lead, *out.shape[1:]) if query.dim() > 2 else out[0, 0]


def with_native_attention(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Let a graph of dynamo call the operator instead of torch's attention."""
    targets = (functional.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in targets:
            node.target = _replacement
    gm.recompile()
    return gm


def convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
) -> Any:  # fmt: skip
    """Return a convolution as windows of the input and a matrix product; transposed ones are left as they are."""
    if transposed or input.dim() != weight.dim():
        return NotImplemented
    dims = weight.dim() - 2
    sides = [side for p in reversed(padding) for side in (p, p)]
    x = functional.pad(input, sides) if any(sides) else input
    windows = x
    for d in range(dims):
        reach = dilation[d] * (weight.shape[2 + d] - 1) + 1
        windows = windows.unfold(2 + d, reach, stride[d])
        if dilation[d] > 1:
            windows = windows[..., :: dilation[d]]
    batch, channels, *outer = windows.shape[: 2 + dims]
    size = 1
    for n in weight.shape[2:]:
        size *= n
    count, places = weight.shape[0] // groups, 1
    for n in outer:
        places *= n
    if groups == channels and count == 1:  # one filter for each channel: no matrix product
        filters = weight.reshape(channels, *([1] * dims), *weight.shape[2:])
        out = (windows.float() * filters.float()).sum(list(range(2 + dims, 2 + 2 * dims))).to(input.dtype)
    else:
        order = [0, *range(2, 2 + dims), 1, *range(2 + dims, 2 + 2 * dims)]
        rows = windows.permute(*order).reshape(batch * places, groups, channels // groups * size)
        filters = weight.reshape(groups, count, -1)
        if groups == 1:
            found = rows[:, 0] @ filters[0].t()
        else:
            found = torch.bmm(rows.transpose(0, 1), filters.transpose(1, 2)).transpose(0, 1)
        out = found.reshape(batch, *outer, weight.shape[0]).movedim(-1, 1)
    return out if bias is None else out + bias.reshape(-1, *([1] * dims))


def topk(input: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return the largest values, as the first ones after sorting."""
    if not input.dim():
        return NotImplemented
    values, places = torch.sort(input, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


def histc(input: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """Return a histogram, as one comparison for each bin; without bounds it is left as it is."""
    if not min < max:
        return NotImplemented
    x = input.reshape(-1, 1)
    place = ((x - min) * (bins / (max - min))).floor().clamp(max=bins - 1)
    found = (place == torch.arange(bins, device=input.device)) & (x >= min) & (x <= max)
    return found.sum(0).to(input.dtype)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.convolution.default: convolution,
    torch.ops.aten.topk.default: topk,
    torch.ops.aten.histc.default: histc,
}
# The native kernel has no second result, which torch's own backward reads.
OF_TRAINING: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: flash_attention_backward,
}
