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
# # Explorer
#
# Run the cell, press **Run**, and watch a simulated machine at work. Then change the machine or the workload on the
# left: a short run restarts automatically. *Why* ranks the resources by time, and names the field of the machine file
# that sets the speed of each; *Compare* compares one run with another. To add your own function,
# `f(torch, *, size: int = 64)`, to the list of workloads, pass it to the explorer: `explore(None, f)`.

# %%
from kernbench.notebook import explore

explorer = explore("preset:default")
explorer
