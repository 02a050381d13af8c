"""The report of the design-space study: charts, findings and tables of its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernbench.studies._findings import Finding, claim
from kernbench.studies.study import Tables, scalars, table
from kernbench.sweeps.pareto import pareto
from kernbench.sweeps.sensitivity import BASE, ranked, steps_along
from kernbench.topology.builder import Machine
from kernbench.viz import charts as kinds
from kernbench.viz.charts import Chart, ChartRow, Column, first_upper, rows_of

if TYPE_CHECKING:
    import pandas as pd

AXES = _MESH, _UCIE, _HBM = "cube mesh", "UCIe [GB/s]", "HBM of a PE [GB/s]"
AREA, ENERGY, _TIME, LABEL, GAIN, _DIES = "area_mm2", "energy_uj", "latency_us", "label", "gain_pct", "dies"
MORE = {"down": "less", "up": "more"}
_WORTH = 0.05  # a numbered machine of the front is faster than the one before by this share

METHOD = (
    "The products of the published layer list of GPT-2 run over one SIP, one after the other, each in its best "
    "placement. The simulation is deterministic; the machine also runs with other orders of simultaneous arrivals, "
    "which show how much of a time depends on them. Area and energy are proxies (docs/model.md, M1.5). What parts of a "
    "machine gain users of a served model is in the report serving."
)
COLUMNS = {
    "table": Column("table"),
    AREA: Column("silicon of all dies", "mm2"),
    _DIES: Column("dies"),
    ENERGY: Column("energy", "uJ"),
    _TIME: Column("time", "us"),
    "latency_ns": Column("time", "ns"),
    GAIN: Column("less time", "%"),
    "least_pct": Column("least", "%"),
    "most_pct": Column("most", "%"),
    "cost_pct": Column("more silicon", "%"),
    "area_pct": Column("more silicon", "%"),
    "energy_pct": Column("more energy", "%"),
    "down_pct": Column("time with less of it", "%"),
    "up_pct": Column("time with more of it", "%"),
}


def frame(rows: Sequence[ChartRow], name: str) -> pd.DataFrame:
    """Rows of one table (grid, factors or ties), with the columns it has, time [us] and dies."""
    mine = [
        {**scalars(row), _TIME: row["latency_ns"] / 1000, _DIES: row["cubes"] + row["sips"]}
        for row in rows
        if row["table"] == name
    ]
    return table(mine).dropna(axis="columns", how="all")


def axes_of(grid: pd.DataFrame) -> list[str]:
    return [name for name in AXES if name in grid and len(grid[name].drop_duplicates()) > 1]


def front(grid: pd.DataFrame) -> pd.DataFrame:
    """Pareto front of area and time, smallest first; each machine is faster than the last by `_WORTH`."""
    best, kept = pareto(grid, [AREA, _TIME]), list[bool]()
    least = float("inf")
    for time in best[_TIME]:
        kept.append(time <= (1 - _WORTH) * least)
        least = time if kept[-1] else least
    return best[kept]


def first(rows: Sequence[ChartRow]) -> pd.DataFrame:
    return ranked(frame(rows, "factors"), _TIME)


def _front(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
    """Area against time by mesh; machines of the front are numbered as in their table."""
    grid = frame(rows, "grid")
    numbers = {index: str(i) for i, index in enumerate(front(grid).index, 1)}
    grid[LABEL] = [numbers.get(index, "") for index in grid.index]
    return kinds.points(AREA, _TIME, by=_MESH, label=LABEL)(rows_of(grid), columns, machine)


def _map(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
    least = frame(rows, "grid").groupby([_UCIE, _MESH], sort=False)[_TIME].min().reset_index()
    least = least.rename(columns={_UCIE: "ucie", _MESH: "mesh"})
    named = {"ucie": Column("UCIe connection", "GB/s"), "mesh": Column("cubes of a SIP")}
    return kinds.heat("ucie", "mesh", _TIME)(rows_of(least), named, machine)


def _factors(rows: Sequence[ChartRow], columns: Mapping[str, Column], machine: Machine) -> Any:
    table = first(rows)
    table[LABEL] = [f"{r['factor']}: {MORE[r['first']] if r[GAIN] > 0 else 'neither'}" for r in rows_of(table)]
    table[GAIN] = table[GAIN].clip(lower=0)
    return kinds.bars(GAIN, LABEL, label=".1f")(rows_of(table), columns, machine)


def _in(table: str) -> Callable[[ChartRow], bool]:
    return lambda row: bool(row["table"] == table)


CHARTS = (
    Chart(
        "design_space_front", _front, "Time of the products of GPT-2 against silicon", where=_in("grid"),
        caption="Each dot is a machine; its silicon is that of all its dies: cubes, and the IO chiplet of the SIP. "
        f"Numbered: none is smaller and faster, and each is at least {_WORTH:.0%} faster than the one before; the "
        "table of the machines worth their silicon says what they are.",
    ),
    Chart(
        "design_space_map", _map, "Time of the products of GPT-2 [us] by cubes and UCIe", where=_in("grid"),
        caption="Of several settings of the other axes the least.",
    ),
    Chart(
        "design_space_factors", _factors, "What to change first for GPT-2", where=_in("factors"),
        caption="Time saved by one factor alone, in its better direction. Neither: no direction saves time.",
    ),
)  # fmt: skip


def tables(rows: Sequence[ChartRow]) -> Tables:
    grid = frame(rows, "grid")
    shown = [*axes_of(grid), "pes", _DIES, AREA, _TIME, *([ENERGY] if ENERGY in grid else [])]
    best = front(grid)[shown].round(2)
    best.insert(0, "number", range(1, len(best) + 1))
    ties = [row for row in rows if row["table"] == "ties" or row.get("factor") == BASE]
    orders = [{"order": row.get("tie_seed") or "usual", **row} for row in ties]
    return {
        "Machines worth their silicon": best,
        "What each step buys": steps_along(grid, axes_of(grid), _TIME, AREA).round(2),
        "One factor at a time": first(rows).round(2),
        "Why": table(_why(rows)),
        "Orders of simultaneous arrivals": table(orders, ["order", "latency_ns"]),
    }


def _why(rows: Sequence[ChartRow]) -> list[dict[str, str]]:
    """Return the longest resource on the critical path of each product, a column for each mesh."""
    found: dict[str, dict[str, str]] = {}
    for row in rows:
        for reason in reversed(row.get("why") or []):  # the longest comes first, so it is set last
            ns, share = f"{reason['ns']:,.0f} ns", f"{reason['share']:.0%}"
            text = f"{reason['what']}: {ns} ({share}), most at {reason['resource']}"
            found.setdefault(reason["part"], {})[row[_MESH]] = text
    return [{"part": part, **by_mesh} for part, by_mesh in reversed(found.items())]


def findings(rows: Sequence[ChartRow]) -> list[Finding]:
    if not rows:
        return []
    grid = frame(rows, "grid")
    return [*_cubes(grid, rows), *_buy(grid), _change(rows)]


def _cubes(grid: pd.DataFrame, rows: Sequence[ChartRow]) -> Iterator[Finding]:
    """Where more cubes do not pay, and which resource of which part takes the time."""
    if _MESH not in axes_of(grid):
        return
    table = steps_along(grid, axes_of(grid), _TIME, AREA)
    worst = min(rows_of(table[table["axis"] == _MESH]), key=lambda row: float(row[GAIN]))
    before, after = worst["step"].split(" to ")
    by_mesh = {row[_MESH]: row["why"] for row in rows if row.get("why")}
    cause = ""
    if before in by_mesh and after in by_mesh:
        was, now = ({(r["part"], r["what"]): r for r in by_mesh[mesh]} for mesh in (before, after))
        more = {key: row["ns"] - (was[key]["ns"] if key in was else 0.0) for key, row in now.items()}
        part, what = key = max(more, key=lambda key: more[key])
        cause = (
            f"In {part}, {what} takes {now[key]['ns']:,.0f} ns instead of {now[key]['ns'] - more[key]:,.0f}, most at "
            f"{now[key]['resource']}."
        )
    word, cost = "less" if worst[GAIN] > 0 else "more", "for {cost_pct:.0f} % more silicon."
    text = f"{{after}} cubes take {{{word}_pct:.1f}} % {word} time than {{before}}, {cost}"
    known = {**worst, f"{word}_pct": abs(worst[GAIN])}
    yield claim(text, "design_space_map", 10, cause, after=after, before=before, **known)


def _buy(grid: pd.DataFrame) -> Iterator[Finding]:
    table = steps_along(grid, axes_of(grid), _TIME, AREA)
    ordered = sorted((row for row in rows_of(table) if row["cost_pct"] > 0), key=lambda row: -float(row[GAIN]))
    if not ordered:
        return
    best, *rest = ({**row, "step": _step(row)} for row in ordered)
    other = " Next, {next[step]} saves {next[gain_pct]:.1f} %." if rest else ""
    yield claim(
        "{step} saves most, {gain_pct:.1f} % of the time.", "design_space_front", 9,
        "It takes {cost_pct:.1f} % more silicon." + other, next=rest[0] if rest else {}, **best,
    )  # fmt: skip


def _step(row: Mapping[str, Any]) -> str:
    """Format a step.

    >>> _step({"axis": "UCIe [GB/s]", "step": "64 to 128"})
    'UCIe from 64 to 128 GB/s'
    """
    axis, _, unit = row["axis"].rstrip("]").partition(" [")
    return f"{axis} from {row['step']} {unit}".rstrip()


def _change(rows: Sequence[ChartRow]) -> Finding:
    better = [row for row in rows_of(first(rows)) if row[GAIN] > 0]
    if not better:
        return Finding("No factor alone makes GPT-2 faster.", "design_space_factors", 8, {"gain_pct": 0.0})
    best, *rest = ({**row, "change": f"{MORE[row['first']]} {row['factor']}"} for row in better)
    other = " Next, {next[change]} saves {next[gain_pct]:.1f} % for {next[area_pct]:.1f} %." if rest else ""
    return claim(
        "The best change is {change}, {gain_pct:.1f} % less time.", "design_space_factors", 8,
        "It takes {area_pct:.1f} % more silicon." + other + _hot(rows), next=rest[0] if rest else {}, **best,
    )  # fmt: skip


def _hot(rows: Sequence[ChartRow]) -> str:
    """Sentence on the largest resource of the critical paths of the machine whose factors are changed, or empty."""
    base = next(row["machine"] for row in rows if row.get("factor") == BASE)
    why_of = {row["machine"]: row["why"] for row in rows if row.get("why")}
    if base not in why_of:
        return ""
    reasons = table(why_of[base])
    total = (reasons["ns"] / reasons["share"]).groupby(reasons["part"]).last().sum()
    longest = reasons.groupby("what", sort=False)["ns"].sum()
    return f" {first_upper(str(longest.idxmax()))} takes {longest.max() / total:.0%} of the critical paths."
