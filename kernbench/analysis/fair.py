"""Max-min fair rates: how streams that never end would share links if every link were fair.

A bound to judge a pattern by, not a model of the machine: its links serve flits in order of arrival, which
favours streams that join late, and streams that start together do not end together.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

Flow = Sequence[Hashable]


def fair_rates(flows: Sequence[Flow], capacity: Mapping[Hashable, float]) -> list[float]:
    """Return the max-min fair rate of each flow.

    Parameters
    ----------
    flows : sequence of sequence
        The resources (links, memories) that each flow uses.
    capacity : mapping
        Rate of each resource, in the unit of the result.

    Notes
    -----
    Progressive filling: all rates grow alike until a resource is full; its flows keep their rate, and the others go
    on. The result is the only allocation in which no rate can grow but at the cost of a smaller one (Bertsekas and
    Gallager, Data Networks, 6.5.2).

    Examples
    --------
    >>> fair_rates([["a"], ["a", "b"], ["b"]], {"a": 10, "b": 4})
    [8.0, 2.0, 2.0]
    """
    users: dict[Hashable, set[int]] = {}
    for i, flow in enumerate(flows):
        for resource in flow:
            users.setdefault(resource, set()).add(i)
    left = {resource: float(capacity[resource]) for resource in users}
    rates = [0.0] * len(flows)
    while users:
        full, share = min(((r, left[r] / len(users[r])) for r in users), key=lambda item: item[1])
        for i in users.pop(full):
            rates[i] = share
            for resource in set(flows[i]) & users.keys():
                users[resource].discard(i)
                left[resource] -= share
                if not users[resource]:
                    del users[resource]
    return rates


def drain(flows: Sequence[Flow], capacity: Mapping[Hashable, float], amount: float) -> list[float]:
    """Return when each flow has moved `amount`, all starting at 0 and sharing fairly what ended ones leave.

    Examples
    --------
    >>> drain([["a"], ["a", "b"], ["b"]], {"a": 10, "b": 4}, 40)
    [5.0, 20.0, 20.0]
    """
    ends = [0.0] * len(flows)
    missing = dict.fromkeys(range(len(flows)), float(amount))
    now = 0.0
    while missing:
        active = list(missing)
        rates = dict(zip(active, fair_rates([flows[i] for i in active], capacity), strict=True))
        step = min(missing[i] / rates[i] for i in active)
        now += step
        for i in active:
            missing[i] -= step * rates[i]
            if missing[i] <= 1e-9 * amount:
                ends[i] = now
                del missing[i]
    return ends
