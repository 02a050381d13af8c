"""`kernbench run`: a bench on a machine."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernbench.cli._options import NewFile, echo, echo_json, error_record, json_option, limit_option, machine_options
from kernbench.errors import ConfigError

if TYPE_CHECKING:
    from kernbench.sim_engine._limits import Limits
    from kernbench.topology.builder import Machine
_RESULT, _PICTURE, _TRACE = ".npz", ".html", ".json"


def _by_ending(_context: click.Context, _option: click.Parameter, paths: Sequence[Path]) -> Sequence[Path]:
    for path in paths:
        if path.suffix not in (_RESULT, _PICTURE, _TRACE):
            raise click.BadParameter(f"{path} must end in .npz (the result), .html (the picture) or .json (a trace)")
    return paths


class _BenchCommand(click.Command):
    """`kernbench run`: its own options, and one for each parameter of the bench."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        name = args[0] if args and not args[0].startswith("-") else None
        for option, value in pairwise([*args, ""]):
            if name is None and (option == "--bench" or option.startswith("--bench=")):
                name = option.partition("=")[2] or value or None
        ctx.meta[_OF_BENCH] = [] if name is None else _bench_options(name, super().get_params(ctx))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if options := ctx.meta.pop(_OF_BENCH, []):
            with formatter.section("Options of this bench"):
                formatter.write_dl([record for each in options if (record := each.get_help_record(ctx))])
        super().format_options(ctx, formatter)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *ctx.meta.get(_OF_BENCH, [])]


_OF_BENCH = "kernbench.bench_options"


def _bench_options(name: str, others: Sequence[click.Parameter]) -> list[click.Parameter]:
    from kernbench.benches.registry import resolve
    from kernbench.topology.builder import resolve_topology

    taken, shown = {flag for each in others for flag in each.opts}, resolve_topology("preset:default")
    found: list[click.Parameter] = []
    for each in resolve(name).parameters:
        flag = f"--{each.name.replace('_', '-')}"
        if flag in taken:
            raise ConfigError(f"bench {name}: {each.name}: `kernbench run` has an option {flag}; rename the parameter")
        default = "" if each.default is None else f" Default: {each.default}."
        text = f"{each.description[:1].upper()}{each.description[1:]}." if each.description else ""
        choices = "|".join(each.options(shown)) if each.choices else each.kind.__name__.upper()
        found.append(click.Option([flag, each.name], metavar=choices, help=f"{text}{default}".strip()))
    return found


@click.command(cls=_BenchCommand, short_help="Run a bench on a machine; print latency and where the time went.")
@click.argument("name", required=False, metavar="NAME")
@click.option("--bench", metavar="NAME", help="As NAME.")
@machine_options
@click.option("--device", default="all", metavar="all|sip:N", help="Device that is current at first. Default: all.")
@click.option("--verify-data", is_flag=True, help="Compute values, too, and let the bench check them against numpy.")
@click.option(
    "--log",
    type=click.Choice(["off", "operation", "tile"]),
    default="tile",
    show_default=True,
    help="What to record: nothing, operations, or every stage of every tile (tells where a composite spends its time).",
)
@limit_option
@click.option("--why", "as_why", is_flag=True, help="Print the critical path as well: which resource the time went to.")
@click.option(
    "--out",
    "outs",
    metavar="FILE",
    type=NewFile(),
    multiple=True,
    callback=_by_ending,
    help="Write the run, by the file's ending: .npz the result, for `kernbench why` and `compare`, kb.read and the "
    "explorer; .html the picture, as a page that works from disk; .json a trace for ui.perfetto.dev. May be repeated.",
)
@click.option("--save", type=NewFile(), hidden=True, help="As --out, whatever the ending: the result.")
@click.option("--html", type=NewFile(), hidden=True, help="As --out, whatever the ending: the picture.")
@click.option("--trace", type=NewFile(), hidden=True, help="As --out, whatever the ending: the trace.")
@json_option
def run(
    name: str | None,
    bench: str | None,
    machine: Machine,
    device: str,
    verify_data: bool,
    log: str,
    limits: Limits,
    as_why: bool,
    outs: Sequence[Path],
    save: Path | None,
    html: Path | None,
    trace: Path | None,
    as_json: bool,
    **options: str | None,
) -> int:
    """Run a bench and print its latency, where the time went, and what was busiest.

    NAME is a name or number of `kernbench list benches`, or pkg.mod:run. A bench has further options:
    `kernbench run NAME --help` lists them.

    Exit status 1 if the bench fails, checks a number that is wrong, or asks nothing of the machine.
    """
    from kernbench.benches import registry
    from kernbench.config._files import write_text
    from kernbench.runtime_api.types import resolve_device

    try:
        selector = resolve_device(device, machine.config.n_sips)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--device") from error
    if (chosen := name or bench) is None:
        raise click.BadParameter("name a bench, as in `kernbench run matmul`, from `kernbench list`", param_hint="NAME")
    asked = {key: value for key, value in options.items() if value is not None}
    # With --json, stdout holds only the JSON, not the output of the bench.
    aside = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with aside:
        outcome = registry.run(chosen, machine, data=verify_data, log=log, device=selector, limits=limits, **asked)
    files = [(_RESULT, save), (_PICTURE, html), (_TRACE, trace), *((out.suffix, out) for out in outs)]
    for what, path in files:
        if path is None:
            continue
        if what == _RESULT:
            outcome.result.save(path)
        elif what == _PICTURE:
            from kernbench.viz._picture import picture_html
            from kernbench.viz._scene import scene_of

            write_text(
                path, picture_html(scene_of(machine, outcome.result, offline=True), str(outcome.result.manifest))
            )
        else:
            outcome.result.trace(path)
    if as_json:
        echo_json(
            {
                "bench": outcome.name,
                "completion": outcome.completion,
                "correctness": outcome.correctness,
                "error": error_record(outcome.error) if outcome.error else None,
                "result": outcome.result.to_dict(),
                **({"why": outcome.result.why().to_dict()} if as_why else {}),
            }
        )
    else:
        if len(outcome.result.records):
            echo(repr(outcome.result))
        if as_why:
            echo(f"\n{outcome.result.why()!r}")
        echo(f"\n{outcome.name}: {outcome.completion}, numbers {outcome.correctness}")
    if outcome.error and not as_json:
        for line in str(outcome.error).splitlines():
            echo(f"error: {line}", err=True)
    return 0 if outcome.ok else 1
