"""`kernbench sweep`: the points of a plan, on all cores or on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernbench.cli.options import limit_option, read_limits

if TYPE_CHECKING:
    from kernbench.sweeps.plan import Plan


@click.command(short_help="Run a study over a design space, from a plan file.")
@click.argument("plan_file", metavar="PLAN.yaml", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--folder",
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
def sweep(
    plan_file: Path,
    folder: Path | None,
    workers: int | None,
    scheduler: str | None,
    time_limit: float | None,
    memory_limit: int | None,
    session_limits: tuple[str, ...],
    no_cache: bool,
    dry_run: bool,
) -> int:
    """Run the points of PLAN.yaml and write their table.

    Finished points are written at once: the same command goes on where it was. Exit status 1 if a point failed, 2 if
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
    from kernbench.sweeps.outcome import PointLimits
    from kernbench.sweeps.plan_file import read_plan
    from kernbench.sweeps.sweep import run_plan

    sys.path.insert(0, str(plan_file.parent.resolve()))  # a study may stand beside its plan
    read = read_plan(plan_file)
    if not read.plan.points:
        head = f"{plan_file}: none of its {len(read.plan.invalid)} points can be, so nothing is run:"
        raise ConfigError([head, *read.plan.reasons(20)])
    click.echo(repr(read.plan))
    if dry_run:
        _kept(read.plan, no_cache)
        return 0
    out = folder or Path(plan_file.stem)
    own = read.limits
    limits = PointLimits(time_limit or own.seconds, memory_limit or own.mib, read_limits(session_limits) or own.session)
    try:
        done = run_plan(read.plan, folder=out, workers=workers, scheduler=scheduler, limits=limits, cache=not no_cache)
    except KeyboardInterrupt as error:
        raise InterruptedRun(
            f"interrupted; finished points are kept in {out}; the same command goes on from there"
        ) from error
    done.save(out)
    click.echo(repr(done))
    click.echo(f"wrote {out / 'table.csv'}")
    return int(len(done.ok) < len(done))


def _kept(plan: Plan, no_cache: bool) -> None:
    from kernbench.sweeps.cache import default_cache

    cache = None if no_cache else default_cache()
    if cache is not None and plan.points:
        click.echo(f"{len(cache.get(plan.keys))} of them are in the cache")
