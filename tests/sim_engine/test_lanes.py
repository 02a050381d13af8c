"""SIPs whose entries are processed apart, each in its lane (docs/decisions/0116), are as SIPs in one calendar."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kernbench.errors import StateError
from kernbench.kernels.gemm import gemm
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._network import CORE, ENGINE
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology

pytestmark = pytest.mark.skipif(ENGINE != CORE, reason="the definition has one calendar")

MACHINE = resolve_topology(
    "preset:small", {"system.sips": {"count": 3, "topology": "ring_1d"}, "sip.cube_mesh": {"w": 2, "h": 2}}
)


def products(torch, sizes=(64, 96, 32)):
    """Queue a product on each SIP, of another size on each, whose right operand is on one PE."""
    config = torch.engine.machine.config
    pes, spread = config.cubes_per_sip * config.pes_per_cube, DPPolicy(cube="row_wise", pe="row_wise")
    for sip, k in enumerate(sizes):
        with torch.ahbm.device(sip):
            a, c = (torch.empty(32 * pes, n, dtype=torch.float16, device="ahbm", dp=spread) for n in (k, 64))
            b = torch.empty(k, 64, dtype=torch.float16, device="ahbm", dp=DPPolicy())
            torch.launch("product", gemm, a, b, c, 32, k, 64, "ref_ref")


def copies(torch):
    """Copy to and from every SIP while products run."""
    products(torch)
    tensors = [torch.empty(3000, dtype=torch.float16, device=f"ahbm:{sip}") for sip in range(3)]
    for tensor in tensors:
        tensor.copy_(torch.empty(3000, dtype=torch.float16))
    products(torch, (32, 32, 32))
    for tensor in tensors:
        tensor.to("cpu")


def collectives(torch):
    """Change between products, for which SIPs are apart, and all-reduces, whose messages couple them."""
    spread = DPPolicy(cube="row_wise", pe="replicate", num_pes=1)
    tensors = [torch.empty(4, 4096, dtype=torch.float16, device=f"ahbm:{sip}", dp=spread) for sip in range(3)]
    for _ in range(2):
        products(torch)
        torch.collective(tensors, algorithm="intercube_allreduce")
    products(torch, (32, 96, 32))


def run(program, log, *, coupled):
    engine = GraphEngine(MACHINE, log=log)
    if coupled:
        engine.env.core.couple(1)
    with RuntimeContext(engine) as torch:
        program(torch)
        for sip in range(3):
            torch.ahbm.synchronize(sip)
    return torch.result


def rows(records):
    """All rows, without their numbers."""
    names = [records.components[i] for i in records.component]
    columns = (records.start_ps, records.end_ps, records.kind, records.nbytes, records.flops, records.tile)
    return sorted(zip(names, *(column.tolist() for column in columns), strict=True))


def transfers(records):
    found = records.dependencies.transfers
    columns = (found[name].tolist() for name in ("start_ps", "end_ps", "nbytes", "tile", "kind", "served_ps"))
    return sorted(zip(*columns, strict=True))


@pytest.mark.parametrize(
    ("program", "log"), [(products, "tile"), (products, "operation"), (copies, "tile"), (collectives, "operation")]
)
def test_times_and_causes_are_those_of_one_calendar(program, log):
    apart, together = run(program, log, coupled=False), run(program, log, coupled=True)
    assert apart.latency_ns == together.latency_ns
    assert rows(apart.records) == rows(together.records)
    assert transfers(apart.records) == transfers(together.records)
    assert apart.records.links.names == together.records.links.names
    assert (apart.records.links.busy_ps == together.records.links.busy_ps).all()
    assert str(apart.why()) == str(together.why())
    assert apart.records.launches == together.records.launches


def order(*, coupled):
    """Which SIP each call of a kernel is of, in the order in which the simulator runs them."""
    found = []

    def reads(x, sip, *, tl):
        for _ in range(40):
            assert tl.load(x) < 1  # waits for the value
            found.append(sip)

    engine = GraphEngine(MACHINE, True, log="off")
    if coupled:
        engine.env.core.couple(1)
    with RuntimeContext(engine) as torch:
        for sip in range(3):
            with torch.ahbm.device(sip):
                torch.launch("reads", reads, torch.zeros(64, dtype=torch.float16, device="ahbm"), sip)
        for sip in range(3):
            torch.ahbm.synchronize(sip)
    return found


def test_a_sip_runs_for_a_while_before_the_next_one():
    apart, together = order(coupled=False), order(coupled=True)
    assert sorted(apart) == sorted(together)
    changes = [sum(a != b for a, b in pairwise(found)) for found in (apart, together)]
    assert changes[0] < changes[1] / 2


def test_a_message_from_outside_to_a_sip_that_is_ahead_is_refused():
    refused = []
    for steps in range(40, 400, 30):
        engine = GraphEngine(MACHINE, log="off")
        with RuntimeContext(engine) as torch:
            products(torch)
            for _ in range(steps):
                engine.step()
            route = engine.network.route("sip2.cube0.pe0.pe_dma", "sip2.cube1.hbm_ctrl.pe0")
            try:
                engine.network.send(route, 64, route.key(), lambda _: None, None)
            except StateError as error:
                refused.append(str(error))
    assert refused
    assert all("keeps SIPs together" in text for text in refused)
