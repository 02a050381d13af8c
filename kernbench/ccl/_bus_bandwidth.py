"""The bus bandwidth of a collective, as nccl-tests defines it."""

from __future__ import annotations


def bus_factor(collective: str, n: int) -> float:
    """Ratio busbw / algbw for `n` contributions, as in nccl-tests (doc/PERFORMANCE.md)."""
    match collective:
        case "all_reduce":
            return 2 * (n - 1) / n
        case "reduce_scatter" | "all_gather" | "all_to_all":
            return (n - 1) / n
        case "broadcast" | "reduce":
            return 1.0
    return 0.0
