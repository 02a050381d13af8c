"""The MMU of a PE: ranges of virtual memory, with a look-up time that delays a command's start."""

from __future__ import annotations

from kernbench.config import PeMmuConfig
from kernbench.policy.address.pe_mmu import PeMMU
from kernbench.units import ns_to_ps


class PeMmu(PeMMU):
    """A table of ranges without misses: table walks are not modelled."""

    def __init__(self, name: str, config: PeMmuConfig) -> None:
        super().__init__(name)
        self.lookup_ps = ns_to_ps(config.lookup_ns)
