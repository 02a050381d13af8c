"""The report of the fidelity study: errors against references, what explains them, and the sensitivity table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, exp, inf, log
from re import search, split
from statistics import median
from typing import Any, NamedTuple

from kernbench.studies._findings import Finding
from kernbench.studies.study import Tables, groups, table
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, ChartRow, Column, first_upper

REFERENCES, PAIRS, SENSITIVITY, DEVICE = "references", "pairs", "sensitivity", "device"
COMPARED, PAIRED, ERRORS, MISSING = "References", "Figures with the validated models", "Errors", "Not modelled"
_MOST_SENSITIVE = 5
SENSITIVE = "Sensitivity to defaults"
# Median error [%] that a model of a device is to reach, by kind of work, the name of its file (chosen).
_GOALS = {
    "gemm": 5.0, "gemm_large": 5.0, "prefill": 8.0, "decode": 10.0, "collectives": 10.0, "collectives_large": 7.0,
    "graphs": 20.0,
}  # fmt: skip
IDEAL, DETAILED = "ideal", "detailed"
# Kinds of references in the order of the page: what was measured on a device comes first.
_DOMAINS = {
    "all_reduce": "all-reduce", "hbm": "HBM", "noc": "network latency", "saturation": "network saturation",
    "tile": "systolic array",
}  # fmt: skip


class _Missing(NamedTuple):
    """What is not modelled of devices, and the rows that depend on it: of a kind of work, by their titles."""

    what: str
    group: str
    title: str  # a pattern; its group, if any, is a number from `least` on
    least: int = 0
    rows: str = ""
    source: str = ""  # a library


_MISSING = (
    _Missing("blocks that a library chooses though others are faster", "gemm", r"m (\d+)", 64, "m from 64"),
    _Missing("the clock under load", "gemm_large", "", rows="more than 1e10 multiplications"),
    _Missing(
        "parts of the kv tokens in prefill",
        "prefill",
        r"q_len (\d+)",
        1024,
        "q_len from 1,024, FlashAttention-3",
        source="FlashAttention-3",
    ),
    _Missing("time for each sequence of a batch", "decode", r"batch (\d+)", 128, "batch from 128"),
    _Missing(
        "the protocol of messages between two devices", "collectives", "^all_to_all", rows="all-to-all up to 1 MiB"
    ),
    _Missing("kernels of vLLM for 8 devices", "graphs", r"ranks (\d+)", 8, "8 devices"),
)
_COMPONENTS = ("hbm", "noc", "saturation", "tile")
TOGETHER = "all mechanisms together"
AGREES = 1.0  # percent within which no mechanism is looked for
EXPLAINS = 0.1  # share of an error from which on a mechanism explains it
METHOD = (
    "References are results of other tools and of devices; their inputs, versions and sources are in "
    "milestones/fidelity/data. The same inputs run here. Error: our value compared with the reference's. A mechanism "
    "is an option of the machine file that models what the reference contains. The row runs again with it, and its "
    "share is the part of the error that it removes. An error of which no mechanism removes a tenth is unexplained. "
    "Where a workload has several mechanisms, it runs with all of them, too: the error that remains is unexplained. "
    "Nothing is fitted to a reference. Figures of the reports run on the default machine, which is a design and no "
    "device: its models are ideal. They run again with the preset detailed (HBM3, routers with credits, a systolic "
    "array with tiles that fit it, headers), and with each of its parts alone. Sensitivity: each default is halved "
    "and doubled, one at a time (one that switches an effect off takes the value shown), and the figure is simulated "
    "again; the table has the five with the largest effect. Versions of measurements are those of the library that was "
    "called; their source states no dates. The whole list of what is not modelled is in docs/model.md, and what bounds "
    "the error of a device at the head of its preset."
)
COLUMNS = {
    "what": Column("case"),
    "source": Column("reference"),
    "expected": Column("reference value"),
    "ours": Column("our value"),
    "unit": Column("unit"),
    "error_pct": Column("error", "%"),
    "explained_by": Column("explained by"),
    "share_pct": Column("share of the error", "%"),
    "left_pct": Column("error with it", "%"),
    "together_pct": Column("error with all mechanisms", "%"),
    "n": Column("n"),
    "factor": Column("default"),
    "public_source": Column("public source"),
    "tried": Column("values tried"),
    "largest_pct": Column("largest change", "%"),
    "change_pct": Column("change of the figure", "%"),
    "figure": Column("figure"),
    "of": Column("compared with"),
    "work": Column("work"),
    "rows": Column("rows"),
    "measured": Column("measured", "ns"),
    "predicted": Column("predicted", "ns"),
    "median_pct": Column("median error", "%"),
    "p90_pct": Column("90th percentile", "%"),
    "most_pct": Column("largest error", "%"),
    "goal_pct": Column("goal of the median", "%"),
    "tau": Column("Kendall's tau"),
    "version": Column("version"),
    "date": Column("date"),
    "missing": Column("not modelled"),
    "signed_pct": Column("median of our value compared with the measured one", "%"),
    "models": Column("models"),
    "over_ideal": Column("time over that of the default machine"),
    "ideal_us": Column("default machine", "us"),
    "detailed_us": Column("all validated models", "us"),
}


def compared(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return a row for each reference: both values, the signed error, what explains most of it, and what remains."""
    found = []
    for each in groups([row for row in rows if row["table"] == REFERENCES], "reference").values():
        base, *variants = sorted(each, key=lambda row: bool(row["mechanism"]))
        expected = base["expected"]
        error = _percent(base["ours"], expected)
        one = {**base, "error_pct": error, "explained_by": "", "share_pct": None, "left_pct": None}
        all_of_them = [row["ours"] for row in variants if row["mechanism"] == TOGETHER or len(variants) == 1]
        one["together_pct"] = _percent(all_of_them[0], expected) if all_of_them else None
        if abs(error) <= AGREES:
            one["explained_by"] = f"agrees within {AGREES:g} %"
        else:
            one["explained_by"] = "unexplained"
            shares = {row["mechanism"]: 1 - abs(_percent(row["ours"], expected) / error) for row in variants}
            best = max((name for name in shares if name != TOGETHER), key=shares.__getitem__, default="")
            if shares.get(TOGETHER, 0.0) >= shares.get(best, 0.0) + EXPLAINS:
                best = TOGETHER
            if shares.get(best, 0.0) >= EXPLAINS:
                [with_it] = [row["ours"] for row in variants if row["mechanism"] == best]
                left = _percent(with_it, expected)
                one |= {"explained_by": best, "share_pct": 100 * shares[best], "left_pct": left}
        found.append(one)
    return found


def pairs(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return the rows of repeated figures, with their time over that on the machine as it is."""
    taken = [row for row in rows if row["table"] == PAIRS]
    ideal = {row["figure"]: row["ours"] for row in taken if row["models"] == IDEAL}
    return [{**row, "over_ideal": row["ours"] / ideal[row["figure"]]} for row in taken if row["models"] != IDEAL]


def _paired(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return a row for each repeated figure: both times, and the change by each part alone in percent."""
    found = []
    for figure, each in groups(pairs(rows), "figure").items():
        [whole], alone = [row for row in each if row["models"] == DETAILED], each
        one = {
            "figure": figure, "ideal_us": whole["ours"] / whole["over_ideal"] / 1000,
            "detailed_us": whole["ours"] / 1000,
        }  # fmt: skip
        found.append(
            one | {f"{row['models']} alone [%]": 100 * (row["over_ideal"] - 1) for row in alone if row != whole}
        )
    return found


def _sensitivity(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return a row for each default: the change of each figure in percent, the most influential default first."""
    taken = [row for row in rows if row["table"] == SENSITIVITY]
    base = {row["figure"]: row["ours"] for row in taken if not row["factor"]}
    found = []
    for factor, each in groups([row for row in taken if row["factor"]], "factor").items():
        one: dict[str, Any] = {"factor": factor, "public_source": each[0]["public_source"]}
        one["tried"] = ", ".join(f"{value:g}" for value in dict.fromkeys(row["tried"] for row in each))
        for row in each:
            side = "lower" if row["tried"] < row["default"] else "higher"
            one[f"{row['figure']}, {side} [%]"] = _percent(row["ours"], base[row["figure"]])
        one["largest_pct"] = max(abs(_percent(row["ours"], base[row["figure"]])) for row in each)
        found.append(one)
    return sorted(found, key=lambda one: -one["largest_pct"])


def _percent(value: float, base: float) -> float:
    return 100 * (value / base - 1)


def domains(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return a row for each kind of reference, devices first: ratios of ours to it, without and with all mechanisms."""
    found = []
    for kind, each in _by_domain(compared(rows)).items():
        default = [1 + row["error_pct"] / 100 for row in each]
        together = [
            1 + (row["error_pct"] if row["together_pct"] is None else row["together_pct"]) / 100 for row in each
        ]
        found.append(
            {
                "domain": _DOMAINS.get(kind, kind),
                "tool": _tool(each),
                "n": len(each),
                "median": median(default),
                "median_with": median(together),
                "p90_with": _within(together),
            }
        )
    return found


def _tool(references: Sequence[ChartRow]) -> str:
    return split(r" \(|, | -", references[0]["source"])[0]


def _within(ratios: Sequence[float]) -> float:
    """Factor, up or down, within which nine of ten ratios are."""
    factors = sorted(max(ratio, 1 / ratio) if ratio > 0 else inf for ratio in ratios)
    return factors[ceil(0.9 * len(factors)) - 1]


def device_errors(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return errors of devices' machine files by kind of work, on measurements that were not used for them."""
    found = []
    for device, own in groups([row for row in rows if row["table"] == DEVICE], "device").items():
        for group, each in groups(own, "group").items():
            pairs = [(row["expected"], row["ours"]) for row in each]
            of = {"of": device, "work": group, **_version(each)}
            found.append({**of, **_errors(pairs, _GOALS.get(group)), "rows": "held out"})
    return found


def _version(references: Sequence[ChartRow]) -> dict[str, str]:
    """Version and date that sources state: of the library that was measured, or of the simulator."""
    source = references[0]["source"]
    version, date = (search(x, source) for x in (r"(?:vLLM|NCCL) [\d.]*\d|\b[0-9a-f]{7}\b", r"\d{4}-\d\d-\d\d"))
    return {"version": version[0] if version else "", "date": date[0] if date else "not stated"}


def not_modelled(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return what is not modelled with the size of its effect: the median error of the rows that depend on it."""
    found = []
    for one in _MISSING:
        own = [row for row in rows if row["table"] == DEVICE and row["group"] == one.group and _depends(one, row)]
        for device, each in groups(own, "device").items():
            signed = median(_percent(row["ours"], row["expected"]) for row in each)
            found.append(
                {
                    "missing": one.what,
                    "of": device,
                    "work": one.group,
                    "rows": one.rows,
                    "n": len(each),
                    "signed_pct": signed,
                }
            )
    return found


def _depends(one: _Missing, row: ChartRow) -> bool:
    match = search(one.title, row["what"])
    return match is not None and one.source in row["source"] and (not match.groups() or int(match[1]) >= one.least)


def _errors(pairs: Sequence[tuple[float, float]], goal_pct: float | None = None) -> dict[str, Any]:
    errors = sorted(abs(_percent(ours, expected)) for expected, ours in pairs)
    return {
        "n": len(errors), "median_pct": median(errors), "p90_pct": errors[ceil(0.9 * len(errors)) - 1],
        "most_pct": errors[-1], "goal_pct": goal_pct, "tau": kendall(pairs),
    }  # fmt: skip


def _all_errors(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    """Return errors of devices, then of each kind of reference with all mechanisms of its workload."""
    found = device_errors(rows)
    for kind, each in _by_domain(compared(rows)).items():
        pairs = [(row["expected"], row["ours"] if (x := _together(row)) is None else x) for row in each]
        of = {"of": _tool(each), "work": _DOMAINS.get(kind, kind), **_version(each)}
        found.append({**of, **_errors(pairs), "rows": "nothing fitted"})
    return found


def _by_domain(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group references by kind, in the order of the page."""
    order = [*_DOMAINS]
    found = groups(rows, "kind")
    return dict(sorted(found.items(), key=lambda x: order.index(x[0]) if x[0] in order else len(order)))


def kendall(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's rank correlation of two values, from -1 to 1; a tie counts 0.

    >>> kendall([(1, 1), (2, 3), (3, 2)])
    0.3333333333333333
    """
    signs = [_sign(a - c) * _sign(b - d) for i, (a, b) in enumerate(pairs) for c, d in pairs[:i]]
    return sum(signs) / len(signs) if signs else 1.0


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)


def _predicted(rows: Sequence[ChartRow]) -> list[dict[str, Any]]:
    return [{"of": row["device"], "measured": row["expected"], "predicted": row["ours"]} for row in rows]


def _curves(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
    """Draw a panel for each kind of reference: its values in ascending order as a curve, and ours as points."""
    alt, points = kinds.altair(), []
    of_panel = groups(
        [{**row, "panel": f"{_DOMAINS.get(row['kind'], row['kind'])} [{row['unit']}]"} for row in rows], "panel"
    )
    for each in of_panel.values():
        for place, row in enumerate(sorted(each, key=lambda row: row["expected"])):
            ours = row["ours"] if (together := _together(row)) is None else together
            points.append({**row, "place": place + 1, "value": ours})
    x = alt.X("place:Q", title="references, in ascending order", axis=alt.Axis(tickMinStep=1))
    y = {"scale": alt.Scale(type="log", nice=False, padding=6), "axis": alt.Axis(format=",.3~r", labelOverlap="greedy")}
    base = alt.Chart().encode(x=x)
    layers = [
        base.mark_line(color=palette.GREY, interpolate="step").encode(y=alt.Y("expected:Q", title="value", **y)),
        base.mark_point(size=16, filled=True, color=palette.SERIES[0]).encode(
            y=alt.Y("value:Q", title="value", **y), tooltip=["what", "source", "expected", "value"]
        ),
    ]
    drawn = alt.layer(*layers, data=table(points)).properties(width=200, height=180)
    header = alt.Header(title=None, labelFontWeight="bold", labelAnchor="start")
    order = [panel for name in _DOMAINS.values() for panel in of_panel if panel.startswith(f"{name} [")]
    facet = alt.Facet("panel:N", header=header, sort=order)
    return drawn.facet(facet=facet, columns=3).resolve_scale(x="independent", y="independent")


def _together(row: ChartRow) -> float | None:
    return None if row["together_pct"] is None else row["expected"] * (1 + row["together_pct"] / 100)


def _ranking(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
    base = {row["figure"]: row["ours"] for row in rows if not row["factor"]}
    ranked = [one["factor"] for one in _sensitivity(rows)[:_SHOWN]]
    long = [
        {
            **row,
            "change_pct": _percent(row["ours"], base[row["figure"]]),
            "value": "lower" if row["tried"] < row["default"] else "higher",
        }
        for row in rows
        if row["factor"] in ranked
    ]
    alt = kinds.altair()
    return (
        alt.Chart(table(long))
        .mark_point(filled=True, size=50, opacity=1)
        .encode(
            x=alt.X("change_pct", type="quantitative", title=columns["change_pct"].title),
            y=alt.Y("factor", type="nominal", sort=ranked, title=None),
            color=alt.Color("value", type="nominal", title="value", scale=alt.Scale(range=list(palette.SERIES))),
            shape=alt.Shape("value", type="nominal", title="value"),
            facet=alt.Facet("figure", type="nominal", title=None, columns=2),
            tooltip=["factor", "figure", "tried", "change_pct"],
        )
    )


_SHOWN = 12


CHARTS = (
    Chart(
        "fidelity_device", kinds.agreement("measured", "predicted", by="of"),
        "Predicted over measured times of devices", where=lambda row: row["table"] == DEVICE, derive=_predicted,
        caption="Measurements that were not used for the machine files. Line: equal; the band is 10 % each way.",
    ),
    Chart(
        "fidelity_errors", _curves, "Each reference, a number of another tool or of a device, and our value",
        where=lambda row: row["table"] == REFERENCES, derive=compared,
        caption="Line: the reference. Points: our value with all mechanisms of the workload.",
    ),
    Chart(
        "fidelity_pairs", kinds.bars("over_ideal", "figure", by="models", rule=1.0),
        "Figures with the validated models, over those of the default machine",
        where=lambda row: row["table"] == PAIRS, derive=pairs, caption="Line: the default machine.",
    ),
    Chart(
        "fidelity_sensitivity", _ranking, "What the defaults decide",
        where=lambda row: row["table"] == SENSITIVITY,
        caption=f"One default changed at a time, simulated exactly; the {_SHOWN} with the largest effect.",
    ),
)  # fmt: skip


def tables(rows: Sequence[ChartRow]) -> Tables:
    shown = [
        "what",
        "expected",
        "ours",
        "unit",
        "error_pct",
        "explained_by",
        "share_pct",
        "left_pct",
        "together_pct",
        "source",
    ]
    return {
        ERRORS: table(_all_errors(rows)),
        MISSING: table(not_modelled(rows)),
        COMPARED: table(compared(rows), shown),
        PAIRED: table(_paired(rows)),
        SENSITIVE: table(_sensitivity(rows)[:_MOST_SENSITIVE]),
    }


def findings(rows: Sequence[ChartRow]) -> Iterator[Finding]:
    if found := device_errors(rows):
        own = [row for row in rows if row["table"] == DEVICE]
        medians = [
            f"{device}: " + ", ".join(f"{one['work']} {one['median_pct']:.1f} %" for one in each)
            for device, each in groups(found, "of").items()
        ]
        least, most = (pick(one["median_pct"] for one in found) for pick in (min, max))
        devices = found[0]["of"] if len(medians) == 1 else f"{len(medians)} devices"
        parts = [f"{devices} {least:.1f} to {most:.1f} %"]
        off = exp(sum(abs(log(row["ours"] / row["expected"])) for row in own) / len(own)) - 1
        tau = kendall([(row["expected"], row["ours"]) for row in own])
        works = {_DOMAINS[kind] for kind in _COMPONENTS}
        if components := [one["median_pct"] for one in _all_errors(rows) if one["work"] in works]:
            parts.insert(0, f"components up to {max(components):.1f} %")
        text = f"Median errors: {', '.join(parts)}; the default machine is a design, no device."
        detail = f"{len(own)} measurements held out. Medians of {'; '.join(medians)}. "
        detail += f"Geometric mean of the errors {100 * off:.1f} %, Kendall's tau {tau:.2f}."
        by_work = {f"{one['of']} {one['work']}": one["median_pct"] for one in found}
        values = {"median_pct": by_work, "mean_pct": 100 * off, "tau": tau}
        yield Finding(text, "fidelity_device", 700, values, detail)
    for place, (domain, each) in enumerate(zip(domains(rows), _by_domain(compared(rows)).values(), strict=True)):
        worst = max(each, key=lambda row: abs(row["error_pct"]))
        values = {name: domain[name] for name in ("domain", "n", "median", "median_with")}
        values |= {"error_pct": worst["error_pct"], "what": worst["what"]}
        rest = [row for row in each if row["together_pct"] is not None]
        text = f"{first_upper(domain['domain'])}: the median is {domain['median_with']:.2f}x the reference"
        text += " with all mechanisms" if rest else " by default"
        detail = f"{len(each)} references of {domain['tool']}"
        if rest:
            row = max(rest, key=lambda row: abs(row["together_pct"]))
            values |= {"together_pct": row["together_pct"], "together_what": row["what"]}
            detail += f"; the largest error is {row['together_pct']:+.1f} %"
            detail += ", which is unexplained" if abs(row["together_pct"]) > AGREES else ""
        detail += f"; by default the median is {domain['median']:.2f}x, the largest error {worst['error_pct']:+.1f} %"
        if names := sorted({row["explained_by"] for row in each if row["share_pct"] is not None} - {TOGETHER}):
            detail += f". A tenth or more of an error is removed by {' or '.join(names)}"
        if unexplained := sum(row["explained_by"] == "unexplained" for row in each):
            values["unexplained"] = unexplained
            detail += f". For {unexplained}, no mechanism removes a tenth of the error"
        yield Finding(f"{text}.", "fidelity_errors", 500 - place, values, f"{detail}.")
    if both := _paired(rows):
        ratios = {row["figure"]: row["detailed_us"] / row["ideal_us"] for row in both}
        span = " to ".join(dict.fromkeys(f"{choose(ratios.values()):.2f}" for choose in (min, max)))
        text = f"With all validated models, figures of the reports take {span} times as long as on the default machine."
        said = "; ".join(f"{row['figure']}: {row['ideal_us']:.3g} and {row['detailed_us']:.3g} us" for row in both)
        yield Finding(text, "fidelity_pairs", 600, {"over_ideal": ratios}, f"{said}.")
    ranked = _sensitivity(rows)
    for figure in dict.fromkeys(row["figure"] for row in rows if row["table"] == SENSITIVITY):
        names = [name for name in (ranked[0] if ranked else {}) if name.startswith(f"{figure}, ")]
        most = sorted(ranked, key=lambda one: -max(abs(one.get(name) or 0.0) for name in names))[:2]
        changes = {one["factor"]: max((one.get(n) or 0.0 for n in names), key=abs) for one in most}
        said = ", ".join(f"{factor} {change:+.0f} %" for factor, change in changes.items())
        values = {"figure": figure, "change_pct": changes}
        text = f"{figure} depends most on {' and '.join(changes)}."
        yield Finding(text, "fidelity_sensitivity", 100, values, f"At half or twice the default: {said}.")
