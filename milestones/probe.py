# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Milestone: probing the machine's links and memories
#
# How long does a transfer take on each kind of route through the machine, what are the parts of that time, and what
# changes when many transfers compete?
#
# - **Single transfers**: the host writes and reads an HBM slice; a PE reads and writes its own slice, its neighbour's,
#   one across the cube, in the next cube, in the farthest one, and in another SIP.
# - **Patterns**: all PEs of a SIP access their own slices; all access one slice; the PEs of a cube access the next cube
#   to the east over UCIe; all PEs of a SIP access another SIP; all PEs of the machine access the slice of PE 0.
# - **PE to PE**: a message through a queue, a load and a store, to the next PE and the next cube of a row and a column.
#
# Each transfer of the first two kinds is one network transaction, as a DMA engine sends it. All transfers of a pattern
# start at the same time. PE commands and the limit on outstanding requests are not included, so the times show only
# links and memory.

# %% tags=["parameters"]
topology: str = "preset:default"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
cases: list = [  # names; empty: all cases that the machine supports
    "h2d-write", "own-slice-read", "next-cube-read", "farthest-cube-read",  # alone
    "all-own-write", "all-one-read", "eastbound-write",  # patterns
    "pe-east-message", "pe-east-load", "pe-east-store",  # PE to PE
    "cube-south-message", "cube-south-load", "cube-south-store",
]  # fmt: skip
sizes: list = [4096, 8192]  # bytes of each transfer
messages: list = [128, 1024, 4096, 10240]  # bytes from PE to PE
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import ProbeStudy

machine = kb.load(topology, overrides)
report = ProbeStudy().report(
    machine,
    folder=Path(output or mkdtemp()),
    workers=workers,
    rerender=rerender,
    cases=cases,
    sizes=sizes,
    messages=messages,
)
report

# %% [markdown]
# ## Single transfers
#
# *Closed form, alone* is the time on an idle machine. The parts sum exactly to the time: *wire* (propagation), *nodes*
# (routers, ports, switches), *fill* (one flit's time on every link except the slowest), *serialization* (all bytes on
# the slowest link), *memory* (the time that the channels add). A single transfer never queues.

# %%
tables = report.study.tables(report.rows)
tables["Single transfers"]

# %%
report.figure("probe_single_parts")

# %%
report.figure("probe_single_bandwidth")

# %% [markdown]
# ## Patterns
#
# *Fair streams* carry the same bytes without latency, and share every link by max-min fairness.

# %%
tables["Patterns"]

# %%
report.figure("probe_pattern_bandwidth")

# %% [markdown]
# ## PE to PE
#
# These cases run programs. A message ends in the TCM of its receiver, which waits for it. Loads and stores access HBM,
# take a round trip, and do not notify the other PE.

# %%
tables["PE to PE, times in ns"]

# %%
report.figure("probe_pe_to_pe")

# %% [markdown]
# ## Link utilization
#
# The figures `probe_links_*` of the report show the share of time that each link was busy, on the machine's geometry.
