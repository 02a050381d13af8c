"""One probe: the transfers of a case on an idle machine, each with its closed form; or one command from PE to PE."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import groupby

from kernbench.analysis import transfer
from kernbench.analysis.result import Result
from kernbench.analysis.transfer import Channels, Leg, Parts
from kernbench.dtypes import int8
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.definition import Hop
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.host import QueueSpec
from kernbench.sim_engine.transfer import Route, Transaction
from kernbench.studies.points import Row
from kernbench.studies.probe_cases import Case
from kernbench.topology import naming
from kernbench.topology.builder import Machine
from kernbench.triton_emu.handles import Pointer
from kernbench.triton_emu.tl_context import TLContext
from kernbench.units import FLIT_BYTES, ns_to_ps, serialization_ps

_OWN, _PEER = 1 << 40, 1 << 41  # where programs of a pair see their own slice, and the other's
_ASKED = {"message": "send", "load": "load", "store": "store"}  # the command whose start is the start


@dataclass(frozen=True)
class Probe:
    """One case at one size, in the order of its transfers.

    Attributes
    ----------
    parts : list of Parts
        Where the measured time of each transfer went.
    alone : list of Parts
        The closed form of each.
    ways : list of list
        The resources that its data cross: names of links, and the memory's id.
    capacity : dict
        Rate of each resource [GB/s].
    result : Result
        The run.
    """

    case: Case
    nbytes: int
    parts: list[Parts]
    alone: list[Parts]
    ways: list[list[str]]
    capacity: dict[Hashable, float]
    result: Result


def probe(machine: Machine, case: Case, nbytes: int) -> Probe:
    """Run a case with `nbytes` a transfer; transfers to one memory take places one behind the other."""
    engine = GraphEngine(machine, log="off")
    ends = start(engine, case, nbytes)
    engine.run()
    channels, rate = _channels(machine)
    parts, alone, ways = [], [], []
    capacity: dict[Hashable, float] = {}
    for (src, memory), offset, end in zip(case.ends, _offsets(case, nbytes), ends, strict=True):
        there = engine.network.route(src, memory)
        back = engine.network.back(there)
        closed = transfer.read if case.kind == "read" else transfer.write
        alone.append(closed(_legs(engine, there), _legs(engine, back), nbytes, channels, offset))
        parts.append(alone[-1].measured(end))
        data = back if case.kind == "read" else there
        ways.append([*(link.name for link in data.links), memory])
        capacity.update((link.name, link.bw_gbs) for link in data.links)
        capacity[memory] = rate
    return Probe(case, nbytes, parts, alone, ways, capacity, Result(engine.records(), case.name))


def hops(machine: Machine, case: Case, nbytes: int) -> list[Row]:
    """Return when the first and the last flit crossed each link [ns], link by link in that order."""
    engine = GraphEngine(machine, log="off", trace=True)
    start(engine, case, nbytes)
    engine.run()
    assert engine.network.hops is not None
    crossed = sorted(engine.network.hops, key=lambda hop: hop.link)
    rows: list[Row] = []
    for link, group in groupby(crossed, key=lambda hop: hop.link):
        train: list[Hop] = sorted(group, key=lambda hop: hop.start_ps)
        waited = sum(hop.start_ps - hop.arrival_ps for hop in train)
        rows.append(
            {
                "link": link,
                "flits": len(train),
                "bytes": sum(hop.nbytes for hop in train),
                "first_arrival_ns": train[0].arrival_ps / 1000,
                "first_end_ns": train[0].end_ps / 1000,
                "last_end_ns": train[-1].end_ps / 1000,
                "waited_ns": waited / 1000,
            }
        )
    # Links without latency are crossed at one instant; among those, the order is that of the route.
    place: dict[str, int] = {}
    for src, memory in case.ends:
        there = engine.network.route(src, memory)
        for link in (*there.links, *engine.network.back(there).links):
            place.setdefault(link.name, len(place))
    return sorted(rows, key=lambda row: (row["first_arrival_ns"], row["first_end_ns"], place[row["link"]]))


def pair_ns(machine: Machine, case: Case, nbytes: int) -> float:
    """Return how long a message, load or store between two PEs takes, from the start of its command on.

    Data begin in TCM for a message and a store, in HBM for a load. A message ends when its receiver, which waits for
    it, has it in TCM; a load when the tile is in TCM; a store with its acknowledgement.
    """
    assert case.pair is not None
    engine, (src, dst) = GraphEngine(machine), case.pair
    queue = machine.config.cube.pe.pe_ipcq
    rings = {pe: engine.allocators.pe(*pe).reserve_ipcq_tcm(queue.n_slots * queue.slot_bytes) for pe in case.pair}
    sizes = queue.n_slots, queue.slot_bytes, queue.credit_bytes, FLIT_BYTES
    ranks = {pe[1:]: rank for rank, pe in enumerate(case.pair)}
    wiring: dict[tuple[int, int], list[QueueSpec]] = {}
    for pe, peer in ((src, dst), (dst, src)):
        wiring[pe[1:]] = [QueueSpec("peer", peer, rings[pe], rings[peer], "tcm", *sizes)]
        mmu = engine.pe(*pe).mmu
        for at, owner in ((_OWN, pe), (_PEER, peer)):
            first = PhysAddr.pe_hbm_addr(*owner, 0, slice_bytes=engine.addresses.slice_bytes)
            mmu.map(at, nbytes, first.encode(), naming.hbm(*owner))
    engine.wait(engine.install(src[0], wiring, case.name))
    programs = {pe[1:]: (case.kind, nbytes) for pe in case.pair}
    engine.launch(src[0], list(programs), _pair_program, programs, case.name, case.name, ranks, len(ranks))
    engine.run()
    records = engine.records()
    asked = records.of_pe(*(dst if case.kind == "load" else src)).of_kind(_ASKED[case.kind])
    ended = records.of_kind("recv") if case.kind == "message" else asked
    return int(ended.end_ps.max() - asked.start_ps.min()) / 1000


def _pair_program(kind: str, nbytes: int, *, tl: TLContext) -> None:
    """Do one end's part of a message, load or store: rank 0 has the data, rank 1 needs them."""
    own, peer, first = Pointer(_OWN, int8), Pointer(_PEER, int8), tl.program_id(2) == 0
    if kind == "load":
        if not first:
            tl.load(peer, shape=nbytes)
    elif first:
        x = tl.load(own, shape=nbytes)
        tl.wait(x)
        if kind == "message":
            tl.send("peer", x)
        else:
            tl.store(peer, x)
    elif kind == "message":
        tl.recv("peer", shape=nbytes, dtype=int8)


def start(engine: GraphEngine, case: Case, nbytes: int) -> list[int]:
    """Send all transfers of a case now; return the list that their ends will be in [ps]."""
    ends = [0] * len(case.ends)

    def ended(txn: Transaction) -> None:
        ends[txn.arg] = int(engine.env.now)

    for i, ((src, memory), offset) in enumerate(zip(case.ends, _offsets(case, nbytes), strict=True)):
        txn = Transaction(nbytes, offset, ended, i)
        start = txn.read if case.kind == "read" else txn.write
        start(engine.network, engine.network.route(src, memory), engine.memory_at(memory))
    return ends


def _offsets(case: Case, nbytes: int) -> Iterator[int]:
    used: dict[str, int] = {}
    for _, memory in case.ends:
        yield used.get(memory, 0)
        used[memory] = used.get(memory, 0) + nbytes


def _legs(engine: GraphEngine, route: Route) -> list[Leg]:
    graph = engine.machine.graph
    legs = []
    for link in route.links:
        wire = graph.edge(link.src, link.dst).latency_ps - graph.node(link.dst).overhead_ps
        legs.append(Leg(link.bw_gbs, wire, link.lat - wire))
    return legs


def _channels(machine: Machine) -> tuple[Channels, float]:
    """Return how a slice serves bursts, and its bandwidth [GB/s]."""
    hbm = machine.config.cube.hbm
    bw_gbs = hbm.channel_bw_gbs * hbm.efficiency
    burst_ps = serialization_ps(hbm.burst_bytes, bw_gbs)
    channels = Channels(hbm.channels, hbm.burst_bytes, burst_ps, ns_to_ps(hbm.access_ns))
    return channels, hbm.channels * bw_gbs
