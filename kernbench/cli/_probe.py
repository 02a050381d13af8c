"""`kernbench probe`: transfers over links and memories, alone and many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli._options import Aliased, NewFile, echo_json, echo_table, json_option, machine_options

if TYPE_CHECKING:
    from kernbench.studies.probe import ProbeCase
    from kernbench.topology.builder import Machine
OVERVIEW, OVERVIEW_MESSAGES = [4096], [128, 4096, 10240]


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
