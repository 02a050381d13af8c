"""The engine's hot functions: what moves flits and whole messages from link to link.

Closures over the heap and the clock, since attribute look-ups would be a third of their cost.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import TYPE_CHECKING, Any

from kernbench.sim_engine.clock import Callback, Clock
from kernbench.sim_engine.link import HELD
from kernbench.units import FLIT_BYTES

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric import Fabric
    from kernbench.sim_engine.link import Link, Route


def flit_mover(fabric: Fabric, clock: Clock, run_ahead: bool) -> tuple[Callback, Callback]:
    """Return `feed`, which takes a train over its second link, and `hop`, which takes a flit over the others."""
    heap = clock.heap
    check = fabric.whole

    def hop(flit: list[Any]) -> None:
        """Take a flit [links, k, size, key, fn, arg] over link k, and on while nothing else is due before."""
        links, k, size, key, fn, arg = flit
        first, count = k, len(links)
        t = clock._now
        while True:
            link = links[k]
            start = link.free
            if start >= HELD:
                start = link.held((t, links[k - 1].priority, key + k))
            if check:
                note(fabric, link, t, links[k - 1].priority, key)
            if start < t:
                start = t
            start += link.flit_ps if size == FLIT_BYTES else link.time(size)
            link.free = start
            t = start + link.lat
            k += 1
            if k == count:
                if fn is not None:
                    heappush(heap, (t, link.priority, key + k, (fn, arg)))
                break
            if run_ahead and (not heap or t < heap[0][0]):
                continue
            flit[1] = k
            heappush(heap, (t, link.priority, key + k, (hop, flit)))
            break
        fabric.reservations += k - first

    def feed(train: list[Any]) -> None:
        """Take the next flit of a train [links, size, key, d, left, fn, arg, each] over the second link."""
        links, size, key, d, left, fn, arg, each = train
        if not left:
            return
        t = clock._now
        link = links[1]
        flit_ps = link.flit_ps if size == FLIT_BYTES else link.time(size)
        lat, priority, ends = link.lat, link.priority, len(links) == 2
        until = heap[0][0] if heap else None
        done = 0
        while True:
            start = link.free
            if start >= HELD:
                start = link.held((t, links[0].priority, key + 1))
                until = heap[0][0] if heap else None
            if check:
                note(fabric, link, t, links[0].priority, key)
            if start < t:
                start = t
            start += flit_ps
            link.free = start
            done += 1
            left -= 1
            tell = fn if each or not left else None
            if not ends:
                heappush(heap, (start + lat, priority, key + 2, (hop, [links, 2, size, key, tell, arg])))
                until = heap[0][0]
            elif tell is not None:
                heappush(heap, (start + lat, priority, key + 2, (tell, arg)))
                until = heap[0][0]
            if not left:
                break
            t += d
            if not run_ahead or (until is not None and until <= t):
                train[4] = left
                heappush(heap, (t, links[0].priority, key + 1, (feed, train)))
                break
        fabric.reservations += done

    return feed, hop


def message_mover(fabric: Fabric, clock: Clock, run_ahead: bool) -> tuple[Callback, Callable[..., None]]:
    """Return `move`, which takes q flits of one message over their links, and `pair`, the same for just two.

    The last link, and one that all routes so far reach over the same link, are reserved with the one before: should
    anything else reach them earlier, the check says so.
    """
    heap = clock.heap

    def move(unit: list[Any]) -> None:
        """Take a message [links, k, q, size, key, tail, even, fn, arg, each] over link k, and on."""
        links, k, q, size, key, tail, even, fn, arg, each = unit
        first, count = k, len(links)
        t = clock._now
        came_over = links[k - 1].priority if k else 0
        while True:
            link = links[k]
            start = link.free
            if start >= HELD:
                start = link.held((t, came_over, key + k))
            last = link.last
            if t <= last and (t < last or (came_over, key) < (link.last_from, link.last_key)) and k:
                fabric.flag(link)
            if tail >= last:
                link.last = tail
                link.last_from = came_over
                link.last_key = key
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
                    arrive(link, t, tail, q, even, key + k, fn, arg)
                elif fn is not None:
                    heappush(heap, (tail, came_over, key + k, (fn, arg)))
                break
            if k == count - 1 or not links[k].merges or (run_ahead and (not heap or t < heap[0][0])):
                continue
            unit[1], unit[5], unit[6] = k, tail, even
            heappush(heap, (t, came_over, key + k, (move, unit)))
            break
        fabric.reservations += k - first

    def pair(route: Route, q: int, size: int, key: int, fn: Callback | None, arg: object, each: bool) -> None:
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
            start = link.held((t, came_over, key + 1))
        last = link.last
        if t <= last and (t < last or (came_over, key) < (link.last_from, link.last_key)):
            fabric.flag(link)
        if tail >= last:
            link.last = tail
            link.last_from = came_over
            link.last_key = key
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
            arrive(link, start + d + link.lat, end + link.lat, q, even, key + 2, fn, arg)
        elif fn is not None:
            heappush(heap, (end + link.lat, link.priority, key + 2, (fn, arg)))

    def arrive(link: Link, head: int, tail: int, q: int, even: bool, key: int, fn: Any, arg: object) -> None:
        """Tell of every flit of a message whose first and last arrive at `head` and `tail`, evenly spaced."""
        if not even:
            fabric.flag(link)
        step = (tail - head) // (q - 1) if q > 1 else 0
        heappush(heap, (head, link.priority, key, (unfold, [head, step, q, link.priority, key, fn, arg])))

    def unfold(arrivals: list[Any]) -> None:
        """Tell of the next flit of a message [t, step, left, priority, key, fn, arg] at its end."""
        t, step, left, priority, key, fn, arg = arrivals
        if left > 1:
            t += step
            arrivals[0], arrivals[2] = t, left - 1
            heappush(heap, (t, priority, key, (unfold, arrivals)))
        fn(arg)

    return move, pair


def note(fabric: Fabric, link: Link, t: int, came_over: int, key: int) -> None:
    """Check that a flit, among whole messages, reaches `link` in order, and keep it as the latest."""
    last = link.last
    if t <= last and (t < last or (came_over, key) < (link.last_from, link.last_key)):
        fabric.flag(link)
    if t >= last:
        link.last, link.last_from, link.last_key = t, came_over, key
