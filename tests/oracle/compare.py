"""The engine and the oracle on the same cases, and the smallest case on which they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import yaml

from kernbench.sim_engine._network import Arbiter
from kernbench.topology.builder import Machine
from tests.oracle.cases import Case, Transaction, random_case
from tests.oracle.simulator import Oracle
from tests.reference import traffic
from tests.reference.traffic import Done
from tests.sim_engine import adapter

Ends = list[int]


class Simulator(traffic.Simulator, Protocol):
    """Whatever moves messages on a machine."""

    def queue(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message of a queue now."""


Make = Callable[[Machine, int | None], Simulator]


class Engine(adapter.Engine):
    """The engine; with `turn_bytes`, messages of queues take turns with the others at each PE_DMA."""

    def __init__(self, machine: Machine, turn_bytes: int | None = None) -> None:
        super().__init__(machine)
        self._turn_bytes = turn_bytes
        self._arbiters: dict[str, Arbiter] = {}

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message now."""
        if self._turn_bytes is None or not src.endswith("pe_dma"):
            super().send(src, dst, nbytes, done)
        else:
            self._take_turns(0, src, dst, nbytes, done)

    def queue(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message of a queue now."""
        self._take_turns(1, src, dst, nbytes, done)

    def _take_turns(self, line: int, src: str, dst: str, nbytes: int, done: Done) -> None:
        network = self.engine.network
        route = network.route(src, dst)
        if src not in self._arbiters:
            self._arbiters[src] = Arbiter(network.core, route.links[0], self._turn_bytes)
        self._arbiters[src].send(line, route, nbytes, route.key(), lambda _: done(), None)


class Difference(NamedTuple):
    """A case, and the end of each of its transactions [ps]; the engine may have failed instead."""

    case: Case
    oracle: Ends
    engine: Ends | Exception

    def __str__(self) -> str:
        ends = self.engine if isinstance(self.engine, list) else [repr(self.engine)] * len(self.oracle)
        rows = [
            {**transaction._asdict(), "oracle_ps": expected, "engine_ps": found}
            for transaction, expected, found in zip(self.case.transactions, self.oracle, ends, strict=True)
        ]
        return yaml.safe_dump(
            {"machine": self.case.overrides, "turn_bytes": self.case.turn_bytes, "transactions": rows},
            sort_keys=False,
            width=200,
        )


def play(sim: Simulator, transactions: Sequence[Transaction]) -> Ends:
    """Run transactions; return the end of each [ps], -1 for one that never ends."""
    ends = [-1] * len(transactions)
    followers: dict[int | None, list[int]] = {}
    for i, transaction in enumerate(transactions):
        followers.setdefault(transaction.after, []).append(i)

    def schedule(after: int | None) -> None:
        for i in followers.get(after, ()):
            sim.at(sim.now + transactions[i].wait_ps, lambda i=i: begin(i))

    def begin(i: int) -> None:
        def ended() -> None:
            ends[i] = sim.now
            schedule(i)

        kind, src, dst, offset, nbytes, *_ = transactions[i]
        if kind == "send":
            sim.send(src, dst, nbytes, ended)
        elif kind == "queue":
            sim.queue(src, dst, nbytes, ended)
        elif kind == "read":
            sim.read(src, dst, offset, nbytes, ended)
        else:
            sim.write(src, dst, offset, nbytes, ended)

    schedule(None)
    sim.run()
    return ends


def difference(case: Case, make: Make = Engine) -> Difference | None:
    """Return how the oracle and the engine that `make` returns differ on `case`, if they do."""
    machine = case.machine()
    expected = play(Oracle(machine, case.turn_bytes), case.transactions)
    found: Ends | Exception
    try:
        found = play(make(machine, case.turn_bytes), case.transactions)
    except Exception as fault:  # noqa: BLE001 - a crash is a difference, too
        found = fault
    return None if found == expected else Difference(case, expected, found)


def differences(
    seeds: Sequence[object], transactions: int, make: Make = Engine
) -> Iterator[tuple[object, Difference | None]]:
    """Yield the random case of each seed, and how it differs."""
    for seed in seeds:
        yield seed, difference(random_case(seed, transactions), make)


def minimized(found: Difference, make: Make = Engine) -> Difference:
    """Return a difference on fewer transactions, which are simpler, and on a machine closer to the default."""
    best = found

    def accepts(case: Case) -> bool:
        nonlocal best
        try:
            smaller = difference(case, make)
        except Exception:  # noqa: BLE001 - the machine is refused, or lacks a node that a transaction names
            return False
        best = smaller or best
        return smaller is not None

    size = len(best.case.transactions)
    while size := size // 2:
        at = 0
        while at < len(best.case.transactions):
            if not accepts(_without(best.case, range(at, at + size))):
                at += size
    for key in found.case.overrides:
        accepts(best.case._replace(overrides={k: v for k, v in best.case.overrides.items() if k != key}))
    for i in range(len(best.case.transactions)):
        for change in ({"after": None}, {"wait_ps": 0}, {"offset": 0}, {"nbytes": 257}, {"nbytes": 256}, {"nbytes": 1}):
            changed = list(best.case.transactions)
            changed[i] = changed[i]._replace(**change)
            accepts(best.case._replace(transactions=changed))
    return best


def _without(case: Case, gone: range) -> Case:
    """Return `case` without the transactions at `gone`; what followed one of these starts by itself."""
    kept = [i for i in range(len(case.transactions)) if i not in gone]
    number = {old: new for new, old in enumerate(kept)}
    return case._replace(
        transactions=[case.transactions[i]._replace(after=number.get(case.transactions[i].after)) for i in kept]
    )
