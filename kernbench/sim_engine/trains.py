"""Trains: flits of one message that move together, until something comes between them.

A train takes a link for all of its flits, and arithmetic says when each of them leaves. It does so when its first flit
reaches the link, or ahead of that where nobody else is under way to it. Should something else reach the link before a
flit of the train has, the train is split there: what has not come yet gives the link back, and the links behind it,
and comes again as a train of its own. So links serve flits in the order in which they come, at a few events a message.
Where that happens often an event a link costs less than what would be undone.

Flit i of a train comes at the latest of a + i*d over its lines (a, d). A link that serves a flit in d ps, and is free
for the first one at s, is through with flit i at the latest of s + (i+1)*d and its arrival + d: lines again, since the
latest of lines is convex.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.sim_engine.clock import Callback

if TYPE_CHECKING:
    from kernbench.sim_engine.link import Link

Lines = tuple[tuple[int, int], ...]


class Train:
    """`n` flits of `size` bytes that reach link `k` of `links` by `lines`.

    `fn(arg)` is called at the arrival of the last one. A memory wants to hear of `each` one, and has been `told` of so
    many; where flits take a link one by one, so many have. `out` says when they are behind each link from `k` on that
    has been taken, `found` since when that would have been free. `number` is greater for what leaves a link later, and
    that of the last link taken. Where a train has been split, `child` is its part from there on, `rest` what came later
    there, and `before`, until that goes on, what it has been split off from. A train without `lines` gets its flits
    from the one whose `child` it is, as they take the link before.
    """

    __slots__ = (
        "arg", "before", "child", "each", "fn", "found", "k", "lines", "links", "n", "number", "out", "rest", "size",
        "told",
    )  # fmt: skip

    def __init__(
        self,
        links: tuple[Link, ...],
        k: int,
        n: int,
        size: int,
        lines: Lines,
        number: int,
        fn: Callback | None,
        arg: object,
        each: bool,
    ) -> None:
        self.links, self.k, self.n, self.size, self.lines, self.number = links, k, n, size, lines, number
        self.fn, self.arg, self.each = fn, arg, each
        self.out: list[Lines] = []
        self.found: list[int] = []
        self.child: Train | None = None
        self.rest: Train | None = None
        self.before: Train | None = None
        self.told = 0

    def front(self) -> Train:
        """Return the part of it that is furthest on its way."""
        train = self
        while train.child is not None:
            train = train.child
        return train

    def before_link(self, k: int) -> Lines:
        """Return when the flits come to link `k`."""
        return self.lines if k == self.k else self.out[k - self.k - 1]

    def part_from(self, k: int) -> Train:
        """Return the part of this train from link `k` on."""
        first = k - self.k
        if not first:
            return self
        part = Train(self.links, k, self.n, self.size, self.out[first - 1], self.number, self.fn, self.arg, self.each)
        part.out, self.out = self.out[first:], self.out[:first]
        part.found, self.found = self.found[first:], self.found[:first]
        part.child, part.told, self.child = self.child, self.told, part
        for link in self.links[k : k + len(part.out)]:
            ahead = link.ahead
            if ahead is not None and ahead[0] is self:
                link.ahead = part, *ahead[1:]
        return part

    def split(self, j: int, number: int) -> tuple[Train, int]:
        """Split off the flits from `j` on, which have yet to come; return them, and as `cut` does."""
        lines = tuple([(a + j * d, d) for a, d in self.lines])
        rest = Train(self.links, self.k, self.n - j, self.size, lines, number, self.fn, self.arg, self.each)
        given_back = self.cut(j)
        self.rest = rest
        if j:
            rest.before = self
        return rest, given_back

    def cut(self, keep: int) -> int:
        """Forget all but the first `keep` flits of this and its `rest`; return how many reservations that gives back.

        What is forgotten has not come yet, here or further on.
        """
        train: Train | None = self
        while train is not None and keep >= train.n:
            keep -= train.n
            train = train.rest
        if train is None:
            return 0
        gone, train.rest = train.rest, None
        while gone is not None:
            gone.n, gone.before, gone = 0, None, gone.rest
        given_back = (train.n - keep) * len(train.out)
        train.n = keep
        train.fn = None
        come = train.lines
        for link, out, found in zip(train.links[train.k :], train.out, train.found, strict=False):
            link.free = latest(out, keep - 1) - link.lat if keep else found
            ahead = link.ahead
            if ahead is not None and ahead[0] is train:
                if keep:
                    link.last = latest(come, keep - 1)
                    link.ahead = *ahead[:3], link.last
                elif link.under:
                    link.ahead = link.under.pop()
                    link.last = link.ahead[3]
                else:
                    link.ahead, link.last = None, -1
            come = out
        return given_back + (train.child.cut(keep) if train.child is not None else 0)


def come_before(lines: Lines, n: int, t: int) -> int:
    """Return how many of `n` flits come before `t` [ps]."""
    for a, d in lines:
        if d:
            n = min(n, max(0, (t - a + d - 1) // d))
        elif a >= t:
            return 0
    return n


def latest(lines: Lines, i: int) -> int:
    """Return when flit `i` comes."""
    if len(lines) == 1:
        a, d = lines[0]
        return a + i * d
    return max([a + i * d for a, d in lines])


def behind(lines: Lines, n: int, start: int, d: int, lat: int) -> Lines:
    """Return when `n` flits are behind a link of `d` ps a flit and `lat` ps that begins with the first one at `start`.

    Examples
    --------
    >>> behind(((100, 5),), 3, 100, 2, 50)  # they come more slowly than they are served
    ((152, 5),)
    >>> behind(((100, 5),), 3, 103, 2, 50)  # the first two have to wait, the third does not
    ((155, 2), (152, 5))
    >>> behind(((100, 5),), 3, 100, 8, 50)
    ((158, 8),)
    """
    if len(lines) == 1:
        a, step = lines[0]
        if step <= d or a + (n - 1) * (step - d) <= start:
            return ((start + d + lat, d),)
        if start == a:
            return ((a + d + lat, step),)
        return ((start + d + lat, d), (a + d + lat, step))
    slower = [(a + d + lat, step) for a, step in lines if step > d and a + (n - 1) * (step - d) > start]
    if any(a == start + d + lat for a, _ in slower):
        return tuple(slower)
    return ((start + d + lat, d), *slower)
