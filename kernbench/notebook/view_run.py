"""The live view: run and cancel, a frame some times a second, and the replay of what was too short to watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as widgets

from kernbench.notebook.live import frame_html
from kernbench.notebook.model import Explorer
from kernbench.notebook.state import RUNNING
from kernbench.notebook.style import button, row

if TYPE_CHECKING:
    from kernbench.notebook.frames import Film

STEPS = 60
_INTERVAL_MS = 50
SPEEDS = {"x 1/4": 0.25, "x 1": 1.0, "x 4": 4.0}


class RunPanel:
    """Shows the present run.

    Parameters
    ----------
    explorer : Explorer
    """

    def __init__(self, explorer: Explorer) -> None:
        self._explorer = explorer
        self._film: Film | None = None
        self.run = button("Run", "", "play", lambda: explorer.run(again=explorer.shown), "primary")
        self.run.add_class("kb-run")
        self.cancel = button("Cancel", "End the run that is under way", "stop", explorer.cancel)
        self.cancel.add_class("kb-cancel")
        self.auto = widgets.Checkbox(
            explorer.auto, description="run again by itself", indent=False, layout={"width": "auto"},
            tooltip="after a change, when the run is estimated to take less than half a second",
        )  # fmt: skip
        self.auto.add_class("kb-auto")
        self.auto.observe(lambda change: setattr(explorer, "auto", change["new"]), "value")
        self.note = widgets.HTML()
        self.note.add_class("kb-note")
        self.frame = widgets.HTML()
        self.frame.add_class("kb-live")
        self.play = widgets.Play(max=STEPS, interval=_INTERVAL_MS, show_repeat=False, tooltip="replay the run")
        self.play.add_class("kb-play")
        self.at = widgets.IntSlider(max=STEPS, tooltip="simulated time", readout=False, layout={"flex": "1 1 200px"})
        self.at.add_class("kb-scrub")
        self.speed = widgets.Dropdown(
            options=SPEEDS, value=1.0, tooltip="speed of the replay", layout={"width": "80px"}
        )
        widgets.jslink((self.play, "value"), (self.at, "value"))
        self.at.observe(lambda _: self._show(), "value")
        self.speed.observe(lambda change: setattr(self.play, "interval", round(_INTERVAL_MS / change["new"])), "value")
        self.replay = row("replay", self.play, self.at, self.speed, tip="the run again, from its log")
        self.root = widgets.VBox([widgets.HBox([self.run, self.cancel, self.auto, self.note]), self.frame, self.replay])
        self.refresh()

    def refresh(self) -> None:
        """Show the state as it is; may be called from any thread."""
        explorer, state = self._explorer, self._explorer.state
        self.run.disabled = bool(explorer.obstacle)
        self.run.description, self.run.tooltip = (
            ("Run again", "Simulate this once more, whatever is in the cache")
            if explorer.shown
            else ("Run", "Simulate this work on this machine, or show it at once if it is in the cache")
        )
        self.cancel.disabled = state.status != RUNNING
        estimate = explorer.estimate_s()
        self.note.value = (
            explorer.obstacle
            if not state.busy and explorer.obstacle
            else f"takes about {estimate:.1f} s"
            if estimate
            else ""
        )
        if state.film is not self._film:
            self._film = state.film
            if state.replays:
                self.play.value = self.at.value = 0
                self.play.playing = True
            else:
                self.play.playing = False
                self.play.value = self.at.value = STEPS
        self.replay.layout.display = "none" if state.film is None else "flex"
        self._show()

    def _show(self) -> None:
        state = self._explorer.state
        if state.film is None:
            self.frame.value = frame_html(state.frame, state.status, state.message)
            return
        end = state.film.end_ps
        frame = state.film.frame(round(end * self.at.value / STEPS)) if self.at.value < STEPS else state.frame
        self.frame.value = frame_html(frame, state.status, state.message, end / 1000)
