"""A link: a FIFO server of flits with a latency behind it; a route: the links that a message takes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from kernbench.sim_engine.clock import ARRIVAL
from kernbench.topology.graph import Edge
from kernbench.units import FLIT_BYTES, ServiceTimes

if TYPE_CHECKING:
    from kernbench.sim_engine.trains import Lines, Train

HOP_BITS = 10
COUNT_BITS = 34
_ORDER_BITS = 40
HELD = 1 << 62

Ahead: TypeAlias = "tuple[Train, int, int, int]"

Hook = Callable[[int, int], int]


class Open:
    """What an open link serves flit by flit.

    `joined` is a heap: when a flit comes, the priority of the link before, its train's number there, and the train.
    `feeders` are links before it that serve so, too, and pass on to it what they have served.
    """

    __slots__ = ("feeders", "joined")

    def __init__(self) -> None:
        self.joined: list[tuple[int, int, int, Train]] = []
        self.feeders: list[Link] = []


class Link:
    """A directed link.

    `free` is when its last reservation ends, `times` says how long a flit of so many bytes takes. What leaves it
    arrives in that order, and among simultaneous arrivals over other links by `priority`: what leaves it later has a
    higher number, which counts from `base`. `merges` says that routes reach it over several links, or begin here, or
    that it has no latency; `hook` is the part behind it, if it wants to see every head.

    `ahead` is the train that took it last, with which link of its way this is, its number over the one before, and
    when the last of its flits comes, which is `last`; `under` are those before it that may have flits to come, too,
    over that same link. `wary` counts those that may not take it ahead, `open` holds trains whose flits take it one
    by one. While somebody has the link to himself `free` and `wary` are HELD: who reaches it first calls `held` with
    his place in the heap (time, priority, order), and finds the true ones.

    Into a memory that wants to know when each flit of a write comes, `coming` are those that it has not heard of:
    (order, when, what was sent), or (order, None, train). `tell(what, lines, first, until)` lets it hear of flits
    `first` to `until` (exclusive) of those that come by `lines`.
    """

    __slots__ = (
        "ahead", "base", "bw_gbs", "coming", "dst", "flit_ps", "free", "held", "hook", "last", "lat", "merges",
        "open", "priority", "src", "tell", "times", "under", "wary",
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
        self.ahead: Ahead | None = None
        self.wary = 0
        self.under: deque[Ahead] | None = None
        self.open: Open | None = None
        self.base = to << _ORDER_BITS
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

    def put_under(self, now: int) -> None:
        """Keep who took it last, and has flits to come, for when whoever takes it now has given it back."""
        under = self.under
        if under is None:
            under = self.under = deque()
        while under and under[0][3] < now:
            under.popleft()
        assert self.ahead is not None
        under.append(self.ahead)

    def opened(self) -> Open:
        """Return what it serves flit by flit, from now on if it has not."""
        if self.open is None:
            self.open = Open()
        return self.open


class Route:
    """The links from one node to another, and what has been sent over them.

    `base` and `counter` make the keys of the source's transactions, `start` puts flits on the first link in the way
    that this route needs. `flits` counts whole flits, `small` messages of less by size: from these every link's bytes
    and busy time follow, so that nothing has to be counted hop by hop.
    """

    __slots__ = ("base", "counter", "direct", "flits", "links", "nbytes", "reply", "small", "start")

    def __init__(self, links: tuple[Link, ...], base: int, counter: list[int], start: Callable[..., None]) -> None:
        self.links, self.base, self.counter, self.start = links, base, counter, start
        self.reply: Route | None = None
        self.nbytes = self.flits = 0
        self.small: dict[int, int] = {}
        self.direct = False

    def key(self) -> int:
        """Return a new transaction key: the source's place in the machine, then its own count; room for hops below."""
        count = self.counter[0]
        self.counter[0] = count + 1
        return self.base | count << 10
