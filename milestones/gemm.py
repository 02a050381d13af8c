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
# # Milestone: GEMM on one PE, and layers over a whole SIP
#
# What limits a matrix product on one processing element, and how far from the machine's own rates does it run? And
# what is left of that when the layers of real networks are spread over all PEs of a SIP?
#
# ## One PE
#
# The operands A (M x K) and B (K x N) lie in the HBM slice of PE 0, and the product C is written back there; both have
# type f16. Each product is one tiled command (a *composite*) in one of three stagings:
#
# - `ref_ref`: A and B are streamed from HBM, tile by tile;
# - `load_ref`: A is loaded into TCM first, B is streamed;
# - `load_load`: both are loaded first.
#
# Two layouts of the operands in HBM are compared: `packed` stores tile after tile, `strided` stores row after row.
# Every product is compared with numpy's.

# %% tags=["parameters"]
topology: str = "preset:default"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
shapes: list = [[16, 16, 16], [32, 128, 32], [64, 64, 64]]  # M, K, N of each product
variants: list = ["ref_ref", "load_ref", "load_load"]  # stagings
gathers: list = ["packed", "strided"]  # layouts of operands in HBM
dtype: str = "f16"  # of A, B and C
timeline: list = [64, 64, 64]  # the product whose tiles are drawn
layer_lists: list = ["vit-s L0", "vit-s L1", "deepbench 64x1216x1"]  # layers over the whole SIP
layer_cubes: list = [2, 1]  # w and h of the SIP for the layers; empty: the machine's
placements: list = ["rows", "columns", "2-D"]  # where A, B and C of a layer lie
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

from IPython.display import Image, Markdown, display

import kernbench as kb
from kernbench.studies import gemm, gemm_report, layers, layers_report
from kernbench.studies.layers_lists import select

machine = kb.load(topology, overrides)
folder = Path(output or mkdtemp())
machine

# %%
if rerender:
    rows = gemm.read(folder)["rows"]
else:
    rows = gemm.sweep(
        machine,
        shapes=shapes,
        variants=variants,
        gathers=gathers,
        dtype=dtype,
        workers=workers,
        folder=folder if output else None,
    )
    gemm.write(rows, machine, folder)
figures = gemm_report.draw(rows, rows[0]["machine"], folder)
print(f"{len(rows)} runs")

# %% [markdown]
# ## The numbers
#
# The composite's window ends with the acknowledgement of its last write; the PE's window holds everything that the PE
# did, loads included. *Useful* counts the products that were asked for, *issued* the padding of ragged tiles, too.

# %%
gemm_report.table(rows)

# %% [markdown]
# ## Where the time goes
#
# Exclusive time: each instant belongs to the first busy engine in the order matrix, vector, fetch, store, DMA in, DMA
# out, so that the bars sum to the PE's window. Busy time may overlap.

# %%
Image(folder / "gemm_stage_breakdown.png")

# %% [markdown]
# ## How much of the matrix engine is used

# %%
Image(folder / "gemm_mac_utilization_measured.png")

# %% [markdown]
# Against the ideal model, which knows the machine file and nothing else: every tile takes as long as its slowest stage,
# and only the first tile's stages and the last write show.

# %%
Image(folder / "gemm_mac_utilization_theoretical_vs_measured.png")

# %% [markdown]
# ## Packed against strided operands

# %%
if len(gathers) == 2:
    display(Image(folder / "gemm_packed_against_strided.png"))

# %% [markdown]
# ## One run, tile by tile

# %%
if not rerender:
    gemm_report.draw_timeline(machine, timeline, variants[0], folder)
Image(folder / "gemm_tile_timeline.png")

# %% [markdown]
# ## Findings
#
# Each sentence is computed from the table above.

# %%
found = gemm_report.findings(rows)
gemm_report.write_findings(found, rows, folder)
Markdown("\n".join(f"- {sentence}" for sentence in found))

# %% [markdown]
# ## Layers over a whole SIP
#
# C[M, N] = A[M, K] B[K, N], spread over all PEs of SIP 0. The weights B exist once, cut by columns over the PEs; the
# inputs A exist once, cut by rows over the PEs. K is never split, so nothing has to be summed between PEs. Compared is
# where C lies, and with it what has to travel:
#
# | placement | C | a PE reads from the memory of other PEs | how |
# |---|---|---|---|
# | rows | rows over PEs | all of B | shard after shard into TCM, beginning with its own |
# | columns | columns over PEs | all of A | a block of 32 rows after the other into TCM; PEs begin with different ones |
# | 2-D | columns over cubes, rows over PEs | its rows of A, and the shards of B of its cube | like rows, in its cube |
#
# Operands too large for a third of the operands' part of TCM are streamed from where they are, tile by tile. Nothing is
# gathered: C stays with the PE that computed it, as the input of the next layer would; in *rows* and *2-D* it lies
# there block by block, a matrix for the columns of each shard of B, since a composite writes a whole one. The makespan
# runs from the launch leaving the host to the last completion coming back, so that all of this traffic is inside it.
#
# A layer under tensor parallelism (tp) is the part of one SIP; the all-reduce between SIPs is not part of it.

# %%
w, h = layer_cubes or (machine.config.sip.cube_mesh.w, machine.config.sip.cube_mesh.h)
sip = machine.with_({"sip.cube_mesh.w": w, "sip.cube_mesh.h": h})
if rerender:
    spread = layers.read(folder)["rows"]
else:
    spread = layers.sweep(
        sip,
        select(layer_lists),
        placements=placements,
        dtype=dtype,
        workers=workers,
        folder=folder if output else None,
    )
    layers.write(spread, folder)
drawn = layers_report.draw(spread, sip, folder)
print(f"{sip.config.pes_per_sip} PEs; {len(spread)} points, {len(layers_report.simulated(spread))} simulated")
layers_report.table(spread)

# %% [markdown]
# ### Which placement

# %%
Image(folder / "layers_placements.png")

# %% [markdown]
# ### How much of the SIP is used

# %%
Image(folder / "layers_roofline.png")

# %%
Image(folder / "layers_utilization.png")

# %% [markdown]
# ### The hottest links
#
# Of each run, and on the machine's geometry for the layer with most work of those that ran in every placement.

# %%
Image(folder / "layers_hottest_links.png")

# %%
for path in drawn:
    if path.name.startswith("layers_links_"):
        display(Image(path))

# %% [markdown]
# ### Findings
#
# Each sentence is computed from the table.

# %%
said = layers_report.findings(spread)
layers_report.write_findings(said, spread, folder)
Markdown("\n".join(f"- {sentence}" for sentence in said))
