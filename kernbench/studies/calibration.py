"""Calibration: fields of a machine that follow from measurements, how certain they are, and the error on other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import sqrt
from operator import attrgetter
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import yaml

from kernbench.config._files import write_text
from kernbench.errors import ArgumentError, ConfigError, quote
from kernbench.points._keys import Row, machine_of
from kernbench.studies._fidelity_collectives import MOST_BYTES
from kernbench.studies._page import cell
from kernbench.studies._references import Reference, read_references
from kernbench.studies.fidelity import WORKLOADS, FidelityStudy, point_of, title_of
from kernbench.studies.study import MACHINE, Parameter, Study
from kernbench.topology.builder import Machine, resolve_topology

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.viz.still import Still

FieldBounds = tuple[float, float] | None
Predict = Callable[[Sequence[np.ndarray]], np.ndarray]

_SPLITS = ("family", "size", "random")
_SIZES = ("bytes", "m", "kv_len", "load", "requests")  # what differs inside a family, the first that a row has
_STEP = 0.02  # of a value, for differences
_NOISE = 0.02  # of a measurement, assumed before the fit
_UNSEEN = 0.2  # relative standard error at that noise from which on a field is not fitted
_WIDEST = 4.0  # times the data sheet's value, each way, without bounds
_ITERATIONS = 12
_LEAST_GAIN = 1e-3  # of the sum of squares in an iteration
_DECIDES = 0.5  # change of a time with a field, both relative, from which on the field limits it
OTHER, TRAINING, HELD_OUT = "other", "training", "held out"


# -- the fit


@dataclass(frozen=True)
class Fit:
    """Values that minimize the squared logarithms of predicted over measured, and what is known of them."""

    values: np.ndarray
    low: np.ndarray  # `low` and `high`: ends of the 95 % intervals of the values, linearized
    high: np.ndarray
    before: np.ndarray  # relative standard error of each value at a noise of 2 %, known before the fit
    seen: np.ndarray  # which values were fitted; the others are what they were


def fit(predict: Predict, measured: np.ndarray, start: np.ndarray, low: np.ndarray, high: np.ndarray) -> Fit:
    """Fit values by Levenberg and Marquardt's method in logarithms, inside bounds.

    `predict` takes several vectors of values, and returns a row of times for each.
    """
    target, z, least, most = (np.log(x) for x in (measured, start, low, high))

    def off(*at: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(predict([np.exp(x) for x in at])) - target)

    def slopes(at: np.ndarray, here: np.ndarray) -> np.ndarray:
        steps = _steps(at, most)
        return np.asarray(((off(*(at + np.diag(steps))) - here) / steps[:, None]).T)

    (error,) = off(z)
    slope = slopes(z, error)
    before, seen = _seen(slope)
    damping = 1e-3
    for _ in range(_ITERATIONS if seen.any() else 0):
        gradient = slope.T @ error
        outward = ((z <= least) & (gradient > 0)) | ((z >= most) & (gradient < 0))
        free = seen & ~outward
        if not free.any():
            break
        normal = slope.T[free] @ slope[:, free]
        step = np.zeros_like(z)
        step[free] = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient[free])
        new = np.clip(z + step, least, most)
        (tried,) = off(new)
        if tried @ tried < error @ error:
            gain = 1 - tried @ tried / (error @ error)
            moved, z, error, damping = np.abs(new - z).max(), new, tried, damping / 10
            if moved < 1e-4 or gain < _LEAST_GAIN:
                break
            slope = slopes(z, error)
        elif damping > 1e6 or np.abs(step).max() < 1e-4:
            break
        else:
            damping *= 10
    return _fitted(z, error, slope, before, seen)


def _steps(at: np.ndarray, most: np.ndarray) -> np.ndarray:
    """Return steps for differences of each value, in logarithms: up, or down where a bound is in the way."""
    return np.where(at + _STEP > most, -_STEP, _STEP)


def _seen(slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Relative standard errors at the assumed noise, of each alone among those that the rows tell apart."""
    seen, before = np.ones(slope.shape[1], bool), np.full(slope.shape[1], np.inf)
    while seen.any():
        _, sizes, axes = np.linalg.svd(slope[:, seen], full_matrices=False)
        error = _NOISE * np.sqrt(((axes.T / np.maximum(sizes, 1e-12)) ** 2).sum(axis=1))
        error[error > 1e3] = np.inf
        before[seen] = error
        if error.max() <= _UNSEEN:
            break
        seen[np.flatnonzero(seen)[int(np.argmax(error))]] = False
    return before, seen


def _fitted(z: np.ndarray, error: np.ndarray, slope: np.ndarray, before: np.ndarray, seen: np.ndarray) -> Fit:
    wide = np.zeros_like(z)
    degrees = len(error) - int(seen.sum())
    if seen.any() and degrees > 0:
        own = slope[:, seen]
        variance = error @ error / degrees
        wide[seen] = _student(degrees) * np.sqrt(variance * np.diag(np.linalg.inv(own.T @ own)))
    elif seen.any():
        wide[seen] = np.inf  # as many rows as values: any noise fits
    return Fit(np.exp(z), np.exp(z - wide), np.exp(z + wide), before, seen)


def _student(degrees: int) -> float:
    """97.5 % quantile of Student's t (Abramowitz and Stegun, 26.7.5)."""
    x, n = NormalDist().inv_cdf(0.975), degrees
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return float(x + sum(term / n**i for i, term in enumerate(terms, 1)))


def floor(families: Sequence[object], sizes: Sequence[float], measured: np.ndarray) -> np.ndarray:
    """Distance of each measurement from the best monotone curve of its family over size, in logarithms."""
    off = np.zeros(len(measured))
    for family in dict.fromkeys(families):
        own = sorted((i for i, x in enumerate(families) if x == family), key=lambda i: sizes[i])
        blocks: list[tuple[float, int]] = []  # pool adjacent violators
        for i in own:
            blocks.append((float(np.log(measured[i])), 1))
            while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
                (a, n), (b, m) = blocks[-2:]
                blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
        curve = [value for value, n in blocks for _ in range(n)]
        off[own] = np.log(measured[own]) - curve
    return off


# -- measurements


class _Rows(Study):
    """Predictions of rows of measurements on machines with other values."""

    name, title = "calibration", "Measurements predicted"
    parameters: ClassVar = {"asked": Parameter([], "points: workload, its parameters, and changes to the machine")}

    def points(self, machine: Machine, **given: Any) -> list[Row]:
        return list(given["asked"])

    def simulate(self, machine: Machine, *, workload: str = "gemm", given: Mapping[str, Any] | None = None) -> Row:
        return {"ours": WORKLOADS[workload].run(machine, **dict(given or {}))}


def _family(reference: Reference) -> str:
    """Workload and parameters, without the size that is varied."""
    size = next((name for name in _SIZES if name in reference.parameters), "")
    fixed = {key: value for key, value in reference.parameters.items() if key != size}
    return f"{reference.workload} {', '.join(f'{key} {value}' for key, value in sorted(fixed.items()))}"


def _size(reference: Reference) -> float:
    return next((float(reference.parameters[name]) for name in _SIZES if name in reference.parameters), 0.0)


def held_out(rows: Sequence[Reference], split: str, seed: int) -> list[bool]:
    """Choose the rows that the fit does not see: half of the families, the larger sizes of each, or any half."""
    if split not in _SPLITS:
        raise ArgumentError(f"split = {quote(split)} is unknown; known: {', '.join(_SPLITS)}")
    families = sorted({_family(row) for row in rows})
    if split == "family":
        if len(families) < 2:
            raise ArgumentError(f"split = family: all rows are of one family ({families[0]}); use size or random")
        Random(seed).shuffle(families)
        return [_family(row) in families[: len(families) // 2] for row in rows]
    order = list(range(len(rows)))
    if split == "random":
        Random(seed).shuffle(order)
        out = set(order[: len(rows) // 2])
    else:
        own = {family: [i for i in order if _family(rows[i]) == family] for family in families}
        out = {i for x in own.values() for i in sorted(x, key=lambda i: _size(rows[i]))[(len(x) + 1) // 2 :]}
    return [i in out for i in range(len(rows))]


def _bounds(machine: Machine, free: Sequence[str] | Mapping[str, FieldBounds]) -> dict[str, tuple[float, float, float]]:
    given = dict(free) if isinstance(free, Mapping) else dict.fromkeys(free)
    faults, found = [], {}
    for name, bounds in given.items():
        try:
            value = attrgetter(name)(machine.config)
        except AttributeError:
            faults += _faults(machine, {name: 1.0}) or [f"{name} is unknown"]
            continue
        if not isinstance(value, float):
            faults.append(
                f"free: {name} = {value!r} is no rate, time or share; only numbers with a fraction are fitted"
            )
            continue
        if bounds is None and value <= 0:
            faults.append(f"free: {name} = {value:g}: state bounds, as in {name}=1:1000")
            continue
        low, high = bounds or (value / _WIDEST, value * _WIDEST)
        if not 0 < low < high:
            faults.append(f"free: {name}={low:g}:{high:g} must be two numbers above 0, the smaller one first")
            continue
        if bounds is None:  # a share is at most 1, and links of a memory are as wide as it
            low, high = (_nearest(machine, name, value, end) for end in (low, high))
        faults += [fault for end in (low, high) for fault in _faults(machine, {name: end})]
        found[name] = (value if low <= value <= high else sqrt(low * high), low, high)
    if faults:
        raise ConfigError(faults)
    return found


def _nearest(machine: Machine, name: str, value: float, end: float) -> float:
    for share in (1, 0.5, 0.25, 0.125):
        if not _faults(machine, {name: value * (end / value) ** share}):
            return float(value * (end / value) ** share)
    return value


def _faults(machine: Machine, changes: Mapping[str, float]) -> list[str]:
    try:
        machine_of(machine.spec, changes)
    except ConfigError as error:
        return error.faults
    return []


# -- the result


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """A machine whose free fields follow from measurements; it prints itself and shows itself in a notebook.

    Attributes
    ----------
    machine : Machine
        With the fitted values.
    fields : DataFrame
        A row for each free field: `data_sheet` (or the middle of its bounds), `fitted`, `low` and `high` (95 %
        interval), `ratio` (fitted over data sheet), `before_pct` (relative standard error at 2 % noise, known before
        the fit), `status` (fitted, fitted at a bound, where the value may lie beyond it, or not seen by the data).
    errors : DataFrame
        Errors of the rows that were fitted and of those held out, in all and by the field that limits them: `n`,
        `median_pct`, `p90_pct`, `largest_pct`, `data_sheet_pct` (median before the fit) and `floor_pct` (median
        distance of the measurements from the best monotone curve over size: no model that grows with size is nearer).
    table : DataFrame
        A row for each measurement: `what`, `family`, `rows` (training or held out), `measured`, `data_sheet`,
        `fitted`, `unit`, `error_pct`, `limited_by`.
    refused : mapping
        Rows that cannot run on the machine, each with the reason.
    """

    machine: Machine
    fields: pd.DataFrame
    errors: pd.DataFrame
    table: pd.DataFrame
    refused: Mapping[str, str]
    split: str
    seed: int

    def __repr__(self) -> str:
        shown = [self._head(), *(x.map(cell).to_string(index=False) for x in (self.fields, self.errors))]
        return "\n".join([*shown, *(f"not comparable: {name}: {why}" for name, why in self.refused.items())])

    def _repr_html_(self) -> str:
        tables = "".join(x.map(cell).to_html(index=False, border=0) for x in (self.fields, self.errors))
        return f"<p>{escape(self._head())}</p>{tables}"

    def _head(self) -> str:
        n, fitted = len(self.table), self.fields[self.fields["status"] != _NOT_SEEN]["field"]
        text = f"{n} measurements, split by {self.split} (seed {self.seed}); fitted: {', '.join(fitted) or 'nothing'}"
        held_out = self.errors[(self.errors["rows"] == HELD_OUT) & (self.errors["limited_by"] == "all")].iloc[0]
        before, after = (float(held_out[name]) for name in ("data_sheet_pct", "median_pct"))
        said = f"{text}; held-out median error {before:.2g} % before, {after:.2g} % fitted"
        return f"{said}: worse than before" if after > before else said

    def to_dict(self) -> dict[str, Any]:
        """Return fields, errors and rows as plain values."""
        tables = {"fields": self.fields, "errors": self.errors, "rows": self.table}
        plain = {name: x.astype(object).where(x.notna(), None).to_dict("records") for name, x in tables.items()}
        return {**plain, "refused": dict(self.refused), "machine": self.machine.hash}

    def figure(self) -> Still:
        """Draw predicted over measured, of the rows with the commonest unit."""
        from kernbench.viz.figures import agreement_figure

        unit = self.table["unit"].mode()[0]
        own = self.table[self.table["unit"] == unit].rename(columns={"fitted": "predicted"})
        title = f"Predicted over measured: median error {self._held_out_pct():.2g} % of rows that were held out"
        return agreement_figure(
            own, "measured", "predicted", by="rows", unit=unit, machine=self.machine.hash, title=title
        )

    def _held_out_pct(self) -> float:
        return float(self.table[self.table["rows"] == HELD_OUT]["error_pct"].abs().median())

    def _repr_png_(self) -> bytes:
        return self.figure().png()

    def save(self, path: str | Path) -> Path:
        """Write the machine file, with a comment on each fitted number: interval, data sheet, held-out error."""
        note = f"held-out median error {self._held_out_pct():.2g} %, split by {self.split}, seed {self.seed}"
        notes = {
            row[
                "field"
            ]: f"calibrated: {row['low']:.4g} to {row['high']:.4g}, data sheet {row['data_sheet']:.4g}; {note}"
            for row in self.fields.to_dict("records")
            if row["status"] != _NOT_SEEN
        }
        return write_text(Path(path), "\n".join(_annotated(self.machine.spec, notes)) + "\n", "give another name")


_FITTED, _AT_BOUND, _NOT_SEEN = "fitted", "fitted: at a bound", "not seen by the data: unchanged"


def _annotated(spec: Mapping[str, Any], notes: Mapping[str, str]) -> Iterator[str]:
    path: list[str] = []
    for line in yaml.safe_dump(dict(spec), sort_keys=False).splitlines():
        depth, key = (len(line) - len(line.lstrip())) // 2, line.strip().partition(":")[0]
        if not key.startswith("-"):
            path[depth:] = [key]
        note = notes.get(".".join(path))
        yield f"{line}  # {note}" if note else line


def calibrate(
    machine: Machine | str | None,
    measurements: str | Path | Sequence[str | Path],
    free: Sequence[str] | Mapping[str, FieldBounds],
    *,
    split: str = "family",
    seed: int = 0,
    workers: int = 1,
    most_bytes: int = MOST_BYTES,
) -> Calibration:
    """Fit fields of a machine to measurements, and state the error on rows that the fit has not seen.

    Least squares on the logarithm of predicted over measured, with the simulator as the model: there is no factor for a
    shape. A field that the rows do not determine keeps its value, and the result says so.

    Parameters
    ----------
    machine : Machine or str, optional
        The machine by its data sheet, as for `kb.load`.
    measurements : path or sequence of paths
        As for `kb.fidelity`: nccl-tests output, or a CSV.
    free : sequence of str, or mapping of str to (low, high) or None
        Paths of the fields to fit: rates, times and shares. Without bounds, a quarter to four times the value.
    split : str
        What is held out: "family" (half of the families: rows that differ only in size are one family), "size" (the
        larger half of each family) or "random" (half of all rows).
    seed : int
        Of "family" and "random".
    workers : int
        Processes.
    most_bytes : int
        Largest collective that is simulated [bytes]; larger ones are left out, and named.

    Returns
    -------
    Calibration
        Fitted values with intervals, held-out errors, and the machine.

    Raises
    ------
    ConfigError
        If a file or a field is wrong: a fault for each problem, with file, line, key and remedy.
    ArgumentError
        If the split leaves nothing to fit or nothing to hold out.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "mine.csv")
    ...     rows = [f"gemm,m={m}; k=64; n=64,{us},us,mine" for m, us in ((64, 0.5), (128, 0.9), (256, 1.7), (512, 3.3))]
    ...     _ = path.write_text(chr(10).join(["workload,parameters,value,unit,source", *rows]))
    ...     found = calibrate("preset:small", path, ["cube.pe.pe_gemm.clock_ghz"], split="size")
    >>> list(found.table["rows"])
    ['training', 'training', 'held out', 'held out']
    """
    base, study = resolve_topology(machine), FidelityStudy()
    paths = [measurements] if isinstance(measurements, str | Path) else list(measurements)
    given = study.complete({"files": [str(path) for path in paths]})
    if faults := study.check(base, **given):
        raise ConfigError(faults)
    fields = _bounds(base, free)
    if not fields:
        raise ArgumentError("free names no field; give at least one, as in system.sip_link.bw_gbs")
    rows: list[Reference] = []
    points: list[Row] = []
    refused: dict[str, str] = {}
    for row in read_references(given["files"]):
        point = point_of(base, row, most_bytes)
        if isinstance(point, str):
            refused[f"{title_of(row)} ({row.where})"] = point
        else:
            rows.append(row)
            points.append(point)
    if len(rows) < 2:
        why = "".join(f"\n{name}: {reason}" for name, reason in refused.items())
        raise ArgumentError(f"{len(rows)} rows of measurements that can run on the machine, expected at least 2{why}")
    out = np.array(held_out(rows, split, seed))
    if out.all() or not out.any():
        raise ArgumentError(f"split = {split}: {(~out).sum()} rows to fit, {out.sum()} to hold out; use random")
    return _calibrated(base, rows, points, out, fields, refused, split, seed, workers)


def _calibrated(
    base: Machine, rows: Sequence[Reference], points: Sequence[Row], out: np.ndarray,
    fields: Mapping[str, tuple[float, float, float]], refused: Mapping[str, str], split: str, seed: int, workers: int,
) -> Calibration:  # fmt: skip
    import pandas as pd

    names = list(fields)

    def predicted(chosen: Sequence[Row], values: Sequence[np.ndarray]) -> np.ndarray:
        asked = [{**point, MACHINE: {**point[MACHINE], **_changes(names, x)}} for x in values for point in chosen]
        found = _Rows().run(base, asked=asked, workers=workers)
        return np.array([row["ours"] for row in found]).reshape(len(values), len(chosen))

    measured = np.array([row.value for row in rows])
    training = [point for point, held in zip(points, out, strict=True) if not held]
    start, low, high = (np.array(x) for x in zip(*fields.values(), strict=True))
    found = fit(lambda values: predicted(training, values), measured[~out], start, low, high)
    sheet = np.array([attrgetter(name)(base.config) for name in names])
    values = np.where(found.seen, found.values, np.where(sheet > 0, sheet, start))
    unchanged = {name: x for name, x, seen in zip(names, sheet, found.seen, strict=True) if not seen}
    moved = np.exp(np.log(values) + np.diag(_steps(np.log(values), np.log(high))))
    before, after, *others = predicted(points, [np.where(sheet > 0, sheet, start), values, *moved])
    slope = np.abs(np.log(np.array(others) / after)) / _STEP
    decides = [names[i] if slope[i, j] >= _DECIDES else OTHER for j, i in enumerate(slope.argmax(axis=0))]
    shown = pd.DataFrame(
        {
            "what": [title_of(row) for row in rows], "family": [_family(row) for row in rows],
            "rows": np.where(out, HELD_OUT, TRAINING), "measured": measured, "data_sheet": before, "fitted": after,
            "unit": [row.unit for row in rows], "error_pct": 100 * (after / measured - 1), "limited_by": decides,
        }
    )  # fmt: skip
    floors = 100 * np.abs(np.expm1(floor(list(shown["family"]), [_size(row) for row in rows], measured)))
    ends = np.isclose(values, low, rtol=1e-6) | np.isclose(values, high, rtol=1e-6)
    status = np.where(found.seen, np.where(ends, _AT_BOUND, _FITTED), _NOT_SEEN)
    table = pd.DataFrame(
        {
            "field": names, "data_sheet": sheet, "fitted": np.where(found.seen, values, sheet), "low": found.low,
            "high": found.high, "ratio": np.divide(values, sheet, out=np.full(len(names), np.nan), where=sheet > 0),
            "before_pct": 100 * found.before, "status": status,
        }
    )  # fmt: skip
    table.loc[~found.seen, ["low", "high", "ratio"]] = np.nan
    machine = base.with_({**_changes(names, values), **unchanged})
    return Calibration(machine, table, _errors(shown, before, floors), shown, refused, split, seed)


def _changes(names: Sequence[str], values: np.ndarray) -> dict[str, float]:
    return {name: float(f"{x:.6g}") for name, x in zip(names, values, strict=True)}


def _errors(shown: pd.DataFrame, before: np.ndarray, floors: np.ndarray) -> pd.DataFrame:
    import pandas as pd

    error = shown["error_pct"].abs()
    sheet, found = np.abs(100 * (before / shown["measured"] - 1)), []
    for part in (TRAINING, HELD_OUT):
        for limit in ("all", *sorted(set(shown["limited_by"]))):
            own = (shown["rows"] == part) & ((limit == "all") | (shown["limited_by"] == limit))
            if own.any():
                found.append(
                    {
                        "rows": part, "limited_by": limit, "n": int(own.sum()), "median_pct": error[own].median(),
                        "p90_pct": error[own].quantile(0.9), "largest_pct": error[own].max(),
                        "data_sheet_pct": sheet[own].median(), "floor_pct": float(np.median(floors[own])),
                    }
                )  # fmt: skip
    return pd.DataFrame(found)
