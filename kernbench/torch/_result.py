"""The cost of a model's call by module: time, share, limit, bytes, FLOPs and place on the roofline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from kernbench.analysis._critical_path import CriticalPath, critical_path
from kernbench.analysis._records import Launch, Records
from kernbench.analysis._resources import attribution
from kernbench.analysis._roofline import macs_per_ns, memory_roof, multiplied_type
from kernbench.analysis.breakdown import Breakdown, breakdown
from kernbench.analysis.why import Why, why
from kernbench.errors import StateError
from kernbench.ops.matmul import named

if TYPE_CHECKING:
    from kernbench.analysis._what_if._predictions import Prediction, Tornado
    from kernbench.torch._device import GraphCall, ModelDevice
    from kernbench.torch._operators import ModelStep


@dataclass(frozen=True)
class CallPart:
    """A launch, or an operator on the host, in a call: its step, times, FLOPs and bytes.

    With several ranks it begins when the slowest rank has finished the previous part, so that no time is counted twice,
    and a collective begins when the last rank arrives. `wait_ps` is how long the first rank waited for it.
    """

    step: ModelStep
    start_ps: int
    end_ps: int
    flops: int
    nbytes: int
    launches: tuple[Launch, ...]
    wait_ps: int = 0

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def module(self) -> str:
        return self.step.module

    @property
    def operators(self) -> tuple[str, ...]:
        return self.step.operators

    @property
    def on_host(self) -> bool:
        return self.step.on_host

    @property
    def ns(self) -> float:
        return (self.end_ps - self.start_ps) / 1000


class ModelResult:
    """The last call of a model on a machine; it displays itself.

    Attributes
    ----------
    launches : tuple of Part
        Launches and operators on the host, in order, with the names of modules and operators.
    """

    def __init__(self, records: Records, launches: Sequence[CallPart], window: tuple[int, int]) -> None:
        self.records, self.launches, self._window = records, tuple(launches), window

    @classmethod
    def of(cls, device: ModelDevice) -> ModelResult:
        """Return the result of the last call; if that was a backward pass, together with its forward pass."""
        if not device.calls:
            raise StateError("the model has not been called; its result is that of a call")
        count = 2 if device.calls[-1].is_backward and len(device.calls) > 1 else 1
        calls = device.calls[-count:]
        records = device.records
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
        allows at that intensity: its matrix engines, for the type that the model multiplies most, and its HBM or, if it
        has one, its last-level cache, through which these bytes come. Times add up to that of the call: a last row has
        the time between launches, if any. `wait_ns` is how long the first rank waits in collectives for the last one,
        which `ns` does not contain.
        """
        rows = []
        for module in dict.fromkeys(part.module for part in self.launches):
            own = [part for part in self.launches if part.module == module]
            ns, flops, nbytes = sum(p.ns for p in own), sum(p.flops for p in own), sum(p.nbytes for p in own)
            longest = max(own, key=lambda p: p.ns)
            rows.append({
                "module": module or "(model)", "launches": len(own), "ns": ns, "share": ns / self.latency_ns,
                "limit": self.limit(longest), "bytes": nbytes, "flops": flops,
                "intensity": flops / nbytes if nbytes else 0.0, "of_roofline": self._of_roofline(own),
                "wait_ns": sum(p.wait_ps for p in own) / 1000,
            })  # fmt: skip
        between = self.latency_ns - sum(p.ns for p in self.launches)
        if between > 0.0005:  # half a ps
            rows.append({"module": "(between launches)", "ns": between, "share": between / self.latency_ns,
                         "limit": "host", **dict.fromkeys(("launches", "bytes", "flops"), 0),
                         **dict.fromkeys(("intensity", "of_roofline", "wait_ns"), 0.0)})  # fmt: skip
        return pd.DataFrame(rows)

    @cached_property
    def placements(self) -> pd.DataFrame:
        """Each matrix product: placement, reason, simulated time [ns] and the estimates of all placements [ns]."""
        rows = []
        for part in self.launches:
            choice = part.step.choice
            if choice is not None:
                found = {"launch": part.name, "placement": named(choice.placement), "why": choice.why}
                others = {f"{name}_ns": ns for name, ns in choice.estimates_ns.items()}
                rows.append({**found, "simulated_ns": part.ns, **others})
        return pd.DataFrame(rows)

    @property
    def host_fallbacks(self) -> list[CallPart]:
        return [part for part in self.launches if part.on_host]

    @property
    def device_flops_share(self) -> float:
        whole = sum(part.flops for part in self.launches)
        return sum(part.flops for part in self.launches if not part.on_host) / whole if whole else 1.0

    @cached_property
    def stages(self) -> Breakdown:
        """Exclusive and busy time of each stage in the call, over all PEs that did work."""
        return breakdown(self.records.within(*self._window), window=self._window)

    def why(self, launch: str | CallPart | None = None) -> Why:
        """Return the critical path of the call, or of one launch, by resource.

        Parameters
        ----------
        launch : str or Part, optional
            One of `launches`, or its name; of several with one name, the longest.

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

    def what_if(self, overrides: Mapping[str, object] | Sequence[str]) -> Prediction:
        """Predict the time of the call on a changed machine, without running it again.

        Parameters
        ----------
        overrides : str, sequence of str, or mapping
            Fields of the machine file with their new values, as for `what_if` of a run; programs and
            placements are kept.

        Raises
        ------
        KernbenchError
            If a field or value is invalid, or the field changes what runs where: that needs a new run.
        """
        from kernbench.analysis._what_if._predictions import what_if

        return what_if(self.records, overrides, "call", self._window)

    def tornado(self, factors: Sequence[float] = (0.5, 2.0)) -> Tornado:
        """Predict the call's time with each bandwidth, latency and rate of the machine multiplied by each of `factors`.

        Raises
        ------
        KernbenchError
            If the call was not logged.
        """
        from kernbench.analysis._what_if._predictions import tornado_of

        return tornado_of(self.records, factors, "call", window=self._window)

    def limit(self, part: CallPart) -> str:
        """Return the resource with most of a launch's time on the critical path of the call on the device."""
        if part.on_host:
            return "host"
        times: Counter[str] = Counter()
        for step in self._path.steps:
            if part.start_ps <= (step.start_ps + step.end_ps) // 2 < part.end_ps:
                for x in step.parts:
                    times[attribution(x.kind, x.resource).group] += x.ps
        return times.most_common(1)[0][0] if times else "host"

    @cached_property
    def _path(self) -> CriticalPath:
        return critical_path(self.records, [each for part in self.launches for each in part.launches]).of_host(False)

    def compare(self, other: ModelResult) -> pd.DataFrame:
        """Compare both times [ns] by module; `ratio` is the other's over this one's."""
        times = [x.table.groupby("module", sort=False)["ns"].sum() for x in (self, other)]
        both = pd.concat(times, axis=1, keys=["ns", "other_ns"]).fillna(0.0)
        both.loc["(call)"] = [self.latency_ns, other.latency_ns]
        return both.assign(ratio=both["other_ns"] / both["ns"]).reset_index(names="module")

    def trace(self, path: str | Path) -> Path:
        """Write the run as Chrome trace events, for ui.perfetto.dev."""
        from kernbench.analysis.trace import write_trace

        return write_trace(self.records, path)

    def _of_roofline(self, parts: Sequence[CallPart]) -> float:
        """Achieved FLOPs per ns over those that engines and memory allow at the parts' intensity; 0 if unknown."""
        flops, nbytes, ns = sum(p.flops for p in parts), sum(p.nbytes for p in parts), sum(p.ns for p in parts)
        if not (flops and nbytes and ns and self.records.spec):
            return 0.0
        from kernbench.topology.builder import resolve_topology

        config = resolve_topology(dict(self.records.spec)).config
        sips = len(max(parts, key=lambda p: p.flops).launches)
        pes, (_, memory_gbs) = config.pes_per_sip * sips, memory_roof(config)
        peak = 2 * macs_per_ns(config, multiplied_type(self.records)) * pes
        return float(flops / ns / min(peak, flops / nbytes * memory_gbs * pes))

    def __repr__(self) -> str:
        return f"{self._head()}\n\n{pd.DataFrame(self._shown()).to_string(index=False)}"

    def _shown(self) -> list[dict[str, str]]:
        """Format the table with units; the waiting column is left out if no rank waits."""
        waits = (self.table["wait_ns"] > 0).any()
        return [
            {
                "module": row["module"], "launches": f"{row['launches']}", "time [ns]": f"{row['ns']:,.1f}",
                "share": f"{row['share']:.1%}", "limit": row["limit"], "moved": quantity(row["bytes"], "B"),
                "computed": quantity(row["flops"], "FLOP"), "FLOP/B": f"{row['intensity']:.1f}",
                "of roofline": f"{row['of_roofline']:.1%}",
            } | ({"waiting [ns]": f"{row['wait_ns']:,.1f}"} if waits else {})
            for row in self.table.to_dict("records")
        ]  # fmt: skip

    def _head(self) -> str:
        fallbacks = [f"{p.module or 'model'}: {p.operators[0]}" for p in self.host_fallbacks]
        host = f"; on the host: {', '.join(fallbacks)}" if fallbacks else ""
        return (
            f"call: {self.latency_ns:,.2f} ns, {len(self.launches)} launches, {self.device_flops_share:.1%} of the "
            f"FLOPs on PEs (machine {self.records.machine[:12]}){host}"
        )

    def _repr_html_(self) -> str:
        from kernbench.viz._html import model_html

        launches = [
            {"launch": p.name, "time [ns]": f"{p.ns:,.1f}", "limit": self.limit(p), "moved": quantity(p.nbytes, "B"),
             "computed": quantity(p.flops, "FLOP")}
            for p in self.launches
        ]  # fmt: skip
        ns = dict(zip(self.table["module"], self.table["ns"], strict=True))
        return model_html(self._head(), ns, self._shown(), launches)


def quantity(x: float, unit: str) -> str:
    """Format bytes or FLOPs with a decimal prefix, in three digits; empty for 0.

    >>> quantity(60_824_576, "B"), quantity(512, "B"), quantity(0, "FLOP")
    ('60.8 MB', '512 B', '')
    """
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if x >= scale:
            return f"{x / scale:.{2 - (x >= 10 * scale) - (x >= 100 * scale)}f} {prefix}{unit}"
    return f"{x:.0f} {unit}" if x else ""


def _parts(records: Records, call: GraphCall) -> list[CallPart]:
    """Return the steps of a call with their times; FLOPs and bytes are those of the log, summed over the ranks."""
    own: dict[int, list[Launch]] = {}
    for launch in records.launches:
        own.setdefault(launch.sip, []).append(launch)
    counted = {sip: _counts(records, sip, launches) for sip, launches in own.items()}
    next_of = dict.fromkeys(own, 0) | dict(call.first)
    found: list[CallPart] = []
    at = call.start_ps
    for step in call.steps:
        if step.on_host:
            later = own[0][next_of[0] : next_of[0] + 1] if own else []
            until = later[0].start_ps if later else call.end_ps
            found.append(CallPart(step, at, until, step.flops, 0, ()))
            at = until
            continue
        here = [(sip, next_of[sip]) for sip in own if sip < call.ranks or step.is_collective]
        for sip, i in here:
            next_of[sip] = i + 1
        launches = [own[sip][i] for sip, i in here]
        flops, nbytes = (sum(int(counted[sip][what, i]) for sip, i in here) for what in (0, 1))
        nbytes = max(step.nbytes * len(here), nbytes)
        starts = [launch.start_ps for launch in launches]
        collective = step.is_collective
        begin, end = max(at, (max if collective else min)(starts)), max(at, *(launch.end_ps for launch in launches))
        waited = max(starts) - min(starts) if collective else 0
        found.append(CallPart(step, begin, end, max(step.flops, flops), nbytes, tuple(launches), waited))
        at = end
    return found


def _counts(records: Records, sip: int, launches: Sequence[Launch]) -> np.ndarray:
    """FLOPs and bytes moved of each launch on a SIP: int64 of shape (2, launches)."""
    ours = np.flatnonzero(records.location[:, 0] == sip)
    i = np.searchsorted([launch.start_ps for launch in launches], records.start_ps[ours], "right") - 1
    inside = (i >= 0) & (records.start_ps[ours] < np.array([launch.end_ps for launch in launches])[i])
    ours, i = ours[inside], i[inside]
    moved = np.where(records.is_kind("load", "store", "dma_in", "dma_out")[ours], records.nbytes[ours], 0)
    found = np.zeros((2, len(launches)), np.int64)
    np.add.at(found[0], i, records.flops[ours])
    np.add.at(found[1], i, moved)
    return found
