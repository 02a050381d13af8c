"""The engine in use: the compiled core, or the definition it is equal to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.build import CORE, engine
from kernbench.sim_engine.callee import Callee
from kernbench.sim_engine.network import Hop

ENGINE = engine()

if TYPE_CHECKING or ENGINE != CORE:
    from kernbench.sim_engine.network import BULK, QUEUE, Arbiter, Core, HbmSlice, Link
else:
    from kernbench.sim_engine.core import BULK, QUEUE, Arbiter, Core, HbmSlice, Link

__all__ = ["Arbiter", "BULK", "Callee", "Core", "ENGINE", "HbmSlice", "Hop", "Link", "QUEUE"]  # noqa: RUF022  as a test sorts
