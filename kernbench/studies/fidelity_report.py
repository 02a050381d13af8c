"""The report of the fidelity study: errors against references, what explains them, and the sensitivity table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kernbench.studies.study import Finding, Tables, groups, table
from kernbench.topology.builder import Machine
from kernbench.viz import _palette as palette
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, Column, Row

REFERENCES, SENSITIVITY = "references", "sensitivity"
COMPARED, SENSITIVE = "References", "Sensitivity to defaults"
TOOLS = "nccl-tests, SCALE-Sim, BookSim2, Ramulator2, or a CSV with workload,parameters,value,unit,source"
TOGETHER = "all mechanisms together"
AGREES = 1.0  # percent within which no mechanism is looked for
EXPLAINS = 0.1  # share of an error from which on a mechanism explains it
METHOD = (
    "References are results of other tools and of devices; their inputs, versions and sources are in "
    "milestones/fidelity/data. The same inputs run here. Error: our value compared with the reference's. A mechanism "
    "is an option of the machine file that models what the reference contains. The row runs again with it, and its "
    "share is the part of the error that it removes. An error of which no mechanism removes a tenth is unexplained. "
    "Where a workload has several mechanisms, it runs with all of them, too: the error that remains is unexplained. "
    "Nothing is fitted to a reference. Sensitivity: each default is halved and doubled, one at "
    "a time (one that switches an effect off takes the value shown), and the figure is simulated again."
)
COLUMNS = {
    "what": Column("case"),
    "source": Column("reference"),
    "where": Column("file"),
    "expected": Column("reference value"),
    "ours": Column("our value"),
    "unit": Column("unit"),
    "error_pct": Column("error", "%"),
    "explained_by": Column("explained by"),
    "share_pct": Column("share of the error", "%"),
    "left_pct": Column("error with it", "%"),
    "together_pct": Column("error with all mechanisms", "%"),
    "kind": Column("workload"),
    "factor": Column("default"),
    "public_source": Column("public source"),
    "tried": Column("values tried"),
    "largest_pct": Column("largest change", "%"),
    "change_pct": Column("change of the figure", "%"),
    "figure": Column("figure"),
}


def compared(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one row for each reference: both values, the signed error, what explains most of it, and what remains."""
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


def sensitivity(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return one row for each default: the change of each figure in percent, the most influential default first."""
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


def _errors(rows: Sequence[Row], columns: Mapping[str, Column], machine: Machine) -> Any:
    """Draw the signed error of each reference, as the machine is and with all mechanisms of the workload."""
    long = []
    for row in rows:
        long.append({**row, "machine as": "as it is", "shown_pct": row["error_pct"]})
        if row["together_pct"] is not None:
            long.append({**row, "machine as": "with all mechanisms", "shown_pct": row["together_pct"]})
    alt = kinds.altair()
    return (
        alt.Chart(table(long), height=alt.Step(34))
        .mark_tick(thickness=2, opacity=0.6)
        .encode(
            x=alt.X(
                "shown_pct", type="quantitative", title="error of our value [%]",
                scale=alt.Scale(type="symlog", constant=10),
                axis=alt.Axis(values=[-100, -30, -10, 0, 10, 30, 100, 300, 1000, 3000]),
            ),
            y=alt.Y("kind", type="nominal", title=None),
            yOffset=alt.YOffset("machine as", type="nominal"),
            color=_colour("machine as", "machine"),
            tooltip=["what", "source", "machine as", "shown_pct"],
        )
    )  # fmt: skip


def _colour(column: str, title: str) -> Any:
    alt = kinds.altair()
    return alt.Color(column, type="nominal", title=title, scale=alt.Scale(range=list(palette.SERIES)))


def _ranking(rows: Sequence[Row], columns: Mapping[str, Column], machine: Machine) -> Any:
    """Draw how far each figure moves with each default, the most influential defaults first."""
    base = {row["figure"]: row["ours"] for row in rows if not row["factor"]}
    ranked = [one["factor"] for one in sensitivity(rows)[:SHOWN]]
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
            y=alt.Y("factor", type="nominal", sort=ranked, title=None, axis=alt.Axis(labelLimit=320)),
            color=_colour("value", "value"),
            shape=alt.Shape("value", type="nominal", title="value"),
            facet=alt.Facet("figure", type="nominal", title=None, columns=2),
            tooltip=["factor", "figure", "tried", "change_pct"],
        )
    )


SHOWN = 12


CHARTS = (
    Chart(
        "fidelity_errors", _errors, "Our value compared with each reference",
        where=lambda row: row["table"] == REFERENCES, derive=compared,
        caption="0: equal. Each mark is a number of another tool or of a device; "
        "the scale is logarithmic from 10 % on.",
    ),
    Chart(
        "fidelity_sensitivity", _ranking, "What the defaults decide",
        where=lambda row: row["table"] == SENSITIVITY,
        caption=f"One default changed at a time, simulated exactly; the {SHOWN} with the largest effect.",
    ),
)  # fmt: skip


def tables(rows: Sequence[Row]) -> Tables:
    """Return the references, and the defaults by influence."""
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
        COMPARED: table(compared(rows), shown),
        SENSITIVE: table(sensitivity(rows)),
    }


def findings(rows: Sequence[Row]) -> Iterator[Finding]:
    """Say how far our values are from each kind of reference, and which defaults decide the figures."""
    for kind, each in groups(compared(rows), "kind").items():
        worst = max(each, key=lambda row: abs(row["error_pct"]))
        names = sorted({row["explained_by"] for row in each if row["share_pct"] is not None} - {TOGETHER})
        values = {"kind": kind, "references": len(each), "error_pct": worst["error_pct"], "what": worst["what"]}
        text = f"{kind}: {len(each)} references, errors to {worst['error_pct']:+.1f} % ({worst['what']})"
        if rest := [row for row in each if row["together_pct"] is not None]:
            row = max(rest, key=lambda row: abs(row["together_pct"]))
            values |= {"together_pct": row["together_pct"], "together_what": row["what"]}
            text += f"; with all mechanisms at most {row['together_pct']:+.1f} % ({row['what']})"
            text += ", which is unexplained" if abs(row["together_pct"]) > AGREES else ""
        if names:
            text += f"; a tenth or more of an error is removed by {' or '.join(names)}"
        if unexplained := sum(row["explained_by"] == "unexplained" for row in each):
            values["unexplained"] = unexplained
            text += f"; for {unexplained}, no mechanism removes a tenth of the error"
        yield Finding(f"{text}.", "fidelity_errors", 500 + len(each), values)
    ranked = sensitivity(rows)
    for figure in dict.fromkeys(row["figure"] for row in rows if row["table"] == SENSITIVITY):
        names = [name for name in (ranked[0] if ranked else {}) if name.startswith(f"{figure}, ")]
        most = sorted(ranked, key=lambda one: -max(abs(one.get(name) or 0.0) for name in names))[:2]
        changes = {one["factor"]: max((one.get(n) or 0.0 for n in names), key=abs) for one in most}
        said = " and ".join(f"{factor} ({change:+.0f} %)" for factor, change in changes.items())
        values = {"figure": figure, "change_pct": changes}
        yield Finding(f"{figure} depends most on {said}.", "fidelity_sensitivity", 100, values)
