"""The probe: transfers over every kind of route, alone and many at once, and messages, loads and stores PE to PE."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Annotated, ClassVar

import kernbench.studies.probe_report as report
from kernbench._dtypes import int8
from kernbench._registry import hint
from kernbench._units import ACK_BYTES, KIB, MIB
from kernbench.analysis import _transfer as transfer
from kernbench.analysis._transfer import TRANSFER_PARTS, Channels, TransferLeg, TransferParts
from kernbench.analysis.result import Result
from kernbench.analysis.utilization import drain, hottest, shares
from kernbench.config._rules import pe_places
from kernbench.errors import ArgumentError
from kernbench.points._keys import Row
from kernbench.policy._routing import reverse, router_of
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._host_requests import QueueSpec
from kernbench.sim_engine._python_core import Hop
from kernbench.sim_engine._transaction import Transaction
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.probe_report import PAIR_KINDS, VISIBLE
from kernbench.studies.study import Choices, Parameter, Study, check_slices
from kernbench.topology import _naming as naming
from kernbench.topology._graph import Graph
from kernbench.topology.builder import Machine
from kernbench.triton_emu._handles import Pointer
from kernbench.triton_emu.tl_context import TLContext

MESSAGE_SIZES = [128, 256, 512, KIB, 2 * KIB, 4 * KIB, 8 * KIB, 10 * KIB]
TRANSFER_SIZES = [4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB]

_Pe = tuple[int, int, int]  # (sip, cube, pe)


@dataclass(frozen=True, slots=True)
class ProbeCase:
    """Transfers that start at the same instant on an idle machine, one for each asking node."""

    name: str
    kind: str
    ends: tuple[tuple[str, str], ...]
    says: str
    pair: tuple[_Pe, _Pe] | None = None

    @property
    def pattern(self) -> bool:
        return len(self.ends) > 1


def cases(machine: Machine) -> dict[str, ProbeCase]:
    """All cases that the machine has the parts for, by name."""
    check_slices(machine, "probe")
    host = ((naming.HOST, naming.hbm(0, 0, 0)),)
    found = [
        ProbeCase("h2d-write", "write", host, "host to the slice of PE 0, cube 0, SIP 0"),
        ProbeCase("d2h-read", "read", host, "the same slice to the host"),
        *_single(machine),
        *_patterns(machine),
        *_pairs(machine),
    ]
    return {case.name: case for case in found}


def select(machine: Machine, names: Sequence[str] = ()) -> list[ProbeCase]:
    known = cases(machine)
    for name in names:
        if name not in known:
            raise ArgumentError(f"no probe case {name!r} on this machine; {hint(name, known, likeness=0.3)}")
    return [known[name] for name in names or known]


def _single(machine: Machine) -> Iterator[ProbeCase]:
    """Return reads and writes of PE 0 of cube 0 of SIP 0, the nearest slice first."""
    config = machine.config
    last_pe, last_cube = config.pes_per_cube - 1, config.cubes_per_sip - 1
    slices = (  # name, whether the machine has it, place, words
        ("own-slice", True, (0, 0, 0), "its own slice"),
        ("same-half", last_pe > 1, (0, 0, 1), "the slice of its neighbour, PE 1"),
        ("other-half", last_pe > 0, (0, 0, last_pe), f"the slice of PE {last_pe}, across the cube"),
        ("next-cube", last_cube > 0, (0, 1, 0), "the slice of PE 0, cube 1"),
        ("farthest-cube", last_cube > 1, (0, last_cube, last_pe), f"the slice of PE {last_pe}, cube {last_cube}"),
        ("other-sip", config.n_sips > 1, (1, 0, 0), "the slice of PE 0, cube 0, SIP 1"),
    )
    for kind in ("read", "write"):
        for name, exists, place, says in slices:
            if exists:
                ends = ((naming.pe_dma(0, 0, 0), naming.hbm(*place)),)
                yield ProbeCase(f"{name}-{kind}", kind, ends, f"PE 0 of cube 0 {kind}s {says}")


def _patterns(machine: Machine) -> Iterator[ProbeCase]:
    config, mesh = machine.config, machine.config.sip.cube_mesh
    pes = range(config.pes_per_cube)
    sip = [(0, cube, pe) for cube in range(config.cubes_per_sip) for pe in pes]
    everyone = [(s, cube, pe) for s in range(config.n_sips) for _, cube, pe in sip]
    n, middle = len(sip), (mesh.h - 1) // 2 * mesh.w + (mesh.w - 1) // 2
    west, east = [(0, 0, pe) for pe in pes], [(0, 1, pe) for pe in pes]
    for kind in ("write", "read"):
        # Data go east: writes from the west, reads from the east.
        here, there = (west, east) if kind == "write" else (east, west)
        over = "cube 0 to cube 1" if kind == "write" else "cube 1 from cube 0"
        patterns = (  # name, whether the machine has it, PEs that ask, slices, words
            ("all-own", n > 1, sip, sip, f"{n} PEs of SIP 0, each its own slice"),
            ("all-one", n > 1, sip, [(0, middle, 0)] * n, f"{n} PEs of SIP 0, all the slice of PE 0, cube {middle}"),
            (
                "eastbound", mesh.w > 1 and len(pes) > 1, here, there,
                f"{len(pes)} PEs of {over}, each the slice of the same PE there",
            ),
            (
                "to-other-sip", config.n_sips > 1, sip, [(1, cube, pe) for _, cube, pe in sip],
                f"{n} PEs of SIP 0, each the slice of the same PE in SIP 1",
            ),
            (
                "all-pe0", config.n_sips > 1, everyone, [(0, 0, 0)] * len(everyone),
                f"{len(everyone)} PEs, all the slice of PE 0, cube 0, SIP 0",
            ),
        )  # fmt: skip
        for name, exists, asking, slices, says in patterns:
            if exists:
                ends = tuple((naming.pe_dma(*a), naming.hbm(*b)) for a, b in zip(asking, slices, strict=True))
                yield ProbeCase(f"{name}-{kind}", kind, ends, f"{kind}s: {says}")


def _pairs(machine: Machine) -> Iterator[ProbeCase]:
    """Yield transfers of data of PE 0 of cube 0 that the next PE, and the next cube of its row and column, need."""
    mesh, places = machine.config.sip.cube_mesh, pe_places(machine.config)
    row, column = places[0]
    east = min(((c, pe) for pe, (r, c) in enumerate(places) if r == row and c > column), default=None)
    south = min(((r, pe) for pe, (r, c) in enumerate(places) if c == column and r > row), default=None)
    peers: dict[str, _Pe | None] = {
        "pe-east": (0, 0, east[1]) if east else None,
        "pe-south": (0, 0, south[1]) if south else None,
        "cube-east": (0, 1, 0) if mesh.w > 1 else None,
        "cube-south": (0, mesh.w, 0) if mesh.h > 1 else None,
    }
    for name, peer in peers.items():
        if peer is None:
            continue
        there = f"PE {peer[2]} of cube {peer[1]}"
        says = {
            "message": f"PE 0 of cube 0 sends {there} a message",
            "load": f"{there} loads from the slice of PE 0, cube 0",
            "store": f"PE 0 of cube 0 stores to the slice of {there}",
        }
        for kind in PAIR_KINDS:
            yield ProbeCase(f"{name}-{kind}", kind, (), says[kind], ((0, 0, 0), peer))


def _transfers(machine: Machine) -> list[str]:
    """Cases that are transactions; those from PE to PE have separate programs."""
    return [case.name for case in cases(machine).values() if not case.pair]


_OWN, _PEER = 1 << 40, 1 << 41  # where programs of a pair see their own slice, and the other's

_ASKED = {"message": "send", "load": "load", "store": "store"}  # the command whose start is the start


@dataclass(frozen=True)
class Probe:
    """Measurements of one case at one size, in the order of its transfers."""

    case: ProbeCase
    nbytes: int
    parts: list[TransferParts]
    alone: list[TransferParts]
    paths: list[dict[Hashable, float]]
    result: Result


def run(machine: Machine, case: ProbeCase, nbytes: int) -> Probe:
    """Run with `nbytes` for each transfer; transfers to one memory use consecutive ranges."""
    engine = GraphEngine(machine, log="off")
    ends = start(engine, case, nbytes)
    engine.run()
    parts, alone, paths = [], [], []
    for (src, memory), offset, end in zip(case.ends, _offsets(case, nbytes), ends, strict=True):
        alone.append(closed_form(machine, case.kind, src, memory, nbytes, offset))
        parts.append(alone[-1].measured(end))
        paths.append(data_path(engine, case.kind, src, memory))
    return Probe(case, nbytes, parts, alone, paths, Result(engine.records(), case.name))


def data_path(engine: GraphEngine, kind: str, src: str, memory: str) -> dict[Hashable, float]:
    """Links and memory that the data of a read or write occupy, with their bandwidths [GB/s]."""
    there = engine.network.route(src, memory)
    links = (engine.network.back(there) if kind == "read" else there).links
    return {**{link.name: link.bw_gbs for link in links}, memory: engine.machine.config.cube.hbm.slice_gbs}


def closed_form(machine: Machine, kind: str, src: str, dst: str, nbytes: int, offset: int = 0) -> TransferParts:
    """Latency of a message ("send"), or of a "read" or "write" of a memory, on an idle machine, by part."""
    path = router_of(machine.graph).path(src, dst)
    there, back = legs(machine.graph, path), legs(machine.graph, reverse(path))
    system, hbm = machine.config.system, machine.config.cube.hbm
    if kind == "send":
        return transfer.message_parts(there, nbytes, system.flit_bytes)
    out, home = (system.command_bytes, nbytes) if kind == "read" else (nbytes, ACK_BYTES)
    messages = transfer.message_parts(there, out, system.flit_bytes) + transfer.message_parts(
        back, home, system.flit_bytes
    )
    if machine.graph.node(dst).kind == "sram":
        return messages
    if hbm.timing == "simple" and kind == "read":
        sizes = {"flit_bytes": system.flit_bytes, "command_bytes": system.command_bytes}
        return transfer.read_parts(there, back, nbytes, Channels.of(hbm), offset, **sizes)
    if hbm.timing == "simple":
        return transfer.write_parts(there, back, nbytes, Channels.of(hbm), offset, flit_bytes=system.flit_bytes)
    # Commands have no closed form: the memory takes what an idle machine takes besides the messages.
    return replace(messages, memory=_alone_ps(machine, kind, src, dst, nbytes, offset) - messages.total)


def _alone_ps(machine: Machine, kind: str, src: str, dst: str, nbytes: int, offset: int) -> int:
    engine = GraphEngine(machine, log="off")
    ends: list[int] = []
    txn = Transaction(nbytes, offset, lambda _: ends.append(engine.env.core.now))
    route, memory = engine.network.route(src, dst), engine.memory_at(dst)
    (engine.network.read if kind == "read" else engine.network.write)(txn, route, memory)
    engine.run()
    return ends[0]


def legs(graph: Graph, path: Sequence[str]) -> list[TransferLeg]:
    edges = [(graph.edge(a, b), graph.node(b).overhead_ps) for a, b in pairwise(path)]
    return [TransferLeg(edge.bw_gbs, edge.latency_ps - over_ps, over_ps, edge.header_bytes) for edge, over_ps in edges]


def hops(machine: Machine, case: ProbeCase, nbytes: int) -> list[Row]:
    """Return the times at which the first and the last flit crossed each link [ns], in that order."""
    engine = GraphEngine(machine, log="off", trace=True)
    start(engine, case, nbytes)
    engine.run()
    assert engine.network.hops is not None
    by_link: dict[str, list[Hop]] = {}
    for hop in sorted(engine.network.hops, key=lambda hop: hop.start_ps):
        by_link.setdefault(hop.link, []).append(hop)
    rows: list[Row] = [
        {
            "link": link, "flits": len(train), "bytes": sum(hop.nbytes for hop in train),
            "first_arrival_ns": train[0].arrival_ps / 1000, "first_end_ns": train[0].end_ps / 1000,
            "last_end_ns": train[-1].end_ps / 1000,
            "waited_ns": sum(hop.start_ps - hop.arrival_ps for hop in train) / 1000,
        }
        for link, train in by_link.items()
    ]  # fmt: skip
    # Links without latency are crossed at one instant; among those, the order is that of the route.
    place: dict[str, int] = {}
    for src, memory in case.ends:
        there = engine.network.route(src, memory)
        for link in (*there.links, *engine.network.back(there).links):
            place.setdefault(link.name, len(place))
    return sorted(rows, key=lambda row: (row["first_arrival_ns"], row["first_end_ns"], place[row["link"]]))


def pair_ns(machine: Machine, case: ProbeCase, nbytes: int) -> float:
    """Time of a message, load or store between two PEs, from the start of its command."""
    assert case.pair is not None
    engine, (src, dst) = GraphEngine(machine), case.pair
    queue = machine.config.cube.pe.pe_ipcq
    rings = {pe: engine.allocators.pe(*pe).reserve_ipcq_tcm(queue.n_slots * queue.slot_bytes) for pe in case.pair}
    sizes = queue.n_slots, queue.slot_bytes, queue.credit_bytes, machine.config.system.flit_bytes
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
    """Run one end of a message, load or store: rank 0 has the data, rank 1 needs them."""
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


def start(engine: GraphEngine, case: ProbeCase, nbytes: int) -> list[int]:
    """Send all transfers of a case; the returned list will contain their end times [ps]."""
    ends = [0] * len(case.ends)

    def ended(txn: Transaction) -> None:
        ends[txn.arg] = int(engine.env.now)

    for i, ((src, memory), offset) in enumerate(zip(case.ends, _offsets(case, nbytes), strict=True)):
        txn = Transaction(nbytes, offset, ended, i)
        send = engine.network.read if case.kind == "read" else engine.network.write
        send(txn, engine.network.route(src, memory), engine.memory_at(memory))
    return ends


def _offsets(case: ProbeCase, nbytes: int) -> Iterator[int]:
    used: dict[str, int] = {}
    for _, memory in case.ends:
        yield used.get(memory, 0)
        used[memory] = used.get(memory, 0) + nbytes


def row(found: Probe) -> Row:
    """Columns of one probe; times of a pattern are means over its transfers unless their names say otherwise."""
    case, n, records = found.case, found.nbytes, found.result.records
    ends = [parts.total / 1000 for parts in found.parts]
    slowest = [min(path.values()) for path in found.paths]
    drained = max(drain([list(path) for path in found.paths], dict(ChainMap(*found.paths)), n))
    share = shares(records.links, records.makespan_ps)
    first = hottest(share)
    out = {
        "case": case.name, "route": case.name.rsplit("-", 1)[0], "kind": case.kind, "transfers": len(ends), "nbytes": n,
        "first_end_ns": min(ends), "mean_ns": fmean(ends), "last_end_ns": max(ends),
        "alone_ns": fmean(alone.total for alone in found.alone) / 1000,
        **{f"{part}_ns": fmean(getattr(parts, part) for parts in found.parts) / 1000 for part in TRANSFER_PARTS},
        "bandwidth_gbs": len(ends) * n / max(ends), "path_gbs": fmean(slowest), "fair_gbs": len(ends) * n / drained,
        "path_utilization": fmean(n / end / bw for end, bw in zip(ends, slowest, strict=True)),
        "fair_utilization": drained / max(ends), "hottest_link": first, "hottest_share": share[first],
        "hottest_alike": sum(value == share[first] for value in share.values()),
    }  # fmt: skip
    if case.pattern:
        out["links"] = {name: round(value, 5) for name, value in share.items() if value >= VISIBLE}
    return out


class ProbeStudy(Study):
    """Transfers over every kind of route, alone and many at once, and messages, loads and stores from PE to PE."""

    name, title = "probe", "The machine's links and memories"
    method, columns, charts = report.METHOD, report.COLUMNS, report.CHARTS
    tables, findings = staticmethod(report.tables), staticmethod(report.findings)
    parameters: ClassVar = {
        "cases": Parameter([], "names of cases; all that the machine has the components for by default"),
        "sizes": Parameter(TRANSFER_SIZES, "bytes of each transfer", "B"),
        "messages": Parameter(MESSAGE_SIZES, "bytes of each message, load and store from PE to PE", "B"),
    }

    def check(self, machine: Machine, *, cases: Sequence[str], **sizes: Sequence[int]) -> list[str]:
        select(machine, cases)
        return [
            f"{name} = {list(given)} must be bytes >= 1, at least one"
            for name, given in sizes.items()
            if not given or min(given) < 1
        ]

    def points(
        self, machine: Machine, *, cases: Sequence[str], sizes: Sequence[int], messages: Sequence[int]
    ) -> list[Row]:
        return [
            {"case": case.name, "nbytes": size}
            for case in select(machine, cases)
            for size in sorted(messages if case.pair else sizes)
        ]

    def work(self, machine: Machine, *, case: str, nbytes: int) -> float:
        return 50_000 + float(nbytes * len(cases(machine)[case].ends))

    def simulate(self, machine: Machine, *, case: str = "h2d-write", nbytes: int = 64 * KIB) -> Row:
        [chosen] = select(machine, [case])
        if chosen.pair:
            route = case.removesuffix(f"-{chosen.kind}")
            time_ns = pair_ns(machine, chosen, nbytes)
            return {"case": case, "route": route, "kind": chosen.kind, "nbytes": nbytes, "time_ns": time_ns}
        found = row(run(machine, chosen, nbytes))
        return found if chosen.pattern else found | {"hops": hops(machine, chosen, nbytes)}

    def program(
        self,
        torch: RuntimeContext,
        *,
        case: Annotated[str, Choices(_transfers), "who asks which memory"] = "h2d-write",
        nbytes: Annotated[int, "bytes of each transfer"] = 64 * KIB,
    ) -> str:
        """Transfers over the machine's routes, all starting at once."""
        [chosen] = select(torch.engine.machine, [case])
        ends = start(torch.engine, chosen, nbytes)
        torch.engine.run()
        rate = len(ends) * nbytes / max(ends) * 1000
        return f"{chosen.says}: {len(ends)} transfers of {nbytes:,} B, {rate:,.1f} GB/s in total"
