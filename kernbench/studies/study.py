"""The frame of every study: parameters, points, one simulation for each, charts, findings, and a report of them.

A study says what is specific to it. The frame runs the points (on all cores or a Dask cluster, resumable, cached),
writes JSON and CSV, draws the charts and writes the page.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from math import isqrt
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from kernbench._registry import STUDIES, hint
from kernbench._units import KIB, MIB
from kernbench.config._files import damaged, read_json, write_text
from kernbench.config._rules import DIMENSIONS
from kernbench.errors import ArgumentError, ConfigError, MissingFileError, PointError, StateError
from kernbench.points._cache import default_cache
from kernbench.points._keys import Row, machine_of
from kernbench.runtime_api.bench_runner import run_program
from kernbench.studies._findings import FINDINGS_FILE, MOST_FINDINGS, Finding, R
from kernbench.studies._page import MOST_ROWS, file_of, page_of
from kernbench.sweeps._plan import Plan, Point
from kernbench.sweeps._runner import run_points
from kernbench.sweeps._worker import OK
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.viz.charts import Chart, Column

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

    from kernbench.analysis.result import Result
    from kernbench.config import MachineConfig
    from kernbench.runtime_api.context import RuntimeContext

Tables: TypeAlias = "dict[str, pd.DataFrame]"  # by heading
_ROW = "row"
MACHINE = "machine"  # in a point: what it changes in the machine, path by path
LABELS = "labels"  # in a point: columns of its row that the simulation does not depend on


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a study: its default, its unit, what it means, and if it is a list of names, those `known`."""

    default: Any
    description: str
    unit: str = ""
    known: Collection[str] = ()


class Study:
    """A question asked of a machine at many points.

    Subclass it, set `name`, `title`, `parameters`, `columns` and `charts`, and write `points` and either `program` and
    `row`, or `simulate`. A subclass in a notebook cell is a study like any other.

    Attributes
    ----------
    name : str
        How commands and files call it.
    title : str
        The heading of its page.
    page : str
        The page's file; studies that share a folder have one each.
    method : str
        What is simulated and how, in a paragraph: the end of the page.
    parameters : mapping of str to Parameter
        What `points` takes besides the machine.
    columns : mapping of str to Column
        The columns of a row that readers see, with unit and description.
    charts : sequence of Chart
        Figures of the report, in order.
    log, data
        How `program` is run: level of the log, and whether values are computed.

    Examples
    --------
    >>> class Copies(Study):
    ...     '''How long it takes to read a slice.'''
    ...
    ...     name, title = "copies", "Reading a slice"
    ...     parameters = {"sizes": Parameter([256, 4096], "bytes of each read", "B")}
    ...     columns = {"nbytes": Column("bytes", "B"), "time_ns": Column("time", "ns")}
    ...
    ...     def points(self, machine, *, sizes):
    ...         return [{"nbytes": n} for n in sizes]
    ...
    ...     def program(self, torch, *, nbytes: int = 4096):
    ...         torch.empty(nbytes // 2, dtype=torch.float16, device="ahbm").numpy()
    ...
    ...     def row(self, machine, result, *, nbytes):
    ...         return {"nbytes": nbytes, "time_ns": result.latency_ns}
    >>> [row["nbytes"] for row in Copies().run("preset:small")]
    [256, 4096]
    """

    name: ClassVar[str]
    title: ClassVar[str]
    page: ClassVar[str] = "README.md"
    method: ClassVar[str] = ""
    parameters: ClassVar[Mapping[str, Parameter]] = {}
    columns: ClassVar[Mapping[str, Column]] = {}
    charts: ClassVar[Sequence[Chart]] = ()
    log: ClassVar[str] = "operation"
    data: ClassVar[bool] = False

    # -- what a study says

    def points(self, machine: Machine, *_: Any, **parameters: Any) -> list[Row]:
        """Return the points for a machine: for each the keywords of `simulate`, as plain (JSON) values.

        The key "machine" of a point, if there is one, is a mapping of changes to the machine: path to value. The key
        "labels" is a mapping of columns that are added to its row: points that differ in nothing else share a run.
        """
        raise self._missing("points")

    def simulate(self, machine: Machine, *_: Any, **point: Any) -> Row:
        """Simulate one point and return its row: plain values, units in the names of columns."""
        point = {name: x.default for name, x in self.fields().items() if x.default is not x.empty} | point
        kept = self._only_in_row()
        asked = {name: value for name, value in point.items() if name not in kept}
        result = run_program(machine, lambda torch: self.program(torch, **asked), log=self.log, data=self.data)
        return self.row(machine, result, **point)

    def program(self, torch: RuntimeContext, *_: Any, **point: Any) -> object:
        """Run one point in a session. Its signature gives the fields of the explorer's form and the axes of sweeps."""
        raise self._missing("program")

    def row(self, machine: Machine, result: Result, *_: Any, **point: Any) -> Row:
        """Return the row of one run of `program`; its own keywords are fields of a point, too."""
        raise self._missing("row")

    def fields(self) -> dict[str, inspect.Parameter]:
        """Return the fields of a point by name: the keywords of `simulate`, and if it takes any, those of `program`."""
        if type(self).simulate is Study.simulate:
            return _fields(self.program) | self._only_in_row()
        own = _fields(self.simulate)
        named = {name: field for name, field in own.items() if field.kind is not field.VAR_KEYWORD}
        if len(named) == len(own) or type(self).program is Study.program:
            return own
        return _fields(self.program) | named

    def _only_in_row(self) -> dict[str, inspect.Parameter]:
        asked, row = _fields(self.program), _fields(self.row, 2)
        return {name: x for name, x in row.items() if x.kind is x.KEYWORD_ONLY and name not in asked}

    def work(self, machine: Machine, *_: Any, **point: Any) -> float:
        """Return the relative duration of a point: the longest start first, and the time left follows."""
        return 1.0

    def faults(self, machine: Machine, *_: Any, **point: Any) -> list[str]:
        """Return why the machine cannot run `program` at a point; each fault begins with `field = value`."""
        return []

    def check(self, machine: Machine, *_: Any, **parameters: Any) -> list[str]:
        """Return the faults of parameters, a sentence each; nothing has run then."""
        return []

    def refused(self, machine: Machine, *_: Any, **parameters: Any) -> dict[str, str]:
        """Return requests that are not among the points, each with the reason."""
        return {}

    def findings(self, rows: Sequence[Row]) -> Iterable[Finding]:
        """Return the findings of the rows, none about points that were not run."""
        return []

    def tables(self, rows: Sequence[Row]) -> Tables:
        """Return the tables of the page by heading; by default one of all columns that `columns` describes."""
        return {"All points": table(rows, [name for name in self.columns if any(name in row for row in rows)])}

    def files(self, rows: Sequence[Row], machine: Machine) -> Mapping[str, str]:
        """Return further files of the report: name to text."""
        return {}

    def _missing(self, method: str) -> StateError:
        return StateError(f"study {type(self).__name__} must define {method}")

    # -- what the frame does with it

    def complete(self, parameters: Mapping[str, Any]) -> Row:
        """Return all parameters, defaults for those not given.

        Raises
        ------
        ConfigError
            If one is unknown.
        """
        unknown = [
            f"{self.name}: parameter {name} is unknown; {hint(name, self.parameters)}"
            for name in parameters
            if name not in self.parameters
        ]
        if unknown:
            raise ConfigError(unknown)
        return {name: parameters.get(name, parameter.default) for name, parameter in self.parameters.items()}

    def plan(self, machine: Machine | str | Mapping[str, Any] | None = None, **parameters: Any) -> Plan:
        """Return the points as sweeps run them; raises as `run`."""
        base, given = resolve_topology(machine), self.complete(parameters)
        faults = [
            f"{name}: {value!r} is unknown; {hint(value, parameter.known)}"
            for name, parameter in self.parameters.items()
            if parameter.known
            for value in given[name]
            if value not in parameter.known
        ]
        faults += self.check(base, **given)
        if faults:
            raise ConfigError([f"{self.name}: {fault}" for fault in faults])
        points = tuple(self._planned(base, **point) for point in self.points(base, **given))
        if not points:
            raise ConfigError(f"{self.name}: {json.dumps(given)} gives no point; leave out what is empty")
        return Plan(self.simulate, base, points)

    def _planned(self, base: Machine, *, machine: Row | None = None, labels: Row | None = None, **values: Any) -> Point:
        where = machine_of(base.spec, machine)
        return Point(labels or {}, where, machine or {}, values, self.work(where, **values))

    def run(
        self,
        machine: Machine | str | Mapping[str, Any] | None = None,
        *,
        folder: Path | None = None,
        workers: int = 1,
        client: Client | None = None,
        progress: bool = False,
        each: Callable[[Row], object] | None = None,
        deadline: float | None = None,
        **parameters: Any,
    ) -> list[Row]:
        """Simulate every point and return the rows in the order of the points.

        Parameters
        ----------
        machine
            As for `kb.load`.
        folder
            Where finished points are kept while the study runs, and found again after an interrupt.
        workers
            Processes.
        client
            A Dask cluster to run on instead.
        progress
            Whether a bar shows how far it is.
        each
            Called with each row as it ends; the shortest points are started first then, not the longest.
        deadline
            A time of `time.monotonic`: points that have not ended by then are left out.
        **parameters
            Of the study.

        Raises
        ------
        ConfigError
            If a parameter is wrong; nothing has been run then.
        PointError
            If a point fails; the others that were finished before are kept.
        """
        plan = self.plan(machine, **parameters)
        found: dict[str, Row] = {}
        outcomes = run_points(
            plan,
            folder=folder,
            cache=default_cache(),
            workers=workers,
            client=client,
            keep_failed=False,
            deadline=deadline,
            progress=progress,
            shortest_first=each is not None,
        )

        def rows(keys: Container[str]) -> list[Row]:
            return [
                {**x.shown, **found[key], "machine": x.machine.hash, "code_version": plan.version}
                for key, x in zip(plan.keys, plan.points, strict=True)
                if key in keys
            ]

        with closing(outcomes):
            for key, outcome, _ in outcomes:
                if outcome.status != OK:
                    raise PointError(f"{self.name}: a point failed: {outcome.error}\n{outcome.trace}".rstrip())
                found[key] = outcome.row
                if each is not None:
                    for row in rows({key}):
                        each(row)
        return rows(found)

    def report(
        self,
        machine: Machine | str | Mapping[str, Any] | None = None,
        *,
        folder: Path,
        workers: int = 1,
        rerender: bool = False,
        **parameters: Any,
    ) -> Report:
        """Run the study, or with `rerender` read the rows in `folder`, and write the report there."""
        base = resolve_topology(machine)
        given = self.complete(parameters)
        rows = self.read(folder) if rerender else self.run(base, folder=folder, workers=workers, **given)
        report = Report(self, rows, base, given)
        report.write(folder)
        return report

    def read(self, folder: Path) -> list[Row]:
        """Return the rows of a report, with their nested columns.

        Raises
        ------
        ConfigError
            If a file is missing or damaged.
        """
        import pandas as pd

        rows: list[Row] = read_results(folder / f"{self.name}.json")["rows"]
        for path in sorted(folder.glob(f"{self.name}_*.csv")):
            column = path.stem.removeprefix(f"{self.name}_")
            with damaged(path, "table of rows", "run the study again"):
                table = pd.read_csv(path)
                text = table.select_dtypes(exclude="number").columns
                for i, group in table.fillna(dict.fromkeys(text, "")).groupby(_ROW):
                    items = group.drop(columns=_ROW).to_dict("records")
                    rows[int(str(i))][column] = {x["key"]: x["value"] for x in items} if "key" in group else items
        return rows


def _fields(method: Callable[..., object], skipped: int = 1) -> dict[str, inspect.Parameter]:
    return dict(list(inspect.signature(method).parameters.items())[skipped:])


@dataclass(frozen=True, eq=False)
class Report:
    """Rows of a study, and the page about them.

    Parameters
    ----------
    study
        What was asked.
    rows
        One for each point.
    machine
        The machine that the points start from.
    parameters
        All parameters of the study.
    """

    study: Study
    rows: list[Row]
    machine: Machine
    parameters: Row
    _drawn: dict[str, bytes] = field(default_factory=dict, init=False, repr=False)

    @property
    def table(self) -> pd.DataFrame:
        """All rows as a table, without nested values."""
        return table([scalars(row) for row in self.rows])

    @property
    def findings(self) -> list[Finding]:
        """At most seven findings, the heaviest first."""
        found = self.study.findings(self.rows)
        return sorted(found, key=lambda finding: -finding.weight)[:MOST_FINDINGS]

    @cached_property
    def charts(self) -> dict[str, Chart]:
        """The charts by name; one that findings rest on has the heaviest of them as its title."""
        ranked = sorted(self.study.findings(self.rows), key=lambda finding: -finding.weight)
        claims = {finding.chart: finding.text for finding in reversed(ranked)}
        return {
            chart.name: chart.finding(claims[chart.name], self.rows) if chart.name in claims else chart
            for chart in self.study.charts
        }

    def figure(self, name: str) -> Any:
        """Return a figure to show in a notebook cell; a sentence if no row is for it.

        Raises
        ------
        ArgumentError
            If the study has no chart of that name.
        """
        return self._named(name).image(self.rows, self.study.columns, self.machine, self._drawn.get(name, b""))

    def chart(self, name: str) -> Any:
        """Return a chart of the rows: Altair's, or a still.

        Raises
        ------
        ArgumentError
            If the study has no chart of that name, or no row for it.
        """
        return self._named(name).show(self.rows, self.study.columns, self.machine)

    def _named(self, name: str) -> Chart:
        if name not in self.charts:
            raise ArgumentError(f"{self.study.name}: chart {name!r} is unknown; {hint(name, self.charts)}")
        return self.charts[name]

    def write(self, folder: Path) -> list[Path]:
        """Write the report and return its paths, the page first.

        `NAME.json` and `NAME.csv` hold the rows, `NAME_COLUMN.csv` a nested column, `NAME_findings.json` the findings;
        each chart and `files` add theirs, and so does a table that is too long for the page.
        """
        study, name = self.study, self.study.name
        folder.mkdir(parents=True, exist_ok=True)
        flat = [scalars(row) for row in self.rows]
        found = json.dumps({"findings": [asdict(finding) for finding in self.findings]}, indent=1)
        written = [write_results(folder / f"{name}.json", flat, parameters=self.parameters)]
        written.append(write_text(folder / f"{name}{FINDINGS_FILE}", f"{found}\n"))
        for stem, rows in {name: flat, **{f"{name}_{column}": x for column, x in nested(self.rows).items()}}.items():
            written.append(write_text(folder / f"{stem}.csv", as_csv(rows)))
        written += [write_text(folder / file, text) for file, text in study.files(self.rows, self.machine).items()]
        drawn: dict[str, Chart] = {}
        for chart in self.charts.values():
            paths = chart.save(self.rows, study.columns, self.machine, folder)
            if paths:
                drawn[chart.name] = chart
                self._drawn[chart.name] = paths[1].read_bytes()
                written += paths
        tables = {heading: shown for heading, shown in study.tables(self.rows).items() if len(shown)}
        long = {file_of(heading): shown for heading, shown in tables.items() if len(shown) > MOST_ROWS}
        written += [write_text(folder / file, as_csv(shown)) for file, shown in long.items()]
        return [write_text(folder / study.page, page_of(self, drawn, tables)), *written]

    @property
    def head(self) -> str:
        """Number of points and hash of the machine, in words."""
        return f"{len(self.rows)} points, machine {self.machine.hash[:12]}"

    def _repr_html_(self) -> str:
        items = "".join(f"<li><b>{escape(finding.text)}</b> {escape(finding.detail)}</li>" for finding in self.findings)
        return f"<p><b>{escape(self.study.title)}</b>: {escape(self.head)}</p><ol>{items}</ol>"

    def __repr__(self) -> str:
        findings = [f"{i}. {finding}" for i, finding in enumerate(self.findings, 1)]
        return "\n".join([f"{self.study.title}: {self.head}", *findings])


def as_csv(rows: Sequence[Row] | pd.DataFrame) -> str:
    frame = table(rows) if isinstance(rows, Sequence) else rows
    return frame.to_csv(index=False, lineterminator="\n")


def nested(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Row]]:
    """Nested columns of rows, each as a table whose column `row` counts the rows from 0.

    >>> nested([{"busy": {"a": 1}}, {"hops": [{"t": 2}]}])
    {'busy': [{'row': 0, 'key': 'a', 'value': 1}], 'hops': [{'row': 1, 't': 2}]}
    """
    found: dict[str, list[Row]] = {}
    for i, row in enumerate(rows):
        for column, value in row.items():
            if isinstance(value, dict):
                found.setdefault(column, []).extend({_ROW: i, "key": k, "value": v} for k, v in value.items())
            elif isinstance(value, list):
                found.setdefault(column, []).extend({_ROW: i, **item} for item in value)
    return found


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(list(rows), columns=None if columns is None else list(columns))


def scalars(row: Mapping[str, Any]) -> Row:
    return {name: value for name, value in row.items() if not isinstance(value, (dict, list))}


_SCHEMA_VERSION = 2


def write_results(path: Path, rows: Sequence[Row], **more: Any) -> Path:
    """Write `more`, then `rows`, as JSON; an earlier file stays until the new one is complete."""
    first = rows[0]
    content = {
        "schema_version": _SCHEMA_VERSION,
        "machine": first["machine"],
        "code_version": first["code_version"],
        **more,
        "rows": list(rows),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_text(path, json.dumps(content, indent=1) + "\n")


def read_results(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingFileError(f"{path}: no results to draw; run the study first (without rerender)")
    what, remedy = "file of results", "run the study again"
    content = read_json(path, what, remedy)
    version = content.get("schema_version")
    if version != _SCHEMA_VERSION:
        raise ConfigError(f"{path}: schema_version = {version} must be {_SCHEMA_VERSION}; run the study again")
    with damaged(path, what, remedy):
        content["rows"] = [dict(row.items()) for row in content["rows"]]
    return content


@dataclass(frozen=True, slots=True)
class Choices:
    """Values of a parameter that depend on the machine."""

    of: Callable[[Machine], Sequence[str]]


def explorations() -> dict[str, Study]:
    known = {name: STUDIES.resolve(name) for name in STUDIES.names}  # some are functions
    studies = {name: study for name, study in known.items() if isinstance(study, type) and issubclass(study, Study)}
    return {name: study() for name, study in studies.items() if study.program is not Study.program}


def at_most(machine: Machine, *, cubes: int = 1, pes: int = 1) -> list[str]:
    config = machine.config
    asked = (("cubes", cubes, config.cubes_per_sip, "a SIP"), ("pes", pes, config.pes_per_cube, "a cube"))
    return [
        f"{name} = {value} must be at most {most}: {owner} of this machine has {most}"
        for name, value, most, owner in asked
        if value > most
    ]


def check_slices(machine: Machine, what: str) -> None:
    """Raise ConfigError if memory is apart from the PEs: `what` measures the HBM slice of each PE."""
    if machine.config.memory_apart:
        raise ConfigError(
            f"cube.hbm.controllers = {machine.config.cube.hbm.controllers}: {what} measures the HBM slices of PEs, and "
            "this machine has memory apart from them; choose another machine, or time a kernel (kernbench run)"
        )


def fits_slice(machine: Machine, name: str, value: object, nbytes: int) -> list[str]:
    slice_bytes = machine.config.cube.hbm.slice_bytes(machine.config.pes_per_cube)
    if nbytes <= slice_bytes:
        return []
    return [f"{name} = {value}: the tensors of one PE take {nbytes:,} B; its HBM slice has {slice_bytes:,} B"]


def groups(rows: Iterable[R], *columns: str) -> dict[Any, list[R]]:
    """Group rows by columns, in order of appearance; the key of one column is its value, not a tuple."""
    found: dict[Any, list[R]] = {}
    for row in rows:
        key = tuple(row[column] for column in columns)
        found.setdefault(key if len(columns) > 1 else key[0], []).append(row)
    return found


def sips_of(topology: str, count: int, *sides: int) -> dict[str, Any]:
    """Keys of `system.sips`; a count alone takes the squarest grid of the topology.

    >>> sips_of("torus_3d", 16)
    {'count': 16, 'topology': 'torus_3d', 'w': 4, 'h': 2, 'd': 2}
    """
    found = {"count": count, "topology": topology, "w": None, "h": None, "d": None}
    dimensions = DIMENSIONS.get(topology, 0)
    if dimensions and count and not sides:
        layers = next(n for n in range(count, 0, -1) if count % n == 0 and n**3 <= count) if dimensions == 3 else 1
        sides = (*squarest(count // layers), layers)[:dimensions]
    return found | dict(zip("whd", sides if dimensions else (), strict=False))


def squarest(count: int) -> tuple[int, int]:
    """Sides of the squarest grid, columns and rows.

    >>> squarest(6), squarest(7)
    ((3, 2), (7, 1))
    """
    rows = next(n for n in range(isqrt(count), 0, -1) if count % n == 0)
    return count // rows, rows


def size_name(nbytes: int) -> str:
    """Size in the largest binary unit of which it is a whole number.

    >>> size_name(4096), size_name(300)
    ('4 KiB', '300 B')
    """
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def scaled(config: MachineConfig, factors: Mapping[str, float]) -> dict[str, Any]:
    """Machine changes that multiply fields by factors; whole numbers stay whole, at least 1."""
    now = {path: attrgetter(path)(config) for path in factors}
    return {
        path: max(1, int(x * factors[path])) if isinstance(x, int) else x * factors[path] for path, x in now.items()
    }
