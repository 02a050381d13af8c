"""`kernbench new`: a folder to start from."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import click

NOTEBOOK = "first_steps"


@click.command(short_help="Write a starter folder: machine file and first notebook.")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
def new(folder: Path) -> None:
    """Write a starter folder: machine file, ccl.yaml and a first notebook (as .ipynb and .py).

    Nothing that exists is overwritten.
    """
    from kernbench.config.safe import write_text

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
    click.echo(f"wrote {', '.join(contents)} to {folder}")
    click.echo(f"next: kernbench show {folder / 'topology.yaml'}; jupyter lab {folder / NOTEBOOK}.ipynb")


def _contents() -> dict[str, str]:
    """Return the text of every file."""
    from kernbench import config

    try:
        import jupytext
        import nbformat
    except ImportError as error:
        raise click.UsageError("notebooks need more packages: pip install 'kernbench[notebook]'") from error

    write: Callable[..., str] = nbformat.writes
    script = (resources.files("kernbench.cli") / "templates" / f"{NOTEBOOK}.py.txt").read_text(encoding="utf-8")
    notebook = jupytext.reads(script, fmt="py:percent")
    for i, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{i}"  # jupytext draws lots; equal folders are easier to compare
    nbformat.validate(notebook)
    return {
        "topology.yaml": config.preset_path("default").read_text(encoding="utf-8"),
        "ccl.yaml": config.default_ccl_path().read_text(encoding="utf-8"),
        "jupytext.toml": '# Saving one half of a notebook in Jupyter writes the other.\nformats = "ipynb,py:percent"\n',
        f"{NOTEBOOK}.py": script,
        f"{NOTEBOOK}.ipynb": write(notebook) + "\n",
    }
