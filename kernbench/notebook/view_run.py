"""The live view: run and cancel, a frame some times a second, and the replay of what was too short to watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as widgets

from kernbench.notebook.live import frame_html
from kernbench.notebook.model import Explorer
from kernbench.notebook.state import DONE
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
        self.run = button("Run", "", "play", lambda: explorer.run(again=explorer.current), "primary")
        self.run.add_class("kb-run")
        self.cancel = button("Cancel", "End the run that is under way", "stop", explorer.cancel)
        self.cancel.add_class("kb-cancel")
        self.auto = widgets.Checkbox(
            explorer.auto, description="run again by itself", indent=False, layout={"width": "auto"},
            tooltip="after a change, when the run is estimated to take less than a second",
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
            if explorer.current
            else ("Run", "Simulate this work on this machine, or show it at once if it is in the cache")
        )
        self.cancel.disabled = not state.busy
        estimate = explorer.estimate_s()
        self.note.value = (
            explorer.obstacle
            if not state.busy and explorer.obstacle
            else f"takes about {_rounded(estimate)}"
            if estimate is not None
            else ""
        )
        finished = state.finished
        if finished is not None and finished.film is not self._film:
            self._film = finished.film
            if finished.replays:
                self.play.value = self.at.value = 0
                self.play.playing = True
            else:
                self.play.playing = False
                self.play.value = self.at.value = STEPS
        self.replay.layout.display = "flex" if state.status == DONE else "none"
        self._show()

    def _show(self) -> None:
        state, status, message = self._explorer.state, self._explorer.status, self._explorer.message
        if state.status != DONE or state.finished is None:
            self.frame.value = frame_html(state.frame, status, message)
            return
        film = state.finished.film
        frame = film.frame(round(film.end_ps * self.at.value / STEPS)) if self.at.value < STEPS else state.frame
        self.frame.value = frame_html(frame, status, message, film.end_ps / 1000)


def _rounded(seconds: float) -> str:
    """Return a time as well as an estimate knows it: one digit, no unit smaller than 0.1 s."""
    if seconds < 1:
        return f"{max(0.1, seconds):.1f} s"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 5400 else f"{seconds / 3600:,.0f} h"
