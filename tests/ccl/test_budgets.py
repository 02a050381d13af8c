"""Speed of collectives as counts: events for a message, its credit, and what is done with it.

Seconds are measured by `python -m benchmarks`; these numbers are the same on every host.
"""

from __future__ import annotations

import pytest

from kernbench._units import KIB
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine._network import ENGINE
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.builder import resolve_topology


def all_reduce(algorithm: str, nbytes: int) -> tuple[float, float]:
    """Return the events, and the commands, for each message of an all-reduce over 6 SIPs, after one that is tiny."""
    machine = resolve_topology("preset:six_sip_torus")
    engine = GraphEngine(machine)
    policy = DPPolicy(cube="row_wise", pe="replicate", num_pes=1)
    cubes = machine.config.cubes_per_sip if algorithm.startswith("intercube") else 1
    counts = []
    with RuntimeContext(engine) as torch:
        for size in (cubes, nbytes // 2):
            tensors = [
                torch.zeros((cubes, size), dtype=torch.float16, device=f"ahbm:{sip}", dp=policy)
                for sip in range(machine.config.n_sips)
            ]
            torch.accelerator.synchronize()
            before = engine.env.events, len(engine.log.commands)
            torch.collective(tensors, algorithm=algorithm)
            torch.accelerator.synchronize()
            counts.append((engine.env.events - before[0], engine.log.commands[before[1] :]))
    events, commands = counts[-1]
    messages = sum(command.name == "send" for command in commands)
    return events / messages, len(commands) / messages


@pytest.mark.parametrize(
    ("algorithm", "most"),
    [
        ("intercube_allreduce", {"core": 31, "definition": 216}),
        ("ring_allreduce_tcm", {"core": 56, "definition": 289}),
    ],
)
def test_events_for_a_message(algorithm, most):
    events, commands = all_reduce(algorithm, 16 * KIB)
    # A send, a receive, a sum for every other message, and loads and stores of several of them.
    assert commands < 4.5
    assert events <= most[ENGINE]
