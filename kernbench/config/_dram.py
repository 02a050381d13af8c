"""DRAM standards: the content of `dram.yaml`, and their times at a bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernbench._units import decimal_product, serialization_ps
from kernbench.config._files import load_yaml

_FILE = Path(__file__).with_name("dram.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dram:
    """A DRAM standard and its timing parameters, by the standard's names: times in ns, or in clocks."""

    standard: str
    source: str
    width_bits: int
    BL: int
    bank_groups: int
    banks_per_group: int
    row_bytes: int
    clocks: dict[str, int]
    ns: dict[str, float]
    rate_mbps: int | None = None  # of a speed bin

    @property
    def access_bytes(self) -> int:
        """Bytes moved by a read or write command."""
        return self.BL * self.width_bits // 8

    @property
    def bin_gbs(self) -> float | None:
        """Bandwidth of a pseudo channel of a speed bin [GB/s]."""
        return None if self.rate_mbps is None else decimal_product(self.rate_mbps, 0.001, self.width_bits / 8)

    def times_ps(self, channel_bw_gbs: float) -> dict[str, int]:
        """Convert the timing parameters to ps for a pseudo channel of `channel_bw_gbs`, rounded up to whole clocks.

        `tBL` is the time of an access on the data bus: two clocks. `tREFIpb` is the time from one bank's refresh to the
        next bank's.
        """
        access_ps = serialization_ps(self.access_bytes, channel_bw_gbs)
        clock_ps = -(-access_ps // 2)
        ns = {**self.ns, "tREFIpb": self.ns["tREFI"] / (self.bank_groups * self.banks_per_group)}
        clocks = {name: -(-round(value * 1000) // clock_ps) for name, value in ns.items()}
        return {"tBL": access_ps, **{name: n * clock_ps for name, n in {**clocks, **self.clocks}.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class DramController:
    """Queues of a pseudo channel, in accesses, and the shares of the write queue at which writing begins and ends.

    `refresh` is what a due refresh stalls: the `channel`, or its `bank`.
    """

    read_queue: int
    write_queue: int
    write_high: float
    write_low: float
    refresh: str


@cache
def _content() -> dict[str, Any]:
    return load_yaml(_FILE)


@cache
def dram(name: str) -> Dram:
    part: dict[str, Any] = dict(_content()[name])
    if like := part.pop("like", None):
        base = _content()[like]
        part = {**base, **part, "clocks": {**base["clocks"], **part.get("clocks", {})}}
    return Dram(**part)


def dram_names() -> tuple[str, ...]:
    return tuple(name for name in _content() if name != "controller")


def dram_controller() -> DramController:
    return DramController(**_content()["controller"])
