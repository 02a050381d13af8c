"""The command of an acceptance that others' code goes through: cases chosen by name, and a row of a table for each."""

from __future__ import annotations

import argparse
import os
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version


def table(
    doc: str, packages: Sequence[str], cases: Sequence[str], columns: Sequence[str],
    measure: Callable[[str], Sequence[str]],
) -> int:  # fmt: skip
    """Measure the cases whose names contain one of those given, or all; return how many failed, at most 1.

    Parameters
    ----------
    doc : str
        The docstring of the command; its first line is shown by --help.
    packages : sequence of str
        Their versions are printed.
    cases, columns : sequence of str
        Names of cases, and heads of the columns of text; those with numbers end with ":".
    measure : callable
        Returns the row of a case, its name first; raises if the case fails.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("names", nargs="*", help="parts of names, in any case; default: all")
    options = parser.parse_args()
    for part in options.names:
        if not any(part.lower() in name.lower() for name in cases):
            parser.error(f"no name contains {part!r}; there are {', '.join(cases)}")
    chosen = [name for name in cases if not options.names or any(x.lower() in name.lower() for x in options.names)]

    def show(row: Sequence[str]) -> None:
        print(f"| {' | '.join(row)} |" if options.markdown else "  ".join(row), flush=True)

    print(", ".join(f"{package} {version(package)}" for package in packages), flush=True)
    show([column.removesuffix(":") for column in columns])
    if options.markdown:
        show(["---:" if column.endswith(":") else "---" for column in columns])
    failed = 0
    for name in chosen:
        try:
            show(measure(name))
        except Exception as error:  # noqa: BLE001 : the others run
            failed += 1
            if os.environ.get("TRACE"):
                traceback.print_exc()
            reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            show([name, "FAILED", reason, *[""] * (len(columns) - 3)])
    print(f"{failed} of {len(chosen)} failed" if failed else f"all {len(chosen)} passed")
    return min(failed, 1)
