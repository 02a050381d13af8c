"""The op log: one row per operation (or per stage of a tile), kept in blocks of columns."""

from __future__ import annotations

import numpy as np

from kernbench.analysis.records import COLUMNS, CommandInfo

LEVELS = ("off", "operation", "tile")
KINDS = (
    "load", "store", "fetch", "gemm", "math", "dma_in", "dma_out", "store_tcm", "composite", "launch", "h2d", "d2h",
    "map", "skew",
)  # fmt: skip
KIND = {name: i for i, name in enumerate(KINDS)}
_BLOCK = 16384


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
        self._rows: list[tuple[int, ...]] = []
        self._blocks: list[np.ndarray] = []

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

    def columns(self) -> dict[str, np.ndarray]:
        """Return all rows so far as columns."""
        self._flush()
        table = np.concatenate(self._blocks) if self._blocks else np.zeros((0, len(COLUMNS)), np.int64)
        return {name: table[:, i].astype(dtype) for i, (name, dtype) in enumerate(COLUMNS.items())}

    def _flush(self) -> None:
        if self._rows:
            self._blocks.append(np.array(self._rows, np.int64))
            self._rows.clear()
