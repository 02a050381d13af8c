"""`kernbench run`: one bench on one machine."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from kernbench.cli.options import (
    NewFile,
    echo_json,
    json_option,
    limit_option,
    load_machine,
    machine_options,
    read_limits,
)


@click.command(short_help="Run a bench on a machine; print latency and where the time went.")
@click.option(
    "--bench", required=True, metavar="NAME", help="What to run: a name or number of `kernbench list`, or pkg.mod:run."
)
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
@click.option(
    "--algorithm", metavar="NAME", help="For benches of collectives: an entry of ccl.yaml, or pkg.mod:algorithm."
)
@limit_option
@click.option("--why", "as_why", is_flag=True, help="Print the critical path as well: which resource the time went to.")
@click.option("--save", metavar="FILE", type=NewFile(), help="Keep the result, for kernbench compare.")
@click.option(
    "--trace",
    metavar="FILE",
    type=NewFile(),
    help="Write the run as Chrome trace events (JSON), for ui.perfetto.dev.",
)
@json_option
def run(
    bench: str,
    topology: str | None,
    overrides: tuple[str, ...],
    device: str,
    verify_data: bool,
    log: str,
    algorithm: str | None,
    session_limits: tuple[str, ...],
    as_why: bool,
    save: Path | None,
    trace: Path | None,
    as_json: bool,
) -> int:
    """Run a bench and print what it comes to: latency, where the time went, what was busiest.

    Exit status 1 if the bench fails, checks a number that is wrong, or asks nothing of the machine.
    """
    from kernbench.benches.env import env_set
    from kernbench.benches.registry import benches, resolve
    from kernbench.runtime_api.bench_runner import run_bench
    from kernbench.runtime_api.types import resolve_device

    machine = load_machine(topology, overrides)
    try:
        selector = resolve_device(device, machine.config.n_sips)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--device") from error
    chosen = resolve(bench)
    if algorithm is not None and not chosen.takes_algorithm:
        others = ", ".join(each.name for each in benches() if each.takes_algorithm)
        raise click.BadParameter(
            f"bench {chosen.name!r} takes none; leave it out, or run {others} (a bench of your own that reads "
            "CCL_ALGORITHM says so: @bench(..., takes_algorithm=True))",
            param_hint="--algorithm",
        )
    limits = read_limits(session_limits)
    # What a bench prints is for people: with --json, stdout holds the JSON and nothing else.
    aside = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with aside, env_set("CCL_ALGORITHM", algorithm):
        outcome = run_bench(
            topology=machine, bench_fn=chosen, device=selector, data=verify_data, log=log, limits=limits
        )
    if save:
        outcome.result.save(save)
    if trace:
        outcome.result.trace(trace)
    if as_json:
        echo_json(
            {
                "bench": outcome.name,
                "completion": outcome.completion,
                "correctness": outcome.correctness,
                "error": str(outcome.error) if outcome.error else None,
                "result": outcome.result.to_dict(),
                **({"why": outcome.result.why().to_dict()} if as_why else {}),
            }
        )
    else:
        if len(outcome.result.records):
            click.echo(repr(outcome.result))
        if as_why:
            click.echo(f"\n{outcome.result.why()!r}")
        click.echo(f"\n{outcome.name}: {outcome.completion}, numbers {outcome.correctness}")
    if outcome.error:
        for line in str(outcome.error).splitlines():
            click.echo(f"error: {line}", err=True)
    return 0 if outcome.ok else 1
