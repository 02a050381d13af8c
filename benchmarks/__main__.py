"""Measure the speed of the simulator: `python -m benchmarks --help`."""

from __future__ import annotations

import os

import click

from benchmarks import (
    attention,
    collectives,
    explorer,
    first_run,
    logs,
    machines,
    models,
    pages,
    predictions,
    products,
    start,
    sweeps,
    table,
    transfers,
)
from kernbench.points._cache import CACHE_VARIABLE, OFF

PARTS = {
    "transfers": transfers,
    "products": products,
    "machines": machines,
    "models": models,
    "collectives": collectives,
    "logs": logs,
    "attention": attention,
    "start": start,
    "explorer": explorer,
    "first_run": first_run,
    "pages": pages,
    "sweeps": sweeps,
    "predictions": predictions,
}


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
def main(parts: tuple[str, ...]) -> None:
    """Measure PARTS, or everything (some 20 minutes), and print each row.

    A run of everything writes the table of benchmarks/README.md.
    """
    os.environ[CACHE_VARIABLE] = OFF  # a study must be run, not found in the cache
    rows = list(table.chain(*(PARTS[part].measure for part in parts or PARTS)))
    if not parts:
        table.write(rows)


if __name__ == "__main__":
    main()
