"""A link: a FIFO server of flits with a latency behind it; a route: the links that a message takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kernbench.sim_engine.clock import ARRIVAL
from kernbench.topology.graph import Edge
from kernbench.units import FLIT_BYTES, ServiceTimes

if TYPE_CHECKING:
    from kernbench.sim_engine.trains import Lines, Train

HOP_BITS = 10
COUNT_BITS = 34
_ORDER_BITS = 40
HELD = 1 << 62

Hook = Callable[[int, int], int]


class Link:
    """A directed link.

    `free` is when its last reservation ends, `times` says how long a flit of so many bytes takes. What leaves it
    arrives in that order, and among simultaneous arrivals over other links by `priority`: `order` numbers what has
    left, from a base of its own. `merges` says that routes reach it over several links, or begin here, or that it has
    no latency; `hook` is the part behind it, if it wants to see every head.

    `ahead` is the train that took it last, as link `at` of its way and number `came` over the one before, and `last`
    when the last of its flits comes; `under` are those before it that may have flits to come, too, over that same link.
    `wary` counts those that may not take it ahead, `open` holds trains whose flits take it one by one. While somebody
    has the link to himself `free` is HELD: who reaches it first calls `held` with his place in the heap (time,
    priority, order), and finds the true `free`.

    Into a memory that wants to know when each flit of a write comes, `coming` are those that it has not heard of:
    (order, when, what was sent), or (order, None, train). `tell(what, lines, first, until)` lets it hear of flits
    `first` to `until` (exclusive) of those that come by `lines`.
    """

    __slots__ = (
        "ahead", "at", "bw_gbs", "came", "coming", "dst", "flit_ps", "free", "held", "hook", "last", "lat", "merges",
        "open", "order", "priority", "src", "tell", "times", "under", "wary",
    )  # fmt: skip

    def __init__(
        self, edge: Edge, to: int, extra_ps: int, rank: int, hook: Hook | None, merges: bool, times: ServiceTimes
    ) -> None:
        self.src, self.dst, self.bw_gbs, latency_ps, _, _ = edge
        self.lat = lat = latency_ps + extra_ps
        self.hook = hook
        self.priority = ARRIVAL + 1 + rank
        self.free = 0
        self.last = -1
        self.ahead: Train | None = None
        self.at = self.came = self.wary = 0
        self.under: deque[tuple[Train | None, int, int, int]] | None = None
        self.open: list[tuple[int, int, int, Train]] | None = None
        self.order = to << _ORDER_BITS
        self.coming: deque[tuple[int, int | None, Any]]
        self.tell: Callable[[Any, Lines, int, int], None]
        self.held: Callable[[tuple[int, int, int]], int]
        self.merges = merges or not lat
        self.times = times
        self.flit_ps = times[FLIT_BYTES]

    @property
    def name(self) -> str:
        """Return what it is called: from where to where."""
        return f"{self.src}->{self.dst}"


class Route:
    """The links from one node to another, and what has been sent over them.

    `base` and `counter` make the keys of the source's transactions, `start` puts flits on the first link in the way
    that this route needs. `flits` counts whole flits, `small` messages of less by size: from these every link's bytes
    and busy time follow, so that nothing has to be counted hop by hop.
    """

    __slots__ = ("base", "counter", "flits", "links", "nbytes", "reply", "small", "start")

    def __init__(self, links: tuple[Link, ...], base: int, counter: list[int], start: Callable[..., None]) -> None:
        self.links, self.base, self.counter, self.start = links, base, counter, start
        self.reply: Route | None = None
        self.nbytes = self.flits = 0
        self.small: dict[int, int] = {}

    def key(self) -> int:
        """Return a new transaction key: the source's place in the machine, then its own count; room for hops below."""
        count = self.counter[0]
        self.counter[0] = count + 1
        return self.base | count << HOP_BITS
