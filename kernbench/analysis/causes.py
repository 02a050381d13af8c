"""What a log keeps beside its rows so that each row's cause can be told: who moved what, and what came first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

READ, WRITE, MESSAGE, PART, CREDIT, FETCH = range(6)

# A transaction with a memory, or a message. `served_ps` is when the memory was done, at work without a gap from
# `since_ps` on, when transaction `opener` had come; -1 where a memory does not say, and for messages. A part of a
# message between PEs (its number: `tile`) is in its slot at the end; `opener` is the credit that it waited for, or -1.
# A credit is the receive's whose slot it gives back; a fetch reads a part that is sent from memory.
MOVES = {
    "start_ps": np.int64, "end_ps": np.int64, "route": np.int32, "nbytes": np.int64, "command": np.int32,
    "tile": np.int32, "kind": np.int8, "key": np.int64, "arrived_ps": np.int64, "since_ps": np.int64,
    "opener": np.int64, "served_ps": np.int64,
}  # fmt: skip
_LINKS = {"wire_ps": np.int64, "node_ps": np.int64, "bw_gbs": np.float64}
_ORDER = ("issued", "after", "begin")


def _none(columns: Mapping[str, type]) -> dict[str, np.ndarray]:
    return {name: np.zeros(0, dtype) for name, dtype in columns.items()}


def _no_rows(n: int) -> np.ndarray:
    return np.zeros((0, n), np.int64)


@dataclass(frozen=True, eq=False)
class Causes:
    """Moves over the fabric and the order of commands, for one run.

    Parameters
    ----------
    moves : dict of arrays
        Columns of `MOVES`.
    nodes : tuple of str
        Nodes that routes pass.
    routes : tuple of tuple of int
        Nodes on the way of a message, or of a read's data and a write's acknowledgement.
    links : dict of (int, int) to (wire ps, node ps, GB/s)
        Latency of a link from node to node, overhead of the node behind it, bandwidth.
    issued : int64 array of shape (n, 3)
        (command, ps of its issue by PE_CPU, launch that it belongs to or -1).
    after, begin : int64 array of shape (n, 2)
        (command, command that comes before it); (launch, ps of the common start).
    """

    moves: dict[str, np.ndarray] = field(default_factory=lambda: _none(MOVES))
    nodes: tuple[str, ...] = ()
    routes: tuple[tuple[int, ...], ...] = ()
    links: dict[tuple[int, int], tuple[int, int, float]] = field(default_factory=dict)
    issued: np.ndarray = field(default_factory=partial(_no_rows, 3))
    after: np.ndarray = field(default_factory=partial(_no_rows, 2))
    begin: np.ndarray = field(default_factory=partial(_no_rows, 2))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the numbers as arrays, to be saved; the names of nodes go elsewhere."""
        links = list(self.links.values())
        return {
            **{f"move_{name}": column for name, column in self.moves.items()},
            "route_nodes": np.array([n for route in self.routes for n in route], np.int32),
            "route_lengths": np.array([len(route) for route in self.routes], np.int32),
            "hop_ends": np.array(list(self.links), np.int32).reshape(-1, 2),
            **{f"hop_{name}": np.array([x[i] for x in links], dt) for i, (name, dt) in enumerate(_LINKS.items())},
            **{f"command_{name}": getattr(self, name) for name in _ORDER},
        }

    @classmethod
    def take(cls, arrays: dict[str, Any], nodes: tuple[str, ...]) -> Causes:
        """Return what `arrays` gave, and remove it from them."""
        moves = {name: arrays.pop(f"move_{name}") for name in MOVES}
        flat = iter(arrays.pop("route_nodes").tolist())
        routes = tuple(tuple(next(flat) for _ in range(n)) for n in arrays.pop("route_lengths").tolist())
        ends = arrays.pop("hop_ends").tolist()
        values = zip(*(arrays.pop(f"hop_{name}").tolist() for name in _LINKS), strict=True)
        links = {(a, b): value for (a, b), value in zip(ends, values, strict=True)}
        return cls(moves, nodes, routes, links, **{name: arrays.pop(f"command_{name}") for name in _ORDER})
