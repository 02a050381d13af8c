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
# # Tensor parallelism: from one linear layer to a Llama block
#
# *Tensor parallelism* distributes a layer that is too large or too slow for one device over several devices. The terms
# are Megatron-LM's (groups, column- and row-parallel layers), and the collectives are torch's. Everything runs on the
# simulated machine: values are compared with numpy, and times show the cost of communication between ranks.
#
# A rank drives one SIP. Ranks are programs on a common clock, started by `torch.multiprocessing.spawn`.

# %%
import numpy as np
import pandas as pd

import kernbench as kb
from kernbench import dtensor, tp
from kernbench.analysis.breakdown import overlap
from kernbench.tp.llama import LlamaBlock, LlamaConfig, llama_block

rng = np.random.default_rng(0)


def machine(sips):
    """SIPs of one cube with 8 PEs, joined in a ring."""
    small = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1, "system.sips.count": sips}
    return kb.load("preset:default", small)


# %% [markdown]
# ## 1. One linear layer, on all PEs of one device
#
# y = x wᵀ + b. The shape of the weight is (outputs, inputs), as in torch. In memory it is transposed and split by
# columns over all PEs of the device, so each PE streams its part from its own HBM slice. The argument `dp` selects
# another placement: in the second case, one PE. The first product then moves the weight to all PEs, and later ones read
# it there. x is on one PE, and may be moved as well.

# %%
x = rng.standard_normal((16, 1, 512)).astype(np.float16)
one_pe = kb.DPPolicy(num_cubes=1, num_pes=1)

times = []
for name, place in (("8 PEs", {}), ("1 PE", {"dp": one_pe})):
    with kb.session(machine(1), data=True) as torch:
        layer = tp.ColumnParallelLinear(512, 1024, torch=torch, **place)
        y = layer(torch.tensor(x, device="ahbm"))
        values = y.numpy()
    *moves, product = [(launch.end_ps - launch.start_ps) / 1e6 for launch in torch.result.launches]
    times.append({"weight on": name, "shape": values.shape, "moves [us]": sum(moves), "product [us]": product})
pd.DataFrame(times).round(2)

# %% [markdown]
# ## 2. Groups of ranks
#
# `parallel_state` divides the world into groups: ranks that share a layer (tensor) or a sequence (context), or that
# replicate the whole model (data). The order string determines which groups have adjacent ranks: the first axis varies
# fastest.

# %%
from kernbench.tp import parallel_state as ps
from kernbench.tp.parallel_state import rank_groups

sizes = {"tp": 2, "cp": 1, "dp": 4}
pd.DataFrame(
    {
        order: [rank_groups(sizes, axis, order) for axis in ("tp", "dp")]
        for order in ("tp-cp-ep-dp-pp", "dp-cp-ep-tp-pp")
    },
    index=["tensor groups", "data groups"],
)

# %% [markdown]
# ## 3. Two layers, one all-reduce
#
# A column-parallel layer computes some of the outputs on each rank, without communication. A row-parallel layer takes
# them as its inputs, and each rank computes a *partial sum* of the result; one all-reduce gives every rank the total.
# As in Megatron, `forward` returns the output, and the bias if adding it was skipped.

# %%
HIDDEN, FFN, TOKENS = 256, 1024, 32
w1, w2 = (rng.standard_normal(shape).astype(np.float32) / 16 for shape in ((FFN, HIDDEN), (HIDDEN, FFN)))
x = rng.standard_normal((TOKENS, 1, HIDDEN)).astype(np.float32)


# %%
def on_ranks(ranks, program, on=None):
    """Run program(torch, rank) on ranks that have their groups; return what each returns, and the result."""
    found = {}

    def rank_program(rank, torch):
        torch.distributed.init_process_group("ahbm")
        ps.initialize_model_parallel(tensor_model_parallel_size=ranks, torch=torch)
        found[rank] = program(torch, rank)
        ps.destroy_model_parallel()

    with kb.session(on or machine(ranks), data=True) as torch:
        torch.multiprocessing.spawn(rank_program, args=(torch,), nprocs=ranks)
    return [found[rank] for rank in range(ranks)], torch.result


# %%
def mlp(torch, rank):
    config = tp.ModelParallelConfig(params_dtype=torch.float32)
    first = tp.ColumnParallelLinear(HIDDEN, FFN, config=config, bias=False)
    second = tp.RowParallelLinear(FFN, HIDDEN, config=config, bias=False)
    first.load(w1)
    second.load(w2)
    start = torch.tensor(x, device="ahbm")
    torch.ahbm.synchronize()
    began = torch.engine.now_ns
    hidden, _ = first(start)
    out, _ = second(hidden)
    torch.ahbm.synchronize()
    return out.numpy(), (began, torch.engine.now_ns)


# %%
def split(results, result):
    """The time from the first rank's start to the last one's end, and how messages and work overlap in it."""
    began, ended = min(b for _, (b, _) in results), max(e for _, (_, e) in results)
    parts = overlap(result.records, (round(began * 1000), round(ended * 1000)))
    return {
        "total [us]": (ended - began) / 1000, "work": parts.work_ns / 1000, "hidden messages": parts.hidden_ns / 1000,
        "exposed messages": parts.exposed_ns / 1000, "neither": parts.idle_ns / 1000,
    }  # fmt: skip


# %%
want = (x @ w1.T) @ w2.T
rows = []
for ranks in (1, 2, 4, 8):
    results, result = on_ranks(ranks, mlp)
    outputs = [out for out, _ in results]
    rows.append(
        {
            "ranks": ranks, "error below 1e-4": bool(np.abs(np.stack(outputs) - want).max() < 1e-4),
            "equal on all": all(np.array_equal(out, outputs[0]) for out in outputs), **split(results, result),
        }
    )  # fmt: skip
pd.DataFrame(rows).round(2)

# %% [markdown]
# *Neither* contains the way of the launches from the host to the PEs and back, and waits for slower ranks.
#
# ## 4. A Llama block
#
# The block consists of RMSNorm, a fused projection to q, k and v, rotary embedding, causal attention with grouped query
# heads, the output projection, and SwiGLU. The kv heads and feed-forward columns are distributed over the ranks, which
# requires two all-reduces.

# %%
SIZES = LlamaConfig(hidden=256, ffn=512, heads=16, kv_heads=8, head_dim=16)
WEIGHTS = {
    name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32) for name, shape in SIZES.shapes().items()
}


# %%
def llama(torch, rank):
    block = LlamaBlock(SIZES, tp.ModelParallelConfig(params_dtype=torch.float32))
    block.load(WEIGHTS)
    start = torch.tensor(x[:16], device="ahbm")
    torch.ahbm.synchronize()
    began = torch.engine.now_ns
    out = block(start)
    torch.ahbm.synchronize()
    return out.numpy(), (began, torch.engine.now_ns)


# %%
want = llama_block(x[:16], WEIGHTS, SIZES)
rows = []
for ranks in (1, 2, 4, 8):
    results, result = on_ranks(ranks, llama)
    outputs = [out for out, _ in results]
    rows.append(
        {
            "ranks": ranks, "within 1e-3": bool(np.abs(np.stack(outputs) - want).max() < 1e-3),
            "equal on all": all(np.array_equal(out, outputs[0]) for out in outputs), **split(results, result),
        }
    )  # fmt: skip
pd.DataFrame(rows).round(2)

# %% [markdown]
# The launches of the last run, with 8 ranks:

# %%
names = pd.Series([launch.name for launch in result.launches])
names.groupby(names).count().rename("launches on 8 SIPs").to_frame()

# %% [markdown]
# **Predict, then drag.** The picture shows the run with 8 ranks. The table says how much of its time is *neither* work
# nor messages. How much longer does the whole run take if the latency of the links between SIPs doubles? And if the
# IO CPU, which starts every launch, takes twice as long? Then select a link between SIPs, or the IO CPU of a SIP, and
# drag its field.

# %%
kb.picture(result, lambda changed: on_ranks(8, llama, changed)[1])

# %%
eight = machine(8)
system, io = eight.config.system, eight.config.sip.io
for path, value in (
    ("system.sip_link.latency_ns", 2 * system.sip_link.latency_ns),
    ("sip.io.io_cpu.service_ns", 2 * io.io_cpu.service_ns),
):
    _, changed = on_ranks(8, llama, eight.with_({path: value}))
    print(f"{path} = {value:g}: {changed.latency_ns / result.latency_ns:.3f} x the time")

# %% [markdown]
# The critical path of the run tells why: the share of the host (its copies of the weights, and its launches), and of
# the resource that takes most on the device.

# %%
why = result.why()
total = sum(reason.ns for reason in why)
longest = next(reason for reason in why if not reason.host)
print(f"host: {sum(reason.ns for reason in why if reason.host) / total:.0%} of the run")
print(f"device: {longest.what}, {longest.ns / total:.0%} of the run")

# %% [markdown]
# ## 5. The same with DTensor
#
# With torch's `DTensor`, a program states where a tensor is stored instead of which rank calls which collective: one
# placement for each axis of a mesh of ranks. The product of `Shard(1)` and `Shard(0)` is a `Partial`, a sum that is
# still pending; redistributing it to another placement computes the sum. The collective of each redistribution is a
# launch, and appears in the result.


# %%
def moves(rank, torch):
    mesh = dtensor.init_device_mesh("ahbm", (2,), torch=torch)
    a = dtensor.distribute_tensor(torch.from_numpy(x[:, 0]), mesh, [dtensor.Shard(1)])
    b = dtensor.distribute_tensor(torch.from_numpy(np.ascontiguousarray(w1.T)), mesh, [dtensor.Shard(0)])
    c = a @ b
    whole = c.redistribute(placements=[dtensor.Shard(1)]).full_tensor().numpy()
    if rank == 0:
        print(a.placements, "@", b.placements, "=", c.placements)
        print("as numpy:", np.allclose(whole, x[:, 0] @ w1.T, atol=1e-3))


with kb.session(machine(2), data=True) as torch:
    torch.multiprocessing.spawn(moves, args=(torch,), nprocs=2)
print(*dict.fromkeys(launch.name for launch in torch.result.launches), sep="\n")
