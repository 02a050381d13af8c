"""The recorded causes of a run, checked one by one: each ends when what followed from it began."""

from __future__ import annotations

import numpy as np

from kernbench._units import ns_to_ps
from kernbench.analysis._records import (
    ARRIVED,
    BEGIN,
    CREDIT,
    FETCH,
    HELD,
    MESSAGE,
    MOVE,
    NONE,
    PART,
    ROW,
    SENT,
    STAGES,
    STEP,
    STEP_KINDS,
)
from kernbench.analysis._stages import COMMAND_KINDS
from kernbench.analysis._transfer import RouteBreakdown

WHOLE = (*COMMAND_KINDS, "dma_in", "dma_out")


class Times:
    """When each event of a run was, whatever it is of."""

    def __init__(self, records):
        self.r, self.d = records, records.dependencies
        self.left = records.end_ps.copy()
        for row in np.flatnonzero(self.d.causes[:, 1] >> 32 & HELD).tolist():
            self.left[row] = self.of(int(self.d.causes[row, 1]) >> 32 & (HELD - 1))

        # A path through stages ends when its parts have passed since its cause, which the log has before it.
        self.paths = []
        took = sum(column for name, column in self.d.paths.items() if name.endswith("_ps"))
        for before, ps in zip(self.d.paths["before"].tolist(), np.atleast_1d(took).tolist(), strict=True):
            self.paths.append(None if before == NONE else self.of(before) + ps)

    def of(self, event):
        """Return the time of an event; None for a path of which nothing is known before it."""
        tag, i = event & 7, event >> 3
        return {
            ROW: lambda: int(self.left[i]),
            BEGIN: lambda: int(self.r.start_ps[i]),
            MOVE: lambda: int(self.d.transfers["end_ps"][i]),
            SENT: lambda: int(self.d.transfers["start_ps"][i]),
            ARRIVED: lambda: int(self.d.transfers["arrived_ps"][i]),
            STEP: lambda: int(self.d.steps["end_ps"][i]),
            STAGES: lambda: self.paths[i],
        }[tag]()


def wrong(records):
    """Return what does not begin when its decisive cause ends, or begins before another candidate: (what, times).

    And messages that take another time than alone, and as long as they waited for links. Turns in front of a PE's first
    link may delay parts between the first one and the last.
    """
    times, d, found = Times(records), records.dependencies, []
    pe = records.spec["cube"]["pe"]
    tile_ps = ns_to_ps(pe["pe_scheduler"]["tile_ns"])
    kinds = [records.kinds[kind] for kind in records.kind.tolist()]
    tiles = {x[0]: x[5] for x in d.stages.tolist() if records.kinds[x[1]] == "fetch"}

    def events(first, second):
        pairs = (first & 0xFFFFFFFF, first >> 32, second & 0xFFFFFFFF, second >> 32)
        return [x & (HELD - 1) for x in pairs]

    def check(what, start, candidates, tile=-1, lag=0, exact=True):
        first, *others = candidates
        if first == NONE:
            found.append((*what, "no cause", start))
            return
        t = times.of(first)
        if first & 7 == STEP and STEP_KINDS[d.steps["kind"][first >> 3]] == "lookup" and tile >= 0:
            t += (tile + 1) * tile_ps
        if exact and t + lag != start:
            found.append((*what, first & 7, t + lag, start))
        ends = [(other & 7, at + lag) for other in others if other != NONE and (at := times.of(other)) is not None]
        found.extend((*what, "later", *end, start) for end in ends if end[1] > start)

    for i, kind in enumerate(kinds):
        *own, room = events(*map(int, d.causes[i]))
        if kind == "skew":
            continue
        what = kind, i
        if kind in WHOLE:
            check(what, int(records.end_ps[i]), own)
        else:
            check(what, int(records.start_ps[i]), own, int(records.tile[i]))
            if room and not int(d.causes[i, 1]) >> 32 & HELD and times.of(room) > records.end_ps[i]:
                found.append((*what, "room", times.of(room)))
    for i, move in enumerate(d.at(slice(None))):
        *own, last = events(*map(int, d.sent[i]))
        host = move.command < 0 or records.commands[move.command].pe < 0
        what = "move", move.kind, i
        if move.kind == PART and last:
            check((*what, "in slot"), move.end_ps, [last])
            last = NONE
        if host and own[0] == NONE:
            continue
        from_host = host and (move.kind != MESSAGE or d.nodes[d.routes[move.route][0]] == "host")
        tile = move.tile if move.kind not in (PART, CREDIT, FETCH, MESSAGE) else -1
        check(what, move.start_ps, [*own, last], tile, exact=not from_host)
    routes = RouteBreakdown(records)
    for i, move in enumerate(d.at(slice(None))):
        if move.kind not in (MESSAGE, PART, CREDIT) or ".hbm_ctrl." in routes.ends(move.route)[1]:
            continue
        took = (move.arrived_ps if move.kind == PART else move.end_ps) - move.start_ps
        parts = routes.parts(move.route, move.nbytes, took, waits=d.waits_of(move))
        rest = [part for part in parts if part.kind == "queueing" and not part.behind]
        whole = sum(part.ps for _, part in routes.leg(move.route, move.nbytes, waits=d.waits_of(move)))
        if whole > took and move.nbytes <= 256:
            found.append(("waits", i, "longer than it took", took))
        if any(move.kind != PART or ".pe_dma->" not in part.resource for part in rest):
            found.append(("waits", i, "something else delayed it", rest[0].ps))
    for i in range(len(d.steps["end_ps"])):
        end, ps, kind = (int(d.steps[name][i]) for name in ("end_ps", "ps", "kind"))
        own = events(int(d.steps["cause"][i]), int(d.steps["more"][i]))
        name, lag = STEP_KINDS[kind], 0
        if own[0] == NONE:
            continue
        if name == "lookup" and own[0] & 7 == STEP and STEP_KINDS[d.steps["kind"][own[0] >> 3]] == "lookup":
            lag = tiles.get(int(d.steps["command"][own[0] >> 3]), 0) * tile_ps
            own = own[:1]
        if name == "start":
            own = own[:1]
        check((name, i), end - ps, own, lag=lag)
    return found
