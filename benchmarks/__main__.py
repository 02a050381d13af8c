"""Measure everything, and write the table of `benchmarks/README.md`: `python -m benchmarks`."""

from __future__ import annotations

import os

from benchmarks import machines, products, start, table, transfers
from kernbench.sweeps.cache import OFF, VARIABLE

if __name__ == "__main__":
    os.environ[VARIABLE] = OFF  # a study is to be run, not found
    table.write(list(table.chain(transfers.measure, products.measure, machines.measure, start.measure)))
