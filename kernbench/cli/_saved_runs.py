"""`kernbench compare`, `report` and `why`: what saved runs say."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.cli._options import NewFile, echo, echo_json, json_option


@click.command("compare", short_help="Compare two saved runs: what changed in the machine and in time.")
@click.argument("before", type=click.Path(exists=True, dir_okay=False))
@click.argument("after", type=click.Path(exists=True, dir_okay=False))
@json_option
def compare_command(before: str, after: str, as_json: bool) -> None:
    """Compare two files that `kernbench run --out FILE` or `result.save(FILE)` wrote.

    Prints the values of the machine file that differ, then latency, launches and stages of both.
    """
    from kernbench.analysis import compare as analysis

    found = analysis.compare(before, after)
    if as_json:
        echo_json(found.to_dict())
    else:
        echo(repr(found))


@click.command("report", short_help="Compare saved runs of one workload: times, reasons, and what differs.")
@click.argument("files", nargs=-1, required=True, metavar="FILE FILE...", type=click.Path(exists=True, dir_okay=False))
@click.option("--baseline", metavar="FILE", help="The run that others are compared with. Default: the first.")
@click.option("--out", type=NewFile(".html"), help="Also write the report here, as a page that works from disk.")
@json_option
def report_command(files: tuple[str, ...], baseline: str | None, out: Path | None, as_json: bool) -> None:
    """Compare two or more FILEs of one workload, which `kernbench run --out FILE` or `result.save(FILE)` wrote.

    Prints times, speedups, what is longest on each critical path, and the values that differ. The page also has
    critical paths, stages, machines and versions.
    """
    from kernbench.viz import report as viz

    found = viz.report(files, baseline)
    if out is not None:
        found.save(out)
    if as_json:
        echo_json(found.to_dict())
    else:
        echo(repr(found))
        if out is not None:
            echo(f"wrote {out}")


@click.command("why", short_help="Explain a saved run: where its time went, and what to change.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--launch", metavar="NAME", help="One launch as the run lists it, such as 'gemm #2'. Default: all.")
@json_option
def why_command(file: str, launch: str | None, as_json: bool) -> None:
    """Explain a file that `kernbench run --out FILE` or `result.save(FILE)` wrote."""
    from kernbench.analysis.result import Result

    found = Result.load(file).why(launch)
    if as_json:
        echo_json(found.to_dict())
    else:
        echo(repr(found))
