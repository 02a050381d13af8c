"""`kb.sweep`: from a machine, a study and axes to a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.config._files import replacing, write_text
from kernbench.errors import HostError, MissingModuleError
from kernbench.points._cache import Cache, default_cache
from kernbench.points._keys import Row, StudyFn
from kernbench.sim_engine._limits import Limits
from kernbench.sweeps._argument_checks import folder_of
from kernbench.sweeps._energy_area import energy_columns, machine_columns
from kernbench.sweeps._measure import parameters_of
from kernbench.sweeps._plan import Constraint, Plan, make_plan
from kernbench.sweeps._runner import Progress, run_points, worker_count
from kernbench.sweeps._worker import OK, Outcome, PointLimits
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client


CSV, PARQUET, _PLAN = "table.csv", "table.parquet", "plan.json"


@dataclass(frozen=True, eq=False)
class Sweep:
    """Rows of a sweep in the order of its plan, whatever the order in which they finished.

    Parameters
    ----------
    table : DataFrame
        One row for each point: what was varied, size and cost of the machine, what the study returned, then `status`
        and `error`. The columns of a point without a result are empty.
    axes : tuple of str
        Columns that were varied.
    metrics : tuple of str
        Columns with numbers that the study returned, and costs.
    invalid : DataFrame
        Invalid points, with reasons.
    about : mapping
        Study, version of its code, and hash of the machine that points change.
    """

    table: pd.DataFrame
    axes: tuple[str, ...]
    metrics: tuple[str, ...]
    invalid: pd.DataFrame
    about: Mapping[str, str]

    @classmethod
    def of(cls, plan: Plan, outcomes: Mapping[str, Outcome]) -> Sweep:
        import pandas as pd

        rows, names = [], []
        for key, point in zip(plan.keys, plan.points, strict=True):
            outcome = outcomes[key]
            costs = machine_columns(point.machine.config) | energy_columns(point.machine.config, outcome.row)
            costs = {k: v for k, v in costs.items() if k not in point.shown}
            given = {k: v for k, v in {**point.parameters, **point.overrides}.items() if k not in point.shown}
            found = {k: v for k, v in outcome.row.items() if not isinstance(v, (dict, list)) and k not in point.shown}
            rows.append(
                point.shown | _plain(given) | {"machine": point.machine.hash[:12]} | costs | found
                | {"status": outcome.status, "error": outcome.error}
            )  # fmt: skip
            names += [*found, *costs]
        empty = [*plan.axes, "machine", *machine_columns(plan.machine.config), "status", "error"]
        table = pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(dict.fromkeys(empty)))
        inputs = parameters_of(plan.study)
        metrics = [
            name for name in dict.fromkeys(names)
            if name not in plan.axes and name not in inputs and pd.api.types.is_numeric_dtype(table[name])
            and not pd.api.types.is_bool_dtype(table[name])
        ]  # fmt: skip
        invalid = pd.DataFrame([_plain(x.shown) | {"reason": x.reason} for x in plan.invalid])
        about = {"study": plan.name, "code_version": plan.version, "machine": plan.machine.hash}
        return cls(table, plan.axes, tuple(metrics), invalid, about)

    @property
    def ok(self) -> pd.DataFrame:
        return self.table[self.table["status"] == OK]

    def save(self, folder: str | Path) -> Path:
        """Write `table.csv`, and `table.parquet` where pyarrow is installed; return the folder.

        Raises
        ------
        KernbenchError
            If one cannot be written, as on a full disk; earlier files are unchanged.
        """
        from pandas.api.types import is_numeric_dtype

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.to_csv(folder / CSV)
        invalid = json.loads(self.invalid.to_json(orient="records"))
        write_text(folder / _PLAN, json.dumps({**self.about, "axes": self.axes, "invalid": invalid}, indent=1))
        if find_spec("pyarrow") is None:
            return folder
        # Columns of a file have one type; those with other values than numbers are text.
        texts = {name: "string" for name in self.table if not is_numeric_dtype(self.table[name])}
        with replacing(folder / PARQUET) as part:
            self.table.astype(texts).to_parquet(part, index=False)
        return folder

    def to_csv(self, path: str | Path) -> Path:
        """Write the table as CSV; return its path."""
        return write_text(Path(path), self.table.to_csv(index=False, lineterminator="\n"))

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        head = self._head()
        if not len(self):
            return f"{head}\n{self.invalid.to_string(max_rows=20, index=False)}"
        return f"{head}\n{self.table[self._first()].to_string(max_rows=20)}"

    def _head(self) -> str:
        counts = self.table["status"].value_counts()
        parts = [f"{n} {status}" for status, n in counts.items()]
        parts += [f"{len(self.invalid)} that cannot be"] if len(self.invalid) or not len(self) else []
        return f"{len(self) or 'no'} points of {self.about['study']} over {', '.join(self.axes)}: {', '.join(parts)}"

    def _repr_html_(self) -> str:
        import pandas as pd

        html: str
        if len(self):
            html = self.table[self._first()].to_html(max_rows=20, border=0)
        else:
            with pd.option_context("display.max_colwidth", None):
                html = self.invalid.to_html(max_rows=20, border=0)
        return f"<p>{self._head()}</p>{html}"

    def _first(self) -> list[str]:
        """Columns to print: axes, times and the study's first other metrics, costs, and the status if points failed."""
        costs = [name for name in ("area_mm2", "energy_uj") if name in self.metrics]
        metrics = sorted((x for x in self.metrics if x not in costs), key=lambda name: not name.endswith("_ns"))[:4]
        failed = ["status", "error"] if len(self.ok) < len(self) else []
        return [*self.axes, *metrics, *costs, *failed]


def _plain(values: Mapping[str, Any]) -> Row:
    return {k: json.dumps(v) if isinstance(v, (dict, list, tuple)) else v for k, v in values.items()}


def sweep(
    machine: Machine | str | Mapping[str, Any] | None = None,
    study: StudyFn | str = "gemm",
    axes: Mapping[str, object] | None = None,
    *,
    parameters: Mapping[str, Any] | None = None,
    points: Sequence[Mapping[str, Any]] = (),
    where: Constraint | Sequence[Constraint] = (),
    samples: int | None = None,
    seed: int = 0,
    folder: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | Client | None = None,
    time_limit_s: float | None = None,
    memory_limit_mib: int | None = None,
    limits: Limits | Mapping[str, float] | None = None,
    cache: bool | Cache = True,
    progress: bool | Callable[[Progress], object] = True,
) -> Sweep:
    """Run a study over a design space and return its table.

    Parameters
    ----------
    machine : Machine, str, mapping or None
        As for `kb.load`.
    study : callable or str
        `study(machine, **parameters)` giving a row of plain values, units in their names; or `program(torch,
        **parameters)`, which is measured; or the name of either (`kernbench list studies`); or a dotted path.
    axes : mapping
        For each name a list of values, a mapping of labels to settings, or a `NumberRange`. A name with a dot is a
        field of the machine, another a parameter of the study.
    parameters : mapping
        Parameters and fields that every point has.
    points : sequence of mapping
        An explicit list of settings, besides the axes' points, or instead of them.
    where : str, callable or sequence of them
        What every point must satisfy, as `pes <= 256 and area_mm2 < 900`.
    samples, seed : int
        Size and seed of a Latin hypercube, which replaces the full grid.
    folder : str or Path
        Where finished points are written at once, and found again by the same call; and the table.
    workers : int
        Processes; default: one per core.
    scheduler : str or Client
        A Dask scheduler's address, or a Client, to run there in place of this machine's processes.
    time_limit_s, memory_limit_mib : float, int
        A point that takes more is ended, and the table says so.
    limits : Limits or mapping
        Of each session that a point opens, as for `kb.session`; a point over one of them is in the table as
        "session limit", with the line that was running.
    cache : bool or Cache
        Whether rows of earlier runs are used and this one's are kept for later ones.
    progress : bool or callable
        A bar; a function is called with a `Progress` for each point instead.

    Raises
    ------
    ConfigError
        If the plan is wrong; nothing has been run then.
    StateError
        If another run writes to the folder.
    HostError
        If finished points cannot be written to it, or the scheduler cannot be reached.
    """
    folder, axes = folder_of(folder), {} if axes is None else axes
    plan = make_plan(
        machine, study, axes, parameters=parameters, points=points, where=where, samples=samples, seed=seed
    )
    held = PointLimits(time_limit_s, memory_limit_mib, Limits.of(limits))
    done = run_plan(
        plan, folder=folder, workers=workers, scheduler=scheduler, limits=held, cache=cache, progress=progress
    )
    if folder is not None:
        done.save(folder)
    return done


def run_plan(
    plan: Plan,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    scheduler: str | Client | None = None,
    limits: PointLimits | None = None,
    cache: bool | Cache = True,
    progress: bool | Callable[[Progress], object] = True,
) -> Sweep:
    """Run the points of a plan and return their table; several plans may share a folder of points."""
    folder, cores = folder_of(folder), worker_count(workers)
    shared = cache if isinstance(cache, Cache) else default_cache() if cache else None
    client, close = _client(scheduler)
    how: dict[str, Any] = {"folder": folder, "cache": shared, "workers": cores, "client": client, "limits": limits}
    try:
        with closing(run_points(plan, progress=progress, **how)) as ended:
            outcomes = {key: outcome for key, outcome, _ in ended}
    finally:
        if close and client is not None:
            client.close()
    return Sweep.of(plan, outcomes)


def _client(scheduler: str | Client | None) -> tuple[Client | None, bool]:
    if not isinstance(scheduler, str):
        return scheduler, False
    try:
        from distributed import Client
    except ImportError as error:
        raise MissingModuleError("a scheduler needs Dask: pip install 'kernbench[cluster]'") from error
    try:
        return Client(scheduler, timeout="5s"), True
    except (OSError, ValueError) as error:
        raise HostError(f"scheduler {scheduler}: {error}; start one with `dask scheduler`") from error
