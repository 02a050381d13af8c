"""Which tokens of which requests an engine computes in a step: the rules of vLLM v1."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.errors import ArgumentError, quote
from kernbench.serving._blocks import HASH_TOKENS, BlockPool, PrefixCache
from kernbench.serving._requests import check_count


@dataclass(frozen=True)
class Policy:
    """How an engine schedules: vLLM's names, and its defaults where vLLM's do not depend on the device.

    Parameters
    ----------
    max_num_batched_tokens : int
        Most tokens that a step computes.
    max_num_seqs : int
        Most requests that run at once.
    block_size : int
        Tokens of a block of the KV cache; a power of two up to 512.
    num_blocks : int, optional
        Blocks of the KV cache of a replica; unlimited by default.
    enable_chunked_prefill : bool
        Whether a prompt may be computed in parts, over several steps.
    enable_prefix_caching : bool
        Whether blocks of earlier requests with the same prefix are used again.
    async_scheduling : bool
        Whether a step is scheduled while the one before it runs, as vLLM does since 0.14: the host's time is hidden,
        and arrivals and the places of finished requests wait for one step more.
    overhead_ns : float
        Time of the host to schedule a step and to launch it [ns]. The default, 0, leaves it out.

    Raises
    ------
    ArgumentError
        If a value is out of its range.

    Notes
    -----
    Rules of vLLM 0.19 (`vllm/v1/core/sched/scheduler.py`): running requests come before waiting ones, each in order of
    arrival; a running request that gets no block preempts the latest, whose tokens are computed again; a step that
    preempts admits nobody; a waiting request is admitted when the blocks of its whole sequence are free, and nobody
    overtakes it.

    Examples
    --------
    >>> Policy(max_num_seqs=128).max_num_batched_tokens
    2048
    """

    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    block_size: int = 16
    num_blocks: int | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    overhead_ns: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "block_size", "num_blocks"):
            value = getattr(self, name)
            if value is None and name == "num_blocks":
                continue
            check_count(f"Policy: {name}", value)
        if HASH_TOKENS % self.block_size:
            raise ArgumentError(f"Policy: block_size = {self.block_size} must be a power of two up to {HASH_TOKENS}")
        if not 0 <= self.overhead_ns < math.inf:
            raise ArgumentError(f"Policy: overhead_ns = {quote(self.overhead_ns)} must be a time of at least 0")


class Request:
    """A request in an engine. Times are in ps."""

    __slots__ = (
        "arrival", "blocks", "cached", "computed", "hashes", "held", "index", "made", "output", "pending",
        "preemptions", "prompt", "replicas", "room", "scheduled", "stored", "times", "transfer",
    )  # fmt: skip

    def __init__(self, index: int, arrival: int, prompt: int, output: int, hashes: Sequence[int]) -> None:
        self.index, self.arrival, self.prompt, self.output, self.hashes = index, arrival, prompt, output, hashes
        self.computed = 0  # tokens whose keys and values are in blocks, or will be after the steps in flight
        self.made = 0  # tokens generated
        self.pending = 0  # tokens that steps in flight generate
        self.room = 0  # tokens that fit into its blocks
        self.blocks, self.stored = 0, 0
        self.held: list[int] = []
        self.cached, self.preemptions = 0, 0
        self.replicas: list[int] = []  # that it went to: the one of its prompt first
        self.transfer = 0  # of its keys and values, with the time that it waits for others
        self.scheduled = -1
        self.times: list[int] = []  # of its tokens


class Batch:
    """The tokens of a step: chunks of prompts as (tokens, tokens before), and the context of each decoded token."""

    __slots__ = ("contexts", "generates", "prefill")

    def __init__(self) -> None:
        self.prefill: list[tuple[int, int]] = []
        self.contexts: list[int] = []
        self.generates: list[Request] = []

    @property
    def tokens(self) -> int:
        return len(self.contexts) + sum(tokens for tokens, _ in self.prefill)


class Scheduler:
    """Queues of one replica, and its blocks; with `prefill_only`, requests leave it after their first token.

    Their blocks are then free when they are released.
    """

    def __init__(self, policy: Policy, prefill_only: bool = False) -> None:
        self.policy, self._most = policy, 1 if prefill_only else math.inf
        blocks = math.inf if policy.num_blocks is None else policy.num_blocks
        self.pool = (PrefixCache if policy.enable_prefix_caching else BlockPool)(blocks, policy.block_size)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0

    def schedule(self, now: int) -> Batch | None:
        """Choose the tokens of the next step; None if no request has any."""
        batch = Batch()
        budget = self.policy.max_num_batched_tokens
        preempted = self.preemptions
        budget = self._continue_running(batch, budget)
        if preempted == self.preemptions:
            self._admit_waiting(batch, budget, now)
        return batch if batch.prefill or batch.contexts else None

    def _continue_running(self, batch: Batch, budget: int) -> int:
        running, contexts, generates = self.running, batch.contexts, batch.generates
        i = 0
        while i < len(running) and budget:
            request = running[i]
            computed = request.computed
            todo = request.prompt + request.made + request.pending - computed
            if not todo or request.made + request.pending >= min(request.output, self._most):
                i += 1  # its last token is in flight
                continue
            if todo > budget:
                todo = budget
            if computed + todo > request.room and not self._grow(request, computed + todo):
                break
            i += 1
            budget -= todo
            if todo == 1:
                contexts.append(computed + 1)
            else:
                batch.prefill.append((todo, computed))
            request.computed = computed = computed + todo
            if computed == request.prompt + request.made + request.pending:
                request.pending += 1
                generates.append(request)
        return budget

    def _grow(self, request: Request, tokens: int) -> bool:
        """Allocate blocks, if need be from the requests that were admitted last; False if it was itself preempted."""
        while not self.pool.grow(request, tokens):
            last = self.running.pop()
            self.release(last)
            last.computed = 0
            last.preemptions += 1
            self.preemptions += 1
            self.waiting.appendleft(last)
            if last is request:
                return False
        request.room = request.blocks * self.pool.size
        return True

    def _admit_waiting(self, batch: Batch, budget: int, now: int) -> None:
        waiting, most = self.waiting, self.policy.max_num_seqs
        while waiting and budget and len(self.running) < most:
            request = waiting[0]
            known = request.prompt + request.made
            start = request.computed or self.pool.hit(request)
            todo = known - start
            if todo > budget:
                if not self.policy.enable_chunked_prefill:
                    break
                todo = budget
            if not self.pool.admit(request, start + todo, known):
                break
            waiting.popleft()
            self.running.append(request)
            if request.scheduled < 0:
                request.scheduled, request.cached = now, start
            request.room = request.blocks * self.pool.size
            request.computed = start + todo
            budget -= todo
            if todo == 1:
                batch.contexts.append(start + 1)
            else:
                batch.prefill.append((todo, start))
            if request.computed == known:
                request.pending += 1
                batch.generates.append(request)

    def update(self, batch: Batch, now: int) -> list[Request]:
        """Note the tokens that a step generated; return the requests that are complete here."""
        ended = []
        for request in batch.generates:
            request.pending -= 1
            request.made += 1
            request.times.append(now)
            if request.made >= min(request.output, self._most):
                ended.append(request)
        for request in ended:
            if request.blocks:
                self.running.remove(request)
                if request.made == request.output:
                    self.release(request)
            else:  # preempted after its last step had started
                self.waiting.remove(request)
        return ended

    def release(self, request: Request) -> None:
        self.pool.release(request)
        request.room = 0
