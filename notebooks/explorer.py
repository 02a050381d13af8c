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
# Press **Run** and watch a simulated machine at work. Beside the picture stands where the time goes: drag a slider
# there, and the run repeats. (In the documentation this is a still; `make lab` opens the explorer itself.)

# %%
# Run this cell (Shift+Enter), then press Run below it.
from kernbench.notebook import explore

explorer = explore("preset:default")
explorer

# %% [markdown]
# The picture zooms from the system into a PE, the clock replays the run, and the timeline shows what every PE did when.
# A click on a part of the machine shows its load and its fields. *Runs* puts all results side by side. *Export* saves a
# run as one file: a page with this picture, or a result, which opens when it is dropped on the picture. To add your
# own function, `f(torch, *, size: int = 64)`, to the list of workloads, pass it to the explorer: `explore(None, f)`.
