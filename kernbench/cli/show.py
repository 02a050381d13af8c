"""`kernbench show`: a machine in words, or drawn into a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kernbench.cli.options import NewFile, echo_json, json_option, load_machine, set_option

if TYPE_CHECKING:
    from kernbench.topology.builder import Machine

VIEWS = ("system", "sip", "cube", "pe")


@click.command(short_help="Show a machine in words, or draw it into a file.")
@click.argument("source", required=False, metavar="[FILE|preset:NAME]")
@click.option("--view", type=click.Choice(VIEWS), help="Only this view. Default: all in words; system in a drawing.")
@click.option(
    "--out",
    type=NewFile(),
    help="Draw into this file, by its ending an .svg or a .png, instead of printing words.",
)
@set_option
@json_option
def show(source: str | None, view: str | None, out: Path | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Show a machine: the nearest topology.yaml upward, a FILE, or a preset."""
    if out and out.suffix not in (".svg", ".png"):
        raise click.BadParameter(f"{out} must end in .svg or .png", param_hint="--out")
    machine = load_machine(source, overrides)
    if out:
        _draw(machine, view or "system", out)
        click.echo(f"wrote {out}", err=True)
    elif as_json:
        echo_json({"hash": machine.hash, "source": machine.source, "spec": machine.config.to_spec()})
    else:
        _describe(machine, (view,) if view else VIEWS)


def _draw(machine: Machine, name: str, out: Path) -> None:
    from kernbench.config.safe import write_text
    from kernbench.viz.figure import save
    from kernbench.viz.machine import view_figure, view_svg

    view = machine.views[name]
    if out.suffix == ".svg":
        write_text(out, view_svg(view, machine=machine.hash))
    else:
        save(view_figure(view, machine.hash), out)


def _describe(machine: Machine, names: tuple[str, ...]) -> None:
    """Print each view as its title, its parts by kind, its labelled links and its notes."""
    click.echo(repr(machine))
    for name in names:
        view = machine.views[name]
        click.echo(f"\n{view.title}")
        alike: dict[tuple[str, ...], list[str]] = {}
        for box in view.boxes:
            if box.detail:
                alike.setdefault((box.kind, *box.detail), []).append(box.label)
        for (_, *detail), labels in alike.items():
            last = f" .. {labels[-1]}" if len(labels) > 1 else ""
            click.echo(f"  {labels[0]}{last}: {', '.join(x.rstrip(',') for x in detail)}")
        for line in view.lines:
            if line.label:
                click.echo(f"  {line.src} - {line.dst}: {line.label}")
        for note in view.notes:
            click.echo(f"  {note}")
