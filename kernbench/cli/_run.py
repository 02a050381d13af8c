"""`kernbench run`, `probe`, `gemm` and `ccl`: simulate on one machine, and print times and their reasons."""

from __future__ import annotations

import contextlib
import csv
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli._options import (
    Aliased,
    NewFile,
    echo,
    echo_json,
    echo_table,
    error_record,
    json_option,
    limit_option,
    machine_options,
)
from kernbench.errors import ConfigError

if TYPE_CHECKING:
    from kernbench.sim_engine._limits import Limits
    from kernbench.studies._stages import PartialAnswer
    from kernbench.studies.probe import ProbeCase
    from kernbench.studies.study import Study
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
    if file is not None:
        figure(curves).save(file)
    if as_json:
        echo_json([curve.to_dict() for curve in curves])


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
@click.option(
    "--level",
    type=click.Choice(["cube", "sips"]),
    default="cube",
    help="With --load: the network of a cube, or that between SIPs. Default: cube.",
)
@click.option(
    "--cycles", type=click.IntRange(200), default=10_000, help="With --load: time of each load. Default: 10000."
)
@click.option(
    "--out", "--figure", "file", cls=Aliased, type=NewFile(".svg", ".png"), help="With --load: write the figure."
)
@machine_options
@json_option
def probe(
    names: tuple[str, ...],
    listing: bool,
    loads: tuple[float, ...],
    patterns: str,
    packets: tuple[int, ...],
    level: str,
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
        _load_curves(machine, loads, tuple(patterns.split(",")), packets, level, cycles, file, as_json)
        return
    if file is not None:
        raise click.UsageError("--out needs --load")
    from kernbench.compat import PROBE_CASES
    from kernbench.studies.probe import MESSAGE_SIZES, TRANSFER_SIZES, ProbeStudy, select
    from kernbench.studies.probe_report import side_by_side
    from kernbench.studies.study import scalars

    names = tuple(PROBE_CASES.get(name, name) for name in names)
    chosen = select(machine, names)
    if listing:
        _list_cases(chosen, as_json)
        return
    sizes, messages = (TRANSFER_SIZES, MESSAGE_SIZES) if names else (OVERVIEW, OVERVIEW_MESSAGES)
    rows = ProbeStudy().run(machine, cases=list(names), sizes=sizes, messages=messages)
    if as_json:
        echo_json(rows if names else [scalars(row) for row in rows])
        return
    click.echo(repr(machine))
    transfers, pairs = [row for row in rows if "transfers" in row], side_by_side(rows)
    if transfers:
        _table(transfers)
    if pairs:
        _pair_table(pairs)
    if names:
        _details(chosen, transfers)


def _list_cases(chosen: Sequence[ProbeCase], as_json: bool) -> None:
    if as_json:
        echo_json({case.name: case.says for case in chosen})
        return
    echo_table(["", ""], [(case.name, case.says) for case in chosen], left=2)


def _table(rows: Sequence[dict[str, Any]]) -> None:
    from kernbench.analysis._transfer import TRANSFER_PARTS
    from kernbench.studies.study import size_name

    click.echo("")
    shown = []
    for row in rows:
        times = (f"{row[f'{name}_ns']:,.2f}" for name in ("last_end", "mean", *TRANSFER_PARTS))
        shown.append((row["case"], size_name(row["nbytes"]), row["transfers"], *times))
    echo_table(["times in ns", "size", "transfers", "last end", "mean", *TRANSFER_PARTS], shown)
    click.echo("mean and its parts are over the transfers of a case; the parts sum to it\n")


def _pair_table(pairs: Sequence[Mapping[str, Any]]) -> None:
    from kernbench.studies.probe_report import PAIR_KINDS
    from kernbench.studies.study import size_name

    click.echo("")
    shown = []
    for pair in pairs:
        times = (f"{pair[kind]:,.2f}" if kind in pair else "" for kind in PAIR_KINDS)
        shown.append((pair["route"], size_name(pair["nbytes"]), *times))
    echo_table(["PE to PE, ns", "size", *PAIR_KINDS], shown)
    click.echo("from PE 0 of cube 0, from the start of the command on\n")


def _details(chosen: Sequence[ProbeCase], rows: Sequence[dict[str, Any]]) -> None:
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

    click.echo(f"  {size_name(row['nbytes'])}, link by link [ns]:")
    names = ("first_arrival_ns", "first_end_ns", "last_end_ns")
    hops = [(hop["link"], hop["flits"], *(f"{hop[name]:,.2f}" for name in names)) for hop in row["hops"]]
    echo_table(["link", "flits", "first arrives", "first ends", "last ends"], hops, indent=2)


# Columns of a list's table in the terminal; its CSV file has all.
_SHOWN = (
    "name", "system", "nbytes", "m", "n", "k", "placement", "algorithm", "simulated_ns", "bound_ns", "utilization",
    "limited_by",
)  # fmt: skip
_list_file = click.Path(path_type=Path, dir_okay=False, exists=True)
_out_option = click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the table of a list is written, and its finished points. Default: a folder named as the list.",
)
_workers_option = click.option(
    "--workers", type=click.IntRange(1), help="Processes that simulate. Default: one per core."
)
_time_option = click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Stop after so long, and say what is not known then.",
)


def _names(_context: click.Context, _option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


@click.command(short_help="Find the fastest placement of a matrix product over a SIP.")
@click.argument("sizes", nargs=-1, type=int, metavar="[M N K]")
@click.option("--csv", "file", type=_list_file, help="Products of a list: m,n,k and optionally name,trans_a,trans_b.")
@click.option("--dtype", default="f16", show_default=True, help="Type of A, B and C: f16 or bf16.")
@click.option("--trans-a", is_flag=True, help="A is stored as [K, M].")
@click.option("--trans-b", is_flag=True, help="B is stored as [N, K].")
@click.option(
    "--placements",
    metavar="NAME,...",
    callback=_names,
    help="Simulate these: rows, columns, 2-D, 2-D turned, split-K, split-K in cubes, replicated. Default: those "
    "near the best estimate.",
)
@_time_option
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
    placements: tuple[str, ...] | None,
    limit_s: float | None,
    folder: Path | None,
    workers: int | None,
    machine: Machine,
    as_json: bool,
) -> int:
    """Rank the placements of C[M, N] = A[M, K] B[K, N] over all PEs of a SIP, and say why the fastest takes as long.

    Estimates by closed form are printed at once, then the simulated times of those near the best, then the critical
    path of the fastest. With --csv, a table of the fastest placement of each product, the smallest first; the same
    command continues where it was interrupted.
    """
    from kernbench.studies.best import gemm_stages
    from kernbench.studies.lists import ProductsStudy, read_shapes

    if (file is None) == (not sizes) or len(sizes) not in (0, 3):
        raise click.UsageError("give three sizes, M N K, or --csv FILE")
    if file is not None:
        if trans_a or trans_b:
            raise click.UsageError("--trans-a and --trans-b are columns of the list")
        if placements:
            raise click.UsageError("--placements is for one product: leave it out, or give M N K")
        products = {"shapes": read_shapes(file), "dtype": dtype}
        return _list(ProductsStudy(), machine, products, _folder(folder, file), workers, limit_s, as_json)
    if folder is not None:
        raise click.UsageError("--out is for a list: leave it out, or give --csv FILE")
    m, n, k = sizes
    asked: dict[str, Any] = {
        "machine": machine,
        "dtype": dtype,
        "trans_a": trans_a,
        "trans_b": trans_b,
        "placements": placements,
    }
    return _answered(partial(gemm_stages, m, n, k, **asked, workers=workers, limit_s=limit_s), limit_s, as_json)


@click.command(short_help="Find the fastest algorithm for a collective on a system of SIPs.")
@click.option("--bytes", "nbytes", metavar="SIZE", help="Tensor of each SIP, such as 65536 or 64KiB.")
@click.option(
    "--sips", metavar="N|WxH|WxHxD", help="SIPs, or their grid; a number takes the squarest. Default: the machine's."
)
@click.option("--network", metavar="NAME", help="Links between SIPs, such as torus_2d. Default: the machine's.")
@click.option("--collective", default="all_reduce", show_default=True, help="What to do.")
@click.option(
    "--algorithms",
    metavar="NAME,...",
    callback=_names,
    help="Simulate these entries of ccl.yaml. Default: the best three by the alpha-beta model.",
)
@click.option(
    "--csv", "file", type=_list_file, help="Cases of a list: bytes and optionally name,sips,network,collective."
)
@click.option("--no-changes", is_flag=True, help="Do not simulate each resource halved and doubled.")
@_time_option
@_out_option
@_workers_option
@machine_options
@json_option
def ccl(
    nbytes: str | None,
    sips: str | None,
    network: str | None,
    collective: str,
    algorithms: tuple[str, ...] | None,
    file: Path | None,
    no_changes: bool,
    limit_s: float | None,
    folder: Path | None,
    workers: int | None,
    machine: Machine,
    as_json: bool,
) -> int:
    """Say which algorithm is fastest for a collective, why it takes as long, and what to change in the machine first.

    Estimates by the alpha-beta model are printed at once, then the simulated times of the best, the critical path of
    the fastest, the same bytes on other PEs, and what each resource changes. The algorithms are those of the nearest
    ccl.yaml, upward from the current folder, else the packaged ones. Times are those of the device, without the launch
    by the host. With --csv, a table of the fastest algorithm of each case, the smallest first; the same command
    continues where it was interrupted.
    """
    from kernbench.studies.best import choose_stages
    from kernbench.studies.lists import CollectivesStudy, read_cases

    if (file is None) == (nbytes is None):
        raise click.UsageError("give --bytes SIZE or --csv FILE")
    if file is not None:
        if sips or network:
            raise click.UsageError("--sips and --network are columns of the list")
        if algorithms:
            raise click.UsageError("--algorithms is for one collective: leave it out, or give --bytes SIZE")
        cases = {"cases": read_cases(file)}
        return _list(CollectivesStudy(), machine, cases, _folder(folder, file), workers, limit_s, as_json)
    if folder is not None:
        raise click.UsageError("--out is for a list: leave it out, or give --csv FILE")
    assert nbytes is not None
    asked: dict[str, Any] = {
        "sips": sips,
        "network": network,
        "collective": collective,
        "machine": machine,
        "algorithms": algorithms,
    }
    options: dict[str, Any] = {"changes": not no_changes, "workers": workers, "limit_s": limit_s}
    return _answered(partial(choose_stages, nbytes, **asked, **options), limit_s, as_json)


def _folder(given: Path | None, file: Path) -> Path:
    folder = given or Path(file.stem)
    if folder.is_file():
        raise click.UsageError(f"{folder} is a file: give --out FOLDER")
    return folder


class _Status:
    """A status line on stderr, at a terminal only."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()

    def show(self, text: str = "") -> None:
        if self._shown:
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()


def _answered(stages: Callable[..., Iterator[PartialAnswer[Any]]], limit_s: float | None, as_json: bool) -> int:
    """Print each section of an answer once it is complete, and at the end what is known of the others."""
    status, printed, answer, interrupted = _Status(), set[str](), None, False
    try:
        for stage in stages(tick=lambda progress: status.show(f"simulating: {progress}")):
            answer = stage.answer
            if not as_json:
                status.show()
                _print_sections(answer, printed, set(answer.missing))
            if stage.progress is not None:
                status.show(f"simulating: {stage.progress}")
    except KeyboardInterrupt:
        interrupted = True
    status.show()
    if answer is None:
        raise KeyboardInterrupt
    if as_json:
        echo_json(answer.to_dict())
    else:
        _print_sections(answer, printed, set())
    if answer.missing:
        because = "interrupted" if interrupted else f"stopped after --limit {limit_s:g}"
        echo(f"{because}; not known: {', '.join(answer.missing.values())}", err=True)
    return int(interrupted)


def _print_sections(answer: Any, printed: set[str], later: set[str]) -> None:
    for name, text in answer.sections().items():
        if name not in printed and name not in later:
            echo(f"\n{text}" if printed else text)
            printed.add(name)
    sys.stdout.flush()


def _list(
    study: Study,
    machine: Machine,
    parameters: Mapping[str, Any],
    folder: Path,
    workers: int | None,
    limit_s: float | None,
    as_json: bool,
) -> int:
    """Run a study of a list, the smallest points first, and write each row of its table as it ends."""
    from kernbench.errors import InterruptedRun
    from kernbench.studies.study import Report, cell, is_numeric, scalars

    deadline, path = None if limit_s is None else time.monotonic() + limit_s, folder / f"{study.name}.csv"
    with contextlib.ExitStack() as stack:
        table: list[csv.DictWriter[str]] = []

        def keep(row: Mapping[str, Any]) -> None:
            if not table:  # the folder exists, and belongs to this run
                file = stack.enter_context(path.open("w", encoding="utf-8", newline="", buffering=1))
                table.append(csv.DictWriter(file, list(study.columns), extrasaction="ignore", lineterminator="\n"))
                table[0].writeheader()
            table[0].writerow(row)

        try:
            rows = study.run(
                machine,
                folder=folder,
                workers=workers or os.cpu_count() or 1,
                progress=not as_json,
                deadline=deadline,
                each=keep,
                **parameters,
            )
        except KeyboardInterrupt as error:
            raise InterruptedRun(
                f"interrupted; finished points are kept in {folder}; the same command continues from there"
            ) from error
        except OSError as error:
            if error.filename is None or not Path(str(error.filename)).is_relative_to(folder):
                raise
            raise click.UsageError(f"{folder} cannot be written ({error.strerror}): give --out FOLDER") from error
    if rows:
        report = Report(study, rows, machine, dict(parameters))
        report.write(folder)
    if as_json:
        echo_json([scalars(row) for row in rows])
    elif rows:
        echo(repr(report))
        # Text columns are left-aligned, numbers right-aligned.
        shown = report.table[[name for name in _SHOWN if name in report.table]]
        right = {str(name): is_numeric(column) for name, column in shown.items()}
        names = sorted(right, key=right.__getitem__)
        texts = [[cell(value) for value in row] for row in shown[names].itertuples(index=False)]
        echo_table(names, texts, left=len(right) - sum(right.values()))
        echo(f"wrote {path}")
    missing = len(parameters[next(iter(parameters))]) - len(rows)
    if missing:
        echo(f"stopped after --limit {limit_s:g}; {missing} not known; the same command continues from there", err=True)
    return 0
