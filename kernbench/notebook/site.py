"""`make docs`: README, documents, notebooks and milestone reports as pages that ask the net for nothing.

Everything is converted by nbconvert, a Markdown file as a notebook of one cell, each page with its styles and
pictures inside. Links between the sources become links between the pages. The charts of reports are interactive: Vega
draws them from their specifications, and without JavaScript the pictures remain.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

SOURCES = (
    "README.md", "notebooks/*.ipynb", "milestones/*.ipynb", "milestones/output/*/*.md", "docs/*.md",
    "docs/decisions/*.md", "benchmarks/README.md",
)  # fmt: skip
INDEX = "README.md"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
_SCRIPT = re.compile(r"<script\b.*?</script>", re.DOTALL)
_CHART = re.compile(r"!\[.*?\]\((\w+)\.svg\)")
_AFTER = re.compile(r'(<div id="\w+">)\s*</div>\s*(<p><img [^>]*>\s*</p>)')  # nbconvert closes the element too early
_VEGA = "vega.js"
_EMBED = """
for (const chart of document.querySelectorAll("script[data-chart]")) {
  const spec = JSON.parse(chart.textContent);
  vegaEmbed(document.getElementById(chart.dataset.chart), spec, {actions: false, renderer: "svg"});
}
"""
_WIDGET = "application/vnd.jupyter.widget-view+json"


def build(root: Path, out: Path) -> list[Path]:
    """Write a page for each of the project's sources below `out`; return them, the index first."""
    sources = {path.relative_to(root).as_posix(): path for form in SOURCES for path in sorted(root.glob(form))}
    exporter = _exporter()
    titles = {name: _title(path) for name, path in sources.items()}
    pages = []
    out.mkdir(parents=True, exist_ok=True)
    (out / _VEGA).write_text(_vega(), encoding="utf-8")
    for name, path in sources.items():
        notebook = _notebook(path)
        charts: list[str] = []
        if name == INDEX:
            notebook.cells.append(_cell(_contents(titles)))
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                charts += _charts(cell.source, path.parent)
                cell.source = _linked(_placed(cell.source, charts), name, sources)
            for output in cell.get("outputs", ()):
                output.get("data", {}).pop(_WIDGET, None)  # it would want a kernel
        resources = {"metadata": {"name": titles[name], "path": str(path.parent)}}
        html, _ = exporter.from_notebook_node(notebook, resources)
        page = out / page_of(name)
        page.parent.mkdir(parents=True, exist_ok=True)
        text = _SCRIPT.sub("", html)  # a page to be read; scripts would load more
        if charts:
            vega = relpath(_VEGA, page_of(name).rpartition("/")[0] or ".")
            scripts = f"{_specifications(charts, path.parent)}<script src={vega!r}></script>"
            text = _AFTER.sub(r"\1\2</div>", text).replace("</body>", f"{scripts}</body>")
        page.write_text(text, encoding="utf-8")
        pages.append(page)
    return pages


def _vega() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which draws the charts of the page."""
    from vl_convert import javascript_bundle

    bundle: Callable[[str], str] = javascript_bundle
    return f"(() => {{{bundle(_EMBED)}}})();"


def _charts(text: str, folder: Path) -> list[str]:
    """Return the figures of a Markdown text that have a specification."""
    return [name for name in _CHART.findall(text) if (folder / f"{name}.vl.json").is_file()]


def _placed(text: str, charts: Sequence[str]) -> str:
    """Return Markdown in which each chart is in an element that Vega can draw in."""

    def place(found: re.Match[str]) -> str:
        return f'<div id="{found[1]}">\n\n{found[0]}\n\n</div>' if found[1] in charts else found[0]

    return _CHART.sub(place, text)


def _specifications(charts: Sequence[str], folder: Path) -> str:
    specs = {name: (folder / f"{name}.vl.json").read_text(encoding="utf-8").replace("</", r"<\/") for name in charts}
    return "".join(
        f'<script type="application/json" data-chart="{name}">{spec}</script>' for name, spec in specs.items()
    )


def page_of(name: str) -> str:
    """Return the page of a source, both relative to the top.

    >>> page_of("docs/decisions/README.md"), page_of("notebooks/explorer.ipynb")
    ('docs/decisions/index.html', 'notebooks/explorer.html')
    """
    folder, slash, file = name.rpartition("/")
    stem = file.rpartition(".")[0]
    return f"{folder}{slash}{'index' if stem == 'README' else stem}.html"


def _exporter() -> Any:
    from nbconvert import HTMLExporter

    exporter: Callable[..., Any] = HTMLExporter
    return exporter(template_name="lab", embed_images=True, exclude_input_prompt=True, exclude_anchor_links=True)


def _notebook(path: Path) -> Any:
    import nbformat

    read: Callable[..., Any] = nbformat.read
    new: Callable[..., Any] = nbformat.v4.new_notebook
    if path.suffix == ".ipynb":
        return read(path, as_version=4)
    return new(cells=[_cell(path.read_text(encoding="utf-8"))])


def _cell(text: str) -> Any:
    import nbformat

    new: Callable[..., Any] = nbformat.v4.new_markdown_cell
    return new(text)


def _title(path: Path) -> str:
    """Return the first heading of a source."""
    cells = _notebook(path).cells
    heading = next((line for cell in cells for line in cell.source.splitlines() if line.startswith("# ")), path.stem)
    return heading.lstrip("# ").strip()


def _contents(titles: dict[str, str]) -> str:
    lines = [f"- [{title}]({name})" for name, title in titles.items() if name != INDEX]
    return "\n".join(["## All pages", "", *lines])


def _linked(text: str, name: str, sources: dict[str, Path]) -> str:
    """Return Markdown whose links lead to pages; a link to what is no page becomes its text."""
    here = page_of(name)

    def link(found: re.Match[str]) -> str:
        label, target, part = found[1], found[2], found[3] or ""
        meant = normpath(f"{name.rpartition('/')[0]}/{target}".lstrip("/"))
        for known in (meant, f"{meant}/README.md"):
            if known in sources:
                return f"[{label}]({relpath(page_of(known), here.rpartition('/')[0] or '.')}{part})"
        return label

    return _LINK.sub(link, text)


def main(arguments: Sequence[str]) -> None:
    """Build the pages of the checkout that this package stands in, into the folder named."""
    pages = build(Path(__file__).resolve().parents[2], Path(arguments[0]))
    print(f"wrote {len(pages)} pages; begin with {pages[0]}")


if __name__ == "__main__":
    main(sys.argv[1:])
