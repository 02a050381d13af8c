"""`kernbench fidelity` and `calibrate`: a machine and measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernbench.cli._options import NewFile, echo_json, json_option, machine_options

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine


_most_bytes = click.option(
    "--most-bytes", type=click.IntRange(1), help="Simulate collectives up to so many bytes. Default: 4 MiB."
)


@click.command("fidelity", short_help="Compare results of other tools and of devices with a machine.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@machine_options
@_most_bytes
@click.option("--workers", type=click.IntRange(1), default=1, help="Processes that simulate. Default: 1.")
@json_option
def fidelity_command(
    files: tuple[Path, ...],
    machine: Machine,
    most_bytes: int | None,
    workers: int,
    as_json: bool,
) -> None:
    """Compare FILEs, which other tools wrote, with a machine: both values, the error, and what explains it.

    \b
    FILE may be
      the output of nccl-tests or rccl-tests
      a CSV file: workload,parameters,value,unit,source
    The parameters of a CSV file are key=value pairs separated by semicolons, as in "m=64; k=64; n=64"; a key with dots,
    as in system.sips.count=8, changes the machine.

    \b
    Workloads, their parameters [those that may be left out], and units:
      gemm        m k n [dtype staging l2]: a time
      attention   q_len kv_len heads kv_heads head_dim [batch dtype l2]: a time
      tile        m k n rows cols dataflow [dtype]: cycles
      hbm         timing pattern requests metric channel_bw_gbs
                  [load stride reads seed mapping refresh]: a bandwidth, a time
      noc         topology k traffic load [n packet packets vcs vc_flits]: cycles
      saturation  topology k traffic [n packet vcs vc_flits]: flits/node/cycle
      all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce
                  bytes ranks [dtype algorithm cubes pes devices_per_thread
                  calls call_us]: a time
    """  # noqa: D301 - \b keeps click from wrapping the list
    from kernbench.studies._fidelity_collectives import MOST_BYTES
    from kernbench.studies.fidelity import fidelity as compare

    found = compare(files, machine, most_bytes=most_bytes or MOST_BYTES, workers=workers)
    if as_json:
        echo_json({"compared": found.table.to_dict("records"), "refused": dict(found.refused)})
    else:
        click.echo(repr(found))


@click.command("calibrate", short_help="Fit fields of a machine to measurements.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--free",
    multiple=True,
    required=True,
    metavar="FIELD[=LOW:HIGH]",
    help="Field to fit, e.g. system.sip_link.bw_gbs or system.host.launch_ns=100:20000. May be repeated.",
)
@click.option(
    "--split",
    default="family",
    metavar="NAME",
    help="Rows held out: family (half of the families), size (the larger half of each) or random. Default: family.",
)
@click.option("--seed", type=int, default=0, help="Of the split. Default: 0.")
@click.option("--out", type=NewFile(), help="Write the calibrated machine file here.")
@_most_bytes
@click.option("--workers", type=click.IntRange(1), default=1, help="Processes that simulate. Default: 1.")
@machine_options
@json_option
def calibrate_command(
    files: tuple[Path, ...],
    free: tuple[str, ...],
    split: str,
    seed: int,
    out: Path | None,
    most_bytes: int | None,
    workers: int,
    machine: Machine,
    as_json: bool,
) -> None:
    """Fit fields of a machine to FILEs (as for `kernbench fidelity`), and state the error on rows held out.

    The simulator is the model: there is no factor for a shape. A field that the measurements do not determine stays as
    it is, and the result says so.
    """
    from kernbench.studies._fidelity_collectives import MOST_BYTES
    from kernbench.studies.calibration import calibrate as fitted

    if out is not None and out.exists():
        raise click.BadParameter(f"{out} is there already; give another name", param_hint="--out")
    most = most_bytes or MOST_BYTES
    found = fitted(machine, files, dict(map(_bounds, free)), split=split, seed=seed, workers=workers, most_bytes=most)
    if as_json:
        echo_json(found.to_dict())
    else:
        click.echo(repr(found))
    if out is not None:
        found.save(out)


def _bounds(text: str) -> tuple[str, tuple[float, float] | None]:
    name, equals, ends = text.partition("=")
    try:
        low, high = map(float, ends.split(":")) if equals else (0.0, 0.0)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} must be FIELD or FIELD=LOW:HIGH", param_hint="--free") from error
    return name.strip(), (low, high) if equals else None
