"""What MkDocs needs to know of this repository: its pages are where the repository has them, not only in docs/.

Charts of reports are interactive: Vega draws them from their specifications; without JavaScript the pictures remain.
"""

from __future__ import annotations

import re
from pathlib import Path
from pkgutil import resolve_name
from posixpath import dirname, normpath, relpath
from types import ModuleType

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCES = (
    "*.md", "notebooks/*.ipynb", "milestones/*.ipynb", "milestones/output/*/README.md", "milestones/output/*/*.svg",
    "milestones/output/*/*.png", "docs/**/*.md", "docs/images/*", "docs/site.css", "docs/vendor/*",
    "benchmarks/README.md",
)  # fmt: skip
VEGA = "vega.js"
EMBED = """
for (const chart of document.querySelectorAll("script[data-chart]")) {
  const spec = JSON.parse(chart.textContent);
  vegaEmbed(document.getElementById(chart.dataset.chart), spec, {actions: false, renderer: "svg"});
}
"""
PICTURE = re.compile(r"!\[.*?\]\((\w+)\.svg\)")
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
MERMAID = re.compile(r'<script type="module">\s*document.addEventListener.*?mermaid.*?</script>', re.DOTALL)
PUBLIC = re.compile(r"^\| `(kernbench[\w.]*)` \| (.*) \|$", re.MULTILINE)
SECTION = re.compile(r"^## .*$", re.MULTILINE)


@event_priority(100)  # before plugins look for their files
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give the repository's pages and pictures, under their own paths, and the script that draws charts."""
    from vl_convert import javascript_bundle

    sources = sorted({path for form in SOURCES for path in ROOT.glob(form) if path.is_file()})
    names = [path.relative_to(ROOT).as_posix() for path in sources]
    ours = [File(name, str(ROOT), config.site_dir, use_directory_urls=False) for name in names]
    theme = [file for file in files if file.src_dir != config.docs_dir]
    made = {VEGA: f"(() => {{{javascript_bundle(EMBED)}}})();", "llms.txt": llms(config)}
    return Files([*theme, *ours, *(File.generated(config, name, content=text) for name, text in made.items())])


def llms(config: MkDocsConfig) -> str:
    """Return the public names of docs/api.md as llms.txt has them (llmstxt.org): by section, each with its link."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    found = sorted([*SECTION.finditer(text), *PUBLIC.finditer(text)], key=lambda match: match.start())
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for match in found:
        name, what = match.groups() or ("", "")
        lines += [f"- [{name}](docs/api.html#{source_of(name)}): {what}"] if name else ["", match[0], ""]
    return "\n".join(lines) + "\n"


@event_priority(100)
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Unlink what is no page, place charts, and describe each public name of docs/api.md."""
    name = page.file.src_uri

    def link(found: re.Match[str]) -> str:
        target = normpath(f"{dirname(name)}/{found[2]}".lstrip("/"))
        for known in (target, f"{target}/README.md"):
            if files.get_file_from_path(known) is not None:
                return f"[{found[1]}]({relpath(known, dirname(name) or '.')}{found[3] or ''})"
        return found[1]

    def place(found: re.Match[str]) -> str:
        spec = ROOT / dirname(name) / f"{found[1]}.vl.json"
        if not spec.is_file():
            return found[0]
        text = spec.read_text(encoding="utf-8").replace("</", r"<\/")
        script = f'<script type="application/json" data-chart="{found[1]}">{text}</script>'
        return f'<div id="{found[1]}" markdown>\n\n{found[0]}\n\n</div>\n\n{script}\n'

    text = PICTURE.sub(place, LINK.sub(link, markdown))
    if name == "docs/api.md":
        text += "\n\n## Reference\n"  # else the contents list them below the last heading
        text += "".join(f"\n\n::: {source_of(public)}\n" for public, _ in PUBLIC.findall(text))
    return text


def source_of(name: str) -> str:
    """Return where a public name is defined, which is where its docstring is."""
    package, _, last = name.rpartition(".")
    if package == "kernbench.torch":  # describing it needs no PyTorch
        return f"{resolve_name(package)._WHERE[last]}.{last}"
    found = resolve_name(name)
    return name if isinstance(found, ModuleType) else f"{found.__module__}.{found.__qualname__}"


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Draw the charts of a page that has any; drop the loader of diagrams, which no notebook has."""
    output = MERMAID.sub("", output)
    if "data-chart=" not in output:
        return output
    here = relpath(VEGA, dirname(page.file.dest_uri) or ".")
    return output.replace("</body>", f'<script src="{here}"></script></body>')
