"""`kernbench list`, `show`, `validate` and `new`: machine files, and names that other commands take."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.cli._options import NewFile, echo_json, echo_table, json_option, load_machine, machine_option, set_option
from kernbench.errors import ConfigError

if TYPE_CHECKING:
    from kernbench.config import MachineConfig
    from kernbench.topology.builder import Machine


def _benches() -> dict[str, str]:
    from kernbench.benches import registry

    return {bench.name: bench.description for bench in registry.benches()}


def milestones() -> dict[str, str]:
    """Titles by milestone; none without a checkout that has their notebooks."""
    from kernbench.studies import milestone

    try:
        return {
            name: f"{title} ({needed})" if (needed := milestone.lacking(name)) else title
            for name, title in milestone.titles().items()
        }
    except ConfigError:
        return {}


def _registered(kind: str) -> dict[str, str]:
    from kernbench import _registry as registry

    known = {"studies": registry.STUDIES, "components": registry.COMPONENTS}[kind]
    docs = {name: known.resolve(name).__doc__ or "" for name in known.names}
    return {name: doc.strip().partition("\n")[0] for name, doc in docs.items()}


def _presets() -> dict[str, str]:
    from kernbench import config
    from kernbench.topology.builder import resolve_topology

    machines = {name: resolve_topology(f"preset:{name}").config for name in config.presets()}
    return {name: f"{c.n_sips} SIP{'s' if c.n_sips > 1 else ''}, {c.n_pes} PEs" for name, c in machines.items()}


_KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "benches": _benches,
    "milestones": milestones,
    "studies": partial(_registered, "studies"),
    "presets": _presets,
    "components": partial(_registered, "components"),
}


@click.command("list", short_help="Names that other commands take: benches, milestones, studies, presets, components.")
@click.argument("kinds", nargs=-1, metavar="[KIND]...", type=click.Choice(list(_KINDS)))
@json_option
def list_(kinds: tuple[str, ...], as_json: bool) -> None:
    """List benches, milestones, studies, presets and components (all, or the KINDs named)."""
    table = {kind: _KINDS[kind]() for kind in kinds or _KINDS}
    if as_json:
        echo_json(table)
        return
    for kind, entries in table.items():
        click.echo(f"{kind}:")
        rows = [[name, text] for name, text in sorted(entries.items())]
        if kind == "benches":
            rows = [[f"{i:>2}", *row] for i, row in enumerate(rows, 1)]
        if rows:
            echo_table([""] * len(rows[0]), rows, left=3, indent=2)


VIEWS = ("system", "sip", "cube", "pe")


@click.command(short_help="Show a machine in words, or draw it into a file.")
@click.argument("file", required=False, metavar="[FILE|preset:NAME]")
@click.option("--view", type=click.Choice(VIEWS), help="Only this view. Default: all in words; system in a drawing.")
@click.option(
    "--out", type=NewFile(".svg", ".png"), help="Draw into this file, by its ending, instead of printing words."
)
@machine_option
@set_option
@json_option
def show(
    file: str | None,
    view: str | None,
    out: Path | None,
    source: str | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show a machine: the nearest topology.yaml upward, a FILE, or a preset."""
    if file is not None and source is not None:
        raise click.UsageError(f"give {file} or --machine {source}, not both")
    machine = load_machine(file or source, overrides)
    if out:
        _draw(machine, view or "system", out)
        click.echo(f"wrote {out}", err=True)
    if as_json:
        echo_json({"hash": machine.hash, "source": machine.source, "spec": machine.config.to_spec()})
    elif not out:
        _describe(machine, (view,) if view else VIEWS)


def _draw(machine: Machine, name: str, out: Path) -> None:
    from kernbench.viz._machine_layout import machine_section
    from kernbench.viz.still import Still, view_svg

    Still(view_svg(machine_section(machine), name)).save(out)


def _describe(machine: Machine, names: tuple[str, ...]) -> None:
    from kernbench.viz._machine_layout import machine_section

    click.echo(repr(machine))
    section = machine_section(machine)
    for name in names:
        view = section["templates"][name]
        click.echo(f"\n{view['title']}")
        for kind, number in Counter(part["kind"] for part in (*view["boxes"], *view["lines"])).items():
            if detail := section["kinds"].get(kind, {}).get("detail"):
                many = f"{number} x " if number > 1 else ""
                click.echo(f"  {many}{section['kinds'][kind]['label']}: {', '.join(detail)}")


_CCL_KEY = re.compile(r"^(defaults|algorithms)\s*:", re.MULTILINE)


@click.command(short_help="Check machine and ccl files: every fault at once.")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON schema of machine files, for editors, and stop.")
@json_option
def validate(files: tuple[Path, ...], schema: bool, as_json: bool) -> int:
    """Check machine and ccl files; print one line for each fault of each FILE.

    FILE may be preset:NAME. ccl files have to fit every machine among FILES. Exit status 2 if any file has a fault.
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
    """Decide by the keys of the file or, where those are wrong, by its name."""
    from kernbench.config._files import MOST_YAML, read_text

    try:
        text = read_text(path, MOST_YAML, "")
    except ConfigError:
        text = ""  # _check reports why it cannot be read
    return path.name.startswith("ccl") or bool(_CCL_KEY.search(text))


def _check(path: Path, machines: list[MachineConfig]) -> dict[str, Any]:
    """Faults of a file, or its contents; a machine joins `machines`."""
    from kernbench import config
    from kernbench.config._ccl import impl_faults

    report: dict[str, Any] = {"file": str(path), "faults": [], "summary": ""}
    try:
        if _is_ccl(path):
            ccl = config.read_ccl(path)
            report["summary"] = f"{len(ccl.algorithms)} algorithms, by default {ccl.defaults.algorithm}"
            for machine in machines:
                config.read_ccl(path, machine)
        else:
            preset, _, name = str(path).partition(":")
            machine = config.read_machine(config.preset_path(name) if preset == "preset" else path)
            machines.append(machine)
            report["faults"] = [f"{path.name}: {fault.text}" for fault in impl_faults(machine.to_spec())]
            report["summary"] = f"{machine.n_sips} SIPs, {machine.n_pes} PEs, machine {machine.hash[:12]}"
    except ConfigError as error:
        report["faults"] = error.faults
    except OSError as error:
        report["faults"] = [f"{path}: {error.strerror}"]
    return report


_NOTEBOOK = "first_steps"


@click.command(short_help="Write a starter folder: machine file and first notebook.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@json_option
def new(folder: Path, as_json: bool) -> None:
    """Write a starter folder: machine file, ccl.yaml and a first notebook (as .ipynb and .py).

    Nothing that exists is overwritten.
    """
    from kernbench.config._files import write_text

    contents = _contents()
    taken = [name for name in contents if (folder / name).exists()]
    if taken:
        raise click.UsageError(f"{folder} has {', '.join(taken)} already; name another folder, or move them away")
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        for name, text in contents.items():
            written.append(write_text(folder / name, text))
    except BaseException:  # an interrupt too: a second try would be refused
        for path in written:
            path.unlink()
        raise
    if as_json:
        echo_json({"folder": str(folder), "files": list(contents)})
        return
    click.echo(f"wrote {', '.join(contents)} to {folder}")
    click.echo(f"next: kernbench show {folder / 'topology.yaml'}; jupyter lab {folder / _NOTEBOOK}.ipynb")


def _contents() -> dict[str, str]:
    from kernbench import config

    try:
        import jupytext
        import nbformat
    except ImportError as error:
        raise click.UsageError("notebooks need more packages: pip install 'kernbench[notebook]'") from error

    write: Callable[..., str] = nbformat.writes
    script = (resources.files("kernbench.cli") / "templates" / f"{_NOTEBOOK}.py.txt").read_text(encoding="utf-8")
    notebook = jupytext.reads(script, fmt="py:percent")
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i}"  # jupytext draws random ones; equal folders are easier to compare
    nbformat.validate(notebook)
    return {
        "topology.yaml": config.preset_path("default").read_text(encoding="utf-8"),
        "ccl.yaml": config.default_ccl_path().read_text(encoding="utf-8"),
        "jupytext.toml": '# Saving one half of a notebook in Jupyter writes the other.\nformats = "ipynb,py:percent"\n',
        f"{_NOTEBOOK}.py": script,
        f"{_NOTEBOOK}.ipynb": write(notebook) + "\n",
    }
