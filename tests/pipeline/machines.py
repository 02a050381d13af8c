"""Stages of a given length on one PE of each SIP, and machines for them."""

from __future__ import annotations

import kernbench as kb
from kernbench.policy.placement.dp import DPPolicy
from kernbench.topology.builder import Machine

N = 4096


def add(x, y, n, *, tl):
    value = tl.load(x, shape=(N,))
    for _ in range(n):
        value = value + 1.0
    tl.store(y, value)


def message(torch):
    return torch.zeros(N, dtype=torch.float16, device="ahbm", dp=DPPolicy(num_cubes=1, num_pes=1))


def stage_of(unit, **cost):
    """Return a stage whose actions add 1 `unit` times, B twice as often, or as often as `cost` says by stage."""

    def stage(torch, action, x, y):
        found, out = x if x is not None else message_of(torch), y if y is not None else message_of(torch)
        n = unit * cost.get(f"{action.stage}{action.kind}", 2 if action.kind == "B" else 1)
        torch.launch(str(action), add, found, out, n)

    made = {}

    def message_of(torch):
        """The batch, or a result that nobody reads: two tensors of each rank."""
        return made.setdefault(torch.distributed.get_rank(), message(torch))

    return stage


def machine(ranks: int, overrides=None) -> Machine:
    return kb.load("preset:small", {"system.sips": {"count": ranks, "topology": "ring_1d"}, **(overrides or {})})
