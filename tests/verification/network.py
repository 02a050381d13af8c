"""Checks of the model's rules: what a rule of docs/model.md says against what the simulation does.

Rules that state no number (routes, addresses, types) have no check: tests hold them.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

from kernbench._units import ACK_BYTES, ns_to_ps
from kernbench.analysis._transfer import Channels
from kernbench.analysis.utilization import max_min_rates
from kernbench.kernels.gemm import column_gemm
from kernbench.points._keys import Row
from kernbench.policy._routing import reverse, router_of
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.bench_runner import run_program
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.probe import closed_form, data_path
from kernbench.topology import _naming as naming
from kernbench.topology.builder import Machine, resolve_topology
from tests.reference.simulator import Reference
from tests.reference.traffic import Ask, play, random_machine, random_traffic
from tests.sim_engine.adapter import Engine


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


Run = Callable[[Machine, int], Sequence[Sample]]  # of a machine, and how many repetitions of what is random


@dataclass(frozen=True)
class Check:
    """One row of the verification report; with `allowed` None it only reports."""

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


SIZES = (0, 1, 16, 255, 256, 257, 1000, 4096, 5000, 65_536)
_ENDS = ("pe_dma", "hbm_ctrl", "sram", "m_cpu", "pe_cpu", "io_cpu", "host")  # nodes where messages begin and end


def _machines(machine: Machine, repeats: int) -> Iterator[tuple[str, Machine, Random]]:
    """Yield the machine, and random ones."""
    yield "the machine", machine, Random("the machine")
    for seed in range(repeats):
        yield f"random machine {seed}", random_machine(seed), Random(seed)


def _nodes(machine: Machine, *kinds: str) -> list[str]:
    return [node.id for node in machine.graph.nodes() if node.kind in kinds]


def _ends(machine: Machine, asks: Sequence[Ask]) -> list[int]:
    return play(Engine(machine), asks, closed=False)


def _said(ask: Ask) -> str:
    return f"{ask.kind} {ask.nbytes} B at {ask.offset}, {ask.src} to {ask.dst}"


def _parts(machine: Machine, ask: Ask) -> Any:
    return closed_form(machine, ask.kind, ask.src, ask.dst, ask.nbytes, ask.offset)


def _alone(kinds: Sequence[str], sources: Sequence[str], targets: Sequence[str], tries: int) -> Run:
    """Return a check of transactions on an idle machine: of each size and kind so many, between random nodes."""

    def run(machine: Machine, repeats: int) -> list[Sample]:
        samples = []
        for name, where, rng in _machines(machine, repeats):
            for nbytes in SIZES if kinds == ("send",) else SIZES[1:]:
                for attempt in range(tries):
                    src = rng.choice(_nodes(where, *sources))
                    dst = rng.choice([node for node in _nodes(where, *targets) if node != src])
                    for kind in kinds:
                        ask = Ask(0, 0, kind, src, dst, rng.randrange(1 << 14) if attempt else 0, nbytes)
                        [end] = _ends(where, [ask])
                        samples.append(Sample(f"{_said(ask)}, {name}", _parts(where, ask).total, end))
        return samples

    return run


def parts(machine: Machine, repeats: int) -> list[Sample]:
    """Run transfers alone and at one time."""
    samples = []
    for seed in range(1 + repeats):
        where, rng = random_machine(seed - 1) if seed else machine, Random(f"parts {seed}")
        sources, target = _nodes(where, "pe_dma"), rng.choice(_nodes(where, "hbm_ctrl"))
        asks = []
        for i, src in enumerate(rng.sample(sources, min(8, len(sources)))):
            kind, nbytes = rng.choice(("read", "write")), rng.choice((16, 256, 1000, 4096, 20_000))
            asks.append(Ask(i, rng.randrange(20_000), kind, src, target, 0, nbytes))
        for ask, end in zip(asks, _ends(where, asks), strict=True):
            alone, [lonely] = _parts(where, ask), _ends(where, [ask])
            queueing = alone.measured(end - ask.wait_ps).queueing
            label = f"{_said(ask)}, machine {seed}"
            samples.append(Sample(f"queueing alone, {label}", 0, alone.measured(lonely - ask.wait_ps).queueing))
            samples.append(Sample(f"queueing below none, {label}", 0, min(0, queueing)))
    return samples


def against_reference(machine: Machine, repeats: int) -> list[Sample]:
    """Run random traffic on random machines, open and closed loop, light and crowded."""
    samples = []
    for seed in range(max(1, repeats)):
        where = random_machine(f"runs {seed}")
        for closed in (True, False):
            for light in (True, False):
                name = f"{'closed' if closed else 'open'} loop, {'light' if light else 'crowded'}, machine {seed}"
                asks = random_traffic(where, name, per_source=2, sources=5, light=light)
                expected = play(Reference(where), asks, closed=closed)
                measured = play(Engine(where), asks, closed=closed)
                for ask, a, b in zip(asks, expected, measured, strict=True):
                    samples.append(Sample(f"{_said(ask)}, {name}", a, b))
    return samples


def _steady(machine: Machine, ends: Sequence[tuple[str, str]]) -> tuple[list[float], list[float]]:
    """Return the fair and the measured rate of each stream of reads [GB/s]."""
    sim, size, start, stop = Engine(machine), 4096, 5_000_000, 15_000_000
    moved = [0] * len(ends)

    def ask(i: int, place: int) -> None:
        def done() -> None:
            if start < sim.now <= stop:
                moved[i] += size
            if sim.now < stop:
                ask(i, place + size)

        sim.read(*ends[i], place % (1 << 20), size, done)

    for i in range(len(ends)):
        for slot in range(4):  # enough under way that no way's latency limits
            ask(i, (i * 4 + slot) * 65_536)
    sim.run()
    paths = [data_path(sim.engine, "read", *pair) for pair in ends]
    fair = max_min_rates([list(path) for path in paths], dict(ChainMap(*paths)))
    return fair, [nbytes / ((stop - start) / 1000) for nbytes in moved]


def fair_shares(machine: Machine, repeats: int) -> list[Sample]:
    """Compare rates with max-min fair ones."""
    config = machine.config
    pes = config.pes_per_cube

    def reads(cube: int, of_cube: int, count: int = pes, of_pe: int | None = None) -> list[tuple[str, str]]:
        return [
            (naming.pe_dma(0, cube, pe), naming.hbm(0, of_cube, pe if of_pe is None else of_pe)) for pe in range(count)
        ]

    patterns = {f"{n} PEs read one slice": reads(0, 0, n, 0) for n in sorted({1, min(2, pes), pes})}
    patterns["each PE reads its own slice"] = reads(0, 0)
    if config.cubes_per_sip > 1:
        patterns["all PEs read the next cube over UCIe"] = reads(0, 1)
        patterns["the same, and the next cube's PEs read their own"] = reads(0, 1) + reads(1, 1)
    samples = []
    for name, ends in patterns.items():
        for (src, dst), fair, measured in zip(ends, *_steady(machine, ends), strict=True):
            samples.append(Sample(f"{name}: {src} of {dst} [GB/s]", fair, measured))
    return samples


def _traced(machine: Machine, repeats: int, what: str) -> Iterator[tuple[str, Machine, list[Ask], GraphEngine]]:
    """Yield machines with the traffic that ran on each, and the engine that has its hops and counters."""
    for name, where, _ in _machines(machine, repeats):
        asks = random_traffic(where, f"{what} {name}", per_source=2, sources=5)
        sim = Engine(where, trace=True)
        play(sim, asks)
        yield name, where, asks, sim.engine


def bytes_conserved(machine: Machine, repeats: int) -> list[Sample]:
    """Compare what nodes take in and give out, and counters with what was asked."""
    samples = []
    for name, where, asks, engine in _traced(machine, repeats, "bytes"):
        into, out, expected, bursts = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        for hop in engine.network.hops or ():
            src, _, dst = hop.link.partition("->")
            out[src] += hop.nbytes
            into[dst] += hop.nbytes
        transit = [node.id for node in where.graph.nodes() if node.kind not in _ENDS and node.id in into]
        samples += [Sample(f"into and out of {node}, {name}", into[node], out[node]) for node in transit]
        hbm = where.config.cube.hbm
        for ask in asks:
            path = router_of(where.graph).path(ask.src, ask.dst)
            there = where.config.system.command_bytes if ask.kind == "read" else ask.nbytes
            back = {"send": 0, "read": ask.nbytes, "write": ACK_BYTES}[ask.kind]
            for way, nbytes in ((path, there), (reverse(path), back)):
                for a, b in pairwise(way):
                    expected[f"{a}->{b}"] += nbytes
            if "hbm_ctrl" in ask.dst and ask.kind != "send":
                last = (ask.offset + ask.nbytes - 1) // hbm.burst_bytes
                bursts[ask.dst] += last - ask.offset // hbm.burst_bytes + 1
        links = engine.records().links
        counted = dict(zip(links.names, links.nbytes.tolist(), strict=True))
        samples += [Sample(f"{link}, {name}", n, counted.get(link, 0)) for link, n in expected.items()]
        for node, n in bursts.items():
            busy_ps = n * Channels.of(hbm).burst_ps // hbm.channels
            samples.append(Sample(f"busy time of {node}, {name}", busy_ps, engine.memory_at(node).busy_ps))
    return samples


def busy_within_elapsed(machine: Machine, repeats: int) -> list[Sample]:
    """Compare the busy time of links with that of their flits."""
    samples = []
    for name, _, _, engine in _traced(machine, repeats, "busy"):
        records, served = engine.records(), Counter[str]()
        for hop in engine.network.hops or ():
            served[hop.link] += hop.end_ps - hop.start_ps
        busy = dict(zip(records.links.names, records.links.busy_ps.tolist(), strict=True))
        samples += [Sample(f"{link} against its flits, {name}", served[link], ps) for link, ps in busy.items()]
        for part, ps in {**busy, **records.busy_by_component()}.items():
            samples.append(Sample(f"{part}, {name}", 0, max(0, ps - records.makespan_ps)))
    return samples


def _ties(machine: Machine, repeats: int, *, last_only: bool) -> list[Sample]:
    """Permute the ranks of reads of 4 KiB that start at one time."""
    cubes, pes = machine.config.cubes_per_sip, machine.config.pes_per_cube
    everyone = [(cube, pe) for cube in range(cubes) for pe in range(pes)]
    patterns = {
        "all PEs of a SIP read one slice": [(0, 0)] * len(everyone),
        "all PEs read the next PE's slice": everyone[1:] + everyone[:1],
        "all PEs read the cube opposite": [(cubes - 1 - cube, pe) for cube, pe in everyone],
    }
    samples = []
    for name, of in patterns.items():
        asks = [
            Ask(i, 0, "read", naming.pe_dma(0, *pe), naming.hbm(0, *place), i * 4096, 4096)
            for i, (pe, place) in enumerate(zip(everyone, of, strict=True))
        ]
        ranked = play(Engine(machine), asks)
        for seed in range(1 + repeats):
            permuted = play(Engine(machine, tie_seed=seed), asks)
            pairs = [(max(ranked), max(permuted))] if last_only else zip(ranked, permuted, strict=True)
            what = f"{name}, {'the last end' if last_only else 'one end'}, permutation {seed}"
            samples += [Sample(what, a, b) for a, b in pairs]
    return samples


def _product(torch: RuntimeContext) -> None:
    one_cube = DPPolicy(num_cubes=1, pe="column_wise")
    a = torch.randn(96, 128, dtype=torch.float16, dp=DPPolicy(num_cubes=1, pe="replicate"), device="ahbm")
    b = torch.randn(128, 512, dtype=torch.float16, dp=one_cube, device="ahbm")
    c = torch.empty(96, 512, dtype=torch.float16, dp=one_cube, device="ahbm")
    torch.launch("gemm", column_gemm, a, b, c, 96, 128, 512)
    c.numpy()


def tie_spread_product(machine: Machine, repeats: int) -> list[Sample]:
    """Permute the ranks of a product."""

    def launch_ps(seed: int | None) -> int:
        [launch] = run_program(machine, _product, tie_seed=seed).launches
        return launch.end_ps - launch.start_ps

    expected = launch_ps(None)
    return [Sample(f"permutation {seed}", expected, launch_ps(seed)) for seed in range(1 + repeats)]


_PE0 = "sip0.cube0.pe0.pe_dma"
_TABLE = (  # docs/model.md, M4.8: asking node, slice, ns for 256 B and for 4 KiB
    (_PE0, "sip0.cube0.hbm_ctrl.pe0", 12.00, 27.00),
    (_PE0, "sip0.cube0.hbm_ctrl.pe1", 15.06, 30.06),
    (_PE0, "sip0.cube0.hbm_ctrl.pe7", 42.60, 57.60),
    (_PE0, "sip0.cube1.hbm_ctrl.pe0", 71.42, 101.42),
    (_PE0, "sip1.cube0.hbm_ctrl.pe0", 194.12, 224.12),
    ("host", "sip0.cube0.hbm_ctrl.pe0", 277.06, 337.06),
)


def check_values(machine: Machine, repeats: int) -> list[Sample]:
    """Read what the table says."""
    default = resolve_topology("preset:default")
    samples = []
    for src, dst, *times in _TABLE:
        for nbytes, ns in zip((256, 4096), times, strict=True):
            ask = Ask(0, 0, "read", src, dst, 0, nbytes)
            samples.append(Sample(_said(ask), ns_to_ps(ns), *_ends(default, [ask])))
    return samples


def values_change_no_time(machine: Machine, repeats: int) -> list[Sample]:
    """Run with and without values."""
    with_data, without = (run_program(machine, _product, data=data, log="tile").records for data in (True, False))
    ends = enumerate(zip(with_data.end_ps.tolist(), without.end_ps.tolist(), strict=True))
    same = Sample("digest", 0, int(with_data.digest() != without.digest()))
    return [same, *(Sample(f"end of row {i}", a, b) for i, (a, b) in ends)]


def same_twice(machine: Machine, repeats: int) -> list[Sample]:
    """Run the same again."""
    first, *more = (run_program(machine, _product, log="tile").records.digest() for _ in range(2 + repeats))
    return [Sample(f"run {i}", 0, int(digest != first)) for i, digest in enumerate(more, 1)]


_MEMORY_SOURCES = ("pe_dma", "host")
_ties_reported = partial(
    Check, unit="%", allowed=None, note="not an error: how much the order of simultaneous arrivals decides"
)
CHECKS = (
    Check(
        "message-alone", "M4.1", "a message alone, to 64 KiB, on random routes: latencies, fill, serialization",
        _alone(("send",), _ENDS, _ENDS, 12),
    ),
    Check(
        "parts", "M4.2", "transfers alone and at one time: what is left for queueing, and whether ever less than none",
        parts,
    ),
    Check("reference", "M4.3", "random traffic: a process for each hop of each flit", against_reference),
    Check(
        "fair-shares", "M4.3", "steady congestion: rate of each stream and its max-min fair one", fair_shares, "%", 5.0,
        "arrival order is not fairness; transfers of 4 KiB are counted whole",
    ),
    Check(
        "bytes", "M4.3", "bytes into and out of nodes; links' and slices' counters and what was asked",
        bytes_conserved, "B",
    ),
    Check("busy", "M4.3", "busy time of links and its flits; none above the elapsed time", busy_within_elapsed),
    _ties_reported(
        "tie-spread", "M4.4", "the last of many simultaneous reads, ranks permuted", partial(_ties, last_only=True)
    ),
    _ties_reported(
        "tie-spread-each", "M4.4", "each of many simultaneous reads, ranks permuted", partial(_ties, last_only=False)
    ),
    _ties_reported(
        "tie-spread-product", "M4.4", "a product on all PEs of a cube, ranks permuted", tie_spread_product
    ),
    Check(
        "reads-alone", "M4.5", "an HBM read alone: command, bursts over channels, data",
        _alone(("read",), _MEMORY_SOURCES, ("hbm_ctrl",), 2),
    ),
    Check(
        "writes-alone", "M4.5", "an HBM write alone: data, bursts, acknowledgement",
        _alone(("write",), _MEMORY_SOURCES, ("hbm_ctrl",), 2),
    ),
    Check(
        "sram-alone", "M4.7", "an SRAM read and write alone: two messages each",
        _alone(("read", "write"), _MEMORY_SOURCES, ("sram",), 1),
    ),
    Check("check-values", "M4.8", "the table of reads on an idle default machine", check_values),
    Check("values", "M6.2", "times with and without values", values_change_no_time),
    Check("digest", "M6.4", "the same run again", same_twice),
)  # fmt: skip
