"""The workloads of the design-space study: a layer of Llama-3 70B in decode, and the products of GPT-2.

A decode step of one user is cut over all SIPs by heads (tensor parallelism): each SIP has its kv heads' whole context
and its columns of the weights. Two all-reduces of the hidden state join them. GPT-2 is spread over one SIP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kernbench.analysis.records import LinkTable
from kernbench.analysis.result import Result
from kernbench.errors import ArgumentError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.program import run_program
from kernbench.studies import gqa_run, layers
from kernbench.studies.layers_lists import Layer, select
from kernbench.sweeps.activity import activity
from kernbench.sweeps.cache import default_cache
from kernbench.sweeps.keys import Row, code_version, key_of
from kernbench.topology.builder import Machine

KV_HEADS, HEADS, HEAD_DIM, HIDDEN, FFN, N_LAYERS = 8, 64, 128, 8192, 28672, 80  # of Llama-3 70B
LATENCY = "latency_ns"


def llama3_70b_decode(
    machine: Machine,
    *,
    context: int = 32768,
    hidden: int = HIDDEN,
    ffn: int = FFN,
    tie_seed: int | None = None,
) -> Row:
    """One token through a layer of Llama-3 70B: attention, four products, two all-reduces.

    Parameters
    ----------
    machine : Machine
        Its SIPs divide the 8 kv heads.
    context : int
        Tokens whose keys and values are kept, spread over the PEs of a SIP.
    hidden, ffn : int
        Sizes of the hidden state and of the feed-forward network.
    tie_seed : int or None
        Permutes who is first of simultaneous arrivals.

    Raises
    ------
    ArgumentError
        If the kv heads or the context cannot be cut evenly.
    """
    tp, pes = machine.config.n_sips, machine.config.pes_per_sip
    if KV_HEADS % tp or context % pes:
        raise ArgumentError(f"{KV_HEADS} kv heads over {tp} SIPs, {context} tokens over {pes} PEs: expected divisors")
    one = _single(machine)
    products = {
        "qkv": (hidden + 2 * KV_HEADS * HEAD_DIM, hidden), "o": (hidden, hidden), "gate and up": (2 * ffn, hidden),
        "down": (hidden, ffn),
    }  # fmt: skip
    attention = _part(
        one, "attention", {"context": context, "tp": tp}, tie_seed, partial(_attention, one, context, tp, tie_seed)
    )
    found = [attention]
    for name, (n, k) in products.items():
        shape = (1, n // tp, k) if name in {"qkv", "gate and up"} else (1, n, k // tp)
        found.append(_part(one, name, {"shape": shape}, tie_seed, partial(_product, one, shape, "columns", tie_seed)))
    joined = _part(machine, "all-reduce", {"hidden": hidden}, tie_seed, partial(_all_reduce, machine, hidden, tie_seed))
    row = _summed([*found] * tp + [joined] * 2)
    times = {
        "attention_ns": attention[LATENCY],
        "products_ns": sum(part[LATENCY] for part in found[1:]),
        "allreduce_ns": 2 * joined[LATENCY],
    }
    return {LATENCY: sum(times.values()), **times, **row}


def gpt2_layers(
    machine: Machine,
    *,
    layer_list: str = "gpt2",
    placements: Sequence[str] = ("2-D",),
    tie_seed: int | None = None,
) -> Row:
    """Products of GPT-2 (its published layer list), one after the other over SIP 0, each in its best placement.

    Parameters
    ----------
    machine : Machine
    layer_list : str
        As for `layers_lists.layers`: "gpt2 QKT" is one of them.
    placements : sequence of str
        Of these the fastest counts.
    tie_seed
        As for `llama3_70b_decode`.
    """
    one = _single(machine)
    best = []
    for layer in select([layer_list]):
        tried = [_layer(one, layer, placement, tie_seed) for placement in placements]
        best.append(min(tried, key=lambda part: float(part[LATENCY])))
    return {LATENCY: sum(part[LATENCY] for part in best), **_summed(best)}


def _single(machine: Machine) -> Machine:
    """Return one SIP of a machine, without what it does not use: machines that differ there share its parts."""
    return machine.with_(
        {"system.sips": {"count": 1, "topology": "ring_1d"}, "system.sip_link": {"bw_gbs": 1, "latency_ns": 0}}
    )


def _layer(machine: Machine, layer: Layer, placement: str, tie_seed: int | None) -> Row:
    shape = layer.m, layer.n, layer.k
    what = {"shape": shape, "placement": placement}
    return _part(machine, "product", what, tie_seed, partial(_product, machine, shape, placement, tie_seed))


def _part(machine: Machine, name: str, what: Mapping[str, Any], tie_seed: int | None, run: Callable[[], Row]) -> Row:
    """Return one part of a row; machines that differ elsewhere share it by the cache."""
    cache, study, version = default_cache(), f"{__name__}:{name}", code_version()
    if cache is None:
        return run()
    key = key_of(study, version, machine.hash, {**what, "tie_seed": tie_seed})
    return cache.rows_of(run, key, study=study, machine=machine.hash, version=version)


def _attention(machine: Machine, context: int, tp: int, tie_seed: int | None) -> Row:
    config = machine.config
    ranks = config.pes_per_sip
    setting = gqa_run.Setting(
        "decode", ranks, cubes=config.cubes_per_sip, pes=config.pes_per_cube, items=KV_HEADS // tp,
        group=HEADS // KV_HEADS, head_dim=HEAD_DIM, tokens=context // ranks,
    )  # fmt: skip
    result = run_program(machine, lambda torch: gqa_run.start(torch, setting)(), log="off", tie_seed=tie_seed)
    return _row(machine, result, result.records.links)


def _product(machine: Machine, shape: tuple[int, int, int], placement: str, tie_seed: int | None) -> Row:
    result, traffic = layers.run(machine, shape, placement, log="off", tie_seed=tie_seed)
    return _row(machine, result, traffic)


def _all_reduce(machine: Machine, hidden: int, tie_seed: int | None) -> Row:
    """Return the sum of the hidden state over all SIPs, in one PE of each; of several algorithms the fastest."""
    if machine.config.n_sips == 1:
        return {LATENCY: 0.0}
    tried = [
        _all_reduce_by(machine, hidden, name, tie_seed)
        for name in ("recursive_doubling_allreduce", "ring_allreduce_tcm")
    ]
    return min(tried, key=lambda part: float(part[LATENCY]))


def _all_reduce_by(machine: Machine, hidden: int, algorithm: str, tie_seed: int | None) -> Row:
    def program(torch: RuntimeContext) -> None:
        here = DPPolicy(num_cubes=1, num_pes=1)
        sips = range(machine.config.n_sips)
        torch.collective(
            [torch.empty(1, hidden, dtype="f16", device=f"ahbm:{sip}", dp=here) for sip in sips], algorithm
        )
        torch.ahbm.synchronize()

    result = run_program(machine, program, log="off", tie_seed=tie_seed)
    return _row(machine, result, result.records.links)


def _row(machine: Machine, result: Result, traffic: LinkTable) -> Row:
    """Return the time from the first launch leaving the host to the last completion, and what was done in it."""
    launches, records = result.launches, result.records
    latency = (max(x.end_ps for x in launches) - min(x.start_ps for x in launches)) / 1000
    counts = activity(machine.config, traffic, records.busy_by_component())
    return {LATENCY: latency, **counts}


def _summed(parts: Sequence[Row]) -> Row:
    """Return the counts of all parts together."""
    names = dict.fromkeys(name for part in parts for name in part if name != LATENCY)
    return {name: sum(part.get(name, 0) for part in parts) for name in names}
