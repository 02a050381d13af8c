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
# # Milestone: the design space of the products of GPT-2
#
# How much speed do the mesh of cubes, UCIe and HBM gain, and at what cost?
#
# The matrix products of the published layer list of GPT-2 run sequentially on one SIP, each in its best placement.
# Times are simulated, flit by flit. Area and energy are proxies from the machine file (`docs/model.md`, M1.5), intended
# only for ranking machines. The milestone [serving](serving.ipynb) asks the same for users of a served model.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
layer_list: str = "gpt2 QKTV"  # layer list, and words that the names of its layers contain
placements: list = ["2-D"]  # the fastest of these counts
meshes: list = [[1, 1], [2, 1]]  # w and h of the cubes of a SIP
ucie_gbs: list = [64, 128]  # bandwidth of a UCIe connection
hbm_scale: list = [1, 2]  # bandwidth of HBM, as a factor
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

machine = kb.load(topology, [*overrides, "system.sips.count=1"])
machine

# %%
report = DesignSpaceStudy().report(
    machine,
    folder=Path(output or mkdtemp()),
    workers=workers,
    rerender=rerender,
    layer_list=layer_list,
    placements=placements,
    meshes=meshes,
    ucie_gbs=ucie_gbs,
    hbm_scale=hbm_scale,
    factors=factors,
    change=change,
    ties=ties,
)
tables = report.study.tables(report.rows)
report

# %% [markdown]
# ## Which machines are worth their silicon
#
# No other machine of the grid is both smaller and faster than these.

# %%
report.figure("design_space_front")

# %%
tables["Machines worth their silicon"]

# %% [markdown]
# ## What each step buys
#
# Each row is a step along one axis with the others fixed: the time saved (mean, minimum and maximum over all settings
# of the others), and the silicon area that it costs.

# %%
tables["What each step buys"]

# %% [markdown]
# Cube mesh and UCIe bandwidth, with the best setting of the other axes for each combination:

# %%
report.figure("design_space_map")

# %% [markdown]
# ## Why
#
# The resources that take the most time on the critical path of each product, on machines that differ only in their
# cubes.

# %%
tables["Why"]

# %% [markdown]
# ## What to change first
#
# One factor is changed at a time, starting from the machine above.

# %%
report.figure("design_space_factors")
