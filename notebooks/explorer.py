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
# Run the cell below: it shows a picture of the machine. Press **Run** to simulate the workload on it.
#
# - **Machine**: zoom with the wheel, from the system into a cube and a PE. Hover over a part for its load; click it for
#   its load over time and its fields.
# - **Clock** and **timeline**: play the run, or drag the clock. In the timeline, zoom with the wheel and drag;
#   *Critical path* marks the work that determined the time of the run, in the timeline and on the machine.
# - **Change** a workload, a value or a field: a short run restarts automatically; otherwise, the result is marked as
#   outdated until you press Run.
# - **Why** ranks the resources by time, and names the field of the machine file that sets the speed of each. **Runs**
#   compares the runs.
# - **Export** saves a run as one file: as a page with this picture, which works without a kernel, or as a result. To
#   open a result, drop its file on the picture, or read it in a cell with `kb.read`.
#
# To add your own function, `f(torch, *, size: int = 64)`, to the workloads, pass it to the explorer:
# `explore(None, f)`.
#
# Without a kernel, as in the documentation, the cell shows a still of the machine. To use the explorer, run `make lab`
# in a copy of the repository.

# %%
from kernbench.notebook import explore

explorer = explore("preset:default")
explorer
