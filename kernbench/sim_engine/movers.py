"""What moves whole messages from link to link, in `fast`.

Closures over the heap and the clock, since attribute look-ups would be a third of their cost.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import TYPE_CHECKING, Any

from kernbench.sim_engine.clock import Callback, Clock
from kernbench.sim_engine.link import HELD

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric import Fabric
    from kernbench.sim_engine.link import Link, Route


def message_mover(fabric: Fabric, clock: Clock, run_ahead: bool) -> tuple[Callback, Callable[..., None]]:
    """Return `move`, which takes q flits of one message over their links, and `pair`, the same for just two.

    The last link, and one that is reached over one link only, are reserved with the one before: should anything else
    reach them earlier, the check says so.
    """
    heap = clock.heap

    def move(unit: list[Any]) -> None:
        """Take a message [links, k, q, size, tail, even, fn, arg, each] over link k, and on."""
        links, k, q, size, tail, even, fn, arg, each = unit
        first, count = k, len(links)
        t = clock._now
        came_over = links[k - 1].priority if k else 0
        while True:
            link = links[k]
            start = link.free
            if start >= HELD:
                start = link.held((t, came_over, links[k - 1].order))
            last = link.last
            if t <= last and (t < last or came_over < link.last_from):
                fabric.flag(link)
            if tail >= last:
                link.last = tail
                link.last_from = came_over
            times = link.times
            d = times[size] if size in times else link.time(size)
            if start < t:
                start = t
            end = start + q * d
            if end < tail + d:
                even = even and start == t
                end = tail + d
            else:
                even = True
            link.free = end
            came_over = link.priority
            t = start + d + link.lat
            tail = end + link.lat
            k += 1
            if k == count:
                if each:
                    arrive(link, t, tail, q, even, fn, arg)
                elif fn is not None:
                    link.order = order = link.order + 1
                    heappush(heap, (tail, came_over, order, (fn, arg)))
                break
            if k == count - 1 or (links[k].lat and not links[k].merges) or (run_ahead and (not heap or t < heap[0][0])):
                continue
            unit[1], unit[4], unit[5] = k, tail, even
            link.order = order = link.order + 1
            heappush(heap, (t, came_over, order, (move, unit)))
            break
        fabric.reservations += k - first

    def pair(route: Route, q: int, size: int, _key: int, fn: Callback | None, arg: object, each: bool) -> None:
        """Take a message over a route of two links, such as a PE's own slice."""
        first, link = route.links
        t = clock._now
        if t < first.last:
            fabric.flag(first)
        first.last = t
        times = first.times
        d = times[size] if size in times else first.time(size)
        start = first.free
        if start < t:
            start = t
        end = first.free = start + q * d
        t = start + d + first.lat
        tail = end + first.lat
        came_over = first.priority
        start = link.free
        if start >= HELD:
            start = link.held((t, came_over, first.order))
        last = link.last
        if t <= last and (t < last or came_over < link.last_from):
            fabric.flag(link)
        if tail >= last:
            link.last = tail
            link.last_from = came_over
        times = link.times
        d = times[size] if size in times else link.time(size)
        if start < t:
            start = t
        end = start + q * d
        even = True
        if end < tail + d:
            even = start == t
            end = tail + d
        link.free = end
        fabric.reservations += 2
        if each:
            arrive(link, start + d + link.lat, end + link.lat, q, even, fn, arg)
        elif fn is not None:
            link.order = order = link.order + 1
            heappush(heap, (end + link.lat, link.priority, order, (fn, arg)))

    def arrive(link: Link, head: int, tail: int, q: int, even: bool, fn: Any, arg: object) -> None:
        """Tell of every flit of a message whose first and last arrive at `head` and `tail`, evenly spaced."""
        if not even:
            fabric.flag(link)
        step = (tail - head) // (q - 1) if q > 1 else 0
        link.order = order = link.order + 1
        heappush(heap, (head, link.priority, order, (unfold, [head, step, q, link.priority, order, fn, arg])))

    def unfold(arrivals: list[Any]) -> None:
        """Tell of the next flit of a message [t, step, left, priority, order, fn, arg] at its end."""
        t, step, left, priority, order, fn, arg = arrivals
        if left > 1:
            t += step
            arrivals[0], arrivals[2] = t, left - 1
            heappush(heap, (t, priority, order, (unfold, arrivals)))
        fn(arg)

    return move, pair


def note(fabric: Fabric, link: Link, t: int, came_over: int) -> None:
    """Check that a flit, among whole messages, reaches `link` in order, and keep it as the latest."""
    last = link.last
    if t <= last and (t < last or came_over < link.last_from):
        fabric.flag(link)
    if t >= last:
        link.last, link.last_from = t, came_over
