"""Sizes of decoder models: shipped names, and the fields of a config.json of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kernbench._registry import hint
from kernbench.config import MachineConfig
from kernbench.config._files import read_json
from kernbench.errors import ArgumentError, ConfigError, quote
from kernbench.serving._requests import check_count
from kernbench.topology.builder import Machine
from kernbench.tp.llama import LlamaConfig


def _llama3(layers: int, sizes: LlamaConfig) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": sizes.hidden, "intermediate_size": sizes.ffn,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim,
        "num_hidden_layers": layers, "vocab_size": 128256,
    }  # fmt: skip


_8B = _llama3(32, LlamaConfig(hidden=4096, ffn=14336, heads=32))
# Fields of their config.json (Meta, April 2024; Mistral AI, December 2023).
MODELS = {
    "llama3-8b": _8B,
    "llama3-70b": _llama3(80, LlamaConfig()),
    "mixtral-8x7b": _8B | {
        "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
}  # fmt: skip
_COUNTS = ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "vocab_size")


class Family(NamedTuple):
    """Names of fields of a family: the width of a feed-forward layer or expert, and what only some families have."""

    width: str = "intermediate_size"
    experts: str = ""
    of_token: str = ""  # experts of a token
    shared: str = ""  # width of the shared expert
    latent: tuple[str, ...] = ()  # sizes of latent attention
    others: tuple[str, ...] = ()


# Families of decoders, as transformers names them.
FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "gemma"), Family()),
    "mixtral": Family("intermediate_size", "num_local_experts", "num_experts_per_tok"),
    "qwen2_moe": Family(
        "moe_intermediate_size", "num_experts", "num_experts_per_tok", "shared_expert_intermediate_size"
    ),
    "qwen3_moe": Family("moe_intermediate_size", "num_experts", "num_experts_per_tok"),
    "deepseek_v3": Family(
        "moe_intermediate_size", "n_routed_experts", "num_experts_per_tok", "",
        ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        ("n_shared_experts", "intermediate_size", "n_group", "topk_group"),
    ),
}  # fmt: skip
# Fields that make layers differ from each other, or from those of the families, with their neutral values.
_NEUTRAL = {"decoder_sparse_step": (None, 1), "mlp_only_layers": (None, [])}
_BYTES = 2  # of an element: f16


def fields_of(model: Any) -> dict[str, Any]:
    """Return the fields of a model that decide its times, from a name, a file, its content, or a transformers model."""
    where = "model"
    if hasattr(model, "config"):
        model = model.config.to_dict()
    if isinstance(model, str) and model in MODELS:
        model = MODELS[model]
    elif isinstance(model, str | Path):
        path = Path(model)
        if path.suffix != ".json":
            raise ArgumentError(f"model = {quote(str(model))} is unknown; {hint(model, MODELS)}; or a config.json")
        where = str(path)
        model = read_json(path, "config.json of Hugging Face", "pass another file")
    if not isinstance(model, Mapping):
        raise ConfigError(f"{where}: must hold the fields of a config.json: {', '.join(_COUNTS)}")
    family = model.get("model_type", "llama")
    if family not in FAMILIES:
        raise ArgumentError(f"{where}: model_type = {quote(family)} is not supported; {hint(str(family), FAMILIES)}")
    of = FAMILIES[family]
    for name, neutral in (_NEUTRAL | ({} if of.latent else {"kv_lora_rank": (None,)})).items():
        if model.get(name) not in neutral:
            raise ArgumentError(
                f"{where}: {name} = {quote(model[name])}: layers of this form are not supported; "
                f"leave it out, or pass a model of {', '.join(FAMILIES)}"
            )
    # As transformers reads it: without grouped heads, each query head has its own keys and values.
    model = {"num_key_value_heads": model.get("num_attention_heads"), **model}
    counts = (*_COUNTS, *filter(None, of[:4]), *of.latent, *of.others)
    wrong = [name for name in counts if type(model.get(name)) is not int or model[name] < 1]
    if wrong:
        name = wrong[0]
        value = quote(model[name]) if model.get(name) is not None else "missing"
        raise ConfigError(
            [f"{where}: {name} = {value} must be an integer of at least 1; complete it"],
            [{"file": where, "key": name, "value": model.get(name), "remedy": "state an integer of at least 1"}],
        )
    fields = {"model_type": family} | {name: int(model[name]) for name in counts}
    if of.latent:  # transformers takes the part with positions for the width of a head
        dense = model.get("first_k_dense_replace", 0)
        if type(dense) is not int or not 0 <= dense < fields["num_hidden_layers"]:
            raise ConfigError(
                f"{where}: first_k_dense_replace = {quote(dense)} must be an integer from 0 to below the layers"
            )
        return fields | {"head_dim": fields["qk_rope_head_dim"], "first_k_dense_replace": dense}
    return fields | {"head_dim": int(model.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"])}


def experts_of(fields: Mapping[str, Any]) -> int:
    """Return the number of experts of a layer; 0 for a dense one."""
    return int(fields.get(FAMILIES[fields["model_type"]].experts, 0))


def check_parallel(fields: Mapping[str, Any], tp: int, ep: int, machine: Machine) -> None:
    check_count("tp", tp)
    check_count("ep", ep)
    of = FAMILIES[fields["model_type"]]
    if ep > 1 and not of.experts:
        raise ArgumentError(f"ep = {ep}: the model has no experts; leave it out")
    if ep not in (1, tp):
        raise ArgumentError(f"ep = {ep} must be 1 or tp = {tp}")
    for name in ("num_key_value_heads", of.experts if ep > 1 else of.width, of.shared):
        if name and fields[name] % tp:
            raise ArgumentError(f"tp = {tp} must divide {name} = {fields[name]}")
    if tp > machine.config.n_sips:
        raise ArgumentError(
            f"tp = {tp}: the machine has {machine.config.n_sips} SIPs; load it with system.sips.count={tp} or more"
        )


def heads_of(fields: Mapping[str, Any], tp: int) -> dict[str, Any]:
    """Return the sizes of attention on one SIP; to latents, all heads have one key, and its first part is the value."""
    heads, kv_heads = (fields[f"num_{kind}_heads"] // tp for kind in ("attention", "key_value"))
    if "kv_lora_rank" in fields:
        latent = fields["kv_lora_rank"]
        return {"heads": heads, "kv_heads": 1, "head_dim": latent + fields["qk_rope_head_dim"], "latent": latent}
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": fields["head_dim"]}


def layers_of(fields: Mapping[str, Any]) -> dict[str, int]:
    """Return the kinds of layers, and how many there are: the first ones may be dense."""
    dense = fields.get("first_k_dense_replace", 0)
    return {"layer": fields["num_hidden_layers"] - dense} | ({"dense_layer": dense} if dense else {})


def kv_bytes(fields: Mapping[str, Any], tp: int) -> int:
    """Bytes of keys and values of a token on one SIP; each has all latents."""
    heads = heads_of(fields, tp)
    each = heads["kv_heads"] * heads["head_dim"] * (1 if "latent" in heads else 2)
    return int(_BYTES * each * fields["num_hidden_layers"])


def weight_bytes(fields: Mapping[str, Any], tp: int) -> int:
    """Bytes of weights on one SIP: layers, head, and a separate embedding. Each has routers, and moves to latents."""
    of, hidden, experts = FAMILIES[fields["model_type"]], fields["hidden_size"], experts_of(fields)
    heads, d = fields["num_attention_heads"], fields["head_dim"]
    if of.latent:
        q, kv, nope, rope, v = (fields[name] for name in of.latent)
        attention = hidden * (q + kv + rope) * tp + heads * (q * (nope + rope) + kv * (nope + v) + v * hidden)
    else:
        attention = 2 * hidden * d * (heads + fields["num_key_value_heads"])
    shared = fields.get(of.shared, 0) + fields.get("n_shared_experts", 0) * fields[of.width]
    width = {"layer": max(1, experts) * fields[of.width] + shared, "dense_layer": fields.get("intermediate_size", 0)}
    routers = {"layer": experts * tp, "dense_layer": 0}
    layers = sum(n * (attention + hidden * (3 * width[kind] + routers[kind])) for kind, n in layers_of(fields).items())
    return int(_BYTES * (layers + 2 * fields["vocab_size"] * hidden) // tp)


def kv_blocks(fields: Mapping[str, Any], tp: int, config: MachineConfig, block_size: int, share: float) -> int:
    """Blocks of `block_size` tokens that fit into `share` of a SIP's memory when the weights are stored."""
    check_count("block_size", block_size)
    if not 0 < share <= 1:
        raise ArgumentError(f"memory_utilization = {quote(share)} must be a share above 0, and at most 1")
    room = config.cube.hbm.slice_bytes(config.pes_per_cube) * config.pes_per_sip * share
    weights = weight_bytes(fields, tp)
    found = int((room - weights) // (kv_bytes(fields, tp) * block_size))
    if found < 1:
        raise ArgumentError(
            f"{weights / 1e9:.1f} GB of weights on a SIP leave no room for a block of keys and values in "
            f"{room / 1e9:.1f} GB of its memory; use a larger tp"
        )
    return found
