"""Measure everything, and write the table of `benchmarks/README.md`: `python -m benchmarks`."""

from __future__ import annotations

import os

from benchmarks import attention, collectives, machines, products, start, sweeps, table, transfers
from kernbench.sweeps.cache import OFF, VARIABLE

if __name__ == "__main__":
    os.environ[VARIABLE] = OFF  # a study is to be run, not found
    parts = sweeps, transfers, products, attention, machines, collectives, start
    table.write(list(table.chain(*(part.measure for part in parts))))
