"""The closed form of a transfer alone: when it ends on an idle machine, and which part of that is what.

Everything is a number passed in: the links of the way, and how memory serves bursts. Whatever a simulated
transfer takes beyond this is queueing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernbench.units import FLIT_BYTES, flits, ns_to_ps, serialization_ps

if TYPE_CHECKING:
    from kernbench.config.cube import Hbm

COMMAND_BYTES, ACK_BYTES = 0, 16
PARTS = ("wire", "nodes", "fill", "serialization", "memory", "queueing")


@dataclass(frozen=True, slots=True)
class Leg:
    """One link of a way.

    Attributes
    ----------
    bw_gbs : float
        Its bandwidth.
    wire_ps : int
        Propagation, and the wire's own latency.
    node_ps : int
        Overhead of the node behind it.
    """

    bw_gbs: float
    wire_ps: int
    node_ps: int


@dataclass(frozen=True, slots=True)
class Channels:
    """How a memory serves bursts: consecutive ones lie on neighbouring channels.

    Attributes
    ----------
    count, burst_bytes, burst_ps : int
        Channels, size of a burst, and how long a channel takes for one.
    access_ps : int
        What a read pays once; occupies nothing.
    """

    count: int
    burst_bytes: int
    burst_ps: int
    access_ps: int = 0

    @classmethod
    def of(cls, hbm: Hbm) -> Channels:
        """Return those of one HBM slice of a machine."""
        burst_ps = serialization_ps(hbm.burst_bytes, hbm.channel_bw_gbs * hbm.efficiency)
        return cls(hbm.channels, hbm.burst_bytes, burst_ps, ns_to_ps(hbm.access_ns))


@dataclass(frozen=True, slots=True)
class Parts:
    """Where the time of a transfer went, in ps; the parts sum to it exactly.

    Attributes
    ----------
    wire, nodes : int
        Latency of the links, overheads of the nodes.
    fill : int
        One flit's time on every link but the slowest.
    serialization : int
        All flits on the slowest link.
    memory : int
        What memory adds: channels that start later or serve slower than the links carry.
    queueing : int
        All the rest: waiting for other transfers.
    """

    wire: int = 0
    nodes: int = 0
    fill: int = 0
    serialization: int = 0
    memory: int = 0
    queueing: int = 0

    @property
    def total(self) -> int:
        """The time of the whole transfer [ps]."""
        return self.wire + self.nodes + self.fill + self.serialization + self.memory + self.queueing

    def __add__(self, other: Parts) -> Parts:
        return Parts(*(getattr(self, name) + getattr(other, name) for name in PARTS))

    def measured(self, total_ps: int) -> Parts:
        """Return the parts of a transfer that took `total_ps` under load: what is too long is queueing."""
        return replace(self, queueing=self.queueing + total_ps - self.total)

    def columns(self) -> dict[str, float]:
        """Return the parts in ns, as columns `<part>_ns`."""
        return {f"{name}_ns": getattr(self, name) / 1000 for name in PARTS}


def message(legs: Sequence[Leg], nbytes: int) -> Parts:
    """Return the parts of one message over `legs`.

    Notes
    -----
    sum(p_i) + sum(min(f, n) / b_i) + max(0, n - f) / min(b_i) with n in whole flits of f = 256 B beyond one: wire
    and nodes, then fill and serialization. A flit's time is rounded up to a picosecond. docs/model.md, M4.1.

    Examples
    --------
    >>> message([Leg(256, 30, 1000), Leg(128, 0, 8000)], 1024).total / 1000
    18.03
    """
    times = [serialization_ps(min(nbytes, FLIT_BYTES), leg.bw_gbs) for leg in legs]
    slowest = max(times)
    return Parts(
        wire=sum(leg.wire_ps for leg in legs),
        nodes=sum(leg.node_ps for leg in legs),
        fill=sum(times) - slowest,
        serialization=flits(nbytes) * slowest,
    )


def read(there: Sequence[Leg], back: Sequence[Leg], nbytes: int, memory: Channels, offset: int = 0) -> Parts:
    """Return the parts of a read alone: a command of 0 B, memory, and the data on the way back.

    Notes
    -----
    Flit j of q leaves once its share of the m bursts is done, at a_j. A train of equal flits through FIFO links ends
    at max over j of a_j + (q - 1 - j) d after the fill, d being the slowest link's flit time, so memory adds
    max over j of a_j - j d. docs/model.md, M4.5 and M4.7.
    """
    data = message(back, nbytes)
    q, m = flits(nbytes), _bursts(nbytes, offset, memory)
    d = data.serialization // q
    late = 0
    for j in range(q):
        bursts = _ceil((j + 1) * m, q)
        late = max(late, _ceil(bursts, memory.count) * memory.burst_ps - j * d)
    return message(there, COMMAND_BYTES) + data + Parts(memory=late + memory.access_ps)


def write(there: Sequence[Leg], back: Sequence[Leg], nbytes: int, memory: Channels, offset: int = 0) -> Parts:
    """Return the parts of a write alone: the data, memory, and an acknowledgement of 16 B.

    Notes
    -----
    Flit j arrives j d after the first; burst i of m starts when _ceil((i + 1) q / m) flits have, on its channel.
    Memory adds what the last burst takes beyond the last flit.
    """
    data = message(there, nbytes)
    q, m = flits(nbytes), _bursts(nbytes, offset, memory)
    d = data.serialization // q
    free: dict[int, int] = {}
    for i in range(m):
        arrival = (_ceil((i + 1) * q, m) - 1) * d
        channel = i % memory.count
        free[channel] = max(free.get(channel, 0), arrival) + memory.burst_ps
    return data + Parts(memory=max(free.values()) - (q - 1) * d) + message(back, ACK_BYTES)


def _ceil(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)


def _bursts(nbytes: int, offset: int, memory: Channels) -> int:
    """Return how many bursts hold `nbytes` from `offset` on."""
    return (offset + nbytes - 1) // memory.burst_bytes - offset // memory.burst_bytes + 1
