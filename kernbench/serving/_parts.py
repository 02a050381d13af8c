"""A part of a step, simulated: a layer, attention or the head."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import exp
from statistics import NormalDist
from typing import Any

import numpy as np

from kernbench.analysis._records import Records
from kernbench.points._keys import Row
from kernbench.serving._attention import attention_row, limits_of
from kernbench.serving._models import heads_of
from kernbench.sweeps._energy_area import counters
from kernbench.topology.builder import Machine

CAPTURED = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512)
CONTEXTS = (128, 512, 2048, 8192)
_SPREAD = 0.8  # of the lognormal contexts of a batch (chosen: equal ones would end where PEs' memories do)


def part_row(
    machine: Machine, *, part: str, requests: int, tokens: int, context: int, tp: int, model: Mapping[str, Any],
    ep: int = 1, skew: float = 0.0,
) -> Row:  # fmt: skip
    """Return the time of a part of a step [ns], a layer without its attention, its limit, and its counters: a study.

    `part` is "layer", "dense_layer" where the first ones have no experts, "head" or "attention". Bytes and counters are
    those of one SIP. Of several requests with one token, `context` is the mean. `path` is JSON, a column of sweeps.
    """
    if part == "attention":
        contexts = lognormal_contexts(requests, context) if tokens == 1 else [context]
        row = attention_row(machine, tokens=tokens, contexts=contexts, **heads_of(model, tp))
        return row | {"path": json.dumps(row["path"])}
    from kernbench.torch._serving import simulate

    result, calls = simulate(machine, part, model, tp, requests, ep, skew)
    counted = [x for x in result.launches if part == "head" or not x.operators[0].startswith("attention")]
    # The device begins collectives between launches, and waits there for other ranks: that is not the host's time.
    ns = (result.launches[-1].end_ps - result.launches[0].start_ps) / 1000
    attention_ns = sum(x.ns for x in result.launches) - sum(x.ns for x in counted)
    counts = {name: round(x / calls) for name, x in _counters(machine, result.records).items()}
    limited = limits_of(result.why())
    return counts | {
        "ns": round(ns - attention_ns, 3),
        "host_ns": max(0.0, round(result.latency_ns - ns, 3)),
        "nbytes": sum(x.nbytes for x in counted) // (ep if part == "layer" else 1),
        "limit": limited["limit"], "path": json.dumps(limited["path"]),
    }  # fmt: skip


def _counters(machine: Machine, records: Records) -> Row:
    """Return the counters of the first SIP: of the others, only collectives are simulated.

    Links that leave it are its own, and those that reach it from a switch, a NIC or the host.
    """
    links, own = records.links, "sip0."
    ends = [name.split("->") for name in links.names]
    kept = [i for i, (src, dst) in enumerate(ends) if src.startswith(own) or (dst.startswith(own) and src[:3] != "sip")]
    links = replace(links, names=tuple(links.names[i] for i in kept), nbytes=links.nbytes[kept])
    busy = {name: ps for name, ps in records.busy_by_component().items() if name.startswith(own)}
    return counters(machine.config, links, busy)


def lognormal_contexts(requests: int, mean: int) -> list[int]:
    """Return contexts of a batch in a fixed order, at the quantiles of a lognormal distribution, with a mean.

    >>> lognormal_contexts(1, 1000), sorted(lognormal_contexts(4, 1000))
    ([1000], [320, 623, 1037, 2020])
    """
    at = [NormalDist().inv_cdf((i + 0.5) / requests) for i in range(requests)]
    drawn = np.array([exp(_SPREAD * x) for x in at])[np.random.default_rng(0).permutation(requests)]
    found = np.maximum(1, np.floor(drawn * mean / drawn.mean())).astype(int)
    found[np.argmax(found)] += max(0, requests * mean - int(found.sum()))
    return [int(n) for n in found]


def points_of(sizes: Sequence[int], contexts: Sequence[int], layers: Iterable[str] = ("layer",)) -> list[Row]:
    """Return the parts to simulate for captured sizes and contexts, both ascending, and kinds of layers."""
    longest, heads = contexts[-1], sorted({*sizes[::2], sizes[-1]})
    points = [{"part": layer, "requests": n, "tokens": 1, "context": 0} for layer in layers for n in sizes]
    points += [{"part": "head", "requests": n, "tokens": 1, "context": 0} for n in heads]
    points += [{"part": "attention", "requests": n, "tokens": 1, "context": c} for n in sizes for c in contexts]
    return points + [
        {"part": "attention", "requests": 1, "tokens": n, "context": n + before}
        for n in chunk_sizes(sizes, longest)
        for before in sorted({0, *(c for c in contexts if c < longest - n), longest - n})
    ]


def chunk_sizes(sizes: Sequence[int], longest: int) -> list[int]:
    """Return four sizes from 16 tokens on, the largest among them, below the longest context."""
    from_16 = [n for n in sizes if 16 <= n < longest]
    return [from_16[i * (len(from_16) - 1) // 3] for i in range(4)] if len(from_16) > 4 else from_16 or [2]
