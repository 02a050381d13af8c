"""Why a run took as long as it did: the critical path by resource, longest first, with what to change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from kernbench.analysis.blame import blame
from kernbench.analysis.critical_path import CriticalPath, critical_path
from kernbench.analysis.records import Records

_RATE = ("memory", "matrix", "vector", "fetch", "store", "serialization", "queueing", "fill")
_SLICE = "cube.hbm.channel_bw_gbs"
_LIMITS = {
    "the limit of outstanding requests": ("cube.pe.pe_dma.outstanding_reads", "cube.pe.pe_dma.outstanding_writes"),
    "a free tile buffer": ("cube.pe.pe_tcm.buffers_per_operand",),
    "a full buffer behind": ("cube.pe.pe_tcm.stage_buffers",),
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A resource on the critical path.

    Attributes
    ----------
    what : str
        What it is: "HBM slice", "PCIe link", ...
    resource : str
        The component or link; of several alike, the one with most of the time.
    others : int
        How many more alike are in it.
    kind : str
        What the time was spent on, by share: "memory", "wire", "serialization, queueing", ...
    ns, share : float
        Time on the path, and its share of the makespan.
    fields : tuple of str
        Fields of the machine file that set it.
    together : tuple of str
        Fields of other resources that are busy so long that they bind before this one is twice as fast.
    """

    what: str
    resource: str
    others: int
    kind: str
    ns: float
    share: float
    fields: tuple[str, ...]
    together: tuple[str, ...] = ()

    def advice(self) -> str:
        """Return what to change, in words; empty where no field of the machine file is known."""
        if not self.fields:
            return ""
        text = _change(self.fields)
        return f"{text} together with {', '.join(self.together)}" if self.together else text


@dataclass(frozen=True, eq=False, repr=False)
class Why:
    """The critical path of a run in words; it prints itself, and shows itself in a notebook.

    Attributes
    ----------
    path : CriticalPath
        Every step.
    reasons : tuple of Reason
        The resources on it, longest first; their times sum to that of the run.
    """

    name: str
    machine: str
    path: CriticalPath
    reasons: tuple[Reason, ...]

    def __iter__(self) -> Iterator[Reason]:
        return iter(self.reasons)

    def __getitem__(self, i: int) -> Reason:
        return self.reasons[i]

    def __len__(self) -> int:
        return len(self.reasons)

    def starts(self) -> list[tuple[str, int, tuple[str, ...]]]:
        """Return why steps began, how many did for it, and the fields behind it, most frequent first."""
        return [(why, n, _LIMITS.get(why, ())) for why, n in self.path.because().most_common()]

    def to_dict(self) -> dict[str, Any]:
        """Return the reasons as plain values."""
        return {
            "latency_ns": self.path.makespan_ps / 1000,
            "steps": len(self.path.steps),
            "reasons": [asdict(reason) for reason in self.reasons],
            "starts": [{"because": why, "steps": n, "fields": list(fields)} for why, n, fields in self.starts()],
        }

    def __repr__(self) -> str:
        total = self.path.makespan_ps / 1000
        lines = [f"{self.name}: {total:,.2f} ns, where they went on the critical path of {len(self.path.steps)} steps"]
        shown = self.reasons[:8]
        names = [f"{x.what} {x.resource}{_more(x.others)}" for x in shown]
        width = max((len(name) for name in names), default=0)
        for i, (name, x) in enumerate(zip(names, shown, strict=True), 1):
            lines.append(f"{i:>3}. {name:<{width}}{x.ns:>14,.2f} ns {x.share:>6.1%}  {x.kind}")
            if x.advice() and x.share >= 0.05:
                lines.append(f"     -> {x.advice()}")
        rest = self.reasons[8:]
        if rest:
            name, ns = f"{len(rest)} more", sum(x.ns for x in rest)
            lines.append(f"     {name:<{width}}{ns:>14,.2f} ns {ns / total:>6.1%}")
        limits = [(why, n, fields) for why, n, fields in self.starts() if fields and n > 1]
        lines += [f"     {n:,} steps began only with {why}: {', '.join(fields)}" for why, n, fields in limits]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from kernbench.viz.why import why_html

        return why_html(self)


def why(records: Records, name: str = "run") -> Why:
    """Return why a run took as long as it did.

    Raises
    ------
    KernbenchError
        If the run was not logged.
    """
    path = critical_path(records)
    groups: dict[tuple[str, tuple[str, ...]], dict[tuple[str, str], int]] = {}
    for (kind, resource), ps in path.parts().items():
        group, fields = blame(kind, resource)
        parts = groups.setdefault((group, fields), {})
        parts[kind, resource] = parts.get((kind, resource), 0) + ps
    reasons = [_reason(records, *key, parts) for key, parts in groups.items()]
    reasons.sort(key=lambda x: (-x.ns, x.what))
    return Why(name, records.machine[:12], path, tuple(reasons))


def _reason(records: Records, what: str, fields: tuple[str, ...], parts: dict[tuple[str, str], int]) -> Reason:
    kinds: dict[str, int] = {}
    resources: dict[str, int] = {}
    for (kind, resource), ps in parts.items():
        kinds[kind] = kinds.get(kind, 0) + ps
        resources[resource] = resources.get(resource, 0) + ps
    total = sum(kinds.values())
    names = [kind for kind in sorted(kinds, key=lambda k: -kinds[k]) if kinds[kind] >= 0.05 * total]
    return Reason(
        what,
        max(resources, key=lambda x: resources[x]),
        len(resources) - 1,
        ", ".join(names),
        total / 1000,
        total / records.makespan_ps if records.makespan_ps else 0.0,
        fields,
        _together(records, fields, total) if fields and names[0] in _RATE else (),
    )


def _together(records: Records, fields: tuple[str, ...], ps: int) -> tuple[str, ...]:
    """Return the fields of what would bind if the `ps` that `fields` stand for were halved: it is busy for longer."""
    bound = records.makespan_ps - ps // 2
    links = zip(records.links.names, records.links.busy_ps.tolist(), strict=True)
    busy = [("memory", name, ps) for name, ps in records.busy_by_component().items()]
    busy += [("serialization", name, ps) for name, ps in links]
    found = {f: None for kind, name, ps in busy if ps > bound for f in blame(kind, name).fields if f not in fields}
    return tuple(dict.fromkeys([*_at_least(records, fields), *(f for f in found if not f.endswith("_ns"))]))


def _at_least(records: Records, fields: tuple[str, ...]) -> list[str]:
    """Return the links that no HBM slice may outrun, if they could not carry what one of twice the rate gives."""
    if _SLICE not in fields:
        return []
    cube = records.spec["cube"]
    hbm = cube["hbm"]
    twice = 2 * hbm["channels"] * hbm["channel_bw_gbs"] * hbm["efficiency"]
    links = {"cube.hbm.bw_gbs": hbm["bw_gbs"], "cube.pe.pe_dma.bw_gbs": cube["pe"]["pe_dma"]["bw_gbs"]}
    return [field for field, bw in links.items() if bw < twice]


def _more(others: int) -> str:
    return f" and {others} more" if others else ""


def _change(fields: tuple[str, ...]) -> str:
    verb = "lower" if fields[0].endswith(("_ns", "_mm")) else "raise"
    return f"{verb} {', '.join(fields)}"
