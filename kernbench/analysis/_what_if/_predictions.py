"""Predictions: the latency of a run on a changed machine, from its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from kernbench._units import decimal_product
from kernbench.analysis._records import Records
from kernbench.config import MachineConfig, read_machine
from kernbench.config._kinds import DURATION
from kernbench.config._overrides import leaves
from kernbench.config._schema import speeds
from kernbench.errors import ConfigError


def _begins(path: str) -> bool:
    """Whether a field costs a launch or collective time before it begins."""
    return path.startswith("system.host.") or path.endswith(".start_ns")


# What a prediction can change.
COVERED = tuple(path for path in speeds() if not _begins(path))
# Errors of predictions for fields up to four times slower or faster, too short and too long, as shares of the exact
# time, rounded up: random workloads on random machines (tests/fuzz/advice.py, benchmarks/predictions.py). With messages
# between PEs, each with the slowdown up to which it holds.
_WITHOUT = 0.05  # for small changes, twice the change and 0.5 %
_CREDITS = 0.15, 0.15  # full buffers of routers are not modelled
_DRAM = 0.2, 0.2  # refreshes delay short runs by up to a fifth
_WITH_MESSAGES = (2.0, (0.1, 0.1)), (float("inf"), (0.15, 0.1))
# No link between a PE and its slice may be slower than the slice.
_WITH_SLICE = ("cube.hbm.bw_gbs", "cube.pe.pe_dma.bw_gbs")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field of the machine file, before and after; `implied` if the machine needs it for the other changes."""

    field: str
    old: float
    new: float
    implied: bool = False

    def __str__(self) -> str:
        return f"{self.field} {self.old:g} -> {self.new:g}" + (", as it must be at least" if self.implied else "")


@dataclass(frozen=True, repr=False)
class Prediction:
    """The latency of a run on a changed machine: predicted, and simulated if it was run there.

    Attributes
    ----------
    name : str
        What ran.
    simulated_ns, predicted_ns : float
        The latency of the run, and that on the changed machine.
    low_ns, high_ns : float
        The range that exact runs of such changes had.
    doubt : str
        Why the prediction is not exact; empty if nothing changes.
    changes : tuple of Change
        The fields that differ, with their old and new values.
    exact_ns : float or None
        The simulated latency on the changed machine, if it was run there.
    """

    name: str
    simulated_ns: float
    predicted_ns: float
    low_ns: float
    high_ns: float
    doubt: str
    changes: tuple[FieldChange, ...]
    exact_ns: float | None = None
    label: str = "prediction"

    @property
    def overrides(self) -> list[str]:
        """The changes as `kernbench.load` and `--set` take them, including implied ones."""
        return [f"{change.field}={change.new!r}" for change in self.changes]

    @property
    def ratio(self) -> float:
        """Predicted over simulated latency; 1 for a run of length 0."""
        return self.predicted_ns / self.simulated_ns if self.simulated_ns else 1.0

    @property
    def exact_ratio(self) -> float | None:
        """Latency simulated on the changed machine over that of the run; None if not simulated."""
        if self.exact_ns is None:
            return None
        return self.exact_ns / self.simulated_ns if self.simulated_ns else 1.0

    @property
    def error(self) -> float | None:
        """Relative error of the prediction; None if the changed machine was not simulated."""
        return self.predicted_ns / self.exact_ns - 1 if self.exact_ns else None

    def __repr__(self) -> str:
        times = f"{self.predicted_ns:,.2f} ns instead of {self.simulated_ns:,.2f} ns"
        lines = [f"{self.label}: {self.name} takes {times} ({self.ratio:.3f}x)"]
        lines += [f"  between {self.low_ns:,.2f} and {self.high_ns:,.2f} ns: {self.doubt}"] if self.doubt else []
        lines += [f"  {change}" for change in self.changes]
        if self.exact_ns is not None:
            lines.append(f"  simulated: {self.exact_ns:,.2f} ns; error of the prediction {self.error or 0:+.2%}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


@dataclass(frozen=True, repr=False)
class Tornado:
    """The effect of each field of the machine file on the latency of a run, made smaller and larger.

    Attributes
    ----------
    rows : tuple of (field, predictions)
        One prediction for each of `factors`, None for an invalid machine; the largest effects come first.
    """

    name: str
    factors: tuple[float, ...]
    rows: tuple[tuple[str, tuple[Prediction | None, ...]], ...]

    def __repr__(self) -> str:
        width = max((len(field) for field, _ in self.rows), default=0)
        errors = [x.error for _, found in self.rows for x in found if x and x.error is not None]
        how = f"simulated (largest error of a prediction {max(map(abs, errors)):.2%})" if errors else "predicted"
        lines = [f"{self.name}: {how} change of the latency, each field times {self.factors}"]
        for field, found in self.rows:
            lines.append(f"  {field:<{width}}" + "".join(f"  {_signed(x) if x else '-':>26}" for x in found))
        lines += [
            f"  ranges: {doubt}"
            for doubt in dict.fromkeys(x.doubt for _, found in self.rows for x in found if x)
            if doubt
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def _signed(found: Prediction) -> str:
    text = _percent(swing(found))
    if text == "0.0%" or found.exact_ns is not None:
        return text
    low, high = (_percent(ns / found.simulated_ns - 1) for ns in (found.low_ns, found.high_ns))
    return f"{text} ({low} to {high})"


def _percent(change: float) -> str:
    text = f"{change:+.1%}"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def swing(found: Prediction) -> float:
    exact = found.exact_ratio
    return (found.ratio if exact is None else exact) - 1


def tornado_of(
    records: Records, factors: Sequence[float] = (0.5, 2.0), name: str = "run",
    exact_ns: Callable[[dict[str, float]], float] | None = None, window: tuple[int, int] | None = None,
) -> Tornado:  # fmt: skip
    """Effect of every field that sets a speed, largest first.

    `exact_ns` returns the simulated latency with some fields changed; without it, all is predicted. With a window [ps],
    the latency is that of the part of the run in it.
    """
    values = leaves(records.spec)

    def changed(field: str, factor: float) -> Prediction | None:
        try:
            found = what_if(records, {field: values[field] * factor}, name, window)
        except ConfigError:  # no such machine
            return None
        return replace(found, exact_ns=exact_ns(new_values(found))) if exact_ns else found

    rows = [(field, tuple(changed(field, factor) for factor in factors)) for field in COVERED if values.get(field)]
    rows.sort(key=lambda row: -max((abs(swing(x)) for x in row[1] if x), default=0))
    return Tornado(name, tuple(factors), tuple(rows))


def new_values(found: Prediction) -> dict[str, float]:
    return {change.field: change.new for change in found.changes}


def what_if(
    records: Records, overrides: Mapping[str, object] | Sequence[str], name: str = "run",
    window: tuple[int, int] | None = None,
) -> Prediction:  # fmt: skip
    """Predicted latency of a run, or of the part in a window [ps], on its machine with some fields changed.

    A part starts when all that was before it has ended.
    """
    from kernbench.analysis._what_if._graph import timing_of  # takes 10 ms, for predictions only

    changes = _changes(records.spec, overrides)
    timing = timing_of(records)
    ratio = {change.field: _slowdown(change) for change in changes}
    now = records.makespan_ps if window is None else window[1] - window[0]
    predicted = timing.predict(ratio, {change.field: change.new for change in changes}, window)
    if abs(predicted - now) < 1:
        return Prediction(name, now / 1000, predicted / 1000, predicted / 1000, predicted / 1000, "", changes)
    slowest, fastest = max(ratio.values()), min(ratio.values())
    doubt = "links and memories are predicted to serve a transfer as a whole, not flit by flit"
    if records.spec["cube"]["hbm"].get("timing", "simple") != "simple":
        short, long = _DRAM
        doubt = "refreshes and rows of the memory fall at other times than in the run"
        slowest, fastest = 2.0, 0.5  # a delay can avoid a refresh
    elif timing.credits:
        short, long = _CREDITS
        doubt = "buffers of routers may fill in another way than in the run"
    elif timing.messages:
        short, long = next(errors for most, errors in _WITH_MESSAGES if slowest <= most)
    else:
        short = long = min(_WITHOUT, 0.005 + 2 * abs(predicted / now - 1))
    low, high = predicted / (1 + long), predicted / (1 - short)
    # A machine that is only slower makes no run shorter, and one that is only faster makes none longer.
    low = max(low, min(now, predicted)) if fastest >= 1 else low
    high = min(high, max(now, predicted)) if slowest <= 1 else high
    return Prediction(name, now / 1000, predicted / 1000, low / 1000, high / 1000, doubt, changes)


# Fields with which times decide what happens.
_DECIDES = {
    "cube.llc.size_mib": "which requests hit the cache", "cube.pe.pe_gemm.other_tiles": "which tile a product takes",
}  # fmt: skip
_READS = "cube.pe.pe_dma.outstanding_reads"
_COVERED_BY_READS = ("cube.hbm.", "cube.llc.", "cube.noc.", "cube.pe.pe_dma.", "cube.propagation_ns_per_mm")


def _changes(spec: Mapping[str, Any], overrides: Mapping[str, object] | Sequence[str]) -> tuple[FieldChange, ...]:
    """All fields that change, also those that the machine needs changed; ConfigError if a prediction is impossible."""
    if not spec:
        raise ConfigError("these records do not hold the machine they were made on; run the bench again")
    asked = leaves(_with_wide_links(spec, overrides).to_spec())
    old = leaves(read_machine(dict(spec)).to_spec())  # with keys that are newer than the records
    if costs := [f"{field} = {value:g}" for field, value in old.items() if _begins(field) and value]:
        raise ConfigError(
            f"{', '.join(costs)}: a prediction does not know when the host has prepared a launch; run the program on "
            "the changed machine"
        )
    for field, what in _DECIDES.items():
        if old[field]:
            raise ConfigError(
                f"{field} = {old[field]}: a prediction does not know {what} then; run the program on the changed "
                "machine"
            )
    least = decimal_product(*(asked[f"cube.hbm.{key}"] for key in ("channels", "channel_bw_gbs", "efficiency")))
    implied = {}
    for field in _WITH_SLICE:
        if asked[field] == _WIDE:
            asked[field] = old[field]
            if least > old[field]:
                asked[field] = implied[field] = least
    changed = {field for field in (*old, *asked) if old.get(field) != asked.get(field)}
    if not old[_READS] and (covered := sorted(field for field in changed if field.startswith(_COVERED_BY_READS))):
        raise ConfigError(
            f"{covered[0]} = {asked.get(covered[0])!r}: a prediction does not know how many reads {_READS} = auto "
            "gives then; run the program on the changed machine"
        )
    if old["cube.hbm.timing"] != "simple" and "cube.hbm.channel_bw_gbs" in changed:
        raise ConfigError(
            f"cube.hbm.channel_bw_gbs = {asked['cube.hbm.channel_bw_gbs']!r}: a prediction does not schedule the "
            f"commands of cube.hbm.timing = {old['cube.hbm.timing']}; run the program on the changed machine"
        )
    wrong = [
        f"{field} = {asked.get(field)!r}: a prediction re-times the same operations, and this field may change which "
        "there are; run the program on the changed machine"
        for field in sorted(changed - {*COVERED})
        if not field.startswith("cost.")
    ]
    if wrong:
        raise ConfigError(wrong)
    return tuple(
        FieldChange(field, old[field], asked[field], field in implied) for field in COVERED if field in changed
    )


_WIDE = 1e9


def _with_wide_links(spec: Mapping[str, Any], overrides: Mapping[str, object] | Sequence[str]) -> MachineConfig:
    """Machine with the overrides; links of HBM slices that are not changed are wide enough for any slice."""
    wide: dict[str, Any] = deepcopy(dict(spec))
    wide["cube"]["hbm"]["bw_gbs"] = wide["cube"]["pe"]["pe_dma"]["bw_gbs"] = _WIDE
    return read_machine(wide, overrides)


def is_time(field: str) -> bool:
    return speeds().get(field) == DURATION


def _slowdown(change: FieldChange) -> float:
    if is_time(change.field):
        return change.new / change.old if change.old else 1.0
    return change.old / change.new
