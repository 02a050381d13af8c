"""The report of serving: requests served with the simulated steps of each machine, charts, findings and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kernbench.analysis._what_if._predictions import COVERED
from kernbench.points._keys import Row
from kernbench.serving import Policy, generate, run
from kernbench.serving._models import fields_of
from kernbench.serving._steps import COLUMNS as PART_COLUMNS
from kernbench.serving._steps import StepTable
from kernbench.studies._findings import Finding, claim, ends
from kernbench.studies.study import Tables, groups, table
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, Column, first_upper

KV_BLOCK = 16  # tokens of a block of the KV cache (vLLM's default)
MEMORY_SHARE = 0.9  # of a SIP's memory, for weights and KV cache (vLLM's default)
_LOADS = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.2)  # of the rate that is served if all requests wait
_FULL = _LOADS[3:]  # where the goodput is largest
_EXACT, _PREDICTED = "simulated", "predicted from critical paths"
_CAUSES = 6

METHOD = (
    "Layers, attention and the head are simulated at captured sizes (kb.serving.steps). Requests of one length with "
    "Poisson arrivals are served by the scheduler of vLLM v1 (kb.serving.run) at several rates, on one replica over "
    "the SIPs of a model; a step has at most as many tokens and requests as the largest captured size. Goodput counts "
    "requests that meet both limits at once. A user reads a token in the largest time per token that is allowed: "
    "users per SIP are the output tokens per second at the largest goodput of the curve, times that time. For a "
    "change, the parts at the largest captured size are simulated on the changed machine, and compared with a "
    "prediction that scales the critical path of each part, where the change is of rates and latencies. Silicon is the "
    "proxy of docs/model.md, M1.5, in which a faster clock takes none. Tokenization and the network to the client are "
    "left out, and of the host there is what the machine file has. Presets of GPUs state their errors in their "
    "files."
)
COLUMNS = {
    "model": Column("model"),
    "on": Column("machine"),
    "tp": Column("SIPs"),
    "part": Column("part"),
    "requests": Column("requests"),
    "tokens": Column("tokens of each"),
    "context": Column("context", "tokens"),
    "us": Column("time", "us"),
    "limit": Column("largest part of the critical path"),
    "rate": Column("requests per second and SIP"),
    "goodput": Column("good requests per second and SIP"),
    "users": Column("users per SIP"),
    "user": Column("output tokens per second and user"),
    "sip": Column("output tokens per second and SIP"),
    "ttft": Column("TTFT, 99th percentile", "ms"),
    "tpot": Column("mean TPOT", "ms"),
    "energy": Column("energy per output token", "mJ"),
    "hbm_gbs": Column("memory of a SIP", "GB/s"),
    "tflops": Column("matrix rate of a SIP", "Tflop/s"),
    "change": Column("change"),
    "fields": Column("fields"),
    "gain": Column("more good requests", "%"),
    "silicon": Column("more silicon", "%"),
    "per_silicon": Column("more good requests for the same silicon", "%"),
    "how": Column("times"),
}


def _steps(rows: Sequence[Mapping[str, Any]]) -> StepTable:
    return StepTable(table(rows, PART_COLUMNS), fields_of(rows[0]["model"]), rows[0]["tp"])


def _largest(rows: Sequence[Mapping[str, Any]]) -> int:
    return max(int(row["requests"]) for row in rows if row["part"] == "layer")


def _curve(rows: Sequence[Mapping[str, Any]], loads: tuple[float, ...] = _LOADS, faster: str = "") -> list[Row]:
    """Serve requests at several rates with the steps of a machine, or those predicted if fields are twice as fast."""
    return _served(json.dumps(rows), loads, faster)


@lru_cache(maxsize=64)
def _served(text: str, loads: tuple[float, ...], faster: str) -> list[Row]:
    rows = json.loads(text)
    steps = _steps(rows)
    if faster:
        steps = steps.predicted(dict.fromkeys(faster.split(", "), 0.5))
    first, most, tp = rows[0], _largest(rows), steps.tp
    policy = Policy(max_num_batched_tokens=most, max_num_seqs=most, num_blocks=first["num_blocks"])
    asked = {"input_len": first["input_len"], "output_len": first["output_len"]}
    at_once = run(generate(first["served"], request_rate=math.inf, **asked), steps, policy)
    limits = {name: first[name] for name in ("ttft_ms", "tpot_ms")}
    full = at_once.metrics["request_throughput"]
    served = run(generate(first["served"], request_rate=full, **asked), steps, policy)
    return [
        {
            **{name: first[name] for name in ("model", "on", "change", "fields", "tp", "hbm_gbs", "tflops")},
            "load": load, "rate": x["request_rate"] / tp, "goodput": x["request_goodput"] / tp,
            "users": x["request_goodput"] / tp * first["output_len"] * first["tpot_ms"] / 1000,
            "user": x["tokens_per_s_per_user"], "sip": x["tokens_per_s_per_sip"], "ttft": x["p99_ttft_ms"],
            "tpot": x["mean_tpot_ms"], "energy": x["energy_per_token_uj"] / 1000,
        }
        for load, x in zip(
            loads, served.curve([load * full for load in loads], **limits).to_dict("records"), strict=True
        )
    ]  # fmt: skip


def _curves(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    return [x for own in groups(filter(_is_base, rows), "model", "on").values() for x in _curve(own)]


def _gains(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return the growth of the largest goodput by each change, simulated and predicted, at the sizes of the change."""
    found = []
    for own in groups([row for row in rows if row["own"]], "model").values():
        base, *others = groups(own, "change").values()
        for changed in others:
            same, fields = set(map(_size, changed)), changed[0]["fields"]
            before = [row for row in base if _size(row) in same]
            usual = _most(_curve(before, _FULL))["goodput"]
            runs = {_EXACT: _curve(changed, _FULL)}
            if set(fields.split(", ")) <= set(COVERED):
                runs[_PREDICTED] = _curve(before, _FULL, fields)
            silicon = changed[0]["area_mm2"] / before[0]["area_mm2"]
            for how, curve in runs.items():
                best, change = _most(curve), changed[0]["change"]
                ratio = best["goodput"] / usual
                shares = {"gain": ratio, "silicon": silicon, "per_silicon": ratio / silicon}
                percent = {name: 100 * (x - 1) for name, x in shares.items()}
                found.append({**best, "change": change, "fields": fields, "how": how, **percent})
    return found


def _size(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("part", "requests", "tokens", "context"))


def _most(curve: Sequence[Row]) -> Row:
    """Return the point with the largest goodput, of rates at which the queue does not grow."""
    return max((row for row in curve if row["load"] <= 1), key=lambda row: row["goodput"])


def _best(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Of each model and machine the point with the largest goodput, models in order, machines from the best."""
    found = []
    for own in groups(_curves(rows), "model").values():
        found += sorted((_most(x) for x in groups(own, "on").values()), key=lambda row: -row["users"])
    return found


def _full_step(rows: Sequence[Row]) -> dict[str, float]:
    """Time of a full step by cause [ns], with prompts and answers in the ratio of their tokens."""
    first, most = rows[0], _largest(rows)
    prompt, answer = first["input_len"], first["output_len"]
    decoded = max(1, round(most * answer / (prompt + answer)))
    return _steps(rows).causes([(most - decoded, prompt // 2)], [prompt + answer // 2] * decoded)


def _causes(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    found = []
    for (model, on), own in groups(map(dict, rows), "model", "on").items():
        causes = _full_step(own)
        ms = sum(causes.values()) / 1e6
        found.append({"model": model, "on": on, "ms": ms, "run": f"{model} on {on}: {ms:.3g} ms", "causes": causes})
    return found


def _draw_causes(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column], machine: Machine) -> Any:
    total: dict[str, float] = {}
    for row in rows:
        for what, ns in row["causes"].items():
            total[what] = total.get(what, 0) + ns / sum(row["causes"].values())
    names = sorted(total, key=lambda what: -total[what])[:_CAUSES]
    drawn = []
    for row in rows:
        own = {what: row["causes"].get(what, 0.0) for what in names}
        drawn.append({"run": row["run"], **own, _REST: sum(row["causes"].values()) - sum(own.values())})
    return kinds.parts("run", [*names, _REST], colours={_REST: palette.GREY})(drawn, columns, machine)


_REST = "other parts"


def _is_base(row: Mapping[str, Any]) -> bool:
    return not row["change"]


def _best_silicon(rows: Sequence[Mapping[str, Any]]) -> str:
    best = max(_gains(rows), key=lambda row: (row["how"] == _EXACT, row["per_silicon"]))
    return f"{first_upper(best['change'])}: {best['per_silicon']:+.0f} % good requests for the same silicon"


CHARTS = (
    Chart(
        "serving_pareto", kinds.lines("user", "sip", "on", panel="model", log_x=True, log_y=True),
        "Throughput of a SIP against speed for a user", where=_is_base, derive=_curves,
        caption="Each point is a rate of arrival, from 10 to 120 % of the rate that is served if all requests wait. To "
        "the right: answers are faster. Up: the SIP serves more.",
    ),
    Chart(
        "serving_goodput", kinds.lines("rate", "goodput", "on", panel="model", log_x=True, log_y=True),
        "Requests that meet the limits, against requests that arrive", where=_is_base, derive=_curves,
        caption="On the diagonal all requests are good; beyond the largest rate, they wait too long.",
    ),
    Chart(
        "serving_causes", _draw_causes, "What a full step waits for", where=_is_base, derive=_causes,
        caption="Shares of the critical paths of the parts of a step with as many tokens as the largest captured size.",
    ),
    Chart(
        "serving_changes", kinds.bars("gain", "change", by="how", label=".1f"), "What to change first", derive=_gains,
        where=lambda row: bool(row["own"] and row["changed"]),
        caption="Growth of the largest goodput if fields of the machine change. A prediction scales today's critical "
        "paths, so that it is too good where another path becomes the longest.",
    ),
    Chart(
        "serving_silicon", kinds.bars("per_silicon", "change", label=".1f"), _best_silicon,
        where=lambda row: bool(row["own"] and row["changed"]),
        derive=lambda rows: [row for row in _gains(rows) if row["how"] == _EXACT],
        caption="Growth of the largest goodput over that of the silicon of a SIP, a proxy in which a faster clock "
        "takes none.",
    ),
)  # fmt: skip


def findings(rows: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    best = groups(_best(rows), "model")
    for rank, own in enumerate(best.values()):
        yield _who(own, rows[0], 9 - rank)
    causes = _causes(list(filter(_is_base, rows)))
    for rank, model in enumerate(best):
        yield _why([row for row in causes if row["model"] == model], 6 - rank / 10)
    yield from _first(_gains(rows))
    yield from _alone(_curves(rows))


def _who(best: Sequence[Row], limits: Mapping[str, Any], weight: float) -> Finding:
    first, *others = best
    tpot, model = limits["tpot_ms"], first["model"]
    text = f"{first['on']} serves {first['users']:,.0f} users of {model} per SIP within {tpot} ms per token"
    text += "".join(f", {x['on']} {x['users']:,.0f}" for x in others[:2])
    detail = [
        f"{x['on']}, {x['tp']} SIP{'s' * (x['tp'] > 1)} of {x['hbm_gbs']:,.0f} GB/s and {x['tflops']:,.0f} Tflop/s: "
        f"{x['goodput']:.3g} good requests/s per SIP of {x['rate']:.3g} that arrive, TPOT {x['tpot']:.1f} ms, "
        f"{x['sip']:,.0f} output tokens/s per SIP, {x['energy']:,.0f} mJ per token."
        for x in best
    ]
    values = {"model": model, **{f"users of {x['on']}": x["users"] for x in best}}
    return Finding(f"{text}.", "serving_goodput", weight, values, " ".join(detail))


def _why(own: Sequence[Row], weight: float) -> Finding:
    shares = {row["on"]: [(what, ns / 1e6 / row["ms"]) for what, ns in row["causes"].items()][:3] for row in own}
    detail = [
        f"{row['on']}: {row['ms']:.3g} ms, of which {', '.join(f'{what} {x:.0%}' for what, x in shares[row['on']])}."
        for row in own
    ]
    longest = ends(own, "ms")[0]
    limit, share = shares[longest["on"]][0]
    text = "A full step of {model} on {on} takes {ms:.3g} ms; {limit} takes {share:.0%} of it."
    return claim(text, "serving_causes", weight, " ".join(detail), limit=limit, share=share, **longest)


def _first(gains: Sequence[Row]) -> Iterator[Finding]:
    for rank, (model, own) in enumerate(groups(gains, "model").items()):
        exact, predicted = ({x["change"]: x for x in own if x["how"] == how} for how in (_EXACT, _PREDICTED))
        change = max(exact, key=lambda name: exact[name]["gain"])
        best = exact[change]
        detail = [
            f"{first_upper(name)}: {x['gain']:+.0f} %{_predicted(predicted.get(name))}, silicon {x['silicon']:+.0f} %."
            for name, x in exact.items()
        ]
        yield Finding(
            f"Change first on {best['on']} for {model}: {change}, {best['gain']:+.0f} % good requests.",
            "serving_changes", 8 - rank,
            {
                "model": model, "change": change, "gain_pct": best["gain"], "silicon_pct": best["silicon"],
                **({"predicted_pct": predicted[change]["gain"]} if change in predicted else {}),
            },
            f"{' '.join(detail)} Fields: {best['fields']}.",
        )  # fmt: skip


def _predicted(row: Row | None) -> str:
    return f" (predicted {row['gain']:+.0f} %)" if row else ""


def _alone(curves: Sequence[Row]) -> Iterator[Finding]:
    for rank, (model, own) in enumerate(groups(curves, "model").items()):
        light = [min(x, key=lambda row: row["rate"]) for x in groups(own, "on").values()]
        first, last = ends(light, "user")
        if first is not last:
            said = [f"{x['on']}: {x['user']:,.0f} tokens/s at {x['rate']:.2g} requests/s per SIP." for x in light]
            yield claim(
                "With few users, {model} answers {ratio:.1f}x as fast on {first[on]} as on {last[on]}.",
                "serving_pareto", 7 - rank, " ".join(said), model=model, first=first, last=last,
                ratio=first["user"] / last["user"],
            )  # fmt: skip


def tables(rows: Sequence[Mapping[str, Any]]) -> Tables:
    shown = ["model", "on", "tp", "hbm_gbs", "tflops", "users", "goodput", "rate", "tpot", "ttft", "sip", "energy"]
    parts = [{**row, "us": row["ns"] / 1000} for row in rows]
    return {
        "Largest goodput": table(_best(rows), shown),
        "What to change first": table(
            _gains(rows), ["model", "on", "change", "how", "goodput", "gain", "silicon", "fields"]
        ),
        "All rates": table(_curves(rows), ["model", "on", "rate", "goodput", "tpot", "ttft", "user", "sip", "energy"]),
        "Parts of steps": table(
            parts, ["model", "on", "change", "tp", "part", "requests", "tokens", "context", "us", "limit"]
        ),
    }
