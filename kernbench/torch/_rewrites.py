"""Operators passed whole to native kernels: attention, one-row products, fused products; and decompositions."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import prod, sqrt
from operator import getitem
from typing import Any

import torch
from torch.nn import functional

NATIVE = (torch.float16, torch.bfloat16, torch.float32)  # types of PE_GEMM


@torch.library.custom_op("kernbench::attention", mutates_args=())
def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, behind: int | None, scale: float
) -> torch.Tensor:
    """softmax(q k^T scale + mask) v; the number of kv heads divides that of query heads.

    With `behind`, instead of a mask, query token i sees kv tokens up to i + behind.
    """
    seen = mask if behind is None else _causal(q, k, behind)
    return functional.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


@_attention.register_fake
def _(q: Any, k: Any, v: Any, mask: Any, behind: int | None, scale: float) -> torch.Tensor:
    batch, heads, tokens, _ = q.shape
    return q.new_empty(batch, tokens, heads, v.shape[3]).transpose(1, 2)


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, ctx.behind, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask)


def _gradients(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
    behind: int | None, scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients, from recomputed scores; the products run on the machine."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) if group > 1 else x for x in (k, v))
    weights = torch.ops.aten._safe_softmax(_scores(q, keys, mask, behind, scale), -1)
    to_values = weights.to(q.dtype).transpose(-1, -2) @ grad
    to_weights = (grad @ values.transpose(-1, -2)).float()
    to_scores = (weights * (to_weights - (to_weights * weights).sum(-1, keepdim=True)) * scale).to(q.dtype)
    to_keys = to_scores.transpose(-1, -2) @ q
    if group > 1:
        to_keys, to_values = (x.unflatten(1, (k.shape[1], group)).sum(2) for x in (to_keys, to_values))
    return to_scores @ keys, to_keys, to_values


def _scores(
    q: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None, behind: int | None, scale: float
) -> torch.Tensor:
    scores = (q @ keys.transpose(-1, -2)).float() * scale
    if behind is not None:
        scores = scores.masked_fill(~_causal(q, keys, behind), float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores


def _causal(q: torch.Tensor, keys: torch.Tensor, behind: int) -> torch.Tensor:
    return torch.ones(q.shape[-2], keys.shape[-2], dtype=torch.bool, device=q.device).tril(behind)


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    q, k, v, mask = ctx.saved_tensors
    return *_gradients(grad, q, k, v, mask, ctx.behind, ctx.scale), None, None, None


_attention.register_autograd(_backward, setup_context=_setup)


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Replace torch's attention on the CPU, as called by its layers; the second result is never read."""
    if dropout_p:
        return NotImplemented
    scale = 1 / sqrt(query.shape[-1]) if scale is None else scale
    behind = 0 if is_causal else None
    scores = _scores(query, key, attn_mask, behind, scale)
    return _attention(query, key, value, attn_mask, behind, scale), scores.logsumexp(-1)


def flash_attention_backward(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor,
    logsumexp: torch.Tensor, dropout_p: float, is_causal: bool, *, attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    if dropout_p:
        return NotImplemented
    scale = 1 / sqrt(query.shape[-1]) if scale is None else scale
    return _gradients(grad_out, query, key, value, attn_mask, 0 if is_causal else None, scale)


def _replacement(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    behind: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Normalize the arguments of `scaled_dot_product_attention`: leading dims, broadcast, become one batch."""
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
    behind = 0 if is_causal else behind
    out: torch.Tensor = _attention(*four, mask, behind, 1 / sqrt(query.shape[-1]) if scale is None else scale)
    return out.reshape(*lead, *out.shape[1:]) if query.dim() > 2 else out[0, 0]


def with_native_attention(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    targets = (functional.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.target in targets:
            node.target = _replacement
            behind = _lower_right(node)
            if behind is not None:
                node.kwargs = {**node.kwargs, "attn_mask": None, "behind": behind}
    gm.recompile()
    return gm


def _lower_right(attention: torch.fx.Node) -> int | None:
    """Return the query's offset in kv tokens if the mask is that of `causal_lower_right`, else None."""
    mask, kwargs = attention.kwargs.get("attn_mask"), attention.kwargs
    if not isinstance(mask, torch.fx.Node) or mask.target != torch.tril or kwargs.get("dropout_p"):
        return None
    ones, diagonal = mask.args[0], mask.kwargs.get("diagonal", 0)
    q_len, kv_len = (x.meta["example_value"].shape[-2] for x in attention.args[:2])
    made = isinstance(ones, torch.fx.Node) and ones.target == torch.ones and ones.kwargs.get("dtype") is torch.bool
    return diagonal if made and ones.args == (q_len, kv_len) and isinstance(diagonal, int) else None


@torch.library.custom_op("kernbench::products", mutates_args=())
def _products(x: torch.Tensor, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    return [x @ weight for weight in weights]


@_products.register_fake
def _(x: Any, weights: Any) -> list[torch.Tensor]:
    return [x.new_empty(x.shape[0], weight.shape[1]) for weight in weights]


@torch.library.custom_op("kernbench::bmm", mutates_args=())
def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.bmm(a, b)


@bmm.register_fake
def _(a: Any, b: Any) -> torch.Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


@torch.library.custom_op("kernbench::summed_mm", mutates_args=())
def summed_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply; the ranks add the result up next, and it is placed for that."""
    return a @ b


@summed_mm.register_fake
def _(a: Any, b: Any) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def with_summed_products(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    for node in gm.graph.nodes:
        if node.target is torch.ops.kernbench.all_reduce.default:
            x = node.args[0]
            while _is_view(x):
                x = x.args[0]
            if x.target is torch.ops.aten.mm.default:
                x.target = torch.ops.kernbench.summed_mm.default
    gm.recompile()
    return gm


def outer_products(a: torch.Tensor, b: torch.Tensor) -> Any:
    """Products of columns with rows, elementwise; other products, also dot products, are not decomposed."""
    return (a * b).contiguous() if a.shape[2] == 1 else NotImplemented


def with_native_bmm(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Replace batched products with one row or column, which Inductor would write as a sum of products."""
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.bmm.default:
            a, b = (x.meta["val"] for x in node.args)
            if (a.shape[1] == 1 or b.shape[2] == 1) and a.dtype in NATIVE:
                node.target = torch.ops.kernbench.bmm.default
    gm.recompile()
    return gm


def with_fused_products(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    by_input: dict[str, list[torch.fx.Node]] = {}
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.mm.default and _of_inputs(node.args[1]):
            x = node.args[0]  # each product has its own view of the input
            by_input.setdefault(f"{x.target}{x.args}" if _is_view(x) else x.name, []).append(node)
    for nodes in by_input.values():
        x = nodes[0].args[0]
        if len(nodes) == 1:
            continue
        with gm.graph.inserting_before(nodes[0]):
            weights = [_again(gm.graph, node.args[1]) for node in nodes]  # may be views defined later
            fused = gm.graph.call_function(torch.ops.kernbench.products.default, (x, weights))
            fused.meta = {**nodes[0].meta, "val": [node.meta["val"] for node in nodes]}
            if all("from_node" in node.meta for node in nodes):
                source = copy(nodes[0].meta["from_node"][0])
                source.node_info = copy(source.node_info)
                source.node_info.name = ", ".join(node.meta["from_node"][0].name for node in nodes)
                fused.meta["from_node"] = [source]
            for i, node in enumerate(nodes):
                one = gm.graph.call_function(getitem, (fused, i))
                one.meta = dict(node.meta)
                node.replace_all_uses_with(one)
        for node in nodes:
            gm.graph.erase_node(node)
    gm.recompile()
    return gm


def _of_inputs(node: Any) -> bool:
    while _is_view(node):
        node = node.args[0]
    return bool(node.op == "placeholder")


def _is_view(node: Any) -> bool:
    return node.op == "call_function" and bool(getattr(node.target, "is_view", False))


def _again(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    if node.op == "placeholder":
        return node
    source = _again(graph, node.args[0])
    return graph.node_copy(node, lambda x: source if x is node.args[0] else x)


def convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
) -> Any:  # fmt: skip
    """As windows of the input and a matrix product; transposed convolutions are not decomposed."""
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
    size, count, places = prod(weight.shape[2:]), weight.shape[0] // groups, prod(outer)
    if groups == channels and count == 1:  # one filter per channel: no matrix product
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


def _topk(input: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not input.dim():
        return NotImplemented
    values, places = torch.sort(input, dim=dim, descending=largest, stable=True)
    return values.narrow(dim, 0, k), places.narrow(dim, 0, k)


def histc(input: torch.Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    if not min < max:
        return NotImplemented
    x = input.reshape(-1, 1)
    place = ((x - min) * (bins / (max - min))).floor().clamp(max=bins - 1)
    found = (place == torch.arange(bins, device=input.device)) & (x >= min) & (x <= max)
    return found.sum(0).to(input.dtype)


def gather(input: torch.Tensor, dim: int, index: torch.Tensor, sparse_grad: bool = False) -> Any:
    if dim not in (-1, input.dim() - 1) or input.shape[:-1] != index.shape[:-1]:
        return NotImplemented
    chosen = index[..., None] == torch.arange(input.shape[-1], device=input.device)
    return torch.where(chosen, input[..., None, :], 0).sum(-1).to(input.dtype)


def scatter(input: torch.Tensor, dim: int, index: torch.Tensor, value: float) -> Any:
    if dim not in (-1, input.dim() - 1) or input.shape[:-1] != index.shape[:-1]:
        return NotImplemented
    chosen = index[..., None] == torch.arange(input.shape[-1], device=input.device)
    return torch.where(chosen.any(-2), value, input)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.bmm.default: outer_products,
    torch.ops.aten.convolution.default: convolution,
    torch.ops.aten.topk.default: _topk,
    torch.ops.aten.histc.default: histc,
}
# Without values, places that a router has computed are unknown: each element is compared with all.
OF_EXPERTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.gather.default: gather,
    torch.ops.aten.scatter.value: scatter,
}
# The native kernel lacks the second result, which torch's own backward pass reads.
OF_TRAINING: dict[Any, Callable[..., Any]] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default: flash_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: flash_attention_backward,
}
