"""Where messages meet: each rule with the last moment at which it bites and the first at which it does not.

Default machine, cube 0. PE 0 hangs on r0c0 and PE 1 on its east neighbour r0c1; every link carries 256 B in 1 ns.
A flit that PE 0 sends at 0 reaches r0c0 at 2 ns and r0c1 at 4.03; one of PE 1 reaches r0c1 at 2. The last link to
PE 1's slice leads out of r0c1, and adds 1 ns.
"""

from __future__ import annotations

from itertools import permutations

import pytest

from kernbench.policy._routing import RouteTable
from kernbench.topology._naming import hbm, pe_dma, sram
from kernbench.topology.builder import resolve_topology
from tests.sim_engine.adapter import Engine

MACHINE = resolve_topology("preset:default")
PE0, PE1, SLICE1 = pe_dma(0, 0, 0), pe_dma(0, 0, 1), hbm(0, 0, 1)


def ends(*messages, machine=MACHINE, **options) -> list[int]:
    """Return when each message (src, dst, nbytes, start ps) ends [ps]."""
    sim = Engine(machine, **options)
    done = [0] * len(messages)

    def start(i: int, src: str, dst: str, nbytes: int) -> None:
        sim.send(src, dst, nbytes, lambda: done.__setitem__(i, sim.now))

    for i, (src, dst, nbytes, t) in enumerate(messages):
        sim.at(t, lambda i=i, src=src, dst=dst, nbytes=nbytes: start(i, src, dst, nbytes))
    sim.run()
    return done


def test_alone():
    assert ends((PE0, SLICE1, 256, 0)) == [5030]
    assert ends((PE1, SLICE1, 256, 0)) == [3000]


def test_a_flit_waits_for_the_one_in_service_and_not_longer():
    # PE 0's flit holds the last link from 4030 to 5030; PE 1's arrives 2000 after its start.
    at = 5030 - 2000
    assert ends((PE0, SLICE1, 256, 0), (PE1, SLICE1, 256, at)) == [5030, at + 3000]
    assert ends((PE0, SLICE1, 256, 0), (PE1, SLICE1, 256, at - 1)) == [5030, at + 3000]
    assert ends((PE0, SLICE1, 256, 0), (PE1, SLICE1, 256, at - 1000)) == [5030, 6030]


def test_first_come_first_served_to_the_picosecond():
    at = 4030 - 2000
    assert ends((PE0, SLICE1, 256, 0), (PE1, SLICE1, 256, at - 1)) == [6029, 5029]
    assert ends((PE0, SLICE1, 256, 0), (PE1, SLICE1, 256, at + 1)) == [5030, 6030]


def test_at_a_tie_a_neighbour_goes_before_what_is_local():
    tied = (PE0, SLICE1, 256, 0), (PE1, SLICE1, 256, 2030)
    assert ends(*tied) == [5030, 6030]
    assert ends(*tied[::-1]) == [6030, 5030]


def test_messages_from_one_source_leave_back_to_back():
    burst = [(PE1, SLICE1, 256, 0)] * 5
    assert ends(*burst) == [3000, 4000, 5000, 6000, 7000]
    # The source's link is free again after 1000: one picosecond later costs one, one earlier gains nothing.
    assert ends((PE1, SLICE1, 256, 0), (PE1, SLICE1, 256, 999)) == [3000, 4000]
    assert ends((PE1, SLICE1, 256, 0), (PE1, SLICE1, 256, 1000)) == [3000, 4000]
    assert ends((PE1, SLICE1, 256, 0), (PE1, SLICE1, 256, 1001)) == [3000, 4001]


def test_a_latency_holds_up_nobody():
    # UCIe costs 2 x 8 ns and serves a flit in 2: the flits of a message end 2 apart, not 16.
    far = hbm(0, 1, 0)
    one, four = ends((PE0, far, 256, 0))[0], ends((PE0, far, 1024, 0))[0]
    assert four - one == 3 * 2000


def test_two_streams_that_meet_take_turns():
    # At r0c1 PE 1's flits arrive at 2, 3, 4, ... 9 ns and PE 0's at 4.03, 5.03, ... 11.03. Two of PE 1 pass alone;
    # from 4 on they alternate, and PE 1's last is served from 14 to 15. By the message it would end at 10.
    assert ends((PE0, SLICE1, 2048, 0), (PE1, SLICE1, 2048, 0)) == [18_000, 15_000]


def test_a_stream_gives_way_flit_by_flit():
    # 64 B slip in between two flits of a train that has the link from 2 ns on, back to back.
    long, small = ends((PE1, SLICE1, 4096, 0), (PE0, SLICE1, 64, 0))
    assert long == 2000 + 16 * 1000 + 250
    # Its head reaches r0c1 at 0.25 + 1 + 0.25 + 1.03 = 2.53: it waits for the flit that began at 2, and for no other.
    assert small == 3000 + 250


def test_head_of_line():
    # What stands behind a long message in one queue waits for all of it, though its own way is free.
    own = hbm(0, 0, 0)
    assert ends((PE0, own, 256, 0)) == [3000]
    long, behind = ends((PE0, SLICE1, 4096, 0), (PE0, own, 256, 0))
    assert (long, behind) == (5030 + 15_000, 3000 + 16_000)
    assert ends((PE0, SLICE1, 4096, 0), (PE0, own, 256, 16_000))[1] == 3000 + 16_000
    assert ends((PE0, SLICE1, 4096, 0), (PE0, own, 256, 16_001))[1] == 3000 + 16_001


def test_a_slow_link_downstream_does_not_block_the_queue_before_it():
    # Buffers are unbounded: flits that pile up before the SRAM's 128 GB/s leave the mesh behind them free.
    memory = sram(0, 0)
    slow = ends((PE0, memory, 8192, 0))[0]
    assert slow == ends((PE0, memory, 256, 0))[0] + 31 * 2000
    own = hbm(0, 0, 0)
    assert ends((PE0, memory, 8192, 0), (PE0, own, 256, 0))[1] == 3000 + 32 * 1000


def test_directions_of_a_link_do_not_meet():
    assert ends((PE0, SLICE1, 4096, 0), (PE1, hbm(0, 0, 0), 4096, 0)) == [
        *ends((PE0, SLICE1, 4096, 0)),
        *ends((PE1, hbm(0, 0, 0), 4096, 0)),
    ]


# Five that enter r4c1, where PE 5 hangs, from five sides: over UCIe connection 3 from the east, from PE 4 in the
# west, from the rows above and below, and from PE 5 itself.
SIDES = {
    "E": pe_dma(0, 1, 3),
    "W": pe_dma(0, 0, 4),
    "N": pe_dma(0, 0, 0),
    "S": pe_dma(0, 0, 6),
    "local": pe_dma(0, 0, 5),
}
SLICE5 = hbm(0, 0, 5)


def test_the_sides_are_what_they_are_called():
    before = {
        side: RouteTable(MACHINE.graph).path(src, SLICE5)[-3].removeprefix("sip0.cube0.") for side, src in SIDES.items()
    }
    assert before == {"E": "r4c2", "W": "r4c0", "N": "r3c1", "S": "r5c1", "local": "pe5.pe_dma"}


@pytest.mark.parametrize("names", list(permutations(SIDES))[::17])
def test_at_a_tie_sides_go_east_west_north_south_local(names):
    alone = {side: ends((src, SLICE5, 256, 0))[0] for side, src in SIDES.items()}
    together = max(alone.values())
    tied = [(SIDES[side], SLICE5, 256, together - alone[side]) for side in names]
    done = dict(zip(names, ends(*tied), strict=True))
    assert done == {side: together + 1000 * place for place, side in enumerate(SIDES)}


def test_one_picosecond_outweighs_every_rank():
    alone = {side: ends((src, SLICE5, 256, 0))[0] for side, src in SIDES.items()}
    t = max(alone.values())
    first = [(src, SLICE5, 256, t - alone[side] + (side != "local")) for side, src in SIDES.items()]
    assert ends(*first)[-1] == t


def test_what_leaves_one_link_together_goes_by_source_and_count():
    # A message of 0 B ends its service with the flit before it. Both were PE 1's: the one sent first goes first.
    assert ends((PE1, SLICE1, 256, 0), (PE1, SLICE1, 0, 500)) == [3000, 3000]
    # Behind PE 0's flit at r0c1, PE 1's empty message overtakes nothing that was there before it.
    assert ends((PE0, SLICE1, 256, 0), (PE1, SLICE1, 0, 4029 - 1000))[1] == 4029
    assert ends((PE0, SLICE1, 256, 0), (PE1, SLICE1, 0, 4031 - 1000))[1] == 5030


def test_permuted_ranks_decide_ties_and_nothing_else():
    tied = (PE0, SLICE1, 256, 0), (PE1, SLICE1, 256, 2030)
    seen = {tuple(ends(*tied, tie_seed=seed)) for seed in range(20)}
    assert seen == {(5030, 6030), (6030, 5030)}
    apart = (PE0, SLICE1, 256, 0), (PE1, SLICE1, 256, 2029)
    assert {tuple(ends(*apart, tie_seed=seed)) for seed in range(20)} == {(6029, 5029)}


@pytest.mark.parametrize("memory", [hbm(0, 0, 0), sram(0, 0)])
@pytest.mark.parametrize("what", ["read", "write"])
def test_a_request_has_at_least_one_byte(memory, what):
    engine = Engine(resolve_topology("preset:small"))
    ask = getattr(engine, what)
    with pytest.raises(ValueError, match="0 bytes: a request has at least one"):
        ask(pe_dma(0, 0, 0), memory, 0, 0, lambda: None)
    done = []
    ask(pe_dma(0, 0, 0), memory, 0, 1, lambda: done.append(1))
    engine.run()
    assert done == [1]
