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
# # Milestone: GEMM on one PE
#
# What limits a matrix product on one processing element, and how far from the machine's own rates does it run?
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
mode: str = "auto"  # of the engine
timeline: list = [64, 64, 64]  # the product whose tiles are drawn
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

from IPython.display import Image, Markdown, display

import kernbench as kb
from kernbench.studies import gemm, gemm_report

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
        mode=mode,
        workers=workers,
        folder=folder if output else None,
    )
    gemm.write(rows, machine, folder)
figures = gemm_report.draw(rows, rows[0]["machine"], folder)
print(f"{len(rows)} runs; {len({row['certificate'] for row in rows})} kind of certificate:")
print("\n".join(sorted({row["certificate"] for row in rows})))

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
