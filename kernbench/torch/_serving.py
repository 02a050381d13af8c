"""Parts of a step of a decoder model, for `kernbench.serving`: as transformers has them, without weights."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import filter as filter_names
from importlib import import_module
from typing import Any
from warnings import catch_warnings

import torch
import transformers as hf
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights

from kernbench.errors import ArgumentError
from kernbench.runtime_api.context import RuntimeContext, session
from kernbench.serving._models import experts_of
from kernbench.topology.builder import Machine
from kernbench.torch._compile import CompiledModel
from kernbench.torch._device import ModelDevice, collector_paused
from kernbench.torch._experts import Routing
from kernbench.torch._models import _PLAN, _half
from kernbench.torch._parallel import EXPERT_PARTS, EXPERTS
from kernbench.torch._result import ModelResult

_SHORT = 16  # tokens of context, where attention does not matter
Sizes = Mapping[str, Any]  # the fields of a model's config.json


def _config(sizes: Sizes) -> Any:
    fields = {name: value for name, value in sizes.items() if name != "model_type"}
    return hf.AutoConfig.for_model(sizes["model_type"], **fields, attn_implementation="sdpa")


def _class(sizes: Sizes, name: str) -> Any:
    """Return a class of the model's module in transformers; the family is the beginning of its name."""
    family = sizes["model_type"]
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    return getattr(module, "".join(part.capitalize() for part in family.split("_")) + name)


class _Layer(torch.nn.Module):
    """A decoder layer for a token of each of several requests, with what it stores of them; its attention is short."""

    def __init__(self, sizes: Sizes, tp: int, tokens: int) -> None:
        super().__init__()
        config = _config(sizes)
        self.layer, self.rotary = _class(sizes, "DecoderLayer")(config, 0), _class(sizes, "RotaryEmbedding")(config)
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


class _Head(torch.nn.Module):
    """The last norm, and the logits of the next token of each request."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm = _class(sizes, "RMSNorm")(sizes["hidden_size"])
        self.lm_head = torch.nn.Linear(sizes["hidden_size"], sizes["vocab_size"], bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.lm_head(self.norm(x))
        return found


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
        model = (_Layer(sizes, tp, requests) if part == "layer" else _Head(sizes)).eval()
        x = torch.empty(*((requests, 1, hidden) if part == "layer" else (requests, hidden)))
    has_experts = part == "layer" and experts_of(sizes) > 0
    plan = (_PLAN if part == "layer" else {"lm_head": "columns"}) if tp > 1 else {}
    if has_experts:
        known = [name for name, _ in model.named_modules()]
        plan = {path: style for path, style in plan.items() if filter_names(known, path)}
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
