"""`kernbench validate`: every fault of a file, at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli.options import echo_json, json_option
from kernbench.errors import ConfigError

if TYPE_CHECKING:
    from kernbench.config import MachineConfig

_CCL_KEY = re.compile(r"^(defaults|algorithms)\s*:", re.MULTILINE)


@click.command(short_help="Check machine and ccl files: every fault at once.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON schema of machine files, for editors, and stop.")
@json_option
def validate(files: tuple[Path, ...], schema: bool, as_json: bool) -> int:
    """Check machine and ccl files; print one line for each fault of each FILE.

    ccl files have to fit every machine among FILES. Exit status 2 if any file has a fault.
    """
    from kernbench import config

    if schema:
        echo_json(config.json_schema())
        return 0
    if not files:
        raise click.UsageError("give at least one FILE, or --schema")
    machines: list[MachineConfig] = []
    # Machines first: ccl files are held to them.
    found = {path: _check(path, machines) for path in sorted(files, key=_is_ccl)}
    reports = [found[path] for path in files]
    if as_json:
        echo_json(reports)
    else:
        for report in reports:
            for fault in report["faults"]:
                click.echo(f"error: {fault}", err=True)
            if not report["faults"]:
                click.echo(f"{report['file']}: valid, {report['summary']}")
    return 2 if any(report["faults"] for report in reports) else 0


def _is_ccl(path: Path) -> bool:
    """Return whether a file is about collectives, by its keys or, where those are wrong, by its name."""
    from kernbench.config.safe import MOST_YAML, read_text

    try:
        text = read_text(path, MOST_YAML, "")
    except ConfigError:
        text = ""  # why it cannot be read is told where it is checked
    return path.name.startswith("ccl") or bool(_CCL_KEY.search(text))


def _check(path: Path, machines: list[MachineConfig]) -> dict[str, Any]:
    """Return what is wrong with a file, or what it holds; a machine joins `machines`."""
    from kernbench import config

    report: dict[str, Any] = {"file": str(path), "faults": [], "summary": ""}
    try:
        if _is_ccl(path):
            ccl = config.read_ccl(path)
            report["summary"] = f"{len(ccl.algorithms)} algorithms, by default {ccl.defaults.algorithm}"
            for machine in machines:
                config.read_ccl(path, machine)
        else:
            machine = config.read_machine(path)
            machines.append(machine)
            report["summary"] = f"{machine.n_sips} SIPs, {machine.n_pes} PEs, machine {machine.hash[:12]}"
    except ConfigError as error:
        report["faults"] = error.faults
    except OSError as error:
        report["faults"] = [f"{path}: {error.strerror}"]
    return report
