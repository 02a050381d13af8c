"""Parts of a step of a decoder model, for `kernbench.serving`: as transformers has them, without weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import filter as filter_names
from importlib import import_module
from typing import Any
from warnings import catch_warnings

import torch
import transformers as hf
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from transformers.initialization import no_init_weights

from kernbench.errors import ArgumentError
from kernbench.runtime_api.context import RuntimeContext, session
from kernbench.topology.builder import Machine
from kernbench.torch._compile import CompiledModel
from kernbench.torch._device import ModelDevice, collector_paused
from kernbench.torch._experts import Routing
from kernbench.torch._models import _PLAN, _half
from kernbench.torch._parallel import EXPERT_PARTS, EXPERTS
from kernbench.torch._result import ModelResult

_SHORT = 16  # tokens of context, where attention does not matter
Sizes = Mapping[str, Any]  # the fields of a model's config.json
_OF_PARTS = {**_PLAN, "lm_head": "columns", "*.q_b_proj": "columns", "*.kv_b_proj": "columns"}


def _config(sizes: Sizes) -> Any:
    fields = {name: value for name, value in sizes.items() if name != "model_type"}
    return hf.AutoConfig.for_model(sizes["model_type"], **fields, attn_implementation="sdpa")


def _module(sizes: Sizes) -> Any:
    return import_module(f"transformers.models.{sizes['model_type']}.modeling_{sizes['model_type']}")


def _class(sizes: Sizes, name: str) -> Any:
    """Return a class of the model's module in transformers; the family is the beginning of its name."""
    return getattr(_module(sizes), "".join(part.capitalize() for part in sizes["model_type"].split("_")) + name)


class LatentAttention(torch.nn.Module):
    """Attention of DeepSeek to latents: queries and results are projected, and not the keys and values of all tokens.

    It has the weights and the result of transformers' module, which expands the latents of the whole context.
    """

    def __init__(self, attention: Any, rotate: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.attention, self.rotate = attention, rotate

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: Any, past_key_values: Any, **_: Any
    ) -> tuple[torch.Tensor, None]:
        own, (requests, tokens, _) = self.attention, hidden_states.shape
        nope, rope, latent = own.qk_nope_head_dim, own.qk_rope_head_dim, own.kv_lora_rank
        q = own.q_b_proj(own.q_a_layernorm(own.q_a_proj(hidden_states))).view(requests, tokens, -1, nope + rope)
        q, q_rope = q.transpose(1, 2).split([nope, rope], -1)
        kv, k_rope = own.kv_a_proj_with_mqa(hidden_states)[:, None].split([latent, rope], -1)
        q_rope, k_rope = self.rotate(q_rope, k_rope, *position_embeddings)
        keys = past_key_values.update(torch.cat([own.kv_a_layernorm(kv), k_rope], -1), None, 0)[0]
        to_keys, to_values = own.kv_b_proj.weight.view(-1, nope + own.v_head_dim, latent).split(
            [nope, own.v_head_dim], 1
        )
        heads, rows = to_keys.shape[0], requests * tokens
        q = torch.bmm(q.transpose(0, 1).reshape(heads, rows, nope), to_keys)
        q = torch.cat([q.view(heads, requests, tokens, latent).transpose(0, 1), q_rope], -1)
        found = functional.scaled_dot_product_attention(
            q, keys, keys[..., :latent], is_causal=tokens > 1, scale=own.scaling, enable_gqa=True
        )
        found = torch.bmm(found.transpose(0, 1).reshape(heads, rows, latent), to_values.mT)
        found = found.view(heads, requests, tokens, -1).permute(1, 2, 0, 3).reshape(requests, tokens, -1)
        return own.o_proj(found), None


class _Layer(torch.nn.Module):
    """A decoder layer for a token of each of several requests, with what it stores of them; its attention is short."""

    def __init__(self, sizes: Sizes, tp: int, tokens: int, number: int) -> None:
        super().__init__()
        config, latent = _config(sizes), sizes.get("kv_lora_rank", 0)
        self.layer = _class(sizes, "DecoderLayer")(config, number)
        self.rotary = _class(sizes, "RotaryEmbedding")(config)
        heads = 1 if latent else sizes["num_key_value_heads"] // tp
        shape = (tokens, heads, _SHORT, latent + sizes["head_dim"])
        self.keys = torch.nn.Buffer(torch.empty(shape))
        if latent:
            self.layer.self_attn = LatentAttention(self.layer.self_attn, _module(sizes).apply_rotary_pos_emb_interleave)
            self.values = self.keys
        else:
            self.values = torch.nn.Buffer(torch.empty(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(_SHORT - 1, _SHORT)[None]
        return self.layer(x, position_embeddings=self.rotary(x, at), past_key_values=self)

    def update(self, keys: torch.Tensor, values: torch.Tensor | None, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of new tokens, and return those of all: the interface of transformers' caches."""
        self.keys[:, :, _SHORT - 1 :] = keys
        if values is not None:
            self.values[:, :, _SHORT - 1 :] = values
        return self.keys, self.values


class _Head(torch.nn.Module):
    """The last norm, and the logits of the next token of each request."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = _class(sizes, "RMSNorm")(sizes["hidden_size"])
        self.lm_head = torch.nn.Linear(sizes["hidden_size"], sizes["vocab_size"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.norm(x))


def run_part(
    session: RuntimeContext, part: str, sizes: Sizes, tp: int, requests: int, ep: int = 1, skew: float = 0.0
) -> tuple[CompiledModel, int]:
    """Run a layer or the head for a token of each request on one of `tp` SIPs, as one graph, in a session.

    Also returns the number of calls: the first one of experts maps memory.
    """
    if session.engine.data:
        raise ArgumentError(f"part = {part!r}: it has no weights; run it without values")
    hidden = sizes["hidden_size"]
    torch.compiler.reset()  # rows must not depend on earlier compilations
    with FakeTensorMode(), no_init_weights(), _half():
        number = sizes.get("first_k_dense_replace", 0) if part == "layer" else 0
        model = (_Head(sizes) if part == "head" else _Layer(sizes, tp, requests, number)).eval()
        x = torch.empty(*((requests, hidden) if part == "head" else (requests, 1, hidden)))
    known, plan = [name for name, _ in model.named_modules()], {}
    if tp > 1:
        plan = {path: style for path, style in _OF_PARTS.items() if filter_names(known, path)}
    has_experts = "layer.mlp.experts" in known
    if has_experts:
        plan["*.experts"] = EXPERTS if ep > 1 else EXPERT_PARTS
    routing, calls = Routing(skew, on_device=True), 1 + has_experts
    device = ModelDevice(session, data=False, graph=True, tp=tp, fuse=True, routing=routing)
    with catch_warnings(action="ignore"):  # torch warns about copies of parameters without values
        call = CompiledModel(model, device, plan)
    with collector_paused(), torch.no_grad():
        for _ in range(calls):
            call(x)
    return call, calls


def simulate(
    machine: Machine, part: str, sizes: Sizes, tp: int, requests: int, ep: int = 1, skew: float = 0.0
) -> tuple[ModelResult, int]:
    """Return the result of a layer or the head, and the number of calls in its records; it is that of the last one."""
    with collector_paused():
        with session(machine) as ours:
            call, calls = run_part(ours, part, sizes, tp, requests, ep, skew)
        return call.result, calls  # records are collected at the end of the session
