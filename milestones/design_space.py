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
# For decoding with Llama-3 70B at a context of 32 K, and for the layers of GPT-2: what do the mesh of cubes, UCIe, HBM
# and the links between SIPs buy, and what does it cost?
#
# - **Decode**: one token of one user through a layer of Llama-3 70B, with the keys and values of the context spread
#   over the PEs of each SIP, and the heads and weights over the SIPs (tensor parallelism). Attention, four products and
#   two all-reduces, one after the other. Each product reads its input from one PE's memory; what gathers its output is
#   left out.
# - **GPT-2**: the products of its published layer list over one SIP, one after the other, each in its best placement.
#
# Times are simulated, flit by flit. Hardware decides the order of simultaneous arrivals in its own way, so the machine
# is run with several orders: a change that moves the time by no more than they do is called no effect. Area and energy
# are proxies from the machine file (`docs/model.md`, M1.5), and rank machines.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
sips: int = 2  # SIPs of the machine
context: int = 256  # tokens whose keys and values are kept
hidden: int = 512  # elements of the hidden state
ffn: int = 1024  # elements of the feed-forward network
gpt2: str = "gpt2 QKTV"  # layer list, and words that its layers' names have
placements: list = ["2-D"]  # of these the fastest counts
meshes: list = [[1, 1], [2, 1]]  # w and h of the cubes of a SIP
ucie_gbs: list = [64, 128]  # bandwidth of a UCIe connection
hbm_scale: list = [1, 2]  # bandwidth of HBM, as a factor, for decode
gpt2_hbm_scale: list = [1, 2]  # the same for GPT-2
topologies: list = ["ring_1d", "fully_connected"]  # of the SIPs, for decode
factors: list = ["UCIe bandwidth", "router latency"]  # changed one at a time; all if none is named
change: float = 0.2  # share by which each is changed
ties: int = 2  # other orders of simultaneous arrivals, to tell effects from chance
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

from IPython.display import Image, Markdown

import kernbench as kb
from kernbench.studies import design_space, design_space_report

machine = kb.load(topology, [*overrides, f"system.sips.count={sips}"])
folder = Path(output or mkdtemp())
machine

# %%
if rerender:
    rows = design_space.read(folder)["rows"]
else:
    rows = design_space.sweep(
        machine,
        meshes=meshes,
        ucie_gbs=ucie_gbs,
        hbm_scale={"decode": hbm_scale, "gpt2": gpt2_hbm_scale},
        topologies=topologies,
        parameters={
            "decode": {"context": context, "hidden": hidden, "ffn": ffn},
            "gpt2": {"layer_list": gpt2, "placements": placements},
        },
        factors=factors,
        change=change,
        ties=ties,
        workers=workers,
        folder=folder if output else None,
    )
    design_space.write(rows, folder)
figures = design_space_report.draw(rows, folder, change)
ok = [row for row in rows if row["status"] == "ok"]
print(f"{len(rows)} points, {len(ok)} with a result")

# %% [markdown]
# ## Decode: what each step buys
#
# Each step along one axis, the others held: the time saved (over all settings of the others the mean, the least and the
# most), and the silicon that it takes.

# %%
design_space_report.bought(rows, "decode")

# %% [markdown]
# ## Decode: which machines are worth their silicon
#
# No other machine of the grid is smaller and faster than these, by more than chance.

# %%
Image(folder / "decode_front.png")

# %%
design_space_report.front(rows, "decode")

# %% [markdown]
# Cubes against UCIe, each with the best of the other axes:

# %%
Image(folder / "decode_map.png")

# %% [markdown]
# ## Decode: what to change first
#
# One factor at a time, around the machine above. The band is what is within chance.

# %%
Image(folder / "decode_factors.png")

# %%
design_space_report.first(rows, "decode")

# %% [markdown]
# ## GPT-2: what each step buys

# %%
design_space_report.bought(rows, "gpt2")

# %% [markdown]
# ## GPT-2: which machines are worth their silicon

# %%
Image(folder / "gpt2_front.png")

# %%
design_space_report.front(rows, "gpt2")

# %%
Image(folder / "gpt2_map.png")

# %% [markdown]
# ## GPT-2: what to change first

# %%
Image(folder / "gpt2_factors.png")

# %%
design_space_report.first(rows, "gpt2")

# %% [markdown]
# ## Findings
#
# Each sentence is computed from the tables above.

# %%
found = design_space_report.findings(rows)
design_space_report.write_findings(found, rows, folder)
Markdown("\n".join(f"- {sentence}" for sentence in found))
