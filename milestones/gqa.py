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
# # Milestone: attention of Llama-3 70B over PEs, cubes and SIPs
#
# 64 query heads share 8 key/value heads of 128 elements. What limits the attention of one layer, for a whole prompt
# (prefill) and for one token (decode), when its keys and values are distributed over the PEs of a SIP? And what do the
# PEs have to communicate?
#
# Every key and value is stored once, in the HBM slice of one PE. The PEs that share the tokens of a kv head are its
# *ranks*.
#
# - **Prefill**: each rank keeps its queries; tiles of K and V travel around a ring (or along an open chain), and every
#   rank folds each tile that it receives into its running softmax (m, l, o).
# - **Decode**: each rank folds its own tokens; an all-reduce whose operator is the log-sum-exp merge combines the
#   partial results (m, l, o).
#
# The query heads of a kv head form one operand of the matrix engine. The makespan runs from the time the launch leaves
# the host to its last completion, and includes all communication.

# %% tags=["parameters"]
topology: str = "preset:default"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
contexts: list = [256, 512]  # tokens, for one decode step of one sequence
batches: list = [[256, 4], [131072, 64]]  # tokens and sequences, for decode
scaling: list = [[1, 1, 0], [2, 1, 0], [2, 2, 1]]  # SIPs, cubes of each, whether ranks of a kv head are on all SIPs
merges: list = ["ring_allreduce_tcm", "recursive_doubling_allreduce"]  # algorithms that merge a decode step's parts
query_heads: list = [[1, 4], [1, 8]]  # SIPs and query heads of an item
prompts: list = [[64, "contiguous", True], [64, "zigzag", True], [64, "zigzag", False]]  # tokens, order, ring
chunks: list = [8, 32]  # query tokens that see the whole context, round a ring and merged
halvings: list = [["decode", 512], ["prefill", 64]]  # cases whose limits are found by halving parts of the machine
kernel_bytes: list = []  # bytes that each PE of a cube reads in short kernels, launched one by one and as a graph
context: int = 512  # tokens, where they are not varied
batch: int = 1  # sequences, where they are not varied
cubes: int = 2  # cubes of a SIP
dtype: str = "f16"  # of q, k, v and the result
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import GqaStudy, gqa

machine = kb.load(topology, overrides)
folder = Path(output or mkdtemp())
machine

# %%
report = GqaStudy().report(
    machine,
    folder=folder,
    workers=workers,
    rerender=rerender,
    contexts=contexts,
    batches=batches,
    scaling=scaling,
    merges=merges,
    query_heads=query_heads,
    prompts=prompts,
    chunks=chunks,
    halvings=halvings,
    kernel_bytes=kernel_bytes,
    context=context,
    batch=batch,
    cubes=cubes,
    dtype=dtype,
)
gqa.write_panels(report.rows, folder)
report

# %% [markdown]
# ## Is it right?
#
# Four panels at validation scale: 8 ranks on the PEs of a cube, or 4 ranks, each on one PE of one of 4 cubes. Results
# are compared with numpy in f64. The table and `sweep.json` list the number of commands of all programs.

# %%
tables = report.study.tables(report.rows)
tables["Commands of all programs, values compared with numpy"]

# %% [markdown]
# ## What limits it
#
# A limit is tested by halving it: the same point runs again with one part of the machine at half speed. If a part alone
# determines the time, the time doubles; if it is hidden behind another part, the time does not change.

# %%
report.figure("gqa_halving")

# %% [markdown]
# ## Where the time goes
#
# The figure shows the critical path, which is the chain of causes from the last completion back to the launch, and next
# to it how busy each engine is. A busy engine that is not on the path is hidden behind another.

# %%
report.figure("gqa_stage_breakdown")

# %%
report.figure("gqa_roofline")

# %% [markdown]
# ## One token
#
# The bound is the longest of the times to read the keys and values at the full HBM bandwidth, and to compute with all
# engines. How long a whole step of the model takes is in the milestone [serving](serving.ipynb).

# %%
tables["Attention of one token of each sequence"]

# %%
report.figure("gqa_latency_by_context")

# %% [markdown]
# ## Hidden and exposed communication

# %%
report.figure("gqa_overlap")

# %% [markdown]
# ## More ranks

# %%
report.figure("gqa_scaling")

# %% [markdown]
# ## Which collective merges the parts

# %%
report.figure("gqa_merges")

# %% [markdown]
# ## Ring against merge
#
# A chunk of a prompt can use either method: keep the queries and let K and V travel, or give every rank all queries of
# the chunk and merge partial results. The bytes of the former grow with the context, those of the latter with the
# chunk.

# %%
report.figure("gqa_ring_against_merge")

# %% [markdown]
# ## Query heads of an item
#
# A full group of 8 query heads shares each key and value, and its tokens are distributed over more PEs. Smaller groups
# stay in one cube, but each reads its own copy of K and V.

# %%
report.figure("gqa_query_heads")
