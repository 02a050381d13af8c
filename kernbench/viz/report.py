"""Runs of one workload on one page: times, critical paths, stages, and what differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench._registry import hint
from kernbench.analysis.compare import Comparison, compare, ns_text, value_text
from kernbench.analysis.result import INCOMPLETE, Result
from kernbench.config._files import write_text
from kernbench.errors import ArgumentError, ConfigError
from kernbench.viz import _palette as palette

if TYPE_CHECKING:
    import pandas as pd

_COLOURS = [*dict.fromkeys(palette.STAGE_COLOURS.values())]
_PARTS = 8  # of the critical path; the others are one
_OTHER = "other"
_LIGHT, _DARK = palette.THEMES["light"], palette.THEMES["dark"]
_STYLE = f"""
.kb-report {{ --bg: var(--kb-report-bg, var(--jp-layout-color0, var(--vscode-editor-background, Canvas)));
  --line: color-mix(in srgb, currentColor 22%, transparent); font-size: 13px; line-height: 1.45; }}
.kb-report h2 {{ font-size: 14px; margin: 20px 0 6px; }}
.kb-report .kb-scroll {{ overflow-x: auto; }}
.kb-report table {{ border-collapse: collapse; margin: 0; }}
.kb-report :is(th, td) {{ padding: 3px 10px 3px 0; text-align: right; white-space: nowrap; vertical-align: top;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }}
.kb-report th {{ font-weight: 600; }}
.kb-report tr > :first-child {{ text-align: left; position: sticky; left: 0; background: var(--bg); max-width: 45vw;
  white-space: normal; overflow-wrap: anywhere; min-width: 9em; }}
.kb-report .kb-text {{ text-align: left; }}
.kb-report .kb-share {{ display: block; height: 4px; background: {palette.BLUE}; }}
.kb-report .kb-bars {{ display: grid; grid-template-columns: fit-content(30%) 1fr; gap: 4px 10px;
  align-items: center; }}
.kb-report .kb-bars > span {{ overflow-wrap: anywhere; }}
.kb-report .kb-bar {{ display: flex; height: 20px; }}
.kb-report .kb-key {{ display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 6px 0; font-size: 12px; }}
.kb-report .kb-key i {{ display: inline-block; width: .8em; height: .8em; }}
.kb-report .kb-warning {{ border-left: 3px solid {palette.VERMILION}; padding-left: 6px; }}
"""
_PAGE_STYLE = f"""
:root {{ color-scheme: light dark; --kb-report-bg: light-dark({_LIGHT["bg"]}, {_DARK["bg"]});
  background: var(--kb-report-bg); color: light-dark({_LIGHT["text"]}, {_DARK["text"]});
  font-family: system-ui, sans-serif; }}
body {{ margin: 16px; max-width: 1400px; }}
h1 {{ font-size: 18px; }}
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True, eq=False, repr=False)
class RunReport:
    """A comparison of runs of one workload; prints itself, and displays itself in a notebook.

    Attributes
    ----------
    runs : mapping of str to Result
        By name, in the given order.
    baseline : str
        The run that the others are compared with.
    comparisons : mapping of str to Comparison
        From the baseline to each run.
    """

    runs: Mapping[str, Result]
    baseline: str

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        base = self.runs[self.baseline]
        return {name: compare(base, run) for name, run in self.runs.items()}

    @property
    def title(self) -> str:
        program = self.runs[self.baseline].manifest.program
        return f"{len(self.runs)} runs{f' of {program}' if program else ''}"

    @cached_property
    def differences(self) -> dict[str, dict[str, Any]]:
        """Values that differ, by field and run: parameters and options of the workload, then fields of the machine."""
        found = {}
        for kind in ("parameters", "options"):
            given = {name: getattr(run.manifest, kind) for name, run in self.runs.items()}
            for field in dict.fromkeys(field for values in given.values() for field in values):
                of = {name: values.get(field) for name, values in given.items()}
                if len({str(value) for value in of.values()}) > 1:
                    found[field] = of
        changes = {name: {x.field: x for x in of.machine} for name, of in self.comparisons.items()}
        before = {x.field: x.before for of in changes.values() for x in of.values()}
        for field, value in before.items():
            found[field] = {name: of[field].after if field in of else value for name, of in changes.items()}
        return found

    @property
    def speedups(self) -> dict[str, float | None]:
        """Time of the baseline in relation to that of each run; None if one is 0, or did not reach its end."""
        ratios = {name: of.latency.ratio for name, of in self.comparisons.items()}
        whole = (
            {name for name, run in self.runs.items() if run.complete} if self.runs[self.baseline].complete else set()
        )
        return {name: 1 / ratio if ratio and name in whole else None for name, ratio in ratios.items()}

    @cached_property
    def paths(self) -> dict[str, dict[str, float]]:
        """Time on the critical path [ns] by run and resource, with the longest resource of all runs first."""
        of = {name: {x.what: x.after or 0.0 for x in found.path} for name, found in self.comparisons.items()}
        longest = Counter[str]()
        for times in of.values():
            longest |= Counter(times)
        return {name: {what: times.get(what, 0.0) for what, _ in longest.most_common()} for name, times in of.items()}

    @property
    def stages(self) -> dict[str, dict[str, float]]:
        """How long each stage was busy [ns], by run: the mean over the PEs that worked."""
        of = {name: {x["stage"]: float(x["busy_ns"]) for x in run.summary()} for name, run in self.runs.items()}
        known = dict.fromkeys(stage for times in of.values() for stage in times)
        return {name: {stage: times.get(stage, 0.0) for stage in known} for name, times in of.items()}

    @property
    def table(self) -> pd.DataFrame:
        """The runs as a table, a row for each.

        Columns: latency_ns, speedup over the baseline, the resource with the most time on the critical path and its
        share of the run (`limit`, `limit_share`), each value that differs, and the hash of the machine.
        """
        import pandas as pd

        rows = []
        for name, run in self.runs.items():
            limit, share = self._limit(name)
            row = {"latency_ns": run.latency_ns, "speedup": self.speedups[name], "limit": limit, "limit_share": share}
            row |= {field: _plain(of[name]) for field, of in self.differences.items()}
            rows.append(row | {"machine": run.machine})
        return pd.DataFrame(rows, index=pd.Index(self.runs, name="run"))

    def to_dict(self) -> dict[str, Any]:
        """Return everything that the page shows, as plain values."""
        speedups = self.speedups
        runs = [
            {
                "name": name, "latency_ns": run.latency_ns, "speedup": speedups[name], "complete": run.complete,
                "machine": run.records.machine, "source": run.manifest.machine, "engine": run.records.engine,
                "versions": dict(run.manifest.versions), "critical_path_ns": self.paths[name],
                "stages_ns": self.stages[name],
            }
            for name, run in self.runs.items()
        ]  # fmt: skip
        program = self.runs[self.baseline].manifest.program
        return {"program": program, "baseline": self.baseline, "runs": runs, "differences": self.differences}

    def save(self, path: str | Path) -> Path:
        """Write the report as a page that needs neither kernel nor network; the name must end in .html."""
        path = Path(path)
        if path.suffix != ".html":
            raise ArgumentError(f"{path}: the name must end in .html")
        page = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width">'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n<title>{escape(self.title)}</title>'
            f"<style>{_PAGE_STYLE}</style></head>\n<body><main><h1>{escape(self.title)}</h1>\n{self._html()}\n</main></body></html>\n"
        )
        return write_text(path, page)

    def __repr__(self) -> str:
        table = [["run", "time [ns]", "speedup", "longest on the critical path"], *map(self._summary, self.runs)]
        lines = [self.title, *self._said(), "", *_aligned(table)]
        if self.differences:
            lines += ["", *_aligned([["differs", *self.runs], *self._differing()])]
        return "\n".join(lines)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/html": f"<b>{escape(self.title)}</b>{self._html()}", "text/plain": repr(self)}

    @property
    def _longest_ns(self) -> float:
        return max(run.latency_ns for run in self.runs.values()) or 1.0

    def _limit(self, name: str) -> tuple[str, float | None]:
        times, whole = self.paths[name], self.runs[name].latency_ns
        if not whole or not any(times.values()):
            return "", None
        limit = max(times, key=lambda what: times[what])
        return limit, times[limit] / whole

    def _summary(self, name: str) -> list[str]:
        speedup, (limit, share) = self.speedups[name], self._limit(name)
        faster = "-" if speedup is None else "baseline" if name == self.baseline else f"{speedup:.2f}x"
        why = str(self.runs[name].explained) if share is None else f"{limit} {share:.0%}"
        return [name, ns_text(self.runs[name].latency_ns), faster, why]

    def _said(self) -> list[str]:
        """Return the fastest run in one line, and what limits the comparison."""
        known = {name: speedup for name, speedup in self.speedups.items() if speedup is not None}
        said = []
        if known:
            best = max(known, key=lambda name: known[name])
            limit, share = self._limit(best)
            than = f"{known[best]:.2f}x {self.baseline}" if best != self.baseline else "the baseline"
            cause = f"; {limit} is {share:.0%} of its critical path" if share is not None else ""
            said.append(f"{best} is fastest: {ns_text(self.runs[best].latency_ns)} ns, {than}{cause}.")
        return [*said, *self._warnings()]

    def _warnings(self) -> list[str]:
        said = [f"{name}: {INCOMPLETE}" for name, run in self.runs.items() if not run.complete]
        said += [f"{name}: {of.machine_line()}" for name, of in self.comparisons.items() if not of.known]
        if len({run.manifest.versions.get("kernbench") for run in self.runs.values()}) > 1:
            said.append("The runs are of several versions of kernbench: a difference may be one of the model.")
        return said

    def _differing(self) -> list[list[str]]:
        return [[field, *(_text(of[name]) for name in self.runs)] for field, of in self.differences.items()]

    def _html(self) -> str:
        said, warned = self._said(), self._warnings()
        parts = [f"<p>{escape(text)}</p>" for text in said[: len(said) - len(warned)]]
        parts += [f'<p class="kb-warning">{escape(text)}</p>' for text in warned]
        summary = [[escape(cell) for cell in self._summary(name)] for name in self.runs]
        parts.append(_table(["run", "time [ns]", "speedup", "longest on the critical path"], summary, 3))
        parts.append(f"<h2>Critical path</h2>{self._bars()}{self._compared('resource', self.paths)}")
        if any(self.stages.values()):
            parts.append(f"<h2>Busy time of stages, mean of the PEs</h2>{self._compared('stage', self.stages)}")
        differing = [[escape(cell) for cell in row] for row in self._differing()]
        nothing = "<p>Nothing in the workload or the machine.</p>"
        parts.append(f"<h2>What differs</h2>{_table(['field', *self.runs], differing) if differing else nothing}")
        parts.append(f"<h2>Machines and versions</h2>{_table(['of', *self.runs], self._origins())}")
        return f'<div class="kb-report"><style>{_STYLE}</style>{"".join(parts)}</div>'

    def _origins(self) -> list[list[str]]:
        of = {
            name: {
                "machine": run.machine or "unknown",
                "from": run.manifest.machine or "unknown",
                "engine": run.records.engine,
            }
            | dict(run.manifest.versions)
            for name, run in self.runs.items()
        }
        keys = dict.fromkeys(key for values in of.values() for key in values)
        return [[key, *(escape(values.get(key, "unknown")) for values in of.values())] for key in keys]

    def _bars(self) -> str:
        longest = self._longest_ns
        names = [*next(iter(self.paths.values()))]
        colours = dict(zip(names[:_PARTS], _COLOURS, strict=False)) | ({_OTHER: palette.GREY} if names[_PARTS:] else {})
        bars = []
        for name, times in self.paths.items():
            shown = {what: times[what] for what in names[:_PARTS]} | {_OTHER: sum(times[x] for x in names[_PARTS:])}
            pieces = [
                f'<i style="width:{ns / longest:.4%};background:{colours[what]}" '
                f'title="{escape(what)}: {ns_text(ns)} ns"></i>'
                for what, ns in shown.items() if ns
            ]  # fmt: skip
            label = escape(f"{name}: " + ", ".join(f"{what} {ns_text(ns)} ns" for what, ns in shown.items() if ns))
            bars.append(
                f"<span>{escape(name)}</span>"
                f'<div class="kb-bar" role="img" aria-label="{label}">{"".join(pieces)}</div>'
            )
        key = "".join(
            f'<span><i style="background:{colour}"></i> {escape(what)}</span>' for what, colour in colours.items()
        )
        return f'<div class="kb-bars">{"".join(bars)}</div><div class="kb-key">{key}</div>'

    def _compared(self, head: str, times: Mapping[str, Mapping[str, float]]) -> str:
        """Table of times by run; the bar below each is its share of the longest run."""
        longest = self._longest_ns
        names = [*next(iter(times.values()))]
        rest = {run: sum(of[what] for what in names[_PARTS:]) for run, of in times.items()}
        rows = [(what, {run: of[what] for run, of in times.items()}) for what in names[:_PARTS]]
        rows += [(f"{len(names) - _PARTS} more", rest)] if any(rest.values()) else []
        cells = [
            [escape(what), *(_cell(of[run], self.runs[run].latency_ns, longest) for run in self.runs)]
            for what, of in rows
        ]
        return _table([f"{head} [ns, share of the run]", *self.runs], cells)


def report(runs: Iterable[Result | str | Path], baseline: Result | str | Path | None = None) -> RunReport:
    """Compare runs of one workload on one page: times, speedups, critical paths, stages, and what differs.

    In a notebook it shows itself; `table` is a DataFrame, and `save("page.html")` writes a page that needs neither
    kernel nor network. It compares results as they are, and simulates nothing. For every launch of two runs, see
    `kb.compare`.

    Parameters
    ----------
    runs : iterable of Result or path
        Two or more results, or files that `Result.save`, `kernbench run --out` or the explorer wrote.
    baseline : Result, str or path, optional
        The run that others are compared with: one of `runs`, or its name, which is that of its file without suffix. By
        default the first.

    Returns
    -------
    RunReport
        Times in ns; a speedup is the time of the baseline divided by that of the run.

    Raises
    ------
    ConfigError
        If a file cannot be read, is damaged, or has a schema that is too old, or if the runs are of several workloads:
        a line for each such file.
    ArgumentError
        If there are fewer than two runs, or the baseline is none of them.

    Examples
    --------
    >>> import kernbench as kb
    >>> runs = [kb.run("matmul", "preset:small", m=m).result for m in (64, 128)]
    >>> kb.report(runs).table["speedup"].round(2).tolist()
    [1.0, 0.69]
    """
    if isinstance(runs, str | Path | Result):
        raise ArgumentError(f"runs = {runs!s:.80}: must be a list of two runs or more")
    given = list(runs)
    if len(given) < 2:
        raise ArgumentError(
            f"a report compares two runs or more, not {len(given)}; "
            "add files that result.save(FILE) or kernbench run --out FILE wrote"
        )
    names = _names(given)
    results, faults, records = _loaded(given)
    if faults:
        raise ConfigError(faults, records)
    found = dict(zip(names, results, strict=True))
    base = names[0] if baseline is None else _named(baseline, given, names)
    _same_workload(
        {str(run) if isinstance(run, str | Path) else name: found[name] for run, name in zip(given, names, strict=True)}
    )
    return RunReport(found, base)


def _loaded(given: Sequence[Result | str | Path]) -> tuple[list[Result], list[str], list[dict[str, Any]]]:
    results, faults, records = [], [], []
    for run in given:
        try:
            results.append(run if isinstance(run, Result) else Result.load(run))
        except ConfigError as error:
            faults += error.faults
            remedies = [fault.rpartition("; ")[2] for fault in error.faults]
            records += [{"file": str(run), "key": None, "value": None, "remedy": remedy} for remedy in remedies]
    return results, faults, records


def _same_workload(runs: Mapping[str, Result]) -> None:
    """Refuse runs of another workload than the first, or of none that their file names."""
    first, expected = next((name, run.manifest.program) for name, run in runs.items())
    others = {name: run.manifest.program for name, run in runs.items() if run.manifest.program != expected}
    if not others:
        return
    remedy = "report the runs of each workload separately, or compare two with kernbench compare"
    faults = [
        f"{name}: program = {found!r} must be {expected!r}, as in {first}; {remedy}" for name, found in others.items()
    ]
    raise ConfigError(
        faults, [{"file": name, "key": "program", "value": found, "remedy": remedy} for name, found in others.items()]
    )


def _names(given: Sequence[Result | str | Path]) -> list[str]:
    """Names of runs: those of files without suffix, with folder or number where that is not enough."""
    names = [run.name if isinstance(run, Result) else Path(run).stem for run in given]
    taken = Counter(names)
    names = [
        str(run) if taken[name] > 1 and not isinstance(run, Result) else name
        for run, name in zip(given, names, strict=True)
    ]
    seen, taken = Counter[str](), Counter(names)
    numbered = []
    for name in names:
        seen[name] += 1
        numbered.append(f"{name} #{seen[name]}" if taken[name] > 1 else name)
    return numbered


def _named(baseline: Result | str | Path, given: Sequence[Result | str | Path], names: Sequence[str]) -> str:
    for run, name in zip(given, names, strict=True):
        same = (
            run is baseline if isinstance(baseline, Result) or isinstance(run, Result) else Path(run) == Path(baseline)
        )
        if same or name == baseline:
            return name
    said = baseline.name if isinstance(baseline, Result) else str(baseline)
    raise ArgumentError(f"baseline = {said!r} is none of the runs; {hint(said, names)}")


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else value_text(value)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _cell(ns: float, whole: float, longest: float) -> str:
    if not ns:
        return "-"
    return f'{ns_text(ns)} <small>{ns / whole:.0%}</small><i class="kb-share" style="width:{ns / longest:.2%}"></i>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], text: int = -1) -> str:
    """Table of cells in HTML, whose first column remains in sight; column `text` is left-aligned, as the first is."""

    def line(tag: str, cells: Sequence[str]) -> str:
        return "".join(f"<{tag}{' class=kb-text' if i == text else ''}>{cell}</{tag}>" for i, cell in enumerate(cells))

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    names = line("th", [escape(name) for name in head])
    return (
        f'<div class="kb-scroll" tabindex="0"><table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table></div>'
    )
