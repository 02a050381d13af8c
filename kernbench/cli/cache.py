"""`kernbench cache`: the finished points that all studies share."""

from __future__ import annotations

import datetime as dt

import click

from kernbench.cli.options import echo_json, json_option


@click.command(short_help="Show and prune the finished points that all studies share.")
@click.option("--prune", is_flag=True, help="Take away points of other versions of the code than this one.")
@click.option("--all", "everything", is_flag=True, help="With --prune: take all points away.")
@click.option("--older-than", type=float, metavar="DAYS", help="With --prune: only points made before that.")
@click.option("--study", metavar="NAME", help="With --prune: only points of this study, as the table names it.")
@json_option
def cache(prune: bool, everything: bool, older_than: float | None, study: str | None, as_json: bool) -> None:
    """Show what the cache holds, by study and version of the code.

    Milestones, sweeps and the explorer keep each finished point here, found again by its machine, study, parameters and
    the version of the code: kernbench itself and, for a study of your own, the file that it stands in. Modules that
    such a study imports are not looked at: after a change in one, take its points away: --prune --all --study NAME.
    KERNBENCH_CACHE names another folder, or says "off".
    """
    from kernbench.sweeps.cache import default_cache
    from kernbench.sweeps.keys import code_version

    if not prune and (everything or older_than is not None or study):
        raise click.UsageError("--all, --older-than and --study go with --prune")
    found = default_cache()
    if found is None:
        click.echo("the cache is off (KERNBENCH_CACHE)")
        return
    if prune:
        studies = {"", *(g.study.partition(":")[0] for g in found.groups())}
        keep = None if everything else {code_version(name) for name in studies}
        gone = found.prune(keep=keep, older_than_days=older_than, study=study)
        click.echo(f"took {gone} points away")
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
    for g in groups:
        made = dt.datetime.fromtimestamp(g.made).astimezone().strftime("%Y-%m-%d %H:%M")
        click.echo(
            f"  {g.study:<40} {g.version:<26} {g.points:>7,} points {g.nbytes / 1024:>9,.0f} KiB "
            f"{g.seconds:>9,.1f} s to make  {made}"
        )
