"""What a call of a model took, by module: time, share, limit, bytes, FLOPs and place on the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from kernbench.analysis._records import Launch, Records
from kernbench.analysis._roofline import macs_per_ns
from kernbench.analysis.breakdown import Breakdown, breakdown
from kernbench.analysis.result import LABELS, span
from kernbench.analysis.why import Why, why
from kernbench.errors import StateError

if TYPE_CHECKING:
    from kernbench.torch._device import Call, Device
    from kernbench.torch._steps import Step


@dataclass(frozen=True)
class Part:
    """A launch, or an operator of the host, of a call: what it is, when it was, and what it moved and computed."""

    step: Step
    start_ps: int
    end_ps: int
    flops: int
    nbytes: int
    launches: tuple[Launch, ...]

    @property
    def name(self) -> str:
        """The module, and the operators after a slash."""
        return self.step.name

    @property
    def module(self) -> str:
        """The path of the module; empty for the model itself."""
        return self.step.module

    @property
    def operators(self) -> tuple[str, ...]:
        """The operators, fused into one launch."""
        return self.step.operators

    @property
    def on_host(self) -> bool:
        """Whether the host computed it."""
        return self.step.on_host

    @property
    def ns(self) -> float:
        """Its time [ns]."""
        return (self.end_ps - self.start_ps) / 1000


class ModelResult:
    """The last call of a model on a machine; it displays itself.

    Attributes
    ----------
    launches : tuple of Part
        Launches and operators of the host, in order, under module and operator names.
    """

    def __init__(self, records: Records, launches: Sequence[Part], window: tuple[int, int]) -> None:
        self.records, self.launches, self._window = records, tuple(launches), window

    @classmethod
    def of(cls, device: Device) -> ModelResult:
        """Return the result of the last call; of forward and backward, where the last one was a backward pass."""
        if not device.calls:
            raise StateError("the model has not been called; its result is that of a call")
        count = 2 if device.calls[-1].is_backward and len(device.calls) > 1 else 1
        calls = device.calls[-count:]
        records = device.session.result.records
        parts = [part for call in calls for part in _parts(records, call)]
        return cls(records, parts, (calls[0].start_ps, calls[-1].end_ps))

    @property
    def latency_ns(self) -> float:
        """Time of the call [ns], from the first launch's message to the last completion."""
        return (self._window[1] - self._window[0]) / 1000

    @cached_property
    def table(self) -> pd.DataFrame:
        """By module, in the order of the model: ns, share, limit, bytes, FLOPs, and the place on the roofline.

        `intensity` is FLOPs per byte that the PEs moved, `of_roofline` is the achieved share of what the machine
        allows at that intensity.
        """
        rows = []
        for module in dict.fromkeys(part.module for part in self.launches):
            own = [part for part in self.launches if part.module == module]
            ns, flops, nbytes = sum(p.ns for p in own), sum(p.flops for p in own), sum(p.nbytes for p in own)
            longest = max(own, key=lambda p: p.ns)
            rows.append({
                "module": module or "(model)", "launches": len(own), "ns": ns, "share": ns / self.latency_ns,
                "limit": self.limit(longest), "bytes": nbytes, "flops": flops,
                "intensity": flops / nbytes if nbytes else 0.0, "of_roofline": self._of_roofline(flops, nbytes, ns),
            })  # fmt: skip
        return pd.DataFrame(rows)

    @cached_property
    def placements(self) -> pd.DataFrame:
        """Each matrix product: the placement, its estimate and simulated time [ns], and the estimates of the others."""
        rows = []
        for part in self.launches:
            choice = part.step.choice
            if choice is not None:
                by = "user" if choice.overridden else "estimate"
                others = {f"{name}_ns": ns for name, ns in choice.estimates_ns.items()}
                found = {"launch": part.name, "placement": choice.name, "chosen_by": by, "simulated_ns": part.ns}
                rows.append({**found, **others})
        return pd.DataFrame(rows)

    @property
    def host_fallbacks(self) -> list[Part]:
        """The operators that the host computed, because the machine does not have them."""
        return [part for part in self.launches if part.on_host]

    @property
    def device_flops_share(self) -> float:
        """The share of all FLOPs that ran on PEs."""
        whole = sum(part.flops for part in self.launches)
        return sum(part.flops for part in self.launches if not part.on_host) / whole if whole else 1.0

    @cached_property
    def stages(self) -> Breakdown:
        """Exclusive and busy time of each stage in the call, of all PEs that did work."""
        return breakdown(self.records.within(*self._window), window=self._window)

    def why(self, launch: str | Part | None = None) -> Why:
        """Return the critical path of the call, or of one launch, by resource.

        Parameters
        ----------
        launch : str or Part, optional
            One of `launches`, or its name; of several of a name, the longest.

        Raises
        ------
        KeyError
            If no launch has the name; the message lists them.
        """
        device = [part for part in self.launches if part.launches]
        if launch is None:
            return why(self.records, "call", [each for part in device for each in part.launches])
        if isinstance(launch, str):
            found = [part for part in device if part.name == launch]
            if not found:
                raise KeyError(f"no launch {launch!r}; there are {', '.join(dict.fromkeys(p.name for p in device))}")
            launch = max(found, key=lambda part: part.ns)
        return why(self.records, launch.name, launch.launches)

    def limit(self, part: Part) -> str:
        """Return the stage that took most of a launch's time."""
        if part.on_host:
            return "host"
        window = part.start_ps, part.end_ps
        exclusive = breakdown(self.records.within(*window), window=window).exclusive_ns()
        return LABELS[max(exclusive, key=lambda stage: exclusive[stage])]

    def compare(self, other: ModelResult) -> pd.DataFrame:
        """Return both times [ns] by module, and the ratio of the other's to this one's."""
        times = [x.table.groupby("module", sort=False)["ns"].sum() for x in (self, other)]
        both = pd.concat(times, axis=1, keys=["ns", "other_ns"]).fillna(0.0)
        both.loc["(call)"] = [self.latency_ns, other.latency_ns]
        return both.assign(ratio=both["other_ns"] / both["ns"]).reset_index(names="module")

    def trace(self, path: str | Path) -> Path:
        """Write the run as Chrome trace events, for ui.perfetto.dev."""
        from kernbench.analysis.trace import write_trace

        return write_trace(self.records, path)

    def _of_roofline(self, flops: int, nbytes: int, ns: float) -> float:
        """Return achieved FLOPs per ns over those that matrix engines and HBM allow at this intensity."""
        if not (flops and nbytes and ns and self.records.spec):
            return 0.0
        from kernbench.topology.builder import resolve_topology

        config = resolve_topology(dict(self.records.spec)).config
        pes = config.cubes_per_sip * config.pes_per_cube
        hbm, peak = config.cube.hbm, 2 * macs_per_ns(config, "f16") * pes
        memory = hbm.channels * hbm.channel_bw_gbs * hbm.efficiency * pes
        return flops / ns / min(peak, flops / nbytes * memory)

    def __repr__(self) -> str:
        table = self.table.to_string(index=False, formatters=_FORMATS)
        return f"{self._head()}\n\n{table}"

    def _head(self) -> str:
        fallbacks = [f"{p.module or 'model'}: {p.operators[0]}" for p in self.host_fallbacks]
        host = f"; on the host: {', '.join(fallbacks)}" if fallbacks else ""
        return (
            f"call: {self.latency_ns:,.2f} ns, {len(self.launches)} launches, {self.device_flops_share:.1%} of the "
            f"FLOPs on PEs (machine {self.records.machine[:12]}){host}"
        )

    def _repr_html_(self) -> str:
        modules = self.table.to_html(index=False, formatters=_FORMATS, border=0)
        rows = [{"launch": p.name, "ns": p.ns, "limit": self.limit(p)} for p in self.launches]
        launches = pd.DataFrame(rows).to_html(index=False, formatters=_FORMATS, border=0, max_rows=None)
        inside = f"<details><summary>{len(rows)} launches</summary>{launches}</details>"
        return f"<p>{escape(self._head())}</p>{modules}{inside}"


_FORMATS: Any = {
    "ns": "{:,.1f}".format, "share": "{:.1%}".format, "bytes": "{:,}".format, "flops": "{:,}".format,
    "intensity": "{:.1f}".format, "of_roofline": "{:.1%}".format,
}  # fmt: skip


def _parts(records: Records, call: Call) -> list[Part]:
    """Return the steps of a call with their times; FLOPs and bytes are those that the log counted, of all ranks."""
    own: dict[int, list[Launch]] = {}
    for launch in records.launches:
        own.setdefault(launch.sip, []).append(launch)
    next_of = dict.fromkeys(own, 0) | dict(call.first)
    moves = records.is_kind("load", "store", "dma_in", "dma_out")
    found: list[Part] = []
    at = call.start_ps
    for step in call.steps:
        if step.on_host:
            later = own[0][next_of[0] : next_of[0] + 1] if own else []
            until = later[0].start_ps if later else call.end_ps
            found.append(Part(step, at, until, step.flops, 0, ()))
            at = until
            continue
        here = []
        for sip in own:
            if sip < call.ranks or step.summed is not None:
                here.append(own[sip][next_of[sip]])
                next_of[sip] += 1
        begin, at = span(here)
        inside = (records.start_ps < at) & (records.end_ps > begin)
        flops = max(step.flops, int(records.flops[inside].sum()))
        found.append(Part(step, begin, at, flops, int(records.nbytes[inside & moves].sum()), tuple(here)))
    return found
