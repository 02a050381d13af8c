"""The engine in use: the compiled core, or the definition it is equal to."""

from __future__ import annotations

from kernbench.sim_engine.network import BULK, QUEUE, Arbiter, Callee, Core, HbmSlice, Hop, Link

ENGINE = "definition"

__all__ = ["BULK", "ENGINE", "QUEUE", "Arbiter", "Callee", "Core", "HbmSlice", "Hop", "Link"]
