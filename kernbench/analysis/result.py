"""The result of a run: `torch.result`, readable in a terminal and in a notebook."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kernbench._registry import PLOTS, html_of
from kernbench.analysis._domains import validity
from kernbench.analysis._launches import labels, on_sip
from kernbench.analysis._manifest import UNKNOWN_MANIFEST, Manifest, read_manifest
from kernbench.analysis._records import Launch, Records
from kernbench.analysis._stages import LAUNCH, STAGE_KINDS, STAGE_LABELS, STAGE_OF
from kernbench.analysis.breakdown import Breakdown, breakdown
from kernbench.errors import KernbenchError

if TYPE_CHECKING:
    import pandas as pd

    from kernbench.analysis._critical_path import CriticalPath
    from kernbench.analysis._occupancy import Occupancy
    from kernbench.analysis._what_if._predictions import Prediction, Tornado
    from kernbench.analysis.why import Why


AxesT = TypeVar("AxesT")  # matplotlib's, which nothing here imports

SHOWN_LAUNCHES, SHOWN_REASONS = 10, 5

INCOMPLETE = "INCOMPLETE: the run stopped before its end"

# Kinds of rows that last from an order to its completion, and are not work.
_SPANS = tuple(kind for kind, stage in STAGE_OF.items() if stage in ("composite", "host", LAUNCH))


@dataclass(frozen=True, slots=True)
class Busy:
    """How long a component or link worked; `nbytes` and `bw_gbs` are 0 for a component."""

    name: str
    busy_ns: float
    share: float
    nbytes: int = 0
    bw_gbs: float = 0.0


@dataclass(frozen=True, eq=False)
class Result:
    """One run in numbers: latency, critical path, launches, busy stages, busiest components and links.

    Parameters
    ----------
    records : Records
    name : str
        What ran; it heads the summary.
    manifest : Manifest
        What ran, on which machine, with which options, parameters and versions, as far as that is known.
    """

    records: Records
    name: str = "run"
    manifest: Manifest = UNKNOWN_MANIFEST

    @property
    def latency_ns(self) -> float:
        """Simulated time of the whole run, host copies included."""
        return self.records.makespan_ps / 1000

    @property
    def launches(self) -> tuple[Launch, ...]:
        """Every kernel launch, in the order in which the host sent them; a collective is one on each SIP."""
        return self.records.launches

    @property
    def complete(self) -> bool:
        """Whether the run reached its end; False for the part of a run that was interrupted or failed."""
        return self.records.complete

    @property
    def machine(self) -> str:
        """Hash of the machine, as captions print it."""
        return self.records.machine[:12]

    @cached_property
    def breakdown(self) -> Breakdown:
        """Exclusive and busy time of each stage over the whole run, of all PEs that did work."""
        return breakdown(self.records)

    def busiest_components(self, n: int = 5) -> list[Busy]:
        """Return the `n` components that worked longest, without those that only wait for others."""
        records = self.records
        waiting = records.is_kind(*_SPANS)
        ids = set(records.component[waiting].tolist()) - set(records.component[~waiting].tolist())
        waiters = {records.components[i] for i in ids}
        busy = records.busy_by_component()
        return self._busiest(n, [(name, ps) for name, ps in busy.items() if name not in waiters])

    def busiest_links(self, n: int = 5) -> list[Busy]:
        """Return the `n` links that were occupied longest."""
        x = self.records.links
        return self._busiest(n, zip(x.names, x.busy_ps.tolist(), x.nbytes.tolist(), x.bw_gbs.tolist(), strict=True))

    def _busiest(self, n: int, rows: Iterable[tuple[Any, ...]]) -> list[Busy]:
        whole = self.records.makespan_ps
        found = [Busy(name, ps / 1000, ps / whole if whole else 0.0, *traffic) for name, ps, *traffic in rows if ps]
        return sorted(found, key=lambda x: (-x.busy_ns, x.name))[:n]

    @cached_property
    def critical_path(self) -> CriticalPath:
        """The critical path of the run, from its beginning to its end: an iterable of steps, and a table.

        Each step has its start and end [ps], what it was, its parts by resource, why it began then, and its row in the
        log. `why()` adds these up by resource.

        Raises
        ------
        StateError
            If the run was not logged.

        Examples
        --------
        >>> import kernbench as kb
        >>> path = kb.run("gemm-single-pe").result.critical_path
        >>> sum(step.end_ps - step.start_ps for step in path) == path.makespan_ps
        True
        >>> list(path.to_pandas())
        ['start_ns', 'end_ns', 'resource', 'kind', 'what', 'because', 'behind', 'row']
        """
        return self.why().path

    @cached_property
    def occupancy(self) -> Occupancy:
        """Occupancy over time: outstanding requests, slots of queues and bytes of memories, as step functions.

        An iterable of tracks, and a table. Each track has its component, quantity, times [ps] and values.

        Examples
        --------
        >>> import kernbench as kb
        >>> occupancy = kb.run("gemm-single-pe", "preset:small", log="tile").result.occupancy
        >>> sorted({track.quantity for track in occupancy})
        ['allocated', 'reads', 'requests', 'writes']
        >>> list(occupancy.to_pandas())
        ['component', 'quantity', 't_ns', 'value']
        """
        from kernbench.analysis._occupancy import occupancy

        return occupancy(self.records)

    @cached_property
    def explained(self) -> Why | str:
        """`why()`, or in words why there is no answer."""
        try:
            return self.why()
        except KernbenchError as error:
            return str(error)

    def summary(self) -> list[dict[str, Any]]:
        """Return the busy time of each stage, as the mean over PEs, and its share of the run.

        Stages are busy at the same time, so shares sum to more than 1. What the time went to is in `why()`.
        """
        busy, whole = self.breakdown.busy_ns(), self.latency_ns
        return [
            {"stage": STAGE_LABELS[stage], "busy_ns": busy[stage], "share": busy[stage] / whole}
            for stage in STAGE_KINDS
            if busy[stage]
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return everything the summary shows, as plain values."""
        return {
            "name": self.name,
            "machine": self.records.machine,
            "complete": self.records.complete,
            "engine": self.records.engine,
            "latency_ns": self.latency_ns,
            "launches": [
                {
                    "name": x.name,
                    "sip": x.sip,
                    "start_ns": x.start_ps / 1000,
                    "latency_ns": (x.end_ps - x.start_ps) / 1000,
                }
                for x in self.launches
            ],
            "critical_path": [] if isinstance(self.explained, str) else self.explained.times(),
            "pes": self.breakdown.n_pes,
            "stages": self.summary(),
            "components": [asdict(x) for x in self.busiest_components()],
            "links": [asdict(x) for x in self.busiest_links()],
            "digest": self.records.digest(),
        }

    @property
    def busy_title(self) -> str:
        pes = self.breakdown.n_pes
        return f"busy stages, mean of {pes} PEs" if pes > 1 else "busy stages"

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def why(self, launch: str | Launch | None = None) -> Why:
        """Return the critical path by resource: what the time went to, longest first, and what to change.

        Parameters
        ----------
        launch : str or Launch, optional
            A launch as the result lists it, such as "gemm #2", or one of `launches`; a collective goes by its name
            for all its SIPs. Its path goes from its start to its end. By default the whole run's, host copies
            included.

        Raises
        ------
        KernbenchError
            If the launch does not exist, or the run was not logged.
        """
        from kernbench.analysis.why import why

        return why(self.records, self.name, launch)

    def what_if(self, overrides: Mapping[str, object] | Sequence[str]) -> Prediction:
        """Predict the latency on a changed machine, from what the run recorded, without running it again.

        Parameters
        ----------
        overrides : str, sequence of str, or mapping
            Fields of the machine file with their new values, as `kernbench.load` takes them: bandwidths [GB/s],
            latencies [ns] and rates, such as "cube.hbm.channel_bw_gbs=40".

        Returns
        -------
        Prediction
            The predicted latency [ns] and its ratio to the simulated one; it displays itself.

        Raises
        ------
        KernbenchError
            If a field or value is wrong, a field changes what runs where, so that only a run can tell, or this run was
            not logged.

        Examples
        --------
        >>> import kernbench as kb
        >>> run = kb.run("matmul", "preset:small")
        >>> run.result.what_if("cube.hbm.channel_bw_gbs=16").ratio > 1
        True
        """
        from kernbench.analysis._what_if._predictions import what_if

        return what_if(self.records, overrides, self.name)

    def tornado(
        self, factors: Sequence[float] = (0.5, 2.0), run: Callable[[dict[str, float]], Result] | None = None
    ) -> Tornado:
        """Tell what each bandwidth, latency and rate of the machine would change, times each of `factors`.

        Parameters
        ----------
        factors : sequence of float
            Each field is multiplied by each of them.
        run : callable, optional
            `run(changes)` returns the result with some fields of the machine file changed: `{path: value}`, as
            `kernbench.load` takes them. Every bar is then simulated, a run for each. By default all are predicted.

        Returns
        -------
        Tornado
            By field, with the largest change first; it displays itself.

        Raises
        ------
        KernbenchError
            If this run was not logged.

        Examples
        --------
        >>> import kernbench as kb
        >>> run = lambda changes: kb.run("matmul", kb.load("preset:small", changes)).result
        >>> exact = run({}).tornado([2], run)
        >>> max(abs(found.error) for _, (found,) in exact.rows if found) < 0.03
        True
        """
        from kernbench.analysis._what_if._predictions import tornado_of

        return tornado_of(
            self.records, factors, self.name, None if run is None else lambda changes: run(changes).latency_ns
        )

    def to_pandas(self) -> pd.DataFrame:
        """Return the log as a table, a row for each occupation of a component.

        Columns: component, kind, start_ns, end_ns, nbytes, flops, tile (-1 for none), and of the command its name, sip,
        cube and pe (-1 for none). It is ready for SQL: `duckdb.sql("select kind, sum(nbytes) from log group by 1")`
        with `log = result.to_pandas()`.

        Examples
        --------
        >>> import kernbench as kb
        >>> log = kb.run("gemm-single-pe", "preset:small").result.to_pandas()
        >>> sorted(set(log["kind"]))
        ['composite', 'd2h', 'launch', 'map']
        """
        import pandas as pd

        records = self.records
        names = {"component": records.components, "kind": records.kinds}
        columns = {name: pd.Categorical.from_codes(getattr(records, name), pd.Index(of)) for name, of in names.items()}
        times = {"start_ns": records.start_ps / 1000, "end_ns": records.end_ps / 1000}
        plain = {name: getattr(records, name) for name in ("nbytes", "flops", "tile")}
        command = {"command": records.per_row(lambda command: command.name, "")}
        place = dict(zip(("sip", "cube", "pe"), records.location.T, strict=True))
        return pd.DataFrame({**columns, **times, **plain, **command, **place})

    def plot(self, kind: str = "stages", *, ax: AxesT) -> AxesT:
        """Draw the run into axes of a matplotlib figure, which you arrange, label and save as your paper needs it.

        Parameters
        ----------
        kind : {"stages", "timeline", "roofline"}
            How long each stage was busy, as `summary` returns it; the work of the PE that finished last, by stage; or
            the run's rate under the roofs of the PEs that worked.
        ax : matplotlib.axes.Axes
            It is filled, and its axes are labelled with their units.

        Returns
        -------
        Axes
            `ax`.

        Raises
        ------
        ConfigError
            If there is no such kind of plot.
        StateError
            If the run has nothing of this kind: no PE worked, or none computed, as far as the log tells; `log="tile"`
            logs the parts of composites.

        Examples
        --------
        >>> import kernbench as kb
        >>> from matplotlib.figure import Figure
        >>> result = kb.run("gemm-single-pe", "preset:small", log="tile").result
        >>> result.plot("roofline", ax=Figure().subplots()).get_ylabel()
        'rate [Gflop/s]'
        """
        PLOTS.resolve(kind)(self, ax)
        return ax

    def trace(self, path: str | Path) -> Path:
        """Write the run as Chrome trace events, for ui.perfetto.dev: components as tracks, flows, `occupancy`."""
        from kernbench.analysis.trace import write_trace

        return write_trace(self.records, path)

    def chakra(self, folder: str | Path) -> list[Path]:
        """Write the run as Chakra execution traces (MLCommons), a file for each SIP: `trace.0.et`, `trace.1.et`, ...

        A node is a kernel's launch, a collective or a message. `data_deps` are what it follows in the streams of its
        SIP, `ctrl_deps` what the host had waited for. Times in the schema are microseconds; the attributes `start_ps`
        and `duration_ps` are exact. `num_ops` and `tensor_size` [B] are as logged, `comm_size` [B] is the rank's input.
        Copies between host and device are not written, nor is what ranks exchange on the host.

        Parameters
        ----------
        folder : str or Path
            It is made if it does not exist.

        Returns
        -------
        list of Path
            The files.

        Raises
        ------
        StateError
            If nothing was queued on a device.
        ConfigError
            If the folder has a trace of another run.

        Examples
        --------
        >>> import tempfile
        >>> import kernbench as kb
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = kb.run("gemm-single-pe", "preset:small").result.chakra(folder)
        >>> [path.name for path in files]
        ['trace.0.et']
        """
        from kernbench.analysis._chakra import write_traces

        return write_traces(self.records, folder)

    def save(self, path: str | Path) -> Path:
        """Write the result with its machine, its manifest and the versions to one file; `kernbench.read` reopens it."""
        return self.records.save(path, self.manifest)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reopen a result that `save` wrote; it is named after its file."""
        path = Path(path)
        records = Records.load(path)
        manifest, _ = read_manifest(path)
        return cls(records, path.stem, manifest)

    def __repr__(self) -> str:
        lines = [
            f"{self.name}: {self.latency_ns:,.2f} ns  (machine {self.machine or '?'})",
            *([] if self.complete else [INCOMPLETE]),
            validity(self.records),
        ]
        shown = list(zip(labels(self.launches), self.launches, strict=True))[:SHOWN_LAUNCHES]
        lines += [f"launch {label}{on_sip(x)}: {(x.end_ps - x.start_ps) / 1000:,.2f} ns" for label, x in shown]
        if len(self.launches) > len(shown):
            lines.append(f"... and {len(self.launches) - len(shown)} more launches")
        lines += ["", "critical path"]
        lines += [self.explained] if isinstance(self.explained, str) else self.explained.lines(SHOWN_REASONS)
        lines += ["", self.busy_title]
        lines += [f"  {x['stage']:<14}{x['busy_ns']:>14,.2f} ns {x['share']:>6.1%}" for x in self.summary()]
        for title, busiest in (("components", self.busiest_components()), ("links", self.busiest_links())):
            if busiest:
                lines += ["", f"busiest {title}"]
                width = max(len(x.name) for x in busiest)
                lines += [f"  {x.name:<{width}}{x.busy_ns:>14,.2f} ns {x.share:>6.1%}{_traffic(x)}" for x in busiest]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_of("result", self)


def _traffic(x: Busy) -> str:
    return f"  {x.nbytes:,} B at {x.bw_gbs:g} GB/s" if x.nbytes else ""
