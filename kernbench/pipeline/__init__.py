"""Pipeline schedules: the action tables of `torch.distributed.pipelining`, run on the SIPs of a machine."""

from __future__ import annotations

from kernbench.pipeline._actions import Action
from kernbench.pipeline._report import Pipeline
from kernbench.pipeline._run import run
from kernbench.pipeline._schedules import orders

__all__ = ["Action", "Pipeline", "orders", "run"]
