"""Where messages waited, from a list of all hops: what the records say has to be the same."""

from __future__ import annotations

from collections import defaultdict


def waits_of(records):
    """The waits of each transfer as (link, key of the transfer in front, ps); a front that is not logged is -1."""
    d, keys = records.dependencies, records.dependencies.transfers["key"].tolist()
    found = {}
    for transfer in d.at(slice(None)):
        if transfer.wait >= 0:
            waits = d.waits_of(transfer)
            named = [(records.links.names[w.link], keys[w.front] if w.front >= 0 else -1, w.ps) for w in waits]
            found[transfer.key] = named
    return found


def waits_of_hops(hops, logged):
    """The same, from hops in the order in which links served them: the waits of the last flit of each message.

    A flit that is served directly after one of its own message has the waits of that one. Any other delay is a wait.
    """
    served: dict[str, tuple[int, int, tuple]] = {}  # by link: until when, for whom, and where that has waited
    count: dict[tuple[int, str], int] = defaultdict(int)
    came: dict[tuple[int, str, int], tuple] = {}  # by message, node and number of the flit
    last: dict[tuple[int, str], tuple] = {}
    ends: dict[int, tuple] = {}
    for hop in hops:
        src, dst = hop.link.split("->")
        number = count[hop.key, hop.link]
        count[hop.key, hop.link] += 1
        starts = "hbm_ctrl" in src or "sram" in src or (hop.key, src, number) not in came
        waits = last.get((hop.key, src), ()) if starts else came[hop.key, src, number]
        free, key, theirs = served.get(hop.link, (-1, -1, ()))
        if key == hop.key and free == hop.start_ps:
            waits = theirs
        elif hop.start_ps > hop.arrival_ps:
            front = key if key in logged else -1
            waits = (*waits, (hop.link, front, hop.start_ps - hop.arrival_ps))
        served[hop.link] = hop.end_ps, hop.key, waits
        came[hop.key, dst, number] = last[hop.key, dst] = ends[hop.key] = waits
    return ends
