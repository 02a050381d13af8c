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
# The operands A (M x K) and B (K x N) are in the HBM slice of PE 0, and the product C is written back there; both have
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
placements: list = ["rows", "columns", "2-D"]  # where A, B and C of a layer are
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import GemmStudy, LayersStudy

machine = kb.load(topology, overrides)
folder = Path(output or mkdtemp())
machine

# %%
one_pe = GemmStudy().report(
    machine,
    folder=folder,
    workers=workers,
    rerender=rerender,
    shapes=shapes,
    variants=variants,
    gathers=gathers,
    dtype=dtype,
    timeline=timeline,
)
one_pe

# %% [markdown]
# ## The numbers
#
# The composite's window ends with the acknowledgement of its last write; the PE's window holds everything that the PE
# did, loads included. *Useful* counts the products that were asked for, *issued* the padding of ragged tiles, too.

# %%
one_pe.study.tables(one_pe.rows)["Operands packed"]

# %% [markdown]
# ## How much of the matrix engine is used
#
# The *ideal* knows the machine file and nothing else: every tile takes as long as its slowest stage, reads and
# write-back share the HBM slice, and only the first tile's stages and the last write show.

# %%
one_pe.figure("gemm_utilization")

# %% [markdown]
# ## Where the time goes
#
# The critical path first: what the end of the run waited for. How busy each engine was comes second: an engine can be
# busy all the time without delaying anything.

# %%
one_pe.figure("gemm_critical_path")

# %%
one_pe.figure("gemm_busy")

# %% [markdown]
# ## Operands stored row after row

# %%
one_pe.figure("gemm_strided")

# %% [markdown]
# ## One run, tile by tile

# %%
one_pe.figure("gemm_tile_timeline")

# %% [markdown]
# ## Layers over a whole SIP
#
# C[M, N] = A[M, K] B[K, N], spread over all PEs of SIP 0. The weights B exist once, cut by columns over the PEs; the
# inputs A exist once, cut by rows over the PEs. K is never split, so nothing has to be summed between PEs. Three
# placements of C are compared, and with it what PEs read from each other:
#
# | placement | C | a PE reads from the memory of other PEs | how |
# |---|---|---|---|
# | rows | rows over PEs | all of B | shard after shard into TCM, beginning with its own |
# | columns | columns over PEs | all of A | a block of 32 rows after the other into TCM; PEs begin with different ones |
# | 2-D | columns over cubes, rows over PEs | its rows of A, and the shards of B of its cube | like rows, in its cube |
#
# Operands too large for a third of the operands' part of TCM are streamed from where they are, tile by tile. Nothing is
# gathered: C stays with the PE that computed it, as the input of the next layer would; in *rows* and *2-D* it is stored
# there block by block, a matrix for the columns of each shard of B, since a composite writes a whole one. The makespan
# runs from the launch leaving the host to the last completion coming back, so that all of this traffic is inside it.
#
# A layer under tensor parallelism (tp) is the part of one SIP; the all-reduce between SIPs is not part of it.

# %%
w, h = layer_cubes or (machine.config.sip.cube_mesh.w, machine.config.sip.cube_mesh.h)
whole_sip = LayersStudy().report(
    machine.with_({"sip.cube_mesh.w": w, "sip.cube_mesh.h": h}),
    folder=folder,
    workers=workers,
    rerender=rerender,
    layers=layer_lists,
    placements=placements,
    dtype=dtype,
)
whole_sip

# %%
whole_sip.study.tables(whole_sip.rows)["Fastest placement"]

# %% [markdown]
# ### Which placement

# %%
whole_sip.figure("layers_over_bound")

# %% [markdown]
# ### How much of the SIP is used

# %%
whole_sip.figure("layers_utilization")

# %%
whole_sip.figure("layers_roofline")

# %% [markdown]
# ### Links

# %%
whole_sip.figure("layers_link_kinds")

# %%
whole_sip.figure("layers_links")
