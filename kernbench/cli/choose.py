"""`kernbench gemm` and `kernbench ccl`: which placement, which algorithm, why, and what to change."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli.options import echo_json, json_option, load_machine, machine_options, set_option

if TYPE_CHECKING:
    from kernbench.studies.study import Study
    from kernbench.topology.builder import Machine

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
    topology: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Rank the placements of C[M, N] = A[M, K] B[K, N] over all PEs of a SIP, and say why the fastest takes as long.

    Placements are ranked by closed form, and those near the best are simulated. With --csv, a table of the fastest
    placement of each product; the same command continues where it was interrupted.
    """
    from kernbench.studies.best_product import ProductsStudy, read_shapes
    from kernbench.studies.best_product import gemm as best

    if (file is None) == (not sizes) or len(sizes) not in (0, 3):
        raise click.UsageError("give three sizes, M N K, or --csv FILE")
    machine = load_machine(topology, overrides)
    if file is not None:
        if trans_a or trans_b:
            raise click.UsageError("--trans-a and --trans-b are columns of the list")
        _list(
            ProductsStudy(),
            machine,
            {"shapes": read_shapes(file), "dtype": dtype},
            _folder(folder, file),
            workers,
            as_json,
        )
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

    Times are those of the device, without the launch by the host. With --csv, a table of the fastest algorithm of each
    case; the same command continues where it was interrupted.
    """
    from kernbench.studies.best_collective import CollectivesStudy, choose, read_cases

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
