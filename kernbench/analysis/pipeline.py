"""The stages of one PE as its tile log shows them: what each tile came from, and when it could leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from kernbench.analysis.records import WRITE, Records

ENGINES = ("pe_fetch_store.fetch", "pe_gemm", "pe_math", "pe_fetch_store.store")


class Stages:
    """Rows of the engines of one PE, joined by the buffers between them.

    A tile leaves a stage when it is served and a buffer behind is free; that is when the stage behind takes the
    tile that lies `buffers` before it.
    """

    def __init__(self, records: Records, pe: str, writes: dict[tuple[int, int], int], buffers: int) -> None:
        self._records, self._buffers = records, buffers
        components = {name: i for i, name in enumerate(records.components)}
        fetch, gemm, math, store = (
            np.flatnonzero(records.component == components.get(f"{pe}.{engine}", -1)).tolist() for engine in ENGINES
        )
        self.before = {b: a for rows in (fetch, gemm, math, store) for a, b in pairwise(rows)}
        self.source: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.taken: dict[int, int | tuple[int, int]] = {}
        command, tile = records.command.tolist(), records.tile.tolist()
        self.row = {
            (command[r], tile[r], stage): r
            for stage, rows in zip("fgms", (fetch, gemm, math, store), strict=True)
            for r in rows
        }
        tiles, outputs = _count(command, fetch), _count(command, store)
        self.kt = {c: max(1, n // max(1, outputs.get(c, 0))) for c, n in tiles.items()}
        self.tiles = tiles
        math = [r for r in math if tile[r] >= 0]
        products, vectors = {command[r] for r in gemm}, {command[r] for r in math}

        def of(rows: Iterable[int], which: Callable[[int], bool]) -> list[int]:
            return [r for r in rows if which(command[r])]

        last = [r for r in gemm if (tile[r] + 1) % self.kt.get(command[r], 1) == 0]
        self._join(of(fetch, products.__contains__), gemm)
        self._join(of(fetch, lambda c: c not in products), of(math, lambda c: c not in products))
        self._join(of(last, vectors.__contains__), of(math, products.__contains__))
        self._join(of(last, lambda c: c not in vectors), of(store, lambda c: c not in vectors))
        self._join(math, of(store, vectors.__contains__))
        written = {c for c, _ in writes}
        leaving = [(r, (command[r], tile[r])) for r in store if command[r] in written]
        ends = records.end_ps
        for (_, before), (row, _) in zip(leaving, leaving[buffers:], strict=False):
            if before in writes and writes[before] > ends[row]:
                self.left[row], self.taken[row] = writes[before], before

    def _join(self, puts: Sequence[int], takes: Sequence[int]) -> None:
        start, end = self._records.start_ps, self._records.end_ps
        self.source.update((take, put) for put, take in zip(puts, takes, strict=False))
        for take, put in zip(takes, puts[self._buffers :], strict=False):
            if start[take] > end[put]:
                self.left[put], self.taken[put] = int(start[take]), take


def first_writes(moves: dict[str, np.ndarray], chosen: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return when the first request to write each (command, output tile) was sent, of the moves `chosen`."""
    sent: dict[tuple[int, int], int] = {}
    for i in chosen:
        if moves["kind"][i] == WRITE and moves["tile"][i] >= 0:
            output, start = (int(moves["command"][i]), int(moves["tile"][i])), int(moves["start_ps"][i])
            sent[output] = min(start, sent.get(output, start))
    return sent


def _count(command: Sequence[int], rows: Iterable[int]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for r in rows:
        counts[command[r]] = counts.get(command[r], 0) + 1
    return counts
