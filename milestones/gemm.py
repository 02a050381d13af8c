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
# What limits a matrix product on one processing element (PE), and how close does it come to the machine's rates? How
# much of that remains when the layers of real networks are distributed over all PEs of a SIP?
#
# ## One PE
#
# The operands A (M x K) and B (K x N) are in the HBM slice of PE 0, and the product C is written back there; all have
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
layer_cubes: list = [2, 1]  # w and h of the SIP's cube mesh for the layers; empty: the machine's
placements: list = ["rows", "columns", "2-D", "split-K"]  # where A, B and C of a layer are
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
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
# The composite's window ends with the acknowledgement of its last write; the PE's window includes everything that the
# PE did, including loads. *Useful* counts only the requested multiplications; *issued* also counts the padding of
# ragged tiles.

# %%
one_pe.study.tables(one_pe.rows)["Operands packed"]

# %% [markdown]
# ## How much of the matrix engine is used
#
# The *ideal* follows from the machine file alone: every tile takes as long as its slowest stage, reads and write-back
# share the HBM slice, and only the first tile's stages and the last write are exposed.

# %%
one_pe.figure("gemm_mac_utilization_theoretical_vs_measured")

# %% [markdown]
# ## Where the time goes
#
# The first figure shows the critical path: what the end of the run waited for. The second shows how busy each engine
# was; an engine can be busy all the time without delaying anything.

# %%
one_pe.figure("gemm_stage_breakdown")

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
# C[M, N] = A[M, K] B[K, N] is distributed over all PEs of SIP 0. The weights B are stored once, split by columns over
# the PEs; the inputs A are stored once, split by rows over the PEs. Only split-K stores both by parts of K. Four
# placements are compared; they differ in what PEs read from each other:
#
# | placement | C | a PE reads from the memory of other PEs | how |
# |---|---|---|---|
# | rows | rows over PEs | all of B | shard by shard into TCM, beginning with its own |
# | columns | columns over PEs | all of A | in blocks of 32 rows into TCM; PEs begin with different blocks |
# | 2-D | columns over cubes, rows over PEs | its rows of A, and the shards of B of its cube | like rows, in its cube |
# | split-K | elements over PEs | its share of partial sums | two more launches: in each cube, then over cubes |
#
# Operands that are larger than a third of TCM's operand space are streamed from their location, tile by tile. C is not
# gathered: it stays in the memory of the PE that computed it, as the input of the next layer would. In *rows* and
# *2-D*, C is stored there in blocks, one matrix for the columns of each shard of B, because a composite writes a whole
# matrix. The makespan runs from the time the first launch leaves the host until the last completion returns, so it
# includes all of this traffic.
#
# For a layer under tensor parallelism (tp), only the part of one SIP is simulated; the all-reduce between SIPs is not
# included.

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
