"""`kernbench milestone`, `fidelity`, `calibrate`, `sweep` and `cache`: write reports and tables, show stored points."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli._options import (
    echo,
    echo_json,
    echo_table,
    json_option,
    limit_option,
    machine_option,
    machine_options,
    set_option,
)

if TYPE_CHECKING:
    from kernbench.sim_engine._limits import Limits
    from kernbench.sweeps._plan import Plan
    from kernbench.topology.builder import Machine


@click.command(short_help="Run milestone notebooks and write their reports.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "every", is_flag=True, help="Run every milestone.")
@machine_option
@set_option
@click.option("--workers", type=click.IntRange(1), help="Processes that simulate. Default: one per core.")
@click.option("--rerender", is_flag=True, help="Redraw figures from the results that are there; simulate nothing.")
@click.option(
    "--again", is_flag=True, help="Simulate every point again, also those that are kept; resumes what was interrupted."
)
@click.option(
    "--store",
    is_flag=True,
    help="Store the rows that took over 2 s in milestones/kept; simulate what is not in the cache.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the report. Default: milestones/output/NAME, in the checkout or, without one, here.",
)
@click.option(
    "--param",
    "parameters",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a parameter of the notebook; VALUE is YAML, e.g. --param 'shapes=[[64, 64, 64]]'. May be repeated.",
)
@json_option
def milestone(
    names: tuple[str, ...],
    every: bool,
    source: str | None,
    overrides: tuple[str, ...],
    workers: int | None,
    rerender: bool,
    again: bool,
    store: bool,
    out: Path | None,
    parameters: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run milestones by NAME (see `kernbench list milestones`) and write JSON, CSV and figures.

    Each is a notebook, executed with the full parameters of milestones/NAME.yaml; finished points of an interrupted
    run are kept. A report that is there, made of the same code, machine and parameters, is left as it is.
    """
    from kernbench.studies import milestone as milestones
    from kernbench.studies.study import Study, saved_findings

    if every == bool(names):
        raise click.UsageError(f"give NAMEs or --all; known: {', '.join(milestones.titles())}")
    chosen = (
        tuple(milestones.shortest_first(again=again)) if every else tuple(milestones.known_name(name) for name in names)
    )
    if out and len(chosen) > 1:
        raise click.UsageError("--out is one folder: give one NAME with it")
    values = dict(_parameter(text) for text in parameters)
    unkept, made = {}, []
    if len(chosen) > 1:
        click.echo(f"making {len(chosen)} reports: {', '.join(chosen)}", err=True)
    needed = {name: milestones.lacking(name) for name in chosen if every and not rerender}
    for name, needs in needed.items():
        if needs:
            click.echo(f"{name}: left out; it {needs}", err=as_json)
    chosen = tuple(name for name in chosen if not needed.get(name))
    options = [f"--machine={source}"] * bool(source) + [f"--set={text}" for text in overrides]
    options += [f"--param={text}" for text in parameters]
    options += ["--rerender"] * rerender + ["--again"] * again + ["--store"] * store + ["--json"] * as_json
    # While a report is drawn on one core, the others simulate the points of the last, longest one.
    beside = chosen[1:][-1:] if workers is None and (os.cpu_count() or 1) > 1 else ()
    last: contextlib.AbstractContextManager[list[Any]] = contextlib.nullcontext([])
    if beside:
        last = _beside(*beside, *options)
    with last as others:
        for name in chosen[: len(chosen) - len(beside)]:
            report = milestones.run(
                name,
                topology=source,
                overrides=overrides,
                workers=workers,
                rerender=rerender,
                output=out,
                parameters=values,
                again=again,
                store=store,
            )
            if report.unkept:
                unkept[name] = report.unkept
            record = {"name": name, "folder": str(report.folder), "made": not report.found, "unkept": report.unkept}
            made.append(record | {"findings": saved_findings(report.folder)} if as_json else record)
            found = "there already, made of the same code, machine and parameters (--again runs it):"
            if not as_json:
                click.echo(f"{name}: {found if report.found else 'wrote'} {report.folder / Study.page}")
    if as_json:
        echo_json([*made, *others])
    elif unkept:
        rows = ", ".join(f"{n} of {name}" for name, n in unkept.items())
        click.echo(
            f"rows that took over {milestones.KEPT_S:g} s and are not in milestones/{milestones.KEPT}: {rows}; "
            f"kernbench milestone {' '.join(unkept)} --store stores them there, without simulating them again"
        )


@contextlib.contextmanager
def _beside(*arguments: str) -> Iterator[list[Any]]:
    """Run `kernbench milestone` with these arguments in another process; wait for it, or interrupt it on an error.

    It has its own process group, which Ctrl-C does not reach, so that it is interrupted once. Yields a list that
    contains its output at the end, with --json.
    """
    printed: list[Any] = []
    command = [sys.executable, "-m", "kernbench", "milestone", *arguments]
    pipe = subprocess.PIPE if "--json" in arguments else None
    env = {**os.environ, "TQDM_POSITION": "1"}
    with subprocess.Popen(command, env=env, stdout=pipe, start_new_session=True) as process:
        try:
            yield printed
            text, _ = process.communicate()
            status = process.returncode
        except BaseException:
            if os.name == "posix":
                # Where a shell had this command ignore interrupts (`command &` in a script), the other one does, too.
                ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
                process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
            raise
    if status:
        if text:
            click.echo(text, nl=False)
        raise click.exceptions.Exit(status)
    printed += json.loads(text) if text else []


def _parameter(text: str) -> tuple[str, Any]:
    import yaml

    from kernbench.config._files import parse_yaml, problem

    key, equals, value = text.partition("=")
    if not (equals and key):
        raise click.BadParameter(f"{text!r} must be KEY=VALUE", param_hint="--param")
    try:
        return key.strip(), parse_yaml(value)[0]
    except yaml.YAMLError as error:
        raise click.BadParameter(
            f"{text!r}: VALUE {problem(error, 'put it in quotes')}", param_hint="--param"
        ) from error


@click.command(short_help="Compare results of other tools and of devices with a machine.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@machine_options
@click.option("--most-bytes", type=click.IntRange(1), help="Simulate collectives up to so many bytes. Default: 4 MiB.")
@click.option("--workers", type=click.IntRange(1), default=1, help="Processes that simulate. Default: 1.")
@json_option
def fidelity(
    files: tuple[Path, ...],
    machine: Machine,
    most_bytes: int | None,
    workers: int,
    as_json: bool,
) -> None:
    """Compare FILEs, which other tools wrote, with a machine: both values, the error, and what explains it.

    \b
    FILE may be
      the output of nccl-tests or rccl-tests
      a CSV file: workload,parameters,value,unit,source
    The parameters of a CSV file are key=value pairs separated by semicolons, as in "m=64; k=64; n=64"; a key with dots,
    as in system.sips.count=8, changes the machine.
    """  # noqa: D301 - \b keeps click from wrapping the list
    from kernbench.studies.fidelity import MOST_BYTES
    from kernbench.studies.fidelity import fidelity as compare

    found = compare(files, machine, most_bytes=most_bytes or MOST_BYTES, workers=workers)
    if as_json:
        echo_json({"compared": found.table.to_dict("records"), "refused": dict(found.refused)})
    else:
        click.echo(repr(found))


@click.command(short_help="Fit fields of a machine to measurements.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--free",
    multiple=True,
    required=True,
    metavar="FIELD[=LOW:HIGH]",
    help="Field to fit, e.g. system.sip_link.bw_gbs or system.host.launch_ns=100:20000. May be repeated.",
)
@click.option(
    "--split",
    default="family",
    metavar="NAME",
    help="Rows held out: family (half of the families), size (the larger half of each) or random. Default: family.",
)
@click.option("--seed", type=int, default=0, help="Of the split. Default: 0.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the calibrated machine file here.")
@click.option("--workers", type=click.IntRange(1), default=1, help="Processes that simulate. Default: 1.")
@machine_options
@json_option
def calibrate(
    files: tuple[Path, ...],
    free: tuple[str, ...],
    split: str,
    seed: int,
    out: Path | None,
    workers: int,
    machine: Machine,
    as_json: bool,
) -> None:
    """Fit fields of a machine to FILEs (as for `kernbench fidelity`), and state the error on rows held out.

    The simulator is the model: there is no factor for a shape. A field that the measurements do not determine stays as
    it is, and the result says so.
    """
    from kernbench.studies.calibration import calibrate as fitted

    if out is not None and out.exists():
        raise click.BadParameter(f"{out} is there already; give another name", param_hint="--out")
    found = fitted(machine, files, dict(map(_bounds, free)), split=split, seed=seed, workers=workers)
    if as_json:
        echo_json(found.to_dict())
    else:
        click.echo(repr(found))
    if out is not None:
        found.save(out)


def _bounds(text: str) -> tuple[str, tuple[float, float] | None]:
    name, equals, ends = text.partition("=")
    try:
        low, high = map(float, ends.split(":")) if equals else (0.0, 0.0)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} must be FIELD or FIELD=LOW:HIGH", param_hint="--free") from error
    return name.strip(), (low, high) if equals else None


@click.command(short_help="Run a study over a design space, from a plan file.")
@click.argument("plan_file", metavar="PLAN.yaml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where points and table are written. Default: a folder named as the plan, where you are.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes that simulate. Default: one per core.")
@click.option("--scheduler", metavar="ADDRESS", help="Run on a Dask cluster instead, e.g. tcp://host:8786.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="End a point that takes longer, and say so.")
@click.option("--memory-limit", type=int, metavar="MIB", help="End a point that needs more memory, and say so.")
@limit_option
@click.option("--no-cache", is_flag=True, help="Neither use nor keep rows in the shared cache.")
@click.option("--dry-run", is_flag=True, help="Say what would be run, and which points cannot be; run nothing.")
@json_option
def sweep(
    plan_file: Path,
    out: Path | None,
    workers: int | None,
    scheduler: str | None,
    time_limit: float | None,
    memory_limit: int | None,
    limits: Limits,
    no_cache: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Run the points of PLAN.yaml and write their table.

    Finished points are written at once: the same command continues where it was. Exit status 1 if a point failed, 2 if
    none can be.

    \b
    machine: preset:small
    study: gemm                          # a name of `kernbench list studies`, or module:function, as my_study:run
    axes:
      cube.ucie.bw_gbs: [64, 128, 256]   # a field of the machine
      k: {low: 64, high: 4096, log: true, step: 64}   # a parameter of the study, as a range (with samples)
    samples: 20                          # a Latin hypercube; without it, every combination
    where: area_mm2 < 2000 and pes <= 64
    """  # noqa: D301 - \b keeps click from wrapping the example
    from kernbench.errors import ConfigError, InterruptedRun
    from kernbench.sweeps._plan import read_plan
    from kernbench.sweeps._sweep import CSV, run_plan
    from kernbench.sweeps._worker import PointLimits

    sys.path.insert(0, str(plan_file.parent.resolve()))  # a study may be next to its plan
    read = read_plan(plan_file)
    if not read.plan.points:
        head = f"{plan_file}: none of its {len(read.plan.invalid)} points can be, so nothing is run:"
        raise ConfigError([head, *read.plan.reasons(20)])
    if not as_json:
        echo(repr(read.plan))
    if dry_run:
        kept = _kept(read.plan, no_cache)
        if as_json:
            invalid = [{**point.shown, "reason": point.reason} for point in read.plan.invalid]
            echo_json({"points": len(read.plan.points), "cached": kept, "invalid": invalid})
        elif kept is not None:
            click.echo(f"{kept} of them are in the cache")
        return 0
    out = out or Path(plan_file.stem)
    own = read.limits
    held = PointLimits(time_limit or own.seconds, memory_limit or own.mib, limits or own.session)
    try:
        done = run_plan(read.plan, folder=out, workers=workers, scheduler=scheduler, limits=held, cache=not no_cache)
    except KeyboardInterrupt as error:
        raise InterruptedRun(
            f"interrupted; finished points are kept in {out}; the same command continues from there"
        ) from error
    done.save(out)
    if as_json:
        rows, invalid = (json.loads(table.to_json(orient="records")) for table in (done.table, done.invalid))
        echo_json({"table": str(out / CSV), **done.about, "axes": done.axes, "rows": rows, "invalid": invalid})
    else:
        echo(repr(done))
        click.echo(f"wrote {out / CSV}")
    return int(len(done.ok) < len(done))


def _kept(plan: Plan, no_cache: bool) -> int | None:
    from kernbench.points._cache import default_cache

    cache = None if no_cache else default_cache()
    return None if cache is None else len(cache.get(plan.keys))


@click.command(short_help="Show and prune the finished points that all studies share.")
@click.option("--prune", is_flag=True, help="Take away points of other versions of the code than this one.")
@click.option("--all", "everything", is_flag=True, help="With --prune: take all points away.")
@click.option("--older-than", type=float, metavar="DAYS", help="With --prune: only points made before that.")
@click.option("--study", metavar="NAME", help="With --prune: only points of this study, as the table names it.")
@json_option
def cache(prune: bool, everything: bool, older_than: float | None, study: str | None, as_json: bool) -> None:
    """Show what the cache holds, by study and version of the code.

    Milestones, sweeps and the explorer keep each finished point here, found again by its machine, study, parameters and
    the version of the code: kernbench itself, a study of your own with the modules of yours that it imports, and
    components of yours. Modules that a function of a notebook uses are not looked at: after a change in one, take its
    points away: --prune --all --study NAME.
    KERNBENCH_CACHE names another folder, or says "off".
    """
    from kernbench.points._cache import default_cache
    from kernbench.points._keys import code_version

    if not prune and (everything or older_than is not None or study):
        raise click.UsageError("--all, --older-than and --study go with --prune")
    found = default_cache()
    if found is None:
        echo_json([]) if as_json else click.echo("the cache is off (KERNBENCH_CACHE)")
        return
    if prune:
        studies = {"", *(g.study.partition(":")[0] for g in found.groups())}
        keep = None if everything else {code_version(name) for name in studies}
        gone = found.prune(keep=keep, older_than_days=older_than, study=study)
        click.echo(f"took {gone} points away", err=as_json)
    groups = found.groups()
    if as_json:
        echo_json(
            [
                {
                    "study": g.study, "version": g.version, "points": g.points, "bytes": g.nbytes,
                    "seconds": g.seconds, "made": g.made,
                }
                for g in groups
            ]
        )  # fmt: skip
        return
    click.echo(f"{found.path}: {sum(g.points for g in groups):,} points, code now {code_version()}")
    if not groups:
        return
    rows = []
    for g in groups:
        made = dt.datetime.fromtimestamp(g.made).astimezone().strftime("%Y-%m-%d %H:%M")
        rows.append((g.study, g.version, f"{g.points:,}", f"{g.nbytes / 1024:,.0f}", f"{g.seconds:,.1f}", made))
    echo_table(["study", "version", "points", "KiB", "s to make", "made"], rows, left=2)
