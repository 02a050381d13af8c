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
# # Milestone: the design space of two workloads
#
# For decoding with Llama-3 70B at a context of 32 K, and for the layers of GPT-2: how much speed do the mesh of cubes,
# UCIe, HBM and the links between SIPs gain, and at what cost?
#
# - **Decode**: one token of one user passes through a layer of Llama-3 70B. The keys and values of the context are
#   distributed over the PEs of each SIP, and the heads and weights over the SIPs (tensor parallelism). The layer
#   consists of attention, four matrix products and two all-reduces, executed sequentially. Each product reads its input
#   from one PE's memory; gathering its output is not included.
# - **GPT-2**: the matrix products of its published layer list run sequentially on one SIP, each in its best placement.
#
# Times are simulated, flit by flit. Area and energy are proxies from the machine file (`docs/model.md`, M1.5), intended
# only for ranking machines.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
sips: int = 2  # SIPs of the machine
context: int = 256  # tokens whose keys and values are stored
hidden: int = 512  # elements of the hidden state
ffn: int = 1024  # elements of the feed-forward network
gpt2: str = "gpt2 QKTV"  # layer list, and words that the names of its layers contain
placements: list = ["2-D"]  # the fastest of these counts
meshes: list = [[1, 1], [2, 1]]  # w and h of the cubes of a SIP
ucie_gbs: list = [64, 128]  # bandwidth of a UCIe connection
hbm_scale: list = [1, 2]  # bandwidth of HBM, as a factor, for decode
gpt2_hbm_scale: list = [1, 2]  # the same for GPT-2
topologies: list = ["ring_1d", "fully_connected"]  # of the SIPs, for decode
factors: list = ["UCIe bandwidth", "router latency"]  # changed one at a time; all if none is named
change: float = 0.2  # fraction by which each is changed
ties: int = 2  # further orders of simultaneous arrivals to run the machine with
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import DesignSpaceStudy

machine = kb.load(topology, [*overrides, f"system.sips.count={sips}"])
machine

# %%
report = DesignSpaceStudy().report(
    machine,
    folder=Path(output or mkdtemp()),
    workers=workers,
    rerender=rerender,
    context=context,
    hidden=hidden,
    ffn=ffn,
    gpt2=gpt2,
    placements=placements,
    meshes=meshes,
    ucie_gbs=ucie_gbs,
    hbm_scale=hbm_scale,
    gpt2_hbm_scale=gpt2_hbm_scale,
    topologies=topologies,
    factors=factors,
    change=change,
    ties=ties,
)
tables = report.study.tables(report.rows)
report

# %% [markdown]
# ## Decode: which machines are worth their silicon
#
# No other machine of the grid is both smaller and faster than these.

# %%
report.figure("decode_front")

# %%
tables["Decode: machines worth their silicon"]

# %% [markdown]
# ## Decode: what each step buys
#
# Each row is a step along one axis with the others fixed: the time saved (mean, minimum and maximum over all settings
# of the others), and the silicon area that it costs.

# %%
tables["Decode: what each step buys"]

# %% [markdown]
# Cube mesh and UCIe bandwidth, with the best setting of the other axes for each combination:

# %%
report.figure("decode_map")

# %% [markdown]
# ## Why
#
# The resources that take the most time on the critical path of each part, on machines that differ only in their cubes.

# %%
tables["Decode: why"]

# %% [markdown]
# ## Decode: what to change first
#
# One factor is changed at a time, starting from the machine above.

# %%
report.figure("decode_factors")

# %% [markdown]
# ## GPT-2: which machines are worth their silicon

# %%
report.figure("gpt2_front")

# %%
tables["GPT-2: what each step buys"]

# %%
report.figure("gpt2_map")

# %%
tables["GPT-2: why"]

# %% [markdown]
# ## GPT-2: what to change first

# %%
report.figure("gpt2_factors")
