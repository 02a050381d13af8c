"""The engine in use: the compiled core, or the definition it is equal to."""

from __future__ import annotations

try:
    from kernbench.sim_engine.core import BULK, QUEUE, Arbiter, Core, HbmSlice, Link
except ImportError:
    from kernbench.sim_engine.network import BULK, QUEUE, Arbiter, Core, HbmSlice, Link
    ENGINE = "definition"
else:
    ENGINE = "core"
from kernbench.sim_engine.callee import Callee
from kernbench.sim_engine.network import Hop

__all__ = ["BULK", "ENGINE", "QUEUE", "Arbiter", "Callee", "Core", "HbmSlice", "Hop", "Link"]
