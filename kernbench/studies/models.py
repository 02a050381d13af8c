"""Models of PyTorch, module by module: where the time goes, how near the roofline is, and what to change first.

A layer of Llama-3 70B in prefill and in decode, and experts of Mixtral's form with balanced and with skewed routing,
over several SIPs; a block of GPT-2 and of ViT on one SIP of each shipped machine. They are those of the
transformers package, without weights: only times are simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import kernbench.studies.models_report as report
from kernbench.analysis._roofline import macs_per_ns
from kernbench.config import presets
from kernbench.points._keys import Row
from kernbench.studies.study import LABELS, MACHINE, Parameter, Study, scaled
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.tp.llama import LlamaConfig

if TYPE_CHECKING:
    from kernbench.analysis.why import Why
    from kernbench.torch._models import Calls
    from kernbench.torch._result import CallPart, ModelResult

WIDTH = LlamaConfig().hidden  # of Llama-3 70B
KV_WIDTH = 1024  # of it for each kv head: 8 query heads of 128
EXPERTS = 8  # of Mixtral


@dataclass(frozen=True, slots=True)
class _Model:
    """A model: its name in text, the parameters of the study that are its sizes, and what its SIPs share."""

    title: str
    sizes: tuple[str, ...]
    spread: str


MODELS = {
    "llama3-70b-decode": _Model("Llama-3 70B layer, decode", ("hidden", "context"), "kv heads"),
    "llama3-70b-prefill": _Model("Llama-3 70B layer, prefill", ("hidden", "prompt"), "kv heads"),
    "mixtral": _Model("Mixtral experts, balanced", (), "experts"),
    "mixtral-skewed": _Model("Mixtral experts, skew 1", (), "experts"),
    "gpt2": _Model("GPT-2 block", ("tokens",), ""),
    "vit": _Model("ViT-B/16 block", (), ""),
}
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "grouped_mm"))


class ModelsStudy(Study):
    """Models of PyTorch by module, and what to change first; needs PyTorch."""

    name, title = "models", "PyTorch models by module"
    parameters: ClassVar = {
        "models": Parameter(
            {
                name: [1, 2, 4, 8] if model.spread else [1]
                for name, model in MODELS.items()
                if model.spread != "experts"
            },
            "what runs, and over how many SIPs",
            known=MODELS,
        ),
        "presets": Parameter(
            presets(), "further machines; models run there over the most of their SIPs that they have", known=presets()
        ),
        "elsewhere": Parameter(
            ["llama3-70b-decode", "gpt2", "vit"], "those of models that run on these, too", known=MODELS
        ),
        "hidden": Parameter(WIDTH, "width of the layer of Llama"),
        "context": Parameter(4096, "tokens of its decode", "tokens"),
        "prompt": Parameter(512, "tokens of its prefill", "tokens"),
        "tokens": Parameter(128, "tokens of GPT-2", "tokens"),
        "changes": Parameter(2, "parts of the critical path that are changed, each alone"),
    }
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings = staticmethod(report.tables), staticmethod(report.findings)

    def check(self, machine: Machine, *, models: Mapping[str, Sequence[int]], hidden: int, **_: Any) -> list[str]:
        if hidden < KV_WIDTH or hidden % KV_WIDTH:
            return [f"hidden = {hidden} must be a multiple of {KV_WIDTH}: 8 query heads of 128 share a kv head"]
        counts = {"kv heads": hidden // KV_WIDTH, "experts": EXPERTS}
        known = [(name, MODELS[name].spread, tps) for name, tps in models.items() if name in MODELS]
        return [
            f"models: {name} over {tp} SIPs: the SIPs must divide its {counts[what]} {what} (hidden = {hidden})"
            if what
            else f"models: {name} over {tp} SIPs must be over 1: it has no plan for several"
            for name, what, tps in known
            for tp in tps
            if tp < 1 or counts.get(what, 1) % tp
        ]

    def points(
        self, machine: Machine, *, models: Mapping[str, Sequence[int]], presets: Sequence[str],
        elsewhere: Sequence[str], changes: int, **sizes: int,
    ) -> list[Row]:  # fmt: skip
        found = []
        for on, where in _machines(machine, presets).items():
            sips, own = where.config.n_sips, where.hash == machine.hash
            change = {key: value for key, value in where.spec.items() if value != machine.spec[key]}
            for name, tps in models.items():
                model, most = MODELS[name], [max((tp for tp in tps if tp <= sips), default=0)]
                if not own and (name not in elsewhere or (not model.spread and _same_sip(machine, presets, on))):
                    continue
                for tp in tps if own else filter(None, most):
                    ring = {"system.sips": {"count": tp, "topology": "ring_1d"}} if tp > sips else {}
                    own_sizes = {size: sizes[size] for size in model.sizes}
                    narrow = own_sizes.get("hidden", WIDTH) != WIDTH
                    title = f"{model.title}, width {sizes['hidden']}" if narrow else model.title
                    labels = {"title": title, "spread": bool(model.spread), "on": on, "own": own}
                    found.append(
                        {
                            MACHINE: change | ring,
                            LABELS: labels,
                            "model": name,
                            "tp": tp,
                            "changes": 0 if model.spread == "experts" else changes,
                            **own_sizes,
                        }
                    )
        return found

    def refused(
        self, machine: Machine, *, models: Mapping[str, Sequence[int]], presets: Sequence[str],
        elsewhere: Sequence[str], **_: Any,
    ) -> dict[str, str]:  # fmt: skip
        found = {}
        for on, where in _machines(machine, presets).items():
            sips = where.config.n_sips
            for name in filter(models.__contains__, elsewhere if where.hash != machine.hash else ()):
                more = [str(tp) for tp in models[name] if tp > sips]
                if more:
                    found[f"{name} over {', '.join(more)} SIPs on {on}"] = f"it has {sips}"
                if not MODELS[name].spread and (same := _same_sip(machine, presets, on)):
                    found[f"{name} on {on}"] = f"its SIP is that of {same}"
        return found

    def work(self, machine: Machine, *, model: str, tp: int, **sizes: Any) -> float:
        return float(sizes.get("prompt", 1)) / tp

    def simulate(self, machine: Machine, *, model: str, tp: int, changes: int, **sizes: Any) -> Row:
        from kernbench.torch._models import Calls

        calls = Calls(machine, model, tp, **sizes)
        result = calls.on(machine)
        found = result.why()
        return {
            "model": model, "tp": tp, **sizes, **_times(result), **_bound(machine, calls.nbytes, result),
            "limit": found[0].what, "modules": result.table.to_dict("records"), "reasons": _reasons(found),
            "changes": [_changed(calls, machine, result.latency_ns, part) for part in _parts(found)[:changes]],
        }  # fmt: skip


def _machines(machine: Machine, presets: Sequence[str]) -> dict[str, Machine]:
    others = {name: resolve_topology(f"preset:{name}") for name in presets}
    same = [name for name, where in others.items() if where.hash == machine.hash]
    own = same[0] if same else Path(machine.source.removeprefix("preset:")).name
    return {own: machine} | {name: where for name, where in others.items() if name not in same}


def _same_sip(machine: Machine, presets: Sequence[str], on: str) -> str:
    """First machine that differs from `on` only in its number of SIPs, or empty."""
    one = {"system.sips": {"count": 1, "topology": "ring_1d"}}
    hashes = {name: where.with_(one).hash for name, where in _machines(machine, presets).items()}
    first = next(name for name in hashes if hashes[name] == hashes[on])
    return "" if first == on else first


def _times(result: ModelResult) -> Row:
    """Split the time of a call by kind of launch; with the time between launches, the parts sum to the call."""
    row: Row = {"latency_ns": result.latency_ns, "launches": len(result.launches)}
    kinds = dict.fromkeys(report.TIME_COLUMNS, 0.0)
    for part in result.launches:
        kinds[_kind(part)] = kinds.get(_kind(part), 0.0) + part.ns
        if part.operators == ("combine",):  # its ranks wait for the products of the slowest one
            kinds["wait_ns"] = part.wait_ps / 1000
            kinds["products_ns"] -= part.wait_ps / 1000
    kinds["between_ns"] = max(0.0, round(result.latency_ns - sum(kinds.values()), 3))
    return row | kinds | {
        "flops": sum(part.flops for part in result.launches), "nbytes": sum(part.nbytes for part in result.launches),
        "on_host": len(result.host_fallbacks),
    }  # fmt: skip


def _kind(part: CallPart) -> str:
    if part.operators == ("all_reduce",):
        return "all_reduce_ns"
    if part.operators[0].startswith("attention"):
        return "attention_ns"
    if part.step.exchange is not None:
        return "exchange_ns"
    return "products_ns" if part.operators[0] in _PRODUCTS else "other_ns"


def _bound(machine: Machine, nbytes: int, result: ModelResult) -> Row:
    """Least time of a SIP: reading its weights, keys and values once, and multiplying at the matrix rate."""
    config = machine.config
    products = sum(part.step.flops for part in result.launches if _kind(part) == "products_ns")
    read = nbytes / config.hbm_gbs_per_sip
    multiply = products / (2 * macs_per_ns(config, "f16") * config.pes_per_sip)
    return {
        "weight_bytes": nbytes,
        "bound_ns": max(read, multiply),
        "bound_by": "memory" if read > multiply else "matrix",
    }


def _reasons(found: Why) -> list[Row]:
    whole = found.path.makespan_ps / 1000
    reasons = sorted(found, key=lambda reason: -reason.ns)[: report.REASONS]
    return [
        {"part": f"{x.what}{' (host)' * x.host}", "ns": x.ns, "share": x.ns / whole, "advice": x.advice()}
        for x in reasons
    ]


@dataclass(frozen=True, slots=True)
class _Part:
    what: str
    share: float
    fields: tuple[str, ...]


def _parts(found: Why) -> list[_Part]:
    """Parts of the critical path that can be changed, longest first, each with its fields.

    Host time has no field: there, the launches of a call are sent as one graph.
    """
    whole = found.path.makespan_ps / 1000
    parts = [
        _Part(x.what + " and what limits with it" * bool(x.together), x.ns / whole, (*x.fields, *x.together))
        for x in found
        if x.fields and not x.host
    ]
    host = sum(x.ns for x in found if x.host)
    return sorted([*parts, _Part(report.GRAPH, host / whole, ())], key=lambda part: -part.share)


def _changed(calls: Calls, machine: Machine, before_ns: float, part: _Part) -> Row:
    factors = {field: 0.5 if field.endswith(("_ns", "_mm")) else 2.0 for field in part.fields}
    changed = machine.with_(scaled(machine.config, factors)) if factors else machine
    ns = calls.on(changed, graph=not factors).latency_ns
    fields = ", ".join(part.fields)
    return {"change": part.what, "share": part.share, "fields": fields, "ns": ns, "saved": 1 - ns / before_ns}
