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
# # Which communication of a training step is exposed?
#
# A training step computes and communicates. Communication that overlaps with compute costs nothing, the rest is
# *exposed*: the step's time beyond that of its compute alone. This notebook writes a step as a host program, as with
# `torch.distributed`, and measures what is exposed with data parallelism (gradients in buckets), with FSDP (weights
# gathered ahead), and in a pipeline of experts.

# %%
import pandas as pd

import kernbench as kb

# %matplotlib inline

# %% [markdown]
# ## A step
#
# Four linear layers on two SIPs. The forward pass is a product for each layer, the backward pass two: the gradient of
# the input, and that of the weights. Times of products do not depend on values, so none are computed.

# %%
LAYERS, TOKENS, HIDDEN, RANKS = 4, 128, 128, 2
PLACE = kb.DPPolicy(num_cubes=1, cube="row_wise", pe="row_wise")


def product(x, w, y, m, k, n, *, tl):
    columns = n // tl.num_programs(0)
    at = tl.program_id(0)
    a = tl.ref(x, shape=(m, k), dtype="f16")
    tl.composite("gemm", a, tl.ref(w + at * k * columns, shape=(k, columns), dtype="f16"), y + at * m * columns)


def tensors(torch, count, rows=HIDDEN):
    return [torch.empty(rows, HIDDEN, dtype=torch.float16, device="ahbm", dp=PLACE) for _ in range(count)]


# %% [markdown]
# `measure` runs a program on all ranks, and returns the run, the time of the step, and that of its products.


# %%
def measure(program, **options):
    machine = kb.load("preset:small", {"system.sips": {"count": RANKS, "topology": "ring_1d"}})

    def rank(_, torch):
        torch.distributed.init_process_group("ahbm")
        program(torch, **options)
        torch.ahbm.synchronize()

    with kb.session(machine, data=False) as torch:
        torch.multiprocessing.spawn(rank, (torch,), nprocs=RANKS)
    own = [launch for launch in torch.result.launches if launch.sip == 0]
    ns = max(launch.end_ps for launch in own) / 1000 - min(launch.start_ps for launch in own) / 1000
    products = sum(launch.end_ps - launch.start_ps for launch in own if "layer" in launch.name) / 1000
    return torch.result, {**options, "step [ns]": ns, "products [ns]": products}


# %% [markdown]
# ## Data parallelism: gradients in buckets
#
# Each rank has all weights and a part of the batch; gradients are summed by an all-reduce. Only the gradients of the
# last layers exist early in the backward pass. With buckets, an all-reduce starts as soon as all gradients of its
# bucket exist, and overlaps with the products of earlier layers.


# %%
def data_parallel(torch, bucket):
    weights, (x, y) = tensors(torch, LAYERS), tensors(torch, 2, TOKENS)
    buckets, works = tensors(torch, LAYERS // (bucket or 1), HIDDEN * (bucket or 1)), []
    for i in range(LAYERS):
        torch.launch(f"layer {i} forward", product, x, weights[i], y, TOKENS, HIDDEN, HIDDEN)
    for i in reversed(range(LAYERS)):
        gradients = buckets[i // (bucket or 1)]
        own = gradients[i % (bucket or 1) * HIDDEN :][:HIDDEN]
        torch.launch(f"layer {i} input", product, y, weights[i], x, TOKENS, HIDDEN, HIDDEN)
        torch.launch(f"layer {i} weights", product, x, y, own, HIDDEN, TOKENS, HIDDEN)
        if bucket and i % bucket == 0:
            works.append(torch.distributed.all_reduce(gradients, async_op=True))
    for work in works:
        work.wait()


# %%
runs = {bucket: measure(data_parallel, bucket=bucket) for bucket in (0, 4, 2, 1)}
compute = runs[0][1]["step [ns]"]
table = pd.DataFrame([row for _, row in runs.values()]).set_index("bucket")
table.assign(**{"exposed [ns]": table["step [ns]"] - compute}).round()

# %% [markdown]
# With one bucket of four layers the whole all-reduce is exposed. With a bucket for each layer only the last one is.
# The products take hardly longer: the all-reduce uses links between SIPs, which the products do not. Small buckets
# have their price, too: each all-reduce has its launch and its latency.

# %%
figure = kb.picture(runs[1][0])
figure

# %% [markdown]
# ## FSDP: weights gathered ahead
#
# Each rank keeps a part of the weights. A layer's weights are gathered before its products, in both passes, and its
# gradients are reduced and scattered. `prefetch` starts the gather of the next layer before the products of this one.
# The device waits for a gather (`block_current_stream`), the program does not.


# %%
def fsdp(torch, prefetch):
    dist = torch.distributed
    whole, parts = tensors(torch, LAYERS), tensors(torch, LAYERS, HIDDEN // RANKS)
    gradients, scattered = tensors(torch, LAYERS), tensors(torch, LAYERS, HIDDEN // RANKS)
    (x, y), works = tensors(torch, 2, TOKENS), []
    order = [*range(LAYERS), *reversed(range(LAYERS))]
    gathers = {}
    for at, i in enumerate(order):
        for ahead in range(at, min(at + 1 + prefetch, len(order))):
            if ahead not in gathers:
                layer = order[ahead]
                gathers[ahead] = dist.all_gather_single(whole[layer], parts[layer], async_op=True)
        gathers[at].block_current_stream()
        if at < LAYERS:
            torch.launch(f"layer {i} forward", product, x, whole[i], y, TOKENS, HIDDEN, HIDDEN)
            continue
        torch.launch(f"layer {i} input", product, y, whole[i], x, TOKENS, HIDDEN, HIDDEN)
        torch.launch(f"layer {i} weights", product, x, y, gradients[i], HIDDEN, TOKENS, HIDDEN)
        works.append(dist.reduce_scatter_single(scattered[i], gradients[i], async_op=True))
    for work in works:
        work.wait()


# %%
table = pd.DataFrame([measure(fsdp, prefetch=prefetch)[1] for prefetch in (0, 1)]).set_index("prefetch")
table.assign(**{"exposed [ns]": table["step [ns]"] - compute}).round()

# %% [markdown]
# Prefetching hides half of it. A gather with the copy of its parts takes longer than a product here, and collectives of
# one group run one after another: in the backward pass, gathers wait for reductions. More tokens for each rank make
# the products longer and hide more.
#
# ## A pipeline of experts
#
# Four layers of experts over two pipeline ranks, each with two SIPs that share the experts of its layers. A layer
# sends tokens to their experts and back, by all-to-all. `layers` of them are a stage: two with 1F1B, one with
# interleaved 1F1B, which has half of the bubble.

# %%
N = 4096


def work(x, y, n, *, tl):
    value = tl.load(x, shape=(N,))
    wide = value[:, None] + tl.zeros((1, 8), tl.float16)
    for _ in range(n):
        wide = wide + 1.0
    tl.store(y, value)


def message(torch):
    return torch.zeros(N, dtype=torch.float16, device="ahbm", dp=kb.DPPolicy(num_cubes=1, num_pes=1))


# %%
def experts(layers, unit=20):
    made = {}

    def stage(torch, action, x, y, group):
        own = made.setdefault(torch.distributed.get_rank(), [message(torch).view(64, 64) for _ in range(3)])
        n = unit * (2 if action.kind == "B" else 1)
        exchange = torch.distributed.all_to_all_single
        for i in range(layers):
            torch.launch(f"{action} attention", work, own[0] if x is None or i else x, own[1], n)
            exchange(own[2], own[1], group=group, async_op=True).block_current_stream()
            torch.launch(f"{action} experts", work, own[2], own[1], n)
            exchange(own[0], own[1], group=group, async_op=True).block_current_stream()
        if y is not None:
            torch.launch(f"{action} result", work, own[0], y, 1)

    return stage


# %% [markdown]
# By default, messages of the pipeline and all-to-alls of the experts share links and nothing else. On some devices
# they also share a stream. An order of actions posts a receive as early as its sender acts; in one stream, the
# all-to-all that is queued behind it waits until the message is there. This is known from practice
# ([torchtitan 2209](https://github.com/pytorch/torchtitan/issues/2209),
# [pytorch 172668](https://github.com/pytorch/pytorch/issues/172668)): interleaved 1F1B was slower than expected on
# models with experts.

# %%
machine = kb.load("preset:small", {"system.sips": {"count": 4, "topology": "ring_1d"}})
rows = []
for name, stages, streams in [("1F1B", 1, None), *(("Interleaved1F1B", 2, streams) for streams in (None, 1, 2))]:
    orders = kb.pipeline.orders(name, 2, 4, stages)
    options = {"message": message, "sips_per_rank": 2, "communication_streams": streams}
    run = kb.pipeline.run(orders, experts(2 // stages), machine, **options)
    row = {"schedule": name, "streams": str(streams or "separate"), "step [ns]": round(run.latency_ns)}
    rows.append({**row, "bubble": round(run.bubble, 3), "ideal": round(run.ideal_bubble, 3)})
pd.DataFrame(rows).set_index(["schedule", "streams"])

# %% [markdown]
# With separate streams, interleaved 1F1B is faster than 1F1B, as its smaller bubble promises. In one stream it is
# slower than 1F1B with separate streams, and a second stream, for the messages, removes that. The rest of the bubble
# is the all-to-alls and messages themselves.
#
# To go on: [how to run a pipeline schedule](../docs/howto/pipeline.md), and
# [experts of PyTorch models](../docs/howto/pytorch.md).
