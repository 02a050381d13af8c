"""Launches of a run by the labels that reports use, and selection of launches by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernbench._registry import hint
from kernbench.analysis._records import Launch
from kernbench.errors import ArgumentError


def labels(launches: Iterable[Launch]) -> list[str]:
    """Label of each launch in reports: its name; "name #2" from the second call of the same name on.

    Launches of one name on several SIPs are one call: the first on each SIP is the first call, and so on. Launches over
    different queues belong to different groups, so they are different calls.

    Examples
    --------
    >>> total = [Launch("sum", 0, 9, sip) for sip in (0, 1)]
    >>> labels([*total, Launch("gemm", 9, 12, 0), *total, Launch("gemm", 9, 12, 1)])
    ['sum', 'sum', 'gemm', 'sum #2', 'sum #2', 'gemm']
    """
    nth: Counter[tuple[str, str, int]] = Counter()
    number: Counter[str] = Counter()
    called: dict[tuple[str, str, int], str] = {}
    taken: set[str] = set()
    found = []
    for x in launches:
        nth[x.name, x.queues, x.sip] += 1
        call = x.name, x.queues, nth[x.name, x.queues, x.sip]
        if call not in called:
            label = x.name
            while label in taken:
                number[x.name] += 1
                label = f"{x.name} #{number[x.name] + 1}"
            taken.add(label)
            called[call] = label
        found.append(called[call])
    return found


def calls(launches: Sequence[Launch]) -> dict[str, list[Launch]]:
    found: dict[str, list[Launch]] = {}
    for label, x in zip(labels(launches), launches, strict=True):
        found.setdefault(label, []).append(x)
    return found


def span(launches: Sequence[Launch]) -> tuple[int, int]:
    return min(x.start_ps for x in launches), max(x.end_ps for x in launches)


def on_sip(launch: Launch) -> str:
    return f" on sip{launch.sip}" if launch.sip >= 0 else ""


def chosen_launches(launches: Sequence[Launch], which: str | Launch | Sequence[Launch]) -> tuple[str, list[Launch]]:
    if not isinstance(which, (str, Launch)):
        return f"{len(which)} launches", list(which)
    called = calls(launches)
    if isinstance(which, Launch):
        for label, each in called.items():
            if which in each:
                return label + on_sip(which), [which]
        what = f"{which.name}{on_sip(which)} from {which.start_ps / 1000:,.2f} ns on"
    elif which in called:
        return which, called[which]
    else:
        what = which
    raise ArgumentError(f"no launch of this run is {what!r}; {_known(what, called)}")


def _known(what: str, called: Mapping[str, Sequence[Launch]]) -> str:
    """Known names, and the last label of each name that was launched several times."""
    if not called:
        return "it launched nothing"
    last = {each[0].name: label for label, each in called.items()}
    more = [label for name, label in last.items() if label != name]
    return hint(what, last) + (f"; up to {', '.join(more)}" if more else "")
