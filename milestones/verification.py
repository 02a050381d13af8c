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
# # Milestone: does the simulator follow its rules?
#
# This report compares every rule of `docs/model.md` that states a number with the simulation: closed forms of
# transfers, memory, launches and tile stages; a second simulator, written as a process for each hop of each flit;
# bandwidth shares of competing streams; sums of bytes and busy times; and the influence of the order of simultaneous
# arrivals.
#
# Each row is one rule. Its error is the largest difference over all its points: sizes, routes, random machines.

# %% tags=["parameters"]
topology: str = "preset:small"  # machine file, or preset:NAME
overrides: list = []  # changes to it, path and value joined by an equals sign
checks: list = []  # rows to compute; all if none is named
repeats: int = 1  # random machines, or permutations of ranks, in each row
workers: int = 1  # processes
rerender: bool = False  # redraw from existing results
output: str = ""  # folder; empty: a temporary one

# %%
from pathlib import Path
from tempfile import mkdtemp

import kernbench as kb
from kernbench.studies import VerificationStudy

machine = kb.load(topology, overrides)
report = VerificationStudy().report(
    machine,
    folder=Path(output or mkdtemp()),
    workers=workers,
    rerender=rerender,
    checks=checks,
    repeats=repeats,
)
report

# %% [markdown]
# ## The rows
#
# *exact*: no point differs by even a picosecond. *within*: the rule is approximate and states its tolerance.
# *reported*: no formula predicts the number; the row gives the difference from its reference.

# %%
tables = report.study.tables(report.rows)
tables["Rules"]

# %% [markdown]
# ## The largest error of each row that is not exact

# %%
tables["Largest errors"]

# %% [markdown]
# ## Where no formula is exact
#
# Flits that reach a link in the same picosecond are served by fixed ranks (M4.4). Permuting the ranks shows how much a
# result depends on that choice. Fair shares and the ideal matrix product are the figures that one would calculate
# without a simulator.

# %%
report.figure("verification_spread")
