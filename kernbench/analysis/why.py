"""Why a run or a launch took as long as it did: the critical path by resource, longest first, and what to change.

The fields that set a resource are in `_resources.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from kernbench._registry import html_of
from kernbench._units import decimal_product
from kernbench.analysis._critical_path import CriticalPath, critical_path
from kernbench.analysis._launches import chosen_launches, span
from kernbench.analysis._records import MATRIX_TILE, Launch, Records, StageWork, covered_ps
from kernbench.analysis._resources import RESOURCES, Attribution, Reason, attribution
from kernbench.analysis._stages import STAGE_ENGINES
from kernbench.analysis._transfer import RouteBreakdown
from kernbench.analysis._what_if._predicted_savings import Savings, savings
from kernbench.analysis.utilization import LinkTraffic
from kernbench.config._dram import dram
from kernbench.config._schema import settings

_RATE = ("memory", "matrix", "vector", "fetch", "store", "serialization", "queueing", "fill", "slot")
_SHOWN = 0.05
_LISTED = 8  # each of the device and of the host
_BINDS = 0.5
_PE = re.compile(r"sip\d+\.cube\d+\.pe\d+")
_SLICE = "cube.hbm.channel_bw_gbs"
_CHANNELS = "cube.hbm.channels"
_SATURATED = 0.7  # the busy share of data buses from which on they limit; sequential reads reach 0.8 to 0.9
_AS_LONG = 0.8  # the ratio of two times from which on a change of one alone gains little
_QUEUED = 2  # bursts per time that a channel becomes busy; with fewer, it cannot reorder
_STREAMED = {"output_stationary": "k", "weight_stationary": "m", "input_stationary": "n"}  # docs/model.md, M5.10
_WAITED = {
    "the limit of outstanding requests": "one of the outstanding requests to complete",
    "a full buffer behind": "room in the buffer of the next stage",
}


@dataclass(frozen=True, eq=False, repr=False)
class Why:
    """The critical path of a run or a launch by resource; prints itself, and displays itself in a notebook.

    Attributes
    ----------
    path : CriticalPath
        Every step.
    reasons : tuple of Reason
        The resources on it: those of the device, longest first, then those of the host's copies and launches; their
        times sum to that of the run or launch.
    records : Records
        Of the whole run.
    """

    name: str
    path: CriticalPath
    reasons: tuple[Reason, ...]
    records: Records

    def __iter__(self) -> Iterator[Reason]:
        return iter(self.reasons)

    def __getitem__(self, i: int) -> Reason:
        return self.reasons[i]

    def __len__(self) -> int:
        return len(self.reasons)

    @property
    def machine(self) -> str:
        return self.records.machine[:12]

    @property
    def device_ns(self) -> float:
        """Time on the path without the host's copies and launches."""
        return self.path.of_host(False).makespan_ps / 1000

    @cached_property
    def savings(self) -> Savings:
        """Predicted savings if the fields of the first reasons were twice as good, alone and together."""
        return savings(self.records, self.reasons)

    def times(self) -> list[dict[str, Any]]:
        return [{"resource": x.what, "host": x.host, "ns": x.ns, "share": x.share} for x in self.reasons]

    def starts(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Reasons for which steps began, with their number and fields, most frequent first."""
        return [(why, n, settings(why)) for why, n in self.path.because().most_common()]

    def limits(self) -> list[str]:
        """One line for each limit that several steps waited for, with its fields, and one for the tiles of products."""
        found = Counter(tile for _, has, tile in (x.tag.partition(MATRIX_TILE) for x in self.records.commands) if has)
        tiles = ", ".join(f"{n:,} of {tile}" for tile, n in found.most_common())
        return ([f"products of the run by matrix tile: {tiles}"] if tiles else []) + [
            f"{n:,} steps waited for {_WAITED.get(why, why)}: {', '.join(fields)}"
            for why, n, fields in self.starts()
            if fields and n > 1
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "latency_ns": self.path.makespan_ps / 1000,
            "device_ns": self.device_ns,
            "steps": len(self.path.steps),
            "reasons": [asdict(reason) for reason in self.reasons],
            "starts": [{"because": why, "steps": n, "fields": list(fields)} for why, n, fields in self.starts()],
            "savings": self.savings.to_dict(),
        }

    def __repr__(self) -> str:
        total = self.path.makespan_ps / 1000
        lines = [f"{self.name}: {total:,.2f} ns, where they went on the critical path of {len(self.path.steps)} steps"]
        lines += self.lines(_LISTED, advice=True)
        lines += [f"     {text}" for text in (*self.limits(), *self.savings.together())]
        return "\n".join(lines)

    def advice(self, reason: Reason) -> list[str]:
        """Up to two lines for a reason: what to change, and what that is predicted to save."""
        if reason.share < _SHOWN or not reason.advice():
            return []
        saved = self.savings.of(reason)
        return [f"-> {self.savings.borne_out(reason).advice()}", *([f"   {saved}"] if saved else [])]

    def parts(self, listed: int) -> list[tuple[str, float, list[Reason], list[Reason]]]:
        """Title, time [ns], the first reasons and the others: of the device, and of the host."""
        found = []
        for title, host in (("on the device", False), ("host copies and launches", True)):
            if own := [x for x in self.reasons if x.host is host]:
                found.append((title, sum(x.ns for x in own), own[:listed], own[listed:]))
        return found

    def lines(self, listed: int, *, advice: bool = False) -> list[str]:
        total, parts = self.path.makespan_ps / 1000, self.parts(listed)
        texts = {x: f"{x.what} {x.resource}" + (f" and {x.others} more" if x.others else "") for x in self.reasons}
        width = max((len(texts[x]) for _, _, shown, _ in parts for x in shown), default=0)
        lines = []
        for title, whole, shown, rest in parts:
            lines.append(f"{title}: {whole:,.2f} ns, {whole / total:.1%} of the time")
            for i, x in enumerate(shown, 1):
                lines.append(f"{i:>3}. {texts[x]:<{width}}{x.ns:>14,.2f} ns {x.share:>6.1%}  {x.kind}")
                if advice:
                    lines += [f"     {text}" for text in self.advice(x)]
            if rest:
                ns = sum(x.ns for x in rest)
                lines.append(f"     {f'{len(rest)} more':<{width}}{ns:>14,.2f} ns {ns / whole:>6.1%}")
        return lines

    def _repr_html_(self) -> str:
        return html_of("why", self)


def why(records: Records, name: str = "run", launch: str | Launch | Sequence[Launch] | None = None) -> Why:
    """Explain the time of a run, of one launch, or of several from the first to the last.

    A KernbenchError if the run was not logged, or the launch does not exist.
    """
    launches: Sequence[Launch] = ()
    looked_at, window = records, (0, records.makespan_ps)
    if launch is not None:
        label, launches = chosen_launches(records.launches, launch)
        start, end = window = span(launches)
        name = f"{label}, {start / 1000:,.2f} to {end / 1000:,.2f} ns"
        looked_at = replace(records, links=LinkTraffic(records).between(start, end))
    path = critical_path(looked_at, launches)
    reasons = []
    for host in (False, True):
        own = path.of_host(host)
        groups: dict[Attribution, dict[tuple[str, str], int]] = {}
        for (kind, resource), ps in own.parts().items():
            groups.setdefault(attribution(kind, resource), {})[kind, resource] = ps
        found = [_reason(looked_at, window, own, *key, parts, host) for key, parts in groups.items()]
        reasons += sorted(found, key=lambda x: (-x.ns, x.what))
    return Why(name, path, tuple(reasons), records)


def _reason(
    records: Records, window: tuple[int, int], path: CriticalPath, what: str, fields: tuple[str, ...],
    parts: dict[tuple[str, str], int], host: bool,
) -> Reason:  # fmt: skip
    kinds: Counter[str] = Counter()
    resources: Counter[str] = Counter()
    for (kind, resource), ps in parts.items():
        kinds[kind] += ps
        resources[resource] += ps
    total = kinds.total()
    share = total / path.makespan_ps
    note = ""
    if fields == (_SLICE,):
        fields, note = _of_slices(records, window, resources)
    elif what == RESOURCES["pe_gemm"]:
        note = _of_array(records.spec["cube"]["pe"]["pe_gemm"])
    names = [kind for kind, ps in kinds.most_common() if ps >= 0.05 * total]
    matters = bool(fields) and names[0] in _RATE and share >= _SHOWN
    together = tuple(_together(records, path, fields, set(parts))) if matters else ()
    resource = max(resources, key=lambda x: resources[x])
    impl = _user_defined(records.spec, fields[0]) if fields else ""
    return Reason(
        what, resource, len(resources) - 1, ", ".join(names), total / 1000, share, fields, together, impl, host, note
    )


def _of_slices(records: Records, window: tuple[int, int], names: Collection[str]) -> tuple[tuple[str, ...], str]:
    """Fields that would change the time of HBM slices, and a note that says why.

    The log counts bursts and rows of the whole run. A launch that shares the slices with others uses these counts only
    if they agree with the bytes that it moved.
    """
    begun, rows, bursts, bus_ps, worked_ps = np.sum([records.drams.get(name, (0,) * 5) for name in names], axis=0)
    if not worked_ps:  # simple timing
        return (_SLICE,), ""
    whole = bus_ps / worked_ps
    of = ""
    if (own := _moved(records, window, names)) is not None:
        if own >= _SATURATED:
            return (_SLICE,), ""
        of = ", over the whole run,"
        if whole >= _SATURATED:
            return (), (
                f"its bytes take {own:.0%} of the time with requests on the data buses, those of the whole run "
                f"{whole:.0%}: simulate it alone to see whether rows or few bursts at once limit it"
            )
    busy = f"data buses are busy{of} for {whole:.0%} of the time with requests"
    opened = f"{rows / bursts:.2f} rows are opened for each burst"
    if _AS_LONG * bus_ps <= rows * _row_ps(records.spec["cube"]["hbm"]) <= bus_ps / _AS_LONG:
        return (), f"{busy}, and {opened}, which takes as long: store together what is read together"
    if whole >= _SATURATED:
        return (_SLICE,), ""
    if bursts < _QUEUED * begun:
        return (), f"{busy}, since few bursts are asked for at once: ask for more before waiting"
    return (_CHANNELS,), f"{busy}, and {opened}: store together what is read together"


def _of_array(gemm: Mapping[str, Any]) -> str:
    """Say which side of the tile streams too shortly through a systolic array to fill and drain it."""
    if gemm.get("model") != "systolic":
        return ""
    array, side = gemm["systolic"], _STREAMED[gemm["systolic"]["dataflow"]]
    tiles = [gemm["tile"], *(dict(zip("mkn", sizes, strict=True)) for sizes in gemm.get("other_tiles", ()))]
    streamed, least = max(tile[side] for tile in tiles), array["rows"] + array["cols"]
    if streamed >= least:
        return ""
    return (
        f"an array of {array['rows']} x {array['cols']} fills and drains for {least - 2} cycles while {streamed} stream"
        f": enlarge cube.pe.pe_gemm.tile.{side} to {least} or more"
    )


def _row_ps(hbm: Mapping[str, Any]) -> float:
    """Minimum time between two activations of a channel [ps]."""
    ps = dram(hbm["timing"]).times_ps(hbm["channel_bw_gbs"])
    return max(ps["tRRD_S"], ps["tFAW"] / 4)


def _moved(records: Records, window: tuple[int, int], names: Collection[str]) -> float | None:
    """Share of the window's pending time in which its bytes occupy the data buses of some slices.

    None if the slices served nothing outside of the window.
    """
    columns = records.dependencies.transfers
    memory = np.array(records.dependencies.memories)[columns["route"]]
    served = (columns["served_ps"] >= 0) & np.isin(memory, [*names])
    inside = served & (columns["served_ps"] > window[0]) & (columns["arrived_ps"] < window[1])
    if inside.sum() == served.sum():
        return None
    hbm = records.spec["cube"]["hbm"]
    gbs = hbm["channels"] * hbm["channel_bw_gbs"] * hbm["efficiency"]
    worked = 0
    for name in names:
        mine = inside & (memory == name)
        worked += covered_ps(columns["arrived_ps"][mine], columns["served_ps"][mine])
    return float(columns["nbytes"][inside].sum() * 1000 / gbs / worked) if worked else 0.0


def _user_defined(spec: Mapping[str, Any], field: str) -> str:
    *groups, _ = field.split(".")
    for group in groups:
        spec = spec.get(group, {})
    impl = str(spec.get("impl", ""))
    return impl if ":" in impl else ""


def _together(records: Records, path: CriticalPath, fields: tuple[str, ...], parts: set[tuple[str, str]]) -> list[str]:
    """Fields of resources that were busy for more than half of the time of these parts of the path."""
    times = [(sum(x.ps for x in step.parts if (x.kind, x.resource) in parts), step) for step in path.steps]
    steps = [(step.start_ps, step.end_ps, ps) for ps, step in times if ps]
    low, high, of_parts = np.array(steps, np.int64).reshape(-1, 3).T
    need = _BINDS * int((high - low).sum())
    pes = {match.group(0) for _, resource in parts if (match := _PE.match(resource.replace("hbm_ctrl.", "")))}
    found = [*_at_least(records, fields), *_on_the_way(records, {resource for _, resource in parts}, need)]
    found = [field for field in found if field not in fields]
    mostly = 2 * of_parts >= high - low  # a path through tiles that are not logged is one step with many parts
    whole = _of_stages(records, pes, low[mostly], high[mostly])
    for i, name in enumerate(records.components):
        own = attribution("", name).fields
        if not name.startswith(tuple(f"{pe}." for pe in pes)) or not own or own[0].endswith("_ns") or own == fields:
            continue
        rows = records.component == i
        if max(whole[name], _overlap(records.start_ps[rows], records.end_ps[rows], low, high)) > need:
            found += own
    return list(dict.fromkeys(found))


def _of_stages(records: Records, pes: Collection[str], low: np.ndarray, high: np.ndarray) -> Counter[str]:
    """Busy time of some PEs' engines within intervals, if the tiles of each command are spread evenly."""
    found: Counter[str] = Counter()
    for stage in map(StageWork._make, records.dependencies.stages.tolist() if pes and len(low) else ()):
        engine, place = STAGE_ENGINES.get(records.kinds[stage.kind]), records.commands[stage.command].place
        if engine is not None and place in pes and stage.end_ps > stage.start_ps:
            within = np.minimum(high, stage.end_ps) - np.maximum(low, stage.start_ps)
            share = int(within[within > 0].sum()) / (stage.end_ps - stage.start_ps)
            found[f"{place}.{engine}"] += round(stage.busy_ps * share)
    return found


def _on_the_way(records: Records, resources: set[str], need: float) -> list[str]:
    """Bandwidth fields of links that share a route with `resources` and were busy for longer than `need`."""
    routes = RouteBreakdown(records)
    shared: set[str] = set()
    for route in range(len(records.dependencies.routes)):
        links = set(routes.links(route))
        if not resources.isdisjoint((*routes.ends(route), *links)):
            shared |= links
    table = records.links
    busy = [name for name, ps in zip(table.names, table.busy_ps.tolist(), strict=True) if ps > need and name in shared]
    return [field for name in busy for field in attribution("serialization", name).fields]


def _overlap(start: np.ndarray, end: np.ndarray, low: np.ndarray, high: np.ndarray) -> int:
    """Length of the intersection of two unions of intervals."""
    both = covered_ps(np.concatenate([start, low]), np.concatenate([end, high]))
    return covered_ps(start, end) + covered_ps(low, high) - both


def _at_least(records: Records, fields: tuple[str, ...]) -> list[str]:
    """Links that could not carry an HBM slice of twice the rate; none may be slower than the slice."""
    if not {_SLICE, _CHANNELS}.intersection(fields):
        return []
    cube = records.spec["cube"]
    hbm = cube["hbm"]
    twice = decimal_product(2, hbm["channels"], hbm["channel_bw_gbs"], hbm["efficiency"])
    links = {"cube.hbm.bw_gbs": hbm["bw_gbs"], "cube.pe.pe_dma.bw_gbs": cube["pe"]["pe_dma"]["bw_gbs"]}
    return [field for field, bw in links.items() if bw < twice]
