"""Parts of a step of a decoder model, for `kernbench.serving`: as transformers has them, without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from warnings import catch_warnings

import torch
import transformers as hf
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from transformers.initialization import no_init_weights
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding

from kernbench.runtime_api.context import session
from kernbench.topology.builder import Machine
from kernbench.torch._compile import CompiledModel
from kernbench.torch._device import ModelDevice, collector_paused
from kernbench.torch._models import _PLAN, _half

_SHORT = 16  # tokens of context, where attention does not matter
Sizes = Mapping[str, int]  # the fields of a model's config.json


class _Layer(torch.nn.Module):
    """A decoder layer for a token of each of several requests, with what it stores of them; its attention is short."""

    def __init__(self, sizes: Sizes, tp: int, tokens: int) -> None:
        super().__init__()
        config = hf.LlamaConfig(**sizes, attn_implementation="sdpa")
        self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)
        shape = (tokens, sizes["num_key_value_heads"] // tp, _SHORT, sizes["head_dim"])
        self.keys, self.values = (torch.nn.Buffer(torch.empty(shape)) for _ in "kv")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(_SHORT - 1, _SHORT)[None]
        found: torch.Tensor = self.layer(x, position_embeddings=self.rotary(x, at), past_key_values=self)
        return found

    def update(self, keys: torch.Tensor, values: torch.Tensor, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of new tokens, and return those of all: the interface of transformers' caches."""
        self.keys[:, :, _SHORT - 1 :], self.values[:, :, _SHORT - 1 :] = keys, values
        return self.keys, self.values


class _Attention(torch.nn.Module):
    """Attention of `tokens` of each of some requests, the last of `context`."""

    def __init__(self, sizes: Sizes, tp: int, requests: int, tokens: int, context: int) -> None:
        super().__init__()
        self.shape = (requests, tokens, sizes["num_attention_heads"] // tp, sizes["head_dim"])
        self.context = context
        kept = (requests, sizes["num_key_value_heads"] // tp, context, sizes["head_dim"])
        self.keys, self.values = (torch.nn.Buffer(torch.empty(kept)) for _ in "kv")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x.view(self.shape).transpose(1, 2)
        _, tokens, _, _ = self.shape
        if tokens == 1:
            return scaled_dot_product_attention(q, self.keys, self.values, enable_gqa=True)
        seen = torch.tril(torch.ones(tokens, self.context, dtype=torch.bool), diagonal=self.context - tokens)
        return scaled_dot_product_attention(q, self.keys, self.values, attn_mask=seen, enable_gqa=True)


class _Head(torch.nn.Module):
    """The last norm, and the logits of the next token of each request."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = LlamaRMSNorm(sizes["hidden_size"])
        self.lm_head = torch.nn.Linear(sizes["hidden_size"], sizes["vocab_size"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.lm_head(self.norm(x))
        return found


def simulate(machine: Machine, part: str, sizes: Sizes, tp: int, requests: int, tokens: int, context: int) -> Any:
    """Return the result of a part of a step on one of `tp` SIPs, as one graph of launches."""
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"] // tp * sizes["head_dim"]
    make: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], Mapping[str, str]]] = {
        "layer": (lambda: _Layer(sizes, tp, requests), (requests, 1, hidden), _PLAN),
        "attention": (lambda: _Attention(sizes, tp, requests, tokens, context), (requests, tokens, heads), {}),
        "head": (lambda: _Head(sizes), (requests, hidden), {"lm_head": "columns"}),
    }
    module, shape, plan = make[part]
    sips = tp if plan else 1
    torch.compiler.reset()  # rows must not depend on earlier compilations
    with FakeTensorMode(), no_init_weights(), _half():
        model, x = module().eval(), torch.empty(*shape)
    device = ModelDevice(machine, data=False, tp=sips, fuse=True)
    with catch_warnings(action="ignore"):  # torch warns about copies of parameters without values
        call = CompiledModel(model, device, plan if sips > 1 else {})
    device.close()
    with collector_paused():
        with session(machine) as ours:
            device.use(ours)
            device.graph = True
            with torch.no_grad():
                call(x)
        return call.result  # records are collected at the end of the session
