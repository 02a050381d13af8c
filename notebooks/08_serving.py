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
# # What do users of a model notice? Serving requests
#
# A run says how long one step of a model takes. Users notice something else: the time to the first token (TTFT), the
# time per output token (TPOT), and how both grow with the load. They follow from the time of a step and from the
# engine's scheduler, which decides whose tokens are in a step. `kb.serving` simulates the scheduler, with the rules
# of vLLM v1; the time of a step is a function of yours.

# %%
import json
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from matplotlib.figure import Figure

import kernbench as kb

# %matplotlib inline

# %% [markdown]
# ## The time of a step
#
# A step computes tokens of prompts (`prefill`: chunks, each with the number of tokens before it) and one more token
# for each request that decodes (`contexts`: how many tokens each attends to). Here it is a bound for Llama-3 8B on a
# device with 3,350 GB/s and 990 Tflop/s: weights, keys and values are read once, or the products take as long as the
# rate allows. A real step takes longer; the last section simulates it.

# %%
weights, kv_token = 2 * 8.03e9, 2 * 2 * 8 * 128 * 32  # bytes, and bytes for each token of context


def bound(prefill, contexts, gbs=3350, tflops=990):
    tokens = len(contexts) + sum(chunk for chunk, _ in prefill)
    kept = sum(contexts) + sum(before + chunk for chunk, before in prefill)
    return max((weights + kv_token * kept) / gbs, 2 * 8.03e9 * tokens / (1e3 * tflops))


f"one token {bound([], [1000]) / 1e6:.1f} ms, a prompt of 2,048 tokens {bound([(2048, 0)], []) / 1e6:.1f} ms"

# %% [markdown]
# ## Requests, and what they notice
#
# Arrivals are a Poisson process; lengths are lognormal, given by median and sigma. All times are simulated and depend
# on the arguments alone: a second run gives the same.

# %%
requests = kb.serving.generate(600, request_rate=20, input_len=(600, 0.9), output_len=(150, 0.7), seed=1)
result = kb.serving.run(requests, bound, kb.serving.Policy(max_num_batched_tokens=2048))
result

# %% [markdown]
# `table` has a row for each request, `steps` one for each step of the engine.

# %%
result.table.describe().loc[
    ["mean", "50%", "max"], ["input_len", "output_len", "queue_ms", "ttft_ms", "tpot_ms"]
].round(2)

# %%
figure = Figure(figsize=(7, 2.6))
result.plot(figure.subplots())
figure

# %% [markdown]
# ## How much load?
#
# `curve` serves the same requests at other rates. *Goodput* counts only requests that meet all limits at once, here a
# first token within 200 ms and 15 ms per token: it grows with the load, until requests begin to wait.

# %%
limits = {"ttft_ms": 200, "tpot_ms": 15}
curve = result.curve([10, 20, 30, 40, 50, 60], **limits)
shown = ["request_rate", "request_goodput", "median_ttft_ms", "p99_ttft_ms", "p99_tpot_ms"]
curve[shown].round(2)

# %% [markdown]
# ## The budget of a step
#
# A step computes at most `max_num_batched_tokens`. A small budget cuts prompts into chunks, so that the others wait
# less for their next token (ITL, inter-token latency), and the prompt itself waits longer.

# %%
serve = partial(kb.serving.run, requests, bound)
budgets = {n: serve(kb.serving.Policy(max_num_batched_tokens=n)).metrics for n in (256, 1024, 8192)}
{
    n: {key: round(found[key], 2) for key in ("p99_itl_ms", "p99_ttft_ms", "mean_tpot_ms")}
    for n, found in budgets.items()
}

# %% [markdown]
# ## Memory for keys and values
#
# With few blocks, requests wait for memory. A running request that gets no block preempts the one that came last,
# whose tokens are computed again.

# %%
few = {n: serve(kb.serving.Policy(num_blocks=n)) for n in (4000, 2000, 1200)}
{n: (int(each.table["preemptions"].sum()), round(each.metrics["p99_ttft_ms"], 1)) for n, each in few.items()}

# %% [markdown]
# A request that can never run is refused at once, with what would help.

# %% tags=["raises-exception"]
serve(kb.serving.Policy(num_blocks=50))

# %% [markdown]
# ## Prefixes, traces and replicas
#
# Conversations share prefixes. A trace in Mooncake's format names them: one hash for each 512 tokens and what is
# before them. `read_trace` reads such files, and CSV of Azure's traces.

# %%
with TemporaryDirectory() as folder:
    lines = [
        {"timestamp": 60 * i, "input_length": 2600, "output_length": 50, "hash_ids": [0, 1, 2, 3, 100 + i, 500 + i]}
        for i in range(300)
    ]
    path = Path(folder, "trace.jsonl")
    path.write_text("\n".join(map(json.dumps, lines)))
    trace = kb.serving.read_trace(path)
for cached in (False, True):
    found = kb.serving.run(trace, bound, kb.serving.Policy(enable_prefix_caching=cached))
    share = found.table["cached_tokens"].sum() / found.table["input_len"].sum()
    print(f"prefix cache {cached}: mean TTFT {found.metrics['mean_ttft_ms']:.2f} ms, {share:.0%} of prompts cached")

# %% [markdown]
# Replicas are equal engines; a request goes to the one with the least load. What helps more at 40 requests per
# second, two replicas with half the bandwidth and rate, or one with all of it?

# %%
busy = requests.assign(arrival_s=requests["arrival_s"] / 2)
whole = kb.serving.run(busy, bound)
halves = kb.serving.run(busy, partial(bound, gbs=3350 / 2, tflops=990 / 2), replicas=2)
{
    name: (round(each.goodput(**limits), 1), round(each.metrics["mean_tpot_ms"], 2))
    for name, each in {"one": whole, "two": halves}.items()
}

# %% [markdown]
# ## Replicas for prompts
#
# A long prompt delays the next tokens of all others in its step. With *disaggregation*, one replica computes prompts,
# and sends keys and values to another, which continues. Here the transfer has 50 GB/s; `kb.serving.steps` simulates it
# on the network of the machine.

# %%
pair = kb.serving.run(busy, bound, replicas=2)
apart = kb.serving.run(busy, bound, prefill_replicas=1, kv_transfer_ns=lambda tokens: kv_token * tokens / 50)
{
    name: {key: round(each.metrics[key], 2) for key in ("p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms")}
    for name, each in {"two that do both": pair, "one for prompts, one for the rest": apart}.items()
}

# %% [markdown]
# `timeline` has the phases of each request. Below, the first 40: those that wait for the replica of prompts, and those
# whose tokens come one after another.

# %%
figure = Figure(figsize=(7, 2.6))
first = kb.serving.run(busy.head(40), bound, prefill_replicas=1, kv_transfer_ns=lambda tokens: kv_token * tokens / 50)
first.plot(figure.subplots(), "requests")
figure

# %% [markdown]
# ## Results for other tools
#
# `result.save("serve.json", ttft_ms=200)` writes what `vllm bench serve --save-detailed` writes, so that scripts
# which plot its results work.
#
# ## Measured and simulated steps
#
# `kb.serving.LayerProfile` has step times from measured layers of a GPU. With such a profile, the means of TTFT, TPOT
# and end-to-end latency of a log of vLLM are met within 1 %
# ([how](../docs/decisions/0091-serving-on-a-table-of-steps.md)).
#
# `kb.serving.steps` simulates the parts of a model on a machine ([how](../docs/decisions/0098-parts-of-a-step.md)). It
# needs PyTorch, takes some minutes, and keeps what it has simulated. A model is a name, or a config.json of Hugging
# Face: Llama, Mistral, Qwen, Gemma, and the mixtures of experts Mixtral, Qwen-MoE, DeepSeek-V3 (`ep=` divides experts):
#
# ```python
# machine = kb.load("preset:default", {"system.sips": {"count": 8, "topology": "ring_1d"}})
# steps = kb.serving.steps("llama3-8b", machine, tp=8)
# steps.why(prefill=[(256, 0)], contexts=[900] * 64)  # the parts of a step, from the longest, and their limits
# steps.exact(prefill=[], contexts=[100, 900, 4000])  # attention is simulated for these contexts
# policy = kb.serving.Policy(max_num_batched_tokens=256, num_blocks=steps.num_blocks())
# result = kb.serving.run(requests, steps, policy)
# result.curve([5, 10, 20], ttft_ms=200, tpot_ms=50)  # also tokens/s for each user and SIP, and energy per token
# result.what_if({"cube.ucie.bw_gbs": 256}, exact=True, tpot_ms=50)  # on a changed machine: predicted, and simulated
# steps.export("sglang-replay", "replay.json")  # for SGLang's simulator; it also takes `steps.predict_infer_time`
# ```
#
# The report [serving](../milestones/output/serving/README.md) compares machines by the users that a SIP serves.
