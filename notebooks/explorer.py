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
# Press **Run** and watch a simulated machine at work. The picture zooms from the system into a PE, the clock replays
# the run, and the timeline shows what every PE did when. Then drag a slider or choose another workload: a short run
# repeats by itself, and *Runs* puts all results side by side. A click on a part of the machine shows its load and its
# fields; *Why* names the field that limits the run. *Export* saves a run as one file: a page with this picture, or a
# result, which opens when it is dropped on the picture. To add your own function, `f(torch, *, size: int = 64)`, to
# the list of workloads, pass it to the explorer: `explore(None, f)`.
#
# In the documentation, the picture is a still; `make lab` opens the explorer itself.

# %%
# Run this cell (Shift+Enter), then press Run below it.
from kernbench.notebook import explore

explorer = explore("preset:default")
explorer
