"""Prints results.csv beside the values of kernbench: PYTHONPATH=KERNBENCH python compare.py."""

from __future__ import annotations

import csv
from pathlib import Path

from kernbench.studies._fidelity_hbm import measure
from kernbench.topology.builder import resolve_topology

machine = resolve_topology("preset:default")
with Path(__file__).with_name("results.csv").open() as file:
    for row in csv.DictReader(file):
        parameters = dict(pair.split("=") for pair in row["parameters"].split("; "))
        value, reference = measure(machine, **parameters), float(row["value"])
        print(f"{value / reference - 1:+7.1%} {value:10.3f} {reference:10.3f} {row['unit']:5} {row['parameters']}")
