"""`kernbench milestone`: reports from notebooks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kernbench.cli._options import echo_json, json_option, machine_option, set_option, workers_option


@click.command(short_help="Run milestone notebooks and write their reports.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--all", "every", is_flag=True, help="Run every milestone.")
@machine_option
@set_option
@workers_option
@click.option("--rerender", is_flag=True, help="Redraw figures from the results that are there; simulate nothing.")
@click.option(
    "--again", is_flag=True, help="Simulate every point again, also those that are kept; resumes what was interrupted."
)
@click.option(
    "--store",
    is_flag=True,
    help="Store the rows that took over 1 s in milestones/kept; simulate what is not in the cache.",
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
    from kernbench.studies._findings import saved_findings
    from kernbench.studies.study import Study
    from kernbench.sweeps._runner import worker_count

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
    longest = chosen[1:][-1:] if workers is None and worker_count(None) > 1 else ()
    last: contextlib.AbstractContextManager[list[Any]] = contextlib.nullcontext([])
    if longest:
        last = _in_parallel(*longest, *options)
    with last as others:
        for name in chosen[: len(chosen) - len(longest)]:
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
def _in_parallel(*arguments: str) -> Iterator[list[Any]]:
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
