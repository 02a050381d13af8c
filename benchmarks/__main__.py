"""Measure everything, and write the table of `benchmarks/README.md`: `python -m benchmarks`."""

from __future__ import annotations

from benchmarks import collectives, machines, products, start, sweeps, table, transfers

if __name__ == "__main__":
    table.write(
        list(
            table.chain(
                transfers.measure,
                products.measure,
                machines.measure,
                collectives.measure,
                sweeps.measure,
                start.measure,
            )
        )
    )
