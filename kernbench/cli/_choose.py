"""`kernbench gemm` and `ccl`: the fastest placement of a product, the fastest algorithm of a collective."""

from __future__ import annotations

import contextlib
import csv
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli._options import echo, echo_json, echo_table, json_option, machine_options, workers_option

if TYPE_CHECKING:
    from kernbench.studies._stages import PartialAnswer
    from kernbench.studies.study import Study
    from kernbench.topology.builder import Machine


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
@workers_option
@machine_options
@json_option
def gemm(
    sizes: tuple[int, ...],
    file: Path | None,
    limit_s: float | None,
    folder: Path | None,
    workers: int | None,
    machine: Machine,
    as_json: bool,
    **asked: Any,
) -> int:
    """Rank the placements of C[M, N] = A[M, K] B[K, N] over all PEs of a SIP, and say why the fastest takes as long.

    Estimates by closed form are printed at once, then the simulated times of those near the best, then the critical
    path of the fastest. With --csv, a table of the fastest placement of each product, the smallest first; the same
    command continues where it was interrupted.
    """
    from kernbench.studies.choice import gemm_stages
    from kernbench.studies.lists import ProductsStudy, read_shapes

    if (file is None) == (not sizes) or len(sizes) not in (0, 3):
        raise click.UsageError("give three sizes, M N K, or --csv FILE")
    if file is not None:
        if asked["trans_a"] or asked["trans_b"]:
            raise click.UsageError("--trans-a and --trans-b are columns of the list")
        if asked["placements"]:
            raise click.UsageError("--placements is for one product: leave it out, or give M N K")
        products = {"shapes": read_shapes(file), "dtype": asked["dtype"]}
        return _list(ProductsStudy(), machine, products, _folder(folder, file), workers, limit_s, as_json)
    if folder is not None:
        raise click.UsageError("--out is for a list: leave it out, or give --csv FILE")
    stages = partial(gemm_stages, *sizes, **asked, machine=machine, workers=workers, limit_s=limit_s)
    return _answered(stages, limit_s, as_json)


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
@workers_option
@machine_options
@json_option
def ccl(
    nbytes: str | None,
    file: Path | None,
    no_changes: bool,
    limit_s: float | None,
    folder: Path | None,
    workers: int | None,
    machine: Machine,
    as_json: bool,
    **asked: Any,
) -> int:
    """Say which algorithm is fastest for a collective, why it takes as long, and what to change in the machine first.

    Estimates by the alpha-beta model are printed at once, then the simulated times of the best, the critical path of
    the fastest, the same bytes on other PEs, and what each resource changes. The algorithms are those of the nearest
    ccl.yaml, upward from the current folder, else the packaged ones. Times are those of the device, without the launch
    by the host. With --csv, a table of the fastest algorithm of each case, the smallest first; the same command
    continues where it was interrupted.
    """
    from kernbench.studies.choice import choose_stages
    from kernbench.studies.lists import CollectivesStudy, read_cases

    if (file is None) == (nbytes is None):
        raise click.UsageError("give --bytes SIZE or --csv FILE")
    if file is not None:
        if asked["sips"] or asked["network"]:
            raise click.UsageError("--sips and --network are columns of the list")
        if asked["algorithms"]:
            raise click.UsageError("--algorithms is for one collective: leave it out, or give --bytes SIZE")
        cases = {"cases": read_cases(file)}
        return _list(CollectivesStudy(), machine, cases, _folder(folder, file), workers, limit_s, as_json)
    if folder is not None:
        raise click.UsageError("--out is for a list: leave it out, or give --csv FILE")
    assert nbytes is not None
    options: dict[str, Any] = {"machine": machine, "workers": workers, "limit_s": limit_s}
    return _answered(partial(choose_stages, nbytes, changes=not no_changes, **asked, **options), limit_s, as_json)


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
    from kernbench.studies._page import cell, is_numeric
    from kernbench.studies.study import Report, scalars
    from kernbench.sweeps._runner import worker_count

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
                workers=worker_count(workers),
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
