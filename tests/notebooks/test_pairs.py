"""Both halves of every notebook say the same, and the committed outputs come from one run from top to bottom.

The times of the files say nothing after a clone, so nothing is synced here: the halves are read and compared.
"""

from __future__ import annotations

import jupytext
import nbformat
import pytest

from tests.notebooks.stills import WIDGET
from tests.repo import NOTEBOOK_FOLDERS, ROOT, files, notebooks, relative

LONGEST_CELL = 25
MOST_CELLS = 40

every_notebook = pytest.mark.parametrize("path", notebooks(), ids=relative)


def cells(path):
    return [(c.cell_type, c.source.strip(), sorted(c.metadata.get("tags", []))) for c in jupytext.read(path).cells]


def code_cells(path):
    return [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]


@pytest.mark.parametrize("folder", NOTEBOOK_FOLDERS)
def test_every_notebook_has_its_other_half(folder):
    halves = {p.stem: set() for p in files() if p.parent == ROOT / folder and p.suffix in {".ipynb", ".py"}}
    for path in files():
        if path.parent == ROOT / folder and path.stem in halves:
            halves[path.stem].add(path.suffix)
    assert not {stem: got for stem, got in halves.items() if not {".ipynb", ".py"} <= got}


@every_notebook
def test_halves_are_equal(path):
    assert cells(path) == cells(path.with_suffix(".py"))


@every_notebook
def test_outputs_come_from_one_run(path):
    # nbval compares nothing in a cell that was never run, so such a cell would pass unseen.
    got = [c.execution_count for c in code_cells(path)]
    assert got == list(range(1, len(got) + 1)), "run `make sync`"


@every_notebook
def test_no_cell_failed(path):
    failed = [
        o.ename
        for c in code_cells(path)
        for o in c.outputs
        if o.output_type == "error" and "raises-exception" not in c.metadata.get("tags", [])
    ]
    assert not failed


@every_notebook
def test_opens_without_asking_for_a_kernel(path):
    assert nbformat.read(path, as_version=4).metadata["kernelspec"]["name"] == "python3"


@every_notebook
def test_logic_stays_in_the_package(path):
    long = [c.source for c in code_cells(path) if len(c.source.splitlines()) > LONGEST_CELL]
    assert not long


@every_notebook
def test_is_read_in_one_sitting(path):
    assert len(cells(path)) <= MOST_CELLS


@every_notebook
def test_shows_no_warning(path):
    text = [o.text for c in code_cells(path) for o in c.outputs if o.get("name") == "stderr"]
    assert not text


@every_notebook
def test_widgets_are_committed_as_stills(path):
    shown = [o.get("data", {}) for c in code_cells(path) for o in c.outputs]
    assert not [data for data in shown if WIDGET in data], "run `make sync`"
    assert "widgets" not in nbformat.read(path, as_version=4).metadata, "run `make sync`"


@pytest.mark.parametrize(
    "path", [path for path in notebooks("notebooks") if path.stem != "08_serving"], ids=relative
)  # its requests run on a table of times, on no machine
def test_tutorials_show_a_picture(path):
    shown = [o.get("data", {}) for c in code_cells(path) for o in c.outputs]
    pictures = [
        data for data in shown if "".join(data.get("text/plain", "")).startswith(("Picture of", "The explorer"))
    ]
    assert [data for data in pictures if "image/png" in data]


@pytest.mark.parametrize("path", notebooks("milestones"), ids=relative)
def test_milestone_starts_with_its_parameters(path):
    first = code_cells(path)[0]
    assert first.metadata.get("tags") == ["parameters"]
    bare = [line for line in first.source.splitlines() if "=" in line and "#" not in line]
    assert not bare, "each parameter has its help beside it"
