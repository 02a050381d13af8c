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
# # Milestone: serving decoder models
#
# Which machine serves more users per SIP within 50 ms per output token? Why, and what should change in it first?
#
# - Layers, attention and the head of a model are simulated at captured sizes: the time of any step of an engine.
# - Requests are served with these steps, by the rules of vLLM's scheduler, at several rates of arrival.
# - The same parts are simulated again on a changed machine: what the change gains in requests that meet the limits.
#
# This notebook needs PyTorch: `make frontends` installs it, in an environment apart.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
models: dict = {"llama3-8b": 8}  # what is served, and over how many SIPs each
presets: list = []  # further machines
sizes: list = [8]  # captured sizes, in tokens
contexts: list = [64, 256]  # contexts of attention, in tokens
changes: list = ["memory twice as fast"]  # of the machine, each alone
changed: list = ["llama3-8b"]  # the models for which the machine is changed
served: int = 40  # requests of a run
input_len: int = 100  # tokens of a prompt
output_len: int = 20  # tokens of an answer
tpot_ms: float = 50  # largest time per output token
ttft_ms: float = 1000  # largest time to the first token
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import ServingStudy

machine = kb.load(topology, overrides)
report = ServingStudy().report(
    machine,
    folder=Path(output or mkdtemp()),
    workers=workers,
    rerender=rerender,
    models=models,
    presets=presets,
    sizes=sizes,
    contexts=contexts,
    changes=changes,
    changed=changed,
    served=served,
    input_len=input_len,
    output_len=output_len,
    tpot_ms=tpot_ms,
    ttft_ms=ttft_ms,
)
report

# %% [markdown]
# ## Users per SIP
#
# Goodput counts requests that meet both limits at once. A user reads a token in the largest time that is allowed.

# %%
tables = report.study.tables(report.rows)
tables["Largest goodput"]

# %%
report.figure("serving_goodput")

# %% [markdown]
# ## Throughput against speed
#
# More users share a step: the SIP computes more tokens per second, and each user waits longer for the next.

# %%
report.figure("serving_pareto")

# %% [markdown]
# ## Why

# %%
report.figure("serving_causes")

# %% [markdown]
# ## What to change first

# %%
tables["What to change first"]

# %%
report.figure("serving_changes")

# %%
report.figure("serving_silicon")
