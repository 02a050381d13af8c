"""Properties of a table of actions: messages, times for given costs, deadlocks and activations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kernbench.errors import DeadlockError
from kernbench.pipeline._actions import BACKWARD, FORWARD, INPUT, RECEIVES, SENDS, WAITED, WEIGHT, Action, Table


def received(table: Table, action: Action) -> Action:
    """Return the RECV of the message that an action needs, or that a SEND or WAIT_SEND refers to."""
    if action.kind in (*SENDS, *WAITED):
        forward = action.kind.endswith("_F")
        return action.as_kind(RECEIVES[not forward], action.stage + (1 if forward else -1))
    return action.as_kind(RECEIVES[action.kind != FORWARD])


def sent(table: Table, receive: Action) -> tuple[Action, Action]:
    """Return the SEND of a RECV, and the action whose result it sends."""
    if receive.kind == RECEIVES[0]:
        return receive.as_kind(SENDS[0], receive.stage - 1), receive.as_kind(FORWARD, receive.stage - 1)
    return receive.as_kind(SENDS[1], receive.stage + 1), table.backward(receive.stage + 1, receive.microbatch)


def lowered(table: Table) -> Table:
    """Return the table with a SEND after each action whose result another rank needs, and the RECV there.

    The receiver posts it before the action that it has reached by then, as torch does: ranks take an action in turn.
    """
    if table.with_messages:
        return table
    found: list[list[Action]] = [[] for _ in table.ranks]
    at, done = [0] * len(table.ranks), set[Action]()
    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(table.ranks):
            if at[rank] == len(actions):
                continue
            action = actions[at[rank]]
            if not done.issuperset(table.needs(action)):
                continue
            found[rank].append(action)
            done.add(action)
            at[rank] += 1
            moved = True
            target = table.target(action)
            if target is None or table.home[target] == rank:
                continue
            forward = action.kind == FORWARD
            if (
                action.as_kind(FORWARD, target) if forward else table.backward(target, action.microbatch)
            ) in table.actions:
                found[rank].append(action.as_kind(SENDS[not forward]))
                found[table.home[target]].append(action.as_kind(RECEIVES[not forward], target))
    _check_ended(table, at, done)
    return Table(tuple(map(tuple, found)))


@dataclass(frozen=True)
class Times:
    spans: dict[Action, tuple[float, float]]  # start and end of each action

    @property
    def makespan(self) -> float:
        return max((end for _, end in self.spans.values()), default=0.0)


def times(table: Table, cost: Callable[[Action], float], delay: Callable[[Action], float]) -> Times:
    """Run a table, each action as early as possible.

    A message takes `delay(RECV)` from when both ranks have reached its SEND and its RECV; without any in the table, an
    action needs only what it reads.

    Raises
    ------
    DeadlockError
        If an action waits for what never comes.
    """
    at, free = [0] * len(table.ranks), [0.0] * len(table.ranks)
    spans: dict[Action, tuple[float, float]] = {}
    posted: dict[Action, float] = {}
    arrivals: dict[Action, float] = {}

    def ready(rank: int, action: Action) -> float | None:
        """Earliest start of an action; None if not known yet."""
        start = free[rank]
        if action.kind in SENDS:
            _, made = sent(table, received(table, action))
            return start if made in spans else None
        if action.kind in WAITED:
            arrival = arrivals.get(received(table, action))
            return None if arrival is None else max(start, arrival)
        for need in table.needs(action):
            if not (table.with_messages and table.is_message(need, action)):
                if need not in spans:
                    return None
                start = max(start, spans[need][1])
            elif (receive := received(table, action)) in posted and receive in arrivals:
                start = max(start, arrivals[receive])
            else:
                return None
        return start

    moved = True
    while moved:
        moved = False
        for rank, actions in enumerate(table.ranks):
            while at[rank] < len(actions):
                action = actions[at[rank]]
                start = ready(rank, action)
                if start is None:
                    break
                if action.kind in (*SENDS, *RECEIVES):
                    posted[action] = start
                    receive = action if action.kind in RECEIVES else received(table, action)
                    send, _ = sent(table, receive)
                    if send in posted and receive in posted:
                        arrivals[receive] = max(posted[send], posted[receive]) + delay(receive)
                else:
                    free[rank] = start + (0.0 if action.kind in WAITED else cost(action))
                    spans[action] = start, free[rank]
                at[rank] += 1
                moved = True
    _check_ended(table, at, {*spans, *posted})
    return Times(spans)


def _check_ended(table: Table, at: list[int], done: set[Action]) -> None:
    stuck = [(rank, i) for rank, i in enumerate(at) if i < len(table.ranks[rank])]
    if not stuck:
        return
    lines = []
    for rank, i in stuck:
        action = table.ranks[rank][i]
        missing = next(need for need in _requirements(table, action) if need not in done)
        runs = table.home.get(missing.stage) if missing in table.actions else None
        when = "which no rank runs" if runs is None else f"which rank {runs} runs later"
        lines.append(f"\n  rank {rank}, at {action} (entry {i} of its order), waits for {missing}, {when}")
    raise DeadlockError(f"deadlock: this order of actions never ends:{''.join(lines)}")


def _requirements(table: Table, action: Action) -> list[Action]:
    if action.kind in SENDS:
        return [sent(table, received(table, action))[1]]
    if action.kind in WAITED:
        receive = received(table, action)
        return [action.as_kind(action.kind.removeprefix("WAIT_")), receive]
    found = []
    for need in table.needs(action):
        if table.with_messages and table.is_message(need, action):
            receive = received(table, action)
            found += [receive, sent(table, receive)[0]]
        else:
            found.append(need)
    return found


def peak_activations(table: Table) -> list[int]:
    """Return the peak number of activations of each rank, one for each stage and microbatch.

    A forward adds one; its B, or its W where the backward is split, releases it.
    """
    found = []
    for actions in table.ranks:
        held = peak = 0
        for action in actions:
            held += action.kind == FORWARD
            peak = max(peak, held)
            split = action.kind == INPUT and action.as_kind(WEIGHT) not in table.actions
            held -= split or action.kind in (BACKWARD, WEIGHT)
        found.append(peak)
    return found
