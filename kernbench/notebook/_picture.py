"""The picture as a widget."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from kernbench.analysis._records import Records
from kernbench.analysis.result import Result
from kernbench.config._files import write_text
from kernbench.errors import ArgumentError, KernbenchError
from kernbench.notebook._live import Frame
from kernbench.sweeps._saved import MOST_PARTS
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.viz._picture import module_js, picture_html, style_css
from kernbench.viz._scene import Scene, made_offline, scene, scene_of
from kernbench.viz._timeline import packed_trace
from kernbench.viz._why import handle_why
from kernbench.viz.still import Still, still_svg, still_title


class Picture(anywidget.AnyWidget):
    """Shows a machine and, if there is one, a run on it."""

    note = ""  # what ran, for pages
    _records: Records | None = None
    _esm = module_js()
    _css = style_css()
    header = traitlets.Dict().tag(sync=True)
    buffers = traitlets.Dict().tag(sync=True)
    # A moment of a run in progress: `now_ns`, `link_load` and `node_load`, a byte for each name of `live_index`.
    live = traitlets.Dict().tag(sync=True)
    live_index = traitlets.Dict().tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)
    answers = traitlets.List(traitlets.Unicode()).tag(sync=True)
    small = traitlets.Bool(False).tag(sync=True)  # low, for text around it; begins with the part that worked

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self._callbacks: dict[str, Callable[[dict[str, Any]], object]] = {}
        self._parts: list[bytes] = []
        self.on_msg(self._receive)

    def show(self, scene: Scene, records: Records | None = None) -> None:
        """Show a scene and end a live run; the trace is made of `records` on request."""
        header, buffers = scene
        self._records = records
        with self.hold_sync():
            self.header, self.buffers, self.live = header, buffers, {}

    def show_live(self, frame: Frame) -> None:
        index = {"links": frame.links, "nodes": frame.nodes}
        with self.hold_sync():
            if index != self.live_index:
                self.live_index = index
            loads = {"link_load": frame.link_load.tobytes(), "node_load": frame.node_load.tobytes()}
            self.live = {"now_ns": frame.now_ns, **loads}

    def answer(self, **callbacks: Callable[[dict[str, Any]], object]) -> None:
        """Set a callback for each message; the picture shows controls only for these.

        `run` has no values, `set` has `field` and `value`, `change` has `values` by field, `open_file` has `name` and
        `content` of a result.
        """
        self._callbacks |= callbacks
        self.answers = sorted(self._callbacks)

    def refuse(self, text: str) -> None:
        """Say why a change by the user is not shown; the controls return to what is shown."""
        self.send({"do": "refuse", "text": text})

    def _receive(self, _: Picture, message: dict[str, Any], buffers: list[memoryview]) -> None:
        what = message.get("do", "")
        if what == "open_trace" and self._records is not None:
            self.send({"do": "trace"}, [packed_trace(self._records)])
        elif self._records is not None and (found := handle_why(message, self._records)):
            self.send(found)
        if what == "open_file":
            if not message["part"]:
                self._parts.clear()
            if len(self._parts) < MOST_PARTS:
                self._parts.append(bytes(buffers[0]))
            if message["part"] + 1 < message["parts"]:
                return
            message = {"do": what, "name": message["name"], "content": b"".join(self._parts)}
            self._parts.clear()
        if what in self._callbacks:
            self._callbacks[what](message)

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file that needs no kernel and no network.

        Parameters
        ----------
        path : str or Path
            "run.html" becomes a page with machine view, clock and timeline, whose address says what is looked at, as in
            `run.html#t=1200&sel=sip0.cube0&zoom=sip0`; "run.svg", a still.

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
        return picture_html(made_offline(scene, self._records) if self._records is not None else scene, self.note)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**data, **Still(still_svg((self.header, self.buffers))).bundle}, metadata

    def __repr__(self) -> str:
        return f"Picture of {still_title(self.header)}" if self.header else "Picture"


def picture(of: Machine | Result, run: Callable[[Machine], Result] | None = None) -> Picture:
    """Return the picture of a machine, or of a run: the machine with its loads over time.

    In a notebook it shows itself: zoom with the wheel, play the clock, click a part. Without a kernel it is a still.

    Parameters
    ----------
    of : Machine or Result
        What `kb.load`, a session, `kb.run` or `kb.read` returns.
    run : callable, optional
        `run(machine)` returns the result on another machine. The fields of a component can then be dragged: the picture
        shows what `run` returns for the changed machine.

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
    made = Picture(small=True)
    result = getattr(of, "result", of)
    if isinstance(of, Machine):
        machine = of
        made.show(scene(machine))
    elif isinstance(result, Result):
        machine = _machine_of(result)
        made.show(scene_of(machine, result), result.records)
        made.note = str(result.manifest)
    else:
        raise ArgumentError(f"a picture shows a machine or a result, not {type(of).__name__}")
    if run is not None:
        _runs_again(made, machine, run)
    return made


def _runs_again(shown: Picture, machine: Machine, run: Callable[[Machine], Result]) -> None:
    def start(change: dict[str, Any]) -> None:
        nonlocal machine
        try:
            changed = machine.with_({change["field"]: change["value"]}) if "field" in change else machine
        except KernbenchError as error:
            shown.refuse(str(error))
            return
        try:
            result = run(changed)
            shown.show(scene_of(changed, result), result.records)
            machine = changed
        except Exception as error:  # noqa: BLE001 - whatever a user's program raises is shown to its user
            shown.refuse(f"{type(error).__name__}: {error}")

    shown.answer(run=start, set=start)


def _machine_of(result: Result) -> Machine:
    if not result.records.spec:
        raise ArgumentError(f"{result.name}: the result does not contain its machine; run it again")
    found = resolve_topology(result.records.spec)
    name = result.manifest.machine
    return found if name in ("", "mapping") else Machine(found.config, name, result.manifest.overrides)
