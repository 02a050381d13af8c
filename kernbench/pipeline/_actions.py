"""Actions of a pipeline schedule, tables of them by rank, and the messages between their stages."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kernbench._registry import hint
from kernbench.config._files import read_text
from kernbench.errors import ConfigError, quote

FORWARD, BACKWARD, INPUT, WEIGHT = COMPUTE = ("F", "B", "I", "W")
SENDS, RECEIVES, WAITED = ("SEND_F", "SEND_B"), ("RECV_F", "RECV_B"), ("WAIT_SEND_F", "WAIT_SEND_B")
WAIT_REDUCE_GRAD = "WAIT_REDUCE_GRAD"
SHARDS = ("UNSHARD", "RESHARD", "REDUCE_GRAD", WAIT_REDUCE_GRAD)
OVERLAP = "OVERLAP_F_B"
_KINDS = (*COMPUTE, *SENDS, *RECEIVES, *WAITED, *SHARDS)
_LONG = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
_ACTION = re.compile(r"(\d+)([A-Z_]+)(\d*)")
_MOST_BYTES = 1 << 26

Given = Mapping[int, Sequence[Any]] | str | Path | Any


@dataclass(frozen=True, slots=True)
class Action:
    """A step of a rank in a pipeline schedule: `2F0` is stage 2, forward, microbatch 0, as torch writes it.

    Parameters
    ----------
    stage : int
        Stage of the model.
    kind : str
        F (forward), B (backward), I and W (backward for the input and for the weights), SEND_F, RECV_F, SEND_B, RECV_B,
        WAIT_SEND_F, WAIT_SEND_B, UNSHARD, RESHARD, REDUCE_GRAD or WAIT_REDUCE_GRAD.
    microbatch : int, optional
        None for the last four.
    """

    stage: int
    kind: str
    microbatch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"

    @property
    def is_compute(self) -> bool:
        return self.kind in COMPUTE

    def as_kind(self, kind: str, stage: int | None = None) -> Action:
        """Return the action of another kind, for the same microbatch."""
        return Action(self.stage if stage is None else stage, kind, self.microbatch)


def parse_actions(text: str, where: str) -> list[Action]:
    """Return the actions of one entry of a table: none of an empty one, two of an overlap."""
    text = text.strip()
    inner = re.fullmatch(rf"\((.*)\){OVERLAP}", text)
    if inner:
        return [action for part in inner[1].split(";") for action in parse_actions(part, where)]
    if not text:
        return []
    found = _ACTION.fullmatch(text)
    kind = _LONG.get(found[2], found[2]) if found else ""
    if found is None or (kind in SHARDS) != (not found[3]) or kind not in _KINDS:
        raise ConfigError(
            f"{where} = {quote(text)}: expected stage, kind and microbatch, such as 2F0 or 1UNSHARD; "
            f"{hint(kind, _KINDS)}"
        )
    return [Action(int(found[1]), kind, int(found[3]) if found[3] else None)]


@dataclass(frozen=True)
class Table:
    """The actions of each rank, in order; every stage belongs to one rank."""

    ranks: tuple[tuple[Action, ...], ...]

    @classmethod
    def of(cls, given: Given) -> Table:
        """Read a mapping from ranks to actions, a CSV file of torch (a row for each rank), or a schedule of torch."""
        name, rows = _rows(given)
        ranks = [
            tuple(
                a
                for i, text in enumerate(row)
                if text is not None
                for a in parse_actions(str(text), f"{name}: rank {r}, {i}")
            )
            for r, row in enumerate(rows)
        ]
        found = cls(tuple(ranks))
        found._check(name)
        return found

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        return ((rank, action) for rank, actions in enumerate(self.ranks) for action in actions)

    @cached_property
    def home(self) -> dict[int, int]:
        return {action.stage: rank for rank, action in self}

    @cached_property
    def last_stage(self) -> int:
        return max(self.home)

    @cached_property
    def actions(self) -> frozenset[Action]:
        return frozenset(action for _, action in self)

    @cached_property
    def with_messages(self) -> bool:
        return any(action.kind in (*SENDS, *RECEIVES) for action in self.actions)

    def without_messages(self) -> Table:
        return Table(tuple(tuple(action for action in actions if action.is_compute) for actions in self.ranks))

    def backward(self, stage: int, microbatch: int | None) -> Action:
        """Return the action that computes the gradient of a stage's input: I, else B."""
        whole = Action(stage, BACKWARD, microbatch)
        split = Action(stage, INPUT, microbatch)
        return split if split in self.actions else whole

    def source(self, action: Action) -> Action | None:
        """Return the action of a neighbouring stage whose result this one needs, or None."""
        if action.kind == FORWARD and action.stage:
            return action.as_kind(FORWARD, action.stage - 1)
        if action.kind in (BACKWARD, INPUT) and action.stage < self.last_stage:
            return self.backward(action.stage + 1, action.microbatch)
        return None

    def target(self, action: Action) -> int | None:
        """Return the stage that needs an action's result, or None."""
        if action.kind == FORWARD and action.stage < self.last_stage:
            return action.stage + 1
        return action.stage - 1 if action.kind in (BACKWARD, INPUT) and action.stage else None

    def needs(self, action: Action) -> list[Action]:
        """Return the actions that must come first: on the same rank, except for the source."""
        source = self.source(action)
        found = [] if source is None else [source]
        if action.kind in (BACKWARD, INPUT):
            found.append(action.as_kind(FORWARD))
        if action.kind == WEIGHT:
            found.append(action.as_kind(INPUT))
        return found

    def is_message(self, source: Action | None, action: Action) -> bool:
        return source is not None and self.home.get(source.stage) != self.home[action.stage]

    def _check(self, name: str) -> None:
        faults: list[str] = []
        first: set[tuple[Action, int]] = set()
        for rank, action in self:
            if (action, rank) in first and (action.is_compute or action.kind in (*SENDS, *RECEIVES)):
                faults.append(f"{name}: rank {rank}: {action} is there twice")
            first.add((action, rank))
            if self.home[action.stage] != rank:
                faults.append(f"{name}: stage {action.stage} is on rank {rank} and on rank {self.home[action.stage]}")
        if not self.actions:
            faults.append(f"{name}: no rank has an action")
        elif missing := sorted({*range(self.last_stage + 1)} - self.home.keys()):
            faults.append(f"{name}: stage {missing[0]} of 0 to {self.last_stage} is on no rank")
        if faults:
            raise ConfigError(list(dict.fromkeys(faults)))


def _rows(given: Given) -> tuple[str, list[Sequence[Any]]]:
    if isinstance(given, (str, Path)):
        text = read_text(Path(given), _MOST_BYTES, "give a schedule's CSV file, with a row of actions for each rank")
        return str(given), list(csv.reader(text.splitlines()))
    orders = given
    for name in ("pipeline_order_with_comms", "pipeline_order", "_get_pipeline_order"):
        if hasattr(given, name):
            orders = getattr(given, name)
            orders = orders() if callable(orders) else orders
            break
    if not isinstance(orders, Mapping):
        raise ConfigError(
            f"orders = {quote(given)}: expected a mapping from ranks to actions, the path of a CSV file, or a schedule "
            "of torch.distributed.pipelining"
        )
    if sorted(orders) != [*range(len(orders))]:
        raise ConfigError(f"orders: ranks are {sorted(orders)}; expected 0 to {len(orders) - 1}")
    return "orders", [orders[rank] for rank in range(len(orders))]
