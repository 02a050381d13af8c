"""Blocks of the key-value (KV) cache: taken and released by requests, and found again by hash."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Protocol

HASH_TOKENS = 512  # that a hash of a request covers: the trace format of Mooncake


class Owner(Protocol):
    """The fields of a request that a pool reads, and its blocks, which the pool sets."""

    index: int
    prompt: int
    hashes: Sequence[int]
    computed: int  # tokens whose keys and values are in blocks
    made: int  # tokens generated
    blocks: int
    held: list[int]
    stored: int  # blocks that are found by hash


class BlockPool:
    """Blocks of `size` tokens, counted; requests share none."""

    def __init__(self, blocks: float, size: int) -> None:
        self.size, self.total, self.used = size, blocks, 0

    @property
    def free(self) -> float:
        return self.total - self.used

    def hit(self, request: Owner) -> int:
        """Count the cached tokens of a request; `admit` then shares their blocks."""
        return 0

    def admit(self, request: Owner, tokens: int, reserve: int) -> bool:
        """Allocate blocks for the first `tokens` of a request, if those for `reserve` tokens are free."""
        return -(-reserve // self.size) <= self.free and self.grow(request, tokens)

    def grow(self, request: Owner, tokens: int) -> bool:
        """Allocate blocks until a request has room for `tokens`; False, and no change, if too few are free."""
        more = -(-tokens // self.size) - request.blocks
        if more > self.total - self.used:
            return False
        self.used += more
        request.blocks += more
        return True

    def release(self, request: Owner) -> None:
        self.used -= request.blocks
        request.blocks = 0


class PrefixCache(BlockPool):
    """Blocks that keep their content after a release, and are found by hash until they are used again, oldest first.

    A full block has a hash: for tokens of a prompt that a trace gives hashes for, that of the trace, and for others one
    that only the same request finds, after a preemption.
    """

    def __init__(self, blocks: float, size: int) -> None:
        super().__init__(blocks, size)
        self._new = 0  # the next block that was never used
        self._released: OrderedDict[int, None] = OrderedDict()
        self._block: dict[int, int] = {}  # of a hash
        self._hash: dict[int, int] = {}  # of a block
        self._users: Counter[int] = Counter()
        self._hits: list[int] = []

    def _hashes(self, request: Owner, start: int, stop: int) -> Iterator[int]:
        """Yield the hashes of a request's blocks: from 0 on those of the trace, the others below 0."""
        parts = HASH_TOKENS // self.size
        named = min(request.prompt // self.size, len(request.hashes) * parts)
        for i in range(start, stop):
            yield request.hashes[i // parts] * parts + i % parts if i < named else -(request.index << 32) - i - 1

    def hit(self, request: Owner) -> int:
        self._hits = []
        # The last token is always computed: its output is the next token.
        for key in self._hashes(request, 0, (request.prompt + request.made - 1) // self.size):
            if (block := self._block.get(key)) is None:
                break
            self._hits.append(block)
        return len(self._hits) * self.size

    def admit(self, request: Owner, tokens: int, reserve: int) -> bool:
        hits, self._hits = self._hits, []
        idle = [block for block in hits if not self._users[block]]
        if -(-reserve // self.size) - len(hits) > self.free - len(idle):
            return False
        for block in idle:
            del self._released[block]
        self._users.update(hits)
        self.used += len(idle)
        request.held, request.blocks, request.stored = hits, len(hits), len(hits)
        return self.grow(request, tokens)

    def grow(self, request: Owner, tokens: int) -> bool:
        if not super().grow(request, tokens):
            return False
        request.held += [self._take() for _ in range(request.blocks - len(request.held))]
        self._store(request, tokens)
        return True

    def _take(self) -> int:
        if self._new < self.total:
            block, self._new = self._new, self._new + 1
        else:
            block, _ = self._released.popitem(last=False)
            if (key := self._hash.pop(block, None)) is not None:
                del self._block[key]
        self._users[block] = 1
        return block

    def _store(self, request: Owner, tokens: int) -> None:
        """Index the full blocks of a request's first `tokens` by hash, as far as the tokens are known."""
        full = min(tokens, request.prompt + request.made) // self.size
        for i, key in enumerate(self._hashes(request, request.stored, full), request.stored):
            if key not in self._block:
                self._block[key], self._hash[request.held[i]] = request.held[i], key
        request.stored = max(full, request.stored)

    def release(self, request: Owner) -> None:
        self._store(request, request.computed)
        for block in reversed(request.held):  # so that the end of a prefix is overwritten first
            self._users[block] -= 1
            if not self._users[block]:
                self._released[block] = None
                self.used -= 1
        request.held, request.blocks, request.stored = [], 0, 0
