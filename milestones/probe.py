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
# How long does a transfer take on each kind of way through the machine, what is that time made of, and what becomes of
# it when many transfers meet?
#
# - **Single transfers**: the host writes and reads an HBM slice; a PE reads and writes its own slice, its neighbour's,
#   one across the cube, in the next cube, in the farthest one, and in another SIP.
# - **Patterns**: all PEs of a SIP each to its own slice; all to one slice; the PEs of a cube eastward over UCIe; all
#   PEs of a SIP to another SIP; all PEs of the machine to the slice of PE 0.
#
# Each transfer is one transaction of the network, as a DMA engine sends it. All of a pattern start at the same
# instant; a PE's commands and its limit of outstanding requests are left out, so that only links and memory show.

# %% tags=["parameters"]
topology: str = "preset:default"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
cases: list = [  # names; empty: all cases that the machine has the parts for
    "h2d-write", "own-slice-read", "next-cube-read", "farthest-cube-read",  # alone
    "all-own-write", "all-one-read", "eastbound-write",  # patterns
]  # fmt: skip
sizes: list = [4096, 8192]  # bytes of each transfer
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

from IPython.display import Image, Markdown, display

import kernbench as kb
from kernbench.studies import probe, probe_report

machine = kb.load(topology, overrides)
folder = Path(output or mkdtemp())
machine

# %%
if rerender:
    rows = probe.read(folder)["rows"]
else:
    rows = probe.sweep(
        machine,
        names=cases,
        sizes=sizes,
        workers=workers,
        folder=folder if output else None,
    )
    probe.write(rows, folder)
figures = {path.name: path for path in probe_report.draw(rows, machine, folder)}


def show(name):
    if name in figures:
        display(Image(figures[name]))


print(f"{len(rows)} runs")

# %% [markdown]
# ## Single transfers
#
# *Alone* is the closed form for an idle machine. *Of its path* compares bytes over time with the slowest link of the
# way.

# %%
probe_report.table([row for row in rows if row["transfers"] == 1])

# %% [markdown]
# Its parts sum to the time exactly: *wire* (propagation), *nodes* (routers, ports, switches), *fill* (a flit's time on
# every link but the slowest), *serialization* (all bytes on the slowest), *memory* (what the channels add). A transfer
# alone never queues.

# %%
show("probe_single_parts.png")

# %%
show("probe_single_bandwidth.png")

# %% [markdown]
# ## Patterns
#
# *Of fair streams* compares the time of the whole pattern with that of the same bytes as streams that share every link
# fairly (max-min) and have no latency.

# %%
probe_report.table([row for row in rows if row["transfers"] > 1])

# %%
show("probe_pattern_bandwidth.png")

# %% [markdown]
# Alone, a transfer of a pattern would take what the left side shows; together, what the right side shows. The
# difference is queueing.

# %%
show("probe_pattern_parts.png")

# %% [markdown]
# ## Where they meet
#
# The share of the time that each link was busy, on the machine's geometry.

# %%
for row in probe.largest_patterns(rows):
    print(f"{row['case']:>18}: {row['hottest_link']} busy {row['hottest_share']:.1%}, {row['hottest_alike']} alike")
    show(probe_report.heatmap_name(row["case"]))

# %% [markdown]
# ## Findings
#
# Each sentence is computed from the tables above.

# %%
found = probe_report.findings(rows)
probe_report.write_findings(found, rows, folder)
Markdown("\n".join(f"- {sentence}" for sentence in found))
