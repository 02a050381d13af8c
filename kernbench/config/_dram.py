"""DRAM standards: what `dram.yaml` says of them, and their times at a bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kernbench._units import serialization_ps
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

    @property
    def access_bytes(self) -> int:
        """Bytes of one access: what a read or write command moves."""
        return self.BL * self.width_bits // 8

    def times_ps(self, channel_bw_gbs: float) -> dict[str, int]:
        """Return the timing parameters of a pseudo channel of `channel_bw_gbs` in ps, in whole clocks.

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
    """The queues of a pseudo channel, in accesses, and the shares of the write queue that begin and end writing.

    `refresh` is what waits until a refresh that is due is issued: the `channel`, or its `bank`.
    """

    read_queue: int
    write_queue: int
    write_high: float
    write_low: float
    refresh: str


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = load_yaml(_FILE)
    return content


def dram(name: str) -> Dram:
    """Return the standard that `cube.hbm.timing` names."""
    return Dram(**_content()[name])


def dram_controller() -> DramController:
    """Return the queues of every controller."""
    return DramController(**_content()["controller"])
