"""Models of the transformers package for the study `models`: unmodified, and without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from warnings import catch_warnings

import torch
import transformers as hf
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers.initialization import no_init_weights
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from kernbench.errors import ArgumentError
from kernbench.runtime_api.context import session
from kernbench.topology.builder import Machine
from kernbench.torch._compile import CompiledModel
from kernbench.torch._device import ModelDevice, collector_paused
from kernbench.torch._experts import Routing
from kernbench.torch._parallel import EXPERTS
from kernbench.torch._result import ModelResult

HEAD, _GROUP, _FFN = (
    128,
    8,
    3.5,
)  # of Llama-3 70B: elements of a head, query heads per kv head, feed-forward width over hidden width
_PLAN = {
    **{f"*.{name}_proj": "columns" for name in ("q", "k", "v", "gate", "up")},
    **{f"*.{name}_proj": "rows" for name in ("o", "down")},
}


class Llama(torch.nn.Module):
    """A decoder layer of Llama with its rotary embedding; in decode, with the keys and values of earlier tokens."""

    def __init__(self, hidden: int, tokens: int, context: int, tp: int) -> None:
        super().__init__()
        if hidden % (HEAD * _GROUP * tp):
            raise ArgumentError(
                f"hidden = {hidden} with tp = {tp}: a SIP has groups of {_GROUP} query heads of {HEAD} elements, so "
                f"use a multiple of {HEAD * _GROUP * tp}"
            )
        heads = hidden // HEAD
        config = hf.LlamaConfig(
            hidden_size=hidden, intermediate_size=int(_FFN * hidden), num_attention_heads=heads,
            num_key_value_heads=heads // _GROUP, attn_implementation="sdpa",
        )  # fmt: skip
        self.layer, self.rotary = LlamaDecoderLayer(config, 0), LlamaRotaryEmbedding(config)
        self.before = context - tokens
        if self.before:
            size = (1, heads // _GROUP // tp, context, HEAD)
            self.keys, self.values = (torch.nn.Buffer(torch.empty(size)) for _ in "kv")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        at = torch.arange(self.before, self.before + x.shape[1])[None]
        cache = self if self.before else None
        return self.layer(x, position_embeddings=self.rotary(x, at), past_key_values=cache)

    def update(self, keys: torch.Tensor, values: torch.Tensor, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the keys and values of new tokens, and return those of all: the interface of transformers' caches."""
        self.keys[:, :, self.before :], self.values[:, :, self.before :] = keys, values
        return self.keys, self.values


class Gpt2(torch.nn.Module):
    """The first block of GPT-2 and its head, from embedded tokens to the logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.model = hf.GPT2LMHeadModel(hf.GPT2Config(n_layer=1, use_cache=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(inputs_embeds=x, logits_to_keep=1).logits


def _decode(tp: int, hidden: int, context: int) -> tuple[torch.nn.Module, torch.Tensor]:
    return Llama(hidden, 1, context, tp), torch.empty(1, 1, hidden)


def _prefill(tp: int, hidden: int, prompt: int) -> tuple[torch.nn.Module, torch.Tensor]:
    return Llama(hidden, prompt, prompt, tp), torch.empty(1, prompt, hidden)


def _gpt2(tp: int, tokens: int) -> tuple[torch.nn.Module, torch.Tensor]:
    return Gpt2(), torch.empty(1, tokens, 768)


def _vit(tp: int) -> tuple[torch.nn.Module, torch.Tensor]:
    return hf.ViTForImageClassification(hf.ViTConfig(num_hidden_layers=1)), torch.empty(1, 3, 224, 224)


def _mixtral(tp: int) -> tuple[torch.nn.Module, torch.Tensor]:
    config = hf.MixtralConfig(hidden_size=512, intermediate_size=1024, num_local_experts=8, num_experts_per_tok=2)
    return MixtralSparseMoeBlock(config), torch.empty(1, 512, 512)


_MAKE: dict[str, Callable[..., tuple[torch.nn.Module, torch.Tensor]]] = {
    "llama3-70b-decode": _decode, "llama3-70b-prefill": _prefill, "gpt2": _gpt2, "vit": _vit,
    "mixtral": _mixtral, "mixtral-skewed": _mixtral,
}  # fmt: skip
_SKEWS = {"mixtral": 0.0, "mixtral-skewed": 1.0}


@contextmanager
def _half() -> Iterator[None]:
    torch.set_default_dtype(torch.float16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def make(name: str, tp: int, **sizes: Any) -> tuple[torch.nn.Module, torch.Tensor]:
    """Return a model of `kernbench.studies.models` and its input, in f16, without values."""
    with FakeTensorMode(), no_init_weights(), _half():
        model, x = _MAKE[name](tp, **sizes)
    return model.eval(), x


def _bytes_read(model: torch.nn.Module) -> int:
    """Bytes of weights, keys and values that a call reads at least once.

    Embedding tables do not count, unless another layer shares them: a call reads a few rows.
    """
    tables = {id(x.weight) for x in model.modules() if isinstance(x, torch.nn.Embedding)}
    shared = {id(x.weight) for x in model.modules() if isinstance(x, torch.nn.Linear)}
    read = [x for x in (*model.parameters(), *model.buffers()) if id(x) not in tables - shared]
    return sum(x.numel() * x.element_size() for x in read)


class Calls:
    """A model compiled once and called on several machines; a SIP reads at least `nbytes` in a call."""

    def __init__(self, machine: Machine, name: str, tp: int, **sizes: Any) -> None:
        torch.compiler.reset()  # rows must not depend on earlier compilations
        model, self._x = make(name, tp, **sizes)
        skew = _SKEWS.get(name)
        routing, plan = (None, _PLAN if tp > 1 else {}) if skew is None else (Routing(skew), {"*.experts": EXPERTS})
        self._device, self._times = ModelDevice(machine, data=False, tp=tp, routing=routing), 1 + (skew is not None)
        with catch_warnings(action="ignore"):  # torch warns about copies of parameters without values
            self._call = CompiledModel(model, self._device, plan)
        self._device.close()
        self.nbytes = _bytes_read(model if self._call._ranks is None else self._call._ranks.models[0])

    def on(self, machine: Machine, graph: bool = False) -> ModelResult:
        with collector_paused():
            with session(machine) as ours:
                self._device.use(ours)
                self._device.graph = graph
                with torch.no_grad():
                    for _ in range(self._times):  # the first call of experts maps memory and installs queues
                        self._call(self._x)
            return self._call.result  # inside the with-block: records are collected once, at the end of the session
