"""`kernbench milestone`: run a milestone notebook and write its report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kernbench.cli.options import machine_options


@click.command(short_help="Run milestone notebooks and write their reports.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "every", is_flag=True, help="Run every milestone.")
@machine_options
@click.option("--workers", type=click.IntRange(1), help="Processes that simulate. Default: one per core.")
@click.option("--rerender", is_flag=True, help="Redraw figures from the results that are there; simulate nothing.")
@click.option(
    "--again", is_flag=True, help="Simulate every point again, also those that are kept; resumes what was interrupted."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the report. Default: milestones/output/NAME.",
)
@click.option(
    "--param",
    "parameters",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a parameter of the notebook; VALUE is YAML, e.g. --param 'shapes=[[64, 64, 64]]'. May be repeated.",
)
def milestone(
    names: tuple[str, ...],
    every: bool,
    topology: str | None,
    overrides: tuple[str, ...],
    workers: int | None,
    rerender: bool,
    again: bool,
    output: Path | None,
    parameters: tuple[str, ...],
) -> None:
    """Run milestones by NAME (see `kernbench list milestones`) and write JSON, CSV and figures.

    Each is a notebook, executed with the full parameters of milestones/NAME.yaml; finished points of an interrupted
    run are kept. A report that is there, made of the same code, machine and parameters, is left as it is.
    """
    from kernbench.studies import milestone as milestones

    if every == bool(names):
        raise click.UsageError(f"give NAMEs or --all; known: {', '.join(milestones.names())}")
    chosen = tuple(milestones.names()) if every else tuple(milestones.resolve(name) for name in names)
    if output and len(chosen) > 1:
        raise click.UsageError("--output is one folder: give one NAME with it")
    values = dict(_parameter(text) for text in parameters)
    for name in chosen:
        report = milestones.run(
            name,
            topology=topology,
            overrides=overrides,
            workers=workers,
            rerender=rerender,
            output=output,
            parameters=values,
            again=again,
        )
        found = "there already, made of the same code, machine and parameters (--again runs it):"
        click.echo(f"{name}: {found if report.found else 'wrote'} {report.folder}")


def _parameter(text: str) -> tuple[str, Any]:
    import yaml

    from kernbench.config.parse import parse_yaml, problem

    key, equals, value = text.partition("=")
    if not (equals and key):
        raise click.BadParameter(f"{text!r} must be KEY=VALUE", param_hint="--param")
    try:
        return key.strip(), parse_yaml(value)[0]
    except yaml.YAMLError as error:
        raise click.BadParameter(
            f"{text!r}: VALUE {problem(error, 'put it in quotes')}", param_hint="--param"
        ) from error
