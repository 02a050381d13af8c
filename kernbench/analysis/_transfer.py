"""The zero-load time of a transfer and its parts, in closed form, and the breakdown of a simulated one.

The closed form uses numbers only: the links of the route, and the timing of the memory's bursts. The rest of a
simulated transfer's time is queueing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

from kernbench._units import ACK_BYTES, FLIT_BYTES, flits, ns_to_ps, serialization_ps
from kernbench.analysis._records import TRANSFER_KINDS, Records, Wait
from kernbench.config._schema import Hbm


@dataclass(frozen=True, slots=True)
class TimePart:
    """A part of a step's time: its kind, its component or link, and for a wait what was in front."""

    kind: str
    resource: str
    ps: int
    behind: str = ""


class RouteBreakdown:
    def __init__(self, records: Records) -> None:
        self._records, self._dependencies, links = records, records.dependencies, records.links
        self._flit_bytes = flit_bytes_of(records.spec)
        self.command_bytes: int = records.spec.get("system", {}).get("command_bytes", 0)
        self._busy = dict(zip(links.names, links.busy_ps.tolist(), strict=True))

    def ends(self, route: int) -> tuple[str, str]:
        nodes, path = self._dependencies.nodes, self._dependencies.routes[route]
        return nodes[path[0]], nodes[path[-1]]

    def links(self, route: int) -> list[str]:
        nodes = self._dependencies.nodes
        path = [nodes[i] for i in self._dependencies.routes[route]]
        return [f"{a}->{b}" for direction in (path, path[::-1]) for a, b in pairwise(direction)]

    def slowest(self, route: int) -> tuple[str, float]:
        hops = self._hops(self._dependencies.routes[route])
        return min(((link, bw) for link, *_, bw, _, _ in hops), key=itemgetter(1))

    def parts(
        self, route: int, nbytes: int, ps: int, *, reverse: bool = False, count: int = 1,
        waits: Sequence[Wait] | None = None,
    ) -> list[TimePart]:  # fmt: skip
        """Split the `ps` that `nbytes`, `count` times, took over a route or its reverse; the parts sum to `ps`.

        What latencies, times on links and `waits` do not explain is queueing: for its turn at a PE's first link, or
        else at the busiest link.
        """
        leg = self.leg(route, nbytes, reverse=reverse, count=count, waits=waits or ())
        links = [part.resource for _, part in leg if part.kind in ("fill", "serialization")]
        turns = waits is not None and ".pe_dma->" in links[0]
        at = links[0] if turns else max(links, key=lambda link: self._busy.get(link, 0))
        return cut_to(ps, leg, "queueing", at)

    def leg(
        self, route: int, nbytes: int, *, reverse: bool = False, count: int = 1, waits: Sequence[Wait] = ()
    ) -> list[tuple[int, TimePart]]:
        """Nominal parts of `nbytes`, `count` times, over a route or its reverse, each with its rank for `cut_to`.

        Each link adds its wait, a flit's time, and its latency; the slowest one adds the time of all flits. A wait
        before the slowest link may be hidden, because earlier flits are still on that link meanwhile.
        """
        path = self._dependencies.routes[route]
        hops = self._hops(path[::-1] if reverse else path)
        size = min(nbytes, self._flit_bytes)
        times = [flit_ps(size, bw, header, cycle) for *_, bw, header, cycle in hops]
        slowest = times.index(max(times))
        found: list[tuple[int, TimePart]] = []
        for i, (link, node, wire_ps, node_ps, *_) in enumerate(hops):
            found += [
                (2, self._wait(wait, bool(hops[i][-1])))
                for wait in waits
                if self._records.links.names[wait.link] == link
            ]
            if i == slowest:
                found.append((1, TimePart("serialization", link, times[i] * flits(nbytes, self._flit_bytes) * count)))
            else:
                found.append((0, TimePart("fill", link, times[i] * count)))
            found += [(0, TimePart("wire", link, wire_ps * count)), (0, TimePart("nodes", node, node_ps * count))]
        return found

    def _wait(self, wait: Wait, credits: bool) -> TimePart:
        behind = "a full buffer or what the log leaves out" if credits else "what the log leaves out"
        if wait.front >= 0:
            kind, command = (int(self._dependencies.transfers[name][wait.front]) for name in ("kind", "command"))
            of = self._records.commands[command]
            behind = f"{TRANSFER_KINDS[kind]} of {of.name}" + (f" of {of.place}" if of.pe >= 0 else "")
        return TimePart("queueing", self._records.links.names[wait.link], wait.ps, behind)

    def _hops(self, path: Sequence[int]) -> list[tuple[str, str, int, int, float, int, int]]:
        """For each hop: link, node at its end, and the link's numbers from the records."""
        nodes, links = self._dependencies.nodes, self._dependencies.links
        return [(f"{nodes[a]}->{nodes[b]}", nodes[b], *links.get((a, b), (0, 0, 0.0, 0, 0))) for a, b in pairwise(path)]


def cut_to(ps: int, wanted: Sequence[tuple[int, TimePart]], kind: str, resource: str) -> list[TimePart]:
    """Cut parts to a total of `ps`, lowest rank first; the remainder becomes another part, the first."""
    left, parts = ps, [part for _, part in wanted]
    for i in sorted(range(len(wanted)), key=lambda i: wanted[i][0]):
        parts[i] = replace(parts[i], ps=min(parts[i].ps, left))
        left -= parts[i].ps
    return [part for part in (TimePart(kind, resource, left), *parts) if part.ps]


def flit_bytes_of(spec: Mapping[str, Any]) -> int:
    """Flit size of a machine; older records do not contain the field."""
    return int(spec.get("system", {}).get("flit_bytes", FLIT_BYTES))


def flit_ps(nbytes: int, bw_gbs: float, header_bytes: int, cycle_ps: int) -> int:
    """Time of a flit on a link [ps]: whole cycles if the link has cycles."""
    ps = serialization_ps(nbytes + header_bytes, bw_gbs)
    return -(-ps // cycle_ps) * cycle_ps if cycle_ps else ps


TRANSFER_PARTS = ("wire", "nodes", "fill", "serialization", "memory", "queueing")


@dataclass(frozen=True, slots=True)
class TransferLeg:
    bw_gbs: float
    wire_ps: int
    node_ps: int
    header_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Channels:
    """Timing of a memory's bursts; consecutive bursts are on neighbouring channels."""

    count: int
    burst_bytes: int
    burst_ps: int
    access_ps: int = 0

    @classmethod
    def of(cls, hbm: Hbm) -> Channels:
        burst_ps = hbm.burst_ps
        return cls(hbm.channels, hbm.burst_bytes, burst_ps, ns_to_ps(hbm.access_ns))


@dataclass(frozen=True, slots=True)
class TransferParts:
    """The parts of a transfer's time [ps]; they sum to it exactly."""

    wire: int = 0
    nodes: int = 0
    fill: int = 0
    serialization: int = 0
    memory: int = 0
    queueing: int = 0

    @property
    def total(self) -> int:
        return self.wire + self.nodes + self.fill + self.serialization + self.memory + self.queueing

    def __add__(self, other: TransferParts) -> TransferParts:
        return TransferParts(*(getattr(self, name) + getattr(other, name) for name in TRANSFER_PARTS))

    def measured(self, total_ps: int) -> TransferParts:
        """Parts of a transfer that took `total_ps` under load: the excess is queueing."""
        return replace(self, queueing=self.queueing + total_ps - self.total)

    def columns(self) -> dict[str, float]:
        return {f"{name}_ns": getattr(self, name) / 1000 for name in TRANSFER_PARTS}


def message_parts(legs: Sequence[TransferLeg], nbytes: int, flit_bytes: int = FLIT_BYTES) -> TransferParts:
    """Parts of one message over `legs`.

    Notes
    -----
    sum(p_i) + sum(s_i) + (q - 1) max(s_i) with s_i = (min(f, n) + h_i) / b_i, for q flits of f bytes and headers of
    h_i: wire and nodes, then fill and serialization. s_i is rounded up to a picosecond. docs/model.md, M4.1.

    Examples
    --------
    >>> message_parts([TransferLeg(256, 30, 1000), TransferLeg(128, 0, 8000)], 1024).total / 1000
    18.03
    """
    times = [serialization_ps(min(nbytes, flit_bytes) + leg.header_bytes, leg.bw_gbs) for leg in legs]
    slowest = max(times)
    return TransferParts(
        wire=sum(leg.wire_ps for leg in legs),
        nodes=sum(leg.node_ps for leg in legs),
        fill=sum(times) - slowest,
        serialization=flits(nbytes, flit_bytes) * slowest,
    )


def read_parts(
    there: Sequence[TransferLeg], back: Sequence[TransferLeg], nbytes: int, memory: Channels, offset: int = 0, *,
    flit_bytes: int = FLIT_BYTES, command_bytes: int = 0,
) -> TransferParts:  # fmt: skip
    """Parts of a read without load: command, memory, data on the way back."""
    data = message_parts(back, nbytes, flit_bytes)
    q, m = flits(nbytes, flit_bytes), _bursts(nbytes, offset, memory)
    d = data.serialization // q
    late = 0
    for j in range(q):
        bursts = _ceil((j + 1) * m, q)
        late = max(late, _ceil(bursts, memory.count) * memory.burst_ps - j * d)
    return message_parts(there, command_bytes, flit_bytes) + data + TransferParts(memory=late + memory.access_ps)


def write_parts(
    there: Sequence[TransferLeg], back: Sequence[TransferLeg], nbytes: int, memory: Channels, offset: int = 0, *,
    flit_bytes: int = FLIT_BYTES,
) -> TransferParts:  # fmt: skip
    """Parts of a write without load: data, memory, an acknowledgement of 16 B."""
    data = message_parts(there, nbytes, flit_bytes)
    q, m = flits(nbytes, flit_bytes), _bursts(nbytes, offset, memory)
    d = data.serialization // q
    free: dict[int, int] = {}
    for i in range(m):
        arrival = (_ceil((i + 1) * q, m) - 1) * d
        channel = i % memory.count
        free[channel] = max(free.get(channel, 0), arrival) + memory.burst_ps
    return data + TransferParts(memory=max(free.values()) - (q - 1) * d) + message_parts(back, ACK_BYTES, flit_bytes)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _bursts(nbytes: int, offset: int, memory: Channels) -> int:
    return (offset + nbytes - 1) // memory.burst_bytes - offset // memory.burst_bytes + 1
