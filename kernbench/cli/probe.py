"""`kernbench probe`: transfers over the machine's ways, against the closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli.options import echo_json, json_option, load_machine, machine_options

if TYPE_CHECKING:
    from kernbench.studies.probe import Case

OVERVIEW, OVERVIEW_MESSAGES = [4096], [128, 4096, 10240]


@click.command(short_help="Probe links and memories with transfers, alone and many at once.")
@click.option("--case", "names", metavar="NAME", multiple=True, help="Only this case, at all sizes. May be repeated.")
@click.option("--list", "listing", is_flag=True, help="List the cases that the machine has the parts for.")
@machine_options
@json_option
def probe(
    names: tuple[str, ...], listing: bool, topology: str | None, overrides: tuple[str, ...], as_json: bool
) -> None:
    """Time transfers between parts of a machine, and say what each time is made of.

    Without --case, every case with 4 KiB a transfer, and messages, loads and stores from PE to PE; with it, all sizes
    up to 1 MiB (10 KiB from PE to PE), and for a single transfer when its first and its last flit crossed each link.
    The milestone "probe" draws the figures.
    """
    from kernbench.studies.probe import MESSAGES, SIZES, ProbeStudy, select
    from kernbench.studies.probe_report import side_by_side
    from kernbench.studies.study import plain

    machine = load_machine(topology, overrides)
    chosen = select(machine, names)
    if listing:
        _list(chosen, as_json)
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


def _list(chosen: Sequence[Case], as_json: bool) -> None:
    if as_json:
        echo_json({case.name: case.says for case in chosen})
        return
    width = max(len(case.name) for case in chosen)
    for case in chosen:
        click.echo(f"{case.name:<{width}}  {case.says}")


def _table(rows: Sequence[dict[str, Any]]) -> None:
    from kernbench.analysis.transfer import PARTS
    from kernbench.studies.study import size_name

    width = max(len(row["case"]) for row in rows)
    heads = "".join(f"{part:>14}" for part in PARTS)
    click.echo(f"\n{'times in ns':<{width}}     size  transfers   last end       mean{heads}")
    for row in rows:
        times = "".join(f"{row[f'{part}_ns']:>14,.2f}" for part in PARTS)
        head = f"{row['case']:<{width}} {size_name(row['nbytes']):>8} {row['transfers']:>10}"
        click.echo(f"{head} {row['last_end_ns']:>10,.2f} {row['mean_ns']:>10,.2f}{times}")
    click.echo("mean and its parts are over the transfers of a case; the parts sum to it\n")


def _pair_table(pairs: Sequence[dict[str, Any]]) -> None:
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
            alike = f" and {row['hottest_alike'] - 1} more" if row["hottest_alike"] > 1 else ""
            rate = f"{row['bandwidth_gbs']:,.1f} GB/s, {row['path_utilization']:.1%} of its path"
            fair = f"{row['fair_utilization']:.1%} of fair streams ({row['fair_gbs']:,.1f} GB/s)"
            hot = f"hottest {row['hottest_link']}{alike}, busy {row['hottest_share']:.1%}"
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
