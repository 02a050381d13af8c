"""Ranks: programs of one host, each on a greenlet, that share one clock.

A rank gives way only where it waits for an event. The clock then runs until some rank can go on; when none can,
the error names every rank and what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import simpy
from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.errors import DeadlockError, KernbenchError
from kernbench.sim_engine.limits import Expired
from kernbench.sim_engine.lines import place_in, place_of

if TYPE_CHECKING:
    from kernbench.sim_engine.engine import GraphEngine


class Rank:
    """One rank: its program, and what it waits for.

    Attributes
    ----------
    error : BaseException or None
        What its program ended with.
    doom : Exception or None
        What it is to be told, in place of a silent end, when the ranks are stopped.
    """

    def __init__(self, index: int, program: Callable[[], object]) -> None:
        self.index = index
        self.error: BaseException | None = None
        self.doom: Exception | None = None
        self.is_stopped = False
        self.what: object = None
        self.since_ps = 0
        self.greenlet = greenlet(self._run)
        self._program = program

    def _run(self) -> None:
        try:
            self._program()
        except SystemExit as exit_:
            self.error = exit_ if exit_.code else None
        except Expired as expired:
            self.error = expired.error(f"rank {self.index} at {place_of(expired.__traceback__)}")
        except GreenletExit as exit_:
            if not self.is_stopped:
                self.error = exit_
        except Exception as error:  # noqa: BLE001  every error of a rank is told by whoever joins it
            self.error = error

    @property
    def has_ended(self) -> bool:
        """Whether its program has returned or failed."""
        return bool(self.greenlet.dead)

    def block(self, what: object, now_ps: int) -> None:
        """Give way until somebody switches back."""
        if self.is_stopped:
            raise GreenletExit
        self.what, self.since_ps = what, now_ps
        self.greenlet.parent.switch()
        self.what = None

    def go_on(self) -> None:
        """Run until it blocks or ends."""
        self.greenlet.parent = getcurrent()
        self.greenlet.switch()

    def stop(self) -> None:
        """End it where it stands: by `doom`, by the error of what it waits in, or silently."""
        self.is_stopped = True
        if not self.has_ended:
            told: Exception | None = self.doom or getattr(self.what, "error", None)
            self.greenlet.parent = getcurrent()
            self.greenlet.throw(told or GreenletExit())
            self.error = self.error or told

    @property
    def place(self) -> str:
        """Where in the user's program it waits."""
        return f"rank {self.index} at {place_in(self.greenlet.gr_frame)}"

    def describe(self) -> str:
        """Return what it waits for and since when."""
        return f"rank {self.index}, in {self.what}, since {self.since_ps / 1000:,.2f} ns"


class Ranks:
    """The ranks of one spawn, and the rule by which they and the clock take turns.

    While they live, the engine hands every wait of the host to `wait`.

    Parameters
    ----------
    engine : GraphEngine
        Whose clock they share.
    programs : sequence of callable
        One for each rank.
    at_end : callable
        Called once when none of them is left.

    Attributes
    ----------
    errors : dict
        What ranks failed with, the first failure first.
    """

    def __init__(
        self, engine: GraphEngine, programs: Sequence[Callable[[], object]], at_end: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._at_end = at_end
        self.ranks = [Rank(i, program) for i, program in enumerate(programs)]
        self._by_greenlet = {rank.greenlet: rank for rank in self.ranks}
        self._ready = list(self.ranks)
        self._yielded: list[Rank] = []
        self._wake = simpy.Event(engine.env)
        self.errors: dict[int, BaseException] = {}
        self.is_over = False
        engine.waiter = self.wait

    @property
    def current(self) -> Rank | None:
        """The rank that is running; None outside of them."""
        return self._by_greenlet.get(getcurrent())

    def wait(self, event: simpy.Event, what: object) -> None:
        """Let others go on until `event` has happened."""
        if event.processed:
            return
        rank = self.current
        if rank is None:
            self._run(event, what)
            return
        self._when(event, rank)
        rank.block(what, self._engine.env._now)

    def give_way(self) -> None:
        """Let the other ranks that can continue do so before the calling one, at the same simulated time."""
        rank = self.current
        if rank is not None:
            self._yielded.append(rank)
            rank.block("cooperative_yield", self._engine.env._now)

    def join(self) -> None:
        """Run until every rank has ended; what went wrong is in `errors` then."""
        self._run(None, None)

    def over(self, indices: Sequence[int]) -> list[int]:
        """Return those of some ranks that have ended."""
        return [i for i in indices if self.ranks[i].has_ended]

    def stop(self, first: int = 0) -> None:
        """End every rank where it stands, beginning with `first`."""
        interrupt: KeyboardInterrupt | None = None
        for rank in self.ranks[first:] + self.ranks[:first]:
            try:
                rank.stop()
            except KeyboardInterrupt as caught:  # the others still have to end
                interrupt = caught
            if rank.error is not None:
                self.errors.setdefault(rank.index, rank.error)
        self._ready.clear()
        self._yielded.clear()
        if not self.is_over:
            self.is_over = True
            self._engine.waiter = None
            self._at_end()
        if interrupt is not None:
            raise interrupt

    def _run(self, event: simpy.Event | None, what: object) -> None:
        """Take turns until `event` has happened; with None, until every rank has ended."""
        if event is not None:
            self._when(event, None)
        try:
            while not (self.is_over if event is None else event.processed):
                if not self._ready:
                    self._ready, self._yielded = self._yielded, self._ready
                if self._ready:
                    self._turn()
                else:
                    self._advance(event, what)
        except BaseException:
            self.stop()
            raise

    def _turn(self) -> None:
        """Let the first rank of those that can go on do so; a failure ends all."""
        rank = min(self._ready, key=lambda rank: rank.index)
        self._ready.remove(rank)
        rank.go_on()
        if rank.error is not None:
            self.errors[rank.index] = rank.error
        if rank.error is not None or all(other.has_ended for other in self.ranks):
            self.stop()

    def _advance(self, event: simpy.Event | None, what: object) -> None:
        """Run the clock until some rank can go on; an error of the simulated machine is one of every rank."""
        self._wake = simpy.Event(self._engine.env)
        try:
            if not self._engine.advance(self._wake):
                self._nothing_left(what)
        except KernbenchError as error:
            for rank in self.ranks:
                rank.doom = _twin(error)
            # A rank drives the SIP of its number, and what fails on a PE says first on which.
            self.stop(first=next((i for i in range(len(self.ranks)) if str(error).startswith(f"sip{i}.")), 0))
            if event is not None:
                raise

    def _nothing_left(self, what: object) -> None:
        waiting = [rank.describe() for rank in self.ranks if not rank.has_ended]
        if what is not None:
            waiting.append(f"the host, for {what}")
        if self._engine.programs:
            self._engine.deadlock(waiting)
        lines = "".join(f"\n  {line}" for line in waiting)
        raise DeadlockError(f"nothing can go on at {self._engine.now_ns:,.2f} ns; waiting:{lines}")

    def _when(self, event: simpy.Event, rank: Rank | None) -> None:
        """Let `rank`, or whoever runs the ranks, go on when `event` has happened."""
        assert event.callbacks is not None

        def happened(_: Any) -> None:
            if rank is not None and not rank.has_ended:
                self._ready.append(rank)
            if not self._wake.triggered:
                self._wake.succeed()

        event.callbacks.append(happened)


def _twin(error: Exception) -> Exception:
    """Return the same error for one more rank to raise, caused by the first."""
    twin = copy(error)
    twin.__cause__ = error
    return twin
