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
# # Milestone: PyTorch models by module
#
# Where does the time of a model go, module by module? How near is each to the roofline? What limits the call, and which
# part of the machine should change first?
#
# - **Llama-3 70B**: one decoder layer, in decode (one token, with the keys and values of the tokens before it) and in
#   prefill, over one to eight SIPs.
# - **GPT-2** and **ViT-B/16**: one block, with what comes before and after the blocks, on one SIP of several machines.
#
# The models are those of the transformers package, unmodified and without weights. This notebook needs PyTorch:
# `make frontends` installs it, in an environment apart.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
models: dict = {"llama3-70b-decode": [1, 2]}  # what runs, over how many SIPs
presets: list = ["small", "gpu_launch"]  # further machines
elsewhere: list = ["llama3-70b-decode"]  # the models that run there, too
hidden: int = 2048  # width of the layer of Llama; 8192 is that of Llama-3 70B
context: int = 256  # tokens of its decode
prompt: int = 32  # tokens of its prefill
tokens: int = 128  # tokens of GPT-2
changes: int = 1  # parts of the critical path that are made twice as fast, each alone
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import ModelsStudy

machine = kb.load(topology, overrides)
report = ModelsStudy().report(
    machine,
    folder=Path(output or mkdtemp()),
    workers=workers,
    rerender=rerender,
    models=models,
    presets=presets,
    elsewhere=elsewhere,
    hidden=hidden,
    context=context,
    prompt=prompt,
    tokens=tokens,
    changes=changes,
)
report

# %% [markdown]
# ## Where the time goes
#
# The bound is what one SIP needs to read its weights, keys and values once, or to compute its products at the full
# matrix rate, whichever is longer.

# %%
tables = report.study.tables(report.rows)
tables["Calls"]

# %%
report.figure("models_parts")

# %%
report.figure("models_scaling")

# %% [markdown]
# ## Module by module
#
# *Share of the roofline*: the achieved FLOPs over those that matrix engines and HBM allow at the FLOPs per byte that
# the module moves.

# %%
tables["Modules, with the fewest and the most SIPs"]

# %%
report.figure("models_roofline")

# %% [markdown]
# ## Why, and what to change first
#
# The parts of the critical path with the largest shares are made twice as fast, each alone and together with the fields
# that `why` names with it, and the call is simulated again. Where the part is the host, the launches of the call are
# sent as one graph instead.

# %%
tables["Why: the critical path of each call"]

# %%
tables["What to change first"]

# %%
report.figure("models_changes")

# %% [markdown]
# ## Other machines

# %%
report.figure("models_machines")
