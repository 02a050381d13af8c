"""The campaign: try to break the package in every way that is known to have worked once; prints its seeds."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import click

from tests.fuzz.report import Report
from tests.repo import ROOT

# Part: module, function, number of tries in a full campaign, tries in one process.
PARTS = {
    "files": ("files", "run", 10_000, 1000),
    "plans": ("plans", "run", 2000, 1000),
    "kernels": ("kernels", "run", 1000, 500),
    "hostile": ("kernels", "run_hostile", 200, 200),
    "space": ("space", "run", 1000, 250),
    "causes": ("causes", "run", 10_000, 1000),
    "collectives": ("collectives", "run", 1000, 250),
    "damage": ("damage", "run", 2000, 1000),
    "arrays": ("arrays", "run", 2000, 500),
    "advice": ("advice", "run", 200, 100),
    "memory": ("memory", "run", 1000, 1000),
    "models": ("models", "run", 300, 50),
    "interrupts": ("processes", "run_interrupts", 100, 100),
    "hashes": ("processes", "run_hash_seeds", 10, 10),
    "pythons": ("processes", "run_pythons", 1, 1),
}
WITH_TORCH = ROOT / "build" / "frontends" / "bin" / "python"  # of `make frontends`


def run(part: str, seeds: range) -> Report:
    """Run a part of the campaign in this process."""
    module, function, _, _ = PARTS[part]
    with tempfile.TemporaryDirectory() as folder:
        return getattr(importlib.import_module(f"tests.fuzz.{module}"), function)(seeds, Path(folder))


@click.command()
@click.option("--seed", default=None, type=int, help="First seed. Default: one of the clock, printed.")
@click.option("--scale", default=1.0, show_default=True, help="How many of the tries of a full campaign.")
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="A part to run; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the reports as JSON.")
def main(seed: int | None, scale: float, only: tuple[str, ...], as_json: bool) -> None:
    """Run the campaign, each part in processes of its own; exit with 1 if anything failed."""
    seed = int(time.time()) % 1_000_000 if seed is None else seed
    reports = []
    for part in only or PARTS:
        _, _, full, at_once = PARTS[part]
        count = max(1, round(full * scale))
        begin, whole = time.monotonic(), Report(part)
        for first in range(seed, seed + count, at_once):
            _add(whole, apart(part, range(first, min(first + at_once, seed + count))))
        reports.append(whole)
        if not as_json:
            click.echo(f"{whole}; seeds {seed} to {seed + count - 1}, {time.monotonic() - begin:,.0f} s")
            for line in whole.failures:
                click.echo(f"  {line}")
    if as_json:
        click.echo(json.dumps([asdict(report) for report in reports]))
    sys.exit(any(report.failures for report in reports))


def apart(part: str, seeds: range) -> Report:
    """Run a part in a process of its own, whose memory is the part's alone and which may die."""
    code = "import dataclasses, json; from tests.fuzz.__main__ import run; "
    code += f"print(json.dumps(dataclasses.asdict(run({part!r}, {seeds!r}))))"
    python = WITH_TORCH if part == "models" and WITH_TORCH.exists() else sys.executable
    done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    try:
        return Report(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        report = Report(part, len(seeds))
        report.failed(
            f"{seeds.start} to {seeds.stop - 1}", f"the process ended with {done.returncode}: {done.stderr[-500:]}"
        )
        return report


def _add(whole: Report, more: Report) -> None:
    whole.part = more.part
    whole.tried += more.tried
    whole.failures += more.failures
    for name, value in more.notes.items():
        if "[" in name or "MiB" in name or name.startswith("3."):
            whole.most(name, value)
        else:
            whole.notes[name] = whole.notes.get(name, 0) + value


if __name__ == "__main__":
    main()
