"""Checks of the model's rules: what a rule of docs/model.md says against what the simulation does.

Rules that state no number (routes, addresses, types) have no check: tests hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random
from typing import NamedTuple

from kernbench.analysis import transfer
from kernbench.analysis.transfer import Channels, Parts
from kernbench.analysis.utilization import max_min_rates
from kernbench.kernels.gemm import column_gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.policy.routing import Router, reverse
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.transaction import Transaction
from kernbench.studies.probe import legs
from kernbench.studies.validation_reference import Ask, Done, Reference, play, random_machine, random_traffic
from kernbench.sweeps.keys import Row
from kernbench.topology import naming
from kernbench.topology.builder import Machine, resolve_topology
from kernbench.units import ns_to_ps

_TIES = "not an error: how much the order of simultaneous arrivals decides"


class Sample(NamedTuple):
    """One point: what the rule says, and what was measured."""

    label: str
    expected: float
    measured: float

    @property
    def percent(self) -> float:
        """The difference in % of what was expected; of nothing, any difference is all."""
        difference = abs(self.measured - self.expected)
        return 100 * difference / self.expected if self.expected else 100.0 * bool(difference)


class Engine:
    """The engine as a Simulator."""

    def __init__(self, engine: GraphEngine) -> None:
        self.engine = engine

    @property
    def now(self) -> int:
        """The time [ps]."""
        return int(self.engine.env.now)

    def run(self) -> None:
        """Run until nothing is left to do."""
        self.engine.run()

    def at(self, t: int, fn: Done) -> None:
        """Call `fn()` at `t`."""
        self.engine.env.call_at(t, lambda _: fn())

    def send(self, src: str, dst: str, nbytes: int, done: Done) -> None:
        """Send a message now."""
        network = self.engine.network
        route = network.route(src, dst)
        network.send(route, nbytes, route.key(), lambda _: done(), None)

    def read(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Read now."""
        network = self.engine.network
        Transaction(nbytes, offset, lambda _: done()).read(
            network, network.route(src, memory), self.engine.memory_at(memory)
        )

    def write(self, src: str, memory: str, offset: int, nbytes: int, done: Done) -> None:
        """Write now."""
        network = self.engine.network
        Transaction(nbytes, offset, lambda _: done()).write(
            network, network.route(src, memory), self.engine.memory_at(memory)
        )


Run = Callable[[Machine, int], Sequence[Sample]]  # of a machine, and how many repetitions of what is random


@dataclass(frozen=True)
class Check:
    """One row of the validation report; with `allowed` None it only reports."""

    name: str
    rule: str
    what: str
    run: Run
    unit: str = "ps"  # "%": the error is relative; otherwise absolute
    allowed: float | None = 0.0
    note: str = ""

    def row(self, machine: Machine, repeats: int) -> Row:
        """Run it and return its row."""
        samples = self.run(machine, repeats)
        errors = [x.percent if self.unit == "%" else abs(x.measured - x.expected) for x in samples]
        worst = max(range(len(errors)), key=errors.__getitem__)
        sample, ordered = samples[worst], sorted(errors)
        return {
            "name": self.name, "rule": self.rule, "what": self.what, "n": len(errors), "unit": self.unit,
            "error_max": errors[worst], "error_mean": sum(errors) / len(errors),
            "percent_max": max(sample.percent for sample in samples), "allowed": self.allowed,
            "held": None if self.allowed is None else errors[worst] <= self.allowed,
            "worst": sample.label if errors[worst] else "", "worst_expected": sample.expected,
            "worst_measured": sample.measured, "note": self.note,
            "quantiles": [
                {"points_pct": 5 * i, "error": ordered[round(i * (len(ordered) - 1) / 20)]} for i in range(21)
            ],
        }  # fmt: skip


CHECKS: list[Check] = []


def register(
    checks: list[Check], name: str, rule: str, what: str, unit: str = "ps", allowed: float | None = 0.0, note: str = ""
) -> Callable[[Run], Run]:
    """Add a check to some."""

    def add(run: Run) -> Run:
        checks.append(Check(name, rule, what, run, unit, allowed, note))
        return run

    return add


check = partial(register, CHECKS)


SIZES = (0, 1, 16, 255, 256, 257, 1000, 4096, 5000, 65_536)


_ENDS = ("pe_dma", "hbm_ctrl", "sram", "m_cpu", "pe_cpu", "io_cpu", "host")


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


def _machines(machine: Machine, repeats: int) -> Iterator[tuple[str, Machine, Random]]:
    """Yield the machine, and random ones."""
    yield "the machine", machine, Random("the machine")
    for seed in range(repeats):
        yield f"random machine {seed}", random_machine(seed), Random(seed)


@check("message-alone", "M4.1", "a message alone, to 64 KiB, on random routes: latencies, fill, serialization")
def message_alone(machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    for name, where, rng in _machines(machine, repeats):
        router = Router(where.graph)
        ends = [node.id for node in where.graph.nodes() if node.kind in _ENDS]
        pairs = [tuple(rng.sample(ends, 2)) for _ in range(12)]
        for src, dst in pairs:
            path = router.path(src, dst)
            for nbytes in SIZES:
                expected = transfer.message(legs(where.graph, path), nbytes).total
                label = f"{nbytes} B over {len(path) - 1} links, {src} to {dst}, {name}"
                samples.append(Sample(label, expected, _alone(where, "send", src, dst, nbytes)))
    return samples


_SIZES = (16, 256, 1000, 4096, 20_000)


def _ends(machine: Machine, asks: Sequence[Ask]) -> list[int]:
    return play(Engine(GraphEngine(machine, log="off")), asks, closed=False)


def _parts(machine: Machine, ask: Ask) -> Parts:
    path = Router(machine.graph).path(ask.src, ask.dst)
    closed = transfer.read if ask.kind == "read" else transfer.write
    there, back = legs(machine.graph, path), legs(machine.graph, reverse(path))
    return closed(there, back, ask.nbytes, Channels.of(machine.config.cube.hbm), ask.offset)


@check("parts", "M4.2", "transfers alone and at one time: what is left for queueing, and whether ever less than none")
def parts(machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    for seed in range(1 + repeats):
        where = random_machine(seed - 1) if seed else machine
        rng = Random(f"parts {seed}")
        nodes = list(where.graph.nodes())
        sources = [node.id for node in nodes if node.kind == "pe_dma"]
        slices = rng.sample([node.id for node in nodes if node.kind == "hbm_ctrl"], 1)
        asks = [
            Ask(i, rng.randrange(20_000), rng.choice(("read", "write")), src, rng.choice(slices), 0, rng.choice(_SIZES))
            for i, src in enumerate(rng.sample(sources, min(8, len(sources))))
        ]
        for ask, end in zip(asks, _ends(where, asks), strict=True):
            label = f"{ask.kind} {ask.nbytes} B, {ask.src} of {ask.dst}, machine {seed}"
            alone, [lonely] = _parts(where, ask), _ends(where, [ask])
            samples.append(Sample(f"queueing alone, {label}", 0, alone.measured(lonely - ask.wait_ps).queueing))
            queueing = alone.measured(end - ask.wait_ps).queueing
            samples.append(Sample(f"queueing below none, {label}", 0, min(0, queueing)))
    return samples


def _traffic(repeats: int) -> Iterator[tuple[str, Machine, list[Ask], bool]]:
    """Yield random machines with random traffic, open and closed loop, light and crowded."""
    for seed in range(max(1, repeats)):
        machine = random_machine(f"runs {seed}")
        for closed in (True, False):
            for hot in (True, False):
                name = f"{'closed' if closed else 'open'} loop, {'crowded' if hot else 'light'}, machine {seed}"
                yield name, machine, random_traffic(machine, name, 6, closed=closed, hot=hot), closed


def _samples(name: str, asks: Sequence[Ask], expected: Sequence[int], measured: Sequence[int]) -> list[Sample]:
    return [
        Sample(f"{ask.kind} {ask.nbytes} B, {ask.src} to {ask.dst}, {name}", a, b)
        for ask, a, b in zip(asks, expected, measured, strict=True)
    ]


@check("reference", "M4.3", "random traffic: a process for each hop of each flit")
def against_reference(machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    for name, where, asks, closed in _traffic(repeats):
        expected = play(Reference(where), asks, closed=closed)
        samples += _samples(name, asks, expected, play(Engine(GraphEngine(where, log="off")), asks, closed=closed))
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
    capacity: dict[Hashable, float] = {dst: hbm.slice_gbs for _, dst in ends}
    flows: list[list[Hashable]] = []
    for src, dst in ends:
        links = engine.network.back(engine.network.route(src, dst)).links
        capacity.update((link.name, link.bw_gbs) for link in links)
        flows.append([dst, *(link.name for link in links)])
    span_ns = (window[1] - window[0]) / 1000
    return max_min_rates(flows, capacity), [nbytes / span_ns for nbytes in moved]


@check(
    "fair-shares",
    "M4.3",
    "steady congestion: rate of each stream and its max-min fair one",
    "%",
    5.0,
    "arrival order is not fairness; transfers of 4 KiB are counted whole",
)
def fair_shares(machine: Machine, repeats: int) -> list[Sample]:
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


def _slices(where: Machine, engine: GraphEngine, asks: Sequence[Ask], name: str) -> list[Sample]:
    """Return the bytes of the bursts that each slice served, by its busy time, against those asked for."""
    hbm = where.config.cube.hbm
    channels = Channels.of(where.config.cube.hbm)
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


@check("bytes", "M4.3", "bytes into and out of nodes; links' and slices' counters and what was asked", "B")
def bytes_conserved(machine: Machine, repeats: int) -> list[Sample]:
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


@check("busy", "M4.3", "busy time of links and its flits; none above the elapsed time")
def busy_within_elapsed(machine: Machine, repeats: int) -> list[Sample]:
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


check("tie-spread", "M4.4", "the last of many simultaneous reads, ranks permuted", "%", None, _TIES)(
    partial(_ties, last_only=True)
)


check("tie-spread-each", "M4.4", "each of many simultaneous reads, ranks permuted", "%", None, _TIES)(
    partial(_ties, last_only=False)
)


def _product(torch: RuntimeContext) -> None:
    one_cube = DPPolicy(num_cubes=1, pe="column_wise")
    a = torch.randn(96, 128, dtype=torch.float16, dp=DPPolicy(num_cubes=1, pe="replicate"), device="ahbm")
    b = torch.randn(128, 512, dtype=torch.float16, dp=one_cube, device="ahbm")
    c = torch.empty(96, 512, dtype=torch.float16, dp=one_cube, device="ahbm")
    torch.launch("gemm", column_gemm, a, b, c, 96, 128, 512)
    c.numpy()


@check("tie-spread-product", "M4.4", "a product on all PEs of a cube, ranks permuted", "%", None, _TIES)
def tie_spread_product(machine: Machine, repeats: int) -> list[Sample]:

    def launch_ps(seed: int | None) -> int:
        engine = GraphEngine(machine, tie_seed=seed)
        with RuntimeContext(engine) as torch:
            _product(torch)
        [launch] = torch.result.launches
        return launch.end_ps - launch.start_ps

    expected = launch_ps(None)
    return [Sample(f"permutation {seed}", expected, launch_ps(seed)) for seed in range(1 + repeats)]


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
                ways = legs(where.graph, there), legs(where.graph, reverse(there))
                expected = closed(*ways, nbytes, Channels.of(where.config.cube.hbm), offset).total
                label = f"{kind} {nbytes} B at {offset}, {src} of {dst}, {name}"
                samples.append(Sample(label, expected, _alone(where, kind, src, dst, nbytes, offset)))
    return samples


check("reads-alone", "M4.5", "an HBM read alone: command, bursts over channels, data")(partial(_memory_alone, "read"))


check("writes-alone", "M4.5", "an HBM write alone: data, bursts, acknowledgement")(partial(_memory_alone, "write"))


@check("sram-alone", "M4.7", "an SRAM read and write alone: two messages each")
def sram_alone(machine: Machine, repeats: int) -> list[Sample]:
    samples = []
    for name, where, rng in _machines(machine, repeats):
        router = Router(where.graph)
        nodes = list(where.graph.nodes())
        sources = [node.id for node in nodes if node.kind in ("pe_dma", "host")]
        for nbytes in SIZES[1:]:
            src, dst = rng.choice(sources), rng.choice([node.id for node in nodes if node.kind == "sram"])
            path = router.path(src, dst)
            there, back = legs(where.graph, path), legs(where.graph, reverse(path))
            for kind, out, home in (("read", 0, nbytes), ("write", nbytes, 16)):
                expected = transfer.message(there, out).total + transfer.message(back, home).total
                label = f"{kind} {nbytes} B, {src} of {dst}, {name}"
                samples.append(Sample(label, expected, _alone(where, kind, src, dst, nbytes)))
    return samples


_PE0 = "sip0.cube0.pe0.pe_dma"


_TABLE = (  # docs/model.md, M4.8: asking node, slice, ns for 256 B and for 4 KiB
    (_PE0, "sip0.cube0.hbm_ctrl.pe0", 12.00, 27.00),
    (_PE0, "sip0.cube0.hbm_ctrl.pe1", 15.06, 30.06),
    (_PE0, "sip0.cube0.hbm_ctrl.pe7", 42.60, 57.60),
    (_PE0, "sip0.cube1.hbm_ctrl.pe0", 71.42, 101.42),
    (_PE0, "sip1.cube0.hbm_ctrl.pe0", 194.12, 224.12),
    ("host", "sip0.cube0.hbm_ctrl.pe0", 277.06, 337.06),
)


@check("check-values", "M4.8", "the table of reads on an idle default machine")
def check_values(machine: Machine, repeats: int) -> list[Sample]:
    default = resolve_topology("preset:default")
    samples = []
    for src, dst, *times in _TABLE:
        for nbytes, ns in zip((256, 4096), times, strict=True):
            samples.append(
                Sample(f"{nbytes} B, {src} of {dst}", ns_to_ps(ns), _alone(default, "read", src, dst, nbytes))
            )
    return samples


def _equal(label: str, one: str, other: str) -> Sample:
    """Return digests as a point: no difference if they are equal."""
    return Sample(label, 0, int(one != other))


@check("values", "M6.2", "times with and without values")
def values_change_no_time(machine: Machine, repeats: int) -> list[Sample]:
    with_data, without = (run_program(machine, _product, data=data, log="tile").records for data in (True, False))
    samples = [
        Sample(f"end of row {i}", int(a), int(b))
        for i, (a, b) in enumerate(zip(with_data.end_ps, without.end_ps, strict=True))
    ]
    return [_equal("digest", with_data.digest(), without.digest()), *samples]


@check("digest", "M6.4", "the same run again")
def same_twice(machine: Machine, repeats: int) -> list[Sample]:
    digests = [run_program(machine, _product, log="tile").records.digest() for _ in range(2 + repeats)]
    return [_equal(f"run {i}", digests[0], digest) for i, digest in enumerate(digests[1:], 1)]
