"""`kb.sweep`: from a machine, a study and axes to a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.errors import HostError, MissingModuleError
from kernbench.sim_engine.limits import Limits
from kernbench.sweeps.cache import Cache, default_cache
from kernbench.sweeps.checks import folder_of, whole
from kernbench.sweeps.engines import check_limits
from kernbench.sweeps.keys import Study
from kernbench.sweeps.outcome import OK, Outcome, PointLimits
from kernbench.sweeps.plan import Constraint, Plan, make_plan
from kernbench.sweeps.progress import Progress, Watch
from kernbench.sweeps.runner import run
from kernbench.sweeps.table import Sweep
from kernbench.topology.builder import Machine

if TYPE_CHECKING:
    from distributed import Client


def sweep(
    machine: Machine | str | Mapping[str, Any] | None = None,
    study: Study | str = "gemm",
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
        For each name a list of values, a mapping of labels to settings, or a `Span`. A name with a dot is a field of
        the machine, another a parameter of the study.
    parameters : mapping
        Parameters and fields that every point has.
    points : sequence of mapping
        An explicit list of settings, besides the axes' points, or instead of them.
    where : str, callable or sequence of them
        What every point must satisfy, as `pes <= 256 and area_mm2 < 900`.
    samples, seed : int
        A Latin hypercube of so many points in place of every combination.
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
    folder = folder_of(folder)
    plan = make_plan(
        machine,
        study,
        {} if axes is None else axes,
        parameters=parameters,
        points=points,
        where=where,
        samples=samples,
        seed=seed,
    )
    done = run_plan(
        plan,
        folder=folder,
        workers=workers,
        scheduler=scheduler,
        limits=PointLimits(time_limit_s, memory_limit_mib, Limits.of(limits)),
        cache=cache,
        progress=progress,
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
    """Run the points of a plan and return their table; several plans may share a folder of points.

    Parameters
    ----------
    plan : Plan
    folder : Path or None
        Where finished points are written at once, and found again.
    workers, scheduler
        As for `sweep`.
    limits : PointLimits or None
        Of each point.
    cache, progress
        As for `sweep`.

    Raises
    ------
    ConfigError
        If one of these is wrong; nothing has been run then.
    """
    folder = folder_of(folder)
    check_limits(limits or PointLimits())
    if workers is not None:
        whole("workers", workers, 1)
    shared = cache if isinstance(cache, Cache) else default_cache() if cache else None
    client, close = _client(scheduler)
    job = plan.job()
    watch = Watch(len(job.points), progress)
    outcomes: dict[str, Outcome] = {}
    cores = workers or os.cpu_count() or 1
    try:
        for key, outcome, found in run(job, folder=folder, cache=shared, workers=cores, client=client, limits=limits):
            outcomes[key] = outcome
            watch.point(ok=outcome.status == OK, found=found)
    finally:
        watch.close()
        if close and client is not None:
            client.close()
    return Sweep.of(plan, outcomes)


def _client(scheduler: str | Client | None) -> tuple[Client | None, bool]:
    """Return a client of the cluster, and whether it is ours to close."""
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
