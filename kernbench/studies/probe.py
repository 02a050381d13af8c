"""The probe: transfers over every kind of way, alone and many at once, against the closed form.

Each transfer is one transaction of the network, as a DMA sends it, and all of a case start at the same instant
on an idle machine. Neither commands of a PE nor its limits of outstanding requests are in it: what is seen is
links and memory. Memory is HBM at physical addresses.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

from kernbench.analysis.fair import drain
from kernbench.analysis.links import hottest, shares
from kernbench.analysis.transfer import PARTS
from kernbench.errors import ArgumentError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.studies.explore import Choices
from kernbench.studies.points import Row, code_version, machine_of, run_points
from kernbench.studies.probe_cases import cases, select
from kernbench.studies.probe_run import Probe, hops, probe, start
from kernbench.studies.results import read_results, write_results
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.units import FLIT_BYTES, KIB, MIB

FILE = "probe.json"
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
VISIBLE = 0.0005  # shares of links that are kept for pictures
LINKS = "probe_links.csv"
NESTED = ("hops", "links")


def sweep(
    machine: Machine | str | None = None,
    *,
    names: Sequence[str] = (),
    sizes: Sequence[int] = SIZES,
    workers: int = 1,
    folder: Path | None = None,
) -> list[Row]:
    """Return one row per case and size, cases in their order.

    Parameters
    ----------
    machine
        As for `kb.load`.
    names
        Cases; all that the machine has the parts for by default.
    sizes
        Bytes of each transfer.
    workers
        Processes.
    folder
        Where finished points are kept.

    Raises
    ------
    ArgumentError
        If a case is unknown or a size is none; nothing has been run then.
    """
    resolved = resolve_topology(machine)
    if not sizes or any(size < 1 for size in sizes):
        raise ArgumentError(f"sizes: {list(sizes)} must be bytes >= 1, at least one")
    chosen = select(resolved, names)
    points: list[Row] = [
        {"machine": dict(resolved.spec), "case": case.name, "nbytes": size} for case in chosen for size in sorted(sizes)
    ]
    # The longest first, so that no process is left with one of them at the end.
    order = sorted(range(len(points)), key=lambda i: (-points[i]["nbytes"] * _count(chosen, points[i]["case"]), i))
    done = run_points(simulate, [points[i] for i in order], folder=folder, workers=workers)
    by_point = dict(zip(order, done, strict=True))
    return [by_point[i] for i in range(len(points))]


def _count(chosen: Sequence[Any], name: str) -> int:
    return next(len(case.ends) for case in chosen if case.name == name)


def simulate(point: Row) -> Row:
    """Run one case at one size and return its row."""
    machine = machine_of(point["machine"])
    [case] = select(machine, [point["case"]])
    found = probe(machine, case, point["nbytes"])
    out = row(found)
    if not case.pattern:
        out["hops"] = hops(machine, case, point["nbytes"])
    return out


def explore(
    torch: RuntimeContext,
    *,
    case: Annotated[str, Choices(lambda machine: list(cases(machine))), "who asks which memory"] = "h2d-write",
    nbytes: Annotated[int, "bytes of each transfer"] = 64 * KIB,
) -> str:
    """Transfers over the machine's ways, all starting at once."""
    [chosen] = select(torch.engine.machine, [case])
    ends = start(torch.engine, chosen, nbytes)
    torch.engine.run()
    rate = len(ends) * nbytes / max(ends) * 1000
    return f"{chosen.says}: {len(ends)} transfers of {nbytes:,} B, {rate:,.1f} GB/s in all"


def explore_cost(machine: Machine, data: bool, *, case: str, nbytes: int) -> float:
    """Return the host time of `explore` [us]: transfers, and flits where several meet."""
    [chosen] = select(machine, [case])
    per_flit = 8.0 if chosen.pattern else 0.01
    return len(chosen.ends) * (1000 + per_flit * nbytes / FLIT_BYTES)


def row(found: Probe) -> Row:
    """Return what the study keeps of one probe; times of a pattern are means over its transfers, unless they say."""
    case, n, records = found.case, found.nbytes, found.result.records
    ends = [parts.total / 1000 for parts in found.parts]
    slowest = [min(found.capacity[resource] for resource in way) for way in found.ways]
    drained = max(drain(found.ways, found.capacity, n))
    out: Row = {
        "case": case.name,
        "kind": case.kind,
        "transfers": len(case.ends),
        "nbytes": n,
        "first_end_ns": min(ends),
        "mean_ns": fmean(ends),
        "last_end_ns": max(ends),
        "alone_ns": fmean(alone.total for alone in found.alone) / 1000,
    }
    out |= {f"{part}_ns": fmean(getattr(parts, part) for parts in found.parts) / 1000 for part in PARTS}
    out |= {
        "bandwidth_gbs": len(ends) * n / max(ends),
        "path_gbs": fmean(slowest),
        "fair_gbs": len(ends) * n / drained,
        "path_utilization": fmean(n / end / bw for end, bw in zip(ends, slowest, strict=True)),
    }
    share = shares(records.links, records.makespan_ps)
    first = hottest(share)
    out |= {
        "fair_utilization": drained / max(ends),
        "hottest_link": first,
        "hottest_share": share[first],
        "hottest_alike": sum(value == share[first] for value in share.values()),
        "machine": records.machine,
        "code_version": code_version(),
    }
    if case.pattern:
        out["links"] = {name: round(value, 5) for name, value in share.items() if value >= VISIBLE}
    return out


def table(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without what is no single value: as a CSV file holds them."""
    return [{key: value for key, value in row.items() if key not in NESTED} for row in rows]


def write(rows: Sequence[Row], folder: Path) -> Path:
    """Write `probe.json` and `probe.csv`, and `probe_hops.csv` and `probe_links.csv` beside them; return the first.

    The links are those of each pattern at its largest size, with the share of the time that each was busy.
    """
    import pandas as pd

    path = write_results(folder / FILE, table(rows))
    stamps = [{"case": row["case"], "nbytes": row["nbytes"]} | hop for row in rows for hop in row.get("hops", ())]
    busy = [
        {"case": row["case"], "nbytes": row["nbytes"], "link": link, "share": share}
        for row in largest_patterns(rows)
        for link, share in row["links"].items()
    ]
    for name, part in (("probe.csv", table(rows)), ("probe_hops.csv", stamps), (LINKS, busy)):
        pd.DataFrame(part).to_csv(folder / name, index=False, lineterminator="\n")
    return path


def largest_patterns(rows: Sequence[Row]) -> list[Row]:
    """Return the row of each pattern at its largest size; rows of a case grow in size."""
    return list({row["case"]: row for row in rows if row.get("links")}.values())


def read(folder: Path) -> dict[str, Any]:
    """Return the content of `probe.json` in `folder`, rows with the links that `probe_links.csv` holds."""
    content = read_results(folder / FILE)
    rows = {(row["case"], row["nbytes"]): row for row in content["rows"]}
    with (folder / LINKS).open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            links = rows[line["case"], int(line["nbytes"])].setdefault("links", {})
            links[line["link"]] = float(line["share"])
    return content
