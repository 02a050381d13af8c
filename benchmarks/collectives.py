"""All-reduce over the cubes of several devices, and a ring of leaders that does nothing but pass messages on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.table import Row, against_definition, best
from kernbench._units import KIB
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology
from tests.components.queues_under_test import install, launch, specs

ALGORITHM = "intercube_allreduce"


def measure() -> Iterator[Row]:
    """Yield all-reduces of 96 KiB a cube, values checked, then rings of leaders without values."""
    six = "preset:six_sip_torus"
    yield against_definition(all_reduce, six, target="0.45 s, then 0.35")
    yield against_definition(all_reduce, six, chunk_kib=96)
    yield replace(all_reduce("preset:large", data=False), target="5 s")
    yield against_definition(ring, 64, mib=1)  # of 64 MiB the definition would move 300 million flits
    yield replace(ring(64), target="7.5 us, then 5")
    yield replace(ring(64, log="operation"), target="11 us")
    yield replace(ring(256), target="11 us")
    yield replace(ring(1024), target="15 us")


def all_reduce(topology: str, *, data: bool = True, chunk_kib: int = 4) -> Row:
    """Return one all-reduce in messages of `chunk_kib`, from its launch to the last completion."""
    machine = resolve_topology(topology)
    config = machine.config
    n = 96 * KIB // 2
    policy = DPPolicy(cube="row_wise", pe="replicate", num_pes=1)

    def once() -> tuple[float, int]:
        start = time.process_time()
        engine = GraphEngine(machine, data, log="off")
        with RuntimeContext(engine) as torch:
            tensors = [
                torch.full((config.cubes_per_sip, n), sip + 1.0, dtype=torch.float16, device=f"ahbm:{sip}", dp=policy)
                for sip in range(config.n_sips)
            ]
            torch.collective(tensors, algorithm=ALGORITHM, chunk_bytes=chunk_kib * KIB)
            for sip in range(config.n_sips):
                torch.ahbm.synchronize(sip)
            seconds, events = time.process_time() - start, engine.env.events
            if data:
                total = config.cubes_per_sip * sum(range(1, config.n_sips + 1))
                assert (tensors[0].numpy() == total).all()
        return seconds, events

    seconds, events = min(once() for _ in range(1 if config.n_sips > 8 else 3))
    return Row(
        f"{ALGORITHM}, 96 KiB a cube, {config.n_sips} SIPs x {config.cubes_per_sip} cubes, messages of {chunk_kib} KiB",
        seconds,
        f"{events / seconds / 1e3:,.0f} k events/s",
    )


def ring(leaders: int, *, mib: int = 64, log: str = "off") -> Row:
    """Return a ring over the first PEs of SIPs that form one, too: `mib` in steps of 4 chunks, each a slot."""
    machine = resolve_topology("preset:large", {"system.sips": {"count": leaders, "topology": "ring_1d"}})
    chunk = mib * 1024 * KIB // leaders // 4
    places = [(sip, 0, 0) for sip in range(leaders)]
    steps = 2 * (leaders - 1)

    def pass_on(tl: Any) -> None:
        mine = tl.full((chunk // 2,), 1.0, dtype=tl.float16) + 0
        for _ in range(steps * 4):
            tl.send("E", mine)
            tl.recv("W", shape=(chunk // 2,))

    def once() -> int:
        engine = GraphEngine(machine, log=log)
        pairs = [((a, "E"), (b, "W")) for a, b in zip(places, places[1:] + places[:1], strict=True)]
        install(engine, specs(engine, pairs, slot_bytes=chunk))
        launch(engine, dict.fromkeys(places, pass_on))
        engine.run()
        return engine.env.events

    seconds, events = best(once, 1)
    messages = leaders * steps * 4
    return Row(
        f"ring of {leaders} leaders, {mib} MiB in {messages:,} messages, no values, log {log}",
        seconds,
        f"{seconds / messages * 1e6:.1f} us a message, {events / messages:.1f} events",
    )
