"""`kernbench list`: the names that other commands take."""

from __future__ import annotations

from collections.abc import Callable

import click

from kernbench.cli.options import echo_json, json_option
from kernbench.errors import ConfigError


def benches() -> dict[str, str]:
    """Return every bench with its description."""
    from kernbench.benches import registry

    return {bench.name: bench.description for bench in registry.benches()}


def milestones() -> dict[str, str]:
    """Return every milestone with its title; none where no checkout with their notebooks is near."""
    from kernbench.studies import milestone

    try:
        return milestone.names()
    except ConfigError:
        return {}


def studies() -> dict[str, str]:
    """Return every study that a sweep can run by its name, with its first line."""
    from kernbench.registry import STUDIES

    docs = {name: STUDIES.resolve(name).__doc__ or "" for name in STUDIES.names}
    return {name: doc.strip().partition("\n")[0] for name, doc in docs.items()}


def presets() -> dict[str, str]:
    """Return every shipped machine with its size."""
    from kernbench import config
    from kernbench.topology.builder import resolve_topology

    machines = {name: resolve_topology(f"preset:{name}").config for name in config.presets()}
    return {name: f"{c.n_sips} SIP{'s' if c.n_sips > 1 else ''}, {c.n_pes} PEs" for name, c in machines.items()}


def components() -> dict[str, str]:
    """Return every component implementation with what its class says of itself."""
    from kernbench.registry import COMPONENTS

    docs = {name: COMPONENTS.resolve(name).__doc__ or "" for name in COMPONENTS.names}
    return {name: doc.strip().partition("\n")[0] for name, doc in docs.items()}


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "benches": benches,
    "milestones": milestones,
    "studies": studies,
    "presets": presets,
    "components": components,
}


@click.command("list", short_help="Names that other commands take: benches, milestones, studies, presets, components.")
@click.argument("kinds", nargs=-1, metavar="[KIND]...", type=click.Choice(list(KINDS)))
@json_option
def list_(kinds: tuple[str, ...], as_json: bool) -> None:
    """List benches, milestones, studies, presets and components (all, or the KINDs named)."""
    table = {kind: KINDS[kind]() for kind in kinds or KINDS}
    if as_json:
        echo_json(table)
        return
    for kind, entries in table.items():
        click.echo(f"{kind}:")
        width = max(map(len, entries), default=0)
        for number, (name, text) in enumerate(sorted(entries.items()), start=1):
            head = f"{number:>3}  " if kind == "benches" else "  "
            click.echo(f"{head}{name:<{width}}  {text}".rstrip())
