"""`kernbench sweep` and `cache`: studies over a design space, and what is kept of them."""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernbench.cli._options import echo, echo_json, echo_table, json_option, limit_option, workers_option

if TYPE_CHECKING:
    from kernbench.sim_engine._limits import Limits
    from kernbench.sweeps._plan import Plan


@click.command("sweep", short_help="Run a study over a design space, from a plan file.")
@click.argument("plan_file", metavar="PLAN.yaml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where points and table are written. Default: a folder named as the plan, where you are.",
)
@workers_option
@click.option("--scheduler", metavar="ADDRESS", help="Run on a Dask cluster instead, e.g. tcp://host:8786.")
@click.option("--time-limit", type=float, metavar="SECONDS", help="End a point that takes longer, and say so.")
@click.option("--memory-limit", type=int, metavar="MIB", help="End a point that needs more memory, and say so.")
@limit_option
@click.option("--no-cache", is_flag=True, help="Neither use nor keep rows in the shared cache.")
@click.option("--dry-run", is_flag=True, help="Say what would be run, and which points cannot be; run nothing.")
@json_option
def sweep_command(
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
