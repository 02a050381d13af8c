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
# How long does a transfer take on each kind of route through the machine, what is that time made of, and what changes
# when many transfers meet?
#
# - **Single transfers**: the host writes and reads an HBM slice; a PE reads and writes its own slice, its neighbour's,
#   one across the cube, in the next cube, in the farthest one, and in another SIP.
# - **Patterns**: all PEs of a SIP each to its own slice; all to one slice; the PEs of a cube eastward over UCIe; all
#   PEs of a SIP to another SIP; all PEs of the machine to the slice of PE 0.
# - **PE to PE**: a message through a queue, a load and a store, to the next PE and the next cube of a row and a column.
#
# Each transfer of the first two is one transaction of the network, as a DMA engine sends it. All of a pattern start at
# the same instant; a PE's commands and its limit of outstanding requests are left out, so that only links and memory
# show.

# %% tags=["parameters"]
topology: str = "preset:default"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
cases: list = [  # names; empty: all cases that the machine has the parts for
    "h2d-write", "own-slice-read", "next-cube-read", "farthest-cube-read",  # alone
    "all-own-write", "all-one-read", "eastbound-write",  # patterns
    "pe-east-message", "pe-east-load", "pe-east-store",  # PE to PE
    "cube-south-message", "cube-south-load", "cube-south-store",
]  # fmt: skip
sizes: list = [4096, 8192]  # bytes of each transfer
messages: list = [128, 1024, 4096, 10240]  # bytes from PE to PE
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
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
# *Closed form, alone* is that of an idle machine. The parts sum to the time exactly: *wire* (propagation), *nodes*
# (routers, ports, switches), *fill* (one flit's time on every link but the slowest), *serialization* (all bytes on the
# slowest link), *memory* (what the channels add). A transfer alone never queues.

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
# *Fair streams* are the same bytes as streams that share every link by max-min fairness and have no latency.

# %%
tables["Patterns"]

# %%
report.figure("probe_pattern_bandwidth")

# %% [markdown]
# ## PE to PE
#
# Here programs run. A message ends in the TCM of its receiver, which waits for it; loads and stores go to HBM, there
# and back, and do not notify the other PE.

# %%
tables["PE to PE, times in ns"]

# %%
report.figure("probe_pe_to_pe")

# %% [markdown]
# ## Where they meet
#
# The share of the time that each link was busy, on the machine's geometry: the figures `probe_links_*` of the report.
