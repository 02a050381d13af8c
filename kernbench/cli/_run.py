"""`kernbench run`, `probe`, `gemm` and `ccl`: simulate on one machine, and print what it takes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli._options import (
    NewFile,
    echo,
    echo_json,
    json_option,
    limit_option,
    load_machine,
    machine_options,
    set_option,
)

if TYPE_CHECKING:
    from kernbench.sim_engine._limits import Limits
    from kernbench.studies.probe import Case
    from kernbench.studies.study import Study
    from kernbench.topology.builder import Machine


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
@click.option("--save", metavar="FILE", type=NewFile(), help="Write the result, for compare, kb.read or the explorer.")
@click.option("--html", metavar="FILE", type=NewFile(), help="Write the picture as a page that works from disk.")
@click.option(
    "--trace", metavar="FILE", type=NewFile(), help="Write the run as Chrome trace events (JSON), for ui.perfetto.dev."
)
@json_option
def run(
    bench: str,
    machine: Machine,
    device: str,
    verify_data: bool,
    log: str,
    algorithm: str | None,
    limits: Limits,
    as_why: bool,
    save: Path | None,
    html: Path | None,
    trace: Path | None,
    as_json: bool,
) -> int:
    """Run a bench and print its latency, where the time went, and what was busiest.

    Exit status 1 if the bench fails, checks a number that is wrong, or asks nothing of the machine.
    """
    from kernbench.benches.registry import benches, env_set, env_settings, resolve
    from kernbench.config._files import write_text
    from kernbench.runtime_api.bench_runner import run_bench
    from kernbench.runtime_api.types import resolve_device

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
    # What a bench prints is for people: with --json, stdout holds the JSON and nothing else.
    aside = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with aside, env_set("CCL_ALGORITHM", algorithm):
        outcome = run_bench(
            topology=machine, bench_fn=chosen, device=selector, data=verify_data, log=log, limits=limits
        )
    settings = {**env_settings(), **({"CCL_ALGORITHM": algorithm} if algorithm else {})}
    manifest = replace(outcome.result.manifest, parameters=settings)
    if save:
        replace(outcome.result, manifest=manifest).save(save)
    if html:
        from kernbench.viz._picture import picture_html
        from kernbench.viz._scene import scene_of

        write_text(html, picture_html(scene_of(machine, outcome.result, offline=True), str(manifest)))
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
            echo(repr(outcome.result))
        if as_why:
            echo(f"\n{outcome.result.why()!r}")
        echo(f"\n{outcome.name}: {outcome.completion}, numbers {outcome.correctness}")
    if outcome.error:
        for line in str(outcome.error).splitlines():
            echo(f"error: {line}", err=True)
    return 0 if outcome.ok else 1


def _loads(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        first, last, step = [*map(float, text.split(":")), 0.05][:3] if ":" in text else (float(text), float(text), 1.0)
        if not (0 < first <= last <= 1 and step > 0):
            raise ValueError
    except ValueError:
        raise click.BadParameter(f"{text!r} must be FROM:TO or FROM:TO:STEP with 0 < FROM <= TO <= 1") from None
    return tuple(round(first + i * step, 6) for i in range(int((last - first) / step + 1e-9) + 1))


def _packets(_context: click.Context, _option: click.Parameter, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} must be numbers of flits, as in 1,8") from None


def _load_curves(
    machine: Machine,
    loads: tuple[float, ...],
    patterns: tuple[str, ...],
    packets: tuple[int, ...],
    network: str,
    cycles: int,
    file: Path | None,
    as_json: bool,
) -> None:
    from kernbench.studies.load_curve import figure, load_curve

    curves = []
    for pattern in patterns:
        for packet in packets:
            curve = load_curve(machine, pattern=pattern, packet=packet, loads=loads, network=network, cycles=cycles)
            curves.append(curve)
            if not as_json:
                click.echo(f"\n{curve!r}" if len(curves) > 1 else f"{machine!r}\n\n{curve!r}")
    if as_json:
        echo_json([curve.to_dict() for curve in curves])
    if file is not None:
        from kernbench.viz.figures import save

        save(figure(curves), file)


OVERVIEW, OVERVIEW_MESSAGES = [4096], [128, 4096, 10240]


@click.command(short_help="Probe links and memories with transfers, alone and many at once.")
@click.option("--case", "names", metavar="NAME", multiple=True, help="Only this case, at all sizes. May be repeated.")
@click.option("--list", "listing", is_flag=True, help="List the cases that the machine has the parts for.")
@click.option("--load", "loads", metavar="FROM:TO[:STEP]", callback=_loads, help="Latency against load, e.g. 0.05:0.9.")
@click.option(
    "--pattern",
    "patterns",
    metavar="NAME,...",
    default="uniform",
    help="With --load: uniform, transpose, tornado, hotspot.",
)
@click.option(
    "--packet",
    "packets",
    metavar="FLITS,...",
    default="1",
    callback=_packets,
    help="With --load: flits of a packet, e.g. 1,8.",
)
@click.option("--network", type=click.Choice(["cube", "sips"]), default="cube", help="With --load. Default: cube.")
@click.option(
    "--cycles", type=click.IntRange(200), default=10_000, help="With --load: time of each load. Default: 10000."
)
@click.option("--figure", "file", type=NewFile(), help="With --load: write the figure, PNG or SVG.")
@machine_options
@json_option
def probe(
    names: tuple[str, ...],
    listing: bool,
    loads: tuple[float, ...],
    patterns: str,
    packets: tuple[int, ...],
    network: str,
    cycles: int,
    file: Path | None,
    machine: Machine,
    as_json: bool,
) -> None:
    """Time transfers between parts of a machine, and say what each time is made of.

    Without --case, every case with 4 KiB a transfer, and messages, loads and stores from PE to PE; with it, all sizes
    up to 1 MiB (10 KiB from PE to PE), and for a single transfer when its first and its last flit crossed each link.
    The milestone "probe" draws the figures.

    With --load, synthetic traffic of each pattern and packet size instead: mean latency at each load, in flits per
    cycle and terminal, and the load at which the network saturates.
    """
    if loads:
        _load_curves(machine, loads, tuple(patterns.split(",")), packets, network, cycles, file, as_json)
        return
    if file is not None:
        raise click.UsageError("--figure needs --load")
    from kernbench.compat import PROBE_CASES
    from kernbench.studies.probe import MESSAGES, SIZES, ProbeStudy, select
    from kernbench.studies.probe_report import side_by_side
    from kernbench.studies.study import plain

    names = tuple(PROBE_CASES.get(name, name) for name in names)
    chosen = select(machine, names)
    if listing:
        _list_cases(chosen, as_json)
        return
    sizes, messages = (SIZES, MESSAGES) if names else (OVERVIEW, OVERVIEW_MESSAGES)
    rows = ProbeStudy().run(machine, cases=list(names), sizes=sizes, messages=messages)
    if as_json:
        echo_json(rows if names else [plain(row) for row in rows])
        return
    click.echo(repr(machine))
    transfers, pairs = [row for row in rows if "transfers" in row], side_by_side(rows)
    if transfers:
        _table(transfers)
    if pairs:
        _pair_table(pairs)
    if names:
        _details(chosen, transfers)


def _list_cases(chosen: Sequence[Case], as_json: bool) -> None:
    if as_json:
        echo_json({case.name: case.says for case in chosen})
        return
    width = max(len(case.name) for case in chosen)
    for case in chosen:
        click.echo(f"{case.name:<{width}}  {case.says}")


def _table(rows: Sequence[dict[str, Any]]) -> None:
    from kernbench.analysis._transfer import PARTS
    from kernbench.studies.study import size_name

    width = max(len(row["case"]) for row in rows)
    heads = "".join(f"{part:>14}" for part in PARTS)
    click.echo(f"\n{'times in ns':<{width}}     size  transfers   last end       mean{heads}")
    for row in rows:
        times = "".join(f"{row[f'{part}_ns']:>14,.2f}" for part in PARTS)
        head = f"{row['case']:<{width}} {size_name(row['nbytes']):>8} {row['transfers']:>10}"
        click.echo(f"{head} {row['last_end_ns']:>10,.2f} {row['mean_ns']:>10,.2f}{times}")
    click.echo("mean and its parts are over the transfers of a case; the parts sum to it\n")


def _pair_table(pairs: Sequence[Mapping[str, Any]]) -> None:
    from kernbench.studies.probe_report import PAIR_KINDS
    from kernbench.studies.study import size_name

    width = max(len("PE to PE, ns"), *(len(pair["route"]) for pair in pairs))
    click.echo(f"\n{'PE to PE, ns':<{width}}     size{''.join(f'{kind:>10}' for kind in PAIR_KINDS)}")
    for pair in pairs:
        times = "".join(f"{pair[kind]:>10,.2f}" if kind in pair else f"{'':>10}" for kind in PAIR_KINDS)
        click.echo(f"{pair['route']:<{width}} {size_name(pair['nbytes']):>8}{times}")
    click.echo("from PE 0 of cube 0, from the start of the command on\n")


def _details(chosen: Sequence[Case], rows: Sequence[dict[str, Any]]) -> None:
    from kernbench.studies.study import size_name

    for case in chosen:
        mine = [row for row in rows if row["case"] == case.name]
        click.echo(f"{case.name}: {case.says}")
        for row in mine:
            others = f" and {row['hottest_alike'] - 1} more" if row["hottest_alike"] > 1 else ""
            rate = f"{row['bandwidth_gbs']:,.1f} GB/s, {row['path_utilization']:.1%} of its path"
            fair = f"{row['fair_utilization']:.1%} of fair streams ({row['fair_gbs']:,.1f} GB/s)"
            hot = f"hottest {row['hottest_link']}{others}, busy {row['hottest_share']:.1%}"
            click.echo(f"  {size_name(row['nbytes']):>8}: {rate}, {fair}; {hot}")
        if mine and "hops" in mine[0]:
            _hops(mine[0])
        click.echo("")


def _hops(row: dict[str, Any]) -> None:
    from kernbench.studies.study import size_name

    width = max(len(hop["link"]) for hop in row["hops"])
    click.echo(f"  {size_name(row['nbytes'])}, link by link [ns]:")
    click.echo(f"  {'':<{width}}  flits  first arrives  first ends  last ends")
    for hop in row["hops"]:
        times = f"{hop['first_arrival_ns']:>13,.2f} {hop['first_end_ns']:>11,.2f} {hop['last_end_ns']:>10,.2f}"
        click.echo(f"  {hop['link']:<{width}} {hop['flits']:>6}  {times}")


# Columns of a list's table in the terminal; its CSV file has all.
_SHOWN = (
    "name", "system", "nbytes", "m", "n", "k", "placement", "algorithm", "simulated_ns", "bound_ns", "utilization",
    "limited_by",
)  # fmt: skip
_list_file = click.Path(path_type=Path, dir_okay=False)
_out_option = click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the table of a list is written, and its finished points. Default: a folder named as the list.",
)
_workers_option = click.option(
    "--workers", type=click.IntRange(1), help="Processes that simulate a list. Default: one per core."
)


@click.command(short_help="Find the fastest placement of a matrix product over a SIP.")
@click.argument("sizes", nargs=-1, type=int, metavar="[M N K]")
@click.option("--csv", "file", type=_list_file, help="Products of a list: name,m,n,k and optionally trans_a,trans_b.")
@click.option("--dtype", default="f16", show_default=True, help="Type of A, B and C: f16 or bf16.")
@click.option("--trans-a", is_flag=True, help="A is stored as [K, M].")
@click.option("--trans-b", is_flag=True, help="B is stored as [N, K].")
@_out_option
@_workers_option
@machine_options
@json_option
def gemm(
    sizes: tuple[int, ...],
    file: Path | None,
    dtype: str,
    trans_a: bool,
    trans_b: bool,
    folder: Path | None,
    workers: int | None,
    machine: Machine,
    as_json: bool,
) -> None:
    """Rank the placements of C[M, N] = A[M, K] B[K, N] over all PEs of a SIP, and say why the fastest takes as long.

    Placements are ranked by closed form, and those near the best are simulated. With --csv, a table of the fastest
    placement of each product; the same command continues where it was interrupted.
    """
    from kernbench.studies.best import ProductsStudy, read_shapes
    from kernbench.studies.best import gemm as best

    if (file is None) == (not sizes) or len(sizes) not in (0, 3):
        raise click.UsageError("give three sizes, M N K, or --csv FILE")
    if file is not None:
        if trans_a or trans_b:
            raise click.UsageError("--trans-a and --trans-b are columns of the list")
        products = {"shapes": read_shapes(file), "dtype": dtype}
        _list(ProductsStudy(), machine, products, _folder(folder, file), workers, as_json)
        return
    m, n, k = sizes
    chosen = best(m, n, k, machine=machine, dtype=dtype, trans_a=trans_a, trans_b=trans_b)
    _echo(chosen, as_json)


@click.command(short_help="Find the fastest algorithm for a collective on a system of SIPs.")
@click.option("--bytes", "nbytes", metavar="SIZE", help="Tensor of each SIP, such as 65536 or 64KiB.")
@click.option(
    "--sips", metavar="N|WxH", help="SIPs, or their grid; a number takes the squarest. Default: the machine's."
)
@click.option("--topology", metavar="NAME", help="Links between SIPs, such as torus_2d. Default: the machine's.")
@click.option("--collective", default="all_reduce", show_default=True, help="What to do.")
@click.option(
    "--csv", "file", type=_list_file, help="Cases of a list: name,bytes and optionally sips,topology,collective."
)
@click.option("--no-changes", is_flag=True, help="Do not simulate each resource halved and doubled.")
@_out_option
@_workers_option
@click.option("--machine", "source", metavar="FILE|preset:NAME", help="Machine to use. Default: as for other commands.")
@set_option
@json_option
def ccl(
    nbytes: str | None,
    sips: str | None,
    topology: str | None,
    collective: str,
    file: Path | None,
    no_changes: bool,
    folder: Path | None,
    workers: int | None,
    source: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say which algorithm is fastest for a collective, why it takes as long, and what to change in the machine first.

    The algorithms are those of the nearest ccl.yaml, upward from the current folder, else the packaged ones. Times are
    those of the device, without the launch by the host. With --csv, a table of the fastest algorithm of each
    case; the same command continues where it was interrupted.
    """
    from kernbench.studies.best import CollectivesStudy, choose, read_cases

    if (file is None) == (nbytes is None):
        raise click.UsageError("give --bytes SIZE or --csv FILE")
    machine = load_machine(source, overrides)
    if file is not None:
        if sips or topology:
            raise click.UsageError("--sips and --topology are columns of the list")
        _list(CollectivesStudy(), machine, {"cases": read_cases(file)}, _folder(folder, file), workers, as_json)
        return
    assert nbytes is not None
    chosen = choose(
        nbytes, sips=sips, topology=topology, collective=collective, machine=machine, changes=not no_changes
    )
    _echo(chosen, as_json)


def _folder(given: Path | None, file: Path) -> Path:
    """Return where the table of a list goes: a folder named as the list, here, unless one is given."""
    folder = given or Path(file.stem)
    if folder.is_file():
        raise click.UsageError(f"{folder} is a file: give --out FOLDER")
    return folder


def _echo(chosen: Any, as_json: bool) -> None:
    if as_json:
        echo_json(chosen.to_dict())
    else:
        click.echo(repr(chosen))


def _list(
    study: Study, machine: Machine, parameters: Mapping[str, Any], folder: Path, workers: int | None, as_json: bool
) -> None:
    """Run a study of a list and write its table into a folder."""
    from kernbench.errors import InterruptedRun
    from kernbench.studies.study import Report, plain

    try:
        rows = study.run(
            machine, folder=folder, workers=workers or os.cpu_count() or 1, progress=not as_json, **parameters
        )
    except KeyboardInterrupt as error:
        raise InterruptedRun(
            f"interrupted; finished points are kept in {folder}; the same command continues from there"
        ) from error
    report = Report(study, rows, machine, dict(parameters))
    page = report.write(folder)[0]
    if as_json:
        echo_json([plain(row) for row in rows])
        return
    click.echo(repr(report))
    shown = [name for name in _SHOWN if name in report.table]
    click.echo(report.table[shown].to_string(index=False, na_rep="-", float_format=lambda x: f"{x:,.4g}"))
    click.echo(f"wrote {page.parent / f'{study.name}.csv'}")
