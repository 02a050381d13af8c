"""The MMU of a PE: what a look-up of an address takes."""

from __future__ import annotations

from kernbench._units import ns_to_ps
from kernbench.config import PeMmuConfig
from kernbench.policy.address.pe_mmu import PeMMU


class PeMmu(PeMMU):
    """A table of ranges without misses: table walks are not modelled."""

    def __init__(self, name: str, config: PeMmuConfig) -> None:
        super().__init__(name)
        self.lookup_ps = ns_to_ps(config.lookup_ns)
