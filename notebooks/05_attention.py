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
# # Attention: running softmax, ring and merge
#
# softmax(q kᵀ / √d) v needs every key for every query. When keys and values are distributed over many processing
# elements (PEs), there are two methods: tiles of K and V circulate, and each PE folds every tile that it receives into
# its result (prefill); or each PE folds its local tiles, and the partial results are merged (decode). Both are based on
# the running softmax.

# %%
import numpy as np
import pandas as pd

import kernbench as kb
from kernbench.ccl import run_kernel_in_mock
from kernbench.kernels.attention import attention, tiles
from kernbench.studies import attention as over_ranks
from kernbench.studies import gqa
from kernbench.triton_emu import run_kernel

rng = np.random.default_rng(0)


def exact(q, k, v):
    """Attention in f64: q [kv heads, tokens, group, d], k and v [kv heads, tokens, d]."""
    q, k, v = (z.astype(np.float64) for z in (q, k, v))
    s = np.einsum("hqgd,hkd->hqgk", q, k) / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("hqgk,hkd->hqgd", p / p.sum(-1, keepdims=True), v)


# %% [markdown]
# ## 1. The running softmax
#
# For the keys seen so far, a row keeps three values: m, the largest score; l, the sum of exp(s - m); and o, the sum of
# exp(s - m) v. If a new tile of keys raises m, then l and o are scaled down. The order of tiles does not matter, and
# the state does not grow with the number of keys, so the loop over tiles fits in TCM for any context length.
#
# The query heads of one kv head are rows of the same tile. This makes better use of the matrix engine's tiles in
# decode:

# %%
MODEL = {"kv_heads": 2, "group": 8, "d": 64}
q = rng.standard_normal((2, 24, 8, 64)).astype(np.float16)
k, v = rng.standard_normal((2, 2, 700, 64)).astype(np.float16)
out = np.zeros_like(q)
run_kernel(attention, q, k, v, out, 2, 8, 24, 700, 64, grid=(4, 1))
print(f"largest error against f64: {np.abs(out - exact(q, k, v)).max():.1e}")
print("query and kv tokens of a tile: prefill", tiles(8, 4096), " decode", tiles(8, 1))

# %% [markdown]
# ## 2. Parts and their merge
#
# Two partial results (m, l, o) for different keys merge into one: m is the maximum of the two, and l and o are scaled
# by exp(m_i - m) and added. This operation is associative and commutative and has an identity, so it can be the
# operator of *any* all-reduce, like `sum`. An algorithm only has to know that a row [m, l, o...] must not be split.

# %%
keys = rng.standard_normal((3, 1, 40, 16)).astype(np.float16)
values = rng.standard_normal((3, 1, 40, 16)).astype(np.float16)
query = np.repeat(rng.standard_normal((1, 1, 1, 4, 16)).astype(np.float16), 3, axis=0)
want = exact(query[0], *(x.transpose(1, 0, 2, 3).reshape(1, 120, 16) for x in (keys, values)))
for merge in ("ring_allreduce_tcm", "tree_allreduce", "recursive_doubling_allreduce"):
    setting = over_ranks.Setting("decode", 3, group=4, head_dim=16, tokens=40, merge=merge, pes=3)
    out, part = np.zeros_like(query), np.zeros((3, 1, 1, 4, 18), np.float32)
    parts = [] if merge.startswith("recursive") else [part]  # recursive doubling keeps them in TCM
    run_kernel_in_mock(over_ranks.standalone(setting), list(zip(query, keys, values, *parts, out, strict=True)))
    print(f"{merge:<30} largest error {np.abs(out - want[None]).max():.1e}, equal on all: {(out == out[0]).all()}")

# %% [markdown]
# ## 3. On the machine
#
# The next cell runs one decode step of Llama-3 70B's attention (64 query heads, 8 kv heads of 128 elements) with a
# context of 8,192 tokens, on the 8 PEs of a cube, and then on 2, 4 and 8 cubes. With 8 PEs, each PE has a whole kv
# head; with more PEs, the ranks of a kv head share its tokens and merge their partial results.

# %%
machine = kb.load("preset:default")
rows = []
for cubes in (1, 2, 4, 8):
    setting = gqa.Case("decode", 8192, cubes=cubes).setting(machine.config)
    found = over_ranks.measured(over_ranks.run(machine, setting))
    bound = over_ranks.work(machine.config, setting)
    rows.append(
        {
            "PEs": setting.programs, "ranks of a kv head": setting.ranks, "makespan [us]": found["makespan_ns"] / 1000,
            "HBM bound [us]": bound.hbm_ns / 1000, "exposed [us]": found["exposed_ns"] / 1000,
            "sent [KiB]": found["sent_bytes"] / 1024,
        }
    )  # fmt: skip
pd.DataFrame(rows).round(2)

# %% [markdown]
# ## 4. Ring or chain, and the order of tokens
#
# In prefill, every rank keeps its queries. A rank forwards each tile of K and V before it folds it, so that the
# transfer overlaps with the computation. Under a causal mask, the order of tokens determines how the work is
# distributed over the ranks.

# %%
rows = []
for order, ring in (("contiguous", True), ("striped", True), ("zigzag", True), ("zigzag", False)):
    setting = over_ranks.Setting("prefill", 8, tokens=64, group=8, causal=True, order=order, ring=ring)
    found = over_ranks.measured(over_ranks.run(machine, setting, data=True))
    rows.append(
        {
            "order": order, "way": "ring" if ring else "chain", "makespan [us]": found["makespan_ns"] / 1000,
            "messages": found["ipcq_send_count"], "hidden [us]": found["hidden_ns"] / 1000,
            "exposed [us]": found["exposed_ns"] / 1000, "neither [us]": found["idle_ns"] / 1000,
        }
    )  # fmt: skip
pd.DataFrame(rows).round(2)

# %% [markdown]
# Every run was compared with numpy in f64, within the error bound that the kernel's docstring states; a wrong value
# would have raised an error.
#
# ## 5. Where does the time go?

# %%
setting = over_ranks.Setting("prefill", 8, tokens=64, group=8, causal=True, order="zigzag")
result = over_ranks.run(machine, setting)
result

# %% [markdown]
# **Predict, then drag.** The picture shows this run on cube 0. Which change shortens it more: twice the clock of the
# vector engine, or twice the clock of the matrix engine? Zoom into a PE, select the engine, and drag its clock.

# %%
kb.picture(result, lambda changed: over_ranks.run(changed, setting))

# %%
pe = machine.config.cube.pe
for name, engine in (("pe_math", pe.pe_math), ("pe_gemm", pe.pe_gemm)):
    changed = over_ranks.run(machine.with_({f"cube.pe.{name}.clock_ghz": 2 * engine.clock_ghz}), setting)
    print(f"{name} at {2 * engine.clock_ghz:g} GHz: {changed.latency_ns / result.latency_ns:.3f} x the time")

# %% [markdown]
# The vector engine computes the softmax, in five passes over every score; one of them is an exponential. With twice its
# clock, the run takes 17 % less, not half: fetching tiles from TCM becomes the limit. The full
# study, with contexts up to 128 Ki tokens and a test that halves the speed of each part of the machine, is [the
# milestone](../milestones/gqa.ipynb); its report is in [milestones/output/gqa](../milestones/output/gqa/README.md).
