"""Replicas of an engine, and requests that arrive at them, on SimPy."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import simpy

from kernbench.errors import ArgumentError, quote
from kernbench.serving._requests import check_count, checked
from kernbench.serving._result import ServingResult
from kernbench.serving._scheduler import Batch, Policy, Request, Scheduler

if TYPE_CHECKING:
    import pandas as pd

Steps = Callable[..., float]
_PS = 10**12  # in a second


class Replica:
    """An engine: it schedules, starts and ends steps, one after another."""

    def __init__(
        self, env: simpy.Environment, number: int, steps: Steps, policy: Policy,
        hand_over: Callable[[Replica, Request], None] | None = None,
    ) -> None:  # fmt: skip
        self._env, self._number, self._steps, self._policy = env, number, steps, policy
        self._hand_over = hand_over  # what takes requests after their first token
        self.scheduler = Scheduler(policy, hand_over is not None)
        self.submitted = 0
        self.link_free = 0  # when the link on which it sends keys and values is
        self.step_rows: list[tuple[int, ...]] = []
        self.requests = 0  # waiting or running here
        self.requests_ps = 0  # their integral over time
        self.energy_uj = 0.0  # of all steps, if their table knows it
        self._noted = 0
        self._arrival: simpy.Event | None = None
        env.process(self._serve())

    def submit(self, request: Request) -> None:
        self._note()
        self.requests += 1
        self.submitted += 1
        request.replicas.append(self._number)
        self.scheduler.waiting.append(request)
        self._wake()

    def release(self, request: Request) -> None:
        self.scheduler.release(request)
        self._wake()

    def _wake(self) -> None:
        if self._arrival is not None:
            self._arrival.succeed()
            self._arrival = None

    @property
    def _now(self) -> int:
        return int(self._env.now)

    @property
    def load(self) -> int:
        """Load for the router: a waiting request counts four times, as in vLLM's data-parallel router."""
        return 4 * len(self.scheduler.waiting) + len(self.scheduler.running)

    def _note(self) -> None:
        self.requests_ps += self.requests * (self._now - self._noted)
        self._noted = self._now

    def _serve(self) -> Generator[simpy.Event, Any, Any]:
        env, scheduler = self._env, self.scheduler
        overhead = round(self._policy.overhead_ns * 1000)
        depth = 2 if self._policy.async_scheduling else 1
        started: deque[tuple[Batch, int]] = deque()  # steps on the device, with their ends
        free = 0  # when the device is
        while True:
            batch = scheduler.schedule(self._now)
            if batch is not None:
                if overhead:
                    yield env.timeout(overhead)
                start = max(self._now, free)
                free = start + self._time(batch)
                self._record(batch, start, free)
                started.append((batch, free))
                if len(started) < depth:
                    continue
            elif not started:
                self._arrival = env.event()
                yield self._arrival
                continue
            batch, end = started.popleft()
            if end > env.now:
                yield env.timeout(end - env.now)
            self._note()
            ended = scheduler.update(batch, self._now)
            self.requests -= len(ended)
            for request in ended:
                if self._hand_over is not None and request.made < request.output:
                    self._hand_over(self, request)

    def _time(self, batch: Batch) -> int:
        ns = self._steps(prefill=batch.prefill, contexts=batch.contexts)
        if not 0 < ns < math.inf:
            raise ArgumentError(
                f"steps(prefill={quote(batch.prefill)}, contexts={quote(batch.contexts)}) returned {quote(ns)}; a step "
                "takes a finite time above 0, in ns"
            )
        if (energy := getattr(self._steps, "energy_uj", None)) is not None:
            self.energy_uj += energy(batch.prefill, batch.contexts)
        return max(1, round(ns * 1000))

    def _record(self, batch: Batch, start: int, end: int) -> None:
        scheduler = self.scheduler
        decoded = len(batch.contexts)
        prefilled = batch.tokens - decoded
        used = scheduler.pool.used
        self.step_rows.append(
            (self._number, start, end, prefilled, decoded, len(scheduler.running), len(scheduler.waiting), used)
        )


def run(
    requests: pd.DataFrame,
    steps: Steps,
    policy: Policy | None = None,
    *,
    replicas: int = 1,
    prefill_replicas: int = 0,
    kv_transfer_ns: Callable[[int], float] | None = None,
) -> ServingResult:
    """Serve requests on replicas of an engine, and measure each.

    Parameters
    ----------
    requests : DataFrame
        A row for each request: `arrival_s`, `input_len` and `output_len` (tokens), optionally `hash_ids`, a list with a
        hash for each 512 tokens of the prompt and what is before them. `kb.serving.generate` and
        `kb.serving.read_trace` make such tables.
    steps : callable
        The time of a step [ns]: `steps(prefill=[(tokens, tokens before), ...], contexts=[...])`, with the chunks of
        prompts that it computes, and for each decoded token how many tokens it attends to, itself included.
    policy : Policy, optional
        How an engine schedules; by default `kb.serving.Policy()`.
    replicas : int
        Equal engines. A request goes to the one with the least load (running requests, plus four for each that waits).
    prefill_replicas : int
        Further engines, which compute prompts up to the first token; the `replicas` then continue (disaggregation).
    kv_transfer_ns : callable, optional
        Time to send the keys and values of a number of tokens [ns]; by default `steps.kv_transfer_ns`. An engine sends
        those of one request after another, and holds their blocks meanwhile.

    Returns
    -------
    ServingResult
        Times of requests and steps. It depends on the arguments alone, not on the host.

    Raises
    ------
    ArgumentError
        If a value of the table is impossible, or a request can never run under this policy.

    Notes
    -----
    All outputs have exactly `output_len` tokens. Not modelled: tokenization and the network between client and server,
    speculative decoding, and priorities. A transfer is sent alone: steps do not slow it down.

    Examples
    --------
    >>> from kernbench.serving import generate
    >>> requests = generate(100, request_rate=10, input_len=512, output_len=64)
    >>> result = run(requests, lambda prefill, contexts: 5e6 + 2e4 * sum(tokens for tokens, _ in prefill))
    >>> result.metrics["completed"]
    100
    """
    policy = policy or Policy()
    check_count("replicas", replicas)
    if prefill_replicas:
        check_count("prefill_replicas", prefill_replicas)
        kv_transfer_ns = kv_transfer_ns or getattr(steps, "kv_transfer_ns", None)
        if kv_transfer_ns is None:
            raise ArgumentError(
                f"prefill_replicas = {prefill_replicas} needs kv_transfer_ns, the time to send keys and values [ns]: "
                "pass it, or steps of kb.serving.steps"
            )
    requests = checked(requests)
    queue = _requests(requests)
    _check_policy(queue, policy)
    env = simpy.Environment()

    def hand_over(sender: Replica, request: Request) -> None:
        assert kv_transfer_ns is not None
        ns = kv_transfer_ns(request.computed)
        if not 0 <= ns < math.inf:
            raise ArgumentError(f"kv_transfer_ns({request.computed}) returned {quote(ns)}; it must be a time from 0")
        begin = int(env.now)
        sender.link_free = end = max(begin, sender.link_free) + round(ns * 1000)
        request.transfer = end - begin
        env.process(_deliver(env, end, sender, request, decoding))

    senders = [Replica(env, number, steps, policy, hand_over) for number in range(prefill_replicas)]
    decoding = [Replica(env, prefill_replicas + number, steps, policy) for number in range(replicas)]
    env.process(_arrive(env, queue, senders or decoding))
    env.run()
    arguments = steps, policy, {
        "replicas": replicas, "prefill_replicas": prefill_replicas, "kv_transfer_ns": kv_transfer_ns,
    }  # fmt: skip
    return ServingResult(requests, queue, [*senders, *decoding], arguments)


def _deliver(
    env: simpy.Environment, end: int, sender: Replica, request: Request, engines: Sequence[Replica]
) -> Generator[simpy.Event, Any, Any]:
    yield env.timeout(end - env.now)
    sender.release(request)
    _least_loaded(engines).submit(request)


def _least_loaded(engines: Sequence[Replica]) -> Replica:
    return min(engines, key=lambda each: each.load)


def _requests(table: pd.DataFrame) -> list[Request]:
    hashes = table["hash_ids"].tolist() if "hash_ids" in table else [()] * len(table)
    columns = (*(table[name].tolist() for name in ("arrival_s", "input_len", "output_len")), hashes)
    return [
        Request(i, round(arrival * _PS), int(prompt), int(output), known)
        for i, (arrival, prompt, output, known) in enumerate(zip(*columns, strict=True))
    ]


def _check_policy(queue: Sequence[Request], policy: Policy) -> None:
    for request in queue:
        row = f"request {request.index}: input_len = {request.prompt}"
        blocks = -(-(request.prompt + request.output - 1) // policy.block_size)
        if policy.num_blocks is not None and blocks > policy.num_blocks:
            raise ArgumentError(
                f"{row} and output_len = {request.output} need {blocks} blocks of {policy.block_size} tokens, but "
                f"Policy.num_blocks = {policy.num_blocks}; give it at least {blocks}, or leave the request out"
            )
        if not policy.enable_chunked_prefill and request.prompt + request.output - 1 > policy.max_num_batched_tokens:
            raise ArgumentError(
                f"{row} and output_len = {request.output} do not fit into a step of Policy.max_num_batched_tokens = "
                f"{policy.max_num_batched_tokens}; raise it, or set enable_chunked_prefill=True"
            )


def _arrive(
    env: simpy.Environment, queue: Sequence[Request], engines: Sequence[Replica]
) -> Generator[simpy.Event, Any, Any]:
    for request in sorted(queue, key=lambda each: each.arrival):
        if request.arrival > env.now:
            yield env.timeout(request.arrival - env.now)
        _least_loaded(engines).submit(request)
