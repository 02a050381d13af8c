"""The picture as a widget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from kernbench.viz._picture import module_js, style_css

if TYPE_CHECKING:
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
    """

    _esm = module_js()
    _css = style_css()
    header = traitlets.Dict().tag(sync=True)
    buffers = traitlets.Dict().tag(sync=True)
    live = traitlets.Dict().tag(sync=True)
    live_index = traitlets.Dict().tag(sync=True)
    selected = traitlets.Unicode("").tag(sync=True)

    def show(self, scene: Scene) -> None:
        """Show a scene; what was live is over."""
        header, buffers = scene
        with self.hold_sync():
            self.header, self.buffers, self.live = header, buffers, {}

    def on_message(self, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call `callback` with each message of the picture, such as `{"do": "run"}`."""
        self.on_msg(lambda _widget, message, _buffers: callback(message))
