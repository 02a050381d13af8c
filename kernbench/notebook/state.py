"""A run of the explorer: what was asked for, and what came of it. Plain values, replaced as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.analysis.result import Result
    from kernbench.analysis.why import Why
    from kernbench.notebook.frames import Film, Frame
    from kernbench.notebook.job import Options, Outcome
    from kernbench.notebook.parameters import Value
    from kernbench.notebook.works import Work
    from kernbench.topology.builder import Machine

IDLE, RUNNING, DONE, FAILED, CANCELLED = "idle", "running", "done", "failed", "cancelled"
OUTDATED = "outdated"
REPLAY_S = 2.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A run of the history.

    Attributes
    ----------
    number : int
        From 1 on.
    work : Work
    values : dict
        Its parameters.
    machine : Machine
    source : str
        Its file or preset.
    overrides : tuple of str
        Changes to that, as `kb.load` takes them.
    options : Options
    latency_ns, seconds : float
        Simulated time, and the host's.
    found : bool
        Whether it was found in the cache; the host's time is that of the run that made it.
    """

    number: int
    work: Work
    values: dict[str, Value]
    machine: Machine = field(repr=False)
    source: str
    overrides: tuple[str, ...]
    options: Options
    latency_ns: float = 0.0
    seconds: float = 0.0
    found: bool = False

    @property
    def title(self) -> str:
        """What ran: the work and its parameters."""
        return " ".join([self.work.name, *(f"{name}={value}" for name, value in self.values.items())])

    @property
    def name(self) -> str:
        """What the result is called."""
        return f"#{self.number} {self.title}"


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that ended well.

    Attributes
    ----------
    entry : Entry
    outcome : Outcome
        With a result.
    film : Film
        Its log, for the replay.
    why : Why or str or None
        Its critical path, or why there is none; None while that is being computed.
    """

    entry: Entry
    outcome: Outcome
    film: Film
    why: Why | str | None = None

    @property
    def result(self) -> Result:
        """What the run came to."""
        assert self.outcome.result is not None
        return self.outcome.result

    @property
    def replays(self) -> bool:
        """Whether the run was too short to be watched, or was not run now, and is to be shown again."""
        return self.outcome.made > 0 or self.outcome.seconds < REPLAY_S


@dataclass(frozen=True, slots=True)
class State:
    """The present run, and the finished one that the tabs show.

    Attributes
    ----------
    status : str
        Of the present run: "idle", "running", "done", "failed" or "cancelled".
    message : str
        What to tell the user with it.
    frame : Frame or None
        Where the present run is, or ended.
    entry : Entry or None
        The present run.
    finished : Finished or None
        The last run that ended well; it stays while another one runs, fails or is cancelled.
    """

    status: str = IDLE
    message: str = ""
    frame: Frame | None = None
    entry: Entry | None = None
    finished: Finished | None = None

    @property
    def busy(self) -> bool:
        """Whether a run is under way."""
        return self.status == RUNNING
