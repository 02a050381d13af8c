"""Leave only stills in executed notebooks: `python -m tests.notebooks.stills NOTEBOOK...`, as `make sync` does.

A widget's model ends with its kernel. JupyterLab prefers the widget to the still, and then shows an error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat

WIDGET = "application/vnd.jupyter.widget-view+json"


def leave_stills(path: Path) -> None:
    """Remove the widget from each output that has another form, and the state of widgets."""
    notebook = nbformat.read(path, as_version=4)
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if len(output.get("data", ())) > 1:
                output["data"].pop(WIDGET, None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        leave_stills(Path(name))
