"""Random machines and random transactions on them, from a seed."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from kernbench.errors import ConfigError
from kernbench.topology.builder import Machine, resolve_topology

Value = bool | int | float | str | list[list[int]] | list[float]
_SIP_SHAPES = (
    *({"count": n, "topology": "ring_1d"} for n in (1, 1, 2, 2, 3, 5)),
    *({"count": n, "topology": "fully_connected"} for n in (3, 4)),
    *({"count": w * h, "topology": "torus_2d", "w": w, "h": h} for w, h in ((2, 2), (1, 3), (3, 2))),
    *({"count": w * h, "topology": "mesh_2d_no_wrap", "w": w, "h": h} for w, h in ((2, 2), (3, 2))),
    {"count": 8, "topology": "torus_3d", "w": 2, "h": 2, "d": 2},
    {"count": 4, "topology": "switch"},
    {"count": 5, "topology": "fat_tree"},
)
_UNEVEN_GBS = (0.7, 30.0, 64.0, 77.7, 100.0, 128.0, 205.0, 256.0, 300.0, 1e4)
_EVEN_GBS = (64.0, 128.0, 256.0, 256.0, 512.0)


class Transaction(NamedTuple):
    """A message ("send", "queue"), read or write.

    `wait_ps` counts from the end of transaction number `after`, or from the start.
    """

    kind: str
    src: str
    dst: str
    offset: int
    nbytes: int
    wait_ps: int
    after: int | None = None


class Case(NamedTuple):
    """A machine, as changes to the default one, and what happens on it.

    With `turn_bytes`, messages from a PE_DMA take turns with those of queues.
    """

    overrides: dict[str, Value]
    transactions: list[Transaction]
    turn_bytes: int | None = None

    def machine(self) -> Machine:
        """Return the machine."""
        return resolve_topology("preset:default", self.overrides)


def random_case(seed: object, transactions: int) -> Case:
    """Return a machine and `transactions` on it; the same for the same arguments."""
    rng = Random(f"oracle {seed}")
    overrides = _random_machine(rng) | _messages(Random(f"messages {seed}"))
    turn_bytes = rng.choice((None, None, None, 256, rng.choice((1, 300, 512, 1024))))
    machine = resolve_topology("preset:default", overrides)
    return Case(overrides, _random_transactions(rng, machine, transactions, turn_bytes is not None), turn_bytes)


def _random_machine(rng: Random) -> dict[str, Value]:
    """Return a valid machine. On half of them all times are multiples of few numbers, so that arrivals often tie."""
    while True:
        overrides = _any_machine(rng, even=rng.random() < 0.5)
        try:
            resolve_topology("preset:default", overrides)
        except ConfigError:
            # A removed router that something needs, or a slice faster than its link: draw again.
            continue
        return overrides


def _any_machine(rng: Random, *, even: bool) -> dict[str, Value]:
    def gbs() -> float:
        return rng.choice(_EVEN_GBS if even else _UNEVEN_GBS)

    def ns(most: float) -> float:
        return (
            rng.choice((0.0, 0.0, 1.0, 2.0)) if even else rng.choice((0.0, 0.001, 1.0, round(rng.uniform(0, most), 3)))
        )

    rows, cols = rng.randint(1, 5), rng.randint(1, 5)
    places = [[r, c] for r in range(rows) for c in range(cols)]
    rng.shuffle(places)
    # What is removed forms holes in the middle: what hangs on the sides needs its routers.
    inner = [at for at in places if 0 < at[0] < rows - 1 and 0 < at[1] < cols - 1]
    removed = rng.sample(inner, rng.randint(0, len(inner)))
    left = [at for at in places if at not in removed]
    return {
        **{f"system.sips.{key}": value for key, value in rng.choice(_SIP_SHAPES).items()},
        "system.sip_link.bw_gbs": gbs(),
        "system.sip_link.latency_ns": ns(60),
        "system.sip_switch.ports": 4,
        "system.fat_tree.levels": 3,
        "system.switch.overhead_ns": ns(9),
        "system.pcie.bw_gbs": gbs(),
        "system.pcie.latency_ns": ns(120),
        "system.host_link.bw_gbs_per_sip": gbs(),
        "system.host_link.latency_ns": ns(20),
        "sip.cube_mesh.w": rng.randint(1, 3),
        "sip.cube_mesh.h": rng.randint(1, 3),
        "sip.io.pcie_ep.overhead_ns": ns(9),
        "sip.io.noc.overhead_ns": ns(3),
        "sip.io.noc.port_bw_gbs": gbs(),
        "cube.propagation_ns_per_mm": rng.choice((0.0, 0.0, 0.01, 0.1)),
        "cube.noc.rows": rows,
        "cube.noc.cols": cols,
        "cube.noc.removed": removed,
        "cube.noc.pitch_mm": rng.choice((1.0, 3.0, 2.7)),
        "cube.noc.link_bw_gbs": gbs(),
        "cube.noc.router.overhead_ns": ns(2),
        "cube.pe_layout.pe_routers": left[: rng.randint(1, min(6, len(left)))],
        "cube.ucie.connections": rng.choice((1, 2, 3, 4)),
        "cube.ucie.bw_gbs": gbs(),
        "cube.ucie.router_bw_gbs": gbs(),
        "cube.ucie.port_ns": ns(9),
        "cube.m_cpu.pos_mm": [rng.uniform(0, cols), rng.uniform(0, rows)],
        "cube.m_cpu.bw_gbs": gbs(),
        "cube.sram.pos_mm": [rng.uniform(0, cols), rng.uniform(0, rows)],
        "cube.sram.bw_gbs": gbs(),
        "cube.pe.pe_cpu.bw_gbs": gbs(),
        "cube.pe.pe_dma.bw_gbs": 256.0 if even else rng.choice((256.0, 300.0, 512.0)),
        "cube.hbm.bw_gbs": 256.0 if even else rng.choice((256.0, 257.0, 1e4)),
        "cube.hbm.channels": rng.choice((1, 2, 4, 8, 16)),
        "cube.hbm.channel_bw_gbs": rng.choice((8.0, 16.0, 32.0)) if even else rng.choice((0.9, 13.7, 32.0, 64.0)),
        "cube.hbm.burst_bytes": rng.choice((1, 32, 64, 128, 256, 256, 256, 512, 1024, 4096)),
        "cube.hbm.efficiency": rng.choice((1.0, 0.8, 0.83)),
        "cube.hbm.turnaround_ns": ns(15),
        "cube.hbm.access_ns": ns(60),
    }


def _messages(rng: Random) -> dict[str, float]:
    """Return sizes of flits, commands and headers, on few machines: commands that take time make ties rarer."""
    if rng.random() < 0.7:
        return {}
    return {
        "system.flit_bytes": rng.choice((16, 64, 256, 300)),
        "system.command_bytes": rng.choice((0, 16)),
        "system.sip_link.header_bytes": rng.choice((0, 24)),
        "system.pcie.efficiency": rng.choice((1.0, 0.9)),
        "cube.noc.header_bytes": rng.choice((0, 8)),
        "cube.ucie.efficiency": rng.choice((1.0, 0.92)),
    }


def _random_transactions(rng: Random, machine: Machine, count: int, turns: bool) -> list[Transaction]:
    """Return `count` transactions; on some machines from few sources to few ends at few instants, so that they meet."""
    nodes = list(machine.graph.nodes())
    sources = [node.id for node in nodes if node.kind in ("pe_dma", "pe_cpu", "host", "io_cpu", "m_cpu")]
    memories = [node.id for node in nodes if node.kind in ("hbm_ctrl", "sram")]
    parts = [*sources, *memories]
    if turns:
        # Turns are the PEs' matter, and tie with what arrives where these are close.
        near = [node for node in sources if node.endswith("pe_dma")][:4]
        sources, parts = rng.choice(((sources, parts), (near, parts), (near, near)))
    crowd, instants, step_ps = rng.choice((2, 4, 16)), rng.choice((1, 3, 10, 1000)), rng.choice((1, 1000, 1024, 16_000))
    sources, memories, parts = (rng.sample(some, min(crowd, len(some))) for some in (sources, memories, parts))
    kinds = rng.choice((("read",), ("write",), ("read", "write"), ("send", "read", "write")))
    chained, at_once = rng.choice(((0.0, False), (0.5, False), (0.7, True), (0.7, turns)))
    # Messages that take little time, or none, end while others at the same instant begin.
    brief = turns and rng.random() < 0.5
    burst_bytes = machine.config.cube.hbm.burst_bytes
    made: list[Transaction] = []
    while len(made) < count:
        kind, src = rng.choice(kinds), rng.choice(sources)
        if turns and src.endswith("pe_dma"):
            kind = rng.choice(("send", "queue"))
        message = kind in ("send", "queue")
        dst = rng.choice([part for part in parts if part != src] or memories if message else memories)
        nbytes = rng.choice((0, 0, 1, 256)) if message and brief else _random_size(rng, burst_bytes)
        offset = rng.choice((0, rng.randrange(1 << 14), rng.randrange(8) * burst_bytes, rng.randrange(8) * 256))
        after = rng.randrange(len(made)) if made and rng.random() < chained else None
        wait_ps = 0 if after is not None and at_once else rng.randrange(instants) * step_ps
        made.append(Transaction(kind, src, dst, offset, nbytes if message else max(1, nbytes), wait_ps, after))
    return made


def _random_size(rng: Random, burst_bytes: int) -> int:
    near = rng.choice((256, burst_bytes)) * rng.choice((1, 1, 2, 3, 4, 16)) + rng.choice((-1, 0, 0, 1))
    # Bursts of one byte make many of a large request, each with its own end.
    most = 40 * burst_bytes if burst_bytes < 64 else 40_000
    return min(most, rng.choice((0, 1, 16, near, near, rng.randrange(5000), rng.randrange(40_000))))
