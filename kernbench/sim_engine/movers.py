"""The engine's hot functions: what moves trains and single flits from link to link (see `trains`).

Closures over the heap and the clock, since attribute look-ups would be a third of their cost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from kernbench.sim_engine.clock import Callback, Clock
from kernbench.sim_engine.link import HELD
from kernbench.sim_engine.trains import Lines, Train, behind, come_before, latest

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric import Fabric
    from kernbench.sim_engine.link import Link, Route

# How many have to come to a link before a train is let take it ahead again, once one that had had to make way.
_WARY = 256


def train_mover(
    fabric: Fabric, clock: Clock, run_ahead: bool
) -> tuple[Callable[..., Train], Callable[[Link, int, int, int], None], Callable[..., None], Callable[[Link], None]]:
    """Return what the fabric does with flits.

    `start` puts some on the first link of a route, `make_way` is for what reaches a link, `land` for what is at its
    end, and `told` tells a memory what has come.
    """
    heap = clock.heap
    latest_place = -1, -1, -1

    def reached(t: int, priority: int, order: int) -> tuple[int, int, int]:
        """Return the latest place in the heap that this instant has seen: what takes no time may come to an earlier."""
        nonlocal latest_place
        place = t, priority, order
        if latest_place < place or latest_place[0] != t:
            latest_place = place
        return latest_place

    def make_way(link: Link, t: int, priority: int, order: int) -> None:
        """Have `link` serve what comes before this place in the heap; what comes later has not taken it any more.

        A message that moves whole keeps the link, and the link is flagged.
        """
        place = reached(t, priority, order)
        if link.open:
            serve(link, place)
        while t <= link.last:
            train, at, number = link.ahead, link.at, link.came
            assert train is not None
            has_come = (t, train.links[at - 1].priority, number) < place
            come = come_before(train.before_link(at), train.n, t + 1 if has_come else t)
            if come == train.n:
                return
            if come and fabric.whole:
                fabric.flag(link)
                return
            link.wary = _WARY
            again(train.part_from(at), come, number)
            if come:
                return

    def again(train: Train, j: int, order: int) -> None:
        """Let the flits of a train from `j` on come as another one."""
        rest, given_back = train.split(j, order)
        fabric.reservations -= given_back
        if rest.k == len(rest.links) - 1 and not fabric.whole:
            rest.before = None
            join(rest)
        else:
            heappush(heap, (latest(rest.lines, 0), rest.links[rest.k - 1].priority, order, (advance, rest)))

    def join(train: Train) -> None:
        """Let the flits of a train take the last link one by one among others: only when all are through matters."""
        link, priority, order = train.links[-1], train.links[-2].priority, train.order
        lines = train.before_link(len(train.links) - 1)
        if link.open is None:
            link.open = []
        heappush(link.open, (latest(lines, 0), priority, order, train))
        heappush(heap, (latest(lines, train.n - 1), priority, order, (finish, train)))

    def serve(link: Link, place: tuple[int, int, int]) -> None:
        """Have `link` serve the flits of those that have joined which come before this place in the heap."""
        joined, free = link.open or [], link.free
        while joined and joined[0][:3] < place:
            a, came_over, number, train = heappop(joined)
            train = train.front()
            if train.told < train.n:
                d = link.times[train.size]
                free = (free if free > a else a) + d
                train.told += 1
                fabric.reservations += 1
                link.order += 1
                if train.each:
                    link.coming.append((link.order, free + link.lat, train.arg))
                if train.told < train.n:
                    lines = train.before_link(len(train.links) - 1)
                    heappush(joined, (latest(lines, train.told), came_over, number, train))
                elif train.fn is not None:
                    heappush(heap, (free + link.lat, link.priority, link.order, (land, (link, link.order, train))))
        link.free = free

    def finish(train: Train) -> None:
        """Have the last link serve a train that has joined: its last flit has come, unless with another one."""
        link, before = train.links[-1], train.links[-2]
        serve(link, reached(clock._now, before.priority, train.order + 1))

    def advance(train: Train) -> None:
        """Take links for a train whose first flit has come to the next one."""
        train = train.front()
        if not train.n:
            return
        k = train.k + len(train.out)
        link, priority, order = train.links[k], train.links[k - 1].priority, train.order
        t = clock._now
        if train.n > 1:
            if link.free >= HELD:
                link.held((t, priority, order))
            make_way(link, t, priority, order)
            if link.open and k == len(train.links) - 1:
                join(train)
                return
            if link.open or (train.before is not None and not train.out and link.ahead is not train.before):
                # Others come between these flits: take them one by one, for as long as they do.
                train = train.part_from(k)
                again(train, 1, order)
        train.before = None
        if train.n > 1:
            if link.wary:
                link.wary -= 1
            take(train, k)
        else:
            hop([train, k, order])
            link.ahead = train

    def take(train: Train, k: int) -> None:
        """Take link `k`, and those behind it that nobody else is under way to, but over the link before."""
        links, n, size, order = train.links, train.n, train.size, train.order
        out, found = train.out, train.found
        lines = train.before_link(k)
        now, first, count = clock._now, k, len(links)
        head, tail = latest(lines, 0), latest(lines, n - 1)
        while True:
            link = links[k]
            free = link.free
            found.append(free)
            if k and link.merges:
                if link.last >= now:
                    under = link.under
                    if under is None:
                        under = link.under = deque()
                    while under and under[0][3] < now:
                        under.popleft()
                    under.append((link.ahead, link.at, link.came, link.last))
                elif link.under:
                    link.under.clear()
                link.ahead, link.at, link.came, link.last = train, k, order, tail
            d = link.times[size]
            lat = link.lat
            if free <= head and len(lines) == 1:
                head += d + lat
                step = lines[0][1]
                if step < d:
                    step = d
                tail = head + (n - 1) * step
                lines = ((head, step),)
            else:
                lines = behind(lines, n, free if free > head else head, d, lat)
                head, tail = latest(lines, 0), latest(lines, n - 1)
            link.free = tail - lat
            out.append(lines)
            link.order = order = link.order + 1
            k += 1
            if k == count:
                if train.each:
                    link.coming.append((order, None, train))
                if train.fn is not None:
                    heappush(heap, (tail, link.priority, order, (arrive_last, train)))
                break
            ahead = links[k]
            if not ahead.merges:
                continue
            if run_ahead and now < head and (size or ahead.lat) and not (ahead.wary or ahead.open):
                if ahead.last < now:
                    if ahead.free < HELD:
                        continue
                elif ahead.ahead is not None and ahead.ahead.links[ahead.at - 1] is link:
                    continue
            heappush(heap, (head, link.priority, order, (advance, train)))
            break
        train.order = order
        fabric.reservations += (k - first) * n

    def hop(flit: list[Any]) -> None:
        """Take links for a single flit [train, k, order] that has come to link `k`."""
        train, k, order = flit
        links, size = train.links, train.size
        first, count = k, len(links)
        t = clock._now
        came_over = links[k - 1].priority
        while True:
            link = links[k]
            if link.free >= HELD:
                link.held((t, came_over, order))
            if t <= link.last or link.open:
                make_way(link, t, came_over, order)
            link.ahead = None
            link.last = -1
            if link.wary:
                link.wary -= 1
            start = link.free
            if start < t:
                start = t
            start += link.times[size]
            link.free = start
            head = start + link.lat
            if head == t:
                reached(t, came_over, order)
            t = head
            came_over = link.priority
            link.order = order = link.order + 1
            k += 1
            if k == count:
                if train.each:
                    link.coming.append((order, t, train.arg))
                if train.fn is not None:
                    heappush(heap, (t, came_over, order, (land, (link, order, train))))
                break
            ahead = links[k]
            if ahead.merges and not (run_ahead and (not heap or t < heap[0][0])):
                flit[1:] = k, order
                heappush(heap, (t, came_over, order, (hop, flit)))
                break
        fabric.reservations += k - first

    def land(what: tuple[Link, int, Train]) -> None:
        """Tell of the last flit at its end, which came by itself."""
        link, order, train = what
        reached(clock._now, link.priority, order)
        end(train)

    def arrive_last(train: Train) -> None:
        """Tell of the last flit at its end, unless it comes with another train now."""
        train = train.front()
        reached(clock._now, train.links[-1].priority, train.order)
        end(train)

    def end(train: Train) -> None:
        """Tell who waits for a train that is at its end, if that is not another one by now."""
        if train.fn is not None:
            train.fn(train.arg)
        if not train.each:
            # All its flits are through, so nobody asks any more; links that it took last still hold on to it.
            train.out.clear()
            train.found.clear()

    def told(link: Link) -> None:
        """Tell the memory behind `link` of the flits that have come by now, in their order."""
        coming, priority = link.coming, link.priority
        if not coming:
            return
        place = reached(clock._now, -1, -1)
        while coming:
            order, t, what = coming[0]
            if t is not None:
                if (t, priority, order) > place:
                    return
                link.tell(what, ((t, 0),), 0, 1)
            else:
                train = what.front()
                first, lines = train.told, train.out[-1]
                now_too = (priority, order) <= place[1:]
                train.told = come_before(lines, train.n, place[0] + 1 if now_too else place[0])
                if first < train.told:
                    link.tell(train.arg, lines, first, train.told)
                if train.told < train.n:
                    return
            coming.popleft()

    def start(
        route: Route,
        count: int,
        size: int,
        key: int,
        fn: Callback | None,
        arg: object,
        each: bool,
        lines: Lines | None = None,
    ) -> Train:
        """Put `count` flits of `size` bytes on the first link, now or by `lines`."""
        train = Train(route.links, 0, count, size, lines or ((clock._now, 0),), 0, fn, arg, each)
        take(train, 0)
        return train

    return start, make_way, land, told
