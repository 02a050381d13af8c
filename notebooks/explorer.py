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
# Run the cell, press **Run**, and watch a simulated machine at work. Then change the machine or the work on the left:
# a short run starts again by itself. *Why* ranks what the time went to, and names the field of the machine file that
# each resource obeys; *Compare* sets one run against another. A function of your own, `f(torch, *, size: int = 64)`,
# stands in the list of works when it is given to `explore(None, f)`.

# %%
from kernbench.notebook import explore

explorer = explore("preset:default")
explorer
