"""Options that several commands share."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.errors import ConfigError, printable

if TYPE_CHECKING:
    from kernbench.sim_engine._limits import Limits
    from kernbench.topology.builder import Machine


def _machine(context: click.Context, _option: click.Parameter, source: str | None) -> str | None:
    """Refuse the name of a network between SIPs, which belongs to --network."""
    if source is None:
        return None
    from typing import get_args, get_type_hints

    from kernbench.config._schema import Sips

    if source in get_args(get_type_hints(Sips)["topology"]) and not Path(source).exists():
        takes = any(parameter.name == "network" for parameter in context.command.params)
        remedy = f"--network {source}" if takes else f"--set system.sips.topology={source}"
        raise click.BadParameter(f"{source} is a network between SIPs, not a machine; give {remedy}")
    return source


class Aliased(click.Option):
    """An option whose further names work, but are not in its help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy(self)
        shown.opts = self.opts[:1]
        return click.Option.get_help_record(shown, ctx)


machine_option = click.option(
    "--machine",
    "--topology",
    "source",
    cls=Aliased,
    metavar="FILE|preset:NAME",
    callback=_machine,
    help="Machine to use. Default: the nearest topology.yaml upward, else the packaged one.",
)
set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Change a value of the machine file, e.g. --set sip.cube_mesh.w=2. May be repeated.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text, on stdout; an error, too."
)

workers_option = click.option(
    "--workers", type=click.IntRange(1), help="Processes that simulate. Default: one per core."
)


class NewFile(click.Path):
    """A file to write, in an existing folder, with one of some endings if given; checked before a run, not after it."""

    def __init__(self, *endings: str) -> None:
        super().__init__(dir_okay=False, writable=True)
        self._endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(value, param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"{path}: folder {path.parent} does not exist; make it first, or name another", param, ctx)
        if self._endings and path.suffix not in self._endings:
            self.fail(f"{path} must end in {' or '.join(self._endings)}", param, ctx)
        return path


def load_machine(source: str | None, overrides: Sequence[str]) -> Machine:
    from kernbench.config._ccl import impl_faults
    from kernbench.topology.builder import resolve_topology

    machine = resolve_topology(source, overrides)
    if faults := [f"{Path(machine.source).name}: {fault.text}" for fault in impl_faults(machine.spec)]:
        raise ConfigError(faults)
    return machine


def machine_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --machine and --set, and pass the machine to the command, as `machine`."""

    @wraps(command)
    def run(source: str | None, overrides: tuple[str, ...], **options: Any) -> Any:
        return command(machine=load_machine(source, overrides), **options)

    return machine_option(set_option(run))


def _limits(_context: click.Context, _option: click.Parameter, texts: Sequence[str]) -> Limits:
    from kernbench.sim_engine._limits import Limits

    pairs: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            pairs[name] = float(value)
        except ValueError:
            raise ConfigError(f"--limit {text}: must be NAME=VALUE with a number, as in host_s=60") from None
    return Limits.of(pairs)


limit_option = click.option(
    "--limit",
    "limits",
    metavar="NAME=VALUE",
    multiple=True,
    callback=_limits,
    help="End a session that takes more: events=N, simulated_ns=NS or host_s=SECONDS. May be repeated.",
)


def echo(text: str, *, err: bool = False) -> None:
    """Print text that contains names and values of the user, without control characters."""
    click.echo(printable(text), err=err)


def echo_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def error_record(error: BaseException, message: str = "") -> dict[str, Any]:
    """JSON form of an error; unknown attributes are null."""
    parameter = getattr(error, "param", None)
    key = parameter.opts[0] if parameter else getattr(error, "option_name", getattr(error, "param_hint", None))
    near = getattr(error, "possibilities", None)
    record = {
        "file": getattr(error, "filename", None),
        "key": key,
        "value": None,
        "remedy": f"did you mean {' or '.join(sorted(near))}?" if near else None,
    }
    faults = getattr(error, "records", [])
    if faults:
        record = {name: faults[0][name] for name in record} | {"faults": faults}
    return record | {"message": message or str(error) or type(error).__name__}


def echo_table(heads: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1, indent: int = 0) -> None:
    """Print a table, its first `left` columns left-aligned, the others right-aligned; no heads if all are empty.

    Long cells are folded to a terminal's width; a file or pipe gets each row as one line, without colour.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=any(heads), pad_edge=False, padding=(0, 2, 0, 0))
    for i, head in enumerate(heads):
        table.add_column(head, justify="left" if i < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(value))) for value in row))
    shown, terminal = io.StringIO(), sys.stdout.isatty()
    console = Console(file=shown, force_terminal=terminal, width=None if terminal else 1 << 20)
    console.print(Padding(table, (0, 0, 0, indent), expand=False))
    click.echo("\n".join(line.rstrip() for line in shown.getvalue().splitlines()))
