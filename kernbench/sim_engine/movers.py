"""The engine's hot functions: what moves trains and single flits from link to link (see `trains`).

Closures over the heap and the clock, since attribute look-ups would be a third of their cost.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from kernbench.sim_engine.clock import LAST, Callback, Clock
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
    numbers = fabric.numbers
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
        if link.open is not None:
            serve(link, place)
        while t <= link.last:
            assert link.ahead is not None
            train, at, number, _ = link.ahead
            before = train.links[at - 1]
            has_come = (t, before.priority, before.base + number) < place
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

    def again(train: Train, j: int, number: int) -> None:
        """Let the flits of a train from `j` on come as another one."""
        rest, given_back = train.split(j, number)
        fabric.reservations -= given_back
        if rest.k == len(rest.links) - 1 and not fabric.whole:
            join(rest)
        else:
            before = rest.links[rest.k - 1]
            heappush(heap, (latest(rest.lines, 0), before.priority, before.base + number, (advance, rest)))

    def join(train: Train) -> None:
        """Let the flits of a train take its first link one by one among others, and the last one, if that is the next.

        Only when all are through the last link matters.
        """
        links, k = train.links, train.k
        link, before = links[k], links[k - 1]
        priority, order = before.priority, before.base + train.number
        train.before = None
        if k < len(links) - 1:
            at = clock._now, priority, order
            last = links[-1]
            if last.free >= HELD:
                last.held(at)
            make_way(last, *at)
            train.child = Train(links, k + 1, train.n, train.size, (), 0, train.fn, train.arg, train.each)
            feeders = last.opened().feeders
            if link not in feeders:
                feeders.append(link)
        links[-1].wary = link.wary = _WARY
        heappush(link.opened().joined, (latest(train.lines, 0), priority, order, train))
        finish_at(latest(train.lines, train.n - 1), priority, order, link)

    def finish_at(t: int, priority: int, order: int, link: Link) -> None:
        """Have `link` serve, once the last flit of one that has joined has come to it from this place."""
        heappush(heap, (t, priority, order, (finish, (link, priority, order))))

    def finish(last: tuple[Link, int, int]) -> None:
        """Have a link serve what has joined, up to a last flit that comes now, unless it is with another train now."""
        link, priority, order = last
        if link.open is not None:
            serve(link, reached(clock._now, priority, order + 1))

    def serve(link: Link, place: tuple[int, int, int]) -> None:
        """Have an open `link` serve the flits of those that have joined which come before this place in the heap."""
        opened = link.opened()
        joined, feeders = opened.joined, opened.feeders
        for feeder in feeders:
            if feeder.open is not None:
                serve(feeder, place)
        free, lat, priority = link.free, link.lat, link.priority
        while joined and joined[0][:3] < place:
            a, came_over, came, train = heappop(joined)
            if train.told >= train.n:
                continue
            d = link.times[train.size]
            free = (free if free > a else a) + d
            fabric.reservations += 1
            train.told += 1
            order = link.base + next(numbers)
            if train.told < train.n and train.lines:
                heappush(joined, (latest(train.lines, train.told), came_over, came, train))
            onward = train.child
            if onward is not None:
                heappush(onward.links[-1].opened().joined, (free + lat, priority, order, onward))
                if train.told == train.n:
                    finish_at(free + lat, priority, order, onward.links[-1])
                continue
            if train.each:
                link.coming.append((order, free + lat, train.arg))
            if train.told == train.n and train.fn is not None:
                heappush(heap, (free + lat, priority, order, (land, (link, order, train))))
        link.free = free
        if not joined and all(feeder.open is None for feeder in feeders):
            link.open = None

    def advance(train: Train) -> None:
        """Take links for a train whose first flit has come to the next one."""
        train = train.front()
        if not train.n:
            return
        k = train.k + len(train.out)
        link, before, number = train.links[k], train.links[k - 1], train.number
        t, priority, order = clock._now, before.priority, before.base + number
        if train.n > 1:
            if link.free >= HELD:
                link.held((t, priority, order))
            make_way(link, t, priority, order)
            # Whether what it has been split off from took the link last, or somebody else has since.
            last = link.ahead[0] if link.ahead is not None else None
            if link.open or (train.before is not None and not train.out and last is not train.before):
                # Others come between these flits: take them one by one, for as long as they do.
                train = train.part_from(k)
                if k >= len(train.links) - 2 and train.links[-1].merges:
                    join(train)
                    return
                again(train, 1, number)
        train.before = None
        if train.n > 1:
            if link.wary:
                link.wary -= 1
            take(train, k)
        else:
            hop([train, k, number])
            link.ahead = train, k, number, -1

    def take(train: Train, k: int) -> None:
        """Take link `k`, and those behind it that nobody else is under way to, but over the link before."""
        links, n, size = train.links, train.n, train.size
        out, found = train.out, train.found
        lines = train.before_link(k)
        now, first, last = clock._now, k, len(links) - 1
        since = now if run_ahead else LAST
        more = n - 1
        head, tail = latest(lines, 0), latest(lines, more)
        step = lines[0][1] if len(lines) == 1 else None
        came, number = train.number, next(numbers)
        link = links[k]
        while True:
            free = link.free
            found.append(free)
            if k and link.merges:
                if link.last >= now:
                    link.put_under(now)
                link.ahead = train, k, came, tail
                link.last = tail
            came = number
            d = link.times[size]
            if free <= head and step is not None:
                head += d + link.lat
                if step < d:
                    step = d
                tail = head + more * step
                out.append(((head, step),))
            else:
                lines = behind(out[-1] if out else lines, n, free if free > head else head, d, link.lat)
                head, tail = latest(lines, 0), latest(lines, more)
                step = lines[0][1] if len(lines) == 1 else None
                out.append(lines)
            link.free = tail - link.lat
            if k == last:
                if train.each:
                    link.coming.append((link.base + number, None, train))
                if train.fn is not None:
                    heappush(heap, (tail, link.priority, link.base + number, (arrive_last, train)))
                break
            k += 1
            before, link = link, links[k]
            if link.merges:
                if since < head and not link.wary and (size or link.lat):
                    if link.last < now:
                        continue
                    ahead = link.ahead
                    if ahead is not None and ahead[0].links[ahead[1] - 1] is before:
                        continue
                heappush(heap, (head, before.priority, before.base + number, (advance, train)))
                k -= 1
                break
        train.number = number
        fabric.reservations += (k + 1 - first) * n

    def hop(flit: list[Any]) -> None:
        """Take links for a single flit [train, k, number] that has come to link `k`."""
        train, k, number = flit
        links, size = train.links, train.size
        first, count = k, len(links)
        t = clock._now
        came_over, order = links[k - 1].priority, links[k - 1].base + number
        while True:
            link = links[k]
            if link.free >= HELD:
                link.held((t, came_over, order))
            if t <= link.last or link.open:
                make_way(link, t, came_over, order)
            link.ahead = None
            link.last = -1
            if link.wary and not link.open:
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
            number = next(numbers)
            order = link.base + number
            k += 1
            if k == count:
                if train.each:
                    link.coming.append((order, t, train.arg))
                if train.fn is not None:
                    heappush(heap, (t, came_over, order, (land, (link, order, train))))
                break
            ahead = links[k]
            if ahead.merges and not (run_ahead and (not heap or t < heap[0][0])):
                flit[1:] = k, number
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
        link = train.links[-1]
        reached(clock._now, link.priority, link.base + train.number)
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
