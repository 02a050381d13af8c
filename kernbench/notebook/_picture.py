"""The picture as a widget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from kernbench.analysis.result import Result
from kernbench.config._files import write_text
from kernbench.errors import ArgumentError
from kernbench.sweeps._saved import MOST_PARTS, SavedResult
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.viz._picture import module_js, picture_html, style_css
from kernbench.viz._scene import scene, scene_of
from kernbench.viz._still import still_svg, title_of
from kernbench.viz._timeline import packed_trace

if TYPE_CHECKING:
    from kernbench.analysis._records import Records
    from kernbench.viz._scene import Scene


class Picture(anywidget.AnyWidget):
    """Shows a machine and, if there is one, a run on it.

    Attributes
    ----------
    header, buffers : dict
        The scene.
    live : dict
        One moment of a run under way: `now_ns`, and `link_load` and `node_load`, a byte for each name of `live_index`.
        Empty when none is under way.
    live_index : dict
        Names of `links` and `nodes`. It changes only when more of them are used.
    selected : str
        The component or link that is selected; empty if none.
    note : str
        What ran, for pages.
    """

    note = ""
    _records: Records | None = None
    _esm = module_js()
    _css = style_css()
    header = traitlets.Dict().tag(sync=True)
    buffers = traitlets.Dict().tag(sync=True)
    live = traitlets.Dict().tag(sync=True)
    live_index = traitlets.Dict().tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_msg(self._answer)

    def show(self, scene: Scene, records: Records | None = None) -> None:
        """Show a scene; what was live is over. The trace is made of `records`, when it is asked for."""
        header, buffers = scene
        self._records = records
        with self.hold_sync():
            self.header, self.buffers, self.live = header, buffers, {}

    def _answer(self, _: Picture, message: dict[str, Any], _buffers: list[memoryview]) -> None:
        if message.get("do") == "open_trace" and self._records is not None:
            self.send({"do": "trace"}, [packed_trace(self._records)])

    def on_message(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call `callback` with each message of the picture, such as `{"do": "run"}`.

        A file that was dropped on it is the message `{"do": "open_file", "name": ..., "content": ...}`.
        """
        parts: list[bytes] = []

        def receive(_: Picture, message: dict[str, Any], buffers: list[memoryview]) -> None:
            if buffers:
                if not message["part"]:
                    parts.clear()
                if len(parts) < MOST_PARTS:
                    parts.append(bytes(buffers[0]))
                if message["part"] + 1 < message["parts"]:
                    return
                message = {"do": message["do"], "name": message["name"], "content": b"".join(parts)}
                parts.clear()
            callback(message)

        self.on_msg(receive)

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file that needs no kernel and no network.

        Parameters
        ----------
        path : str or Path
            "run.html" becomes a page with machine view, clock and timeline; "run.svg", a still.

        Returns
        -------
        Path

        Raises
        ------
        ArgumentError
            If the name of the file ends in neither.

        Examples
        --------
        >>> import kernbench as kb
        >>> kb.picture(kb.load()).save("machine.html")  # doctest: +SKIP
        PosixPath('machine.html')
        """
        path = Path(path)
        makers = {".html": self._page, ".svg": still_svg}
        if path.suffix not in makers:
            raise ArgumentError(f"{path}: the name must end in {' or '.join(makers)}")
        return write_text(path, makers[path.suffix]((self.header, self.buffers)))

    def _page(self, scene: Scene) -> str:
        header, buffers = scene
        trace = {"trace": packed_trace(self._records)} if self._records is not None else {}
        return picture_html((header, buffers | trace), self.note)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, "image/svg+xml": still_svg((self.header, self.buffers))}, metadata

    def __repr__(self) -> str:
        return f"Picture of {title_of(self.header)}" if self.header else "Picture"


def picture(of: Machine | Result) -> Picture:
    """Return the picture of a machine, or of a run: the machine with its loads over time.

    In a notebook it shows itself: zoom with the wheel, play the clock, click a part. Without a kernel it is a still.

    Parameters
    ----------
    of : Machine or Result
        What `kb.load`, a session, `kb.run` or `kb.read` returns.

    Returns
    -------
    Picture
        With `save("run.html")`, which writes a page that needs no kernel and no network.

    Raises
    ------
    ArgumentError
        If `of` is neither, or is a result that does not contain its machine.

    Examples
    --------
    >>> import kernbench as kb
    >>> kb.picture(kb.load("preset:small"))
    Picture of preset:small
    """
    made = Picture()
    if isinstance(of, Machine):
        made.show(scene(of))
        return made
    result = getattr(of, "result", of)
    if not isinstance(result, Result):
        raise ArgumentError(f"a picture shows a machine or a result, not {type(of).__name__}")
    if not result.records.spec:
        raise ArgumentError(f"{result.name}: the result does not contain its machine; run it again")
    found = resolve_topology(result.records.spec)
    machine = Machine(found.config, f"machine {found.hash[:12]}")
    made.note = str(result.manifest) if isinstance(result, SavedResult) else ""
    made.show(scene_of(machine, result), result.records)
    return made
