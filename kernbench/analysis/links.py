"""How busy links were."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from kernbench.analysis.records import LinkTable, Records


def shares(links: LinkTable, span_ps: int) -> dict[str, float]:
    """Return the share of `span_ps` that each link was busy, for links that were at all."""
    busy = zip(links.names, links.busy_ps.tolist(), strict=True)
    return {name: ps / span_ps for name, ps in busy if ps} if span_ps else {}


def hottest(share: Mapping[str, float]) -> str:
    """Return the link that was busy longest, the first by name (numbers as numbers) of several."""
    return min(share, key=lambda name: (-share[name], _natural(name)))


class Crossings:
    """What crossed the links of a run, and when.

    Parameters
    ----------
    records : Records

    Notes
    -----
    How busy a link was in a part of the run is not in the log. It is taken in proportion to the bytes that crossed
    it, and those of a transfer as evenly spread over the transfer: right for the whole run, an estimate for a part.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        causes, index = records.causes, {name: i for i, name in enumerate(records.links.names)}
        pairs = []
        for number, route in enumerate(causes.routes):
            names = [causes.nodes[node] for node in route]
            for src, dst in pairwise(names):  # in both directions: a transaction goes out and comes back
                pairs += [(number, index[x]) for x in (f"{src}->{dst}", f"{dst}->{src}") if x in index]
        table = np.array(pairs, np.int64).reshape(-1, 2)
        self._route, self._link = table[:, 0], table[:, 1]

    def between(self, start_ps: int, end_ps: int) -> LinkTable:
        """Return the traffic of every link in a part of the run."""
        table, moves, whole_ps = self._records.links, self._records.causes.moves, self._records.makespan_ps
        if start_ps <= 0 and end_ps >= whole_ps:
            return table
        length = np.maximum(1, moves["end_ps"] - moves["start_ps"])
        before, after = (np.clip((t - moves["start_ps"]) / length, 0, 1) for t in (start_ps, end_ps))
        inside, in_all = self._crossed(after - before), self._crossed(np.ones(len(length)))
        share = np.where(in_all > 0, inside / np.maximum(1, in_all), (end_ps - start_ps) / whole_ps)
        busy, nbytes = (np.rint(column * share).astype(np.int64) for column in (table.busy_ps, table.nbytes))
        return LinkTable(table.names, nbytes, busy, table.bw_gbs)

    def _crossed(self, share: np.ndarray) -> np.ndarray:
        """Return the bytes that crossed each link, of each move a share."""
        moves, causes = self._records.causes.moves, self._records.causes
        by_route = np.bincount(moves["route"], moves["nbytes"] * share, len(causes.routes))
        return np.bincount(self._link, by_route[self._route], len(self._records.links.names))


def _natural(name: str) -> list[str | int]:
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", name)]
