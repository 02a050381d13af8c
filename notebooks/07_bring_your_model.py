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
# # Bring your model: from `pip install` to "why is my attention slow"
#
# In ten minutes, you run an unmodified PyTorch model on a machine that does not exist, find its slowest module, learn
# why it is slow, change it, and see what a different machine would do. No GPU is needed, only PyTorch and Triton:
#
# ```sh
# python -m pip install "kernbench[torch]"
# ```

# %%
import torch
import triton
import triton.language as tl
from torch.nn.functional import gelu

import kernbench as kb

machine = kb.load("preset:small")
machine

# %% [markdown]
# ## A model
#
# A transformer block. Its attention caps the scores at 30 with a tanh before the softmax, as Gemma 2 does, to keep them
# from growing during training.


# %%
class Attention(torch.nn.Module):
    def __init__(self, width: int, heads: int, cap: float | None) -> None:
        super().__init__()
        self.heads, self.cap = heads, cap
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if self.cap is not None:
            scores = self.cap * torch.tanh(scores / self.cap)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, cap: float | None = 30.0, width: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.attention = Attention(width, heads, cap)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(gelu(self.up(self.norm2(x))))


# %% [markdown]
# ## Compile and call
#
# `kb.torch.compile` returns a model that is called like the original. PyTorch's compiler, Inductor, generates Triton
# kernels; these and the native kernels for matrix products run on the simulated machine. The outputs are real.

# %%
torch.manual_seed(0)
model, x = Block().half().eval(), torch.randn(1, 256, 256).half()
compiled = kb.torch.compile(model, machine)
with torch.no_grad():
    y, expected = compiled(x), model.float()(x.float())
model.half()
print(f"largest error, relative to the largest element: {(y - expected).abs().max() / expected.abs().max():.1e}")

# %%
result = compiled.result
result

# %% [markdown]
# The table has one row for each module: its time, the resource that takes most of it, the bytes that the PEs moved, and
# the achieved share of what matrix engines and memory allow at that number of FLOPs per byte. `attention` takes 39 % of
# the time, with 15 % of the FLOPs.
#
# ## Why is my attention slow?
#
# The module has four launches:

# %%
for launch in result.launches:
    if launch.module == "attention":
        print(f"{launch.ns:8,.1f} ns  {launch.nbytes:9,} B  {result.limit(launch):9}  {' '.join(launch.operators)}")

# %% [markdown]
# The longest one is the capped softmax, a Triton kernel of Inductor's: it reads and writes all 4 x 256 x 256 scores.
# `why` names the resources on its critical path, and the fields of the machine file that change them:

# %%
slowest = max((part for part in result.launches if part.module == "attention"), key=lambda part: part.ns)
result.why(slowest)

# %% [markdown]
# The vector engine is the limit: division, tanh, multiplication and softmax are passes over every score.
#
# ## Change the model
#
# Without the cap, Inductor recognizes the attention, and one native kernel computes it tile by tile: the scores never
# leave the memory of a PE. (`torch.nn.functional.scaled_dot_product_attention` has the same effect.)

# %%
plain = kb.torch.compile(Block(cap=None).half().eval(), machine)
with torch.no_grad():
    plain(x)
result.compare(plain.result)

# %% [markdown]
# ## Change the machine
#
# `kb.torch.program` makes the call of a model a program that runs on any machine. Its result answers what-if questions
# from the recorded run, without simulating again:

# %%
call = kb.torch.program(model, x)


def run(machine):
    return kb.run(call, machine).result


before = run(machine)
for change in ("cube.pe.pe_math.clock_ghz=2", "cube.pe.pe_gemm.clock_ghz=2", "cube.noc.link_bw_gbs=1024"):
    print(f"{change:32} {before.what_if(change).predicted_ns / before.latency_ns:6.1%} of the time, predicted")

# %% [markdown]
# **Predict, then drag.** The picture shows this run, in which the weights are placed first: press play, and watch the
# launches. How much time does a vector engine of 4 GHz save, and what is the limit then? Zoom into a PE, select its
# vector engine, and drag the clock.

# %%
kb.picture(before, run)

# %%
for clock in (1, 2, 4):
    changed = kb.torch.compile(model, machine.with_({"cube.pe.pe_math.clock_ghz": clock}))
    with torch.no_grad():
        changed(x)
    softmax = max((part for part in changed.result.launches if "tanh" in part.operators), key=lambda part: part.ns)
    limit = changed.result.why(softmax)[0]
    share = changed.result.latency_ns / result.latency_ns
    print(f"{clock} GHz: call {share:6.1%} of the time; softmax {softmax.ns:,.1f} ns, {limit.share:.0%} {limit.what}")

# %% [markdown]
# The softmax becomes almost three times as fast, and its limit is still the vector engine; the call takes 17 % less,
# because the other modules wait for memory and for launches. Twice the clock of the matrix engines changes almost
# nothing. Removing the cap saves more (21 %) than any vector engine would.
#
# ## A Triton kernel of your own
#
# Which size of block is best for a capped softmax on this machine? A `@triton.jit` kernel runs unmodified.


# %%
@triton.jit
def capped_softmax(scores, out, n, cap, COLUMNS: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    s = cap * tl.math.tanh(tl.load(scores + at, mask=row[:, None] < n) / cap)
    e = tl.exp(s - tl.max(s, axis=1)[:, None])
    tl.store(out + at, e / tl.sum(e, axis=1)[:, None], mask=row[:, None] < n)


scores, out = torch.randn(1024, 256), torch.empty(1024, 256)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["ROWS"]),)


for rows in (1, 4, 16):
    launch = kb.triton.program(capped_softmax, grid, scores, out, 1024, 30.0, COLUMNS=256, ROWS=rows)
    print(f"{rows:2} rows: {kb.run(launch, machine, data=True).result.latency_ns:10,.1f} ns")
print("as torch:", torch.allclose(out, (30 * torch.tanh(scores / 30)).softmax(-1), atol=1e-6))

# %% [markdown]
# ## Next
#
# - `kb.explore(call, launch)` opens the explorer with the model and the kernel as workloads: run them live, drag, and
#   compare runs.
# - [How to run PyTorch models](../docs/howto/pytorch.md): tensor parallelism, placement, models without weights.
# - [How to run Triton kernels](../docs/howto/triton.md): autotuning, placement, files of kernels without Triton
#   installed.
