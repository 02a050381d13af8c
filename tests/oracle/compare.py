"""The product and the oracle on the same cases, and the smallest case on which they differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.validation_traffic import Engine, Simulator
from kernbench.topology.builder import Machine
from tests.oracle.cases import Case, Transaction
from tests.oracle.simulator import Oracle

Make = Callable[[Machine], Simulator]


def product(machine: Machine) -> Simulator:
    """Return the product's engine on `machine`."""
    return Engine(GraphEngine(machine, log="off"))


def play(sim: Simulator, transactions: Sequence[Transaction]) -> list[int]:
    """Run transactions; return the end of each [ps]."""
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
        elif kind == "read":
            sim.read(src, dst, offset, nbytes, ended)
        else:
            sim.write(src, dst, offset, nbytes, ended)

    schedule(None)
    sim.run()
    return ends


def ends(case: Case, make: Make = product) -> tuple[list[int], list[int]]:
    """Return the end of each transaction as the oracle and as the simulator that `make` returns has it [ps]."""
    machine = case.machine()
    return play(Oracle(machine), case.transactions), play(make(machine), case.transactions)


def differ(case: Case, make: Make = product) -> bool:
    """Return whether a transaction of `case` ends at different times."""
    expected, found = ends(case, make)
    return expected != found


def minimized(case: Case, make: Make = product) -> Case:
    """Return a small case that differs as `case` does: fewer transactions, and defaults wherever they will do."""
    case = _fewer(case, make)
    for key in sorted(case.overrides):
        smaller = case._replace(overrides={k: v for k, v in case.overrides.items() if k != key})
        if _still_differs(smaller, make):
            case = smaller
    for i, transaction in enumerate(case.transactions):
        for simpler in ({"after": None}, {"wait_ps": 0}, {"offset": 0}, {"nbytes": 1}, {"nbytes": 256}, {"nbytes": 257}):
            changed = [*case.transactions]
            changed[i] = transaction._replace(**simpler)
            if changed[i] != transaction and _still_differs(case._replace(transactions=changed), make):
                case, transaction = case._replace(transactions=changed), changed[i]  # noqa: PLW2901
    return case


def _fewer(case: Case, make: Make) -> Case:
    """Leave out as many transactions as possible: halves first, then single ones."""
    size = len(case.transactions) // 2
    while size:
        at = 0
        while at < len(case.transactions):
            smaller = case._replace(transactions=_without(case.transactions, range(at, at + size)))
            if differ(smaller, make):
                case = smaller
            else:
                at += size
        size //= 2
    return case


def _without(transactions: Sequence[Transaction], gone: range) -> list[Transaction]:
    """Return `transactions` without those at `gone`; what followed one of these starts by itself."""
    number = {None: None}
    for i in range(len(transactions)):
        number[i] = None if i in gone else sum(j not in gone for j in range(i))
    return [t._replace(after=number[t.after]) for i, t in enumerate(transactions) if i not in gone]


def _still_differs(case: Case, make: Make) -> bool:
    try:
        return differ(case, make)
    except Exception:  # noqa: BLE001 - a machine that is refused, or without a node that a transaction names
        return False


def report(case: Case, make: Make = product) -> str:
    """Return the machine, its transactions, and when each ends, as text that `python -m tests.oracle --case` reads."""
    rows: list[dict[str, Any]] = []
    for transaction, expected, found in zip(case.transactions, *ends(case, make), strict=True):
        rows.append({**transaction._asdict(), "oracle_ps": expected, "product_ps": found})
    return json.dumps({"machine": case.overrides, "transactions": rows}, indent=1)
