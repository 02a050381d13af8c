"""The op log: one row per operation (or per stage of a tile), kept in blocks of columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kernbench.analysis.causes import CREDIT, MESSAGE, MOVES, PART
from kernbench.analysis.records import COLUMNS, CommandInfo

if TYPE_CHECKING:
    from kernbench.sim_engine.clock import Clock
    from kernbench.sim_engine.route import Route
    from kernbench.sim_engine.transfer import Transaction

LEVELS = ("off", "operation", "tile")
KINDS = (
    "load", "store", "fetch", "gemm", "math", "dma_in", "dma_out", "store_tcm", "composite", "launch", "h2d", "d2h",
    "map", "skew", "send", "recv", "install",
)  # fmt: skip
KIND = {name: i for i, name in enumerate(KINDS)}
_BLOCK = 16384
_UNKNOWN = (-1, -1, -1, -1)


class OpLog:
    """Rows (start, end, component, kind, command, nbytes, flops, tile), in ps, bytes and ids.

    `operation` is False when nothing is kept; `tiles` is True when stages of tiles are kept, too.
    """

    def __init__(self, level: str = "operation") -> None:
        if level not in LEVELS:
            raise ValueError(f"log = {level!r} is unknown; known: {', '.join(LEVELS)}")
        self.level = level
        self.operation, self.tiles = level != "off", level == "tile"
        self.components: dict[str, int] = {}
        self.commands: list[CommandInfo] = []
        self.routes: dict[Route, int] = {}
        self.issued: list[tuple[int, int, int]] = []
        self.after: list[tuple[int, int]] = []
        self._rows: list[tuple[int, ...]] = []
        self._blocks: list[np.ndarray] = []
        self._moves: list[tuple[int, ...]] = []
        self._move_blocks: list[np.ndarray] = []

    def component(self, name: str) -> int:
        """Return the id of a component's name."""
        return self.components.setdefault(name, len(self.components))

    def command(self, info: CommandInfo) -> int:
        """Enter a command; return its id."""
        self.commands.append(info)
        return len(self.commands) - 1

    def row(
        self, start: int, end: int, component: int, kind: int, command: int, nbytes: int, flops: int, tile: int
    ) -> None:
        """Add a row."""
        rows = self._rows
        rows.append((start, end, component, kind, command, nbytes, flops, tile))
        if len(rows) == _BLOCK:
            self._flush()

    def issue(self, command: int, issued: int, launch: int, after: list[int]) -> None:
        """Add when PE_CPU has issued a command, of which launch (or -1), and the commands that it comes after."""
        self.issued.append((command, issued, launch))
        self.after.extend((command, other) for other in after if other >= 0)

    def transfer(self, start: int, end: int, txn: Transaction, command: int, tile: int, kind: int) -> None:
        """Add a transaction with a memory: when it was asked for and when it was complete at its asker."""
        route = self.routes.setdefault(txn.back, len(self.routes))
        moves = self._moves
        moves.append((start, end, route, txn.nbytes, command, tile, kind, txn.key, *(txn.served or _UNKNOWN)))
        if len(moves) == _BLOCK:
            self._flush()

    def heard(
        self, clock: Clock, route: Route, nbytes: int, command: int, fn: Callable[[Any], None]
    ) -> Callable[[Any], None]:
        """Return `fn` for the arrival of a message that is sent now, which is logged then."""
        if not self.operation:
            return fn
        sent = clock._now
        number = self.routes.setdefault(route, len(self.routes))

        def arrived(arg: Any) -> None:
            self._moves.append((sent, clock._now, number, nbytes, command, -1, MESSAGE, -1, *_UNKNOWN))
            fn(arg)

        return arrived

    def part(self, slot: Any) -> None:
        """Add a part of a message between PEs, which is in its slot now."""
        message, number = slot.message, self.routes.setdefault(slot.route, len(self.routes))
        times = slot.arrived_ps, -1, slot.credit, slot.since_ps
        self._moves.append(
            (slot.sent_ps, slot.since_ps, number, slot.nbytes, message.id, slot.index, PART, slot.key, *times)
        )

    def credit(self, route: Route, sent: int, now: int, nbytes: int, slot: Any, key: int) -> None:
        """Add a credit for a slot, which has arrived."""
        number, receive = self.routes.setdefault(route, len(self.routes)), slot.message.claimed
        command = receive.id if receive is not None else -1
        self._moves.append((sent, now, number, nbytes, command, slot.index, CREDIT, key, *_UNKNOWN))

    def moves(self) -> dict[str, np.ndarray]:
        """Return all transactions and messages so far as columns."""
        self._flush()
        table = _joined(self._move_blocks, len(MOVES))
        return {name: table[:, i].astype(dtype) for i, (name, dtype) in enumerate(MOVES.items())}

    def columns(self) -> dict[str, np.ndarray]:
        """Return all rows so far as columns."""
        self._flush()
        table = _joined(self._blocks, len(COLUMNS))
        return {name: table[:, i].astype(dtype) for i, (name, dtype) in enumerate(COLUMNS.items())}

    def _flush(self) -> None:
        if self._rows:
            self._blocks.append(np.array(self._rows, np.int64))
            self._rows.clear()
        if self._moves:
            self._move_blocks.append(np.array(self._moves, np.int64))
            self._moves.clear()


def _joined(blocks: list[np.ndarray], width: int) -> np.ndarray:
    return np.concatenate(blocks) if blocks else np.zeros((0, width), np.int64)
