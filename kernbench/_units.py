"""Units: integer picoseconds and bytes inside the engine, ns and GB/s (1 GB/s = 1 B/ns) outside."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import prod

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

FLIT_BYTES = 256  # default
ACK_BYTES = 16


def flits(nbytes: int, flit_bytes: int = FLIT_BYTES) -> int:
    """Count the flits that carry `nbytes`, at least one."""
    return -(-nbytes // flit_bytes) or 1


def ns_to_ps(ns: float) -> int:
    """Round to whole picoseconds.

    >>> ns_to_ps(1.03)
    1030
    """
    return round(ns * 1000)


def ps_to_ns(ps: int) -> float:
    return ps / 1000


def serialization_ps(nbytes: int, bw_gbs: float) -> int:
    """Time that `nbytes` occupy a server of `bw_gbs`, rounded up to a picosecond.

    The bandwidth is taken as the decimal number that was written, and the division is exact. Other amounts and rates
    work likewise: cycles of a clock in GHz, or multiply-accumulates per ns.

    >>> serialization_ps(256, 128)
    2000
    >>> serialization_ps(1, 300)
    4
    >>> serialization_ps(511, 7.3)
    70000
    """
    ps, nbytes_in = ps_per_unit(bw_gbs)
    return -(-nbytes * ps // nbytes_in)


def decimal(value: float) -> Fraction:
    """Convert a float to the shortest decimal that reads as it: what the user wrote.

    >>> decimal(7.3)
    Fraction(73, 10)
    """
    return Fraction(repr(float(value)))


@lru_cache(maxsize=256)
def decimal_product(*factors: float) -> float:
    """Multiply numbers as decimals: exact up to 15 digits, and rounded once beyond.

    >>> 64 * 0.9, decimal_product(64, 0.9), 3 * 0.1, decimal_product(3, 0.1)
    (57.6, 57.6, 0.30000000000000004, 0.3)
    """
    return float(prod(map(decimal, factors)))


class ServiceTimes(dict[int, int]):
    """Times of a server by bytes [ps], as `serialization_ps`, cached; a header adds to the bytes.

    >>> ServiceTimes(128)[256], ServiceTimes(128, 16)[256]
    (2000, 2125)
    """

    def __init__(self, bw_gbs: float, header_bytes: int = 0) -> None:
        self._bw_gbs, self._header_bytes = bw_gbs, header_bytes

    def __missing__(self, nbytes: int) -> int:
        t = self[nbytes] = serialization_ps(nbytes + self._header_bytes, self._bw_gbs)
        return t


@lru_cache(maxsize=64)
def service_times(bw_gbs: float, header_bytes: int = 0) -> ServiceTimes:
    return ServiceTimes(bw_gbs, header_bytes)


@lru_cache(maxsize=1024)
def ps_per_unit(rate: float) -> tuple[int, int]:
    """Express a rate as whole numbers: that many units (bytes, cycles) in that many ps; returns (ps, units)."""
    units, ns = decimal(rate).as_integer_ratio()
    return 1000 * ns, units
