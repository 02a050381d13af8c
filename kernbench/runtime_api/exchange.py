"""Exchanges: parts of one rank's tensor become parts of another's, wherever both lie.

Any PE reaches any shard of its SIP, so each run of bytes has one carrier on either device: the PE that holds it at its
target. A part that is replicated there has a carrier for each copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import simpy

from kernbench.ccl.algorithm import Algorithm, Neighbours, algorithm
from kernbench.ccl.algorithms import Copy, Message, exchange
from kernbench.ccl.group import Subgroup, Target
from kernbench.errors import PlacementError
from kernbench.runtime_api.device_tensor import DeviceTensor
from kernbench.runtime_api.regions import Region, Run, elements, rows, runs, whole

if TYPE_CHECKING:
    from kernbench.runtime_api.host import Host

MOST_RUNS = 4096


@dataclass(frozen=True, slots=True)
class Route:
    """A part of a tensor of member `source` that becomes a part of one of member `target`."""

    source: int
    target: int
    of: DeviceTensor
    to: DeviceTensor
    runs: Sequence[Run]


@dataclass(slots=True)
class Task:
    """What one PE does in an exchange: the arguments of its kernel."""

    sends: list[Message] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of its kernel."""
        return tuple(self.sends), tuple(self.receives), tuple(self.copies)


@dataclass(frozen=True, slots=True)
class Pairs:
    """The graph of those members that send each other something, either way."""

    pairs: frozenset[tuple[int, int]]

    def __call__(self, subgroup: Subgroup) -> Neighbours:
        """Return each member's neighbours: `to0`, `to1`, ..."""
        joined = self.pairs | {(b, a) for a, b in self.pairs}
        return [
            {f"to{peer}": (peer, f"to{me}") for peer in range(subgroup.world_size) if (me, peer) in joined}
            for me in range(subgroup.world_size)
        ]


def no_args(*, n_elem: int, world_size: int) -> tuple[()]:
    """Return nothing: all that the kernel gets stands in its buffers."""
    return ()


def direct(name: str, pairs: frozenset[tuple[int, int]]) -> Algorithm:
    """Return the algorithm by which members send each other parts of their tensors."""
    return algorithm(exchange, no_args, name="exchange", topology=Pairs(pairs), mapper="by_shard", collective=name)


def tasks(routes: Sequence[Route], members: int) -> list[dict[Target, Task]]:
    """Return what the PEs of each member do; the same PEs of all, some with nothing to do."""
    places = sorted({place for route in routes for run in route.runs for place in run.holders})
    found = [{place: Task() for place in places} for _ in range(members)]
    for route in routes:
        src, dst = route.of.pointer, route.to.pointer
        for run in route.runs:
            for place in run.holders:
                if route.source == route.target:
                    found[route.source][place].copies.append((src + run.source, dst + run.target, run.n))
                else:
                    found[route.source][place].sends.append((route.target, src + run.source, run.n))
                    found[route.target][place].receives.append((route.source, dst + run.target, run.n))
    return found


def checked_runs(part: Region, other: Region) -> list[Run]:
    """Return the runs from a part of one tensor to a part of another.

    Raises
    ------
    PlacementError
        If there are too many.
    """
    found = runs(part, other)
    if len(found) > MOST_RUNS:
        raise PlacementError(
            f"a part of shape {part.shape} of one tensor lies in {len(found):,} runs of bytes of another, more than "
            f"{MOST_RUNS}; give both the same DPPolicy, or cut them along dim 0 (row_wise)"
        )
    return found


def route(source: int, target: int, of: DeviceTensor, to: DeviceTensor, part: Region, other: Region) -> Route:
    """Return the way from a part of one member's tensor to a part of another's."""
    return Route(source, target, of, to, checked_runs(part, other))


def matching(of: DeviceTensor, to: DeviceTensor) -> tuple[Region, Region]:
    """Return two tensors with the same elements as regions of one shape.

    Raises
    ------
    PlacementError
        If they were placed in different shapes, and the parts of one are not in row-major order.
    """
    if of.layout.shape == to.layout.shape and tuple(of.shape) == tuple(to.shape):
        return whole(of.layout), whole(to.layout)
    part, other = elements(of.layout, 0, of.numel()), elements(to.layout, 0, to.numel())
    if part is None or other is None:
        raise out_of_order(of, to)
    return part, other


def between(source: int, of: DeviceTensor, target: int, to: DeviceTensor) -> Route:
    """Return the way from all of one member's tensor to all of another's."""
    return route(source, target, of, to, *matching(of, to))


def rows_between(source: int, of: DeviceTensor, first: int, target: int, to: DeviceTensor, at: int, n: int) -> Route:
    """Return the way from `n` rows (of dim 0) of one member's tensor, from `first` on, to another's at `at`."""
    placed = (tuple(of.shape), tuple(to.shape)) == (of.layout.shape, to.layout.shape)
    if placed and of.shape[1:] == to.shape[1:]:
        part, other = rows(of.layout, first, first + n), rows(to.layout, at, at + n)
        return route(source, target, of, to, part, other)
    row = of.numel() // max(of.shape[0], 1)
    found = elements(of.layout, first * row, (first + n) * row), elements(to.layout, at * row, (at + n) * row)
    if found[0] is None or found[1] is None:
        raise out_of_order(of, to)
    return route(source, target, of, to, found[0], found[1])


def out_of_order(of: DeviceTensor, to: DeviceTensor) -> PlacementError:
    """Return the error of two tensors whose elements cannot be matched."""
    return PlacementError(
        f"{of.name} {tuple(of.shape)} and {to.name} {tuple(to.shape)}: their shapes differ, and the parts of one do "
        "not lie in row-major order; use the shapes in which they were placed, or the DPPolicy row_wise"
    )


def copying(host: Host, routes: Sequence[Route], name: str) -> Callable[[], simpy.Event]:
    """Return what starts the PEs of one device on copies between tensors there, and holds these until then."""
    (own,) = tasks(routes, 1)
    args: Mapping[Target, tuple[Any, ...]] = {place: task.args for place, task in own.items()}

    def start() -> simpy.Event:
        return host.engine.launch(routes[0].of.sip, list(own), exchange, args, name).done

    return start
