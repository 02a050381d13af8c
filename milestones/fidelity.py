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
# # Milestone: how close is the model to the outside world?
#
# The report `verification` shows that the simulator follows the rules of `docs/model.md`. This one asks whether the
# rules are right: it compares the model with other simulators and with measured devices. Inputs, versions and results
# of these are data in `milestones/fidelity/data`; nothing is fitted to them. Machine files of devices are compared
# with measurements that were not used for them.
#
# Where a value differs, the row runs again with each mechanism that the reference contains and the machine leaves out,
# and shows which share of the error it removes. An error that no mechanism explains is reported as unexplained.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
files: list = ["fidelity/data/scalesim/transformer_partial.csv"]  # results of other tools; empty: all of fidelity/data
pairs: list = ["GEMM 256^3, ref_ref"]  # figures that are repeated with the preset detailed
figures: list = ["GEMM 256^3, ref_ref"]  # figures whose sensitivity is ranked
factors: list = ["cube.hbm.channel_bw_gbs", "cube.pe.pe_gemm.clock_ghz"]  # defaults that are changed for it; empty: all
measured: list = []  # machine and file joined by an equals sign: measurements that its machine file has not seen
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import FidelityStudy

machine = kb.load(topology, overrides)
report = FidelityStudy().report(
    machine,
    folder=Path(output or mkdtemp()),
    workers=workers,
    rerender=rerender,
    files=files or sorted(path.as_posix() for path in Path("fidelity/data").glob("*/*.csv") if path.stem != "streams"),
    pairs=pairs,
    figures=figures,
    factors=factors,
    measured=measured,
)
tables = report.study.tables(report.rows)
report

# %% [markdown]
# ## Errors
#
# Of devices on measurements that were not used for their machine files, and of each component with all mechanisms of
# its reference.

# %%
tables["Errors"]

# %% [markdown]
# What is not modelled, and how far off those measurements are that depend on it.

# %%
tables["Not modelled"]

# %% [markdown]
# ## References
#
# *error*: our value compared with the reference. *explained by*: the mechanism that removes most of the error, with its
# share and the error that is left.

# %%
tables["References"]

# %%
report.figure("fidelity_errors")

# %% [markdown]
# ## The same figures with the validated models
#
# The default machine has ideal models: a rate for HBM, links without flow control, an engine without fill and drain.
# The preset `detailed` has the models that were compared above instead.

# %%
tables["Figures with the validated models"]

# %%
report.figure("fidelity_pairs")

# %% [markdown]
# `kb.fidelity(files, machine)` makes the same comparison with your own files, and so does `kernbench fidelity`.
#
# ## Which defaults decide the figures
#
# Defaults are changed one at a time, and the figure is simulated again. Those without a public source are assumptions.

# %%
tables["Sensitivity to defaults"]

# %%
report.figure("fidelity_sensitivity")
