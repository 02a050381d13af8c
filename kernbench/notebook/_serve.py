"""Servers of the explorer: JupyterLab on the notebooks, or the explorer alone as a page."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kernbench.config._files import damaged, read_json, write_text
from kernbench.errors import ConfigError, MissingModuleError
from kernbench.sim_engine._limits import NO_LIMITS, Limits

_NOTEBOOK = "explorer.ipynb"
LAB = "lab"
_PAGE, PAGE_RUNS = "KERNBENCH_PAGE", "KERNBENCH_PAGE_RUNS"
PAGE_LIMITS = Limits(events=100_000_000, host_s=120)
PAGE_MEMORY_BYTES = 4 << 30
PAGE_IDLE_S = 1800
_COPIED = "kernbench_copied"
_SHARE = Path(__file__).parent / "share"


def notebook() -> Path:
    """Find the explorer's notebook: in `notebooks`, nearest upward, else next to the package or in it (a wheel)."""
    here = Path.cwd().resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2], _SHARE):
        if (folder / "notebooks" / _NOTEBOOK).is_file():
            return folder / "notebooks" / _NOTEBOOK
    raise ConfigError(
        f"no notebooks/{_NOTEBOOK} in or above {here}; run this in a checkout of kernbench, or call "
        "kernbench.notebook.explore() in a notebook of your own"
    )


def copy_notebooks(root: Path) -> Path:
    """Copy the notebooks of a checkout to its folder `lab`, which git ignores, or those of the package to `lab`, here.

    JupyterLab saves the notebooks that it displays, so those under version control would change. A copy whose cells
    were edited is kept; another one is updated from its original.
    """
    lab = Path.cwd() / LAB if root == _SHARE else root / LAB
    try:
        for original in sorted(path for name in ("notebooks", "milestones") for path in (root / name).glob("*.ipynb")):
            _copy(original, lab / original.relative_to(root))
        for data in root.glob("milestones/*/data"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(data, lab / data.relative_to(root), ignore=ignored, dirs_exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{lab}: cannot be written ({error.strerror or error}); run this in another folder"
        ) from error
    return lab


def _copy(original: Path, copy: Path) -> None:
    what, remedy = "notebook", "restore it from version control"
    content = read_json(original, what, remedy)
    with damaged(original, what, remedy):
        cells = _cells(content)
    if copy.is_file():
        try:
            present = read_json(copy, what, remedy)
            with damaged(copy, what, remedy):
                copied, same = present["metadata"].get(_COPIED), _cells(present)
        except ConfigError:  # a file of the user
            return
        if copied == cells or copied != same:
            return
    content["metadata"].pop("jupytext", None)  # a copy is not paired
    content["metadata"][_COPIED] = cells
    copy.parent.mkdir(parents=True, exist_ok=True)
    write_text(copy, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    _sign(copy)


def _sign(copy: Path) -> None:
    """Trust a copy's outputs; JupyterLab displays no drawing of an untrusted one before its cell has run."""
    _needs("nbformat", "notebook")
    import nbformat
    from nbformat.sign import NotebookNotary

    with suppress(OSError):  # the signatures' folder may not be writable
        notary: Any = NotebookNotary()  # type: ignore[no-untyped-call]
        with closing(notary.store):
            notary.sign(nbformat.read(copy, as_version=4))  # type: ignore[no-untyped-call]


def _cells(notebook: dict[str, Any]) -> str:
    sources = [[cell["cell_type"], "".join(cell["source"])] for cell in notebook["cells"]]
    return sha256(json.dumps(sources).encode()).hexdigest()


def lab_arguments(folder: Path, port: int | None = None, browser: bool = True) -> list[str]:
    _needs("jupyterlab", "notebook")
    arguments = [
        f"--LabApp.default_url=/lab/tree/notebooks/{_NOTEBOOK}",
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.ip=127.0.0.1",
        f"--LabApp.app_settings_dir={_SHARE / 'lab'}",
    ]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--allow-root")  # a container's only user is root
    return [*arguments, *([f"--ServerApp.port={port}"] if port else []), *([] if browser else ["--no-browser"])]


def web_arguments(
    token: str, port: int, browser: bool = True, theme: str = "light", idle_s: int = PAGE_IDLE_S
) -> list[str]:
    """Arguments with which Voila serves the explorer alone, on loopback, behind a token.

    Visitors cannot send code: the server forwards only messages of widgets to their kernel. Limits on kernels are in
    `kernbench.notebook._page`.
    """
    _needs("voila", "web")
    options = {
        "Voila.ip": "127.0.0.1",
        "Voila.token": token,
        "Voila.kernel_websocket_connection_class": "kernbench.notebook._page.PageConnection",
        "Voila.custom_display_url": f"http://127.0.0.1:{port}/?token={token}",
        "VoilaConfiguration.file_allowlist": "[]",
        "VoilaConfiguration.extension_denylist": "['jupyterlab-jupytext', '@jupyter-notebook/lab-extension']",
        "VoilaConfiguration.template": "kernbench",
        "VoilaConfiguration.allow_template_override": "NO",
        "VoilaConfiguration.multi_kernel_manager_class": "kernbench.notebook._page.PageKernels",
        "MappingKernelManager.cull_idle_timeout": idle_s,
        "MappingKernelManager.cull_interval": min(60, idle_s),
        "MappingKernelManager.cull_connected": True,
        "VoilaConfiguration.theme": theme,
    }
    arguments = [str(notebook()), f"--port={port}", *(f"--{name}={value}" for name, value in options.items())]
    return arguments if browser else [*arguments, "--no-browser"]


def serve_page(arguments: list[str]) -> None:
    paths = [str(_SHARE / "jupyter"), os.environ.get("JUPYTER_PATH", "")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(x for x in paths if x)
    os.environ[_PAGE] = "1"  # its kernels inherit it
    from traitlets.config import Config
    from voila.app import Voila

    from kernbench.notebook._page import note_visitor

    Voila.launch_instance(arguments, config=Config({"VoilaConfiguration": {"prelaunch_hook": note_visitor}}))


def is_page() -> bool:
    """On a page, files are downloaded, not written, and no code can be named."""
    return os.environ.get(_PAGE) == "1"


def page_limits() -> Limits:
    """Limits on the runs of this kernel; on a page, also limit its memory from now on."""
    if not is_page():
        return NO_LIMITS
    if sys.platform == "linux":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = PAGE_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(PAGE_MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    return PAGE_LIMITS


@dataclass(frozen=True, slots=True)
class Quota:
    """Limit on the runs of a visitor in an hour, counted in a file that all pages of a visitor share."""

    most: int
    path: Path

    @property
    def spent(self) -> bool:
        times = self.path.read_text("utf-8").split()[-self.most :] if self.path.exists() else []
        return sum(abs(time.time() - float(x)) < 3600 for x in times) >= self.most

    def take(self) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{time.time()}\n")


def page_quota() -> Quota | None:
    most, _, path = os.environ.get(PAGE_RUNS, "").partition(" ")
    return Quota(int(most), Path(path)) if path else None


def _needs(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise MissingModuleError(f"{module} is not installed; pip install 'kernbench[{extra}]'")
