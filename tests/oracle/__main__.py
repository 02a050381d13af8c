"""Compare the engine with the oracle on many random machines, and print the first difference, made small."""

from __future__ import annotations

from pathlib import Path

import click
import yaml

from tests.oracle.cases import Case, Transaction
from tests.oracle.compare import Difference, difference, differences, minimized


@click.command()
@click.option("--machines", default=2000, show_default=True, help="Random machines.")
@click.option("--transactions", default=50, show_default=True, help="Transactions on each.")
@click.option("--seed", default=0, show_default=True, help="Seed of the first machine; the others follow it.")
@click.option("--case", type=click.Path(path_type=Path, exists=True), help="Run the case that an earlier run printed.")
def main(machines: int, transactions: int, seed: int, case: Path | None) -> None:
    """Compare the end of every transaction to the picosecond; exit with 1 at the first difference."""
    if case is not None:
        _finish(difference(read_case(case)))
    for number, found in differences(range(seed, seed + machines), transactions):
        if found is not None:
            click.echo(f"seed {number}: different. The smallest case found, for --case:")
            _finish(minimized(found))
        if (number - seed + 1) % 100 == 0:
            click.echo(f"seeds {number - 99} to {number}: equal")
    click.echo(f"{machines * transactions} transactions on {machines} machines, seeds from {seed} on: equal")


def _finish(found: Difference | None) -> None:
    click.echo(found or "equal")
    raise SystemExit(1 if found else 0)


def read_case(path: Path) -> Case:
    """Return the case in a file that holds what a run printed."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    rows = [{key: row[key] for key in Transaction._fields} for row in content["transactions"]]
    return Case(content["machine"], [Transaction(**row) for row in rows], content["turn_bytes"])


if __name__ == "__main__":
    main()
