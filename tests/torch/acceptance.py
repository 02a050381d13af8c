"""Models of the transformers package, unmodified, on the PEs of a small machine, in f16, against torch.

    python -m tests.torch.acceptance [--markdown] [name ...]

Tiny configurations with random weights. The error against eager f32, relative to the largest element, must be at most
twice that of eager f16, and at least 99 % of the FLOPs must run on PEs. No host fallback is permitted: no model needs
one. Needs torch, triton and transformers; the exit status is 1 if a model fails.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf

import kernbench as kb
from tests.acceptance.table import table
from tests.torch.models import leaves, worst

MACHINE = "preset:small"
TOKENS = 24  # of a sequence
ROOM = 2.0  # the machine's error over that of eager f16, at most
SHARE = 0.99  # of the FLOPs on PEs, at least

Case = tuple[torch.nn.Module, dict[str, torch.Tensor]]
DECODER = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "use_cache": False,
}  # fmt: skip


def ids(*shape: int) -> torch.Tensor:
    """Return token ids, the same at every call."""
    return torch.randint(3, 128, shape, generator=torch.Generator().manual_seed(1))


def randn(*shape: int) -> torch.Tensor:
    """Return random numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def decoder(name: str, **more: Any) -> Case:
    """Return a language model `<name>ForCausalLM`."""
    config = getattr(hf, f"{name}Config")(**DECODER, **more)
    return getattr(hf, f"{name}ForCausalLM")(config), {"input_ids": ids(2, TOKENS)}


def gpt2() -> Case:
    """Return GPT-2."""
    config = hf.GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=2, n_head=4, use_cache=False)
    return hf.GPT2LMHeadModel(config), {"input_ids": ids(2, TOKENS)}


def bert() -> Case:
    """Return BERT, with padding in its second sequence."""
    config = hf.BertConfig(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                           intermediate_size=128, max_position_embeddings=64)  # fmt: skip
    mask = torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, TOKENS // 2 :] = 0
    return hf.BertForMaskedLM(config), {"input_ids": ids(2, TOKENS), "attention_mask": mask}


def t5() -> Case:
    """Return T5: encoder and decoder."""
    config = hf.T5Config(vocab_size=128, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, use_cache=False)
    return hf.T5ForConditionalGeneration(config), {"input_ids": ids(2, TOKENS), "decoder_input_ids": ids(2, 9)}


def vit() -> Case:
    """Return ViT."""
    config = hf.ViTConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
                          image_size=32, patch_size=8, num_labels=10)  # fmt: skip
    return hf.ViTForImageClassification(config), {"pixel_values": randn(2, 3, 32, 32)}


def mamba() -> Case:
    """Return Mamba: a convolution and a scan over the sequence."""
    config = hf.MambaConfig(vocab_size=128, hidden_size=64, state_size=8, num_hidden_layers=2, use_cache=False)
    return hf.MambaForCausalLM(config), {"input_ids": ids(2, TOKENS)}


def whisper() -> Case:
    """Return the encoder of Whisper."""
    config = hf.WhisperConfig(vocab_size=128, d_model=64, encoder_layers=2, encoder_attention_heads=4,
                              encoder_ffn_dim=128, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=128,
                              num_mel_bins=16, max_source_positions=TOKENS, pad_token_id=0)  # fmt: skip
    return hf.WhisperModel(config).encoder, {"input_features": randn(2, 16, 2 * TOKENS)}


CASES: dict[str, Callable[[], Case]] = {
    "Llama": lambda: decoder("Llama"),
    "Mistral": lambda: decoder("Mistral", sliding_window=8),
    "Qwen": lambda: decoder("Qwen2"),
    "Gemma": lambda: decoder("Gemma", head_dim=16),
    "Phi": lambda: decoder("Phi"),
    "GPT-2": gpt2,
    "BERT": bert,
    "T5": t5,
    "ViT": vit,
    "Mixtral": lambda: decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "Mamba": mamba,
    "Whisper encoder": whisper,
}


def measure(name: str) -> tuple[str, ...]:
    """Return a row of the table.

    Raises
    ------
    AssertionError
        If the model does not meet the criteria.
    """
    begin = time.process_time()
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, inputs = CASES[name]()
    model.eval()
    half = {k: x.half() if x.is_floating_point() else x for k, x in inputs.items()}
    with torch.no_grad():
        exact = leaves(model.float()(**inputs))
        eager = leaves(model.half()(**half))
        compiled = kb.torch.compile(model, MACHINE)
        found = leaves(compiled(**half))
    result = compiled.result
    compiled.close()
    assert len(found) == len(exact), f"{len(found)} outputs where torch has {len(exact)}"
    error, allowed = (max(worst(x, y) for x, y in zip(xs, exact, strict=True)) for xs in (found, eager))
    assert error <= ROOM * allowed, f"the error is {error:.1e} of the largest element, that of eager f16 {allowed:.1e}"
    fallbacks = {part.name for part in result.host_fallbacks}
    assert not fallbacks, f"on the host: {', '.join(sorted(fallbacks))}"
    share = result.device_flops_share
    assert share >= SHARE, f"{share:.1%} of the FLOPs run on PEs"
    return (
        name, str(len(result.launches)), f"{result.latency_ns:,.0f}", f"{error:.1e}", f"{allowed:.1e}", f"{share:.1%}",
        f"{time.process_time() - begin:.0f}",
    )  # fmt: skip


def main() -> int:
    """Run the models and print a table."""
    warnings.simplefilter("ignore")
    columns = ("model", "launches:", "simulated ns:", "error:", "of eager f16:", "FLOPs on PEs:", "host s:")
    return table(__doc__, ("torch", "triton", "transformers"), list(CASES), columns, measure)


if __name__ == "__main__":
    sys.exit(main())
