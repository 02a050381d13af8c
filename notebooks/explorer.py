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
# each resource obeys.

# %%
from kernbench.notebook import explore

explorer = explore("preset:default")
explorer
