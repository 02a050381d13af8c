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
# (prefill) and for one token (decode), when its keys and values are spread over the PEs of a SIP? And what do the PEs
# have to tell each other?
#
# Every key and value is stored once, in the HBM slice of one PE. The PEs that share the tokens of a kv head are its
# *ranks*.
#
# - **Prefill**: each rank keeps its queries; tiles of K and V travel round a ring (or along an open chain), and every
#   rank folds what comes by into its running softmax (m, l, o).
# - **Decode**: each rank folds its own tokens; the parts (m, l, o) are merged by an all-reduce whose operator is the
#   log-sum-exp merge.
#
# The query heads of a kv head are one operand of the matrix engine. The makespan runs from the launch leaving the host
# to its last completion; everything that travels is inside it.

# %% tags=["parameters"]
topology: str = "preset:default"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
contexts: list = [256, 512]  # tokens, for one decode step of one sequence
batches: list = [[256, 4], [131072, 64]]  # tokens and sequences, for decode
scaling: list = [[1, 1, 0], [2, 1, 0], [2, 2, 1]]  # SIPs, cubes of each, whether ranks of a kv head are on all SIPs
merges: list = ["ring_allreduce_tcm", "recursive_doubling_allreduce"]  # what merges the parts of a decode step
query_heads: list = [[1, 4], [1, 8]]  # SIPs and query heads of an item
prompts: list = [[64, "contiguous", True], [64, "zigzag", True], [64, "zigzag", False]]  # tokens, order, ring
chunks: list = [8, 32]  # query tokens that see the whole context, round a ring and merged
linear: list = [1]  # sequences of a decode step whose linear layers run
products: list = ["o"]  # which of them: all five take half a minute for one sequence, three minutes for 64
halvings: list = [["decode", 512], ["prefill", 64]]  # whose limits are found by halving them
context: int = 512  # tokens, where they are not varied
batch: int = 1  # sequences, where they are not varied
cubes: int = 2  # of a SIP
dtype: str = "f16"  # of q, k, v and the result
workers: int = 1  # processes
rerender: bool = False  # draw again from results that are there
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
    linear=linear,
    products=products,
    halvings=halvings,
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
# Four panels at validation scale: 8 ranks on the PEs of a cube, or 4 on a PE of each of 4 cubes. Results are compared
# with numpy in f64; the commands of all programs are counted, here and in `sweep.json`.

# %%
tables = report.study.tables(report.rows)
tables["Commands of all programs, values compared with numpy"]

# %% [markdown]
# ## What limits it
#
# A limit is tested by halving it: the machine runs again with one part at half its speed. What sets the time alone
# doubles it; what is hidden behind something else does not matter.

# %%
report.figure("gqa_halving")

# %% [markdown]
# ## Where the time goes
#
# First the critical path: the chain of causes from the last completion back to the launch. Next to it, how busy each
# engine is: a busy engine that is not on the path is hidden behind another.

# %%
report.figure("gqa_stage_breakdown")

# %%
report.figure("gqa_roofline")

# %% [markdown]
# ## Tokens per second of decode
#
# One sequence's next token needs the attention of 80 layers. The bound reads keys and values at the full bandwidth of
# HBM; *with weights* adds the weights of the linear layers. Where all `products` are simulated, over the whole SIP as
# in the study of layers, the table has tokens per second of whole steps.

# %%
tables["Tokens per second of decode"]

# %%
report.figure("gqa_linear")

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
# A chunk of a prompt can do either: keep the queries and let K and V travel, or give every rank all queries of the
# chunk and merge parts. The bytes of the former follow the context, those of the latter the chunk.

# %%
report.figure("gqa_ring_against_merge")

# %% [markdown]
# ## Query heads of an item
#
# Whole groups of 8 query heads share each key and value; their tokens are then spread over more PEs. Smaller groups
# stay in one cube, but each reads its own copy of K and V.

# %%
report.figure("gqa_query_heads")
