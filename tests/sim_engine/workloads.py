"""Runs that put every part of the engine to use; each says all that it may say: times, logs, hops, counters.

`python -m tests.sim_engine.workloads` prints them for the engine that KERNBENCH_ENGINE selects.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import kernbench as kb
from kernbench.analysis._records import Dependencies
from kernbench.benches.registry import resolve
from kernbench.runtime_api.bench_runner import run_bench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._network import ENGINE
from kernbench.sim_engine.engine import GraphEngine
from kernbench.studies.ccl import CclStudy
from tests.components.one_pe import gemm, run, slice_pa
from tests.reference.traffic import play, random_machine, random_traffic
from tests.sim_engine.adapter import Engine
from tests.sim_engine.waits import waits_of

PRODUCTS = [((64, 192, 96), "ref_ref"), ((100, 200, 70), "load_ref"), ((33, 65, 31), "load_load")]
ALGORITHMS = (
    "ring_allreduce_tcm",
    "ring_allreduce_hbm",
    "ring_allreduce_sram",
    "torus_allreduce",
    "intercube_allreduce",
    "hierarchical_allreduce",
)


def told(engine: GraphEngine) -> dict[str, Any]:
    """Return what a run leaves behind, except what may differ between engines: the number of events."""
    records = engine.records()
    busy = records.busy_by_component()
    return {
        "digest": records.digest(),
        "causes": _digest(records.dependencies),
        "waits": hashlib.sha256(repr(sorted(waits_of(records).items())).encode()).hexdigest(),
        "reservations": engine.network.core.reservations,
        "links": [records.links.busy_ps.tolist(), records.links.nbytes.tolist()],
        "busy": {name: int(ps) for name, ps in sorted(busy.items())},
        "end": engine.env.now,
    }


def _digest(x: Dependencies) -> str:
    """Return a digest of what each row, transfer, step and path followed from."""
    columns = (x.causes, x.sent, *x.steps.values(), *x.paths.values())
    return hashlib.sha256(b"".join(np.ascontiguousarray(column).tobytes() for column in columns)).hexdigest()


def traffic(seed: int, *, trace: bool) -> dict[str, Any]:
    """Random transactions on a random machine, in closed loops."""
    machine = random_machine(f"engines {seed}")
    engine = Engine(machine, trace=trace)
    ends = play(engine, random_traffic(machine, seed, ("send", "read", "write"), 8))
    links = [engine.network.links[pair] for pair in sorted(engine.network.links)]
    return {
        "ends": ends,
        "hops": [list(hop) for hop in sorted(engine.network.hops)] if engine.network.hops is not None else None,
        "reservations": engine.network.core.reservations,
        "busy": engine.network.core.busy_by(links).tolist(),
    }


def credits(seed: int) -> dict[str, Any]:
    """The same, with routers whose buffers are limited, and every hop."""
    routers = {
        "flow": "credits",
        "vcs": 2 + seed % 3,
        "vc_flits": 1 + seed % 5,
        "pipeline": [seed % 2, 1 + seed % 3, 1, 1 + seed % 2],
    }
    changed = {
        f"{at}.{key}": value for at in ("cube.noc.router", "system.sip_link.router") for key, value in routers.items()
    }
    changed |= {"cube.noc.router.overhead_ns": 1, "sip.io.noc.overhead_ns": 0}
    changed["system.sip_link.router.ties"] = ("parity", "random")[seed % 2]
    machine = random_machine(f"credits {seed}").with_(changed)
    engine = Engine(machine, trace=True)
    ends = play(engine, random_traffic(machine, seed, ("send", "read", "write"), 6, per_source=3, sources=6))
    return {"ends": ends, "hops": [list(hop) for hop in sorted(engine.network.hops)]}


def meanwhile(seed: int) -> list[Any]:
    """Counters of all links at many moments of a run."""
    machine = random_machine(f"counters {seed}")
    engine, seen = Engine(machine, live=True), []
    sent = random_traffic(machine, seed, ("send", "read", "write"), 8)

    def look(_: object = None) -> None:
        links = [engine.network.links[pair] for pair in sorted(engine.network.links)]
        busy = engine.network.core.busy_by(links).tolist()
        seen.append((engine.now, {link.name: ps for link, ps in zip(links, busy, strict=True) if ps}))

    for t in range(500, 400_000, 7_919):
        engine.engine.env.call_last(t, look)
    play(engine, sent)
    return seen


def collective_meanwhile(algorithm: str) -> list[Any]:
    """The same of an all-reduce, whose PEs let bulk and queue traffic take turns."""
    engine, seen = GraphEngine(kb.load(), live=True), []

    def look(_: object = None) -> None:
        counters = engine.counters()
        busy = zip(counters.links, counters.busy_ps.tolist(), strict=True)
        engines = counters.engine_busy_ps.tolist()
        seen.append((counters.now_ps, {name: ps for name, ps in busy if ps}, engines))

    for t in range(500, 4_000_000, 79_190):
        engine.env.call_last(t, look)
    with RuntimeContext(engine) as torch:
        CclStudy().program(torch, algorithm=algorithm, elements=8192, cubes=2, pes=4)
    return seen


def products(routers: dict[str, str]) -> dict[str, Any]:
    """Products on the PEs of a cube with other routers: all of it is done at the end."""
    machine = kb.load("preset:small", overrides=routers)
    engine = GraphEngine(machine)
    outcome = run_bench(topology=machine, bench_fn=resolve("qkv-gemm-multi-pe"), engine_factory=lambda _: engine)
    assert outcome.ok, outcome
    return told(engine)


def collective(algorithm: str) -> dict[str, Any]:
    """An all-reduce on six SIPs, with values."""
    machine = kb.load("preset:six_sip_torus")
    with kb.session(machine, data=True) as torch:
        _in_one_calendar(torch)
        policy = kb.DPPolicy(cube="row_wise", num_pes=1)
        tensors = []
        for rank in range(6):
            tensors.append(torch.empty((16, 40), dtype=torch.float16, device=f"ahbm:{rank}", dp=policy))
            tensors[-1].copy_(torch.from_numpy(np.full((16, 40), rank, np.float16)))
        torch.collective(tensors, algorithm)
        values = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in tensors)).hexdigest()
        return {"values": values, **told(torch.engine)}


def _in_one_calendar(torch: RuntimeContext) -> None:
    """Log in the order of the definition; `test_lanes.py` compares with SIPs that are apart."""
    torch.engine.env.core.couple(1)


def sums_at_a_switch() -> dict[str, Any]:
    """All-reduces of several PEs of five SIPs at a switch that adds, while other messages pass it."""
    changes = {"system.sips": {"count": 5, "topology": "switch"}, "system.sip_switch.reduce": "sum"}
    with kb.session(kb.load("preset:small", changes)) as torch:
        _in_one_calendar(torch)
        policy = kb.DPPolicy(pe="row_wise")
        tensors = [torch.zeros((64, 200), dtype=torch.float16, device=f"ahbm:{s}", dp=policy) for s in range(5)]
        torch.collective(tensors, "ring_allreduce_tcm")
        torch.collective(tensors, "switch_allreduce", n_slots=2)
        torch.collective(tensors, "switch_allreduce", n_slots=16)
        for a, b in ((0, 3), (4, 0), (2, 3)):
            tensors[a].copy_(tensors[b])
        torch.engine.run()
        return told(torch.engine)


def attention() -> dict[str, Any]:
    """A step of decode attention on one PE's heads, and element-wise work around it."""
    with kb.session(kb.load(), data=True) as torch:
        a = torch.full((64, 256), 0.5, dtype=torch.float16, device="ahbm", dp=kb.DPPolicy(pe="row_wise"))
        b = torch.full((256, 64), 0.25, dtype=torch.float16, device="ahbm")
        out = torch.empty((64, 64), dtype=torch.float16, device="ahbm", dp=kb.DPPolicy(pe="row_wise"))

        def kernel(a: Any, b: Any, out: Any, *, tl: Any) -> None:
            row = tl.program_id(0) * 8
            x = tl.load(a + row * 256, shape=(8, 256), dtype="f16")
            y = tl.load(b, shape=(256, 64), dtype="f16")
            s = tl.dot(x, y)
            e = tl.exp(s - tl.max(s, axis=1, keep_dims=True))
            tl.store(out + row * 64, (e / tl.sum(e, axis=1, keep_dims=True)).to(tl.float16))

        torch.launch("softmax", kernel, a, b, out)
        values = hashlib.sha256(out.numpy().tobytes()).hexdigest()
        return {"values": values, **told(torch.engine)}


def processes() -> dict[str, Any]:
    """Loads while three processes of the user's copy to the memory that they read."""
    heard: list[tuple[str, int]] = []
    with kb.session(kb.load()) as torch:
        env, engine = torch.engine.env, torch.engine
        x = torch.full((64, 256), 0.5, dtype=torch.float16, device="ahbm")
        pieces = [(slice_pa(engine, 0), 4096)]

        def disturb(name: str, period_ps: int) -> Any:
            for _ in range(9):
                yield env.timeout(period_ps)
                heard.append((name, env.now))
                yield engine.write(pieces, None)
                heard.append((f"{name} wrote", env.now))

        for name, period_ps in (("a", 50_000), ("b", 50_000), ("c", 70_000)):
            env.process(disturb(name, period_ps))

        def kernel(a: Any, *, tl: Any) -> None:
            for row in range(64):
                tl.wait(tl.load(a + row * 256, shape=(256,), dtype="f16"))

        torch.launch("rows", kernel, x)
        engine.run()
        return {"heard": heard, **told(engine)}


WORKLOADS: dict[str, Callable[[], Any]] = {
    **{f"traffic {seed}": lambda seed=seed: traffic(seed, trace=False) for seed in range(12)},
    **{f"traced traffic {seed}": lambda seed=seed: traffic(seed, trace=True) for seed in range(12, 18)},
    **{f"credits {seed}": lambda seed=seed: credits(seed) for seed in range(8)},
    **{f"counters {seed}": lambda seed=seed: meanwhile(seed) for seed in range(4)},
    **{f"counters {name}": lambda name=name: collective_meanwhile(name) for name in ALGORITHMS[:2]},
    **{
        f"gemm {shape} {variant}": lambda shape=shape, variant=variant: told(run(gemm(*shape, variant), log="tile"))
        for shape, variant in PRODUCTS
    },
    **{f"all-reduce {name}": lambda name=name: collective(name) for name in ALGORITHMS},
    "cache": lambda: products(
        {
            "cube.hbm.controllers": 3,
            "cube.hbm.controller_routers": [[0, 2], [3, 0], [5, 5]],
            "cube.llc.size_mib": 0.09375,
        }
    ),
    "sums at a switch": sums_at_a_switch,
    "softmax": attention,
    "processes": processes,
    "stalled": lambda: products({"cube.noc.router.impl": "tests.components.slow_parts:StallingRouter"}),
    "products with credits": lambda: products(
        {"cube.noc.router.flow": "credits", "system.sip_link.router.flow": "credits"}
    ),
}


def main() -> None:
    """Print every workload's outcome."""
    json.dump({"engine": ENGINE, **{name: work() for name, work in WORKLOADS.items()}}, sys.stdout)


if __name__ == "__main__":
    main()
