"""Checks of links and memories: closed forms of transfers alone, fair shares, conservation, ties."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from random import Random

from kernbench.analysis import transfer
from kernbench.analysis.transfer import Channels, Leg
from kernbench.analysis.utilization import fair_rates
from kernbench.policy.routing import Router, reverse
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.validation_row import Sample
from kernbench.studies.validation_traffic import Ask, Engine, play, random_machine, random_traffic
from kernbench.topology import naming
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.units import ns_to_ps, serialization_ps

SIZES = (0, 1, 16, 255, 256, 257, 1000, 4096, 5000, 65_536)
_ENDS = ("pe_dma", "hbm_ctrl", "sram", "m_cpu", "pe_cpu", "io_cpu", "host")
_PE0 = "sip0.cube0.pe0.pe_dma"
_TABLE = (  # docs/model.md, M4.8: asking node, slice, ns for 256 B and for 4 KiB
    (_PE0, "sip0.cube0.hbm_ctrl.pe0", 12.00, 27.00),
    (_PE0, "sip0.cube0.hbm_ctrl.pe1", 15.06, 30.06),
    (_PE0, "sip0.cube0.hbm_ctrl.pe7", 42.60, 57.60),
    (_PE0, "sip0.cube1.hbm_ctrl.pe0", 71.42, 101.42),
    (_PE0, "sip1.cube0.hbm_ctrl.pe0", 194.12, 224.12),
    ("host", "sip0.cube0.hbm_ctrl.pe0", 277.06, 337.06),
)


def _alone(machine: Machine, kind: str, src: str, dst: str, nbytes: int, offset: int = 0) -> int:
    """Return when a transaction that starts at 0 on an idle machine ends [ps]."""
    sim = Engine(GraphEngine(machine, log="off"))
    ends: list[int] = []

    def done() -> None:
        ends.append(sim.now)

    if kind == "send":
        sim.send(src, dst, nbytes, done)
    else:
        (sim.read if kind == "read" else sim.write)(src, dst, offset, nbytes, done)
    sim.run()
    return ends[0]


def legs(machine: Machine, path: tuple[str, ...]) -> list[Leg]:
    """Return the links of a way, as closed forms take them."""
    edges = [machine.graph.edge(a, b) for a, b in pairwise(path)]
    return [Leg(edge.bw_gbs, edge.latency_ps, 0) for edge in edges]


def channels_of(machine: Machine) -> Channels:
    """Return how the HBM slices of a machine serve bursts."""
    hbm = machine.config.cube.hbm
    burst_ps = serialization_ps(hbm.burst_bytes, hbm.channel_bw_gbs * hbm.efficiency)
    return Channels(hbm.channels, hbm.burst_bytes, burst_ps, ns_to_ps(hbm.access_ns))


def _machines(machine: Machine, repeats: int) -> Iterator[tuple[str, Machine, Random]]:
    """Yield the machine, and random ones."""
    yield "the machine", machine, Random("the machine")
    for seed in range(repeats):
        yield f"random machine {seed}", random_machine(seed), Random(seed)


def message_alone(machine: Machine, repeats: int) -> list[Sample]:
    """Send messages of all sizes between random ends."""
    samples = []
    for name, where, rng in _machines(machine, repeats):
        router = Router(where.graph)
        ends = [node.id for node in where.graph.nodes() if node.kind in _ENDS]
        pairs = [tuple(rng.sample(ends, 2)) for _ in range(12)]
        for src, dst in pairs:
            path = router.path(src, dst)
            for nbytes in SIZES:
                expected = transfer.message(legs(where, path), nbytes).total
                label = f"{nbytes} B over {len(path) - 1} links, {src} to {dst}, {name}"
                samples.append(Sample(label, expected, _alone(where, "send", src, dst, nbytes)))
    return samples


def _memory_alone(kind: str, machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    closed = transfer.read if kind == "read" else transfer.write
    for name, where, rng in _machines(machine, repeats):
        router = Router(where.graph)
        nodes = list(where.graph.nodes())
        sources = [node.id for node in nodes if node.kind in ("pe_dma", "host")]
        slices = [node.id for node in nodes if node.kind == "hbm_ctrl"]
        for nbytes in SIZES[1:]:
            for offset in (0, rng.randrange(1 << 14)):
                src, dst = rng.choice(sources), rng.choice(slices)
                there = router.path(src, dst)
                ways = legs(where, there), legs(where, reverse(there))
                expected = closed(*ways, nbytes, channels_of(where), offset).total
                label = f"{kind} {nbytes} B at {offset}, {src} of {dst}, {name}"
                samples.append(Sample(label, expected, _alone(where, kind, src, dst, nbytes, offset)))
    return samples


def reads_alone(machine: Machine, repeats: int) -> list[Sample]:
    """Read HBM at odd offsets: bursts over channels, a command there and data back."""
    return _memory_alone("read", machine, repeats)


def writes_alone(machine: Machine, repeats: int) -> list[Sample]:
    """Write HBM: data there, bursts as their flits arrive, an acknowledgement back."""
    return _memory_alone("write", machine, repeats)


def sram_alone(machine: Machine, repeats: int) -> list[Sample]:
    """Read and write SRAM, each two messages."""
    samples = []
    for name, where, rng in _machines(machine, repeats):
        router = Router(where.graph)
        nodes = list(where.graph.nodes())
        sources = [node.id for node in nodes if node.kind in ("pe_dma", "host")]
        for nbytes in SIZES[1:]:
            src, dst = rng.choice(sources), rng.choice([node.id for node in nodes if node.kind == "sram"])
            path = router.path(src, dst)
            there, back = legs(where, path), legs(where, reverse(path))
            for kind, out, home in (("read", 0, nbytes), ("write", nbytes, 16)):
                expected = transfer.message(there, out).total + transfer.message(back, home).total
                label = f"{kind} {nbytes} B, {src} of {dst}, {name}"
                samples.append(Sample(label, expected, _alone(where, kind, src, dst, nbytes)))
    return samples


def check_values(machine: Machine, repeats: int) -> list[Sample]:
    """Read what the table of M4.8 has, always on the default machine."""
    default = resolve_topology("preset:default")
    samples = []
    for src, dst, *times in _TABLE:
        for nbytes, ns in zip((256, 4096), times, strict=True):
            samples.append(
                Sample(f"{nbytes} B, {src} of {dst}", ns_to_ps(ns), _alone(default, "read", src, dst, nbytes))
            )
    return samples


def fair_shares(machine: Machine, repeats: int) -> list[Sample]:
    """Let PEs read without end: the rate of each in a steady window against the max-min fair one."""
    config = machine.config
    pes = config.pes_per_cube
    patterns: dict[str, list[tuple[str, str]]] = {
        f"{count} PEs read one slice": [(naming.pe_dma(0, 0, pe), naming.hbm(0, 0, 0)) for pe in range(count)]
        for count in sorted({1, min(2, pes), pes})
    }
    patterns["each PE reads its own slice"] = [(naming.pe_dma(0, 0, pe), naming.hbm(0, 0, pe)) for pe in range(pes)]
    if config.cubes_per_sip > 1:
        over = [(naming.pe_dma(0, 0, pe), naming.hbm(0, 1, pe)) for pe in range(pes)]
        patterns["all PEs read the next cube over UCIe"] = over
        patterns["the same, and the next cube's PEs read their own"] = over + [
            (naming.pe_dma(0, 1, pe), naming.hbm(0, 1, pe)) for pe in range(pes)
        ]
    samples = []
    for name, ends in patterns.items():
        fair, measured = _steady(machine, ends)
        samples += [
            Sample(f"{name}: {src} of {dst} [GB/s]", a, b)
            for (src, dst), a, b in zip(ends, fair, measured, strict=True)
        ]
    return samples


def _steady(machine: Machine, ends: list[tuple[str, str]]) -> tuple[list[float], list[float]]:
    """Return the fair and the measured rate of each stream of reads [GB/s]."""
    engine = GraphEngine(machine, log="off")
    sim, size, window = Engine(engine), 4096, (5_000_000, 15_000_000)
    moved = [0] * len(ends)

    def ask(i: int, place: int) -> None:
        def done() -> None:
            if window[0] < sim.now <= window[1]:
                moved[i] += size
            if sim.now < window[1]:
                ask(i, place + size)

        sim.read(*ends[i], place % (1 << 20), size, done)

    for i in range(len(ends)):
        for slot in range(4):  # enough under way that no way's latency limits
            ask(i, (i * 4 + slot) * 65_536)
    sim.run()
    hbm = machine.config.cube.hbm
    capacity: dict[Hashable, float] = {dst: hbm.channels * hbm.channel_bw_gbs * hbm.efficiency for _, dst in ends}
    flows: list[list[Hashable]] = []
    for src, dst in ends:
        links = engine.network.back(engine.network.route(src, dst)).links
        capacity.update((link.name, link.bw_gbs) for link in links)
        flows.append([dst, *(link.name for link in links)])
    span_ns = (window[1] - window[0]) / 1000
    return fair_rates(flows, capacity), [nbytes / span_ns for nbytes in moved]


def bytes_conserved(machine: Machine, repeats: int) -> list[Sample]:
    """Count bytes that enter a node and leave it, and what links count against what was asked of them."""
    samples = []
    for name, where, _ in _machines(machine, repeats):
        asks = random_traffic(where, f"bytes {name}", 6, closed=True, hot=True)
        engine = GraphEngine(where, log="off", trace=True)
        play(Engine(engine), asks, closed=True)
        into: dict[str, int] = {}
        out: dict[str, int] = {}
        for hop in engine.network.hops or ():
            src, _, dst = hop.link.partition("->")
            out[src] = out.get(src, 0) + hop.nbytes
            into[dst] = into.get(dst, 0) + hop.nbytes
        transit = [node.id for node in where.graph.nodes() if node.kind not in _ENDS and node.id in into]
        samples += [Sample(f"into and out of {node}, {name}", into[node], out.get(node, 0)) for node in transit]
        expected: dict[str, int] = {}
        for ask in asks:
            path = Router(where.graph).path(ask.src, ask.dst)
            there = ask.nbytes if ask.kind != "read" else 0
            back = {"send": 0, "read": ask.nbytes, "write": 16}[ask.kind]
            for way, nbytes in ((path, there), (reverse(path), back)):
                for a, b in pairwise(way):
                    expected[f"{a}->{b}"] = expected.get(f"{a}->{b}", 0) + nbytes
        links = engine.records().links
        counted = dict(zip(links.names, links.nbytes.tolist(), strict=True))
        samples += [Sample(f"{link}, {name}", n, counted.get(link, 0)) for link, n in expected.items()]
        samples += _slices(where, engine, asks, name)
    return samples


def _slices(where: Machine, engine: GraphEngine, asks: Sequence[Ask], name: str) -> list[Sample]:
    """Return the bytes of the bursts that each slice served, by its busy time, against those asked for."""
    hbm = where.config.cube.hbm
    channels = channels_of(where)
    bursts: dict[str, int] = {}
    for ask in asks:
        if "hbm_ctrl" in ask.dst and ask.kind != "send":
            last = (ask.offset + ask.nbytes - 1) // hbm.burst_bytes
            bursts[ask.dst] = bursts.get(ask.dst, 0) + last - ask.offset // hbm.burst_bytes + 1
    return [
        Sample(
            f"bursts of {node} x channels, {name}",
            n * channels.burst_ps // hbm.channels,
            engine.memory_at(node).busy_ps,
        )
        for node, n in bursts.items()
    ]


def busy_within_elapsed(machine: Machine, repeats: int) -> list[Sample]:
    """Compare a link's busy time with that of its flits, and every busy time with the elapsed time."""
    samples = []
    for name, where, _ in _machines(machine, repeats):
        engine = GraphEngine(where, log="off", trace=True)
        play(Engine(engine), random_traffic(where, f"busy {name}", 6, closed=True, hot=True), closed=True)
        records = engine.records()
        served: dict[str, int] = {}
        for hop in engine.network.hops or ():
            served[hop.link] = served.get(hop.link, 0) + hop.end_ps - hop.start_ps
        busy = dict(zip(records.links.names, records.links.busy_ps.tolist(), strict=True))
        samples += [Sample(f"{link} against its flits, {name}", served.get(link, 0), ps) for link, ps in busy.items()]
        everything = {**busy, **records.busy_by_component()}
        samples += [Sample(f"{part}, {name}", 0, max(0, ps - records.makespan_ps)) for part, ps in everything.items()]
    return samples


def tie_spread(machine: Machine, repeats: int) -> list[Sample]:
    """Let all PEs read at once: the last end, ranks permuted, against the ranks of M4.4."""
    return _ties(machine, repeats, last_only=True)


def tie_spread_each(machine: Machine, repeats: int) -> list[Sample]:
    """Compare the same, transfer by transfer."""
    return _ties(machine, repeats, last_only=False)


def _ties(machine: Machine, repeats: int, *, last_only: bool) -> list[Sample]:
    config = machine.config
    everyone = [(cube, pe) for cube in range(config.cubes_per_sip) for pe in range(config.pes_per_cube)]
    patterns = {
        "all PEs of a SIP read one slice": [(place, (0, 0)) for place in everyone],
        "all PEs read the next PE's slice": [
            (place, everyone[(i + 1) % len(everyone)]) for i, place in enumerate(everyone)
        ],
        "all PEs read the cube opposite": [
            ((cube, pe), (config.cubes_per_sip - 1 - cube, pe)) for cube, pe in everyone
        ],
    }
    samples = []
    for name, ends in patterns.items():
        first = _together(machine, ends, None)
        for seed in range(1 + repeats):
            ranked, permuted = first, _together(machine, ends, seed)
            if last_only:
                ranked, permuted = [max(ranked)], [max(permuted)]
            what = "the last end" if last_only else "one end"
            samples += [
                Sample(f"{name}, {what}, permutation {seed}", a, b) for a, b in zip(ranked, permuted, strict=True)
            ]
    return samples


def _together(machine: Machine, ends: list[tuple[tuple[int, int], tuple[int, int]]], seed: int | None) -> list[int]:
    sim = Engine(GraphEngine(machine, log="off", tie_seed=seed))
    done = [0] * len(ends)

    def read(i: int, pe: tuple[int, int], of: tuple[int, int]) -> None:
        def ended() -> None:
            done[i] = sim.now

        sim.read(naming.pe_dma(0, *pe), naming.hbm(0, *of), i * 4096, 4096, ended)

    for i, (pe, of) in enumerate(ends):
        read(i, pe, of)
    sim.run()
    return done
