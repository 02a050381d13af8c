"""`kernbench compare`: what changed from one saved run to another."""

from __future__ import annotations

import click

from kernbench.cli.options import echo_json, json_option


@click.command(short_help="Compare two saved runs: what changed in the machine and in time.")
@click.argument("before", type=click.Path(exists=True, dir_okay=False))
@click.argument("after", type=click.Path(exists=True, dir_okay=False))
@json_option
def compare(before: str, after: str, as_json: bool) -> int:
    """Compare two files that `kernbench run --save FILE` or `result.save(FILE)` wrote.

    Prints the values of the machine file that differ, then latency, launches and stages of both.
    """
    from kernbench.analysis import compare as analysis

    found = analysis.compare(before, after)
    if as_json:
        echo_json(found.to_dict())
    else:
        click.echo(repr(found))
    return 0
