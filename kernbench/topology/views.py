"""Geometry of the four views of a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernbench.config import MachineConfig


class Views:
    """Geometry of the system, a SIP, a cube and a PE."""

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
